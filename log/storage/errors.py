"""Refusals of the storage layer, each with the error code of the Kafka protocol that a broker answers.

LogflumeError
+-- OffsetOutOfRange     the offset is below the log start or beyond the end
+-- AppendRefused        the batch breaks a rule (size, timestamps, sequence, epoch, transaction); nothing was appended
StorageError
+-- DiskFull             no space left; what was half written has been cut off again
+-- PartitionFailed      an earlier write or fsync failed: the partition takes no appends until it is opened again
"""

from __future__ import annotations

from logflume.log.errors import InvalidInput, LogflumeError, StorageError

OFFSET_OUT_OF_RANGE = 1
CORRUPT_MESSAGE = 2
MESSAGE_TOO_LARGE = 10
RECORD_LIST_TOO_LARGE = 18
INVALID_TIMESTAMP = 32
UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
TRANSACTION_COORDINATOR_FENCED = 52
KAFKA_STORAGE_ERROR = 56
INVALID_RECORD = 87


class OffsetOutOfRange(LogflumeError):
    """A read outside of log start offset .. log end offset."""

    code = "OFFSET_OUT_OF_RANGE"
    error_code = OFFSET_OUT_OF_RANGE


class AppendRefused(InvalidInput):
    """A batch that may not be appended; `error_code` is Kafka's."""

    code = "APPEND_REFUSED"

    def __init__(self, error_code: int, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


class DiskFull(StorageError):
    """No space left on the device; nothing half-written remains visible."""

    code = "DISK_FULL"
    is_retriable = True
    error_code = KAFKA_STORAGE_ERROR


class PartitionFailed(StorageError):
    """A write or fsync failed earlier: what is on disk is unknown, so nothing more is appended until the log is reopened."""

    code = "PARTITION_FAILED"
    error_code = KAFKA_STORAGE_ERROR
