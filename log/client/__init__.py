"""The client of a log: `connect`, producers, consumers, admin, over TCP, a Unix socket or inside the process."""

from .consumer import is_rebalance
from .errors import ClientClosed, OffsetOutOfRange, ProducerFenced, TransactionMustAbort
from .log import Log, connect
from .where import default_where

__all__ = [
    "ClientClosed",
    "Log",
    "OffsetOutOfRange",
    "ProducerFenced",
    "TransactionMustAbort",
    "connect",
    "is_rebalance",
    "default_where",
]
