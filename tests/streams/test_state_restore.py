"""Changelogs taken back into stores, against a plain dict; and the memory that RocksDB takes for all of them."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logflume.log.records import Chunk
from logflume.log.schemas import BIGINT, STRING, Column
from logflume.streams.graph import TimeWindow
from logflume.streams.seams import Entry, StoreSpec
from logflume.streams.state import Checkpoint, DiskMemory, TaskState
from logflume.streams.state.order import near_key_order

COLUMNS = (Column("n", BIGINT),)
PLAIN = StoreSpec("counts", (Column("user", STRING),), COLUMNS)
WINDOW = TimeWindow(size_ms=60_000, advance_ms=60_000, grace_ms=0, retention_ms=600_000)
WINDOWED = StoreSpec("per_minute", (Column("user", STRING),), COLUMNS, WINDOW)
NOTES = StoreSpec("notes", (Column("user", STRING),), (Column("note", STRING),))
KEYS = st.one_of(
    st.binary(max_size=12), st.sampled_from([b"a", b"a\x00", b"user-000001", b"user-000002", b"user-00000123456789"])
)


def opened(path: Path, spec: StoreSpec, *, memory_bytes: int = 8 << 20, memory: DiskMemory | None = None) -> TaskState:
    return TaskState(path, application="app", task="t.0", specs=[spec], memory_bytes=memory_bytes, disk_memory=memory)


@given(
    before=st.binary(max_size=3),
    keys=st.lists(st.none() | st.binary(max_size=7).filter(lambda key: not key.endswith(b"\0")), max_size=40),
)
def test_keys_that_differ_early_are_put_in_their_order_and_rows_of_one_key_stay_as_they_were(
    before: bytes, keys: list[bytes | None]
) -> None:
    whole = [None if key is None else before + key for key in keys]
    rows = near_key_order(Chunk.from_columns("changelog", whole, [b"v"] * len(keys), [0] * len(keys)), segment_ms=0).tolist()
    known = [(key, row) for row in rows if (key := whole[row]) is not None]
    assert known == sorted(known)
    assert sorted(rows) == list(range(len(keys)))


@pytest.mark.parametrize("spec", [PLAIN, WINDOWED], ids=["plain", "windows"])
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=st.lists(st.tuples(st.none() | KEYS, st.integers(0, 9), st.none() | st.integers(0, 2**40)), max_size=120),
    chunks=st.integers(1, 4),
)
def test_a_store_is_what_its_changelog_says_last(
    spec: StoreSpec, rows: list[tuple[bytes | None, int, int | None]], chunks: int
) -> None:
    expected: dict[bytes, int] = {}
    with TemporaryDirectory() as directory:
        state = opened(Path(directory) / "t", spec)
        store = state.stores[spec.name]
        keys = [None if key is None else key + (b"" if spec is PLAIN else (m * 60_000).to_bytes(8, "big")) for key, m, _ in rows]
        values = [None if n is None else store.codec.encode_all([Entry((n,), 5)])[0] for _, _, n in rows]
        for key, (_, _, n) in zip(keys, rows, strict=True):
            if key is not None and n is not None:
                expected[key] = n
            elif key is not None:
                expected.pop(key, None)
        size = max(1, -(-len(rows) // chunks))
        for start in range(0, len(rows), size):
            part = slice(start, start + size)
            chunk = Chunk.from_columns("changelog", keys[part], values[part], [0] * len(keys[part]))
            state.restore(store, chunk, Checkpoint(changelogs={spec.name: start + len(chunk)}))
        assert {key: entry.state[0] for key, entry in store.range(b"", None) if entry.state} == expected
        assert state.checkpoint.changelogs == ({spec.name: len(rows)} if rows else {})
        state.close()


def test_what_is_restored_has_the_times_that_the_group_knows(tmp_path: Path) -> None:
    """Offsets and times were committed, the state was not: what had expired by then has expired in what is restored too."""
    state = opened(tmp_path / "t", WINDOWED)
    store = state.stores[WINDOWED.name]
    keys: list[bytes | None] = [b"a" + (minute * 60_000).to_bytes(8, "big") for minute in range(30)]
    values = store.codec.encode_all([Entry((1,), 0)] * len(keys))
    store.stream_time_ms = 29 * 60_000
    state.restore(store, Chunk.from_columns("changelog", keys, values, [0] * len(keys)), Checkpoint())
    alive = list(store.range(b"", None))
    assert len(alive) == 10
    state.close()
    again = opened(tmp_path / "t", WINDOWED)
    assert list(again.stores[WINDOWED.name].range(b"", None)) == alive
    again.close()


def test_the_databases_of_an_application_share_one_memory(tmp_path: Path) -> None:
    memory = DiskMemory(1 << 20, tasks=6)
    states = [opened(tmp_path / str(task), NOTES, memory_bytes=1 << 20, memory=memory) for task in range(6)]
    entry = Entry(("x" * 500,), 0)
    for round in range(20):
        for state in states:
            store = state.stores[NOTES.name]
            keys: list[bytes | None] = [b"k%06d" % n for n in range(1000 * round, 1000 * (round + 1))]
            values = store.codec.encode_all([entry] * len(keys))
            state.restore(store, Chunk.from_columns("changelog", keys, values, [0] * len(keys)), Checkpoint())
        used = sum(state.db.write_buffers_bytes() for state in states)
        assert used + memory.cache.get_usage() < 1.5 * memory.disk_bytes + len(states) * len(keys) * 600, "of 60 MB written"
    for state in states:
        found = state.stores[NOTES.name].range(b"k000000", b"k000010")
        assert len(list(found)) == 10
        state.close()
