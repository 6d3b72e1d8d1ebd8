"""The cooperative-sticky strategy: members keep what they have as far as balance allows, and hand over the rest in two steps.

A partition that moves is first taken from its old owner and, when that one has joined again without it, given to the new one
(KIP-429); everything else is read without a pause.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from logflume.log.interfaces import Assignment, Subscription, claims_of
from logflume.log.records import TopicPartition

from .subscription import ordered


def assign_cooperative_sticky(members: Sequence[Subscription], partition_counts: Mapping[str, int]) -> Assignment:
    """Return a balanced assignment that moves as little as possible, without the partitions whose old owner still has them.

    >>> a = Subscription("a", None, frozenset({"t"}), owned=frozenset({TopicPartition("t", 0), TopicPartition("t", 1)}))
    >>> b = Subscription("b", None, frozenset({"t"}))
    >>> assign_cooperative_sticky([a, b], {"t": 2})
    {'a': [TopicPartition(topic='t', partition=0)], 'b': []}
    """
    claims = claims_of(members)
    assignment = _balanced(members, partition_counts, _owners(members, partition_counts, claims))
    return {
        member_id: sorted(tp for tp in partitions if claims.get(tp, {member_id}) == {member_id})
        for member_id, partitions in assignment.items()
    }


def _owners(
    members: Sequence[Subscription], partition_counts: Mapping[str, int], claims: Mapping[TopicPartition, Collection[str]]
) -> dict[TopicPartition, str]:
    """Return who has what and still wants it; nobody has what two claim."""
    topics = {member.member_id: member.topics for member in members}
    alone = {tp: next(iter(claimants)) for tp, claimants in claims.items() if len(claimants) == 1}
    return {
        tp: member_id
        for tp, member_id in alone.items()
        if tp.topic in topics[member_id] and tp.partition < partition_counts.get(tp.topic, 0)
    }


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
