"""The log: record batches, storage, broker, protocol, server and client of an append-only partitioned log (Kafka's protocol)."""

from .errors import (
    CorruptLog,
    DataDirLocked,
    DecodeError,
    InvalidInput,
    LogflumeError,
    StorageError,
    TransportError,
    UnknownName,
)
from .protocol.errors import ErrorCode, KafkaError

__all__ = [
    "CorruptLog",
    "DataDirLocked",
    "DecodeError",
    "ErrorCode",
    "InvalidInput",
    "KafkaError",
    "LogflumeError",
    "StorageError",
    "TransportError",
    "UnknownName",
]
