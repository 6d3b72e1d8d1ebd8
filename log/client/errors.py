"""Errors of the client, beside `KafkaError` and `TransportError`.

LogflumeError
+-- ClientClosed            the producer, consumer or log was closed
+-- TransactionMustAbort    something in the open transaction failed: abort it, then repeat the whole transaction
+-- OffsetOutOfRange        a position outside the log, with offset_reset "none"
+-- KafkaError
    +-- ProducerFenced      another producer took the transactional id, or the transaction timed out: make a new producer
"""

from __future__ import annotations

from logflume.log.errors import LogflumeError
from logflume.log.protocol import KafkaError


class ClientClosed(LogflumeError):
    """The object was closed before or while it was used."""

    code = "CLIENT_CLOSED"


class TransactionMustAbort(LogflumeError):
    """Something in the open transaction failed. Nothing of it becomes visible; abort it, then repeat it as a whole."""

    code = "TRANSACTION_MUST_ABORT"


class OffsetOutOfRange(LogflumeError):
    """A position outside of what the partition holds, and `offset_reset` says not to choose another."""

    code = "OFFSET_OUT_OF_RANGE"


class ProducerFenced(KafkaError):
    """The broker refuses this producer for good; it cannot be used any more."""

    is_retriable = False
