"""Chunks: columns to records, headers, slices and Arrow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logflume.log import DecodeError, InvalidInput
from logflume.log.records import Chunk, Headers, Record, decode_headers

maybe_bytes = st.none() | st.binary(max_size=20)
headers = st.lists(st.tuples(st.text(max_size=5), maybe_bytes), max_size=3).map(tuple)
rows = st.lists(st.tuples(maybe_bytes, maybe_bytes, st.integers(0, 2**62), headers), max_size=20)
Rows = list[tuple[bytes | None, bytes | None, int, Headers]]


def chunk_of(given_rows: Rows) -> Chunk:
    keys, values, times, heads = (list(c) for c in zip(*given_rows, strict=True)) if given_rows else ([], [], [], [])
    return Chunk.from_columns("t", keys, values, times, partition=3, headers=heads)


@settings(max_examples=100, deadline=None)
@given(rows)
def test_records_are_what_went_into_the_columns(given_rows: Rows) -> None:
    expected = [Record("t", 3, i, time, key, value, heads) for i, (key, value, time, heads) in enumerate(given_rows)]
    assert list(chunk_of(given_rows).records()) == expected


@settings(max_examples=100, deadline=None)
@given(rows, st.integers(-3, 25), st.integers(-3, 25))
def test_a_slice_is_the_slice_of_the_records(given_rows: Rows, start: int, stop: int) -> None:
    chunk = chunk_of(given_rows)
    part = chunk.slice(start, stop)
    assert list(part.records()) == list(chunk.records())[start:stop]
    assert part.next_offset == min(max(slice(start, stop).indices(len(given_rows))[1], 0), len(given_rows))


@settings(max_examples=100, deadline=None)
@given(rows)
def test_arrow_holds_the_same(given_rows: Rows) -> None:
    pytest.importorskip("pyarrow", reason="the arrow extra is not installed")
    batch = chunk_of(given_rows).to_arrow()
    assert batch.column("key").to_pylist() == [row[0] for row in given_rows]
    assert batch.column("value").to_pylist() == [row[1] for row in given_rows]
    assert batch.column("timestamp_ms").to_pylist() == [row[2] for row in given_rows]
    assert batch.column("offset").to_pylist() == list(range(len(given_rows)))


@settings(max_examples=100, deadline=None)
@given(rows, st.integers(0, 3))
def test_arrow_comes_back_as_the_same_records(given_rows: Rows, skip: int) -> None:
    pytest.importorskip("pyarrow", reason="the arrow extra is not installed")
    batch = chunk_of(given_rows).to_arrow().slice(skip)
    found = Chunk.from_arrow("t", batch, partition=3)
    assert [(r.key, r.value, r.timestamp_ms) for r in found.records()] == [row[:3] for row in given_rows[skip:]]
    assert found.offsets.tolist() == list(range(len(found)))


def test_arrow_tables_of_text_without_keys_are_taken_and_others_refused() -> None:
    pa = pytest.importorskip("pyarrow", reason="the arrow extra is not installed")
    table = pa.concat_tables([pa.table({"value": ["a", None]}), pa.table({"value": ["é"]})])
    found = Chunk.from_arrow("t", table)
    assert (found.keys(), found.values()) == ([None] * 3, [b"a", None, "é".encode()])
    assert found.timestamps_ms.min() > 1_600_000_000_000
    with pytest.raises(InvalidInput, match="expected a column 'value'"):
        Chunk.from_arrow("t", pa.table({"v": ["a"]}))
    with pytest.raises(InvalidInput, match="column 'value': expected binary or string, found double"):
        Chunk.from_arrow("t", pa.table({"value": [1.5]}))
    with pytest.raises(InvalidInput, match="column 'timestamp_ms' has nulls"):
        Chunk.from_arrow("t", pa.table({"value": ["a", "b"], "timestamp_ms": [1, None]}))


def test_arrow_of_rows_in_another_order_than_their_bytes() -> None:
    pytest.importorskip("pyarrow", reason="the arrow extra is not installed")
    chunk = Chunk.from_columns("t", [b"a", b"bb", None], [b"1", b"22", b"333"], [1, 2, 3])
    order = np.array([2, 0, 1])
    for name in ("key_starts", "key_sizes", "value_starts", "value_sizes"):
        setattr(chunk, name, getattr(chunk, name)[order])
    assert chunk.to_arrow().column("value").to_pylist() == [b"333", b"1", b"22"]
    assert chunk.to_arrow().column("key").to_pylist() == [None, b"a", b"bb"]


@given(st.binary(max_size=30), st.integers(0, 5))
def test_any_header_bytes_decode_or_are_refused(data: bytes, count: int) -> None:
    try:
        found = decode_headers(data, 0, count)
    except DecodeError:
        return
    assert len(found) == count


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(InvalidInput, match="expected 2 keys"):
        Chunk.from_columns("t", [b"a"], [b"1", b"2"], [1, 2])
