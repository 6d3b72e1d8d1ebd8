"""What can be wrong with the bytes of a record batch.

DecodeError
+-- CorruptBatch          header, checksum or records do not hold together (Kafka: CORRUPT_MESSAGE)
    +-- UnsupportedMagic  a batch of another format version (Kafka: UNSUPPORTED_FOR_MESSAGE_FORMAT)
    +-- BatchTooLarge     records that would unpack to more bytes than the caller allows
"""

from __future__ import annotations

from logflume.log.errors import DecodeError


class CorruptBatch(DecodeError):
    """The bytes are not a valid RecordBatch v2."""

    code = "CORRUPT_BATCH"


class UnsupportedMagic(CorruptBatch):
    """The batch has a magic byte other than 2."""

    code = "UNSUPPORTED_MAGIC"


class BatchTooLarge(CorruptBatch):
    """The records unpack to more bytes than allowed; nothing of that size was allocated."""

    code = "BATCH_TOO_LARGE"
