"""Bytes of a segment are checked before they leave it for the first time: a disk may give back others than were written.

What this process wrote or scanned when it opened the log counts as checked; all else is unchecked until somebody asks for it
(`PartitionLog.read`) or the scrubber comes by. Compared are the checksum, and what it does not cover: the offset with the index
(whose own checksum is in the checkpoint) and with the batch before, the leader epoch with the log's. In segments that compaction
wrote, where offsets have gaps, the index has an entry for every batch, so that no offset is taken on trust there either.
"""

from __future__ import annotations

from collections.abc import Iterator

from logflume.log.batch.errors import CorruptBatch
from logflume.log.batch.header import BatchHeader, check_crc, parse_header
from logflume.log.errors import CorruptLog

from .epochs import LeaderEpochs
from .recovery import window_with_batch
from .segment import Segment

BUDGET_BYTES, BUDGET_BATCHES = 4 << 20, 500
"""What is checked for one request: a few ms. More comes with the next; one batch is always checked whole."""

_WINDOW_BYTES = 128 << 10


class CheckBudget:
    """How much may still be checked for a request."""

    __slots__ = ("_batches_left", "_bytes_left")

    def __init__(self) -> None:
        self._bytes_left, self._batches_left = BUDGET_BYTES, BUDGET_BATCHES

    @property
    def is_spent(self) -> bool:
        return self._bytes_left <= 0 or self._batches_left <= 0

    def spend(self, size_bytes: int) -> None:
        self._bytes_left -= size_bytes
        self._batches_left -= 1


def check_range(
    segment: Segment, start: int, end: int, *, epochs: LeaderEpochs, must_pass: int, budget: CheckBudget | None = None
) -> int:
    """Check what of the segment's bytes from `start` to `end` was not yet; return up to where all are good, `end` or earlier.

    Args:
        start: position of a batch.
        must_pass: what is returned lies behind the batch at this position, whatever the budget.

    Raises:
        CorruptLog: the batch at `must_pass`, or one before it, is damaged.
    """
    for first, last in segment.unchecked_within(start, end):
        position = anchor = segment.offset_index.boundary(first)
        try:
            for at, header, _ in checked_batches(segment, anchor, min(last, end), epochs=epochs):
                position = at + header.size_bytes
                if budget is not None:
                    budget.spend(header.size_bytes)
                    if budget.is_spent and position > must_pass:
                        break
        except CorruptLog:
            segment.mark_checked(anchor, position)
            if position <= must_pass:
                raise
            return position
        segment.mark_checked(anchor, position)
        if position < min(last, end):
            return position
    return end


def checked_batches(
    segment: Segment, start: int, end: int, *, epochs: LeaderEpochs
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Yield (position, header, bytes) of each batch from `start` to the one that reaches `end`, compared with all that is known.

    Args:
        start: 0 or the position of a batch that the index names.

    Raises:
        CorruptLog: names the file and the position of the first batch that is damaged.
    """
    entries = segment.offset_index.entries_from(start)
    indexed_offset, indexed_position = next(entries, (-1, -1))
    least = segment.base_offset
    is_exact = segment.is_dense and start == 0
    window, window_start = memoryview(b""), start
    position = start
    while position < end:
        window, window_start = window_with_batch(
            segment.file, window, window_start, position, segment.size_bytes, window_bytes=_WINDOW_BYTES
        )
        at = position - window_start
        try:
            header = parse_header(window, at)
            check_crc(window, header, at)
        except CorruptBatch as error:
            raise segment.corrupt(position, error) from error
        base_offset, last_offset = header.base_offset, header.base_offset + header.last_offset_delta
        if position == indexed_position:
            if last_offset - segment.base_offset != indexed_offset:
                raise segment.corrupt(
                    position, f"its last offset is {last_offset}, the index says {segment.base_offset + indexed_offset}"
                )
            indexed_offset, indexed_position = next(entries, (-1, -1))
        if (base_offset != least and (is_exact or base_offset < least)) or last_offset >= segment.next_offset:
            segment.check_place(position, header, least, has_gaps=not is_exact)
        epoch = epochs.epoch_of(base_offset)
        if epoch >= 0 and epoch != header.partition_leader_epoch:
            raise segment.corrupt(position, f"its leader epoch is {header.partition_leader_epoch}, expected {epoch}")
        yield position, header, window[at : at + header.size_bytes]
        least, is_exact = last_offset + 1, segment.is_dense
        position += header.size_bytes
