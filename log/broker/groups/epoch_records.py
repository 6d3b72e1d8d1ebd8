"""Keys of the records that groups with epochs keep in `__consumer_offsets`, and what their values have in common.

Consumer groups (KIP-848), share groups (KIP-932) and streams groups (KIP-1071) write the same kinds of records under numbers of
their own, byte for byte as Apache Kafka does. Values have version 0, which is flexible; the others are in `records` of each.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import TypeVar

from logflume.log.broker.record_fields import FieldReader, write_count, write_string, write_varint
from logflume.log.errors import DecodeError

VALUE_VERSION = 0
ASSIGNMENT_TIMESTAMP_TAG = 0
NO_TAGS = write_varint(0)

_Held = TypeVar("_Held")
Partition = tuple[bytes, int]
"""Topic id and index."""


class GroupKind(StrEnum):
    """The protocol of a group, spelled as clients see it."""

    CLASSIC = "Classic"
    CONSUMER = "Consumer"
    SHARE = "Share"
    STREAMS = "Streams"


class Role(IntEnum):
    """What a record is about: the group, a member, the epoch of the target, a member's target, what a member has, or what only
    this protocol has: the partitions that a share group has state of, the topology of a streams group."""

    GROUP = 0
    MEMBER = 1
    TARGET_EPOCH = 2
    TARGET = 3
    CURRENT = 4
    OWN = 5


KEY_VERSIONS: Mapping[GroupKind, Mapping[Role, int]] = MappingProxyType(
    {
        GroupKind.CONSUMER: {Role.GROUP: 3, Role.MEMBER: 5, Role.TARGET_EPOCH: 6, Role.TARGET: 7, Role.CURRENT: 8},
        GroupKind.SHARE: {
            Role.GROUP: 11,
            Role.MEMBER: 10,
            Role.TARGET_EPOCH: 12,
            Role.TARGET: 13,
            Role.CURRENT: 14,
            Role.OWN: 15,
        },
        GroupKind.STREAMS: {
            Role.GROUP: 17,
            Role.MEMBER: 19,
            Role.TARGET_EPOCH: 20,
            Role.TARGET: 21,
            Role.CURRENT: 22,
            Role.OWN: 23,
        },
    }
)
"""The version of a key tells what it is of."""

OF_MEMBERS = (Role.CURRENT, Role.TARGET, Role.MEMBER)
_BY_VERSION = {version: (kind, role) for kind, versions in KEY_VERSIONS.items() for role, version in versions.items()}


@dataclass(frozen=True, slots=True)
class EpochKey:
    """A key; `member_id` is empty for roles that are about the whole group."""

    kind: GroupKind
    role: Role
    group_id: str
    member_id: str = ""


@dataclass(frozen=True, slots=True)
class GroupEpochValue:
    """The group's epoch, and a hash of the topics it was computed for."""

    epoch: int
    metadata_hash: int


@dataclass(frozen=True, slots=True)
class TargetEpochValue:
    """The epoch that the target assignment is for, and when it was computed (wall time, 0 for long ago)."""

    epoch: int
    timestamp_ms: int = 0


def encode_epoch_key(key: EpochKey) -> bytes:
    head = struct.pack(">h", KEY_VERSIONS[key.kind][key.role]) + write_string(key.group_id)
    return head + write_string(key.member_id) if key.role in OF_MEMBERS else head


def decode_epoch_key(data: bytes) -> EpochKey | None:
    """Decode a key; None if it is not of a group with epochs. Raises DecodeError."""
    reader = FieldReader(data)
    found = _BY_VERSION.get(reader.take("h"))
    if found is None:
        return None
    kind, role = found
    return EpochKey(kind, role, reader.text(), reader.text() if role in OF_MEMBERS else "")


def value_reader(kind: GroupKind, role: Role, data: bytes) -> FieldReader:
    """Return a reader of a value's body. Raises DecodeError for a version that this build does not know."""
    reader = FieldReader(data)
    version = reader.take("h")
    if version != VALUE_VERSION:
        text = f"a value of {role.name} of a {kind.lower()} group has version {version}; this build reads {VALUE_VERSION}"
        raise DecodeError(text)
    return reader


def tagged(tag: int, data: bytes) -> bytes:
    """Return the tagged fields of a structure that has one."""
    return write_varint(1) + write_varint(tag) + write_varint(len(data)) + data


def encode_target_epoch(value: TargetEpochValue) -> bytes:
    stamp = tagged(ASSIGNMENT_TIMESTAMP_TAG, struct.pack(">q", value.timestamp_ms)) if value.timestamp_ms else NO_TAGS
    return struct.pack(">i", value.epoch) + stamp


def decode_target_epoch(reader: FieldReader) -> TargetEpochValue:
    epoch = reader.take("i")
    stamp = reader.tagged().get(ASSIGNMENT_TIMESTAMP_TAG)
    return TargetEpochValue(epoch, FieldReader(stamp).take("q") if stamp else 0)


def by_topic(partitions: Iterable[Partition]) -> dict[bytes, list[int]]:
    """Return topic id -> indexes, both in order."""
    grouped: defaultdict[bytes, list[int]] = defaultdict(list)
    for topic_id, index in partitions:
        grouped[topic_id].append(index)
    return {topic_id: sorted(grouped[topic_id]) for topic_id in sorted(grouped)}


def encode_partitions(partitions: Iterable[Partition]) -> bytes:
    grouped = by_topic(partitions)
    parts = [write_count(len(grouped), is_flexible=True)]
    for topic_id, indexes in grouped.items():
        parts += [topic_id, encode_numbers(indexes), NO_TAGS]
    return b"".join(parts)


def decode_partitions(reader: FieldReader) -> frozenset[Partition]:
    partitions: set[Partition] = set()
    for _ in range(reader.count(is_flexible=True)):
        topic_id = reader.raw(16)
        partitions.update((topic_id, index) for index in decode_numbers(reader))
        reader.tagged()
    return frozenset(partitions)


def epochs_of(held: Collection[_Held], epochs: Mapping[_Held, int], epoch: int) -> dict[_Held, int]:
    """Return the epochs of what is held, those that are not known as `epoch`."""
    if len(epochs) == len(held) and epochs.keys() == held:
        return dict(epochs)
    return {each: epochs.get(each, epoch) for each in held}


def encode_numbers(numbers: list[int]) -> bytes:
    return write_count(len(numbers), is_flexible=True) + struct.pack(f">{len(numbers)}i", *numbers)


def decode_numbers(reader: FieldReader) -> list[int]:
    return [reader.take("i") for _ in range(reader.count(is_flexible=True))]
