"""How far a log is on disk, and how far readers may see."""

from __future__ import annotations

from .segment import Segment
from .slices import FlushTicket


class Durability:
    """What of one log is durable, and which ended transactions its readers may not see yet.

    Attributes:
        offset: end of what is on disk (flush "fsync") or with the operating system (flush "os").
        position: where that is in the active segment, in bytes.
    """

    def __init__(self, active: Segment) -> None:
        """Everything up to the end of the active segment is on disk."""
        self.offset = active.next_offset
        self.position = active.size_bytes
        self._ended: list[tuple[int, int]] = []
        """Markers that are not durable: their offsets, and the first ones of what they end."""
        self._held: dict[int, int] = {}
        """Producers whose transaction has ended here and not everywhere yet, and where it began."""
        self._generation = 0
        self._flushes_under_way = 0

    @property
    def is_settled(self) -> bool:
        """Whether no flush is under way, which may still make something durable."""
        return not self._flushes_under_way

    def last_stable_offset(self, first_open: int) -> int:
        """Return the end of what read_committed readers may see; `first_open`: where the first open transaction begins, else
        `offset`."""
        first_unstable = min([*(first for _, first in self._ended), *self._held.values()], default=self.offset)
        return min(first_open, first_unstable, self.offset)

    def hold(self, producer_id: int, first_offset: int) -> None:
        """Keep read_committed readers before a transaction that has ended, until `release`."""
        self._held.setdefault(producer_id, first_offset)

    def release(self, producer_id: int) -> None:
        """Let readers see what `hold` kept from them."""
        self._held.pop(producer_id, None)

    def ended(self, marker_offset: int, first_offset: int) -> None:
        """Take note of a marker that was written, and of where the transaction began that it ends."""
        if marker_offset >= self.offset:
            self._ended.append((marker_offset, first_offset))

    def written(self, active: Segment) -> None:
        """Take what is in the active segment as durable."""
        self.offset, self.position = active.next_offset, active.size_bytes

    def rolled(self) -> None:
        """Take note of a new active segment, which is empty; everything before it is durable."""
        self.position = 0
        self._generation += 1

    def begin_flush(self, active: Segment) -> FlushTicket | None:
        """Return what must be synced for everything appended so far to be durable, None if nothing is dirty."""
        if self.offset >= active.next_offset:
            return None
        self._flushes_under_way += 1
        return FlushTicket(active.file, active.size_bytes, active.next_offset, self._generation)

    def finish_flush(self, ticket: FlushTicket, *, is_done: bool) -> None:
        """Take in the result of a ticket; one of another segment, or of what was cut off since, says nothing any more."""
        self._flushes_under_way -= 1
        if is_done and ticket.generation == self._generation and ticket.end_offset > self.offset:
            self.offset, self.position = ticket.end_offset, ticket.position
            if self._ended:
                self._ended = [each for each in self._ended if each[0] >= self.offset]

    def begin_cut(self) -> None:
        """Make what is under way say nothing any more: the log is about to be cut."""
        self._generation += 1

    def cut(self, end_offset: int, position: int) -> None:
        """Go back to a new end of the log, which is durable; readers are held up by nothing any more."""
        self.offset, self.position = end_offset, position
        self._ended = []
        self._held.clear()
