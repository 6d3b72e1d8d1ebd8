"""Which rows of two streams meet: those of one key whose times are near, each pair once, when its later row comes.

Computed from keys and times alone, for all rows of a round at once, over what came before: rows by key and time, in memory, read
from the `RowLog`s when a task begins. As objects (`ObjectMeetings`) until the kernels are there, then as arrays
(`ArrayMeetings`).

Sides are numbers, the right one 0 and the left one 1: in the order in which waiting records of one time leave.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from logflume.log.records import I32, I64

from ..columns import Bytes

RIGHT, LEFT = 0, 1
NEVER = -1
_FIRST_ROOM = 1024
_SPARE_SHARE = 8
"""After rows have gone, arrays keep room for up to so many times what remains: it soon fills again."""


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """Encoded keys of several batches, in an order over all of them. `order` None: one behind the other."""

    parts: Sequence[Bytes]
    order: I64 | None = None

    def objects(self) -> list[bytes | None]:
        """Return them as objects."""
        values = self.parts[0].objects() if len(self.parts) == 1 else [key for part in self.parts for key in part.objects()]
        return values if self.order is None else [values[place] for place in self.order.tolist()]

    def addresses(self) -> tuple[I64, I32]:
        """Return where in memory they are, and their sizes, -1 for null; the memory lives as long as this."""
        found = [part.addresses() for part in self.parts]
        starts, sizes = found[0] if len(found) == 1 else (np.concatenate([each[which] for each in found]) for which in (0, 1))
        return (starts, sizes) if self.order is None else (starts[self.order], sizes[self.order])


@dataclass(frozen=True, slots=True, eq=False)
class Coming:
    """N rows in the order in which they come: side, key (null: no partner), time, and number in the log of the side, or -1."""

    sides: npt.NDArray[np.int8]
    keys: Keys
    times: I64
    numbers: I64


@dataclass(frozen=True, slots=True, eq=False)
class Met:
    """Pairs in order of the later row, then of time, then of number: the row, and the number and the time of the other one."""

    rows: I64
    numbers: I64
    times: I64


class Meetings(Protocol):
    """Rows of both sides by key and time. Those of a side further than `keep_ms` behind its newest are not seen any more."""

    def newest(self, side: int) -> int:
        """Return the largest time of a side, -1 before its first row."""
        ...

    def note_time(self, side: int, time: int) -> None:
        """Note that a side has come to a time by rows that are not taken here."""
        ...

    def put(self, coming: Coming) -> None:
        """Add rows that meet nobody."""
        ...

    def meet(self, coming: Coming) -> Met:
        """Add rows in order, each of which meets those that are there."""
        ...

    def sweep(self) -> None:
        """Forget what is not seen any more."""
        ...


@dataclass(frozen=True, slots=True)
class Reach:
    """How far rows are seen, and how far ahead of a row of the right and of the left side one that it meets may be.

    Rows are looked for up to time 0 at least, as in Kafka Streams: near it, one that has to come earlier may meet one too near.
    """

    keep_ms: int
    ahead_ms: tuple[int, int]


_One = tuple[int, int]
_Several = tuple["array[int]", "array[int]"]
"""A time and a number; times in order and the numbers beside them, rows of one time in the order in which they came."""


class ObjectMeetings:
    """Implements `Meetings` with dicts."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._sides = (_ObjectSide(reach.keep_ms), _ObjectSide(reach.keep_ms))

    def newest(self, side: int) -> int:
        return self._sides[side].newest

    def note_time(self, side: int, time: int) -> None:
        self._sides[side].note_time(time)

    def put(self, coming: Coming) -> None:
        rows = zip(coming.sides.tolist(), coming.keys.objects(), coming.times.tolist(), coming.numbers.tolist(), strict=True)
        for side, key, time, number in rows:
            if key is not None and number >= 0:
                self._sides[side].put(key, time, number)

    def meet(self, coming: Coming) -> Met:
        right, left = self._sides
        ahead_right, ahead_left = self._reach.ahead_ms
        found: list[int] = []
        numbers: list[int] = []
        times: list[int] = []
        rows = zip(coming.sides.tolist(), coming.keys.objects(), coming.times.tolist(), coming.numbers.tolist(), strict=True)
        for row, (side, key, time, number) in enumerate(rows):
            if key is None or number < 0:
                continue
            if side == LEFT:
                left.put(key, time, number)
                met = right.find(key, time - ahead_right, max(0, time + ahead_left))
            else:
                right.put(key, time, number)
                met = left.find(key, time - ahead_left, max(0, time + ahead_right))
            if met is not None:
                found += [row] * len(met[0])
                times += met[0]
                numbers += met[1]
        return Met(*(np.array(each, np.int64) for each in (found, numbers, times)))

    def sweep(self) -> None:
        for side in self._sides:
            side.sweep()

    def all(self) -> Coming:
        """Return all rows, in order of their numbers."""
        found = [(number, which, time, key) for which, side in enumerate(self._sides) for key, time, number in side.all()]
        found.sort()
        numbers, sides, times = (np.array([each[place] for each in found], np.int64) for place in range(3))
        return Coming(sides.astype(np.int8), Keys([Bytes.of_objects([key for _, _, _, key in found])]), times, numbers)


class _ObjectSide:
    """A key's row is a pair of numbers, those of a key with several a pair of arrays: the garbage collector walks neither."""

    def __init__(self, keep_ms: int) -> None:
        self._keep_ms = keep_ms
        self.newest = NEVER
        self._oldest = NEVER - keep_ms + 1
        self._one: dict[bytes, _One] = {}
        self._several: dict[bytes, _Several] = {}

    def note_time(self, time: int) -> None:
        """Move to a time, if it is later."""
        if time > self.newest:
            self.newest, self._oldest = time, time - self._keep_ms + 1

    def put(self, key: bytes, time: int, number: int) -> None:
        """Add a row, behind those of its time."""
        if time > self.newest:
            self.note_time(time)
        elif time < self._oldest:
            return
        one = self._one.setdefault(key, pair := (time, number))
        if one is pair:
            return
        several = self._several.get(key)
        if several is None:
            several = self._several[key] = array("q", one[:1]), array("q", one[1:])
        times, numbers = several
        place = len(times) if times[-1] <= time else bisect_right(times, time)
        times.insert(place, time)
        numbers.insert(place, number)

    def find(self, key: bytes, low: int, high: int) -> tuple[Sequence[int], Sequence[int]] | None:
        """Return times and numbers of the rows of a key with low <= time <= high that are seen, in order; None: none."""
        one = self._one.get(key)
        if one is None:
            return None
        low = max(low, self._oldest)
        several = self._several.get(key) if self._several else None
        if several is None:
            return (one[:1], one[1:]) if low <= one[0] <= high else None
        times, numbers = several
        if times[-1] < low or times[0] > high:
            return None
        first, last = bisect_left(times, low), bisect_right(times, high)
        return times[first:last], numbers[first:last]

    def all(self) -> Iterator[tuple[bytes, int, int]]:
        """Yield key, time and number of each row."""
        for key, (time, number) in self._one.items():
            if key not in self._several:
                yield key, time, number
        for key, (times, numbers) in self._several.items():
            for time, number in zip(times, numbers, strict=True):
                yield key, time, number

    def sweep(self) -> None:
        """Forget what is not seen any more."""
        alive: dict[bytes, _Several] = {}
        for key, (times, numbers) in self._several.items():
            first = bisect_left(times, self._oldest)
            if first < len(times):
                alive[key] = (times[first:], numbers[first:]) if first else (times, numbers)
        gone = self._several.keys() - alive.keys()
        self._one = {
            key: one for key, one in self._one.items() if key in alive or (one[0] >= self._oldest and key not in gone)
        }  # fmt: skip
        self._several = alive


class ArrayMeetings:
    """Implements `Meetings` with arrays and the kernels of `streams.kernels.meetings`."""

    def __init__(self, reach: Reach, kernels: ModuleType) -> None:
        self._reach, self._kernels = reach, kernels
        self._keep, self._ahead = np.array([reach.keep_ms], np.int64), np.array(reach.ahead_ms, np.int64)
        self._made: Any = self._empty(_FIRST_ROOM, 16 * _FIRST_ROOM, _FIRST_ROOM)
        self._pairs_room = _FIRST_ROOM

    @classmethod
    def of_objects(cls, objects: ObjectMeetings, reach: Reach, kernels: ModuleType) -> ArrayMeetings:
        """Make it of the rows of another one."""
        made = cls(reach, kernels)
        made.put(objects.all())
        for side in (LEFT, RIGHT):
            made.note_time(side, objects.newest(side))
        return made

    def newest(self, side: int) -> int:
        return int(self._made.newest[side])

    def note_time(self, side: int, time: int) -> None:
        self._made.newest[side] = max(int(self._made.newest[side]), time)

    def put(self, coming: Coming) -> None:
        self._take(coming, looks=0)

    def meet(self, coming: Coming) -> Met:
        return self._take(coming, looks=1)

    def _take(self, coming: Coming, *, looks: int) -> Met:
        k = self._kernels
        addresses, sizes = coming.keys.addresses()
        pairs, met, times = (np.empty(self._pairs_room, np.int64) for _ in range(3))
        filled, at = np.zeros(1, np.int64), 0
        sides, whens, numbers = (np.ascontiguousarray(each) for each in (coming.sides, coming.times, coming.numbers))
        while True:
            at = k.meet(
                self._made, self._keep, self._ahead, sides, addresses, sizes, whens, numbers, at, looks, pairs, met, times,
                filled,
            )  # fmt: skip
            if at == len(whens):
                break
            counters = self._made.counters
            pairs_short = int(counters[k.STOPPED_BY_PAIRS])
            if pairs_short:
                self._pairs_room = max(2 * self._pairs_room, len(pairs) + pairs_short)
                pairs, met, times = (_longer(each, self._pairs_room) for each in (pairs, met, times))
            if counters[k.STOPPED_BY_KEYS] or counters[k.STOPPED_BY_POOL]:
                self._grow(int(counters[k.STOPPED_BY_KEYS]), int(counters[k.STOPPED_BY_POOL]))
            self._made.counters[k.STOPPED_BY_KEYS :] = 0
        count = int(filled[0])
        return Met(pairs[:count], met[:count], times[:count])

    def sweep(self) -> None:
        k, made = self._kernels, self._made
        keys, arena, pool = len(made.hashes), len(made.arena), made.times.shape[1]
        fresh = self._empty(keys, arena, pool)
        k.move(made, fresh, self._keep)
        self._made = fresh
        used = fresh.counters
        smaller = [keys, arena, pool]
        in_use = (int(used[k.KEYS]), int(used[k.ARENA]), int(used[k.POOL : k.POOL + 2].max()))
        for which, (count, least) in enumerate(zip(in_use, (_FIRST_ROOM, 16 * _FIRST_ROOM, _FIRST_ROOM), strict=True)):
            while smaller[which] > max(_SPARE_SHARE * count, least):
                smaller[which] //= 2
        if smaller != [keys, arena, pool]:
            self._move(*smaller)

    def _grow(self, key_bytes: int, places: int) -> None:
        """Make room for a key of some bytes, or for more places: at least as much as is asked for, and at least twice what is."""
        k, made = self._kernels, self._made
        keys, arena, pool = len(made.hashes), len(made.arena), made.times.shape[1]
        if key_bytes:
            keys = 2 * keys if made.counters[k.KEYS] == keys else keys
            while made.counters[k.ARENA] + key_bytes > arena:
                arena *= 2
        while places and int(made.counters[k.POOL : k.POOL + 2].max()) + places > pool:
            pool *= 2
        self._move(keys, arena, pool)

    def _move(self, keys: int, arena: int, pool: int) -> None:
        fresh = self._empty(keys, arena, pool)
        self._kernels.move(self._made, fresh, self._keep)
        self._made = fresh

    def _empty(self, keys: int, arena: int, pool: int) -> Any:
        return self._kernels.Meetings(
            table=np.full(2 * keys, -1, np.int32),
            hashes=np.empty(keys, np.int64),
            key_starts=np.empty(keys, np.int64),
            key_sizes=np.empty(keys, np.int32),
            arena=np.empty(arena, np.uint8),
            begins=np.zeros((2, keys), np.int64),
            counts=np.zeros((2, keys), np.int64),
            rooms=np.zeros((2, keys), np.int64),
            times=np.empty((2, pool), np.int64),
            numbers=np.empty((2, pool), np.int64),
            newest=np.full(2, NEVER, np.int64),
            counters=np.zeros(7, np.int64),
        )


def _longer(values: I64, room: int) -> I64:
    made = np.empty(room, np.int64)
    made[: len(values)] = values
    return made
