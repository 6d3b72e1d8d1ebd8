"""Reading a partition's segments: bytes for a fetch, batches one by one; checked before they go out. No state of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from logflume.log.batch.header import BatchHeader

from .checking import CheckBudget, check_range
from .epochs import LeaderEpochs
from .segment import Segment
from .slices import AbortedTransaction, LogSlice

_CHECK_AHEAD_BYTES = 1 << 20


def read_slice(
    segments: Sequence[Segment],
    offset: int,
    max_bytes: int,
    *,
    up_to: int,
    min_one_batch: bool,
    epochs: LeaderEpochs,
    budget: CheckBudget | None,
) -> LogSlice:
    """Return bytes from the batch that holds `offset` on, of the first of the segments that has some below `up_to`.

    Raises:
        CorruptLog: the batch is damaged.
    """
    for segment in segments:
        if segment.base_offset >= up_to:
            break
        start = segment.position_of(offset)
        end = segment.size_bytes
        if segment.unchecked:
            if budget is not None and budget.is_spent and not min_one_batch:
                break
            # From the index's entry on: a damaged offset before the batch would have led to another one.
            end = check_range(
                segment,
                segment.anchor_of(offset),
                min(max(start + max_bytes, start + 1), segment.size_bytes),
                epochs=epochs,
                must_pass=min(start, segment.size_bytes - 1),
                budget=budget,
            )
        if segment.next_offset > up_to:
            end = min(end, segment.position_of(up_to))
        if start < end:
            return _slice(segment, start, end, max_bytes, min_one_batch=min_one_batch)
    return LogSlice(None, 0, 0, offset)


def _slice(segment: Segment, start: int, end: int, max_bytes: int, *, min_one_batch: bool) -> LogSlice:
    header = segment.header_at(start)
    if start + max_bytes < end:
        boundary = segment.batch_boundary(start + max_bytes)
        end = boundary if boundary > start else start + max_bytes
    if min_one_batch:
        end = max(end, start + header.size_bytes)
    return LogSlice(segment.file, start, end - start, header.base_offset)


def read_headers(
    segments: Sequence[Segment], offset: int, *, up_to: int, epochs: LeaderEpochs
) -> Iterator[tuple[BatchHeader, LogSlice]]:
    """Yield the header of each batch from the one that holds `offset` on, as far as it ends below `up_to`, and its bytes.

    Raises:
        CorruptLog: damaged bytes, or a batch with other offsets than belong there.
    """
    for segment in segments:
        if segment.base_offset >= up_to:
            return
        start = segment.position_of(offset)
        checked_end = _check_ahead(segment, segment.anchor_of(offset), start, epochs)
        expected = segment.offset_at(start)
        for position, header in segment.scan(start):
            if position >= checked_end:
                checked_end = _check_ahead(segment, position, position, epochs)
            segment.check_place(position, header, expected, has_gaps=not segment.is_dense)
            expected = header.last_offset + 1
            if header.last_offset >= up_to:
                return
            yield header, LogSlice(segment.file, position, header.size_bytes, header.base_offset)


def _check_ahead(segment: Segment, anchor: int, position: int, epochs: LeaderEpochs) -> int:
    """Check the batch at `position`, those from `anchor` on and some behind it; return up to where that was done."""
    if not segment.unchecked:
        return segment.size_bytes
    end = min(position + _CHECK_AHEAD_BYTES, segment.size_bytes)
    must_pass = min(position, segment.size_bytes - 1)
    return check_range(segment, anchor, end, epochs=epochs, must_pass=must_pass, budget=CheckBudget())


def read_aborted(segments: Sequence[Segment], from_offset: int, to_offset: int) -> list[AbortedTransaction]:
    """Return the aborted transactions that overlap from_offset <= offset < to_offset, by first offset. Raises CorruptLog.

    `segments`: from the one that holds `from_offset` on.
    """
    found: list[AbortedTransaction] = []
    for segment in segments:
        for each in segment.aborted:
            if each.last_offset >= from_offset and each.first_offset < to_offset:
                found.append(each)
            if each.last_stable_offset >= to_offset:
                return sorted(found, key=lambda txn: txn.first_offset)
    return sorted(found, key=lambda txn: txn.first_offset)
