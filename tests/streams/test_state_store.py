"""Stores against a plain dict: commits, crashes, eviction, expiry; what a state directory refuses."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from logflume.log import CorruptLog, DataDirLocked, InvalidInput, StorageError
from logflume.log.records import TopicPartition
from logflume.log.schemas import ANY, BIGINT, DOUBLE, STRING, Column, array, struct
from logflume.log.schemas import decimal as decimal_type
from logflume.streams.graph import TimeWindow
from logflume.streams.seams import Entry, StoreSpec
from logflume.streams.state import Checkpoint, EntryCodec, StateDirectory, Store, TaskState
from logflume.streams.state.columns import EntryColumns
from logflume.streams.state.held import held_bytes

PLAIN = StoreSpec("counts", (Column("user", STRING),), (Column("n", BIGINT), Column("note", STRING)))
WINDOW = TimeWindow(size_ms=60_000, advance_ms=60_000, grace_ms=30_000)
WINDOWED = StoreSpec("per_minute", (Column("user", STRING),), (Column("n", BIGINT), Column("note", STRING)), WINDOW)
KEYS = st.sampled_from([b"", b"a", b"b", b"bb", b"c", b"\xff", b"\xff\xff", b"user-17"])


def open_state(path: Path, *specs: StoreSpec, memory_bytes: int = 256 << 20) -> TaskState:
    return TaskState(path / "t.0", application="app", task="t.0", specs=specs, memory_bytes=memory_bytes)


def windowed(key: bytes, minute: int) -> bytes:
    return key + (minute * 60_000).to_bytes(8, "big")


class StoreMachine(RuleBasedStateMachine):
    """A plain and a window store of one task, changed the way generated code does it, against two dicts."""

    @initialize()
    def start(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.now: dict[str, dict[bytes, int]] = {"counts": {}, "per_minute": {}}
        self.kept = {name: dict(rows) for name, rows in self.now.items()}
        self.time, self.kept_time, self.position = -1, -1, 0
        self.reopen()

    def reopen(self) -> None:
        self.state = open_state(Path(self.directory.name), PLAIN, WINDOWED)
        for store in self.state.stores.values():
            store.memory_bytes = 3000

    def put(self, name: str, key: bytes, n: int | None) -> None:
        store = self.state.stores[name]
        store.load([key])
        old = store.resident.get(key)
        expected = self.now[name].get(key)
        assert (None if old is None or old.state is None else old.state[0]) == expected
        if n is None and old is None:
            return
        store.resident[key] = Entry(None if n is None else (n, "x"), n or 0)
        store.dirty[key] = None
        if n is None:
            self.now[name].pop(key, None)
        else:
            self.now[name][key] = n

    @rule(key=KEYS, n=st.one_of(st.none(), st.integers(0, 2**62)))
    def put_plain(self, key: bytes, n: int | None) -> None:
        self.put("counts", key, n)

    @rule(keys=st.lists(st.integers(0, 400), max_size=30), n=st.integers(0, 9))
    def put_many(self, keys: list[int], n: int) -> None:
        for key in keys:
            self.put("counts", b"k%d" % key, n)

    @rule(key=KEYS, minute=st.integers(0, 12), n=st.one_of(st.none(), st.integers(0, 9)))
    def put_window(self, key: bytes, minute: int, n: int | None) -> None:
        start = minute * 60_000
        store = self.state.stores["per_minute"]
        if start + WINDOW.size_ms <= self.time - WINDOW.grace_ms:
            return
        self.time = max(self.time, start)
        store.stream_time_ms = self.time
        self.drop_expired()
        self.put("per_minute", windowed(key, minute), n)

    def drop_expired(self) -> None:
        alive = self.time - WINDOW.size_ms - WINDOW.grace_ms + 1
        rows = self.now["per_minute"]
        for key in [k for k in rows if int.from_bytes(k[-8:], "big") < alive]:
            del rows[key]

    @rule()
    def commit(self) -> None:
        self.position += 1
        checkpoint = Checkpoint({TopicPartition("in", 0): self.position}, {TopicPartition("in", 0): self.time}, {"counts": 7})
        self.state.commit(self.state.encode_dirty(), checkpoint)
        self.kept = {name: dict(rows) for name, rows in self.now.items()}
        self.kept_time = self.time

    @rule()
    def crash(self) -> None:
        self.state.close()
        self.reopen()
        self.now = {name: dict(rows) for name, rows in self.kept.items()}
        self.time = self.kept_time
        assert self.state.stores["per_minute"].stream_time_ms == self.time
        assert self.state.checkpoint.inputs.get(TopicPartition("in", 0), 0) == self.position

    @rule(start=KEYS, stop=st.one_of(st.none(), KEYS), name=st.sampled_from(["counts", "per_minute"]))
    def read_range(self, start: bytes, stop: bytes | None, name: str) -> None:
        expected = sorted((k, n) for k, n in self.now[name].items() if k >= start and (stop is None or k < stop))
        assert [(k, e.state and e.state[0]) for k, e in self.state.stores[name].range(start, stop)] == expected

    @rule(key=KEYS, minute=st.integers(0, 12))
    def read_one(self, key: bytes, minute: int) -> None:
        for name, full in (("counts", key), ("per_minute", windowed(key, minute))):
            entry = self.state.stores[name].get(full)
            assert (entry and entry.state and entry.state[0]) == self.now[name].get(full)

    @invariant()
    def readers_see_what_was_committed(self) -> None:
        if not hasattr(self, "state"):
            return
        for name, rows in self.kept.items():
            page = self.state.reader(name).page(b"", None, limit=10_000)
            assert [(k, e.state and e.state[0]) for k, e in page] == sorted(rows.items())

    def teardown(self) -> None:
        if hasattr(self, "state"):
            self.state.close()
            self.directory.cleanup()


StoreMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStoreModel = StoreMachine.TestCase


def test_memory_stays_within_its_setting_and_nothing_is_lost(tmp_path: Path) -> None:
    state = open_state(tmp_path, PLAIN, memory_bytes=1 << 20)
    store = state.stores["counts"]
    for block in range(20):
        keys = [b"%08d" % i for i in range(block * 1000, block * 1000 + 1000)]
        store.load(keys)
        for key in keys:
            store.resident[key] = Entry((int(key), None), 1)
        store.dirty.update(dict.fromkeys(keys))
        state.commit(state.encode_dirty(), Checkpoint())
        assert store.size_bytes() <= 1 << 20
    assert len(store.resident) < 20_000
    assert [e.state[0] for _, e in store.range(b"", None) if e.state] == list(range(20_000))
    store.load([b"%08d" % 3])
    assert store.resident[b"00000003"].state == (3, None)
    state.close()


def test_large_values_count_for_what_they_take(tmp_path: Path) -> None:
    state = open_state(tmp_path, PLAIN, memory_bytes=4 << 20)
    store = state.stores["counts"]
    for block in range(10):
        for i in range(block * 200, block * 200 + 200):
            store.resident[b"%05d" % i] = Entry((i, "x" * 5000), 1)
            store.dirty[b"%05d" % i] = None
        state.commit(state.encode_dirty(), Checkpoint())
    assert len(store.resident) * 5000 <= 4 << 20
    assert len(list(store.range(b"", None))) == 2000
    state.close()


class Visit(msgspec.Struct, gc=False):
    user: str
    pages: list[float]


def texts(i: int) -> tuple[Any, ...]:
    return f"n{i:06}", f"c{i:04}"


def visits(i: int) -> tuple[Any, ...]:
    return (Visit(f"user {i}", [i / 3, i / 7]),)


@pytest.mark.parametrize(
    ("spec", "state_of"),
    [
        (StoreSpec("texts", (Column("k", STRING),), (Column("a", STRING), Column("b", STRING))), texts),
        (StoreSpec("visits", (Column("k", STRING),), (Column("value", ANY),), classes=(Visit,)), visits),
    ],
)
def test_entries_count_for_the_memory_that_they_take(
    spec: StoreSpec, state_of: Callable[[int], tuple[Any, ...]], tmp_path: Path
) -> None:
    state = open_state(tmp_path, spec)
    store = state.stores[spec.name]
    tracemalloc.start()
    try:
        for i in range(20_000):
            key = b"user-%010d" % i
            store.resident[key], store.dirty[key] = Entry(state_of(i), 1_700_000_000_000 + i), None
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    store.encode_dirty()
    assert 0.9 < store.size_bytes() / taken < 1.2
    state.close()


def test_a_store_that_has_become_empty_is_no_more_than_its_memory(tmp_path: Path) -> None:
    state = open_state(tmp_path, PLAIN)
    store = state.stores[PLAIN.name]
    store.memory_bytes = 1
    for kept in ((1, None), None):
        store.resident[b"a"], store.dirty[b"a"] = Entry(kept, 1), None
        state.commit(state.encode_dirty(), state.checkpoint)
    assert not store.resident
    assert store.get(b"a") is None
    state.close()


def test_what_all_entries_share_counts_once() -> None:
    shared = ["x" * 1000 for _ in range(100)]
    assert held_bytes([(i, shared) for i in range(10)]) < 110_000
    assert held_bytes([(Visit, len, json)]) < 200
    assert 780_000 < held_bytes([[float(i) for i in range(20_000)]]) < 820_000


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the largest resident size since a moment"
)
def test_columns_that_grow_do_not_take_twice_their_memory() -> None:
    from logflume.streams.kernels import slots

    columns = EntryColumns(slots, [Column("n", BIGINT), Column("total", DOUBLE)], is_windowed=False)
    keys = [b"user-%010d" % i for i in range(300_000)]
    columns.put(keys, [Entry((1, 0.5), 1)] * len(keys), is_changed=False)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident_bytes("VmHWM")
    columns.grow(1 << 19, 0)
    assert resident_bytes("VmHWM") - before < columns.size_bytes() // 2
    assert columns.entries(columns.find(keys[-1:])) == [Entry((1, 0.5), 1)]


def resident_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def test_windows_of_a_key_are_read_in_order_of_time(tmp_path: Path) -> None:
    state = open_state(tmp_path, WINDOWED)
    store = state.stores["per_minute"]
    store.stream_time_ms = 60_000
    for key in (windowed(b"a", 1), windowed(b"a", 0), windowed(b"ab", 0), windowed(b"", 1)):
        store.resident[key] = Entry((1, "x"), 5)
        store.dirty[key] = None
    reader = state.reader("per_minute")
    assert reader.windows(b"a") == []
    state.commit(state.encode_dirty(), Checkpoint())
    assert [start for start, _ in reader.windows(b"a")] == [0, 60_000]
    assert reader.get(windowed(b"ab", 0)) == Entry((1, "x"), 5)
    assert reader.page(b"", None, limit=2)[0][0] == windowed(b"", 1)
    state.close()
    with pytest.raises(StorageError, match="closed"):
        reader.get(b"a")


@given(
    st.tuples(
        st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
        st.one_of(st.none(), st.floats(allow_nan=False)),
        st.one_of(st.none(), st.decimals(allow_nan=False, allow_infinity=False)),
        st.recursive(
            st.one_of(
                st.none(), st.booleans(), st.integers(), st.text(), st.binary(), st.dates(), st.datetimes(), st.timedeltas(),
                st.uuids(), st.frozensets(st.integers()),
            ),
            lambda inner: st.one_of(
                st.lists(inner), st.tuples(inner, inner), st.dictionaries(st.text(), inner), st.sets(st.text())
            ),
            max_leaves=8,
        ),
    ),
    st.integers(0, 2**60),
)  # fmt: skip
def test_entries_come_back_as_they_were(state: tuple[object, ...], timestamp_ms: int) -> None:
    codec = EntryCodec((Column("n", BIGINT), Column("x", DOUBLE), Column("d", decimal_type(10, 2)), Column("any", ANY)))
    data = codec.encode(Entry(state, timestamp_ms))
    assert data is not None
    back = codec.decode(data)
    assert back == Entry(state, timestamp_ms)
    assert back.state is not None
    assert [type(v) for v in back.state] == [type(v) for v in state]


class Counted(msgspec.Struct):
    total: Any
    note: str = ""


class Renamed(msgspec.Struct, rename="upper", tag=True):
    total: Any = 1


class Listed(msgspec.Struct, array_like=True, omit_defaults=True):
    total: Any = 1


_PARTS = st.one_of(st.integers(-(2**80), 2**80), st.floats(), st.sets(st.integers(), max_size=2))
_COUNTED = st.one_of(st.builds(Counted, _PARTS, st.text()), st.builds(Renamed, _PARTS), st.builds(Listed, _PARTS))
_NESTED = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**65), 2**65), st.text(max_size=3), st.dates()),
    lambda inner: st.one_of(
        st.lists(inner), st.tuples(inner), st.dictionaries(st.one_of(st.text(), st.integers(-(2**63), 2**64 - 1)), inner)
    ),
    max_leaves=6,
)
_STATES = st.one_of(
    st.none(), st.tuples(_COUNTED), st.tuples(st.one_of(st.none(), st.text(), _COUNTED)), st.tuples(_NESTED),
    st.tuples(st.dictionaries(st.text(max_size=2), st.floats(), max_size=3)),
)  # fmt: skip


@given(st.lists(_STATES, max_size=5))
def test_many_entries_are_written_and_read_as_each_by_itself(states: list[tuple[Any] | None]) -> None:
    codec = EntryCodec((Column("any", ANY),), (Counted, Renamed, Listed))
    entries = [Entry(state, at) for at, state in enumerate(states)]
    written = codec.encode_all(entries)
    assert written == [codec.encode(entry) for entry in entries]
    assert repr(codec.decode_rows([each for each in written if each])) == repr(
        [codec.decode(each).state for each in written if each]
    )


class Level(enum.IntEnum):
    ONE = 1


def deep(levels: int) -> Any:
    found: Any = []
    for _ in range(levels):
        found = [found]
    return found


def holding_itself() -> Any:
    found: list[Any] = [1]
    found += [found, {"me": found}]
    return found


@pytest.mark.parametrize(
    "refused",
    [{Level.ONE: 2}, {"a": [{Level.ONE: 2}]}, {(1,): 2}, {2**64: 1}, [{"a": {-(2**70): 1}}], deep(100_000), holding_itself()],
)
def test_a_state_that_cannot_be_stored_is_refused_among_others(refused: Any) -> None:
    codec = EntryCodec((Column("any", ANY),))
    with pytest.raises(InvalidInput, match="cannot be stored"):
        codec.encode_all([Entry(({1: 2},), 0), Entry((refused,), 0), Entry(([1, 2],), 0)])


def test_decimals_inside_structs_and_arrays_stay_decimals() -> None:
    codec = EntryCodec((Column("s", struct(Column("d", decimal_type(4, 2)))), Column("a", array(decimal_type(4, 2)))))
    entry = Entry(({"d": decimal.Decimal("1.50")}, [decimal.Decimal("2.00"), None]), 1)
    data = codec.encode(entry)
    assert data is not None
    assert codec.decode(data) == entry


def test_state_that_could_not_be_read_back_is_refused() -> None:
    codec = EntryCodec((Column("any", ANY),))
    with pytest.raises(InvalidInput, match="Path"):
        codec.encode(Entry((Path("x"),), 1))
    with pytest.raises(InvalidInput, match="dict key"):
        codec.encode(Entry(({dt.date(2020, 1, 1): 1},), 1))


@pytest.mark.parametrize(
    ("data", "error"),
    [(b"", CorruptLog), (b"\x94\x02abc", InvalidInput), (b"\x93\x02\x01\x01", InvalidInput), (b"\x94\x01\xc1", CorruptLog)],
)
def test_entries_of_an_unknown_format_are_refused(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        EntryCodec(PLAIN.columns).decode(data)


def test_a_database_is_refused_when_it_is_open_or_of_another_task_or_shape(tmp_path: Path) -> None:
    state = open_state(tmp_path, PLAIN)
    with pytest.raises(DataDirLocked, match="its own state_dir"):
        open_state(tmp_path, PLAIN)
    state.close()
    with pytest.raises(InvalidInput, match=r"belongs to task 't.0' of application 'app'"):
        TaskState(tmp_path / "t.0", application="other", task="t.0", specs=[PLAIN])
    with pytest.raises(InvalidInput, match="give the changed store a new name"):
        open_state(tmp_path, StoreSpec("counts", PLAIN.key, (Column("n", STRING),)))
    open_state(tmp_path, PLAIN, WINDOWED).close()
    open_state(tmp_path, WINDOWED).close()


def test_a_newer_or_foreign_database_is_refused(tmp_path: Path) -> None:
    state = open_state(tmp_path, PLAIN)
    header = json.loads(state.db._db.get(b"\x00header"))
    state.db._db.put(b"\x00header", json.dumps({**header, "format": 2}).encode())
    state.close()
    with pytest.raises(InvalidInput, match="state format 2, this logflume reads 1"):
        open_state(tmp_path, PLAIN)
    (tmp_path / "foreign" / "t.0").mkdir(parents=True)
    (tmp_path / "foreign" / "t.0" / "photo.jpg").write_bytes(b"x")
    with pytest.raises(InvalidInput, match="not a state directory"):
        open_state(tmp_path / "foreign", PLAIN)


def test_a_damaged_database_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    open_state(tmp_path, PLAIN).close()
    for manifest in (tmp_path / "t.0").glob("MANIFEST*"):
        manifest.write_bytes(b"garbage")
    with pytest.raises(StorageError, match="delete the directory to rebuild"):
        open_state(tmp_path, PLAIN)


def test_a_state_directory_keeps_its_identity_and_its_lock(tmp_path: Path) -> None:
    first = StateDirectory(tmp_path, "app", host="h")
    beside = StateDirectory(tmp_path, "app", host="h")
    assert beside.instance_id != first.instance_id
    assert beside.path != first.path
    beside.close()
    first.close()
    second = StateDirectory(tmp_path, "app", host="h")
    assert second.instance_id == first.instance_id
    second.close()
    (tmp_path / "app" / "0" / "instance.json").write_text('{"format": 9, "application": "app", "instance_id": "x"}')
    with pytest.raises(InvalidInput, match="format 9"):
        StateDirectory(tmp_path, "app", host="h")
    (tmp_path / "app" / "0" / "instance.json").write_text('{"format": 1, "application": "b", "instance_id": "x"}')
    with pytest.raises(InvalidInput, match="belongs to application 'b'"):
        StateDirectory(tmp_path, "app", host="h")
    with pytest.raises(InvalidInput, match="application name"):
        StateDirectory(tmp_path, "../app", host="h")


@pytest.mark.parametrize(
    "left", [("LOCK", "LOG", "IDENTITY", "000001.dbtmp"), ("000012.sst", "OPTIONS-000007", "MANIFEST-000005")]
)
def test_a_database_that_a_kill_left_half_made_or_half_deleted_is_rebuilt(tmp_path: Path, left: tuple[str, ...]) -> None:
    (tmp_path / "t.0").mkdir()
    for name in left:
        (tmp_path / "t.0" / name).write_bytes(b"x")
    with pytest.raises(StorageError, match="has no CURRENT"):
        open_state(tmp_path, PLAIN)


def test_a_store_without_disk_is_a_dict(tmp_path: Path) -> None:
    store = Store(PLAIN)
    store.load([b"a"])
    store.resident[b"b"] = Entry((1, None), 1)
    store.resident[b"a"] = Entry((2, None), 1)
    store.dirty |= {b"a": None, b"b": None}
    assert [key for key, _ in store.range(b"", None)] == [b"a", b"b"]
    assert store.get(b"c") is None
    store.committed()
    assert [key for key, _ in store.range(b"a", b"b")] == [b"a"]
