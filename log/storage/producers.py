"""What a partition remembers of its producers: sequences, epochs and open transactions (KIP-98, KIP-890). Pure.

The rules are those of a Kafka leader: the last five batches of each producer id are remembered, an exact repeat is a
duplicate, sequences must go on without a gap, an older epoch is refused, an unknown producer may begin anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from logflume.log.batch.control import Marker
from logflume.log.batch.header import BatchHeader

from .errors import (
    INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    TRANSACTION_COORDINATOR_FENCED,
    AppendRefused,
)
from .slices import AbortedTransaction

REMEMBERED_BATCHES = 5
_SEQUENCES = 1 << 31


class SentBatch(NamedTuple):
    """A batch a producer sent: sequence and offset of its last record, and how many records it spans before that one."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) % _SEQUENCES

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


@dataclass(slots=True)
class ProducerState:
    """One producer id. `batches`: the last five of this epoch, oldest first; `txn_first_offset` -1: no open transaction."""

    epoch: int
    batches: list[SentBatch] = field(default_factory=list)
    coordinator_epoch: int = -1
    txn_first_offset: int = -1
    last_timestamp_ms: int = -1


class ProducerStates:
    """The producers of one partition.

    Invariant: `open_transactions` (producer id -> first offset) is in order of offset and agrees with the states.
    """

    def __init__(self) -> None:
        self.states: dict[int, ProducerState] = {}
        self.open_transactions: dict[int, int] = {}

    def check(self, header: BatchHeader) -> SentBatch | None:
        """Return the earlier batch that this one repeats, None if it may be appended. Batches without a producer id pass.

        A coordinator writes in a producer's name but without sequences (offsets in a transaction): only its epoch is checked.

        Raises:
            AppendRefused: older epoch, a gap in the sequence, or data outside of the producer's open transaction.
        """
        state = self.states.get(header.producer_id)
        if state is None:
            return None
        if header.producer_epoch < state.epoch:
            raise _stale_epoch(header, state)
        if header.base_sequence >= 0:
            if header.producer_epoch == state.epoch:
                first, last = header.base_sequence, header.last_sequence
                for batch in state.batches:
                    if batch.last_sequence == last and batch.first_sequence == first:
                        return batch
            self._check_sequence(header, state)
        if state.txn_first_offset >= 0 and not header.is_transactional:
            raise AppendRefused(
                INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction since offset {state.txn_first_offset}; "
                "expected transactional records until it ends",
            )
        return None

    def _check_sequence(self, header: BatchHeader, state: ProducerState) -> None:
        if header.producer_epoch > state.epoch or not state.batches:
            expected = 0
        else:
            expected = (state.batches[-1].last_sequence + 1) % _SEQUENCES
        if header.base_sequence != expected:
            raise AppendRefused(
                OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id}, epoch {header.producer_epoch}: expected sequence {expected}, "
                f"found {header.base_sequence}",
            )

    def apply(self, header: BatchHeader, *, first_offset: int, last_offset: int, timestamp_ms: int) -> None:
        """Remember a data batch that was appended at these offsets."""
        if header.producer_id < 0:
            return
        state = self.states.get(header.producer_id)
        if state is None:
            state = self.states[header.producer_id] = ProducerState(header.producer_epoch)
        if header.producer_epoch != state.epoch:
            state.epoch = header.producer_epoch
            state.batches.clear()
        if header.base_sequence >= 0:
            state.batches.append(SentBatch(header.last_sequence, last_offset, header.last_offset_delta, timestamp_ms))
            del state.batches[:-REMEMBERED_BATCHES]
        state.last_timestamp_ms = timestamp_ms
        if header.is_transactional and state.txn_first_offset < 0:
            state.txn_first_offset = first_offset
            self.open_transactions[header.producer_id] = first_offset

    def check_marker(self, header: BatchHeader, marker: Marker) -> None:
        """Check that a marker may be appended.

        Raises:
            AppendRefused: older producer epoch, or older coordinator epoch.
        """
        state = self.states.get(header.producer_id)
        if state is None:
            return
        if header.producer_epoch < state.epoch:
            raise _stale_epoch(header, state)
        if marker.coordinator_epoch < state.coordinator_epoch:
            raise AppendRefused(
                TRANSACTION_COORDINATOR_FENCED,
                f"expected a marker of coordinator epoch {state.coordinator_epoch} or later, found {marker.coordinator_epoch}",
            )

    def apply_marker(self, header: BatchHeader, marker: Marker, *, offset: int, timestamp_ms: int) -> AbortedTransaction | None:
        """End the producer's transaction by the marker at `offset`; return it if it was open and is aborted."""
        state = self.states.get(header.producer_id)
        if state is None:
            state = self.states[header.producer_id] = ProducerState(header.producer_epoch)
        if header.producer_epoch != state.epoch:
            state.epoch = header.producer_epoch
            state.batches.clear()
        state.coordinator_epoch = marker.coordinator_epoch
        state.last_timestamp_ms = timestamp_ms
        first_offset, state.txn_first_offset = state.txn_first_offset, -1
        self.open_transactions.pop(header.producer_id, None)
        if first_offset < 0 or marker.is_commit:
            return None
        return AbortedTransaction(header.producer_id, first_offset, offset, self.first_unstable_offset(offset + 1))

    def first_unstable_offset(self, end_offset: int) -> int:
        """Return the first offset of the earliest open transaction, `end_offset` without one."""
        return next(iter(self.open_transactions.values()), end_offset)

    def renew(self, now_ms: int) -> None:
        """Count every producer's silence from `now_ms` on, after its state was read back from disk.

        The time of a batch's append is not in the log, and that of its records may be years ago (history being loaded); a
        producer forgotten for it would get a batch appended twice when it repeats one after a crash.
        """
        for state in self.states.values():
            state.last_timestamp_ms = now_ms

    def expire(self, before_ms: int) -> None:
        """Forget producers without an open transaction whose last batch was appended before `before_ms`."""
        stale = [
            producer_id
            for producer_id, state in self.states.items()
            if state.txn_first_offset < 0 and state.last_timestamp_ms < before_ms
        ]
        for producer_id in stale:
            del self.states[producer_id]


def _stale_epoch(header: BatchHeader, state: ProducerState) -> AppendRefused:
    return AppendRefused(
        INVALID_PRODUCER_EPOCH,
        f"producer {header.producer_id}: expected epoch {state.epoch} or later, found {header.producer_epoch}",
    )
