"""The cooperative-sticky strategy: members keep what they have as far as balance allows, and hand over the rest in two steps.

A partition that moves is first taken from its old owner and, when that one has joined again without it, given to the new one
(KIP-429); everything else is read without a pause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from logflume.log.interfaces import Assignment, Subscription
from logflume.log.records import TopicPartition

from .subscription import ordered


def assign_cooperative_sticky(members: Sequence[Subscription], partition_counts: Mapping[str, int]) -> Assignment:
    """Return a balanced assignment that moves as little as possible, without the partitions whose old owner still has them.

    >>> a = Subscription("a", None, frozenset({"t"}), owned=frozenset({TopicPartition("t", 0), TopicPartition("t", 1)}))
    >>> b = Subscription("b", None, frozenset({"t"}))
    >>> assign_cooperative_sticky([a, b], {"t": 2})
    {'a': [TopicPartition(topic='t', partition=0)], 'b': []}
    """
    assignment = _balanced(members, partition_counts, _owners(members, partition_counts))
    claimants: dict[TopicPartition, set[str]] = {}
    for member in members:
        for tp in member.owned:
            claimants.setdefault(tp, set()).add(member.member_id)
    return {
        member_id: sorted(tp for tp in partitions if tp not in claimants or member_id in claimants[tp])
        for member_id, partitions in assignment.items()
    }


def _owners(members: Sequence[Subscription], partition_counts: Mapping[str, int]) -> dict[TopicPartition, str]:
    """Return who has what: of several that claim a partition the one of the latest generation, nobody if they are equal."""
    claims: dict[TopicPartition, list[Subscription]] = {}
    for member in members:
        for tp in member.owned:
            if tp.topic in member.topics and tp.partition < partition_counts.get(tp.topic, 0):
                claims.setdefault(tp, []).append(member)
    owners = {}
    for tp, claimants in claims.items():
        latest = max(member.generation for member in claimants)
        of_latest = [member for member in claimants if member.generation == latest]
        if len(of_latest) == 1:
            owners[tp] = of_latest[0].member_id
    return owners


def _balanced(
    members: Sequence[Subscription], partition_counts: Mapping[str, int], owners: Mapping[TopicPartition, str]
) -> dict[str, set[TopicPartition]]:
    """Return who shall have what in the end. Each move makes the loads more even, so it ends."""
    group = ordered(members)
    wanting = {topic: [m.member_id for m in group if topic in m.topics] for topic in partition_counts}
    out: dict[str, set[TopicPartition]] = {member.member_id: set() for member in group}
    for tp, member_id in owners.items():
        out[member_id].add(tp)
    free = [TopicPartition(t, p) for t in sorted(partition_counts) for p in range(partition_counts[t]) if wanting[t]]
    free = [tp for tp in free if tp not in owners]
    free.sort(key=lambda tp: len(wanting[tp.topic]))
    for tp in free:
        out[min(wanting[tp.topic], key=lambda member_id: len(out[member_id]))].add(tp)
    is_moving = True
    while is_moving:
        is_moving = False
        for giver in sorted(out, key=lambda member_id: -len(out[member_id])):
            for tp in sorted(out[giver], reverse=True):
                taker = min(wanting[tp.topic], key=lambda member_id: len(out[member_id]))
                if len(out[giver]) > len(out[taker]) + 1:
                    out[giver].discard(tp)
                    out[taker].add(tp)
                    is_moving = True
    return out
