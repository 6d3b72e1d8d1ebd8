"""The records of `__consumer_offsets`, byte for byte as Apache Kafka writes them, so that its tools can read ours.

Keys: version 0 and 1 an offset commit (group, topic, partition), version 2 the metadata of a classic group. We write offset
values and group values of version 3 (as Kafka 4 does) and read 0 to 4. Other key versions belong to newer kinds of groups.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from logflume.log.broker.record_fields import FieldReader, write_bytes, write_count, write_string
from logflume.log.errors import DecodeError

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
VALUE_VERSION = 3
FIRST_FLEXIBLE_VALUE = 4


@dataclass(frozen=True, slots=True)
class OffsetKey:
    group_id: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class OffsetValue:
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class GroupKey:
    group_id: str


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member as the journal keeps it: the metadata of the chosen protocol only."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupValue:
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_since_ms: int
    members: tuple[StoredMember, ...]


def encode_offset_key(key: OffsetKey) -> bytes:
    head = struct.pack(">h", OFFSET_KEY_VERSION)
    return head + write_string(key.group_id) + write_string(key.topic) + struct.pack(">i", key.partition)


def encode_offset_value(value: OffsetValue) -> bytes:
    head = struct.pack(">hqi", VALUE_VERSION, value.offset, value.leader_epoch)
    return head + write_string(value.metadata) + struct.pack(">q", value.commit_timestamp_ms)


def encode_group_key(key: GroupKey) -> bytes:
    return struct.pack(">h", GROUP_KEY_VERSION) + write_string(key.group_id)


def encode_group_value(value: GroupValue) -> bytes:
    parts = [
        struct.pack(">h", VALUE_VERSION),
        write_string(value.protocol_type),
        struct.pack(">i", value.generation),
        write_string(value.protocol),
        write_string(value.leader),
        struct.pack(">q", value.state_since_ms),
        write_count(len(value.members)),
    ]
    for member in value.members:
        parts += [
            write_string(member.member_id),
            write_string(member.instance_id),
            write_string(member.client_id),
            write_string(member.client_host),
            struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms),
            write_bytes(member.subscription),
            write_bytes(member.assignment),
        ]
    return b"".join(parts)


def decode_key(data: bytes) -> OffsetKey | GroupKey | None:
    """Decode a key; None for a kind of record that this coordinator does not keep. Raises DecodeError."""
    reader = FieldReader(data)
    version = reader.take("h")
    if version in (0, OFFSET_KEY_VERSION):
        return OffsetKey(reader.text(), reader.text(), reader.take("i"))
    if version == GROUP_KEY_VERSION:
        return GroupKey(reader.text())
    return None


def decode_offset_value(data: bytes) -> OffsetValue:
    """Decode the value of an offset commit, versions 0 to 4. Raises DecodeError."""
    reader = FieldReader(data)
    version = _value_version(reader, "offset commit")
    offset = reader.take("q")
    leader_epoch = reader.take("i") if version >= 3 else -1
    metadata = reader.text(is_flexible=version >= FIRST_FLEXIBLE_VALUE)
    return OffsetValue(offset, leader_epoch, metadata, reader.take("q"))


def decode_group_value(data: bytes) -> GroupValue:
    """Decode the metadata of a classic group, versions 0 to 4. Raises DecodeError."""
    reader = FieldReader(data)
    version = _value_version(reader, "group metadata")
    is_flexible = version >= FIRST_FLEXIBLE_VALUE
    protocol_type = reader.text(is_flexible=is_flexible)
    generation = reader.take("i")
    protocol, leader = reader.string(is_flexible=is_flexible), reader.string(is_flexible=is_flexible)
    state_since_ms = reader.take("q") if version >= 2 else -1
    members = tuple(_decode_member(reader, version) for _ in range(reader.count(is_flexible=is_flexible)))
    return GroupValue(protocol_type, generation, protocol, leader, state_since_ms, members)


def _decode_member(reader: FieldReader, version: int) -> StoredMember:
    is_flexible = version >= FIRST_FLEXIBLE_VALUE
    member_id = reader.text(is_flexible=is_flexible)
    instance_id = reader.string(is_flexible=is_flexible) if version >= 3 else None
    client_id, client_host = reader.text(is_flexible=is_flexible), reader.text(is_flexible=is_flexible)
    rebalance_timeout_ms = reader.take("i") if version >= 1 else -1
    session_timeout_ms = reader.take("i")
    subscription, assignment = reader.blob(is_flexible=is_flexible), reader.blob(is_flexible=is_flexible)
    if is_flexible:
        reader.tagged()
    if rebalance_timeout_ms < 0:
        rebalance_timeout_ms = session_timeout_ms
    return StoredMember(
        member_id, instance_id, client_id, client_host, rebalance_timeout_ms, session_timeout_ms, subscription, assignment
    )


def _value_version(reader: FieldReader, what: str) -> int:
    version: int = reader.take("h")
    if not 0 <= version <= FIRST_FLEXIBLE_VALUE:
        raise DecodeError(f"a value of {what} has version {version}; this build reads 0 to {FIRST_FLEXIBLE_VALUE}")
    return version
