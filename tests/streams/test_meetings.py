"""Who meets whom in a join of streams: as objects and as arrays what a plain list gives, swept and grown in between."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logflume.streams.columns import Bytes
from logflume.streams.kernels import kernel_loader, more_kernels
from logflume.streams.operators.meetings import LEFT, ArrayMeetings, Coming, Keys, Meetings, ObjectMeetings, Reach

Row = tuple[int, bytes | None, int, bool]
ROWS = st.lists(
    st.tuples(
        st.sampled_from([0, 1]), st.sampled_from([b"", b"a", b"bb", b"a-longer-key", None]), st.integers(0, 40), st.booleans()
    ),
    max_size=40,
)  # fmt: skip
ROUNDS = st.lists(ROWS, max_size=5)
REACH = st.builds(Reach, st.integers(5, 30), st.tuples(st.integers(-4, 15), st.integers(-4, 15)))


class Model:
    """Rows in lists; each looks at all others."""

    def __init__(self, reach: Reach) -> None:
        self.reach = reach
        self.rows: list[list[tuple[bytes, int, int]]] = [[], []]
        self.newest = [-1, -1]

    def meet(self, rows: list[Row], numbers: list[int]) -> list[tuple[int, int, int]]:
        found = []
        for place, ((side, key, time, _), number) in enumerate(zip(rows, numbers, strict=True)):
            if key is None or number < 0:
                continue
            other = 1 - side
            low, high = time - self.reach.ahead_ms[other], max(0, time + self.reach.ahead_ms[side])
            met = [
                (at, its)
                for theirs, at, its in self.rows[other]
                if theirs == key and low <= at <= high and at > self.newest[other] - self.reach.keep_ms
            ]
            found += [(place, its, at) for at, its in sorted(met)]
            self.newest[side] = max(self.newest[side], time)
            self.rows[side].append((key, time, number))
        return found


def coming(rows: list[Row], numbers: list[int]) -> Coming:
    sides, times = np.array([row[0] for row in rows], np.int8), np.array([row[2] for row in rows], np.int64)
    half = len(rows) // 2
    order = np.arange(len(rows))
    parts = [Bytes.of_objects([row[1] for row in part]) for part in (rows[:half], rows[half:])]
    return Coming(sides, Keys(parts, order), times, np.array(numbers, np.int64))


def followed(meetings: Meetings, reach: Reach, rounds: list[list[Row]], swept: list[bool]) -> None:
    model, number = Model(reach), 0
    for rows, is_swept in zip(rounds, swept, strict=False):
        numbers = [-1 if is_without else number + place for place, (_, _, _, is_without) in enumerate(rows)]
        number += len(rows)
        found = meetings.meet(coming(rows, numbers))
        assert list(zip(found.rows.tolist(), found.numbers.tolist(), found.times.tolist(), strict=True)) == model.meet(
            rows, numbers
        )
        assert [meetings.newest(side) for side in (0, 1)] == model.newest
        if is_swept:
            meetings.sweep()


@settings(deadline=None)
@given(REACH, ROUNDS, st.lists(st.booleans(), min_size=5, max_size=5))
def test_objects_meet_as_in_the_model(reach: Reach, rounds: list[list[Row]], swept: list[bool]) -> None:
    followed(ObjectMeetings(reach), reach, rounds, swept)


@pytest.fixture(scope="module")
def arrays() -> object:
    if not kernel_loader().load("meetings"):
        pytest.skip("the kernels need numba")
    return more_kernels("meetings")


@settings(deadline=None)
@given(REACH, ROUNDS, st.lists(st.booleans(), min_size=5, max_size=5))
def test_arrays_meet_as_in_the_model(arrays: object, reach: Reach, rounds: list[list[Row]], swept: list[bool]) -> None:
    followed(ArrayMeetings(reach, arrays), reach, rounds, swept)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=40)
@given(REACH, ROWS, ROWS)
def test_arrays_go_on_from_objects(arrays: object, reach: Reach, before: list[Row], after: list[Row]) -> None:
    objects, model = ObjectMeetings(reach), Model(reach)
    first, second = list(range(len(before))), list(range(len(before), len(before) + len(after)))
    objects.meet(coming(before, first))
    model.meet(before, first)
    made = ArrayMeetings.of_objects(objects, reach, arrays)  # type: ignore[arg-type]
    found = made.meet(coming(after, second))
    assert list(zip(found.rows.tolist(), found.numbers.tolist(), found.times.tolist(), strict=True)) == model.meet(after, second)


def test_arrays_grow_for_many_keys_long_keys_and_hot_keys(arrays: object) -> None:
    reach = Reach(1_000, (1_000, 1_000))
    meetings, model = ArrayMeetings(reach, arrays), Model(reach)  # type: ignore[arg-type]
    rows: list[Row] = [(n % 2, b"hot", n % 7, False) for n in range(300)]
    rows += [(LEFT, b"%d" % n + b"x" * (n % 90), n % 500, False) for n in range(3_000)]
    numbers = list(range(len(rows)))
    found = meetings.meet(coming(rows, numbers))
    assert list(zip(found.rows.tolist(), found.numbers.tolist(), found.times.tolist(), strict=True)) == model.meet(rows, numbers)
