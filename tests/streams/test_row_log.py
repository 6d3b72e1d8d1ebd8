"""Rows kept in blocks: by number what a plain list holds, whatever was marked, written, dropped, let go and read again."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logflume.log import CorruptLog
from logflume.log.schemas import BIGINT, BOOLEAN, BYTES, DOUBLE, STRING, DataType, Kind
from logflume.log.schemas import Column as Field
from logflume.streams.columns import Bytes, Column
from logflume.streams.expr import Side
from logflume.streams.graph import TimeWindow
from logflume.streams.operators.row_log import BLOCKS, PIECE_ROWS, RowLog
from logflume.streams.seams import Entry, StoreSpec
from logflume.streams.state import Checkpoint, TaskState
from logflume.streams.state.store import Store
from tests.streams.running import kernels

__all__ = ["kernels"]
NUMBERS = DataType(Kind.ARRAY, element=BIGINT)
FIELDS = (
    Field("n", BIGINT), Field("x", DOUBLE), Field("ok", BOOLEAN), Field("text", STRING), Field("list", NUMBERS),
    Field("raw", BYTES), Field("exact", DataType(Kind.DECIMAL, precision=6, scale=2)),
)  # fmt: skip
SPEC = StoreSpec("log", (Field("key", BYTES),), BLOCKS, TimeWindow(1_000, 1, 0))
VALUES = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.just(2**63),
    st.none() | st.floats(allow_nan=False),
    st.none() | st.booleans(),
    st.none() | st.text(st.characters(codec="utf-8"), max_size=4) | st.sampled_from(["plain", "é", '"']),
    st.none() | st.lists(st.integers(0, 5) | st.none(), max_size=2),
    st.none() | st.binary(max_size=3),
    st.none() | st.just(decimal.Decimal("1.25")),
)
ACTIONS = st.sampled_from(["append", "append", "write", "mark", "unmark", "reopen"])
STEPS = st.lists(st.tuples(ACTIONS, st.lists(VALUES, max_size=4), st.integers(0, 99)), max_size=25)


def columns_of(rows: list[Any]) -> list[Column]:
    return [Column.of_objects([row[place] for row in rows], field.type.kind) for place, field in enumerate(FIELDS)]


def keyed(keys: list[bytes | None]) -> Bytes:
    return Bytes.of_objects(keys)


def rows_of(log: RowLog, numbers: list[int]) -> list[Any]:
    found = log.take(np.array(numbers, np.int64))
    lists = [found.columns[Side.VALUE, field.name].objects() for field in FIELDS]
    gone = [False] * len(numbers) if found.gone is None else found.gone.tolist()
    return [None if null else row for row, null in zip(zip(*lists, strict=True), gone, strict=True)]


@pytest.mark.usefixtures("kernels")
@settings(deadline=None, max_examples=60)
@given(STEPS)
def test_rows_and_marks_are_those_of_a_model(steps: list[tuple[str, list[Any], int]]) -> None:
    store = Store(SPEC)
    log = RowLog(store, FIELDS)
    rows: dict[int, Any] = {}
    keys: dict[int, tuple[bytes | None, int]] = {}
    marked: set[int] = set()
    written = 0
    for what, values, number in steps:
        match what:
            case "append":
                begin = log.append(keyed([b"k%d" % number] * len(values)), np.full(len(values), number), columns_of(values))
                rows |= {begin + place: row for place, row in enumerate(values)}
                keys |= {begin + place: (b"k%d" % number, number) for place in range(len(values))}
            case "write":
                log.write(99, 0)
                written = log.next_number
            case "mark" if number in rows and number >= written:
                log.mark(number)
                marked.add(number)
            case "unmark":
                log.unmark(number)
                marked.discard(number)
            case "reopen":
                log.write(99, 0)
                log = RowLog(store, FIELDS)
                seen = {n: pair for numbers, ks, times in log.start()
                        for n, *pair in zip(numbers.tolist(), ks.objects(), times.tolist(), strict=True)}  # fmt: skip
                assert {n: tuple(pair) for n, pair in seen.items()} == keys
                written = log.next_number
        assert log.marked >= marked
        wanted = [*sorted(rows, reverse=True), -1, *rows]
        assert rows_of(log, wanted) == [rows.get(each) for each in wanted]


def test_a_mark_made_and_taken_in_different_commits_is_gone_after_a_restart() -> None:
    store = Store(SPEC)
    log = RowLog(store, FIELDS)
    log.append(keyed([b"a", b"b"]), np.array([1, 2]), columns_of([(None,) * 7] * 2))
    log.mark(0)
    log.mark(1)
    log.write(2, 0)
    log.unmark(0)
    log.write(2, 0)
    log.write(2, 0)
    again = RowLog(store, FIELDS)
    list(again.start())
    assert again.marked == {1}


def test_what_nobody_can_ask_for_is_not_written_unless_it_is_marked() -> None:
    store = Store(SPEC)
    log = RowLog(store, FIELDS)
    log.append(keyed([b"old", b"new", None, b"waits"]), np.array([1, 50, 50, 1]), columns_of([(None,) * 7] * 4))
    log.mark(3)
    log.write(50, 40)
    again = RowLog(store, FIELDS)
    assert [keys.objects() for _, keys, _ in again.start()] == [[b"new", b"waits"]]


def test_a_block_of_other_columns_or_with_a_part_missing_is_refused() -> None:
    def entry(change: Callable[[Any], Any]) -> Store:
        store = Store(SPEC)
        log = RowLog(store, FIELDS)
        log.append(keyed([b"a"]), np.array([1]), columns_of([(1, 1.0, True, "x", [1], b"", None)]))
        log.write(1, 0)
        place, found = next(iter(store.range(b"", None)))
        store.resident[place] = Entry(change(found.state), 1)
        return store

    with pytest.raises(CorruptLog, match="n DOUBLE"):
        list(RowLog(entry(lambda s: (s[0].replace("n BIGINT", "n DOUBLE"), *s[1:])), FIELDS).start())
    with pytest.raises(CorruptLog, match="not whole"):
        list(RowLog(entry(lambda s: (s[0], s[1][:-1], *s[2:])), FIELDS).start())
    with pytest.raises(CorruptLog, match="not whole"):
        list(RowLog(entry(lambda s: (s[0], [s[1][0], b"123", *s[1][2:]], *s[2:])), FIELDS).start())


@pytest.mark.usefixtures("kernels")
def test_more_rows_than_memory_are_read_back_from_disk(tmp_path: Path) -> None:
    state = TaskState(tmp_path, application="a", task="t", specs=[SPEC], memory_bytes=1 << 20)
    store = state.stores["log"]
    log = RowLog(store, FIELDS)
    count = 6 * PIECE_ROWS

    def row(n: int) -> Any:
        return (n, n / 2, n % 2 == 0, f"text {n} " + "x" * 40, [n], b"%d" % n, None)

    for begin in range(0, count, 3_000):
        part = range(begin, min(begin + 3_000, count))
        log.append(keyed([b"k%d" % n for n in part]), np.array(part), columns_of([row(n) for n in part]))
        log.write(count, 0)
        state.commit(state.encode_dirty(), Checkpoint())
    log.write(count, 0)
    assert not store.resident, "what is in the log and on disk is not in memory once more"
    asked = [0, count - 1, *range(7, count, 2_111), 1, -1]
    assert rows_of(log, asked) == [None if n < 0 else row(n) for n in asked]
    again = RowLog(store, FIELDS)
    assert sum(len(numbers) for numbers, _, _ in again.start()) == count
    assert rows_of(again, asked) == rows_of(log, asked)
    state.close()


def test_pieces_that_nobody_can_ask_for_are_dropped() -> None:
    log = RowLog(Store(SPEC), FIELDS[:1])
    times = np.arange(3 * PIECE_ROWS)
    log.append(keyed([b"k"] * len(times)), times, [Column.of_objects(times.tolist(), Kind.BIGINT)])
    log.mark(5)
    log.write(len(times), 0)
    log.drop(2 * PIECE_ROWS)
    assert log.take(np.array([5, 2 * PIECE_ROWS])).columns[Side.VALUE, "n"].objects() == [5, 2 * PIECE_ROWS]
    with pytest.raises(KeyError):
        log.take(np.array([PIECE_ROWS]))
