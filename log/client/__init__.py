"""The client of a log: `connect`, producers, consumers, admin, over TCP, a Unix socket or inside the process."""

from .aio import AsyncAdmin, AsyncConsumer, AsyncLog, AsyncProducer, connect_async
from .consumer import is_rebalance
from .errors import ClientClosed, LogTruncated, OffsetOutOfRange, ProducerFenced, RecordsRefused, TransactionMustAbort
from .log import Log, connect
from .owner import LocalData, connect_as_owner, local_data
from .where import default_where

__all__ = [
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncLog",
    "AsyncProducer",
    "ClientClosed",
    "LocalData",
    "Log",
    "LogTruncated",
    "OffsetOutOfRange",
    "ProducerFenced",
    "RecordsRefused",
    "TransactionMustAbort",
    "connect",
    "connect_as_owner",
    "connect_async",
    "is_rebalance",
    "default_where",
    "local_data",
]
