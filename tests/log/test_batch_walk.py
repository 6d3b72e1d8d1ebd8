"""The walk over a batch's records: compiled and in Python it finds the same, and what it finds sound can be decoded."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logflume.log.batch import decode_records, encode_batch
from logflume.log.batch.header import HEADER_BYTES, pack_header, parse_header
from logflume.log.batch.walk import PROBLEMS, SOUND, locate, walk, walk_in_python

BLOBS = st.one_of(st.none(), st.binary(max_size=150))
HEADERS = st.lists(st.tuples(st.text(max_size=5), BLOBS), max_size=3).map(tuple)
# A time is written as its distance from the first one, which has 64 bits.
RECORDS = st.lists(st.tuples(BLOBS, BLOBS, st.integers(-(2**62), 2**62 - 1), HEADERS), min_size=1, max_size=20)


def batch_of(records: list[tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]]) -> bytearray:
    keys, values, times, headers = zip(*records, strict=True)
    return encode_batch(keys, values, times, headers=headers)


@given(RECORDS)
def test_what_is_sound_is_found_sound(
    records: list[tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]],
) -> None:
    batch = batch_of(records)
    times = [time for _, _, time, _ in records]
    expected = (SOUND, len(records), min(times), max(times), sum(key is None for key, _, _, _ in records))
    for each in (walk, walk_in_python):
        assert each(batch[HEADER_BYTES:], len(records), times[0]) == expected


@given(RECORDS, st.randoms(use_true_random=False), st.integers(1, 4))
def test_compiled_and_in_python_it_finds_the_same_in_damaged_records(
    records: list[tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]], rng: random.Random, changes: int
) -> None:
    batch = batch_of(records)
    section = bytearray(batch[HEADER_BYTES:])
    for _ in range(changes):
        at = rng.randrange(len(section))
        section[at : at + rng.choice((0, 1, 1, 2))] = rng.choice((bytes([rng.randrange(256)]), b"\xff", b"\x80\x80", b""))
        if not section:
            return
    count = max(1, len(records) + rng.choice((0, 0, 0, 1, -1)))
    found = walk_in_python(section, count, batch_time := parse_header(batch).base_timestamp)
    assert walk(section, count, batch_time) == found
    damaged = bytearray(HEADER_BYTES) + section
    pack_header(
        damaged,
        size_bytes=len(damaged),
        count=count,
        last_offset_delta=count - 1,
        base_timestamp_ms=batch_time,
        max_timestamp_ms=batch_time,
    )
    if found[0] == SOUND:
        assert len(decode_records(damaged)) == count


@pytest.mark.parametrize("find", [walk, walk_in_python])
def test_a_walk_names_the_record_and_what_is_wrong_with_it(find: object) -> None:
    assert callable(find)
    sound = bytes(encode_batch([b"k"] * 3, [b"v"] * 3, [5, 6, 7])[HEADER_BYTES:])
    size = len(sound) // 3
    cases = {
        (0, b"\xff" * 40): "ends early",
        (0, sound[:-1]): "length",
        (0, sound + b"\0"): "beyond the last",
        (1, sound[:size] * 3): "offset delta",
        (2, sound[: 2 * size] + sound[2 * size :].replace(b"\x02k", b"\x40k")): "key or value",
        (2, sound[:-1] + b"\x02"): "headers",
        (0, sound[:1] + b"\0" + b"\xff" * 10 + sound[2:]): "ends early",
    }
    for (row, section), expected in cases.items():
        problem, found_row, *_ = find(section, 3, 5)
        assert expected in PROBLEMS[problem]
        assert found_row == row or expected in ("length", "beyond the last")
    assert "64 bits" in PROBLEMS[find(sound, 3, 2**63 - 2)[0]]


def test_a_count_that_no_bytes_bear_out_costs_nothing() -> None:
    sound = bytes(encode_batch([b"k"], [b"v"], [5])[HEADER_BYTES:])
    for each in (walk, walk_in_python):
        assert each(sound, 2**31 - 1, 5)[:2] == (1, 1)


@pytest.mark.skipif(locate is None, reason="the package was installed without a C compiler")
def test_what_does_not_lie_in_its_columns_or_its_data_is_refused_before_anything_is_written() -> None:
    assert locate is not None
    data = bytes(encode_batch([b"k"] * 3, [b"v"] * 3, [5, 6, 7]))
    sound = (HEADER_BYTES, len(data), 3, 10, 2, 5, 0, 0)

    def found(section: tuple[int, ...], room: int) -> int:
        assert locate is not None
        kinds = (np.int64, np.int64, np.int64, np.int32, np.int64, np.int32, np.int64, np.int32)
        columns = [np.full(room, -7, kind) for kind in kinds]
        rows = locate(data, np.array([section], np.int64), 11, *columns)
        assert rows >= 0 or room or all((column == -7).all() for column in columns)
        return rows

    assert found(sound, 3) == 2
    for section in ((HEADER_BYTES, len(data) + 1, *sound[2:]), (-1, *sound[1:]), (*sound[:2], 2**40, *sound[3:])):
        assert found(section, 3) == -1
    assert found(sound, 2) == -1
