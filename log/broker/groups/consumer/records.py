"""The values of records of consumer groups (KIP-848) in `__consumer_offsets`, byte for byte as Apache Kafka writes them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import repeat

from logflume.log.broker.groups.epoch_records import (
    NO_TAGS,
    VALUE_VERSION,
    GroupEpochValue,
    GroupKind,
    Partition,
    Role,
    TargetEpochValue,
    by_topic,
    decode_numbers,
    decode_partitions,
    decode_target_epoch,
    encode_numbers,
    encode_partitions,
    encode_target_epoch,
    tagged,
    value_reader,
)
from logflume.log.broker.record_fields import FieldReader, write_bytes, write_count, write_string

METADATA_HASH_TAG = CLASSIC_MEMBER_TAG = ASSIGNMENT_EPOCHS_TAG = 0


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


ConsumerValue = GroupEpochValue | MemberValue | CurrentValue | TargetEpochValue | frozenset[Partition]


def encode_consumer_value(value: ConsumerValue) -> bytes:
    """Encode a value; its type tells the kind: a set of partitions is a member's target."""
    return struct.pack(">h", VALUE_VERSION) + _encode_body(value)


def _encode_body(value: ConsumerValue) -> bytes:
    if isinstance(value, GroupEpochValue):
        hashed = struct.pack(">q", value.metadata_hash)
        return struct.pack(">i", value.epoch) + (tagged(METADATA_HASH_TAG, hashed) if value.metadata_hash else NO_TAGS)
    if isinstance(value, MemberValue):
        return _encode_member(value)
    if isinstance(value, CurrentValue):
        head = struct.pack(">iib", value.epoch, value.previous_epoch, value.state)
        return head + _encode_held(value.assigned, value) + _encode_held(value.revoking, value) + NO_TAGS
    if isinstance(value, TargetEpochValue):
        return encode_target_epoch(value)
    return encode_partitions(value) + NO_TAGS


def _encode_member(value: MemberValue) -> bytes:
    texts = (value.instance_id, value.rack_id, value.client_id, value.client_host)
    parts = [write_string(text, is_flexible=True) for text in texts]
    parts.append(write_count(len(value.topics), is_flexible=True))
    parts += [write_string(topic, is_flexible=True) for topic in value.topics]
    parts += [write_string(value.regex, is_flexible=True), struct.pack(">i", value.rebalance_timeout_ms)]
    parts.append(write_string(value.assignor, is_flexible=True))
    parts.append(tagged(CLASSIC_MEMBER_TAG, b"\0" if value.classic is None else _encode_classic(value.classic)))
    return b"".join(parts)


def _encode_classic(value: ClassicMember) -> bytes:
    parts = [b"\1", struct.pack(">i", value.session_timeout_ms), write_count(len(value.protocols), is_flexible=True)]
    for name, metadata in value.protocols:
        parts += [write_string(name, is_flexible=True), write_bytes(metadata, is_flexible=True), NO_TAGS]
    return b"".join([*parts, NO_TAGS])


def _encode_held(partitions: Iterable[Partition], value: CurrentValue) -> bytes:
    """Encode partitions with the epochs at which the member got them."""
    grouped = by_topic(partitions)
    parts = [write_count(len(grouped), is_flexible=True)]
    for topic, indexes in grouped.items():
        epochs = list(map(value.epochs.get, zip(repeat(topic), indexes), repeat(value.epoch)))
        parts += [topic, encode_numbers(indexes), tagged(ASSIGNMENT_EPOCHS_TAG, encode_numbers(epochs))]
    return b"".join(parts)


def decode_consumer_value(role: Role, data: bytes) -> ConsumerValue:
    """Decode the value of a record. Raises DecodeError."""
    reader = value_reader(GroupKind.CONSUMER, role, data)
    if role is Role.MEMBER:
        return _decode_member(reader)
    if role is Role.TARGET:
        return decode_partitions(reader)
    if role is Role.TARGET_EPOCH:
        return decode_target_epoch(reader)
    epoch: int = reader.take("i")
    if role is Role.GROUP:
        hashed = reader.tagged().get(METADATA_HASH_TAG)
        return GroupEpochValue(epoch, FieldReader(hashed).take("q") if hashed else 0)
    previous_epoch, state = reader.take("i"), reader.take("b")
    epochs: dict[Partition, int] = {}
    assigned = _decode_held(reader, epochs, epoch)
    revoking = _decode_held(reader, epochs, epoch)
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


def _decode_held(reader: FieldReader, epochs: dict[Partition, int], epoch: int) -> frozenset[Partition]:
    """Decode partitions; `epochs` takes at which epoch each was given out, `epoch` where that is not told."""
    partitions: set[Partition] = set()
    for _ in range(reader.count(is_flexible=True)):
        topic = reader.raw(16)
        own = [(topic, index) for index in decode_numbers(reader)]
        tag = reader.tagged().get(ASSIGNMENT_EPOCHS_TAG)
        partitions.update(own)
        told = decode_numbers(FieldReader(tag)) if tag else []
        epochs.update(zip(own, told if len(told) == len(own) else [epoch] * len(own), strict=True))
    return frozenset(partitions)
