"""The log: record batches, storage, broker, protocol, server and client of an append-only partitioned log (Kafka's protocol).

    from logflume.log import connect
    with connect("./data") as log:
        log.admin().ensure_topic("flights")
        log.producer().send("flights", b"...").result()

Names are loaded when they are first used, so that importing this costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
from .internal_topics import SERVICE_PREFIX, check_own_topic, is_hidden_topic, is_internal_topic

if TYPE_CHECKING:
    from .batch.columns import content_hashes, key_partitions, load_kernels, span_hashes
    from .batch.murmur2 import key_partition
    from .batch.spans import span_objects
    from .broker.settings.table import topic_config_names
    from .client import (
        AsyncAdmin,
        AsyncConsumer,
        AsyncLog,
        AsyncProducer,
        ClientClosed,
        LocalData,
        LoginRefused,
        LogTruncated,
        OffsetOutOfRange,
        ProducerFenced,
        RecordsRefused,
        Security,
        TransactionMustAbort,
        connect,
        connect_as_owner,
        connect_async,
        default_broker,
        default_where,
        is_rebalance,
        local_data,
    )
    from .interfaces import (
        NO_TIMEOUT_MS,
        Admin,
        Consumer,
        GroupDescription,
        GroupMemberDescription,
        GroupMetadata,
        Log,
        OffsetAndMetadata,
        OpenTransaction,
        Producer,
        RecordMetadata,
        TopicDescription,
    )
    from .progress import ProgressLine
    from .protocol import ErrorCode, KafkaError
    from .records import Chunk, Headers, Record, TopicPartition

_LAZY = {
    **dict.fromkeys(
        (
            "AsyncAdmin",
            "AsyncConsumer",
            "AsyncLog",
            "AsyncProducer",
            "ClientClosed",
            "LocalData",
            "LoginRefused",
            "LogTruncated",
            "OffsetOutOfRange",
            "ProducerFenced",
            "RecordsRefused",
            "Security",
            "TransactionMustAbort",
            "connect",
            "connect_as_owner",
            "connect_async",
            "default_broker",
            "default_where",
            "is_rebalance",
            "local_data",
        ),
        "client",
    ),
    **dict.fromkeys(
        (
            "Admin",
            "Consumer",
            "GroupDescription",
            "GroupMemberDescription",
            "GroupMetadata",
            "Log",
            "NO_TIMEOUT_MS",
            "OffsetAndMetadata",
            "OpenTransaction",
            "Producer",
            "RecordMetadata",
            "TopicDescription",
        ),
        "interfaces",
    ),
    **dict.fromkeys(("content_hashes", "key_partitions", "load_kernels", "span_hashes"), "batch.columns"),
    "key_partition": "batch.murmur2",
    "span_objects": "batch.spans",
    **dict.fromkeys(("ErrorCode", "KafkaError"), "protocol"),
    "ProgressLine": "progress",
    "topic_config_names": "broker.settings.table",
    **dict.fromkeys(("Chunk", "Headers", "Record", "TopicPartition"), "records"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LAZY[name]}", __name__), name)


__all__ = [
    "NO_TIMEOUT_MS",
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncLog",
    "AsyncProducer",
    "Chunk",
    "ClientClosed",
    "Consumer",
    "CorruptLog",
    "DataDirLocked",
    "DecodeError",
    "ErrorCode",
    "GroupDescription",
    "GroupMemberDescription",
    "GroupMetadata",
    "Headers",
    "InvalidInput",
    "KafkaError",
    "LocalData",
    "Log",
    "LogTruncated",
    "LoginRefused",
    "LogflumeError",
    "OffsetAndMetadata",
    "OffsetOutOfRange",
    "OpenTransaction",
    "Producer",
    "ProducerFenced",
    "ProgressLine",
    "Record",
    "RecordMetadata",
    "RecordsRefused",
    "SERVICE_PREFIX",
    "Security",
    "StorageError",
    "TopicDescription",
    "TopicPartition",
    "TransactionMustAbort",
    "TransportError",
    "UnknownName",
    "check_own_topic",
    "connect",
    "connect_as_owner",
    "connect_async",
    "content_hashes",
    "default_broker",
    "default_where",
    "is_hidden_topic",
    "is_internal_topic",
    "is_rebalance",
    "key_partition",
    "key_partitions",
    "load_kernels",
    "local_data",
    "near_matches",
    "span_hashes",
    "span_objects",
    "topic_config_names",
]
