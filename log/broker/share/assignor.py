"""The assignor `simple` of share groups: each partition goes to somebody, to several if there are more members than partitions.

Balance comes first, then keeping what members have. Topics that the same members subscribe to are shared out together.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

SIMPLE = "simple"

Partition = tuple[bytes, int]
"""Topic id and index."""


def assign_simple(
    subscriptions: Mapping[str, frozenset[bytes]], counts: Mapping[bytes, int], previous: Mapping[str, frozenset[Partition]]
) -> dict[str, frozenset[Partition]]:
    """Return what each member gets.

    Args:
        subscriptions: member -> ids of the topics it wants and that exist.
        counts: topic id -> number of partitions.
        previous: member -> what it had.

    >>> shares = assign_simple({"a": frozenset([b"t"]), "b": frozenset([b"t"])}, {b"t": 1}, {})
    >>> sorted(shares.items()) == [("a", frozenset({(b"t", 0)})), ("b", frozenset({(b"t", 0)}))]
    True
    """
    by_members: dict[tuple[str, ...], list[Partition]] = {}
    for topic_id in sorted(counts):
        members = tuple(sorted(member for member, wanted in subscriptions.items() if topic_id in wanted))
        if members:
            by_members.setdefault(members, []).extend((topic_id, index) for index in range(counts[topic_id]))
    shares: dict[str, set[Partition]] = {member: set() for member in subscriptions}
    for members, partitions in by_members.items():
        if partitions:
            for member, share in _shared_out(members, partitions, previous).items():
                shares[member] |= share
    return {member: frozenset(share) for member, share in shares.items()}


def _shared_out(
    members: tuple[str, ...], partitions: list[Partition], previous: Mapping[str, frozenset[Partition]]
) -> dict[str, set[Partition]]:
    """Share out partitions among members that all want them."""
    sharing = -(-len(members) // len(partitions))
    least, extra = divmod(sharing * len(partitions), len(members))
    wanted = frozenset(partitions)
    had = {member: sorted(previous.get(member, frozenset()) & wanted) for member in members}
    by_possession = sorted(members, key=lambda member: -len(had[member]))
    quota = {member: least + (1 if rank < extra else 0) for rank, member in enumerate(by_possession)}
    holders = dict.fromkeys(partitions, 0)
    shares: dict[str, set[Partition]] = {}
    for member in members:
        shares[member] = set()
        for partition in had[member]:
            if holders[partition] < sharing and len(shares[member]) < quota[member]:
                shares[member].add(partition)
                holders[partition] += 1
    free = [(count, partition) for partition, count in holders.items() if count < sharing]
    heapq.heapify(free)
    for member in members:
        _fill(shares[member], quota[member], free, sharing)
    _cover(((partition, count) for count, partition in free), shares)
    return shares


def _fill(share: set[Partition], quota: int, free: list[tuple[int, Partition]], sharing: int) -> None:
    """Give a member the partitions with the fewest holders, until it has its quota."""
    skipped = []
    while free and len(share) < quota:
        count, partition = heapq.heappop(free)
        if partition in share:
            skipped.append((count, partition))
            continue
        share.add(partition)
        if count + 1 < sharing:
            skipped.append((count + 1, partition))
    for each in skipped:
        heapq.heappush(free, each)


def _cover(left: Iterable[tuple[Partition, int]], shares: dict[str, set[Partition]]) -> None:
    """Give what still nobody has to whoever has least."""
    for partition, count in left:
        if count == 0:
            min(shares.values(), key=len).add(partition)
