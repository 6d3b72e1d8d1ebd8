"""Changelogs taken back into stores, against a plain dict; and the memory that RocksDB takes for all of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import setitem
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logflume.log import CorruptLog, StorageError
from logflume.log.records import Chunk
from logflume.log.schemas import BIGINT, STRING, Column
from logflume.streams.graph import TimeWindow
from logflume.streams.seams import Entry, StoreSpec
from logflume.streams.state import Checkpoint, DiskMemory, Gathered, TaskState
from logflume.streams.state.order import last_of_keys

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
    before=st.sampled_from([b"", b"abc", b"\0" * 9, b"users/europe/"]),
    keys=st.lists(
        st.tuples(
            st.binary(max_size=2) | st.sampled_from([b"a", b"a\0", b"x" * 8, b"x" * 20, b"x" * 40, b"x" * 40 + b"\0"]),
            st.integers(0, 2),
        )
    ),
    is_segmented=st.booleans(),
    is_one_odd=st.booleans(),
)
def test_a_file_has_the_last_record_of_each_key_in_their_order(
    before: bytes, keys: list[tuple[bytes, int]], is_segmented: bool, is_one_odd: bool
) -> None:
    """Keys that begin alike or differ only in nulls at their end, and one among many that looks like none of the others."""
    whole = [(segment if is_segmented else 0, before + key) for key, segment in keys]
    if is_one_odd and whole:
        whole[-1] = whole[-1][0], b"abcusers"
    chunk = Chunk.from_columns("changelog", [key for _, key in whole], [b"v"] * len(keys), [0] * len(keys))
    segments = np.array([segment for segment, _ in whole] if is_segmented else [], np.int64)
    last = {item: row for row, item in enumerate(whole)}
    assert last_of_keys(chunk, segments).tolist() == [last[item] for item in sorted(last)]


@given(
    rows=st.lists(st.tuples(st.none() | KEYS, st.none() | st.binary(max_size=5)), max_size=60),
    parts=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=6),
    taken_after=st.integers(0, 6),
)
def test_what_is_gathered_is_the_records_from_the_first_offset_on_each_once(
    rows: list[tuple[bytes | None, bytes | None]], parts: list[tuple[int, int]], taken_after: int
) -> None:
    """Chunks that reach back into what is there, as after the partitions are assigned anew; offsets begin at 5."""
    whole = Chunk.from_columns("changelog", [key for key, _ in rows], [value for _, value in rows], [0] * len(rows))
    gathered, read, found = Gathered(5), 5, []
    for number, (start, size) in enumerate(parts):
        start = min(start, read)
        gathered.add(whole.slice(start, start + size))
        read = max(read, min(start + size, len(rows)))
        if number == taken_after or number == len(parts) - 1:
            chunk = gathered.take()
            assert gathered.size_bytes == 0
            if chunk is not None:
                assert chunk.next_offset == gathered.next_offset
                found += list(zip(chunk.offsets.tolist(), chunk.keys(), chunk.values(), strict=True))
    assert found == [(at, *rows[at]) for at in range(5, min(read, len(rows))) if rows[at][0] is not None]


@pytest.mark.parametrize("as_files", [False, True], ids=["batches", "files"])
@pytest.mark.parametrize("spec", [PLAIN, WINDOWED], ids=["plain", "windows"])
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=st.lists(st.tuples(st.none() | KEYS, st.integers(0, 9), st.none() | st.integers(0, 2**40)), max_size=120),
    chunks=st.integers(1, 4),
)
def test_a_store_is_what_its_changelog_says_last(
    spec: StoreSpec, as_files: bool, rows: list[tuple[bytes | None, int, int | None]], chunks: int
) -> None:
    expected: dict[bytes, int] = {}
    with TemporaryDirectory() as directory:
        state = opened(Path(directory) / "t", spec)
        state.gather_bytes = 0 if as_files else state.gather_bytes
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


PART = 500
CHANGELOG: list[tuple[bytes, int | None]] = [(b"k%03d" % (7 * n % 400), None if n % 11 == 0 else n) for n in range(4 * PART)]


def restore_on(state: TaskState) -> None:
    """Restore what the state lacks of CHANGELOG, a part at a time, each as a file."""
    state.gather_bytes = 0
    store = state.stores[PLAIN.name]
    for start in range(state.checkpoint.changelogs.get(PLAIN.name, 0), len(CHANGELOG), PART):
        keys, numbers = zip(*CHANGELOG[start : start + PART], strict=True)
        values = store.codec.encode_all([Entry(None if n is None else (n,), 0) for n in numbers])
        chunk = Chunk.from_columns("changelog", keys, values, [0] * PART)
        state.restore(store, chunk, Checkpoint(changelogs={PLAIN.name: start + PART}))


def assert_restored(state: TaskState) -> None:
    found = {key: entry.state[0] for key, entry in state.stores[PLAIN.name].range(b"", None) if entry.state}
    assert found == {key: n for key, n in dict(CHANGELOG).items() if n is not None}


class Dying:
    """A database whose process is killed when it does something for the third time: before or after that."""

    def __init__(self, db: Any, at: str, is_done: bool) -> None:
        self._db, self._at, self._is_done, self._turns = db, at, is_done, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._db, name)
        return (lambda *given: self._kill_around(found, *given)) if name == self._at else found

    def _kill_around(self, action: Callable[..., object], *given: object) -> None:
        self._turns += 1
        if self._turns < 3 or self._is_done:
            action(*given)
        if self._turns == 3:
            os.kill(os.getpid(), signal.SIGKILL)


def die_restoring(path: str, at: str, is_done: str) -> None:
    state = opened(Path(path), PLAIN)
    state.db._db = Dying(state.db._db, at, bool(is_done))
    restore_on(state)


@pytest.mark.parametrize("is_done", ["", "done"], ids=["before", "after"])
@pytest.mark.parametrize("at", ["ingest_external_file", "write"])
def test_a_kill_while_restoring_costs_no_more_than_restoring_again(tmp_path: Path, at: str, is_done: str) -> None:
    code = "import sys; from tests.streams.test_state_restore import die_restoring; die_restoring(*sys.argv[1:])"
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "t"), at, is_done], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    state = opened(tmp_path / "t", PLAIN)
    assert state.checkpoint.changelogs == {PLAIN.name: PART * (3 if (at, is_done) == ("write", "done") else 2)}
    restore_on(state)
    assert_restored(state)
    state.close()


def test_a_second_name_that_a_kill_left_of_a_file_in_use_is_not_written_to(tmp_path: Path) -> None:
    """RocksDB takes a file over by giving it another name, and then takes the first one away."""
    state = opened(tmp_path / "t", PLAIN)
    restore_on(state)
    state.close()
    before = sorted((tmp_path / "t").glob("*.sst"))[-1]
    (tmp_path / "t" / "restored.sst").hardlink_to(before)
    data = before.read_bytes()
    again = opened(tmp_path / "t", PLAIN)
    again.checkpoint = Checkpoint()
    restore_on(again)
    assert not before.exists() or before.read_bytes() == data
    assert_restored(again)
    again.close()


def test_a_file_that_cannot_be_written_to_its_end_leaves_nothing(tmp_path: Path) -> None:
    state = opened(tmp_path / "t", PLAIN)
    restore_on(state)
    files = sorted(path.name for path in (tmp_path / "t").glob("*.sst"))
    keys = [state.db.prefix(PLAIN.name) + b"k001", b""]
    with pytest.raises(StorageError, match="cannot write state"), state.db.sorted_file() as file:
        deque(map(partial(setitem, file), keys, [b"other", b""]), maxlen=0)
    assert sorted(path.name for path in (tmp_path / "t").glob("*.sst")) == files
    assert_restored(state)
    state.close()


@pytest.mark.parametrize("as_file", [False, True])
@pytest.mark.parametrize("key", [b"", b"x", b"a" + b"\xff" * 8])
def test_a_key_without_a_window_is_damage(tmp_path: Path, key: bytes, as_file: bool) -> None:
    state = opened(tmp_path / "t", WINDOWED)
    state.gather_bytes = 0 if as_file else state.gather_bytes
    store = state.stores[WINDOWED.name]
    chunk = Chunk.from_columns("changelog", [key], store.codec.encode_all([Entry((1,), 0)]), [0])
    with pytest.raises(CorruptLog, match="does not end with the start of a window"):
        state.restore(store, chunk, Checkpoint())
    assert not list(store.range(b"", None))
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


def test_a_database_that_is_opened_again_has_the_settings_of_now(tmp_path: Path) -> None:
    """What is in the write-ahead log becomes a file when it is opened: with a filter, or each read looks into it."""
    state = opened(tmp_path / "t", PLAIN, memory=DiskMemory(256 << 20))
    chunk = Chunk.from_columns("changelog", [b"a"], state.stores[PLAIN.name].codec.encode_all([Entry((1,), 0)]), [0])
    state.restore(state.stores[PLAIN.name], chunk, Checkpoint())
    state.close()
    memory = DiskMemory(64 << 20)
    before_bytes = memory.cache.get_usage()
    again = opened(tmp_path / "t", PLAIN, memory=memory)
    assert again.stores[PLAIN.name].get(b"a") == Entry((1,), 0)
    assert memory.cache.get_usage() > before_bytes, "one cache for all"
    newest = max((tmp_path / "t").glob("OPTIONS-*"))
    assert f"write_buffer_size={memory.write_buffer_bytes}\n" in newest.read_text()
    (file,) = (tmp_path / "t").glob("*.sst")
    assert b"filter.rocksdb" in file.read_bytes()
    again.close()


counts_reads = pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="Linux counts what a process reads")


@counts_reads
@pytest.mark.parametrize("spec", [PLAIN, WINDOWED], ids=["plain", "windowed"])
def test_what_is_read_to_begin_again_does_not_grow_with_the_state(tmp_path: Path, spec: StoreSpec) -> None:
    """Of each file that there is more, 100 kB here and usually 67 MB, what the manifest says of it."""
    _, few, many = (read_to_begin(tmp_path / str(files), spec, files, 4000) for files in (1, 10, 30))  # imports are read at first
    assert many - few < 20 * 2000


@counts_reads
def test_what_is_read_for_one_entry_does_not_grow_with_its_file(tmp_path: Path) -> None:
    """The filter of such a file has 250 kB, and that of 67 MB of such entries two megabytes."""
    few, many = (read_to_begin(tmp_path / str(entries), PLAIN, 1, entries) for entries in (4000, 200_000))
    assert many < few + 50_000


def read_to_begin(path: Path, spec: StoreSpec, files: int, some: int) -> int:
    """Return how many bytes are read to open a state of so many files, each of `some` entries, until it has given one of them."""
    state = opened(path, spec)
    state.gather_bytes, store = 0, state.stores[spec.name]
    values = store.codec.encode_all([Entry((n,), 0) for n in range(some)])
    minute = (0).to_bytes(8, "big") if spec.window else b""
    for file in range(files):
        keys = [b"user-%020d" % (file * some + n) + minute for n in range(some)]
        state.restore(store, Chunk.from_columns("changelog", keys, values, [0] * some), Checkpoint())
    state.close()
    before = bytes_read()
    again = opened(path, spec)
    again.preload()
    assert again.stores[spec.name].get(keys[-1]) == Entry((some - 1,), 0)
    found = bytes_read() - before
    again.close()
    return found


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])
