"""The values of records of share groups (KIP-932) in `__consumer_offsets`, byte for byte as Apache Kafka writes them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from logflume.log.broker.groups.epoch_records import (
    NO_TAGS,
    VALUE_VERSION,
    GroupEpochValue,
    GroupKind,
    Partition,
    Role,
    TargetEpochValue,
    decode_numbers,
    decode_partitions,
    decode_target_epoch,
    encode_numbers,
    encode_partitions,
    encode_target_epoch,
    value_reader,
)
from logflume.log.broker.record_fields import FieldReader, write_count, write_string

STABLE = 0
"""State of a member; share groups have no other, as nothing has to be given up first."""


@dataclass(frozen=True, slots=True)
class ShareMemberValue:
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShareCurrentValue:
    epoch: int
    previous_epoch: int
    assigned: frozenset[Partition]


@dataclass(frozen=True, slots=True)
class TopicState:
    """The partitions of a topic that have state in a group."""

    name: str
    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class InitializedValue:
    """Topic id -> which of its partitions have state in the group."""

    topics: Mapping[bytes, TopicState]


ShareValue = ShareMemberValue | GroupEpochValue | TargetEpochValue | frozenset[Partition] | ShareCurrentValue | InitializedValue


def encode_share_value(value: ShareValue) -> bytes:
    """Encode a value; its type tells the role: a set of partitions is a member's target."""
    return struct.pack(">h", VALUE_VERSION) + _encode_body(value)


def _encode_body(value: ShareValue) -> bytes:
    if isinstance(value, ShareMemberValue):
        texts = b"".join(write_string(text, is_flexible=True) for text in (value.rack_id, value.client_id, value.client_host))
        topics = b"".join(write_string(topic, is_flexible=True) for topic in value.topics)
        return texts + write_count(len(value.topics), is_flexible=True) + topics + NO_TAGS
    if isinstance(value, GroupEpochValue):
        return struct.pack(">iq", value.epoch, value.metadata_hash) + NO_TAGS
    if isinstance(value, TargetEpochValue):
        return encode_target_epoch(value)
    if isinstance(value, frozenset):
        return encode_partitions(value) + NO_TAGS
    if isinstance(value, ShareCurrentValue):
        head = struct.pack(">iib", value.epoch, value.previous_epoch, STABLE)
        return head + encode_partitions(value.assigned) + NO_TAGS
    nothing = write_count(0, is_flexible=True)
    return nothing + _encode_topics(value.topics) + nothing + NO_TAGS


def _encode_topics(topics: Mapping[bytes, TopicState]) -> bytes:
    parts = [write_count(len(topics), is_flexible=True)]
    for topic_id, topic in topics.items():
        parts += [topic_id, write_string(topic.name, is_flexible=True), encode_numbers(sorted(topic.partitions)), NO_TAGS]
    return b"".join(parts)


def decode_share_value(role: Role, data: bytes) -> ShareValue:
    """Decode the value of a record. Raises DecodeError."""
    reader = value_reader(GroupKind.SHARE, role, data)
    if role is Role.MEMBER:
        rack_id, client_id = reader.string(is_flexible=True), reader.text(is_flexible=True)
        client_host, topic_count = reader.text(is_flexible=True), reader.count(is_flexible=True)
        topics = tuple(reader.text(is_flexible=True) for _ in range(topic_count))
        return ShareMemberValue(rack_id, client_id, client_host, topics)
    if role is Role.GROUP:
        return GroupEpochValue(reader.take("i"), reader.take("q"))
    if role is Role.TARGET_EPOCH:
        return decode_target_epoch(reader)
    if role is Role.TARGET:
        return decode_partitions(reader)
    if role is Role.CURRENT:
        epoch, previous_epoch, _ = reader.take("i"), reader.take("i"), reader.take("b")
        return ShareCurrentValue(epoch, previous_epoch, decode_partitions(reader))
    _decode_topics(reader)
    return InitializedValue(_decode_topics(reader))


def _decode_topics(reader: FieldReader) -> dict[bytes, TopicState]:
    topics = {}
    for _ in range(reader.count(is_flexible=True)):
        topic_id, name = reader.raw(16), reader.text(is_flexible=True)
        topics[topic_id] = TopicState(name, frozenset(decode_numbers(reader)))
        reader.tagged()
    return topics
