"""The reading side of one partition's log: records, headers, transactions, places by time and by epoch."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

from logflume.log.batch.header import BatchHeader
from logflume.log.errors import CorruptLog

from .checking import CheckBudget
from .durability import Durability
from .epochs import LeaderEpochs
from .errors import OffsetOutOfRange
from .reading import read_aborted, read_headers, read_slice
from .segment import Segment
from .segments import Segments
from .slices import AbortedTransaction, LogSlice, TimeOffset
from .timesearch import find_time

_MAX_DAMAGES = 100
_log = logging.getLogger("logflume.storage")


class ReadableLog:
    """What can be read of the log of one partition.

    Attributes:
        directory, topic, partition: where it is, and of what.
        damages: what was found damaged since the log was opened, as texts that name file and position, in order.
    """

    def __init__(self, directory: str, segments: list[Segment], epochs: LeaderEpochs, *, log_start_offset: int) -> None:
        self.directory = directory
        self.topic, _, partition = os.path.basename(directory).rpartition("-")
        self.partition = int(partition)
        self._log_start_offset = log_start_offset
        self.damages: dict[str, None] = {}
        self._segments = Segments(segments)
        self._epochs = epochs
        self._durability = Durability(self._segments.active)
        self._is_closed = False

    @property
    def log_start_offset(self) -> int:
        """First offset that can be read."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Offset the next record gets."""
        return self._segments.active.next_offset

    @property
    def durable_offset(self) -> int:
        """End of what may be acknowledged and read: the high watermark of a log without followers."""
        return self._durability.offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments, without indexes."""
        return self._segments.size_bytes

    @property
    def leader_epoch(self) -> int:
        """Latest leader epoch appended with, -1 for none."""
        return self._epochs.latest

    def leader_epochs(self) -> LeaderEpochs:
        """Return a copy of the leader epochs."""
        return LeaderEpochs.of(self._epochs)

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        up_to_offset: int | None = None,
        min_one_batch: bool = True,
        budget: CheckBudget | None = None,
    ) -> LogSlice:
        """Return the bytes from the batch that holds `offset` on, at most `max_bytes` and only batches below `up_to_offset`.

        Args:
            up_to_offset: durable_offset if None; last_stable_offset for read_committed readers.
            min_one_batch: give the first batch whole even if it is bigger than `max_bytes`.
            budget: bounds what is checked; less is returned when it is spent. None: no bound.

        Raises:
            OffsetOutOfRange: offset < log_start_offset or > log_end_offset. At the end the slice is empty.
            CorruptLog: the batch at that place is damaged.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(
                f"{self.topic}-{self.partition}: expected an offset of {self.log_start_offset} to {self.log_end_offset}, "
                f"found {offset}"
            )
        up_to = self._durability.offset if up_to_offset is None else min(up_to_offset, self._durability.offset)
        if offset >= up_to:
            return LogSlice(None, 0, 0, offset)
        try:
            return read_slice(
                self._segments.from_offset(offset),
                offset,
                max_bytes,
                up_to=up_to,
                min_one_batch=min_one_batch,
                epochs=self._epochs,
                budget=budget,
            )
        except CorruptLog as error:
            raise self.note_damage(error) from None

    def headers(self, offset: int, *, up_to_offset: int | None = None) -> Iterator[tuple[BatchHeader, LogSlice]]:
        """Yield the header of each batch from the one that holds `offset` on, with a slice of exactly that batch.

        Raises:
            CorruptLog: the bytes are not a batch, or one with other offsets than belong there.
        """
        up_to = self._durability.offset if up_to_offset is None else min(up_to_offset, self._durability.offset)
        try:
            yield from read_headers(self._segments.from_offset(offset), offset, up_to=up_to, epochs=self._epochs)
        except CorruptLog as error:
            raise self.note_damage(error) from None

    def sealed_segments(self) -> list[Segment]:
        """Return the segments that are not written to any more, for the scrubber."""
        return [segment for segment in self._segments.sealed if segment.info is not None]

    def holds(self, segment: Segment) -> bool:
        """Say whether a segment is part of the log now."""
        return not self._is_closed and segment in self._segments

    def note_damage(self, error: CorruptLog) -> CorruptLog:
        """Name damage in the log of the process, once, and count it; returns the error, to be raised."""
        text = str(error)
        if text not in self.damages and len(self.damages) < _MAX_DAMAGES:
            self.damages[text] = None
            _log.error("damage in %s-%d, which is not served: %s", self.topic, self.partition, text)
        return error

    def aborted_transactions(self, from_offset: int, to_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap from_offset <= offset < to_offset, by first offset. Raises CorruptLog."""
        try:
            return read_aborted(self._segments.from_offset(from_offset), from_offset, to_offset)
        except CorruptLog as error:
            raise self.note_damage(error) from None

    def offset_for_time(self, timestamp_ms: int) -> TimeOffset | None:
        """Return the first record with a timestamp >= `timestamp_ms` among the durable ones, None if there is none.

        Raises:
            CorruptLog: a batch on the way to it is damaged.
        """
        try:
            return find_time(
                self._segments,
                timestamp_ms,
                from_offset=self.log_start_offset,
                up_to_offset=self._durability.offset,
                epochs=self._epochs,
            )
        except CorruptLog as error:
            raise self.note_damage(error) from None

    def max_timestamp(self) -> TimeOffset | None:
        """Return the first record with the largest timestamp, None for an empty log."""
        largest = {segment.max_timestamp_ms for segment in self._segments if segment.max_timestamp_ms >= 0}
        found = (self.offset_for_time(timestamp_ms) for timestamp_ms in sorted(largest, reverse=True))
        return next((each for each in found if each is not None), None)

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return (largest epoch <= the given one, end offset of it), (-1, -1) if unknown (OffsetsForLeaderEpoch, KIP-101)."""
        return self._epochs.end_offset(leader_epoch, self.log_end_offset)
