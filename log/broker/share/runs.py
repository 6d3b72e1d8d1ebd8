"""Offsets of a share partition as runs: neighbours in the same state are one run, so that state costs by change."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum


class DeliveryState(IntEnum):
    """What became of a record; the numbers are those of the journal (KIP-932)."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4


TERMINAL = frozenset({DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED})


@dataclass(frozen=True, slots=True)
class Run:
    """Offsets `first` to `last` (both included) in one state.

    `member_id`, `deadline_ms`: who holds the lock and until when. `is_pending`: the state is on its way to the disk; until it is
    there the holder and deadline are kept, so that a failed write can be taken back.
    """

    first: int
    last: int
    state: DeliveryState = DeliveryState.AVAILABLE
    delivery_count: int = 0
    member_id: str = ""
    deadline_ms: int = 0
    is_pending: bool = False

    @property
    def size(self) -> int:
        """Number of offsets."""
        return self.last - self.first + 1

    @property
    def is_available(self) -> bool:
        """Whether the offsets can be acquired."""
        return self.state is DeliveryState.AVAILABLE and not self.is_pending

    @property
    def is_done(self) -> bool:
        """Whether the offsets are never given out again."""
        return self.state in TERMINAL

    @property
    def is_locked(self) -> bool:
        """Whether a member holds the offsets and has not said yet what became of them."""
        return self.state is DeliveryState.ACQUIRED

    def continues(self, other: Run) -> bool:
        """Whether this run lies right behind another of the same state."""
        return self.first == other.last + 1 and self == replace(other, first=self.first, last=self.last)


class Runs:
    """Runs in the order of their offsets. Invariant: they cover `start` to `end - 1` without holes, and neighbours differ."""

    __slots__ = ("_runs", "_start")

    def __init__(self, start: int) -> None:
        self._start, self._runs = start, list[Run]()

    @property
    def start(self) -> int:
        """First offset covered, or the one from which it goes on when nothing is."""
        return self._start

    @property
    def end(self) -> int:
        """The offset behind the last one covered."""
        return self._runs[-1].last + 1 if self._runs else self._start

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def append(self, run: Run) -> None:
        """Add a run right behind the last."""
        assert run.first == self.end, (run, self.end)
        if self._runs and run.continues(self._runs[-1]):
            run = replace(run, first=self._runs.pop().first)
        self._runs.append(run)

    def between(self, first: int, last: int) -> list[Run]:
        """Return the runs that hold any offset from `first` to `last`, whole."""
        found = []
        for index in range(max(self._index(first), 0), len(self._runs)):
            run = self._runs[index]
            if run.first > last:
                break
            if run.last >= first:
                found.append(run)
        return found

    def change(self, first: int, last: int, changed: Callable[[Run], Run]) -> None:
        """Replace the offsets from `first` to `last` that are covered, run by run; runs at the borders are split."""
        first, last = max(first, self.start), min(last, self.end - 1)
        if first > last:
            return
        low, high = self._index(first), self._index(last)
        new: list[Run] = []
        for run in self._runs[low : high + 1]:
            inside = replace(run, first=max(run.first, first), last=min(run.last, last))
            if run.first < inside.first:
                new.append(replace(run, last=inside.first - 1))
            new.append(changed(inside))
            if run.last > inside.last:
                new.append(replace(run, first=inside.last + 1))
        low, high = max(low - 1, 0), min(high + 1, len(self._runs) - 1)
        before = [self._runs[low]] if self._runs[low].last < new[0].first else []
        behind = [self._runs[high]] if self._runs[high].first > new[-1].last else []
        self._runs[low : high + 1] = _merged([*before, *new, *behind])

    def change_all(self, wanted: Callable[[Run], bool], changed: Callable[[Run], Run]) -> list[tuple[int, int]]:
        """Replace every run that is wanted; return their borders."""
        borders = [(run.first, run.last) for run in self._runs if wanted(run)]
        if borders:
            self._runs = _merged(changed(run) if wanted(run) else run for run in self._runs)
        return borders

    def drop_before(self, offset: int) -> None:
        """Forget the offsets below `offset`; with nothing left, go on from there."""
        if offset <= self._start:
            return
        if offset >= self.end:
            self._start, self._runs = offset, []
            return
        index = self._index(offset)
        self._runs = [replace(self._runs[index], first=offset), *self._runs[index + 1 :]]
        self._start = offset

    def _index(self, offset: int) -> int:
        """Return the index of the run that holds an offset, -1 for one before all."""
        return bisect_right(self._runs, offset, key=lambda run: run.first) - 1


def _merged(runs: Iterable[Run]) -> list[Run]:
    merged: list[Run] = []
    for run in runs:
        if merged and run.continues(merged[-1]):
            run = replace(run, first=merged.pop().first)
        merged.append(run)
    return merged
