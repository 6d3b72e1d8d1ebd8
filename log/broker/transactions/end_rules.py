"""What an EndTxn request means for a transaction: begin the end, a retry of one, a wait, or an error. A pure function.

EndTxn travels apart from the data and may arrive late. With transaction version 2 every end bumps the epoch, so a late
request names an epoch that is no longer current: it is a retry if the end it asks for is the one that bumped it, else it is
fenced. Without it, only state and equal epochs tell (KIP-98), which is why version 2 exists (KIP-890).
"""

from __future__ import annotations

from enum import Enum, auto

from logflume.log.protocol.errors import ErrorCode

from .metadata import LAST_USABLE_EPOCH, Txn, TxnState


class EndAction(Enum):
    BEGIN = auto()
    """Decide this end now."""
    WAIT = auto()
    """The same end is under way; answer when it is complete."""
    DONE = auto()
    """The same end is complete; answer as then."""


Decision = EndAction | ErrorCode


def decide_end(txn: Txn, producer_id: int, producer_epoch: int, *, is_commit: bool, is_bumping: bool) -> Decision:
    """Decide on an EndTxn request; `is_bumping`: the client is of transaction version 2 (EndTxn 5 and newer).

    Returns PRODUCER_FENCED, INVALID_PRODUCER_ID_MAPPING or INVALID_TXN_STATE when it is refused.
    """
    is_overflow_retry = (
        is_bumping
        and txn.previous_producer_id == producer_id
        and producer_epoch == LAST_USABLE_EPOCH
        and txn.producer_epoch == 0
        and txn.state.is_complete
    )
    if txn.producer_id != producer_id and not is_overflow_retry:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    is_same_epoch = txn.producer_id == producer_id and txn.producer_epoch == producer_epoch
    if not is_bumping:
        return _decide_by_state(txn, is_commit) if is_same_epoch else ErrorCode.PRODUCER_FENCED
    is_retry = txn.client_version >= 2 and (is_overflow_retry or txn.producer_epoch == producer_epoch + 1)
    if is_retry and (txn.state.is_preparing or txn.state.is_complete):
        return _decide_retry(txn, is_commit)
    if not is_same_epoch:
        return ErrorCode.PRODUCER_FENCED
    if txn.state is TxnState.ONGOING or (not is_commit and not txn.state.is_preparing):
        # An abort is welcome even if nothing was added: the producer may not know, and wants a new epoch.
        return EndAction.BEGIN
    return ErrorCode.INVALID_TXN_STATE


def _decide_by_state(txn: Txn, is_commit: bool) -> Decision:
    if txn.state is TxnState.ONGOING:
        return EndAction.BEGIN
    if txn.state is TxnState.EMPTY or txn.is_commit != is_commit:
        return ErrorCode.INVALID_TXN_STATE
    return EndAction.WAIT if txn.state.is_preparing else EndAction.DONE


def _decide_retry(txn: Txn, is_commit: bool) -> Decision:
    if txn.is_commit != is_commit:
        # It ended the other way: whoever still asks for this end acts on an old view.
        return ErrorCode.PRODUCER_FENCED if is_commit else ErrorCode.INVALID_TXN_STATE
    return EndAction.WAIT if txn.state.is_preparing else EndAction.DONE
