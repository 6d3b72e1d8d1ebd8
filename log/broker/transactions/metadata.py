"""A transactional id as data, and its legal changes.

    Empty / Complete* --add partitions--> Ongoing --decision on disk--> PrepareCommit / PrepareAbort --all markers--> Complete*

An end asked for by a client of transaction version 2 bumps the producer epoch (KIP-890), so does every end that the
coordinator decides by itself (fencing): markers carry the new epoch, and whatever the old one still sends is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

TopicPartition = tuple[str, int]
NO_ID = -1
NO_EPOCH = -1
MAX_EPOCH = 32_767
LAST_USABLE_EPOCH = MAX_EPOCH - 1
"""A producer never holds the highest epoch: it is left for the end of a transaction."""


class TxnState(Enum):
    """States with the names clients see and the numbers of the journal."""

    EMPTY = 0, "Empty"
    ONGOING = 1, "Ongoing"
    PREPARE_COMMIT = 2, "PrepareCommit"
    PREPARE_ABORT = 3, "PrepareAbort"
    COMPLETE_COMMIT = 4, "CompleteCommit"
    COMPLETE_ABORT = 5, "CompleteAbort"
    DEAD = 6, "Dead"
    PREPARE_EPOCH_FENCE = 7, "PrepareEpochFence"

    @property
    def number(self) -> int:
        return self.value[0]

    @property
    def label(self) -> str:
        return self.value[1]

    @property
    def is_preparing(self) -> bool:
        return self in (TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        return self in (TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT)


@dataclass(frozen=True, slots=True)
class Txn:
    """What is known of a transactional id at a moment.

    `previous_producer_id`: the one before the epochs ran out; `next_producer_id`: the one that follows when the end under way is
    complete. `last_producer_epoch`: the epoch before the last InitProducerId with an epoch, to know its retry. `start_ms` and
    `update_ms` are wall time. `client_version`: 2 if the last end was asked for by a client that expects the bumped epoch.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    update_ms: int
    state: TxnState = TxnState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = -1
    previous_producer_id: int = NO_ID
    next_producer_id: int = NO_ID
    last_producer_epoch: int = NO_EPOCH
    client_version: int = 1

    @property
    def is_epoch_exhausted(self) -> bool:
        return self.producer_epoch >= LAST_USABLE_EPOCH

    @property
    def is_commit(self) -> bool:
        return self.state in (TxnState.PREPARE_COMMIT, TxnState.COMPLETE_COMMIT)

    def with_partitions(self, partitions: Iterable[TopicPartition], now_ms: int) -> Txn:
        """Begin a transaction with these partitions, or add them to the ongoing one."""
        is_ongoing = self.state is TxnState.ONGOING
        return replace(
            self,
            state=TxnState.ONGOING,
            partitions=self.partitions.union(partitions) if is_ongoing else frozenset(partitions),
            start_ms=self.start_ms if is_ongoing else now_ms,
            update_ms=now_ms,
        )

    def initialized(self, timeout_ms: int, now_ms: int, *, known_epoch: int) -> Txn:
        """Bump the epoch for a producer that starts; `known_epoch` is what it said its epoch was, or NO_EPOCH."""
        assert not self.is_epoch_exhausted
        return replace(
            self,
            producer_epoch=self.producer_epoch + 1,
            last_producer_epoch=known_epoch,
            timeout_ms=timeout_ms,
            state=TxnState.EMPTY,
            partitions=frozenset(),
            start_ms=-1,
            update_ms=now_ms,
            next_producer_id=NO_ID,
            client_version=1,
        )

    def rotated(self, producer_id: int, timeout_ms: int, now_ms: int) -> Txn:
        """Take a new producer id, as the epochs of the old one are used up."""
        return Txn(self.transactional_id, producer_id, 0, timeout_ms, now_ms, previous_producer_id=self.producer_id)

    def ended_by_client(self, now_ms: int, *, is_commit: bool, is_bumped: bool, next_producer_id: int) -> Txn:
        """Decide the end as the producer asked; `next_producer_id` when the bumped epoch is the last."""
        return replace(
            self,
            state=TxnState.PREPARE_COMMIT if is_commit else TxnState.PREPARE_ABORT,
            partitions=self.partitions if self.state is TxnState.ONGOING else frozenset(),
            producer_epoch=self.producer_epoch + is_bumped,
            last_producer_epoch=NO_EPOCH,
            next_producer_id=next_producer_id,
            update_ms=now_ms,
            client_version=2 if is_bumped else 1,
        )

    def fenced(self, now_ms: int, *, known_epoch: int = NO_EPOCH) -> Txn:
        """Decide the abort by ourselves; the producer's epoch is no longer valid, except for naming it in InitProducerId."""
        assert self.producer_epoch < MAX_EPOCH
        return replace(
            self,
            state=TxnState.PREPARE_ABORT,
            producer_epoch=self.producer_epoch + 1,
            last_producer_epoch=known_epoch,
            update_ms=now_ms,
            client_version=1,
        )

    def completed(self, now_ms: int) -> Txn:
        """Close the transaction: all markers are on disk."""
        assert self.state.is_preparing
        done = replace(
            self,
            state=TxnState.COMPLETE_COMMIT if self.is_commit else TxnState.COMPLETE_ABORT,
            partitions=frozenset(),
            update_ms=now_ms,
            next_producer_id=NO_ID,
        )
        if self.next_producer_id == NO_ID:
            return done
        return replace(done, producer_id=self.next_producer_id, producer_epoch=0, previous_producer_id=self.producer_id)

    @property
    def granted(self) -> tuple[int, int]:
        """The producer id and epoch that the producer goes on with after the end under way."""
        if self.next_producer_id != NO_ID:
            return self.next_producer_id, 0
        return self.producer_id, self.producer_epoch
