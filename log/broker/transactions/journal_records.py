"""The records of `__transaction_state`, byte for byte as Apache Kafka writes them: TransactionLogKey 0, TransactionLogValue 1.

Values of version 0 (before tagged fields) are read too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from logflume.log.broker.record_fields import FieldReader, write_count, write_string, write_varint
from logflume.log.errors import DecodeError

from .metadata import NO_ID, Txn, TxnState

KEY_VERSION = 0
VALUE_VERSION = 1
PREVIOUS_PRODUCER_ID_TAG, NEXT_PRODUCER_ID_TAG, CLIENT_VERSION_TAG = 0, 1, 2

_STATES = {state.number: state for state in TxnState}


def encode_key(transactional_id: str) -> bytes:
    return struct.pack(">h", KEY_VERSION) + write_string(transactional_id)


def decode_key(data: bytes) -> str | None:
    """Return the transactional id; None for a kind of record that is not known. Raises DecodeError."""
    reader = FieldReader(data)
    return reader.text() if reader.take("h") == KEY_VERSION else None


def encode_value(txn: Txn) -> bytes:
    """Encode all of a transaction but its id and `last_producer_epoch`. Partitions: null when there are none, as in Kafka."""
    head = struct.pack(">hqhib", VALUE_VERSION, txn.producer_id, txn.producer_epoch, txn.timeout_ms, txn.state.number)
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(txn.partitions):
        by_topic.setdefault(topic, []).append(partition)
    has_partitions = bool(by_topic) or txn.state is not TxnState.EMPTY
    parts = [head, write_count(len(by_topic) if has_partitions else -1, is_flexible=True)]
    for topic, indexes in by_topic.items():
        parts += [write_string(topic, is_flexible=True), write_count(len(indexes), is_flexible=True)]
        parts += [struct.pack(f">{len(indexes)}i", *indexes), write_varint(0)]
    parts.append(struct.pack(">qq", txn.update_ms, txn.start_ms))
    tags = [
        (PREVIOUS_PRODUCER_ID_TAG, txn.previous_producer_id, NO_ID, ">q"),
        (NEXT_PRODUCER_ID_TAG, txn.next_producer_id, NO_ID, ">q"),
        (CLIENT_VERSION_TAG, txn.client_version, 0, ">h"),
    ]
    written = [(tag, struct.pack(fmt, value)) for tag, value, default, fmt in tags if value != default]
    parts.append(write_varint(len(written)))
    parts += [write_varint(tag) + write_varint(len(data)) + data for tag, data in written]
    return b"".join(parts)


def decode_value(transactional_id: str, data: bytes) -> Txn:
    """Decode a value of version 0 or 1. Raises DecodeError."""
    reader = FieldReader(data)
    version = reader.take("h")
    if version not in (0, VALUE_VERSION):
        raise DecodeError(f"a transaction's value has version {version}; this build reads 0 to {VALUE_VERSION}")
    is_flexible = version >= 1
    producer_id, producer_epoch, timeout_ms, number = (reader.take(fmt) for fmt in "qhib")
    if number not in _STATES:
        raise DecodeError(f"a transaction has the state {number}; expected 0 to {max(_STATES)}")
    partitions: set[tuple[str, int]] = set()
    for _ in range(reader.count(is_flexible=is_flexible)):
        topic = reader.text(is_flexible=is_flexible)
        partitions.update((topic, reader.take("i")) for _ in range(reader.count(is_flexible=is_flexible)))
        if is_flexible:
            reader.tagged()
    update_ms, start_ms = reader.take("q"), reader.take("q")
    tags = reader.tagged() if is_flexible else {}

    def tag(number: int, default: int, fmt: Callable[[FieldReader], int]) -> int:
        return fmt(FieldReader(tags[number])) if number in tags else default

    return Txn(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        update_ms=update_ms,
        state=_STATES[number],
        partitions=frozenset(partitions),
        start_ms=start_ms,
        previous_producer_id=tag(PREVIOUS_PRODUCER_ID_TAG, NO_ID, lambda field: int(field.take("q"))),
        next_producer_id=tag(NEXT_PRODUCER_ID_TAG, NO_ID, lambda field: int(field.take("q"))),
        client_version=tag(CLIENT_VERSION_TAG, 0, lambda field: int(field.take("h"))),
    )
