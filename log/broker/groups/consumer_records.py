"""The records of consumer groups (KIP-848) in `__consumer_offsets`, byte for byte as Apache Kafka writes them.

Keys: version 3 the group, 5 a member, 6 the target assignment's epoch, 7 a member's target, 8 a member's current
assignment. Values have version 0, which is flexible.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from ...errors import DecodeError
from ..record_fields import FieldReader, write_bytes, write_count, write_string, write_varint
from .assignors import Partition

VALUE_VERSION = 0
METADATA_HASH_TAG = CLASSIC_MEMBER_TAG = ASSIGNMENT_EPOCHS_TAG = ASSIGNMENT_TIMESTAMP_TAG = 0
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
class ClassicMember:
    """What a member that still speaks the classic protocol said: its session timeout, its protocols by preference."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class MemberValue:
    """What a member wants. `classic`: set for a member of the classic protocol in a consumer group."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    regex: str | None
    rebalance_timeout_ms: int
    assignor: str | None
    classic: ClassicMember | None = None


@dataclass(frozen=True, slots=True)
class CurrentValue:
    """A member's current assignment; `state` is the number of its MemberState.

    `epochs`: the member epoch at which it got each partition that it holds, so that a late commit can be told from a stale one.
    """

    epoch: int
    previous_epoch: int
    state: int
    assigned: frozenset[Partition]
    revoking: frozenset[Partition]
    epochs: Mapping[Partition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TargetEpochValue:
    """The epoch that the target assignment is for, and when it was computed (wall time, 0 for long ago)."""

    epoch: int
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class GroupEpochValue:
    """The group's epoch, and a hash of the topics it was computed for."""

    epoch: int
    metadata_hash: int


ConsumerValue = GroupEpochValue | MemberValue | CurrentValue | TargetEpochValue | frozenset[Partition]

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
    """Encode a value; its type tells the kind: a set of partitions is a member's target."""
    return struct.pack(">h", VALUE_VERSION) + _encode_body(value)


def _encode_body(value: ConsumerValue) -> bytes:
    if isinstance(value, GroupEpochValue):
        hashed = struct.pack(">q", value.metadata_hash)
        return struct.pack(">i", value.epoch) + (_tagged(METADATA_HASH_TAG, hashed) if value.metadata_hash else NO_TAGS)
    if isinstance(value, MemberValue):
        return _encode_member(value)
    if isinstance(value, CurrentValue):
        head = struct.pack(">iib", value.epoch, value.previous_epoch, value.state)
        return head + _encode_held(value.assigned, value) + _encode_held(value.revoking, value) + NO_TAGS
    if isinstance(value, TargetEpochValue):
        stamp = _tagged(ASSIGNMENT_TIMESTAMP_TAG, struct.pack(">q", value.timestamp_ms)) if value.timestamp_ms else NO_TAGS
        return struct.pack(">i", value.epoch) + stamp
    return _encode_partitions(value) + NO_TAGS


def _encode_member(value: MemberValue) -> bytes:
    texts = (value.instance_id, value.rack_id, value.client_id, value.client_host)
    parts = [write_string(text, is_flexible=True) for text in texts]
    parts.append(write_count(len(value.topics), is_flexible=True))
    parts += [write_string(topic, is_flexible=True) for topic in value.topics]
    parts += [write_string(value.regex, is_flexible=True), struct.pack(">i", value.rebalance_timeout_ms)]
    parts.append(write_string(value.assignor, is_flexible=True))
    parts.append(_tagged(CLASSIC_MEMBER_TAG, b"\0" if value.classic is None else _encode_classic(value.classic)))
    return b"".join(parts)


def _encode_classic(value: ClassicMember) -> bytes:
    parts = [b"\1", struct.pack(">i", value.session_timeout_ms), write_count(len(value.protocols), is_flexible=True)]
    for name, metadata in value.protocols:
        parts += [write_string(name, is_flexible=True), write_bytes(metadata, is_flexible=True), NO_TAGS]
    return b"".join([*parts, NO_TAGS])


def _tagged(tag: int, data: bytes) -> bytes:
    """Return the tagged fields of a structure that has one."""
    return write_varint(1) + write_varint(tag) + write_varint(len(data)) + data


def _encode_partitions(partitions: Iterable[Partition]) -> bytes:
    by_topic = _by_topic(partitions)
    parts = [write_count(len(by_topic), is_flexible=True)]
    for topic, indexes in by_topic.items():
        parts += [topic, _numbers(indexes), NO_TAGS]
    return b"".join(parts)


def _encode_held(partitions: Iterable[Partition], value: CurrentValue) -> bytes:
    """Encode partitions with the epochs at which the member got them."""
    by_topic = _by_topic(partitions)
    parts = [write_count(len(by_topic), is_flexible=True)]
    for topic, indexes in by_topic.items():
        epochs = [value.epochs.get((topic, index), value.epoch) for index in indexes]
        parts += [topic, _numbers(indexes), _tagged(ASSIGNMENT_EPOCHS_TAG, _numbers(epochs))]
    return b"".join(parts)


def _by_topic(partitions: Iterable[Partition]) -> dict[bytes, list[int]]:
    by_topic: dict[bytes, list[int]] = {}
    for topic, index in sorted(partitions):
        by_topic.setdefault(topic, []).append(index)
    return by_topic


def _numbers(numbers: list[int]) -> bytes:
    return write_count(len(numbers), is_flexible=True) + struct.pack(f">{len(numbers)}i", *numbers)


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
        stamp = reader.tagged().get(ASSIGNMENT_TIMESTAMP_TAG)
        return TargetEpochValue(epoch, FieldReader(stamp).take("q") if stamp else 0)
    if kind is ConsumerKeyKind.GROUP:
        hashed = reader.tagged().get(METADATA_HASH_TAG)
        return GroupEpochValue(epoch, FieldReader(hashed).take("q") if hashed else 0)
    previous_epoch, state = reader.take("i"), reader.take("b")
    epochs: dict[Partition, int] = {}
    assigned = _decode_partitions(reader, epochs=epochs, epoch=epoch)
    revoking = _decode_partitions(reader, epochs=epochs, epoch=epoch)
    return CurrentValue(epoch, previous_epoch, state, assigned, revoking, epochs)


def _decode_member(reader: FieldReader) -> MemberValue:
    instance_id, rack_id = reader.string(is_flexible=True), reader.string(is_flexible=True)
    client_id, client_host = reader.text(is_flexible=True), reader.text(is_flexible=True)
    topics = tuple(reader.text(is_flexible=True) for _ in range(reader.count(is_flexible=True)))
    regex, rebalance_timeout_ms = reader.string(is_flexible=True), reader.take("i")
    assignor = reader.string(is_flexible=True)
    classic = reader.tagged().get(CLASSIC_MEMBER_TAG)
    return MemberValue(
        instance_id,
        rack_id,
        client_id,
        client_host,
        topics,
        regex,
        rebalance_timeout_ms,
        assignor,
        _decode_classic(FieldReader(classic)) if classic else None,
    )


def _decode_classic(reader: FieldReader) -> ClassicMember | None:
    if reader.varint() == 0:
        return None
    session_timeout_ms = reader.take("i")
    protocols = []
    for _ in range(reader.count(is_flexible=True)):
        protocols.append((reader.text(is_flexible=True), reader.blob(is_flexible=True)))
        reader.tagged()
    return ClassicMember(session_timeout_ms, tuple(protocols))


def _decode_partitions(
    reader: FieldReader, *, epochs: dict[Partition, int] | None = None, epoch: int = -1
) -> frozenset[Partition]:
    """Decode partitions; `epochs` takes at which epoch each was given out, `epoch` where that is not told."""
    partitions: set[Partition] = set()
    for _ in range(reader.count(is_flexible=True)):
        topic = reader.raw(16)
        own = [(topic, reader.take("i")) for _ in range(reader.count(is_flexible=True))]
        tag = reader.tagged().get(ASSIGNMENT_EPOCHS_TAG)
        partitions.update(own)
        if epochs is not None:
            numbers = FieldReader(tag) if tag else None
            count = numbers.count(is_flexible=True) if numbers else 0
            told = [numbers.take("i") for _ in range(count)] if numbers else []
            epochs.update(zip(own, told if len(told) == len(own) else [epoch] * len(own), strict=True))
    return frozenset(partitions)
