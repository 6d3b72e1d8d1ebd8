"""What of a log can be given to a share group: batches by their headers, with those hidden that have nothing to give."""

from __future__ import annotations

from dataclasses import dataclass

from logflume.log.batch import BatchHeader, visible_batches
from logflume.log.errors import CorruptLog
from logflume.log.storage import LogSlice, PartitionLog

from .in_flight import Acquired, Span

MAX_BATCHES = 4_000
"""Most batches of one read; what is behind them comes with the next."""


@dataclass(frozen=True, slots=True)
class LogBatches:
    """A run of whole batches of one segment file."""

    spans: tuple[Span, ...]
    pieces: tuple[LogSlice, ...]

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces)

    @property
    def record_count(self) -> int:
        """Number of offsets that have records for the group."""
        return sum(span.last - span.first + 1 for span in self.spans if not span.is_hidden)

    def slice_of(self, acquired: list[Acquired]) -> LogSlice:
        """Return the bytes from the batch of the first record acquired to that of the last."""
        first, last = acquired[0].first, acquired[-1].last
        inside = [piece for span, piece in zip(self.spans, self.pieces, strict=True) if span.last >= first and span.first <= last]
        return _joined(inside)


def read_batches(
    log: PartitionLog, offset: int, *, end_offset: int, room_end: int, max_records: int, max_bytes: int, is_committed: bool
) -> LogBatches:
    """Read batches from the one that holds `offset` on: below `end_offset`, at least one, else within `max_bytes`.

    Ends early when there are enough records, and with the batch that reaches `room_end`. Raises StorageError, CorruptLog.
    """
    headers: list[BatchHeader] = []
    pieces: list[LogSlice] = []
    size_bytes = 0
    try:
        for header, piece in log.headers(offset, up_to_offset=end_offset):
            size_bytes += piece.size_bytes
            if pieces:
                is_far = header.base_offset - offset >= max_records or header.base_offset >= room_end
                is_behind = piece.file is pieces[0].file and piece.position == pieces[-1].position + pieces[-1].size_bytes
                if size_bytes > max_bytes or is_far or not is_behind or len(pieces) >= MAX_BATCHES:
                    break
            headers.append(header)
            pieces.append(piece)
    except CorruptLog:
        if not pieces:
            raise  # what is good before the damage is still given out
    visible = _visible(log, offset, end_offset, headers, pieces, is_committed=is_committed)
    spans = tuple(Span(each.base_offset, each.last_offset, is_hidden=each.base_offset not in visible) for each in headers)
    return LogBatches(spans, tuple(pieces))


def _visible(
    log: PartitionLog, offset: int, end_offset: int, headers: list[BatchHeader], pieces: list[LogSlice], *, is_committed: bool
) -> set[int]:
    """Return the base offsets of the batches that have records for the group."""
    found = log.aborted_transactions(offset, end_offset) if is_committed and pieces else []
    aborted = [(each.producer_id, each.first_offset) for each in found]
    data = _joined(pieces).read() if aborted else b""
    positions = [(piece.position - pieces[0].position, header) for piece, header in zip(pieces, headers, strict=True)]
    return {header.base_offset for _, header in visible_batches(data, positions, aborted)}


def _joined(pieces: list[LogSlice]) -> LogSlice:
    first, last = pieces[0], pieces[-1]
    return LogSlice(first.file, first.position, last.position + last.size_bytes - first.position, first.first_offset)
