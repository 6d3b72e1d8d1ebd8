"""How far a task's stores have come: written with their entries in one batch, so that it is always true of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from logflume.log import CorruptLog
from logflume.log.records import TopicPartition

from .trimming import Mark


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Positions and times as of the last task commit.

    Attributes:
        inputs: next offset to read of each input.
        input_times_ms: running maximum of time of each input, -1 before its first record.
        changelogs: store -> next offset of its changelog (or of its table source) not yet in the store.
        store_times_ms: store -> its stream time.
        store_newest_ms: store -> the newest time in keys of its entries, also of some that are gone.
        changelog_marks: window store -> marks of its changelog (see `trimming.py`).
        tables: next offset to read of each partition of a global table.
        topic_ids: topics that the stores are restored from -> their ids.
        written_s: wall clock at the commit, seconds since the epoch.
    """

    inputs: dict[TopicPartition, int] = field(default_factory=dict)
    input_times_ms: dict[TopicPartition, int] = field(default_factory=dict)
    changelogs: dict[str, int] = field(default_factory=dict)
    store_times_ms: dict[str, int] = field(default_factory=dict)
    store_newest_ms: dict[str, int] = field(default_factory=dict)
    changelog_marks: dict[str, list[Mark]] = field(default_factory=dict)
    tables: dict[TopicPartition, int] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    written_s: float = 0.0


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return a checkpoint as MessagePack."""
    times = checkpoint.input_times_ms
    inputs = [(tp.topic, tp.partition, offset, times.get(tp, -1)) for tp, offset in checkpoint.inputs.items()]
    stores = checkpoint.changelogs, checkpoint.store_times_ms, checkpoint.store_newest_ms, checkpoint.changelog_marks
    tables = [(tp.topic, tp.partition, offset) for tp, offset in checkpoint.tables.items()]
    return msgspec.msgpack.encode((inputs, *stores, tables, checkpoint.topic_ids, checkpoint.written_s))


_Written = tuple[
    list[tuple[str, int, int, int]],
    dict[str, int],
    dict[str, int],
    dict[str, int],
    dict[str, list[Mark]],
    list[tuple[str, int, int]],
    dict[str, str],
    float,
]
_decode_written = msgspec.msgpack.Decoder(_Written).decode


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Return the checkpoint. Raises CorruptLog for bytes that are not one."""
    try:
        inputs, changelogs, times, newest, marks, tables, topic_ids, written_s = _decode_written(data)
    except msgspec.MsgspecError as error:
        raise CorruptLog(f"the checkpoint of a state directory cannot be read: {error}") from error
    return Checkpoint(
        {TopicPartition(topic, partition): offset for topic, partition, offset, _ in inputs},
        {TopicPartition(topic, partition): time_ms for topic, partition, _, time_ms in inputs},
        changelogs,
        times,
        newest,
        marks,
        {TopicPartition(topic, partition): offset for topic, partition, offset in tables},
        topic_ids,
        written_s,
    )
