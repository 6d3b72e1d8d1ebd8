"""The records of one share partition that are on their way through a group (KIP-932): a state machine without clock or disk.

Each offset is available, acquired by one member under a lock, acknowledged, or archived (rejected, delivered too often, hidden by
an aborted transaction, or not there at all). Everything below `start_offset` is done with; nothing from `next_offset` on
has been given out.

What a member says is applied at once and is pending until it is on disk: nobody may acquire such a record, and the start does not
move over it. `commit` and `roll_back` end that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from logflume.log.protocol.errors import ErrorCode

from .runs import DeliveryState, Run, Runs

Range = tuple[int, int]
"""First and last offset, both included."""

MIN_THROTTLED_DELIVERIES = 2


class AckType(IntEnum):
    """What a member says of a record."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """What a group allows: deliveries per record, records in flight, how long a lock is held, whether it can be renewed."""

    delivery_count: int = 5
    record_locks: int = 2000
    lock_ms: int = 30_000
    may_renew: bool = True

    @property
    def throttled_deliveries(self) -> int:
        """From so many deliveries on a record is suspect and goes out in ever smaller company."""
        return max(MIN_THROTTLED_DELIVERIES, -(-self.delivery_count // 2))


@dataclass(frozen=True, slots=True)
class Want:
    """What a member asks for. `is_strict`: never more than `max_records`; else whole log batches, so it may be more.

    `batch_size`: about how many records one entry of the answer holds.
    """

    member_id: str
    max_records: int
    batch_size: int = 500
    is_strict: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """A batch of the log. `is_hidden`: it has no record for the group (a marker, or part of an aborted transaction)."""

    first: int
    last: int
    is_hidden: bool = False


@dataclass(frozen=True, slots=True)
class Acquired:
    """Records given to a member; for how many times each has now been delivered."""

    first: int
    last: int
    delivery_count: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Ack:
    """Acknowledgement of `first` to `last`: one type for all, or one for each offset."""

    first: int
    last: int
    types: tuple[AckType, ...]

    def parts(self) -> Iterator[tuple[int, int, AckType]]:
        """Yield (first, last, type) for each stretch of one type."""
        if len(self.types) == 1:
            yield self.first, self.last, self.types[0]
            return
        begin = 0
        for index in range(1, len(self.types) + 1):
            if index == len(self.types) or self.types[index] is not self.types[begin]:
                yield self.first + begin, self.first + index - 1, self.types[begin]
                begin = index


class AckRefused(Exception):
    """An acknowledgement that does not fit the state of its records; nothing was changed."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


class InFlight:
    """See the module. Invariant: the first run, if any, is neither terminal nor hidden unless it is pending."""

    __slots__ = ("_runs",)

    def __init__(self, start_offset: int, batches: Iterable[Run] = ()) -> None:
        """`batches`: what is known of offsets from `start_offset` on, in order; what lies between is available."""
        self._runs = Runs(start_offset)
        for batch in batches:
            if batch.first > self._runs.end:
                self._runs.append(Run(self._runs.end, batch.first - 1))
            self._runs.append(batch)
        self._advance()

    @property
    def start_offset(self) -> int:
        return self._runs.start

    @property
    def next_offset(self) -> int:
        """The first offset that was never given out."""
        return self._runs.end

    @property
    def fetch_offset(self) -> int:
        """Where to read for the next acquisition: the first available record, else `next_offset`."""
        return next((run.first for run in self._runs if run.is_available), self.next_offset)

    @property
    def complete_count(self) -> int:
        """How many records from the start offset on are done with."""
        return sum(run.size for run in self._runs if run.is_done)

    @property
    def next_deadline_ms(self) -> int | None:
        """When the first lock runs out."""
        return min((run.deadline_ms for run in self._runs if run.is_locked), default=None)

    def runs(self) -> list[Run]:
        """Return what is known, in order."""
        return list(self._runs)

    def has_room(self, limits: Limits) -> bool:
        """Whether anything could be acquired if the log has it."""
        return self.next_offset - self.start_offset < limits.record_locks or self.fetch_offset < self.next_offset

    # -- acquiring

    def acquire(self, want: Want, fetch_offset: int, spans: Sequence[Span], limits: Limits, *, now_ms: int) -> list[Acquired]:
        """Give a member what is available in log batches read from `fetch_offset` on.

        Offsets between the batches are not in the log any more and count as done with. Records that were delivered often are
        given in small numbers, in the end alone, so that one that nobody can process does not drag others along.
        """
        found: list[Acquired] = []
        room_end = max(self.next_offset, self.start_offset + limits.record_locks)
        for span in _pieces(fetch_offset, spans, room_end):
            if span.is_hidden:
                self._cover(span.last)
                self._runs.change(span.first, span.last, _archived_if_available)
                continue
            left = want.max_records - sum(each.size for each in found)
            if left <= 0 or not self._acquire_in(span, want, left, limits, now_ms, found):
                break
        self._advance()
        return found

    def _acquire_in(self, span: Span, want: Want, left: int, limits: Limits, now_ms: int, found: list[Acquired]) -> bool:
        """Acquire in one log batch; return whether to go on with the next."""
        last = span.last
        if span.last >= self.next_offset:
            fresh_first = max(span.first, self.next_offset)
            known = sum(_overlap(run, span) for run in self._runs.between(span.first, fresh_first - 1) if run.is_available)
            last = min(span.last, fresh_first + left - known - 1) if want.is_strict else span.last
            self._cover(max(last, fresh_first - 1))
        for run in self._runs.between(span.first, last):
            if not run.is_available:
                continue
            first, end = max(run.first, span.first), min(run.last, last)
            if run.delivery_count >= limits.delivery_count:
                self._runs.change(first, end, _archived_if_available)
                continue
            is_suspect = run.delivery_count >= limits.throttled_deliveries
            if is_suspect:
                if found:
                    return False
                end = min(end, first + _company(run, limits) - 1)
            if want.is_strict:
                end = min(end, first + left - 1)
            self._lock(first, end, want.member_id, now_ms + limits.lock_ms)
            left -= end - first + 1
            _extend(found, Acquired(first, end, run.delivery_count + 1), want)
            if is_suspect or (want.is_strict and left <= 0):
                return False
        return True

    def _cover(self, last: int) -> None:
        """Take offsets up to `last` in, as available."""
        if last >= self.next_offset:
            self._runs.append(Run(self.next_offset, last))

    def _lock(self, first: int, last: int, member_id: str, deadline_ms: int) -> None:
        self._runs.change(
            first,
            last,
            lambda run: Run(run.first, run.last, DeliveryState.ACQUIRED, run.delivery_count + 1, member_id, deadline_ms),
        )

    # -- what members say

    def acknowledge(self, member_id: str, acks: Sequence[Ack], limits: Limits, *, now_ms: int) -> list[Range]:
        """Apply acknowledgements, all or none; return the ranges that are pending now. Raises AckRefused."""
        previous_last = -1
        for ack in acks:
            if ack.first <= previous_last:
                raise AckRefused(ErrorCode.INVALID_RECORD_STATE, f"Offset {ack.first} is acknowledged twice in one request.")
            previous_last = ack.last
            self._check(member_id, ack, limits)
        pending: list[Range] = []
        for first, last, ack_type in (part for ack in acks for part in ack.parts()):
            if last < self.start_offset:
                continue
            if ack_type is AckType.RENEW:
                self._runs.change(first, last, lambda run: replace(run, deadline_ms=now_ms + limits.lock_ms))
                continue
            self._runs.change(first, last, lambda run, ack_type=ack_type: _settled(run, ack_type, limits))  # type: ignore[misc]
            pending.append((first, last))
        return pending

    def _check(self, member_id: str, ack: Ack, limits: Limits) -> None:
        if ack.last < self.start_offset:
            return
        if ack.last >= self.next_offset:
            nothing = self.next_offset == self.start_offset
            error = ErrorCode.INVALID_RECORD_STATE if nothing else ErrorCode.INVALID_REQUEST
            raise AckRefused(error, f"Offsets {ack.first} to {ack.last}: the last one acquired is {self.next_offset - 1}.")
        for run in self._runs.between(ack.first, ack.last):
            if not run.is_locked:
                raise AckRefused(ErrorCode.INVALID_RECORD_STATE, f"Offset {max(run.first, ack.first)} is not acquired.")
            if run.member_id != member_id:
                raise AckRefused(
                    ErrorCode.INVALID_RECORD_STATE, f"Offset {max(run.first, ack.first)} is acquired by another member."
                )
        if AckType.RENEW in ack.types and not limits.may_renew:
            raise AckRefused(ErrorCode.INVALID_RECORD_STATE, "Renewing acquisition locks is not enabled for the group.")

    def release(self, member_id: str, limits: Limits) -> list[Range]:
        """Give back all that a member holds; return the ranges that are pending now."""
        return self._runs.change_all(
            lambda run: run.is_locked and run.member_id == member_id, lambda run: _settled(run, AckType.RELEASE, limits)
        )

    def commit(self, pending: Iterable[Range]) -> None:
        """Hear that pending ranges are on disk."""
        for first, last in pending:
            self._runs.change(first, last, _unlocked_if_pending)
        self._advance()

    def roll_back(self, pending: Iterable[Range]) -> None:
        """Hear that pending ranges could not be written: their holders have them again, as long as their locks last."""
        for first, last in pending:
            self._runs.change(first, last, _locked_if_pending)

    # -- time and retention

    def expire(self, limits: Limits, *, now_ms: int) -> bool:
        """Take back what was locked too long; return whether there was any."""
        expired = self._runs.change_all(
            lambda run: run.is_locked and run.deadline_ms <= now_ms,
            lambda run: _unlocked_if_pending(_settled(run, AckType.RELEASE, limits)),
        )
        if expired:
            self._advance()
        return bool(expired)

    def move_start(self, log_start_offset: int) -> None:
        """Forget what is no longer in the log. Acknowledgements of it will be taken without effect."""
        self._runs.drop_before(log_start_offset)
        self._advance()

    def to_store(self) -> tuple[int, list[Run]]:
        """Return the start offset and the runs that a restart has to know, pending ones as if they were on disk.

        A lock does not survive, and the delivery under way does not count, as the member may never have seen it.
        """
        start, kept = self.start_offset, []
        for run in self._runs:
            if run.is_done and run.first == start:
                start = run.last + 1
                continue
            count = run.delivery_count - 1 if run.is_locked else run.delivery_count
            state = DeliveryState.AVAILABLE if run.is_locked else run.state
            if run.is_done or count > 0:
                kept.append(Run(run.first, run.last, state, count))
        return start, kept

    def _advance(self) -> None:
        """Move the start over what is done with."""
        start = self.start_offset
        for run in self._runs:
            if run.is_pending or not run.is_done:
                break
            start = run.last + 1
        self._runs.drop_before(start)


def _pieces(fetch_offset: int, spans: Sequence[Span], room_end: int) -> Iterator[Span]:
    """Yield the batches from `fetch_offset` to `room_end`, with what is missing between them as hidden."""
    position = fetch_offset
    for span in spans:
        if position >= room_end:
            return
        if span.first > position:
            yield Span(position, min(span.first, room_end) - 1, is_hidden=True)
        first, last = max(span.first, position), min(span.last, room_end - 1)
        if first > last:
            return
        yield Span(first, last, span.is_hidden)
        position = last + 1


def _overlap(run: Run, span: Span) -> int:
    return min(run.last, span.last) - max(run.first, span.first) + 1


def _company(run: Run, limits: Limits) -> int:
    """Return with how many others of its run a suspect record may go: half with each delivery, alone at its last."""
    if limits.delivery_count > MIN_THROTTLED_DELIVERIES and run.delivery_count >= limits.delivery_count - 1:
        return 1
    return max(1, run.size >> (run.delivery_count - limits.throttled_deliveries + 1))


def _extend(found: list[Acquired], more: Acquired, want: Want) -> None:
    """Add an entry, joined with the last one where they fit and that one is not full."""
    if found:
        last = found[-1]
        is_full = not want.is_strict and last.size >= want.batch_size
        if last.last + 1 == more.first and last.delivery_count == more.delivery_count and not is_full:
            found[-1] = Acquired(last.first, more.last, more.delivery_count)
            return
    found.append(more)


def _settled(run: Run, ack_type: AckType, limits: Limits) -> Run:
    """Return a locked run as its holder wants it, pending."""
    if ack_type is AckType.ACCEPT:
        state = DeliveryState.ACKNOWLEDGED
    elif ack_type is AckType.RELEASE and run.delivery_count < limits.delivery_count:
        state = DeliveryState.AVAILABLE
    else:
        state = DeliveryState.ARCHIVED
    return replace(run, state=state, is_pending=True)


def _archived_if_available(run: Run) -> Run:
    return replace(run, state=DeliveryState.ARCHIVED) if run.is_available else run


def _unlocked_if_pending(run: Run) -> Run:
    return Run(run.first, run.last, run.state, run.delivery_count) if run.is_pending else run


def _locked_if_pending(run: Run) -> Run:
    return replace(run, state=DeliveryState.ACQUIRED, is_pending=False) if run.is_pending else run
