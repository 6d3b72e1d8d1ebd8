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
    near_matches,
)

__all__ = [
    "CorruptLog",
    "DataDirLocked",
    "DecodeError",
    "InvalidInput",
    "LogflumeError",
    "StorageError",
    "TransportError",
    "UnknownName",
    "near_matches",
]
