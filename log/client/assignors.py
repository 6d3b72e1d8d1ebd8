"""Strategies by which a group's leader shares partitions among the members. Pure functions.

Members are ordered by group instance id (static ones first), then member id, so that a static member that comes back gets what
it had. `range` gives the same partition number of topics with equally many partitions to the same member: what joins need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from logflume.log.errors import UnknownName
from logflume.log.interfaces import Assignment, AssignmentStrategy, Subscription
from logflume.log.records import TopicPartition

from .sticky import assign_cooperative_sticky
from .subscription import ordered


def assign_range(members: Sequence[Subscription], partition_counts: Mapping[str, int]) -> Assignment:
    """Per topic, each member gets a run of consecutive partitions; the first members get one more when it does not divide.

    >>> members = [Subscription("b", None, frozenset({"t"})), Subscription("a", None, frozenset({"t"}))]
    >>> {m: [tp.partition for tp in tps] for m, tps in assign_range(members, {"t": 3}).items()}
    {'a': [0, 1], 'b': [2]}
    """
    in_order = ordered(members)
    out: Assignment = {member.member_id: [] for member in in_order}
    for topic in sorted(partition_counts):
        wanting = [member for member in in_order if topic in member.topics]
        if not wanting:
            continue
        each, extra = divmod(partition_counts[topic], len(wanting))
        start = 0
        for i, member in enumerate(wanting):
            stop = start + each + (i < extra)
            out[member.member_id] += [TopicPartition(topic, p) for p in range(start, stop)]
            start = stop
    return out


def assign_roundrobin(members: Sequence[Subscription], partition_counts: Mapping[str, int]) -> Assignment:
    """All partitions of all topics are dealt out in turn; the spread is even when all members want the same topics."""
    in_order = ordered(members)
    out: Assignment = {member.member_id: [] for member in in_order}
    turn = 0
    for topic in sorted(partition_counts):
        if not any(topic in member.topics for member in in_order):
            continue
        for partition in range(partition_counts[topic]):
            while topic not in in_order[turn % len(in_order)].topics:
                turn += 1
            out[in_order[turn % len(in_order)].member_id].append(TopicPartition(topic, partition))
            turn += 1
    return out


_KNOWN = (
    AssignmentStrategy("range", assign_range),
    AssignmentStrategy("roundrobin", assign_roundrobin),
    AssignmentStrategy("cooperative-sticky", assign_cooperative_sticky, is_cooperative=True),
)
STRATEGIES: Mapping[str, AssignmentStrategy] = MappingProxyType({strategy.name: strategy for strategy in _KNOWN})


def strategy_of(named: str | AssignmentStrategy) -> AssignmentStrategy:
    """Return a strategy by its protocol name, or as it was given. Raises UnknownName."""
    if isinstance(named, AssignmentStrategy):
        return named
    if named not in STRATEGIES:
        raise UnknownName("assignment strategy", named, STRATEGIES)
    return STRATEGIES[named]
