"""Scanning a segment whose end is not known to be good: take in whole batches, tell a torn tail from corruption.

A torn tail (an unfinished write before a crash) is cut off by the caller and reported. Damaged bytes with a good batch anywhere
behind them are not a torn tail, for batches are written in order: `CorruptLog`, nothing is changed. Only when the machine
lost power may writes that were not fsynced have reached the disk out of order; then the tail from the damage on is cut off,
and its bytes are kept beside the segment (`keep_aside`), for nothing proves that they had not been acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable

from logflume.log.batch.errors import CorruptBatch
from logflume.log.batch.header import (
    HEADER_BYTES,
    MAGIC,
    MAGIC_AT,
    BatchHeader,
    check_crc,
    compute_crc,
    parse_header,
    place_and_crc_at,
    size_at,
)

from .disk import Disk, File
from .segment import MAX_RELATIVE_OFFSET, Segment

_WINDOW_BYTES = 4 * 1024 * 1024

TakeBatch = Callable[[BatchHeader, int, memoryview], None]
"""Called with each good batch: header, position, the batch's bytes."""


def scan_batches(
    segment: Segment,
    start: int,
    size_bytes: int,
    expected_offset: int,
    take: TakeBatch,
    *,
    has_gaps: bool = False,
    may_have_holes: bool = False,
) -> tuple[int, bool]:
    """Take in every good batch of the segment's file from `start`, checksum and offset included.

    Returns where they end, and whether good batches follow later. Bytes between that position and `size_bytes`, the file's, are
    a torn tail.

    Args:
        expected_offset: the first batch begins there.
        has_gaps: batches may begin later than where the one before ends (compacted logs).
        may_have_holes: the machine lost power since the recovery point.

    Raises:
        CorruptLog: damaged bytes with a good batch behind them, and there cannot be holes.
    """
    position = start
    window, window_start = memoryview(b""), start
    while position < size_bytes:
        window, window_start = window_with_batch(segment.file, window, window_start, position, size_bytes)
        at = position - window_start
        is_whole = False
        try:
            header = parse_header(window, at)
            check_crc(window, header, at)
            is_whole = True  # no torn write leaves that: then its offset, or one before it, is damaged
            _check_offset(header, segment, expected_offset, has_gaps=has_gaps)
        except CorruptBatch as error:
            has_more = is_whole or has_batch_behind(segment.file, position + 1, size_bytes, expected_offset)
            if has_more and not may_have_holes:
                raise segment.corrupt(position, error) from error
            return position, has_more
        take(header, position, window[at : at + header.size_bytes])
        expected_offset = header.last_offset + 1
        position += header.size_bytes
    return position, False


def _check_offset(header: BatchHeader, segment: Segment, expected_offset: int, *, has_gaps: bool) -> None:
    """Raise CorruptBatch unless the batch, whose checksum does not cover its offset, begins where it should."""
    is_wide = header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
    if header.base_offset < expected_offset or is_wide or (header.base_offset > expected_offset and not has_gaps):
        raise CorruptBatch(f"expected offset {expected_offset}{' or later' if has_gaps else ''}, found {header.base_offset}")


def keep_aside(segment: Segment, position: int, size_bytes: int, *, disk: Disk) -> str:
    """Copy the bytes from `position` to the end of the segment's file, durably, to a file beside it; return its path."""
    path = f"{segment.path}.{position}.torn"
    copy = disk.open(path, create=True)
    copy.truncate(0)
    for start in range(position, size_bytes, _WINDOW_BYTES):
        copy.write(start - position, [segment.file.read(start, min(_WINDOW_BYTES, size_bytes - start))])
    copy.sync()
    copy.close()
    return path


def window_with_batch(
    file: File, window: memoryview, window_start: int, position: int, size_bytes: int, *, window_bytes: int = _WINDOW_BYTES
) -> tuple[memoryview, int]:
    """Return a window of the file that holds the whole batch at `position`, as far as the file does."""
    at = position - window_start
    left = size_bytes - position
    wanted = size_at(window, at)
    if wanted is not None and at + min(wanted, left) <= len(window):
        return window, window_start
    window = memoryview(file.read(position, min(window_bytes, left)))
    wanted = size_at(window)
    if wanted is not None and len(window) < wanted <= left:
        window = memoryview(file.read(position, wanted))
    return window, position


def has_batch_behind(file: File, start: int, size_bytes: int, expected_offset: int) -> bool:
    """Say whether a good batch with an offset from `expected_offset` on begins anywhere from `start` on."""
    position = start
    while position + HEADER_BYTES <= size_bytes:
        window = file.read(position, min(_WINDOW_BYTES, size_bytes - position))
        at = window.find(MAGIC, MAGIC_AT)
        while at >= 0 and at - MAGIC_AT + HEADER_BYTES <= len(window):
            begin = at - MAGIC_AT
            if _is_batch(file, window, begin, position + begin, size_bytes, expected_offset):
                return True
            at = window.find(MAGIC, at + 1)
        position += max(len(window) - HEADER_BYTES + 1, 1)
    return False


def _is_batch(file: File, window: bytes, at: int, position: int, size_bytes: int, expected_offset: int) -> bool:
    base_offset, size, crc = place_and_crc_at(window, at)
    if base_offset < expected_offset or size < HEADER_BYTES or position + size > size_bytes:
        return False
    batch = window[at : at + size] if at + size <= len(window) else file.read(position, size)
    return compute_crc(batch, 0, size) == crc
