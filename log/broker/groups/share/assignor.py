"""The assignor `simple` of share groups: each partition goes to somebody, to several if there are more members than partitions.

Balance comes first, then keeping what members have. Topics that the same members subscribe to are shared out together.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from logflume.log.broker.groups.epoch_records import Partition

SIMPLE = "simple"


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
    """Share out partitions among members that all want them: one partition for each member, or one member for each partition."""
    wanted = frozenset(partitions)
    had = {member: sorted(previous.get(member, frozenset()) & wanted) for member in members}
    least, more = divmod(max(len(partitions), len(members)), len(members))
    by_possession = sorted(members, key=lambda member: -len(had[member]))
    quota = {member: least + (1 if rank < more else 0) for rank, member in enumerate(by_possession)}
    fewest_holders, crowded = divmod(max(len(partitions), len(members)), len(partitions))
    holders = dict.fromkeys(partitions, 0)
    shares: dict[str, set[Partition]] = {member: set() for member in members}
    for member, partition in [(each, partition) for each in members for partition in had[each]]:
        is_crowding = holders[partition] == fewest_holders
        if len(shares[member]) < quota[member] and (holders[partition] < fewest_holders or (is_crowding and crowded > 0)):
            shares[member].add(partition)
            holders[partition] += 1
            crowded -= is_crowding
    free = [(count, partition) for partition, count in holders.items()]
    heapq.heapify(free)
    for member in members:
        while len(shares[member]) < quota[member]:
            # With several to a member none has a holder yet; with one to a member there is nothing it could already have.
            count, partition = heapq.heappop(free)
            shares[member].add(partition)
            heapq.heappush(free, (count + 1, partition))
    return shares
