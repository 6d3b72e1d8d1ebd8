"""What the leader of a classic group knows of each member, and what it gives out; both as bytes of protocol type "consumer"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from logflume.log.interfaces import Subscription
from logflume.log.protocol import codec, messages
from logflume.log.records import TopicPartition

from .offsets import by_topic

SUBSCRIPTION_VERSION = 3
_VERSION_BYTES = 2


def ordered(members: Iterable[Subscription]) -> list[Subscription]:
    """Return the members by group instance id (static ones first), then member id."""
    return sorted(members, key=lambda m: (m.instance_id is None, m.instance_id or m.member_id))


def encode_subscription(topics: Iterable[str], owned: Iterable[TopicPartition], generation: int, user_data: bytes = b"") -> bytes:
    """Return the metadata of a member that joins."""
    part_class = messages.ConsumerProtocolSubscription.TopicPartition
    owned_parts = [part_class(topic=t, partitions=[tp.partition for tp in tps]) for t, tps in by_topic(sorted(owned)).items()]
    message = messages.ConsumerProtocolSubscription(
        topics=sorted(topics), user_data=user_data or None, owned_partitions=owned_parts, generation_id=generation
    )
    return SUBSCRIPTION_VERSION.to_bytes(_VERSION_BYTES, "big") + codec.encode_data(message, SUBSCRIPTION_VERSION)


def decode_subscription(member: messages.JoinGroupResponse.JoinGroupResponseMember) -> Subscription:
    """Read a member of a JoinGroup response; a form newer than ours is read as ours, which it begins with."""
    message = _decode("ConsumerProtocolSubscription", member.metadata)
    owned = frozenset(TopicPartition(t.topic, p) for t in message.owned_partitions for p in t.partitions)
    user_data = bytes(message.user_data or b"")
    return Subscription(
        member.member_id, member.group_instance_id, frozenset(message.topics), owned, message.generation_id, user_data
    )


def encode_assignment(partitions: Iterable[TopicPartition], user_data: bytes = b"") -> bytes:
    """Return a member's assignment (version 0, which all versions begin with)."""
    part_class = messages.ConsumerProtocolAssignment.TopicPartition
    parts = [part_class(topic=t, partitions=[tp.partition for tp in tps]) for t, tps in by_topic(partitions).items()]
    message = messages.ConsumerProtocolAssignment(assigned_partitions=parts, user_data=user_data or None)
    return bytes(_VERSION_BYTES) + codec.encode_data(message, 0)


def decode_assignment(data: bytes | memoryview) -> tuple[list[TopicPartition], bytes]:
    """Return the partitions of an assignment, and what the leader says beside them; empty bytes are neither."""
    if len(data) < _VERSION_BYTES:
        return [], b""
    message = _decode("ConsumerProtocolAssignment", data)
    partitions = [TopicPartition(t.topic, p) for t in message.assigned_partitions for p in t.partitions]
    return partitions, bytes(message.user_data or b"")


def _decode(name: str, data: bytes | memoryview) -> Any:
    version = int.from_bytes(data[:_VERSION_BYTES], "big")
    return codec.decode_data(name, min(version, SUBSCRIPTION_VERSION), bytes(data[_VERSION_BYTES:]), may_go_on=True)
