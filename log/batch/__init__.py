"""RecordBatch v2: header, records, compressions, control batches. Free of numpy; columns are in `logflume.log.batch.columns`."""

from .compression import MAX_DECOMPRESSED_BYTES, Codec, codec_of, compress, decompress
from .control import Marker, build_marker, parse_marker
from .errors import BatchTooLarge, CorruptBatch, UnsupportedMagic
from .header import (
    HEADER_BYTES,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP_MS,
    BatchHeader,
    check_crc,
    iter_batches,
    parse_header,
    stamp,
)
from .isolation import visible_batches
from .murmur2 import key_partition, murmur2
from .records import RecordData, decode_records, encode_batch

__all__ = [
    "HEADER_BYTES",
    "MAX_DECOMPRESSED_BYTES",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP_MS",
    "BatchHeader",
    "BatchTooLarge",
    "Codec",
    "CorruptBatch",
    "Marker",
    "RecordData",
    "UnsupportedMagic",
    "build_marker",
    "check_crc",
    "codec_of",
    "compress",
    "decode_records",
    "decompress",
    "encode_batch",
    "iter_batches",
    "key_partition",
    "murmur2",
    "parse_header",
    "parse_marker",
    "stamp",
    "visible_batches",
]
