"""A partition's checkpoint file: how far the log is known to be good, so that an open scans only what came after. Pure.

One JSON line and its CRC-32C, replaced atomically when a segment is sealed, the log start moves, and on close. It holds
the sizes of the files and the checksums of the indexes, so that a cut or missing file or a damaged index is noticed without
a scan. Kafka's tools ignore the file.
"""

from __future__ import annotations

import msgspec
from crc32c import crc32c

from logflume.log.errors import CorruptLog, StorageError

FILE_NAME = "logflume.checkpoint"
VERSION = 1


class SegmentInfo(msgspec.Struct, frozen=True, array_like=True):
    """What is known of one segment up to the recovery point. `*_crc`: CRC-32C of the index files."""

    base_offset: int
    size_bytes: int
    next_offset: int
    max_timestamp_ms: int
    max_timestamp_offset: int
    index_crc: int
    time_index_crc: int
    txn_index_crc: int


class Checkpoint(msgspec.Struct, frozen=True):
    """State of a partition at its recovery point, which is the end of the last segment listed.

    Attributes:
        cleaned_offset: end of what was compacted.
        dense_offset: segments that begin from here on leave out no offsets.
        epochs_crc: CRC-32C of the file of leader epochs.
        snapshot_crc: CRC-32C of the producer snapshot at the recovery point.
        boot_id: of the machine when the log was last open (see `Disk.boot_id`).
        swaps: base offsets of segments whose new files may still have the suffix `swap_suffix`: an open renames them.
    """

    version: int
    log_start_offset: int
    recovery_point: int
    segments: list[SegmentInfo]
    cleaned_offset: int = 0
    dense_offset: int = 0
    epochs_crc: int = 0
    snapshot_crc: int = 0
    boot_id: str = ""
    swaps: tuple[int, ...] = ()
    swap_suffix: str = ""


_decode_checkpoint = msgspec.json.Decoder(Checkpoint).decode


def pack_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the content of the checkpoint file."""
    body = msgspec.json.encode(checkpoint)
    return body + f"\n{crc32c(body):08x}\n".encode()


def unpack_checkpoint(data: bytes | None, path: str) -> Checkpoint | None:
    """Return the checkpoint, None if there is no file.

    Raises:
        CorruptLog: its checksum does not match.
        StorageError: written by a newer version.
    """
    if data is None:
        return None
    body, _, rest = data.partition(b"\n")
    if rest != f"{crc32c(body):08x}\n".encode():
        raise CorruptLog(
            f"{path}: the checksum of this checkpoint does not match; restore it, or remove it to have the whole log "
            "scanned (records deleted by DeleteRecords may come back)"
        )
    version = msgspec.json.decode(body).get("version")
    if version != VERSION:
        raise StorageError(f"{path}: expected a checkpoint of version {VERSION}, found {version}; open it with a newer logflume")
    return _decode_checkpoint(body)
