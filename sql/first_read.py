"""Waits until a query that was just made has read what its topics held: what is asked next is answered from all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from logflume.log import Admin, TopicPartition
from logflume.streams.seams import Plan

LIMIT_S = 10.0
POLL_S = 0.02

Told = Callable[[int, int], object]
"""Takes how many of how many records have been read."""


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
    between = {out.topic for sub in plan.subtopologies for out in sub.outputs.values() if out.is_repartition}
    read = {topic for sub in plan.subtopologies for topic in sub.shared_topics()}
    deadline_s = monotonic_s() + LIMIT_S if until_s is None else until_s
    for topics in (read - between, *(between for _ in between)):  # what one stage has put out is read by the next one
        ends, starts = _ends(admin, topics)
        while True:
            offsets = admin.group_offsets(plan.application)
            left = sum(max(end - max(offsets[at].offset if at in offsets else 0, starts[at]), 0) for at, end in ends.items())
            if not left:
                break
            total = sum(end - starts[at] for at, end in ends.items())
            on_read(total - left, total)
            if has_failed() or monotonic_s() > deadline_s:
                return f"{total - left:,} of {total:,} records of {', '.join(sorted(topics))} read"
            wait(POLL_S)
    return ""


def _ends(admin: Admin, topics: Iterable[str]) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return where the partitions end of which readers of committed records find any, and where all begin."""
    found = admin.find_topics(sorted(topics))
    partitions = [TopicPartition(name, number) for name, topic in found.items() for number in range(topic.partitions)]
    starts, ends = admin.start_offsets(partitions), admin.end_offsets(partitions, read_committed=True)
    return {at: end for at, end in ends.items() if end > starts[at]}, starts
