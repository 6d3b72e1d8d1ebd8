"""Control batches: the commit and abort markers that end a transaction on a partition (KIP-98)."""

from __future__ import annotations

from typing import NamedTuple

from .header import Buffer


class Marker(NamedTuple):
    """What a control batch says: the transaction of its producer id is committed or aborted."""

    is_commit: bool
    coordinator_epoch: int


def build_marker(
    *, producer_id: int, producer_epoch: int, coordinator_epoch: int, is_commit: bool, timestamp_ms: int
) -> bytearray:
    """Build the control batch of one marker, to be appended by the broker."""
    raise NotImplementedError


def parse_marker(buffer: Buffer, position: int = 0) -> Marker | None:
    """Return the marker in the control batch at `position`, None for a control record of another type.

    Raises:
        CorruptBatch: not a control batch, or its record is malformed.
    """
    raise NotImplementedError
