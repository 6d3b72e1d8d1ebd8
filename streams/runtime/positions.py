"""What is kept beside a committed offset: the times that decide whether a record is late, so that they survive it. (pure)

The text is JSON: {"time": running maximum of time of the input, "stores": {store: stream time}}, the latter once per task.
Kafka refuses texts beyond `offset.metadata.max.bytes` (4096 by default).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from logflume.log.interfaces import OffsetAndMetadata
from logflume.log.records import TopicPartition
from logflume.streams.state import Checkpoint

_MAX_TEXT_BYTES = 4000


class _Text(msgspec.Struct, omit_defaults=True):
    time: int = -1
    stores: dict[str, int] = msgspec.field(default_factory=dict)


@dataclass(slots=True)
class Times:
    """Times read back from the offsets of one task."""

    inputs_ms: dict[TopicPartition, int] = field(default_factory=dict)
    stores_ms: dict[str, int] = field(default_factory=dict)


def to_offsets(checkpoint: Checkpoint) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offset commit of a task: its positions, with the times as metadata."""
    offsets = {}
    stores = checkpoint.store_times_ms
    for partition in sorted(checkpoint.inputs):
        time_ms = checkpoint.input_times_ms.get(partition, -1)
        text = msgspec.json.encode(_Text(time_ms, stores))
        if len(text) > _MAX_TEXT_BYTES:
            text = msgspec.json.encode(_Text(time_ms))
        offsets[partition] = OffsetAndMetadata(checkpoint.inputs[partition], text.decode())
        stores = {}
    return offsets


def read_times(offsets: dict[TopicPartition, OffsetAndMetadata]) -> Times:
    """Return the times kept beside committed offsets; text that is not ours (a reset by hand) counts as none."""
    times = Times()
    for partition, offset in offsets.items():
        try:
            text = msgspec.json.decode(offset.metadata or "{}", type=_Text)
        except msgspec.MsgspecError:
            continue
        times.inputs_ms[partition] = text.time
        times.stores_ms.update(text.stores)
    return times
