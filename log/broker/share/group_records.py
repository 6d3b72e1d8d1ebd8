"""The records of share groups in `__consumer_offsets`, byte for byte as Apache Kafka writes them (KIP-932).

Keys: version 10 a member, 11 the group, 12 the target assignment's epoch, 13 a member's target, 14 a member's current assignment,
15 which partitions have state in the group. Values have version 0, which is flexible.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from ...errors import DecodeError
from ..record_fields import FieldReader, write_count, write_string, write_varint
from .assignor import Partition

VALUE_VERSION = 0
ASSIGNMENT_TIMESTAMP_TAG = 0
STABLE = 0
"""State of a member; share groups have no other, as nothing has to be given up first."""
_NO_TAGS = write_varint(0)


class ShareKeyKind(IntEnum):
    """What a record is about; the number is the version of its key."""

    MEMBER = 10
    GROUP = 11
    TARGET_EPOCH = 12
    TARGET = 13
    CURRENT = 14
    INITIALIZED = 15


@dataclass(frozen=True, slots=True)
class ShareGroupKey:
    """A key; `member_id` is empty for kinds that are about the whole group."""

    kind: ShareKeyKind
    group_id: str
    member_id: str = ""


@dataclass(frozen=True, slots=True)
class ShareMemberValue:
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShareEpochValue:
    """The group's epoch, and a hash of the topics it was computed for."""

    epoch: int
    metadata_hash: int


@dataclass(frozen=True, slots=True)
class TargetEpochValue:
    epoch: int
    assigned_ms: int = 0


@dataclass(frozen=True, slots=True)
class TargetValue:
    partitions: frozenset[Partition]


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


ShareGroupValue = ShareMemberValue | ShareEpochValue | TargetEpochValue | TargetValue | ShareCurrentValue | InitializedValue

_HAS_MEMBER = (ShareKeyKind.MEMBER, ShareKeyKind.TARGET, ShareKeyKind.CURRENT)
_KINDS = {int(kind): kind for kind in ShareKeyKind}


def encode_share_group_key(key: ShareGroupKey) -> bytes:
    head = struct.pack(">h", key.kind) + write_string(key.group_id)
    return head + write_string(key.member_id) if key.kind in _HAS_MEMBER else head


def decode_share_group_key(data: bytes) -> ShareGroupKey | None:
    """Decode a key; None if it is not of a share group. Raises DecodeError."""
    reader = FieldReader(data)
    kind = _KINDS.get(reader.take("h"))
    if kind is None:
        return None
    return ShareGroupKey(kind, reader.text(), reader.text() if kind in _HAS_MEMBER else "")


def encode_share_group_value(value: ShareGroupValue) -> bytes:
    return struct.pack(">h", VALUE_VERSION) + _encode_body(value)


def _encode_body(value: ShareGroupValue) -> bytes:
    if isinstance(value, ShareMemberValue):
        texts = b"".join(write_string(text, is_flexible=True) for text in (value.rack_id, value.client_id, value.client_host))
        topics = b"".join(write_string(topic, is_flexible=True) for topic in value.topics)
        return texts + write_count(len(value.topics), is_flexible=True) + topics + _NO_TAGS
    if isinstance(value, ShareEpochValue):
        return struct.pack(">iq", value.epoch, value.metadata_hash) + _NO_TAGS
    if isinstance(value, TargetEpochValue):
        if not value.assigned_ms:
            return struct.pack(">i", value.epoch) + _NO_TAGS
        stamp = struct.pack(">q", value.assigned_ms)
        tags = write_varint(1) + write_varint(ASSIGNMENT_TIMESTAMP_TAG) + write_varint(len(stamp)) + stamp
        return struct.pack(">i", value.epoch) + tags
    if isinstance(value, TargetValue):
        return _encode_partitions(value.partitions) + _NO_TAGS
    if isinstance(value, ShareCurrentValue):
        head = struct.pack(">iib", value.epoch, value.previous_epoch, STABLE)
        return head + _encode_partitions(value.assigned) + _NO_TAGS
    nothing = write_count(0, is_flexible=True)
    return nothing + _encode_topics(value.topics) + nothing + _NO_TAGS


def _encode_partitions(partitions: Iterable[Partition]) -> bytes:
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(partitions):
        by_topic.setdefault(topic_id, []).append(index)
    parts = [write_count(len(by_topic), is_flexible=True)]
    for topic_id, indexes in by_topic.items():
        parts += [topic_id, _encode_indexes(indexes), _NO_TAGS]
    return b"".join(parts)


def _encode_topics(topics: Mapping[bytes, TopicState]) -> bytes:
    parts = [write_count(len(topics), is_flexible=True)]
    for topic_id, topic in topics.items():
        parts += [topic_id, write_string(topic.name, is_flexible=True), _encode_indexes(sorted(topic.partitions)), _NO_TAGS]
    return b"".join(parts)


def _encode_indexes(indexes: list[int]) -> bytes:
    return write_count(len(indexes), is_flexible=True) + struct.pack(f">{len(indexes)}i", *indexes)


def decode_share_group_value(kind: ShareKeyKind, data: bytes) -> ShareGroupValue:
    """Decode the value of a kind of record. Raises DecodeError."""
    reader = FieldReader(data)
    version = reader.take("h")
    if version != VALUE_VERSION:
        raise DecodeError(f"a value of {kind.name} of a share group has version {version}; this build reads {VALUE_VERSION}")
    if kind is ShareKeyKind.MEMBER:
        rack_id, client_id = reader.string(is_flexible=True), reader.text(is_flexible=True)
        client_host, topic_count = reader.text(is_flexible=True), reader.count(is_flexible=True)
        topics = tuple(reader.text(is_flexible=True) for _ in range(topic_count))
        return ShareMemberValue(rack_id, client_id, client_host, topics)
    if kind is ShareKeyKind.GROUP:
        return ShareEpochValue(reader.take("i"), reader.take("q"))
    if kind is ShareKeyKind.TARGET_EPOCH:
        epoch = reader.take("i")
        stamp = reader.tagged().get(ASSIGNMENT_TIMESTAMP_TAG)
        return TargetEpochValue(epoch, FieldReader(stamp).take("q") if stamp else 0)
    if kind is ShareKeyKind.TARGET:
        return TargetValue(_decode_partitions(reader))
    if kind is ShareKeyKind.CURRENT:
        epoch, previous_epoch, _ = reader.take("i"), reader.take("i"), reader.take("b")
        return ShareCurrentValue(epoch, previous_epoch, _decode_partitions(reader))
    _decode_topics(reader)
    return InitializedValue(_decode_topics(reader))


def _decode_partitions(reader: FieldReader) -> frozenset[Partition]:
    partitions: set[Partition] = set()
    for _ in range(reader.count(is_flexible=True)):
        topic_id = reader.raw(16)
        partitions.update((topic_id, index) for index in _decode_indexes(reader))
        reader.tagged()
    return frozenset(partitions)


def _decode_topics(reader: FieldReader) -> dict[bytes, TopicState]:
    topics = {}
    for _ in range(reader.count(is_flexible=True)):
        topic_id, name = reader.raw(16), reader.text(is_flexible=True)
        topics[topic_id] = TopicState(name, frozenset(_decode_indexes(reader)))
        reader.tagged()
    return topics


def _decode_indexes(reader: FieldReader) -> list[int]:
    return [reader.take("i") for _ in range(reader.count(is_flexible=True))]
