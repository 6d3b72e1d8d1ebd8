"""One share partition: its state machine over the journal, the timer of its locks, and who waits for it.

What is told to a member is on disk. An acquisition is not written: after a crash the records are available again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from logflume.log.broker.ports import Clock, Timers, Waiter
from logflume.log.broker.replies import Reply
from logflume.log.broker.turns.deadline import Deadline
from logflume.log.protocol.errors import ErrorCode

from .in_flight import Ack, AckRefused, Acquired, InFlight, Limits, Range, Span, Want
from .state_records import ShareKey

AckResult = tuple[ErrorCode, str | None]
ACKNOWLEDGED: AckResult = (ErrorCode.NONE, None)


class SharePartition:
    """See the module. `is_ready`: its beginning is on disk, so that records may be given out."""

    def __init__(
        self,
        key: ShareKey,
        state: InFlight,
        clock: Clock,
        timers: Timers,
        limits: Callable[[], Limits],
        write: Callable[[SharePartition], Reply],
    ) -> None:
        """`write` appends the state as it is now; its reply is the offset in the journal, negative for a failure."""
        self.key, self.state, self.is_ready, self.is_gone = key, state, True, False
        self.waiters: dict[Waiter, None] = {}
        self._clock, self._limits, self._write = clock, limits, write
        self._locks = Deadline(clock, timers, self._on_expiry)

    @property
    def fetch_offset(self) -> int:
        return self.state.fetch_offset

    @property
    def room_end(self) -> int:
        """The offset that nothing is given out from on, for now."""
        return max(self.state.next_offset, self.state.start_offset + self._limits().record_locks)

    def has_room(self) -> bool:
        """Whether anything can be acquired if the log has it."""
        return self.is_ready and self.state.has_room(self._limits())

    def begin(self, on_failure: Callable[[], None]) -> None:
        """Write the state for the first time; until that is on disk nothing is given out."""
        self.is_ready = False

        def on_written(offset: int) -> None:
            if offset < 0:
                on_failure()
                return
            if not self.is_gone:
                self.is_ready = True
                self.wake()

        self._write(self).then(on_written)

    def acquire(self, want: Want, fetch_offset: int, spans: Sequence[Span]) -> list[Acquired]:
        """Give a member records from log batches read at `fetch_offset`."""
        found = self.state.acquire(want, fetch_offset, spans, self._limits(), now_ms=self._clock.monotonic_ms())
        self._set_timer()
        return found

    def acknowledge(self, member_id: str, acks: Sequence[Ack]) -> Reply:
        """Apply what a member says, all or nothing; the reply is an AckResult once it is on disk."""
        reply = Reply()
        try:
            pending = self.state.acknowledge(member_id, acks, self._limits(), now_ms=self._clock.monotonic_ms())
        except AckRefused as refused:
            reply.set((refused.error, str(refused)))
            return reply
        self._set_timer()
        self._store(pending).then(reply.set)
        return reply

    def release(self, member_id: str) -> Reply:
        """Give back all that a member holds; the reply is an AckResult."""
        return self._store(self.state.release(member_id, self._limits()))

    def move_start(self, log_start_offset: int) -> None:
        """Follow the log's start; it is written with the next change."""
        if log_start_offset > self.state.start_offset:
            self.state.move_start(log_start_offset)

    def wake(self) -> None:
        for waiter in list(self.waiters):
            waiter.wake()

    def close(self) -> None:
        """Stop the timer for good; nothing is given out any more. Whoever waits is not woken."""
        self.is_ready, self.is_gone = False, True
        self._locks.cancel()

    def _store(self, pending: list[Range]) -> Reply:
        reply = Reply()
        if not pending:
            reply.set(ACKNOWLEDGED)
            return reply

        def on_written(offset: int) -> None:
            if offset < 0:
                self.state.roll_back(pending)
                self._set_timer()
                reply.set((ErrorCode.COORDINATOR_NOT_AVAILABLE, "The state could not be written; try again."))
                return
            self.state.commit(pending)
            reply.set(ACKNOWLEDGED)
            self.wake()

        self._write(self).then(on_written)
        return reply

    def _on_expiry(self) -> None:
        if self.state.expire(self._limits(), now_ms=self._clock.monotonic_ms()):
            # Not waited for: what a crash would lose is that a lock ran out, and no lock outlives a crash.
            self._write(self)
        self._set_timer()
        self.wake()

    def _set_timer(self) -> None:
        deadline_ms = self.state.next_deadline_ms
        if deadline_ms is None or self.is_gone:
            self._locks.cancel()
        else:
            self._locks.set_after(max(deadline_ms - self._clock.monotonic_ms(), 0))
