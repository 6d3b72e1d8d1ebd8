"""Writes the markers of a transaction's end to all its partitions, as often as it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from logflume.log.broker.ports import Timers, TxnPartitions
from logflume.log.protocol.errors import ErrorCode

from .config import TransactionConfig
from .metadata import TopicPartition, Txn

COORDINATOR_EPOCH = 0
"""Epoch of the coordinator in markers: without replicas the coordinator never moves."""
AT_A_TIME = 50
"""Markers written in one turn of the loop."""
_OnAnswer = Callable[[TopicPartition, bool], None]


class MarkerWriter:
    """Writes markers through `TxnPartitions`. A partition that is gone needs none; everything else is tried again."""

    def __init__(self, config: TransactionConfig, timers: Timers, partitions: TxnPartitions) -> None:
        self._config, self._timers, self._partitions = config, timers, partitions

    def write(self, txn: Txn, on_all_written: Callable[[], None]) -> None:
        """Write the markers of a prepared transaction; call back once all are on disk.

        Readers shall see the end in all partitions at once, so it is announced when all have answered. One that cannot be
        written now holds up nobody.
        """
        assert txn.state.is_preparing
        left, unanswered = set(txn.partitions), set(txn.partitions)
        written: list[TopicPartition] = []
        if not left:
            on_all_written()
            return

        def on_answer(partition: TopicPartition, is_written: bool) -> None:
            unanswered.discard(partition)
            if is_written:
                left.discard(partition)
                written.append(partition)
            if not unanswered:
                self._partitions.announce(written, txn.producer_id, is_commit=txn.is_commit)
                written.clear()
            if not left:
                on_all_written()

        self._write_from(0, txn, sorted(txn.partitions), on_answer)

    def _write_from(self, start: int, txn: Txn, partitions: Sequence[TopicPartition], on_answer: _OnAnswer) -> None:
        """Write the markers of some partitions, and those of the others in later turns of the loop."""
        end = start + AT_A_TIME
        for partition in partitions[start:end]:
            self._write_one(txn, partition, on_answer, self._config.retry_min_ms)
        if end < len(partitions):
            self._timers.call_later(0, partial(self._write_from, end, txn, partitions, on_answer))

    def _write_one(self, txn: Txn, partition: TopicPartition, on_answer: _OnAnswer, pause_ms: int) -> None:
        def answer(error: int) -> None:
            is_written = error in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if not is_written:
                longer_ms = min(2 * pause_ms, self._config.retry_max_ms)
                self._timers.call_later(pause_ms, lambda: self._write_one(txn, partition, on_answer, longer_ms))
            on_answer(partition, is_written)

        self._partitions.write_marker(
            *partition,
            txn.producer_id,
            txn.producer_epoch,
            COORDINATOR_EPOCH,
            is_commit=txn.is_commit,
            is_bumped=txn.client_version >= 2,
        ).then(answer)
