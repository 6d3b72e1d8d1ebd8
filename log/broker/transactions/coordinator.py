"""The transaction coordinator: every transactional id of this broker, its producer's epoch, and its journal.

A state machine (architecture, D2). Each id lives in one partition of `__transaction_state`. A change counts once it is on
disk: requests are answered then, and what comes meanwhile hears CONCURRENT_TRANSACTIONS. `Prepare*` on disk is the decision;
its markers are written until all are there, also after a crash. Exception: `Complete*` counts as soon as it is appended;
should a crash lose it, the markers are written again.

Where each end has a new epoch (transaction version 2), what is in the partitions says as much as the journal, so both are
written at the same time, and a crash may leave either:
- records without their addition to the transaction: they are added when the journal is read (`_adopt`);
- markers of a commit without its decision: a partition that has the epoch behind an ongoing transaction holds its marker, for
  an abort is on disk before its markers; the other partitions get theirs (`_finish_begun`);
- records of the next transaction without the completion of the last: markers leave them alone (`TxnPartitions.write_marker`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from logflume.log.broker.partitioner import partition_of
from logflume.log.broker.ports import Admission, Clock, Journal, JournalRecord, OpenInPartition, Timers, TxnPartitions
from logflume.log.broker.replies import Reply
from logflume.log.broker.turns.deadline import Deadline
from logflume.log.errors import DecodeError
from logflume.log.interfaces import NO_TIMEOUT_MS
from logflume.log.internal_topics import TRANSACTIONS_TOPIC
from logflume.log.protocol.errors import ErrorCode

from .config import TransactionConfig
from .end_rules import EndAction, decide_end
from .journal_records import decode_key, decode_value, encode_key, encode_value
from .markers import MarkerWriter
from .metadata import LAST_USABLE_EPOCH, NO_EPOCH, NO_ID, TopicPartition, Txn, TxnState
from .slot import Slot, for_writers, may_resume, refuse_addition, refuse_producer

RETRY_TIMEOUT_AFTER_MS = 50
MAX_ID_CHARS = 1024
"""Transactional ids may be so long; the protocol's 32,767 would cost gigabytes."""
EXPIRED_AT_A_TIME = 250
"""Ids that are looked at for their age in one turn of the loop, each of which may be forgotten by a record of its own."""


@dataclass(frozen=True, slots=True)
class ProducerGrant:
    """An error, or the producer id and epoch to go on with."""

    error: ErrorCode
    producer_id: int = NO_ID
    producer_epoch: int = NO_EPOCH


class TransactionCoordinator:
    """All transactions of one broker; also what Produce and TxnOffsetCommit ask (`TxnAdmission`)."""

    def __init__(
        self,
        config: TransactionConfig,
        clock: Clock,
        timers: Timers,
        journal: Journal,
        partitions: TxnPartitions,
        *,
        new_producer_id: Callable[[], int],
    ) -> None:
        """`new_producer_id` returns an id that is never returned twice, also over crashes; it may raise StorageError."""
        self._config, self._clock, self._timers, self._journal = config, clock, timers, journal
        self._partitions, self._new_producer_id = partitions, new_producer_id
        self._markers = MarkerWriter(config, timers, partitions)
        self._slots: dict[str, Slot] = {}
        self._expiry = Deadline(clock, timers, self._on_expiry)
        self._expiring: list[str] = []
        """Ids that this round has not looked at yet."""
        self._orphans: dict[str, list[OpenInPartition]] = {}
        """Records of the transaction behind the one whose end is being finished, by transactional id."""

    # -- life

    def load(self) -> None:
        """Rebuild everything from the journal, start the timers and finish the ends that were decided. Raises DecodeError."""
        for partition in range(self._journal.partition_count):
            for batch in self._journal.replay(partition):
                for record in batch.records:
                    try:
                        self._replay(record)
                    except DecodeError as error:
                        raise DecodeError(f"{TRANSACTIONS_TOPIC}-{partition}, offset {batch.base_offset}: {error}") from error
        slots = {slot.txn.producer_id: slot for slot in self._slots.values()}
        for found in self._partitions.open_transactions():
            self._adopt(slots.get(found.producer_id), found)
        for slot in list(self._slots.values()):
            slot.is_replayed = True
            if slot.txn.state.is_preparing:
                self._write_markers(slot)
            elif slot.txn.state is TxnState.ONGOING and not self._finish_begun(slot):
                self._watch(slot)
        self._expiry.set_after(self._config.expiry_check_interval_ms)

    def on_partition_back(self, opened: Iterable[OpenInPartition]) -> None:
        """Take note of what is open in a partition that could not be read before."""
        for found in opened:
            self._adopt(next((s for s in self._slots.values() if s.txn.producer_id == found.producer_id), None), found)

    def _adopt(self, slot: Slot | None, found: OpenInPartition) -> None:
        """Take records into the transaction of their producer's epoch; those of ids that are not known are left as they are."""
        if slot is None or slot.latest.producer_epoch != found.producer_epoch:
            return
        txn = slot.latest
        if txn.state.is_preparing:
            if txn.client_version >= 2:  # else their epoch is that of the transaction which is being ended
                self._orphans.setdefault(txn.transactional_id, []).append(found)
        elif (found.topic, found.partition) not in txn.partitions:
            where = found.topic, found.partition
            self._add(slot, [where], is_there=True)

    def _replay(self, record: JournalRecord) -> None:
        transactional_id = decode_key(record.key)
        if transactional_id is None:
            return
        if record.value is None:
            self._slots.pop(transactional_id, None)
            return
        txn = decode_value(transactional_id, record.value)
        if txn.state is TxnState.DEAD:
            self._slots.pop(transactional_id, None)
        else:
            self._slots[transactional_id] = self._new_slot(txn)

    def close(self) -> None:
        """Stop all timers but those of markers under way."""
        self._expiry.cancel()
        for slot in self._slots.values():
            slot.timeout.cancel()

    def transactions(self) -> Iterable[Txn]:
        """Return every transactional id as it is on disk."""
        return [slot.txn for slot in self._slots.values() if slot.is_known]

    def transaction(self, transactional_id: str) -> Txn | None:
        slot = self._slots.get(transactional_id)
        return slot.txn if slot and slot.is_known else None

    # -- InitProducerId

    def init_producer(
        self,
        transactional_id: str,
        timeout_ms: int,
        *,
        producer_id: int = NO_ID,
        producer_epoch: int = NO_EPOCH,
        may_be_unlimited: bool = False,
    ) -> Reply:
        """Give a producer its id and an epoch that fences all before it; the reply is a ProducerGrant.

        An open transaction is aborted first: CONCURRENT_TRANSACTIONS until that is done. With a producer id and epoch
        (KIP-360) the caller says who it was, and is fenced if somebody else came after it. `may_be_unlimited`: it has the right
        to NO_TIMEOUT_MS, with which only its own end, or the next producer of its id, ends a transaction (as KIP-939).
        """
        if not transactional_id or len(transactional_id) > MAX_ID_CHARS:
            return _grant(ErrorCode.INVALID_REQUEST)
        is_unlimited = timeout_ms == NO_TIMEOUT_MS and may_be_unlimited and self._config.has_unlimited
        has_limit = timeout_ms != NO_TIMEOUT_MS and 0 < timeout_ms <= self._config.max_timeout_ms
        if not is_unlimited and not has_limit:
            return _grant(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        slot = self._slots.get(transactional_id)
        if slot is None:
            if len(self._slots) >= self._config.max_ids:
                return _grant(ErrorCode.POLICY_VIOLATION)
            txn = Txn(transactional_id, self._new_producer_id(), 0, timeout_ms, self._clock.wall_ms())
            slot = self._slots[transactional_id] = self._new_slot(txn)
            slot.is_known = False
            return self._store_grant(slot, txn)
        if slot.next is not None or slot.txn.state.is_preparing:
            return _grant(ErrorCode.CONCURRENT_TRANSACTIONS)
        if producer_id != NO_ID and not may_resume(slot.txn, producer_id, producer_epoch):
            return _grant(ErrorCode.PRODUCER_FENCED)
        known_epoch = producer_epoch if producer_id != NO_ID else NO_EPOCH
        if slot.txn.state is TxnState.ONGOING:
            if self._may_abort(slot):
                self._abort_by_ourselves(slot, known_epoch=known_epoch)
            return _grant(ErrorCode.CONCURRENT_TRANSACTIONS)
        return self._store_grant(slot, self._initialized(slot.txn, timeout_ms, known_epoch))

    def _initialized(self, txn: Txn, timeout_ms: int, known_epoch: int) -> Txn:
        now_ms = self._clock.wall_ms()
        if known_epoch != NO_EPOCH and known_epoch != txn.producer_epoch:
            return txn  # a retry of a call that succeeded: `_may_resume` let only that pass
        if txn.is_epoch_exhausted:
            return txn.rotated(self._new_producer_id(), timeout_ms, now_ms)
        return txn.initialized(timeout_ms, now_ms, known_epoch=known_epoch)

    def _store_grant(self, slot: Slot, txn: Txn) -> Reply:
        reply = Reply()

        def on_stored(error: ErrorCode) -> None:
            reply.set(ProducerGrant(error) if error else ProducerGrant(error, txn.producer_id, txn.producer_epoch))

        self._store(slot, txn).then(on_stored)
        return reply

    # -- adding partitions

    def add_to_transaction(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Collection[TopicPartition]
    ) -> Reply:
        """Add partitions, beginning a transaction if there is none; the reply is an ErrorCode once that is on disk."""
        slot = self._slots.get(transactional_id)
        if slot is None:
            return _error(ErrorCode.INVALID_PRODUCER_ID_MAPPING if transactional_id else ErrorCode.INVALID_REQUEST)
        refusal = refuse_addition(slot, producer_id, producer_epoch)
        return _error(refusal) if refusal else self._add(slot, partitions, is_there=False)

    def _add(self, slot: Slot, partitions: Collection[TopicPartition], *, is_there: bool) -> Reply:
        """Add partitions to a transaction. `is_there`: they have records of it, and belong to it whatever the journal says."""
        latest = slot.latest
        if not partitions or (latest.state is TxnState.ONGOING and latest.partitions.issuperset(partitions)):
            return _error(ErrorCode.NONE) if slot.next is None or slot.adding is None else slot.adding
        slot.adding = self._store(slot, latest.with_partitions(partitions, self._clock.wall_ms()), stands=is_there)
        return slot.adding

    def admit(
        self, transactional_id: str, producer_id: int, producer_epoch: int, topic: str, partition: int, *, can_add: bool
    ) -> Admission:
        """Say whether this producer may write to a partition in its transaction; for Produce and TxnOffsetCommit (KIP-890).

        With `can_add` the partition is added if need be, while the records are appended. Whoever may append must do so
        before giving up control, so that no end can slip between.
        """
        error = self.verify(transactional_id, producer_id, producer_epoch, topic, partition)
        if not can_add or error is not ErrorCode.INVALID_TXN_STATE:
            return Admission(error)
        slot = self._slots[transactional_id]
        refusal = refuse_addition(slot, producer_id, producer_epoch)
        if refusal:
            return Admission(for_writers(refusal))
        # The first epoch of an id that came with the end of a transaction is known once that end is complete on disk.
        is_first_added = slot.latest.state.is_complete and slot.latest.producer_epoch == 0
        added, answered = self._add(slot, [(topic, partition)], is_there=not is_first_added), Reply()
        added.then(lambda error: answered.set(for_writers(error)))
        return Admission(added=answered, is_first_added=is_first_added)

    def verify(self, transactional_id: str, producer_id: int, producer_epoch: int, topic: str, partition: int) -> ErrorCode:
        """Return NONE if the partition belongs to the ongoing transaction of this producer, else why not."""
        slot = self._slots.get(transactional_id)
        if slot is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        txn = slot.txn
        if txn.producer_id != producer_id or txn.producer_epoch != producer_epoch:
            return for_writers(refuse_producer(txn, producer_id, producer_epoch))
        is_ongoing = txn.state is TxnState.ONGOING and (slot.next is None or slot.next.state is TxnState.ONGOING)
        return ErrorCode.NONE if is_ongoing and (topic, partition) in txn.partitions else ErrorCode.INVALID_TXN_STATE

    # -- EndTxn

    def end(self, transactional_id: str, producer_id: int, producer_epoch: int, *, is_commit: bool, is_bumping: bool) -> Reply:
        """Commit or abort; the reply is a ProducerGrant once the decision and its markers are on disk.

        `is_bumping`: transaction version 2, the producer goes on with the granted epoch. A repeated request for the same end
        succeeds; one that comes after another end, or after the coordinator's own abort, is fenced.
        """
        slot = self._slots.get(transactional_id)
        if slot is None:
            return _grant(ErrorCode.INVALID_PRODUCER_ID_MAPPING if transactional_id else ErrorCode.INVALID_REQUEST)
        decision = decide_end(slot.txn, producer_id, producer_epoch, is_commit=is_commit, is_bumping=is_bumping)
        if isinstance(decision, ErrorCode):
            return _grant(decision)
        if slot.next is not None:
            return _grant(ErrorCode.CONCURRENT_TRANSACTIONS)
        if decision is EndAction.DONE:
            return _grant(ErrorCode.NONE, slot.txn.granted)
        if decision is EndAction.BEGIN and not is_commit and not self._may_abort(slot):
            return _grant(ErrorCode.CONCURRENT_TRANSACTIONS)
        reply = Reply()
        if decision is EndAction.WAIT:
            self._answer_when_complete(slot, reply)
            return reply
        is_last = is_bumping and slot.txn.producer_epoch >= LAST_USABLE_EPOCH
        next_id = self._new_producer_id() if is_last else NO_ID
        prepared = slot.txn.ended_by_client(
            self._clock.wall_ms(), is_commit=is_commit, is_bumped=is_bumping, next_producer_id=next_id
        )
        if is_commit and is_bumping and not is_last:
            self._commit_at_once(slot, prepared, reply)
            return reply

        def on_decided(error: ErrorCode) -> None:
            if error:
                reply.set(ProducerGrant(error))
                return
            self._answer_when_complete(slot, reply)
            self._write_markers(slot)

        self._store(slot, prepared).then(on_decided)
        return reply

    def _commit_at_once(self, slot: Slot, prepared: Txn, reply: Reply) -> None:
        """Write the decision and its markers at the same time: from here on it stands, for each of them on disk says it."""
        left = 2

        def one_done() -> None:
            nonlocal left
            left -= 1
            if not left:
                self._complete(slot)

        def on_stored(error: ErrorCode) -> None:
            if error:
                self._timers.call_later(self._config.retry_min_ms, store)
                if not reply.is_done:
                    reply.set(ProducerGrant(error))
                return
            slot.is_undecided = False
            if not reply.is_done:
                self._answer_when_complete(slot, reply)
            one_done()

        def store() -> None:
            self._store(slot, prepared, stands=True).then(on_stored)

        slot.timeout.cancel()
        slot.is_undecided = True
        store()
        self._markers.write(prepared, one_done)

    def _finish_begun(self, slot: Slot) -> bool:
        """Finish the commit of an ongoing transaction that was read from the journal, if a partition has its marker."""
        txn = slot.txn
        is_begun = slot.is_replayed and any(
            self._partitions.producer_epoch(*where, txn.producer_id) == txn.producer_epoch + 1 for where in txn.partitions
        )
        if is_begun:
            prepared = txn.ended_by_client(self._clock.wall_ms(), is_commit=True, is_bumped=True, next_producer_id=NO_ID)
            self._commit_at_once(slot, prepared, Reply())
        return is_begun

    def _may_abort(self, slot: Slot) -> bool:
        """Whether a transaction may be aborted: not while a partition that cannot be read may have the marker of its commit."""
        txn = slot.txn
        if not slot.is_replayed or txn.state is not TxnState.ONGOING:
            return True
        if self._finish_begun(slot):
            return False
        return all(self._partitions.producer_epoch(*where, txn.producer_id) is not None for where in txn.partitions)

    def _answer_when_complete(self, slot: Slot, reply: Reply) -> None:
        """Answer once the end under way is complete, or when that takes too long: the decision stands anyway."""
        granted = slot.txn.granted
        slot.ends.append(reply)

        def on_wait_over() -> None:
            if reply in slot.ends:
                slot.ends.remove(reply)
                error = ErrorCode.COORDINATOR_NOT_AVAILABLE if slot.is_undecided else ErrorCode.NONE
                reply.set(ProducerGrant(error, *granted))

        waiting = self._timers.call_later(self._config.end_wait_max_ms, on_wait_over)
        reply.then(lambda _: waiting.cancel())

    def _write_markers(self, slot: Slot) -> None:
        slot.timeout.cancel()
        self._markers.write(slot.txn, lambda: self._complete(slot))

    def _complete(self, slot: Slot) -> None:
        granted = slot.txn.granted
        slot.txn, slot.is_replayed = slot.txn.completed(self._clock.wall_ms()), False
        self._append(slot.txn)
        for found in self._orphans.pop(slot.txn.transactional_id, ()):
            self._adopt(slot, found)
        ends, slot.ends = slot.ends, []
        for reply in ends:
            reply.set(ProducerGrant(ErrorCode.NONE, *granted))

    # -- timeouts

    def _watch(self, slot: Slot) -> None:
        """Start the timer of an ongoing transaction, if it has a limit."""
        if slot.txn.timeout_ms == NO_TIMEOUT_MS:
            return
        left_ms = slot.txn.start_ms + slot.txn.timeout_ms - self._clock.wall_ms()
        slot.timeout.set_after(max(left_ms, 0))

    def _on_timeout(self, slot: Slot) -> None:
        if slot.next is not None:
            slot.timeout.set_after(RETRY_TIMEOUT_AFTER_MS)
        elif slot.txn.state is not TxnState.ONGOING:
            return
        elif self._may_abort(slot):
            self._abort_by_ourselves(slot, known_epoch=NO_EPOCH)
        elif slot.next is None:
            slot.timeout.set_after(self._config.retry_max_ms)

    def _abort_by_ourselves(self, slot: Slot, *, known_epoch: int) -> None:
        def on_decided(error: ErrorCode) -> None:
            if error:
                slot.timeout.set_after(self._config.retry_min_ms)
            else:
                self._write_markers(slot)

        self._store(slot, slot.txn.fenced(self._clock.wall_ms(), known_epoch=known_epoch)).then(on_decided)

    def _on_expiry(self) -> None:
        """Forget the ids that nobody used for long; some in one turn of the loop."""
        if not self._expiring:
            self._expiring = list(self._slots)
        limit_ms = self._clock.wall_ms() - self._config.id_expiration_ms
        some, self._expiring = self._expiring[-EXPIRED_AT_A_TIME:], self._expiring[:-EXPIRED_AT_A_TIME]
        for transactional_id in some:
            slot = self._slots.get(transactional_id)
            if slot is None:
                continue
            is_idle = slot.txn.state is TxnState.EMPTY or slot.txn.state.is_complete
            if is_idle and slot.next is None and slot.txn.update_ms <= limit_ms:
                tombstone = JournalRecord(encode_key(transactional_id), None, self._clock.wall_ms())
                self._journal.append(self._partition_of(transactional_id), [tombstone])
                del self._slots[transactional_id]
        self._expiry.set_after(0 if self._expiring else self._config.expiry_check_interval_ms)

    # -- inside

    def _new_slot(self, txn: Txn) -> Slot:
        slot: Slot
        slot = Slot(txn, Deadline(self._clock, self._timers, lambda: self._on_timeout(slot)))
        return slot

    def _store(self, slot: Slot, txn: Txn, *, stands: bool = False) -> Reply:
        """Bring a new state to disk, then let it count; the reply is an ErrorCode. `stands`: it counts also if that fails."""
        slot.next = txn
        reply = Reply()

        def on_written(base_offset: int) -> None:
            is_last = slot.next is txn
            if is_last:
                slot.next = None
            if base_offset < 0 and not stands:
                if not slot.is_known and is_last:
                    self._slots.pop(txn.transactional_id, None)
                reply.set(ErrorCode.COORDINATOR_NOT_AVAILABLE)
                return
            has_begun = txn.state is TxnState.ONGOING and slot.txn.state is not TxnState.ONGOING
            slot.txn, slot.is_known = txn, True
            if has_begun:
                self._watch(slot)
            reply.set(ErrorCode.NONE if base_offset >= 0 else ErrorCode.COORDINATOR_NOT_AVAILABLE)

        self._append(txn).then(on_written)
        return reply

    def _append(self, txn: Txn) -> Reply:
        record = JournalRecord(encode_key(txn.transactional_id), encode_value(txn), self._clock.wall_ms())
        return self._journal.append(self._partition_of(txn.transactional_id), [record])

    def _partition_of(self, transactional_id: str) -> int:
        return partition_of(transactional_id, self._journal.partition_count)


def _grant(error: ErrorCode, granted: tuple[int, int] = (NO_ID, NO_EPOCH)) -> Reply:
    reply = Reply()
    reply.set(ProducerGrant(error, *granted))
    return reply


def _error(error: ErrorCode) -> Reply:
    reply = Reply()
    reply.set(error)
    return reply
