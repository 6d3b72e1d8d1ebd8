"""The aborted transactions of one segment and their file format (`.txnindex`, Kafka's). Pure."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from crc32c import crc32c

from .slices import AbortedTransaction

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


def pack_aborted(transactions: Sequence[AbortedTransaction]) -> bytes:
    """Return 34 bytes per transaction, in the order their markers were appended."""
    return b"".join([_ENTRY.pack(_VERSION, *each) for each in transactions])


def known_beginning(data: bytes, crc: int) -> bytes | None:
    """Return the beginning of the file that has this checksum, whole entries only; None if none has it."""
    if crc32c(data) == crc:
        return data
    found = 0
    for position in range(0, len(data) - _ENTRY.size + 1, _ENTRY.size):
        found = crc32c(data[position : position + _ENTRY.size], found)
        if found == crc:
            return data[: position + _ENTRY.size]
    return None


def unpack_aborted(data: bytes) -> list[AbortedTransaction]:
    """Return the transactions in the file's bytes (whose checksum was compared)."""
    return [AbortedTransaction(*fields[1:]) for fields in _ENTRY.iter_unpack(data)]
