"""Transactions against a plain model under Hypothesis: two producers that fence each other, requests that come late or twice,
timeouts, a disk that lags behind, and crashes.

The model is what a reader sees: per partition a list of data and markers, where the first marker of a producer id after a
record decides it. Whatever happens, all records of a transaction share one fate, it is the one that was acknowledged,
and once everybody rests no record is left undecided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from logflume.log.broker.replies import Reply
from logflume.log.broker.testing.simulated import SimulatedJournal
from logflume.log.protocol.errors import ErrorCode

from ._transactions_harness import Data, Marker, Partitions, TxnBroker

PARTITIONS = [("t", 0), ("t", 1), ("u", 0)]
TIMEOUT_MS = 5_000


@dataclass(eq=False)
class LoggedPartitions(Partitions):
    """Partitions that refuse markers of older epochs as the storage does."""

    def flush(self, *, count: int | None = None) -> None:
        before = len(self.markers)
        while self.in_flight and (count is None or len(self.markers) - before < count):
            marker = self.in_flight[0][0]
            assert marker.epoch >= (self.producer_epoch(*marker.where, marker.producer_id) or 0), "a marker of an older epoch"
            super().flush(count=1)


@dataclass(eq=False)
class Client:
    """A producer. `transaction`: serial number of the one it is in, None outside of one; `producing`: requests on their way."""

    is_new: bool
    producer: tuple[int, int] | None = None
    transaction: int | None = None
    is_waiting: bool = False
    producing: int = 0


class TransactionsModel(RuleBasedStateMachine):
    """Two producers of one transactional id: one of transaction version 2, one of version 1 or 2."""

    is_second_new = True

    def __init__(self) -> None:
        super().__init__()
        self.broker = TxnBroker(journal=SimulatedJournal(partition_count=1, is_manual=True))
        self.partitions = LoggedPartitions(is_manual=True)
        self.broker.partitions = self.partitions
        self.broker.crash()
        self.clients = [Client(True), Client(self.is_second_new)]
        self.serial = 0
        self.fates: dict[int, bool] = {}
        self.committing: set[int] = set()
        self.sent_ends: list[tuple[tuple[int, int], bool]] = []
        self.incarnation = 0

    def _settle(self, data: st.DataObject) -> None:
        """Let the disk be as quick as it mostly is."""
        if data.draw(st.integers(0, 3)):
            self.broker.journal.flush()
            if data.draw(st.integers(0, 3)):
                self.partitions.flush()
                self.broker.journal.flush()

    # -- requests

    def _ask(self, client: Client, answer: Any, then: Callable[[Any], None]) -> None:
        """Handle an answer now or when it comes; what a crashed broker still says is not heard."""
        incarnation = self.incarnation
        client.is_waiting = True

        def on_answer(value: Any) -> None:
            if incarnation == self.incarnation:
                client.is_waiting = False
                then(value)

        if isinstance(answer, Reply):
            answer.then(on_answer)
        else:
            on_answer(answer)

    def _idle(self, data: st.DataObject, *, may_produce: bool = False) -> Client | None:
        idle = [c for c in self.clients if not c.is_waiting and (may_produce or not c.producing)]
        return data.draw(st.sampled_from(idle)) if idle else None

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.start(data, names_itself=False)

    @rule(data=st.data(), names_itself=st.booleans())
    def start(self, data: st.DataObject, names_itself: bool) -> None:
        client = self._idle(data)
        if client is not None and (client.producer is None or data.draw(st.integers(0, 3)) == 1):
            self._start(client, names_itself=names_itself)
            self._settle(data)

    def _start(self, client: Client, *, names_itself: bool) -> None:
        before = client.producer if names_itself and client.producer else (-1, -1)
        answer = self.broker.txns.init_producer("tx", TIMEOUT_MS, producer_id=before[0], producer_epoch=before[1])
        client.transaction = None

        def on_granted(grant: Any) -> None:
            if grant.error == ErrorCode.NONE:
                client.producer = (grant.producer_id, grant.producer_epoch)
            elif grant.error != ErrorCode.CONCURRENT_TRANSACTIONS:
                client.producer = None

        self._ask(client, answer, on_granted)

    @rule(data=st.data(), where=st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=3))
    def produce(self, data: st.DataObject, where: list[tuple[str, int]]) -> None:
        client = self._idle(data, may_produce=True)
        if client is None:
            self.flush_journal(count=1)
            self.flush_markers(count=1)
            return
        for each in where:
            if client.producer is not None:
                self._produce(client, client.producer, each)
        if client.producer is None and not client.is_waiting:
            self._start(client, names_itself=False)
        self._settle(data)

    def _produce(self, client: Client, producer: tuple[int, int], where: tuple[str, int]) -> None:
        if client.transaction is None:
            self.serial += 1
            client.transaction = self.serial
        transaction, incarnation = client.transaction, self.incarnation
        client.producing += 1

        def answered(error: ErrorCode) -> None:
            if incarnation == self.incarnation:
                client.producing -= 1
                if error not in (ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS):
                    client.producer = None

        def append(error: ErrorCode) -> ErrorCode:
            if error == ErrorCode.NONE and incarnation == self.incarnation:
                is_appended = self.partitions.append(where, Data(*producer, transaction))
                return ErrorCode.NONE if is_appended else ErrorCode.INVALID_PRODUCER_EPOCH
            return error

        if client.is_new:
            admission = self.broker.txns.admit("tx", *producer, *where, can_add=True)
            added = admission.added or Reply.of(ErrorCode.NONE)
            if admission.is_first_added:
                added.then(lambda error: answered(append(error)))
                return
            appended = append(admission.error)
            added.then(lambda error: answered(appended or error))
            return

        def on_added(error: ErrorCode) -> None:
            if error == ErrorCode.NONE:
                error = self.broker.txns.admit("tx", *producer, *where, can_add=False).error
            answered(append(error))

        self.broker.txns.add_to_transaction("tx", *producer, [where]).then(on_added)

    @rule(data=st.data(), is_commit=st.booleans())
    def end(self, data: st.DataObject, is_commit: bool) -> None:
        client = self._idle(data)
        if client is None or client.producer is None or client.transaction is None:
            return
        self._end(client, client.producer, client.transaction, is_commit=is_commit)
        self._settle(data)

    def _end(self, client: Client, producer: tuple[int, int], transaction: int, *, is_commit: bool) -> None:
        if is_commit:
            self.committing.add(transaction)
        if client.is_new:
            self.sent_ends.append((producer, is_commit))
        answer = self.broker.txns.end("tx", *producer, is_commit=is_commit, is_bumping=client.is_new)

        def on_ended(grant: Any) -> None:
            if grant.error == ErrorCode.NONE:
                self.fates[transaction] = is_commit
                client.transaction = None
                if client.is_new:
                    client.producer = (grant.producer_id, grant.producer_epoch)
            elif grant.error != ErrorCode.CONCURRENT_TRANSACTIONS:
                client.producer = client.transaction = None

        self._ask(client, answer, on_ended)

    @rule(data=st.data())
    def an_old_end_comes_late(self, data: st.DataObject) -> None:
        if self.sent_ends:
            producer, is_commit = data.draw(st.sampled_from(self.sent_ends))
            self.broker.txns.end("tx", *producer, is_commit=is_commit, is_bumping=True)

    # -- surroundings

    @rule(count=st.integers(1, 3))
    def flush_journal(self, count: int) -> None:
        self.broker.journal.flush(count=count)

    @rule(count=st.integers(1, 3))
    def flush_markers(self, count: int) -> None:
        self.partitions.flush(count=count)

    @rule(delay_ms=st.sampled_from([10, 1_000, 3_000]))
    def wait(self, delay_ms: int) -> None:
        self.broker.time.advance(delay_ms)

    @rule(
        data=st.data(),
        where=st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=3, unique=True),
        ends=st.sampled_from([None, True, True, False]),
        journal=st.integers(0, 2),
        markers=st.integers(0, 3),
    )
    def crash_while_it_is_written(
        self, data: st.DataObject, where: list[tuple[str, int]], ends: bool | None, journal: int, markers: int
    ) -> None:
        """Of what belongs to one request some reaches the disk, and of what the client does next if it was answered."""
        client = self._idle(data)
        if client is None:
            return
        if client.producer is None:
            self._start(client, names_itself=False)
            self.broker.journal.flush()
        for each in where:
            if client.producer is not None:
                self._produce(client, client.producer, each)
        if ends is not None:
            self.broker.journal.flush()
            if client.producer is None or client.transaction is None or client.producing:
                return
            self._end(client, client.producer, client.transaction, is_commit=ends)
        self.broker.journal.flush(count=journal)
        self.partitions.flush(count=markers)
        if ends is not None and not client.is_waiting and client.producer is not None:
            self._produce(client, client.producer, where[0])
        self._crash(kept=0)

    @rule(kept=st.integers(0, 4), happens=st.integers(0, 2))
    def crash(self, kept: int, happens: int) -> None:
        if happens == 1:
            self._crash(kept=kept)

    def _crash(self, *, kept: int) -> None:
        self.incarnation += 1
        self.broker.crash(kept=kept)
        for client in self.clients:
            if client.is_waiting or client.producing:
                # It cannot know what became of its request, and starts over.
                client.producer = client.transaction = None
            client.is_waiting, client.producing = False, 0

    # -- what must hold

    def _fates_seen(self) -> dict[int, set[bool | None]]:
        """Return per transaction what the markers say of its records; None: undecided."""
        seen: dict[int, set[bool | None]] = {}
        for log in list(self.partitions.logs.values()):
            for index, entry in enumerate(log):
                if isinstance(entry, Data):
                    later = (e for e in log[index:] if isinstance(e, Marker) and e.producer_id == entry.producer_id)
                    marker = next(later, None)
                    seen.setdefault(entry.transaction, set()).add(marker.is_commit if marker else None)
        return seen

    @invariant()
    def all_records_of_a_transaction_share_one_fate(self) -> None:
        for transaction, fates in self._fates_seen().items():
            assert not {True, False} <= fates, "a transaction is torn"
            assert True not in fates or transaction in self.committing, "nobody asked for this commit"
            if transaction in self.fates:
                assert fates <= {self.fates[transaction], None}, "not what was acknowledged"

    def teardown(self) -> None:
        """Once everybody rests, everything is decided."""
        for _ in range(12):
            self.broker.journal.flush()
            self.partitions.flush()
            self.broker.time.advance(1_000)
        self.all_records_of_a_transaction_share_one_fate()
        assert all(None not in fates for fates in self._fates_seen().values()), "a transaction hangs"
        assert self.broker.state() in ("none", "Empty", "CompleteCommit", "CompleteAbort")


class MixedTransactionsModel(TransactionsModel):
    """The second producer is of the older generation."""

    is_second_new = False


TestTransactions = TransactionsModel.TestCase
TestTransactions.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestMixedTransactions = MixedTransactionsModel.TestCase
TestMixedTransactions.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)
