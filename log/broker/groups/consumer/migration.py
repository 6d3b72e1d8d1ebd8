"""A group with members changes its protocol: a classic group becomes a consumer group and back (KIP-848, online migration).

Pure functions from one kind of group to the other; timers, journal and the table of groups are the coordinator's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from logflume.log.broker.groups.classic.group import ClassicGroup, Member
from logflume.log.broker.groups.config import GroupConfig
from logflume.log.broker.groups.epoch_records import Partition
from logflume.log.broker.groups.epochs import hash_topics
from logflume.log.broker.groups.refused import Refused
from logflume.log.broker.groups.subscription import read_assignment, read_subscription, version_of, write_assignment
from logflume.log.broker.ports import Topics
from logflume.log.errors import DecodeError
from logflume.log.protocol.errors import ErrorCode

from .group import CONSUMER_PROTOCOL_TYPE, ConsumerGroup, ConsumerMember, MemberState
from .records import ClassicMember, CurrentValue, MemberValue

UPGRADES, DOWNGRADES = ("bidirectional", "upgrade"), ("bidirectional", "downgrade")


def upgraded(classic: ClassicGroup, topics: Topics, config: GroupConfig) -> ConsumerGroup:
    """Return the consumer group that a classic group with members becomes; its members have no timers yet.

    The generation becomes the epoch of the group and of all its members, and the assignments become the target.

    Raises Refused GROUP_ID_NOT_FOUND: it may not, or its members say what the coordinator cannot read.
    """
    problem = None
    if config.consumer_migration_policy not in UPGRADES:
        problem = "online upgrade is disabled"
    elif classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        problem = "the group does not use the consumer embedded protocol"
    elif len(classic.members) > config.consumer_max_size:
        problem = "the group size exceeds the consumer group maximum size"
    if problem:
        raise _refused(classic, problem)
    group = ConsumerGroup(classic.group_id, epoch=classic.generation, assignment_epoch=classic.generation)
    taken: set[Partition] = set()
    try:
        for old in classic.members.values():
            member = _upgraded_member(classic, old, topics, taken)
            taken |= member.current.assigned
            group.add(member)
            group.target[member.member_id] = member.current.assigned
    except DecodeError as error:
        raise _refused(classic, f"the embedded consumer protocol is malformed: {error}") from error
    group.metadata_hash = hash_topics(group.topics_in_use(topics), topics)
    return group


def _upgraded_member(classic: ClassicGroup, old: Member, topics: Topics, taken: Collection[Partition]) -> ConsumerMember:
    assignment, has_user_data = read_assignment(old.assignment)
    if has_user_data:
        raise _refused(classic, "a custom assignor is in use, whose data would be lost; switch to a default assignor first")
    for _, offered in old.protocols:
        version_of(offered)
    subscription = read_subscription(old.metadata(classic.protocol_name) or old.protocols[0][1])
    named = ((topics.id_of(name), index, name) for name, index in assignment)
    # A leader may assign what does not exist, or one partition twice.
    assigned = frozenset(
        (topic_id, index) for topic_id, index, name in named if topic_id is not None and topics.exists(name, index)
    )
    assigned = assigned.difference(taken)
    metadata = MemberValue(
        instance_id=old.instance_id,
        rack_id=subscription.rack_id,
        client_id=old.client_id,
        client_host=old.client_host,
        topics=tuple(sorted(subscription.topics)),
        regex=None,
        rebalance_timeout_ms=old.rebalance_timeout_ms,
        assignor=None,
        classic=ClassicMember(old.session_timeout_ms, old.protocols),
    )
    epoch = classic.generation
    current = CurrentValue(
        epoch, epoch, int(MemberState.STABLE), assigned, frozenset[Partition](), dict.fromkeys(assigned, epoch)
    )
    return ConsumerMember(old.member_id, metadata, current)


def _refused(classic: ClassicGroup, problem: str) -> Refused:
    text = f"Cannot upgrade classic group {classic.group_id} to consumer group because {problem}."
    return Refused(ErrorCode.GROUP_ID_NOT_FOUND, text)


def may_downgrade(group: ConsumerGroup, leaving: Collection[ConsumerMember], config: GroupConfig) -> bool:
    """Whether the group becomes a classic one when these members leave: only members of that protocol stay, at least one."""
    staying = [member for member in group.members.values() if member not in leaving]
    return (
        bool(staying)
        and all(member.is_classic for member in staying)
        and config.consumer_migration_policy in DOWNGRADES
        and len(staying) <= config.max_size
    )


def fill_classic(classic: ClassicGroup, group: ConsumerGroup, staying: Iterable[ConsumerMember], topics: Topics) -> list[Member]:
    """Give an empty classic group the members of a consumer group, with their targets as assignments.

    Returns the members, which have no sessions yet. The epoch becomes the generation.
    """
    members = [_classic_member(member) for member in staying]
    for member in members:
        classic.add(member)
    classic.protocol_type, classic.generation = CONSUMER_PROTOCOL_TYPE, group.epoch
    classic.protocol_name = classic.select_protocol()
    for member in members:
        named = ((topics.name_of(topic_id), index) for topic_id, index in group.target.get(member.member_id, ()))
        version = version_of(member.metadata(classic.protocol_name))
        member.assignment = write_assignment([(name, index) for name, index in named if name is not None], version)
    return members


def _classic_member(member: ConsumerMember) -> Member:
    metadata, classic = member.metadata, member.metadata.classic
    assert classic is not None, member.member_id
    return Member(
        member_id=member.member_id,
        instance_id=metadata.instance_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        rebalance_timeout_ms=metadata.rebalance_timeout_ms,
        session_timeout_ms=classic.session_timeout_ms,
        protocols=classic.protocols,
    )
