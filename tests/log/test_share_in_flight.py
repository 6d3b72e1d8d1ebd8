"""The state machine of a share partition: examples, and a model that keeps every offset for itself."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from logflume.log.broker.share.in_flight import Ack, AckRefused, AckType, Acquired, InFlight, Limits, Span, Want
from logflume.log.broker.share.runs import TERMINAL, DeliveryState, Run
from logflume.log.protocol.errors import ErrorCode

LIMITS = Limits(delivery_count=5, record_locks=100, lock_ms=1000)
NOW = 0


def want(member: str = "m", *, records: int = 500, batch: int = 500, strict: bool = False) -> Want:
    return Want(member, records, batch, is_strict=strict)


def acquire(
    state: InFlight, *spans: tuple[int, int] | tuple[int, int, bool], limits: Limits = LIMITS, **options: object
) -> list[tuple[int, int, int]]:
    found = state.acquire(want(**options), state.fetch_offset, [Span(*each) for each in spans], limits, now_ms=NOW)  # type: ignore[arg-type]
    return [(each.first, each.last, each.delivery_count) for each in found]


def ack(state: InFlight, first: int, last: int, *types: AckType, member: str = "m", limits: Limits = LIMITS) -> None:
    state.commit(state.acknowledge(member, [Ack(first, last, types)], limits, now_ms=NOW))


def test_accepting_moves_the_start_and_releasing_delivers_again() -> None:
    state = InFlight(10)
    assert acquire(state, (10, 19)) == [(10, 19, 1)]
    assert (state.start_offset, state.next_offset, state.fetch_offset) == (10, 20, 20)
    ack(state, 10, 14, AckType.ACCEPT)
    assert state.start_offset == 15
    ack(state, 15, 16, AckType.RELEASE, AckType.ACCEPT)
    assert (state.start_offset, state.fetch_offset) == (15, 15)
    assert acquire(state, (10, 19)) == [(15, 15, 2)]
    ack(state, 15, 15, AckType.REJECT)
    assert state.start_offset == 17


def test_a_soft_limit_keeps_batches_whole_and_a_strict_one_does_not() -> None:
    assert acquire(InFlight(0), (0, 9), (10, 19), (20, 29), records=15) == [(0, 19, 1)]
    strict = InFlight(0)
    assert acquire(strict, (0, 9), (10, 19), records=15, strict=True) == [(0, 14, 1)]
    assert strict.next_offset == 15
    assert acquire(strict, (10, 19), records=2, strict=True) == [(15, 16, 1)]


def test_entries_hold_about_a_batch_size_of_records() -> None:
    spans = [(n * 10, n * 10 + 9) for n in range(6)]
    assert acquire(InFlight(0), *spans, batch=20) == [(0, 19, 1), (20, 39, 1), (40, 59, 1)]


def test_no_more_than_the_limit_of_locks_is_in_flight_even_if_a_batch_is_bigger() -> None:
    state = InFlight(0)
    assert acquire(state, (0, 199)) == [(0, 99, 1)]
    assert not state.has_room(LIMITS)
    ack(state, 50, 59, AckType.RELEASE)
    assert state.has_room(LIMITS)
    assert acquire(state, (0, 199)) == [(50, 59, 2)]
    ack(state, 0, 9, AckType.ACCEPT)
    assert acquire(state, (0, 199)) == [(100, 109, 1)]


def test_what_is_hidden_or_missing_counts_as_done_with() -> None:
    state = InFlight(0)
    assert acquire(state, (2, 4), (5, 9, True), (12, 14)) == [(2, 4, 1), (12, 14, 1)]
    assert state.start_offset == 2
    ack(state, 2, 4, AckType.ACCEPT)
    assert state.start_offset == 12
    assert acquire(state, (15, 2000, True)) == []
    assert state.next_offset == 112
    ack(state, 12, 14, AckType.ACCEPT)
    assert state.start_offset == 112


def test_a_record_delivered_too_often_is_archived() -> None:
    state, limits = InFlight(0), Limits(delivery_count=2)
    for count in (1, 2):
        assert acquire(state, (0, 0), limits=limits) == [(0, 0, count)]
        ack(state, 0, 0, AckType.RELEASE, limits=limits)
    assert (state.start_offset, state.next_offset) == (1, 1)


def test_suspect_records_go_out_in_ever_smaller_company() -> None:
    state, sizes = InFlight(0), []
    for _ in range(5):
        (entry,) = acquire(state, (0, 63))
        sizes.append(entry[1] - entry[0] + 1)
        state.commit(state.release("m", LIMITS))
    assert sizes == [64, 64, 64, 32, 1]


def test_a_lock_runs_out_and_can_be_renewed() -> None:
    state = InFlight(0)
    acquire(state, (0, 9))
    state.acknowledge("m", [Ack(0, 4, (AckType.RENEW,))], LIMITS, now_ms=500)
    assert state.next_deadline_ms == 1000
    assert state.expire(LIMITS, now_ms=1000)
    assert (state.fetch_offset, state.next_deadline_ms) == (5, 1500)
    with pytest.raises(AckRefused, match="not enabled"):
        state.acknowledge("m", [Ack(0, 4, (AckType.RENEW,))], Limits(may_renew=False), now_ms=600)


@pytest.mark.parametrize(
    ("first", "last", "member", "error"),
    [
        (0, 9, "other", ErrorCode.INVALID_RECORD_STATE),
        (0, 10, "m", ErrorCode.INVALID_REQUEST),
        (50, 60, "m", ErrorCode.INVALID_REQUEST),
        (4, 6, "m", ErrorCode.INVALID_RECORD_STATE),
    ],
)
def test_an_acknowledgement_that_does_not_fit_changes_nothing(first: int, last: int, member: str, error: ErrorCode) -> None:
    state = InFlight(0)
    acquire(state, (0, 9))
    ack(state, 5, 5, AckType.RELEASE)
    before = state.runs()
    with pytest.raises(AckRefused) as refused:
        state.acknowledge(
            member, [Ack(1, 2, (AckType.ACCEPT,))] * (first > 2) + [Ack(first, last, (AckType.ACCEPT,))], LIMITS, now_ms=0
        )
    assert refused.value.error is error
    assert state.runs() == before


def test_pending_records_are_nobodys_until_they_are_on_disk() -> None:
    state = InFlight(0)
    acquire(state, (0, 9))
    pending = state.acknowledge("m", [Ack(0, 4, (AckType.RELEASE,))], LIMITS, now_ms=0)
    assert acquire(state, (0, 9)) == []
    with pytest.raises(AckRefused):
        state.acknowledge("m", [Ack(0, 4, (AckType.ACCEPT,))], LIMITS, now_ms=0)
    state.roll_back(pending)
    ack(state, 0, 4, AckType.ACCEPT)
    assert state.start_offset == 5


def test_what_the_log_dropped_is_forgotten_and_late_acknowledgements_of_it_have_no_effect() -> None:
    state = InFlight(0)
    acquire(state, (0, 19))
    state.move_start(10)
    assert state.start_offset == 10
    ack(state, 0, 12, AckType.ACCEPT)
    assert state.start_offset == 13
    state.move_start(40)
    assert (state.start_offset, state.next_offset) == (40, 40)
    ack(state, 13, 19, AckType.ACCEPT)


def test_a_restart_knows_what_was_said_and_forgets_locks() -> None:
    state = InFlight(0)
    acquire(state, (0, 19))
    ack(state, 5, 6, AckType.ACCEPT)
    ack(state, 8, 8, AckType.RELEASE)
    assert acquire(state, (0, 19)) == [(8, 8, 2)]
    start, kept = state.to_store()
    assert (start, kept) == (0, [Run(5, 6, DeliveryState.ACKNOWLEDGED, 1), Run(8, 8, DeliveryState.AVAILABLE, 1)])
    again = InFlight(start, kept)
    assert acquire(again, (0, 19)) == [(0, 4, 1), (7, 7, 1), (8, 8, 2), (9, 19, 1)]


@dataclass
class Offset:
    state: DeliveryState = DeliveryState.AVAILABLE
    count: int = 0
    member: str = ""
    deadline: int = 0
    pending: bool = False


@dataclass
class Model:
    """Each offset for itself; `start` moves over what is done with."""

    start: int = 0
    offsets: dict[int, Offset] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return max(self.offsets, default=self.start - 1) + 1

    def advance(self, *, to: int = 0) -> None:
        end = self.end
        while self.start < to or (self.start < end and self._is_done(self.offsets[self.start])):
            self.offsets.pop(self.start, None)
            self.start += 1

    def _is_done(self, offset: Offset) -> bool:
        return offset.state in TERMINAL and not offset.pending

    def settle(self, offset: Offset, ack_type: AckType, limits: Limits) -> None:
        offset.pending = True
        if ack_type is AckType.ACCEPT:
            offset.state = DeliveryState.ACKNOWLEDGED
        elif ack_type is AckType.RELEASE and offset.count < limits.delivery_count:
            offset.state = DeliveryState.AVAILABLE
        else:
            offset.state = DeliveryState.ARCHIVED


MEMBERS = st.sampled_from(["a", "b"])
SMALL = Limits(delivery_count=3, record_locks=12, lock_ms=10)


class InFlightMachine(RuleBasedStateMachine):
    """A log of 60 offsets in batches, some hidden, with holes; two members; writes that end later, well or badly."""

    @initialize(data=st.data())
    def make_log(self, data: st.DataObject) -> None:
        self.state, self.model, self.now = InFlight(0), Model(), 0
        self.writes: list[list[tuple[int, int]]] = []
        self.log: list[Span] = []
        position = 0
        while position < 60:
            position += data.draw(st.sampled_from([0, 0, 0, 2]), label="hole")
            size = data.draw(st.integers(1, 7), label="batch")
            self.log.append(Span(position, position + size - 1, is_hidden=data.draw(st.integers(0, 4)) == 0))
            position += size

    @rule(member=MEMBERS, records=st.integers(1, 8), strict=st.booleans(), batches=st.integers(1, 4))
    def acquire(self, member: str, records: int, strict: bool, batches: int) -> None:
        at = self.state.fetch_offset
        spans = [span for span in self.log if span.last >= at][:batches]
        found = self.state.acquire(Want(member, records, 4, is_strict=strict), at, spans, SMALL, now_ms=self.now)
        self._take_in(found, member)
        hidden = {n for span in spans if span.is_hidden for n in range(span.first, span.last + 1)}
        assert not hidden & {n for each in found for n in range(each.first, each.last + 1)}
        total = sum(each.size for each in found)
        if strict:
            assert total <= records
        elif found:
            last_span = next(span for span in spans if span.first <= found[-1].last <= span.last)
            assert total - sum(_within(each, last_span) for each in found) < records

    def _take_in(self, found: list[Acquired], member: str) -> None:
        """Follow an acquisition in the model: what was given must have been free; what else is gone must be hidden or missing."""
        given = {n: each.delivery_count for each in found for n in range(each.first, each.last + 1)}
        visible = {n for span in self.log if not span.is_hidden for n in range(span.first, span.last + 1)}
        for n in range(self.model.end, self.state.next_offset):
            self.model.offsets[n] = Offset()
        actual = {n: run for run in self.state.runs() for n in range(run.first, run.last + 1)}
        for n, offset in self.model.offsets.items():
            if n in given:
                assert (offset.state, offset.pending) == (DeliveryState.AVAILABLE, False)
                assert given[n] == offset.count + 1 <= SMALL.delivery_count
                offset.state, offset.count = DeliveryState.ACQUIRED, given[n]
                offset.member, offset.deadline = member, self.now + SMALL.lock_ms
            elif offset.state is DeliveryState.AVAILABLE and not offset.pending:
                is_gone = n < self.state.start_offset or actual[n].state is DeliveryState.ARCHIVED
                if is_gone:
                    assert n not in visible
                    offset.state = DeliveryState.ARCHIVED
        self.model.advance()

    @rule(
        member=MEMBERS,
        first=st.integers(0, 70),
        types=st.lists(st.sampled_from(list(AckType)), min_size=1, max_size=6),
        size=st.integers(1, 6),
    )
    def acknowledge(self, member: str, first: int, types: list[AckType], size: int) -> None:
        last = first + (len(types) if len(types) > 1 else size) - 1
        of = {n: types[n - first] if len(types) > 1 else types[0] for n in range(first, last + 1)}
        touched = {n: self.model.offsets.get(n) for n in of if n >= self.model.start}
        is_fine = all(o is not None and o.state is DeliveryState.ACQUIRED and o.member == member for o in touched.values())
        try:
            pending = self.state.acknowledge(member, [Ack(first, last, tuple(types))], SMALL, now_ms=self.now)
        except AckRefused:
            assert not is_fine
            return
        assert is_fine
        for n, offset in touched.items():
            assert offset is not None
            if of[n] is AckType.RENEW:
                offset.deadline = self.now + SMALL.lock_ms
            else:
                self.model.settle(offset, of[n], SMALL)
        self.writes.append(pending)

    @rule(member=MEMBERS)
    def release(self, member: str) -> None:
        for offset in self.model.offsets.values():
            if offset.state is DeliveryState.ACQUIRED and offset.member == member:
                self.model.settle(offset, AckType.RELEASE, SMALL)
        self.writes.append(self.state.release(member, SMALL))

    @rule(is_written=st.booleans())
    def end_write(self, is_written: bool) -> None:
        if not self.writes:
            return
        pending = self.writes.pop(0)
        (self.state.commit if is_written else self.state.roll_back)(pending)
        for n in (n for first, last in pending for n in range(first, last + 1)):
            offset = self.model.offsets.get(n)
            if offset is not None:
                offset.pending = False
                if not is_written:
                    offset.state = DeliveryState.ACQUIRED
        self.model.advance()

    @rule(ms=st.integers(1, 12))
    def let_time_pass(self, ms: int) -> None:
        self.now += ms
        self.state.expire(SMALL, now_ms=self.now)
        for offset in self.model.offsets.values():
            if offset.state is DeliveryState.ACQUIRED and offset.deadline <= self.now:
                self.model.settle(offset, AckType.RELEASE, SMALL)
                offset.pending = False
        self.model.advance()

    @rule(offset=st.integers(0, 70))
    def drop_records(self, offset: int) -> None:
        self.state.move_start(offset)
        self.model.advance(to=offset)

    @rule()
    def restart(self) -> None:
        """What is pending is on disk: the journal had it."""
        start, kept = self.state.to_store()
        self.state, self.writes = InFlight(start, kept), []
        for offset in self.model.offsets.values():
            offset.pending = False
            if offset.state is DeliveryState.ACQUIRED:
                offset.state, offset.count = DeliveryState.AVAILABLE, offset.count - 1
        self.model.advance()
        while self.model.offsets and self.model.offsets[self.model.end - 1] == _untouched(self.model.offsets[self.model.end - 1]):
            del self.model.offsets[self.model.end - 1]

    @invariant()
    def states_agree(self) -> None:
        if not hasattr(self, "state"):
            return
        assert (self.state.start_offset, self.state.next_offset) == (self.model.start, self.model.end)
        assert self.state.next_offset - self.state.start_offset <= SMALL.record_locks
        for run in self.state.runs():
            for n in range(run.first, run.last + 1):
                offset = self.model.offsets[n]
                assert (run.state, run.delivery_count, run.is_pending) == (offset.state, offset.count, offset.pending), n
                if run.is_locked:
                    assert (run.member_id, run.deadline_ms) == (offset.member, offset.deadline)
        runs = self.state.runs()
        assert not any(after.continues(before) for before, after in itertools.pairwise(runs))


def _within(each: Acquired, span: Span) -> int:
    return max(0, min(each.last, span.last) - max(each.first, span.first) + 1)


def _untouched(offset: Offset) -> Offset:
    return Offset(member=offset.member, deadline=offset.deadline)


TestInFlightModel = InFlightMachine.TestCase
TestInFlightModel.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
