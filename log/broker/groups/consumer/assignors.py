"""The assignors of the consumer protocol: which member gets which partitions (KIP-848). Pure functions.

`uniform` spreads all partitions evenly and moves as few as it can; `range` gives each member a range of each topic, so that
topics with as many partitions are divided alike (for joins). A member only gets partitions of topics it subscribes to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..epoch_records import Partition

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
    for topic, count in counts.items():
        members = sorted(member for member, topics in subscriptions.items() if topic in topics)
        start = 0
        for position, member in enumerate(members):
            size = count // len(members) + (position < count % len(members))
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
    takers = {topic: sorted(m for m, topics in subscriptions.items() if topic in topics) for topic in counts}
    taken = {partition for partitions in assigned.values() for partition in partitions}
    free = [(topic, index) for topic, count in counts.items() for index in range(count) if (topic, index) not in taken]
    # Those with the fewest takers first: the others can still go elsewhere.
    for partition in sorted(free, key=lambda p: (len(takers[p[0]]), p)):
        members = takers[partition[0]]
        if members:
            assigned[min(members, key=lambda m: (len(assigned[m]), m))].add(partition)
    _level(assigned, takers)
    return {member: frozenset(partitions) for member, partitions in assigned.items()}


def _kept(
    subscriptions: Subscriptions, counts: Mapping[bytes, int], before: Mapping[str, frozenset[Partition]]
) -> dict[str, set[Partition]]:
    """Return what each member had and may keep."""
    kept: dict[str, set[Partition]] = {}
    for member, topics in subscriptions.items():
        kept[member] = {p for p in before.get(member, ()) if p[0] in topics and p[1] < counts.get(p[0], 0)}
    return kept


def _level(assigned: dict[str, set[Partition]], takers: Mapping[bytes, list[str]]) -> None:
    """Move partitions from those with most to those with at least two fewer, as long as there are any.

    Every move brings the sum of squares down by two or more, so it ends.
    """
    is_moving = True
    while is_moving:
        least = min(map(len, assigned.values()), default=0)
        # Who has at most one more than the least has nothing to give: usually everybody, so looking is cheap.
        givers = [member for member in assigned if len(assigned[member]) - least >= 2]
        givers.sort(key=lambda m: (-len(assigned[m]), m))
        moves = [_level_one(giver, assigned, takers) for giver in givers]
        is_moving = any(moves)


def _level_one(giver: str, assigned: dict[str, set[Partition]], takers: Mapping[bytes, list[str]]) -> bool:
    """Move one partition of a member to one with at least two fewer, if there is one."""
    for partition in sorted(assigned[giver], reverse=True):
        taker = min(takers[partition[0]], key=lambda m: (len(assigned[m]), m))
        if len(assigned[giver]) - len(assigned[taker]) >= 2:
            assigned[giver].remove(partition)
            assigned[taker].add(partition)
            return True
    return False


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
DEFAULT_ASSIGNOR = "uniform"
