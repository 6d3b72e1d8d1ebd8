"""The assignors of the consumer protocol: which member gets which partitions (KIP-848). Pure functions.

`uniform` spreads all partitions evenly and moves as few as it can; `range` gives each member a range of each topic, so that
topics with as many partitions are divided alike (for joins). A member only gets partitions of topics it subscribes to.

The work grows with the number of partitions, not with its square: groups of a broker's every partition are legal.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping

from logflume.log.broker.groups.epoch_records import Partition

Subscriptions = Mapping[str, frozenset[bytes]]
"""Member id -> ids of the topics it wants."""

Assignment = dict[str, frozenset[Partition]]
"""Member id -> partitions; every member is there."""

Assignor = Callable[[Subscriptions, Mapping[bytes, int], Mapping[str, frozenset[Partition]]], Assignment]
"""Takes subscriptions, topic id -> number of partitions, and the assignment before."""


def assign_range(
    subscriptions: Subscriptions, counts: Mapping[bytes, int], before: Mapping[str, frozenset[Partition]]
) -> Assignment:
    """Give each member of each topic, in the order of ids, a range; the first ones get one more if it does not divide.

    >>> assign_range({"a": frozenset({b"t"}), "b": frozenset({b"t"})}, {b"t": 3}, {})["a"] == {(b"t", 0), (b"t", 1)}
    True
    """
    assigned: dict[str, set[Partition]] = {member: set() for member in subscriptions}
    for members, topics in _takers(subscriptions, counts).items():
        for topic in topics:
            start = 0
            for position, member in enumerate(members):
                size = counts[topic] // len(members) + (position < counts[topic] % len(members))
                assigned[member].update((topic, index) for index in range(start, start + size))
                start += size
    return {member: frozenset(partitions) for member, partitions in assigned.items()}


def assign_uniform(
    subscriptions: Subscriptions, counts: Mapping[bytes, int], before: Mapping[str, frozenset[Partition]]
) -> Assignment:
    """Spread partitions evenly: keep what was, give what is free to whoever has least, then level out.

    With equal subscriptions nobody has two more than another.
    """
    assigned = _kept(subscriptions, counts, before)
    taken = {partition for partitions in assigned.values() for partition in partitions}
    # Those with the fewest takers first: the others can still go elsewhere.
    pools = sorted(_takers(subscriptions, counts).items(), key=lambda pool: (len(pool[0]), pool[1]))
    for members, topics in pools:
        _fill(assigned, members, [p for topic in topics for index in range(counts[topic]) if (p := (topic, index)) not in taken])
    is_moving = True
    while is_moving:  # every move brings the sum of squares down by two or more, so it ends
        moves = [_level(assigned, members, frozenset(topics)) for members, topics in pools]
        is_moving = any(moves)
    return {member: frozenset(partitions) for member, partitions in assigned.items()}


def _takers(subscriptions: Subscriptions, counts: Mapping[bytes, int]) -> dict[tuple[str, ...], list[bytes]]:
    """Return the topics by the members that want them, both in order; a topic that nobody wants is left out."""
    alike: dict[frozenset[bytes], list[str]] = {}
    for member, topics in subscriptions.items():
        alike.setdefault(topics, []).append(member)
    pools: dict[tuple[str, ...], list[bytes]] = {}
    orders: dict[tuple[frozenset[bytes], ...], tuple[str, ...]] = {}
    for topic in sorted(counts):
        which = tuple(topics for topics in alike if topic in topics)
        if which and which not in orders:
            orders[which] = tuple(sorted(member for topics in which for member in alike[topics]))
        if which:
            pools.setdefault(orders[which], []).append(topic)
    return pools


def _kept(
    subscriptions: Subscriptions, counts: Mapping[bytes, int], before: Mapping[str, frozenset[Partition]]
) -> dict[str, set[Partition]]:
    """Return what each member had and may keep."""
    kept: dict[str, set[Partition]] = {}
    for member, topics in subscriptions.items():
        kept[member] = {p for p in before.get(member, ()) if p[0] in topics and p[1] < counts.get(p[0], 0)}
    return kept


def _fill(assigned: dict[str, set[Partition]], members: tuple[str, ...], partitions: list[Partition]) -> None:
    """Give each of these partitions to the one of the members that has least."""
    least = [(len(assigned[member]), member) for member in members]
    heapq.heapify(least)
    for partition in partitions:
        count, member = least[0]
        assigned[member].add(partition)
        heapq.heapreplace(least, (count + 1, member))


def _level(assigned: dict[str, set[Partition]], members: tuple[str, ...], topics: frozenset[bytes]) -> bool:
    """Move partitions of these topics from who has most to who has at least two fewer, while there are such; say if any moved."""
    least = [(len(assigned[member]), member) for member in members]
    most = [(-count, member) for count, member in least]
    heapq.heapify(least)
    heapq.heapify(most)
    own: dict[str, list[Partition]] = {}
    has_moved = False
    while most:
        # Nobody both gives and takes: who took has at most one more than the least, who gave at most one less than the most.
        (minus, giver), (count, taker) = most[0], least[0]
        if -minus - count < 2:
            break
        if giver not in own:
            own[giver] = sorted(partition for partition in assigned[giver] if partition[0] in topics)
        if not own[giver]:
            heapq.heappop(most)
            continue
        partition = own[giver].pop()
        assigned[giver].remove(partition)
        assigned[taker].add(partition)
        has_moved = True
        heapq.heapreplace(most, (minus + 1, giver))
        heapq.heapreplace(least, (count + 1, taker))
    return has_moved


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
DEFAULT_ASSIGNOR = "uniform"
