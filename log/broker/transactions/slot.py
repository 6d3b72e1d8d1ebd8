"""One transactional id as the coordinator holds it, and who may act for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from logflume.log.broker.replies import Reply
from logflume.log.broker.turns.deadline import Deadline
from logflume.log.protocol.errors import ErrorCode

from .metadata import LAST_USABLE_EPOCH, NO_EPOCH, Txn, TxnState


@dataclass(eq=False, slots=True)
class Slot:
    """One transactional id. `txn` is on disk; `next`, if set, is on its way there (the last of several, if they are additions).

    `ends`: EndTxn requests to answer when the end under way is complete. `adding`: the last addition on its way.
    `is_undecided`: an end has begun and is on no disk yet. `is_replayed`: read from the journal, and not ended since.
    """

    txn: Txn
    timeout: Deadline
    next: Txn | None = None
    ends: list[Reply] = field(default_factory=list)
    adding: Reply | None = None
    is_known: bool = True
    is_undecided: bool = False
    is_replayed: bool = False

    @property
    def latest(self) -> Txn:
        return self.next or self.txn


def may_resume(txn: Txn, producer_id: int, producer_epoch: int) -> bool:
    """Whether a producer that names its id and epoch is the last one that held the transactional id."""
    if producer_id == txn.producer_id:
        return producer_epoch in (txn.producer_epoch, txn.last_producer_epoch) and producer_epoch != NO_EPOCH
    return producer_id == txn.previous_producer_id and producer_epoch >= LAST_USABLE_EPOCH and txn.producer_epoch == 0


def refuse_producer(txn: Txn, producer_id: int, producer_epoch: int) -> ErrorCode:
    """Return why a producer may not act for a transactional id, NONE if it may."""
    if txn.state.is_preparing and (producer_id, producer_epoch) == txn.granted:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if txn.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    return ErrorCode.NONE if txn.producer_epoch == producer_epoch else ErrorCode.PRODUCER_FENCED


def refuse_addition(slot: Slot, producer_id: int, producer_epoch: int) -> ErrorCode:
    """Return why a producer may not add to a transaction, NONE if it may."""
    refusal = refuse_producer(slot.txn, producer_id, producer_epoch)
    if refusal:
        return refusal
    is_ending = slot.latest.state.is_preparing or (slot.next is not None and slot.next.state is not TxnState.ONGOING)
    return ErrorCode.CONCURRENT_TRANSACTIONS if is_ending else ErrorCode.NONE


def for_writers(error: ErrorCode) -> ErrorCode:
    """Return the code under which Produce and TxnOffsetCommit know a fenced producer."""
    return ErrorCode.INVALID_PRODUCER_EPOCH if error is ErrorCode.PRODUCER_FENCED else error
