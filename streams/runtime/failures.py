"""What it means that a membership ended with an error: whether joining again can help."""

from __future__ import annotations

from logflume.log import LogflumeError, TransactionMustAbort, UnknownName

from .handlers import StreamsError
from .problems import PoisonRecord

_HOPELESS = frozenset({"INVALID_TOPIC_EXCEPTION", "UNSUPPORTED_FOR_MESSAGE_FORMAT", "UNSUPPORTED_COMPRESSION_TYPE"})
"""Causes of a lost transaction that the next one would meet too."""
_MEMBERSHIP_LOST = frozenset(
    {
        "FENCED_INSTANCE_ID",
        "ILLEGAL_GENERATION",
        "UNKNOWN_MEMBER_ID",
        "REBALANCE_IN_PROGRESS",
        "INVALID_PRODUCER_EPOCH",
        "PRODUCER_FENCED",
        "INVALID_PRODUCER_ID_MAPPING",
        "INVALID_TXN_STATE",
        "TRANSACTION_MUST_ABORT",
        "CLIENT_CLOSED",
    }
)


def is_fatal(error: LogflumeError) -> bool:
    """Return whether joining again cannot help: the application, its input or its state is the cause."""
    if isinstance(error, (PoisonRecord, StreamsError)):
        return True
    if isinstance(error, TransactionMustAbort) and isinstance(error.__cause__, LogflumeError):
        code = error.__cause__.code
        return isinstance(error.__cause__, UnknownName) or code in _HOPELESS or code.endswith("_AUTHORIZATION_FAILED")
    return not (error.is_retriable or error.code in _MEMBERSHIP_LOST)


def is_replaced(error: LogflumeError) -> bool:
    """Return whether another process has joined the group under this instance id."""
    cause = error.__cause__ if isinstance(error, TransactionMustAbort) else error
    return isinstance(cause, LogflumeError) and cause.code == "FENCED_INSTANCE_ID"
