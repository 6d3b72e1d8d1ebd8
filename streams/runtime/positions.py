"""What is kept beside a committed offset: the times that decide whether a record is late, and what the stores hold. (pure)

The text is JSON: {"time": running maximum of time of the input, "stores": {store: stream time}, "contents": {store: what it
holds}, "at": where the instance that runs the task answers questions}, all but the first once per task. Kafka refuses texts
beyond `offset.metadata.max.bytes` (4096 by default): contents that are too long are digests of themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from logflume.log.interfaces import OffsetAndMetadata
from logflume.log.records import TopicPartition
from logflume.streams.state import Checkpoint

_MAX_TEXT_BYTES = 4000


class _Text(msgspec.Struct, omit_defaults=True):
    time: int = -1
    stores: dict[str, int] = msgspec.field(default_factory=dict)
    contents: dict[str, str] = msgspec.field(default_factory=dict)
    at: str = ""


@dataclass(slots=True)
class Times:
    """Times read back from the offsets of one task."""

    inputs_ms: dict[TopicPartition, int] = field(default_factory=dict)
    stores_ms: dict[str, int] = field(default_factory=dict)
    contents: dict[str, str] = field(default_factory=dict)
    at: str = ""


def to_offsets(checkpoint: Checkpoint, contents: Mapping[str, str], at: str = "") -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offset commit of a task: its positions, with times and contents of its stores and its address as metadata."""
    offsets = {}
    for place, partition in enumerate(sorted(checkpoint.inputs)):
        time_ms = checkpoint.input_times_ms.get(partition, -1)
        text = _text(time_ms, checkpoint.store_times_ms, contents, at) if place == 0 else msgspec.json.encode(_Text(time_ms))
        offsets[partition] = OffsetAndMetadata(checkpoint.inputs[partition], text.decode())
    return offsets


def _text(time_ms: int, stores: dict[str, int], contents: Mapping[str, str], at: str) -> bytes:
    """Return as much as has room, the most telling form first."""
    digests = {store: digest(text) for store, text in contents.items()}
    forms = (_Text(time_ms, stores, dict(contents), at), _Text(time_ms, stores, digests, at), _Text(time_ms, stores, at=at))
    for form in forms:
        text = msgspec.json.encode(form)
        if len(text) <= _MAX_TEXT_BYTES:
            return text
    return msgspec.json.encode(_Text(time_ms, at=at))


def digest(text: str) -> str:
    """Return a short stand-in for a text.

    >>> digest("n = count() BIGINT by user STRING as KAFKA")
    '#936fb68b'
    """
    return f"#{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def changed_contents(before: Mapping[str, str], now: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return (store, what it held, what it shall hold) of the stores that mean something else than they did."""
    return [
        (store, before[store], text)
        for store, text in now.items()
        if store in before and before[store] not in (text, digest(text))
    ]


def read_times(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Times:
    """Return the times kept beside committed offsets; text that is not ours (a reset by hand) counts as none."""
    times = Times()
    for partition, offset in offsets.items():
        try:
            text = msgspec.json.decode(offset.metadata or "{}", type=_Text)
        except msgspec.MsgspecError:
            continue
        times.inputs_ms[partition] = text.time
        times.stores_ms.update(text.stores)
        times.contents.update(text.contents)
        times.at = text.at or times.at
    return times


def addresses(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, str]:
    """Return where the instances answer that have committed these offsets, of the partitions beside which it is kept."""
    return {partition: at for partition, offset in offsets.items() if (at := read_times({partition: offset}).at)}
