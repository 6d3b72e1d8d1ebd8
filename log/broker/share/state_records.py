"""The records of `__share_group_state`, byte for byte as Apache Kafka writes them: one snapshot per share partition.

Key version 0 is a snapshot, 1 an update of the one before. This broker writes snapshots only, so that the topic can be compacted,
and reads both. Values have version 0, which is flexible.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from logflume.log.broker.record_fields import FieldReader, write_count, write_string, write_varint
from logflume.log.errors import DecodeError

from .runs import DeliveryState, Run, Runs

SNAPSHOT, UPDATE = 0, 1
VALUE_VERSION = 0
COMPLETE_COUNT_TAG = 0
UNCHANGED = -1
_NO_TAGS = write_varint(0)


class ShareKey(NamedTuple):
    """A share partition: a partition of a topic (16 bytes of id) as one group sees it."""

    group_id: str
    topic_id: bytes
    partition: int


@dataclass(frozen=True, slots=True)
class ShareSnapshot:
    """What is known of a share partition. `complete_count`: records from the start offset on that are done with, -1 unknown."""

    start_offset: int
    batches: tuple[Run, ...] = ()
    complete_count: int = -1
    snapshot_epoch: int = 0
    state_epoch: int = 0
    created_ms: int = 0
    written_ms: int = 0


@dataclass(frozen=True, slots=True)
class ShareUpdate:
    """What changed since the snapshot before; start offset -1 means unchanged."""

    start_offset: int
    batches: tuple[Run, ...]
    complete_count: int


def encode_state_key(key: ShareKey) -> bytes:
    return struct.pack(">h", SNAPSHOT) + write_string(key.group_id) + key.topic_id + struct.pack(">i", key.partition)


def decode_state_key(data: bytes) -> tuple[ShareKey, int]:
    """Return the key and its version: SNAPSHOT or UPDATE. Raises DecodeError."""
    reader = FieldReader(data)
    version = reader.take("h")
    if version not in (SNAPSHOT, UPDATE):
        raise DecodeError(f"a key of __share_group_state has version {version}; this build reads 0 and 1")
    return ShareKey(reader.text(), reader.raw(16), reader.take("i")), version


def encode_snapshot(value: ShareSnapshot, *, leader_epoch: int) -> bytes:
    parts = [
        struct.pack(">hiiiq", VALUE_VERSION, value.snapshot_epoch, value.state_epoch, leader_epoch, value.start_offset),
        struct.pack(">qq", value.created_ms, value.written_ms),
        write_count(len(value.batches), is_flexible=True),
    ]
    for run in value.batches:
        parts += [struct.pack(">qqbh", run.first, run.last, run.state, run.delivery_count), _NO_TAGS]
    if value.complete_count < 0:
        parts.append(_NO_TAGS)
    else:
        count = struct.pack(">i", value.complete_count)
        parts += [write_varint(1), write_varint(COMPLETE_COUNT_TAG), write_varint(len(count)), count]
    return b"".join(parts)


def decode_state_value(version: int, data: bytes) -> ShareSnapshot | ShareUpdate:
    """Decode the value under a key of this version. Raises DecodeError."""
    reader = FieldReader(data)
    value_version = reader.take("h")
    if value_version != VALUE_VERSION:
        raise DecodeError(f"a value of __share_group_state has version {value_version}; this build reads {VALUE_VERSION}")
    snapshot_epoch = reader.take("i")
    if version == UPDATE:
        reader.take("i")
        start_offset = reader.take("q")
        return ShareUpdate(start_offset, _batches(reader), _complete_count(reader))
    state_epoch, _, start_offset = reader.take("i"), reader.take("i"), reader.take("q")
    created_ms, written_ms = reader.take("q"), reader.take("q")
    batches = _batches(reader)
    return ShareSnapshot(start_offset, batches, _complete_count(reader), snapshot_epoch, state_epoch, created_ms, written_ms)


def updated(snapshot: ShareSnapshot, update: ShareUpdate) -> ShareSnapshot:
    """Return a snapshot with an update laid over it."""
    start_offset = snapshot.start_offset if update.start_offset == UNCHANGED else update.start_offset
    runs = Runs(min(snapshot.start_offset, start_offset))
    for batch in (*snapshot.batches, *sorted(update.batches, key=lambda run: run.first)):
        if batch.last >= runs.end:
            runs.append(Run(runs.end, batch.last))
        runs.change(batch.first, batch.last, lambda run, batch=batch: replace(batch, first=run.first, last=run.last))  # type: ignore[misc]
    runs.drop_before(start_offset)
    known = tuple(run for run in runs if run.delivery_count or run.state is not DeliveryState.AVAILABLE)
    return replace(snapshot, start_offset=start_offset, batches=known, complete_count=update.complete_count)


def _batches(reader: FieldReader) -> tuple[Run, ...]:
    found = []
    previous_last = -1
    for _ in range(max(reader.count(is_flexible=True), 0)):
        first, last, state, count = reader.take("q"), reader.take("q"), reader.take("b"), reader.take("h")
        reader.tagged()
        if not (previous_last < first <= last and _is_state(state)):
            raise DecodeError(
                f"a batch of offsets {first} to {last} in state {state} behind {previous_last} in __share_group_state"
            )
        found.append(Run(first, last, DeliveryState(state), count))
        previous_last = last
    return tuple(found)


def _is_state(number: int) -> bool:
    return number in (DeliveryState.AVAILABLE, DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED)


def _complete_count(reader: FieldReader) -> int:
    data = reader.tagged().get(COMPLETE_COUNT_TAG)
    return FieldReader(data).take("i") if data else -1


def restored_runs(snapshot: ShareSnapshot) -> Iterable[Run]:
    """Return the batches from the start offset on."""
    return (
        replace(run, first=max(run.first, snapshot.start_offset)) for run in snapshot.batches if run.last >= snapshot.start_offset
    )
