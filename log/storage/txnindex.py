"""The aborted transactions of one segment and their file format (`.txnindex`, Kafka's). Pure."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from .slices import AbortedTransaction

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


def pack_aborted(transactions: Sequence[AbortedTransaction]) -> bytes:
    """Return 34 bytes per transaction, in the order their markers were appended."""
    return b"".join([_ENTRY.pack(_VERSION, *each) for each in transactions])


def unpack_aborted(data: bytes) -> list[AbortedTransaction]:
    """Return the transactions in the file's bytes (whose checksum was compared)."""
    return [AbortedTransaction(*fields[1:]) for fields in _ENTRY.iter_unpack(data)]
