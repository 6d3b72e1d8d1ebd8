"""Errors of the client, beside `KafkaError` and `TransportError`.

LogflumeError
+-- ClientClosed            the producer, consumer or log was closed
+-- TransactionMustAbort    something in the open transaction failed: abort it, then repeat the whole transaction
+-- OffsetOutOfRange        a position outside the log, with offset_reset "none"
+-- LogTruncated            records that were read are not in the log any more, with offset_reset "none"
+-- KafkaError
    +-- ProducerFenced      another producer took the transactional id, or the transaction timed out: make a new producer
"""

from __future__ import annotations

from logflume.log.errors import LogflumeError
from logflume.log.protocol import KafkaError
from logflume.log.records import TopicPartition


class ClientClosed(LogflumeError):
    """The object was closed before or while it was used."""

    code = "CLIENT_CLOSED"


class TransactionMustAbort(LogflumeError):
    """Something in the open transaction failed. Nothing of it becomes visible; abort it, then repeat it as a whole."""

    code = "TRANSACTION_MUST_ABORT"


class OffsetOutOfRange(LogflumeError):
    """A position outside of what the partition holds, and `offset_reset` says not to choose another."""

    code = "OFFSET_OUT_OF_RANGE"


class LogTruncated(LogflumeError):
    """A new leader does not have records that were read before: an election lost them (KIP-320).

    Attributes:
        diverges_at: first offset from which on the new leader's log differs; seek there to go on.
    """

    code = "LOG_TRUNCATED"

    def __init__(self, partition: TopicPartition, position: int, diverges_at: int) -> None:
        super().__init__(
            f"{partition.topic}-{partition.partition}: offsets {diverges_at} to {position - 1} are not what they were, the log "
            f"of the new leader differs from {diverges_at} on; seek there, or choose an offset_reset other than 'none'"
        )
        self.partition, self.position, self.diverges_at = partition, position, diverges_at


class ProducerFenced(KafkaError):
    """The broker refuses this producer for good; it cannot be used any more."""

    is_retriable = False
