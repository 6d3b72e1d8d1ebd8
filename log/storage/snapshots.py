"""The producer snapshot file (`.snapshot`): Kafka's format, version 1. Pure.

Kafka keeps the last batch of a producer only; we write one entry per remembered batch, oldest first, so that a repeat of any of
them is still known after a restart. Kafka's own reader takes the last entry of a producer, which is the right one.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from .producers import ProducerState, ProducerStates, SentBatch

_PREFIX = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
_VERSION = 1
_NO_BATCH = SentBatch(-1, -1, 0, -1)


def pack_snapshot(producers: ProducerStates) -> bytes:
    """Return the snapshot file of all producers."""
    entries = [
        _ENTRY.pack(
            producer_id,
            state.epoch,
            batch.last_sequence,
            batch.last_offset,
            batch.offset_delta,
            batch.timestamp_ms if batch is not _NO_BATCH else state.last_timestamp_ms,
            state.coordinator_epoch,
            state.txn_first_offset,
        )
        for producer_id, state in producers.states.items()
        for batch in state.batches or [_NO_BATCH]
    ]
    body = _COUNT.pack(len(entries)) + b"".join(entries)
    return _PREFIX.pack(_VERSION, crc32c(body)) + body


def unpack_snapshot(data: bytes | None) -> ProducerStates | None:
    """Return the producers of a snapshot file, None if it is missing, damaged or of another version."""
    if data is None or len(data) < _PREFIX.size + _COUNT.size:
        return None
    version, crc = _PREFIX.unpack_from(data)
    body = data[_PREFIX.size :]
    if version != _VERSION or crc != crc32c(body):
        return None
    if _COUNT.unpack_from(body)[0] * _ENTRY.size != len(body) - _COUNT.size:
        return None
    producers = ProducerStates()
    for entry in _ENTRY.iter_unpack(body[_COUNT.size :]):
        _add_entry(producers, *entry)
    open_transactions = sorted(
        (state.txn_first_offset, producer_id) for producer_id, state in producers.states.items() if state.txn_first_offset >= 0
    )
    producers.open_transactions = {producer_id: first_offset for first_offset, producer_id in open_transactions}
    return producers


def _add_entry(
    producers: ProducerStates,
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp_ms: int,
    coordinator_epoch: int,
    txn_first_offset: int,
) -> None:
    state = producers.states.setdefault(producer_id, ProducerState(epoch))
    state.coordinator_epoch = coordinator_epoch
    state.txn_first_offset = txn_first_offset
    state.last_timestamp_ms = timestamp_ms
    if last_sequence >= 0:
        state.batches.append(SentBatch(last_sequence, last_offset, offset_delta, timestamp_ms))
