"""Waits until a query that was just made has read what its topics held: what is asked next is answered from all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from logflume.log import Admin, TopicPartition
from logflume.streams.seams import Plan

LIMIT_S = 10.0
POLL_S = 0.02

Told = Callable[[int, int], object]
"""Takes how many of how many records have been read."""


class FirstRead:
    """Tells how far a query has come with what was in its topics when this was made: it stops being asked when nothing is left.

    What one stage has put out by then is read by the next one.
    """

    def __init__(self, admin: Admin, plan: Plan) -> None:
        self._admin, self._application = admin, plan.application
        self._between = {out.topic for sub in plan.subtopologies for out in sub.outputs.values() if out.is_repartition}
        self._stages_left = len(self._between)
        self._look({topic for sub in plan.subtopologies for topic in sub.shared_topics()} - self._between)

    def _look(self, topics: Iterable[str]) -> None:
        self.topics = sorted(topics)
        self._ends, self._starts = _ends(self._admin, self.topics)
        self._left_before = -1
        self.total = sum(end - self._starts[at] for at, end in self._ends.items())

    def left(self) -> int:
        """Return how many records of `topics`, the stage that it is at, are still to be read and committed; 0: of none."""
        while True:
            offsets, starts = self._admin.group_offsets(self._application), self._starts
            read = {at: max(offsets[at].offset if at in offsets else 0, starts[at]) for at in self._ends}
            left = sum(max(end - read[at], 0) for at, end in self._ends.items())
            if left and left == self._left_before:  # what was not read may be deleted by now, and never will be
                self._starts |= _ends(self._admin, self.topics)[1]
            self._left_before = left
            if left or not self._stages_left:
                return left
            self._stages_left -= 1
            self._look(self._between)


def wait_until_read(
    admin: Admin,
    plan: Plan,
    on_read: Told,
    *,
    until_s: float | None = None,
    has_failed: Callable[[], bool],
    monotonic_s: Callable[[], float],
    wait: Callable[[float], object],
) -> str:
    """Wait until all that is in the query's topics now is read and committed: `LIMIT_S` at most, or until `until_s` by the clock.

    Returns '' if that is so, else how far it has come. `has_failed`: whether nothing is to be waited for any more.
    """
    first = FirstRead(admin, plan)
    deadline_s = monotonic_s() + LIMIT_S if until_s is None else until_s
    while left := first.left():
        on_read(first.total - left, first.total)
        if has_failed() or monotonic_s() > deadline_s:
            return f"{first.total - left:,} of {first.total:,} records of {', '.join(first.topics)} read"
        wait(POLL_S)
    return ""


def _ends(admin: Admin, topics: Iterable[str]) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return where the partitions end of which readers of committed records find any, and where all begin."""
    found = admin.find_topics(sorted(topics))
    partitions = [TopicPartition(name, number) for name, topic in found.items() for number in range(topic.partitions)]
    starts, ends = admin.start_offsets(partitions), admin.end_offsets(partitions, read_committed=True)
    return {at: end for at, end in ends.items() if end > starts[at]}, starts
