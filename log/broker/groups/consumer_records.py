"""The records of consumer groups (KIP-848) in `__consumer_offsets`, byte for byte as Apache Kafka writes them.

Keys: version 3 the group, 5 a member, 6 the target assignment's epoch, 7 a member's target, 8 a member's current
assignment. Values have version 0, which is flexible.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from ...errors import DecodeError
from ..record_fields import FieldReader, write_count, write_string, write_varint
from .assignors import Partition

VALUE_VERSION = 0
METADATA_HASH_TAG = 0
NO_TAGS = write_varint(0)


class ConsumerKeyKind(IntEnum):
    """What a record is about; the number is the version of its key."""

    GROUP = 3
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8


@dataclass(frozen=True, slots=True)
class ConsumerKey:
    """A key; `member_id` is empty for kinds that are about the whole group."""

    kind: ConsumerKeyKind
    group_id: str
    member_id: str = ""


@dataclass(frozen=True, slots=True)
class MemberValue:
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    regex: str | None
    rebalance_timeout_ms: int
    assignor: str | None


@dataclass(frozen=True, slots=True)
class CurrentValue:
    """A member's current assignment; `state` is the number of its MemberState."""

    epoch: int
    previous_epoch: int
    state: int
    assigned: frozenset[Partition]
    revoking: frozenset[Partition]


@dataclass(frozen=True, slots=True)
class GroupEpochValue:
    """The group's epoch, and a hash of the topics it was computed for."""

    epoch: int
    metadata_hash: int


ConsumerValue = GroupEpochValue | MemberValue | CurrentValue | int | frozenset[Partition]

_HAS_MEMBER = (ConsumerKeyKind.MEMBER, ConsumerKeyKind.TARGET, ConsumerKeyKind.CURRENT)
_KINDS = {int(kind): kind for kind in ConsumerKeyKind}


def encode_consumer_key(key: ConsumerKey) -> bytes:
    head = struct.pack(">h", key.kind) + write_string(key.group_id)
    return head + write_string(key.member_id) if key.kind in _HAS_MEMBER else head


def decode_consumer_key(data: bytes) -> ConsumerKey | None:
    """Decode a key; None if it is not of a consumer group. Raises DecodeError."""
    reader = FieldReader(data)
    kind = _KINDS.get(reader.take("h"))
    if kind is None:
        return None
    return ConsumerKey(kind, reader.text(), reader.text() if kind in _HAS_MEMBER else "")


def encode_consumer_value(value: ConsumerValue) -> bytes:
    """Encode a value; its type tells the kind: an int is the target's epoch, a set of partitions a member's target."""
    return struct.pack(">h", VALUE_VERSION) + _encode_body(value)


def _encode_body(value: ConsumerValue) -> bytes:
    if isinstance(value, GroupEpochValue):
        hashed = struct.pack(">q", value.metadata_hash)
        tag = write_varint(METADATA_HASH_TAG) + write_varint(len(hashed)) + hashed
        return struct.pack(">i", value.epoch) + (write_varint(1) + tag if value.metadata_hash else NO_TAGS)
    if isinstance(value, MemberValue):
        return _encode_member(value)
    if isinstance(value, CurrentValue):
        head = struct.pack(">iib", value.epoch, value.previous_epoch, value.state)
        return head + _encode_partitions(value.assigned) + _encode_partitions(value.revoking) + NO_TAGS
    if isinstance(value, int):
        return struct.pack(">i", value) + NO_TAGS
    return _encode_partitions(value) + NO_TAGS


def _encode_member(value: MemberValue) -> bytes:
    texts = (value.instance_id, value.rack_id, value.client_id, value.client_host)
    parts = [write_string(text, is_flexible=True) for text in texts]
    parts.append(write_count(len(value.topics), is_flexible=True))
    parts += [write_string(topic, is_flexible=True) for topic in value.topics]
    parts += [write_string(value.regex, is_flexible=True), struct.pack(">i", value.rebalance_timeout_ms)]
    parts += [write_string(value.assignor, is_flexible=True), NO_TAGS]
    return b"".join(parts)


def _encode_partitions(partitions: Iterable[Partition]) -> bytes:
    by_topic: dict[bytes, list[int]] = {}
    for topic, index in sorted(partitions):
        by_topic.setdefault(topic, []).append(index)
    parts = [write_count(len(by_topic), is_flexible=True)]
    for topic, indexes in by_topic.items():
        parts += [topic, write_count(len(indexes), is_flexible=True), struct.pack(f">{len(indexes)}i", *indexes), NO_TAGS]
    return b"".join(parts)


def decode_consumer_value(kind: ConsumerKeyKind, data: bytes) -> ConsumerValue:
    """Decode the value of a kind of record. Raises DecodeError."""
    reader = FieldReader(data)
    version = reader.take("h")
    if version != VALUE_VERSION:
        raise DecodeError(f"a value of {kind.name} has version {version}; this build reads {VALUE_VERSION}")
    if kind is ConsumerKeyKind.MEMBER:
        return _decode_member(reader)
    if kind is ConsumerKeyKind.TARGET:
        return _decode_partitions(reader)
    epoch: int = reader.take("i")
    if kind is ConsumerKeyKind.TARGET_EPOCH:
        return epoch
    if kind is ConsumerKeyKind.GROUP:
        hashed = reader.tagged().get(METADATA_HASH_TAG)
        return GroupEpochValue(epoch, FieldReader(hashed).take("q") if hashed else 0)
    previous_epoch, state = reader.take("i"), reader.take("b")
    return CurrentValue(epoch, previous_epoch, state, _decode_partitions(reader), _decode_partitions(reader))


def _decode_member(reader: FieldReader) -> MemberValue:
    instance_id, rack_id = reader.string(is_flexible=True), reader.string(is_flexible=True)
    client_id, client_host = reader.text(is_flexible=True), reader.text(is_flexible=True)
    topics = tuple(reader.text(is_flexible=True) for _ in range(reader.count(is_flexible=True)))
    regex, rebalance_timeout_ms = reader.string(is_flexible=True), reader.take("i")
    return MemberValue(
        instance_id, rack_id, client_id, client_host, topics, regex, rebalance_timeout_ms, reader.string(is_flexible=True)
    )


def _decode_partitions(reader: FieldReader) -> frozenset[Partition]:
    partitions: set[Partition] = set()
    for _ in range(reader.count(is_flexible=True)):
        topic = reader.raw(16)
        partitions.update((topic, reader.take("i")) for _ in range(reader.count(is_flexible=True)))
        reader.tagged()
    return frozenset(partitions)
