"""Errors of the client, beside `KafkaError` and `TransportError`.

LogflumeError
+-- LoginRefused            the broker refused who the client is, or is not who it should be
+-- ClientClosed            the producer, consumer or log was closed
+-- TransactionMustAbort    something in the open transaction failed: abort it, then repeat the whole transaction
+-- OffsetOutOfRange        a position outside the log, with offset_reset "none"
+-- LogTruncated            records that were read are not in the log any more, with offset_reset "none"
+-- KafkaError
    +-- RecordsRefused      the broker does not take some records, however often they are sent
    +-- ProducerFenced      another producer took the transactional id, or the transaction timed out: make a new producer
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from logflume.log.errors import LogflumeError
from logflume.log.protocol import KafkaError
from logflume.log.records import TopicPartition


class LoginRefused(LogflumeError):
    """The broker refused the client's credentials or certificate, or its own are not what they should be. Nothing was sent."""

    code = "LOGIN_REFUSED"


class ClientClosed(LogflumeError):
    """The object was closed before or while it was used."""

    code = "CLIENT_CLOSED"


class TransactionMustAbort(LogflumeError):
    """Something in the open transaction failed. Nothing of it becomes visible; abort it, then repeat it as a whole."""

    code = "TRANSACTION_MUST_ABORT"


class StaleGroupMember(TransactionMustAbort):
    """The group has gone on without the member whose offsets were to be committed."""


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


class RecordsRefused(KafkaError):
    """The broker takes the topic's records, but not these, however often they are sent: too large, too far from its time...

    Attributes:
        causes: place in the chunk that was given to `send_chunk` (or in the batch that `send` has filled) -> why.
        others: why further records of the chunk were not written either; None: they were.
    """

    def __init__(self, causes: Mapping[int, KafkaError], *, others: LogflumeError | None = None) -> None:
        first = causes[min(causes)]
        super().__init__(first.number, first.detail, topic=first.topic, partition=first.partition)
        self.causes = dict(sorted(causes.items()))
        self.others = others


class ProducerFenced(KafkaError):
    """The broker refuses this producer for good; it cannot be used any more."""

    is_retriable = False


def unforeseen(what: str, error: BaseException) -> LogflumeError:
    """Return what callers are told of a fault that nobody thought of; the log has where it is."""
    _log.error("%s: %r", what, error, exc_info=error)
    return LogflumeError(f"{what}, by a fault of the client: {type(error).__name__}: {error}")


_log = logging.getLogger("logflume.client")
