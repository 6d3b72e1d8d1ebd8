"""One segment: a `.log` file of batches and its indexes. Knows positions and headers, never records, never durability."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from crc32c import crc32c

from logflume.log.batch.errors import CorruptBatch
from logflume.log.batch.header import HEADER_BYTES, BatchHeader, Buffer, parse_header
from logflume.log.errors import CorruptLog

from .checkpoint import SegmentInfo
from .disk import Disk, File, write_atomically, write_plainly
from .indexes import OffsetIndex, TimeIndex
from .slices import AbortedTransaction
from .txnindex import known_beginning, pack_aborted, unpack_aborted

INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex")
SEGMENT_SUFFIXES = (".log", *INDEX_SUFFIXES)
MAX_RELATIVE_OFFSET = 0x7FFFFFFF
_SCAN_BYTES = 16 * 1024
_RECENT_BATCHES = 2048


def file_name(offset: int, suffix: str) -> str:
    """Return Kafka's file name for an offset: 20 digits and a suffix."""
    return f"{offset:020d}{suffix}"


class Segment:
    """The batches from `base_offset` on, up to the next segment's.

    Invariants: `size_bytes` is where the next batch goes, and the file may be longer only after a failed write; the indexes
    cover every batch below it once loaded. `recent_*` hold last offset and position of the latest batches, so that reads at the
    tail need no scan. `unchecked` are the runs of bytes that were neither written nor checked by this process, in order.
    """

    __slots__ = (
        "_aborted",
        "_disk",
        "_file",
        "_indexes",
        "_last_indexed_position",
        "_stem",
        "_suffix",
        "base_offset",
        "index_interval_bytes",
        "info",
        "is_dense",
        "max_timestamp_ms",
        "max_timestamp_offset",
        "next_offset",
        "rebuilt_indexes",
        "recent_last_offsets",
        "recent_positions",
        "size_bytes",
        "unchecked",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        *,
        index_interval_bytes: int,
        info: SegmentInfo | None = None,
        suffix: str = "",
        is_dense: bool = True,
    ) -> None:
        """Describe a segment whose file exists, or is about to; with `info` as a checkpoint knows it.

        Args:
            suffix: appended to the names of its files while it is not yet part of the log.
            is_dense: no offsets are left out in it, as compaction does.
        """
        self._disk = disk
        self._stem = f"{directory}/{base_offset:020d}"
        self._suffix = suffix
        self._file: File | None = None
        self._indexes: tuple[OffsetIndex, TimeIndex] | None = None
        self._aborted: list[AbortedTransaction] | None = None
        self._last_indexed_position = 0
        self.base_offset = base_offset
        self.index_interval_bytes = index_interval_bytes
        self.info = info
        self.is_dense = is_dense
        self.unchecked = [(0, info.size_bytes)] if info is not None and info.size_bytes else []
        self.rebuilt_indexes = 0
        self.recent_last_offsets: list[int] = []
        self.recent_positions: list[int] = []
        self.next_offset = info.next_offset if info else base_offset
        self.size_bytes = info.size_bytes if info else 0
        self.max_timestamp_ms = info.max_timestamp_ms if info else -1
        self.max_timestamp_offset = info.max_timestamp_offset if info else -1
        if info is None:
            self._indexes = OffsetIndex(), TimeIndex()
            self._aborted = []

    @property
    def path(self) -> str:
        return self._path(".log")

    def _path(self, kind: str) -> str:
        return f"{self._stem}{kind}{self._suffix}"

    @property
    def file(self) -> File:
        """The open `.log` file."""
        if self._file is None:
            self._file = self._disk.open(self.path, create=self.info is None)
        return self._file

    @property
    def offset_index(self) -> OffsetIndex:
        return self._load_indexes()[0]

    @property
    def time_index(self) -> TimeIndex:
        return self._load_indexes()[1]

    @property
    def aborted(self) -> list[AbortedTransaction]:
        """The aborted transactions whose markers lie in this segment, in order of marker."""
        if self._aborted is None:
            assert self.info is not None, "a segment without a checkpoint has its indexes in memory"
            self._aborted = self._read_aborted(self.info)
        return self._aborted

    def write(self, buffers: Sequence[Buffer], header: BatchHeader) -> None:
        """Write a stamped batch at the end; on an error nothing is noted and the file may be longer than `size_bytes`."""
        self.file.write(self.size_bytes, buffers)
        self.note(header, self.size_bytes)

    def note(self, header: BatchHeader, position: int) -> None:
        """Take a batch that is in the file at `position`, the end so far, into sizes, indexes and tail."""
        last_offset = header.last_offset
        if header.max_timestamp > self.max_timestamp_ms:
            self.max_timestamp_ms, self.max_timestamp_offset = header.max_timestamp, last_offset
        if position == 0 or position - self._last_indexed_position >= self.index_interval_bytes:
            offset_index, time_index = self._load_indexes()
            offset_index.add(last_offset - self.base_offset, position)
            if self.max_timestamp_offset >= 0:
                time_index.add(self.max_timestamp_ms, self.max_timestamp_offset - self.base_offset)
            self._last_indexed_position = position
        self.recent_last_offsets.append(last_offset)
        self.recent_positions.append(position)
        if len(self.recent_positions) > _RECENT_BATCHES:
            del self.recent_last_offsets[: _RECENT_BATCHES // 2], self.recent_positions[: _RECENT_BATCHES // 2]
        self.next_offset = last_offset + 1
        self.size_bytes = position + header.size_bytes

    def unchecked_within(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of start..end that were not checked."""
        return [(max(first, start), last) for first, last in self.unchecked if first < end and last > start]

    def mark_checked(self, start: int, end: int) -> None:
        """Take the bytes from `start` to `end` out of those that were not checked."""
        left = [part for first, last in self.unchecked for part in ((first, min(last, start)), (max(first, end), last))]
        self.unchecked = [(first, last) for first, last in left if first < last]

    def position_of(self, offset: int) -> int:
        """Return the position of the first batch whose last offset is >= `offset`; `size_bytes` if there is none."""
        if offset >= self.next_offset:
            return self.size_bytes
        recent = self.recent_last_offsets
        i = bisect_left(recent, offset)
        if i or (recent and self.recent_positions[0] == 0):
            return self.recent_positions[i]
        for position, header in self.scan(self.anchor_of(offset)):
            if header.last_offset >= offset:
                return position
        return self.size_bytes

    def anchor_of(self, offset: int) -> int:
        """Return the position of the batch from which the index has one look for `offset`."""
        return self.offset_index.lookup(min(max(offset - self.base_offset, 0), MAX_RELATIVE_OFFSET))

    def batch_boundary(self, position: int) -> int:
        """Return a batch's position <= `position`, the largest that is known without reading."""
        i = bisect_right(self.recent_positions, position)
        if i:
            return self.recent_positions[i - 1]
        return self.offset_index.boundary(position)

    def scan(self, start: int, *, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of each batch from `start`, a batch's position, to `end` (default: the segment's).

        Raises:
            CorruptLog: the bytes there are not a batch.
        """
        end = self.size_bytes if end is None else end
        window, window_start = b"", start
        position = start
        while position < end:
            at = position - window_start
            if at + HEADER_BYTES > len(window):
                window, window_start, at = self.file.read(position, min(_SCAN_BYTES, end - position)), position, 0
            try:
                header = parse_header(window, at, end=at + end - position if len(window) >= at + HEADER_BYTES else len(window))
            except CorruptBatch as error:
                raise self.corrupt(position, error) from error
            yield position, header
            position += header.size_bytes

    def check_place(self, position: int, header: BatchHeader, expected_offset: int, *, has_gaps: bool) -> None:
        """Check that a batch, whose checksum does not cover its offset, holds the offsets that follow. Raises CorruptLog."""
        follows = header.base_offset == expected_offset or (has_gaps and header.base_offset > expected_offset)
        if not follows or header.last_offset >= self.next_offset:
            raise self.corrupt(
                position,
                f"it says offsets {header.base_offset} to {header.last_offset}, expected {expected_offset} and on, below "
                f"{self.next_offset}",
            )

    def header_at(self, position: int) -> BatchHeader:
        """Return the header of the batch at `position`. Raises CorruptLog."""
        try:
            return parse_header(self.file.read(position, HEADER_BYTES), end=self.size_bytes - position)
        except (CorruptBatch, struct.error) as error:
            raise self.corrupt(position, error) from error

    def offset_at(self, position: int) -> int:
        """Return the offset after the batch that ends at `position`; the base offset for 0."""
        next_offset = self.base_offset
        if position:
            for _, header in self.scan(self.offset_index.boundary(position - 1), end=position):
                next_offset = header.last_offset + 1
        return next_offset

    def copy(self) -> Segment:
        """Return the segment as a checkpoint knows it, with a file and indexes of its own, to be read in another thread."""
        return Segment(
            self._disk,
            self._stem.rpartition("/")[0],
            self.base_offset,
            index_interval_bytes=self.index_interval_bytes,
            info=self.info,
            is_dense=self.is_dense,
        )

    def forget_info(self) -> None:
        """Forget what a checkpoint knew, once the indexes are in memory: the segment is about to change."""
        self._load_indexes()
        self._aborted = self.aborted
        self.info = None

    def corrupt(self, position: int, cause: object) -> CorruptLog:
        """Return the error for bytes at `position` that should be a batch."""
        return CorruptLog(
            f"{self.path}: expected a batch at position {position}, found damaged bytes ({cause}); "
            "restore this file from a copy, the log is left as it is"
        )

    def cut(self, position: int, next_offset: int) -> None:
        """Shorten the segment to `position`, a batch's, after which offset `next_offset` follows."""
        offset_index, time_index = self._load_indexes()
        offset_index.cut(position)
        time_index.cut(next_offset - self.base_offset)
        self._aborted = [each for each in self.aborted if each.last_offset < next_offset]
        i = bisect_left(self.recent_positions, position)
        del self.recent_last_offsets[i:], self.recent_positions[i:]
        self.file.truncate(position)
        self.unchecked = [(first, min(last, position)) for first, last in self.unchecked if first < position]
        self.size_bytes, self.next_offset = position, next_offset
        self._last_indexed_position = offset_index.last_position
        self.max_timestamp_ms = self.max_timestamp_offset = -1
        start = 0
        if len(time_index):
            self.max_timestamp_ms = time_index.last[0]
            self.max_timestamp_offset = time_index.last[1] + self.base_offset
            start = self.position_of(self.max_timestamp_offset)
        for _, header in self.scan(start):
            if header.max_timestamp > self.max_timestamp_ms:
                self.max_timestamp_ms, self.max_timestamp_offset = header.max_timestamp, header.last_offset

    def save_indexes(self) -> SegmentInfo:
        """Write the index files; return what a checkpoint has to know of this segment.

        The others are rebuilt if their checksums do not match. Aborted transactions cannot be, so their file is replaced
        atomically: until the next checkpoint is written, the last one's transactions are the beginning of it.
        """
        offset_index, time_index = self._load_indexes()
        if self.max_timestamp_offset >= 0:
            time_index.add(self.max_timestamp_ms, self.max_timestamp_offset - self.base_offset)
        contents = (offset_index.to_bytes(), time_index.to_bytes(), pack_aborted(self.aborted))
        for kind, content in zip(INDEX_SUFFIXES, contents, strict=True):
            if kind == ".txnindex" and not content:
                self._disk.remove(self._path(kind))
                continue
            write = write_atomically if kind == ".txnindex" else write_plainly
            write(self._disk, self._path(kind), content)
        self.info = SegmentInfo(
            self.base_offset,
            self.size_bytes,
            self.next_offset,
            self.max_timestamp_ms,
            self.max_timestamp_offset,
            *map(crc32c, contents),
        )
        return self.info

    def _load_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        if self._indexes is None:
            assert self.info is not None, "a segment without a checkpoint has its indexes in memory"
            self._indexes = self._read_indexes(self.info)
            self._last_indexed_position = self._indexes[0].last_position
        return self._indexes

    def _read_indexes(self, info: SegmentInfo) -> tuple[OffsetIndex, TimeIndex]:
        """Return the indexes in the files, or rebuilt from the segment if a checksum does not match."""
        index_bytes, time_index_bytes = (self._disk.read_file(self._path(kind)) or b"" for kind in INDEX_SUFFIXES[:2])
        if crc32c(index_bytes) == info.index_crc and crc32c(time_index_bytes) == info.time_index_crc:
            return OffsetIndex(index_bytes), TimeIndex(time_index_bytes)
        self.rebuilt_indexes += 1
        index, time_index = OffsetIndex(), TimeIndex()
        max_timestamp_ms, max_offset, indexed_position = -1, -1, -self.index_interval_bytes
        expected_offset = self.base_offset
        for position, header in self.scan(0, end=info.size_bytes):
            self.check_place(position, header, expected_offset, has_gaps=not self.is_dense)
            expected_offset = header.last_offset + 1
            if header.max_timestamp > max_timestamp_ms:
                max_timestamp_ms, max_offset = header.max_timestamp, header.last_offset
            if position - indexed_position >= self.index_interval_bytes:
                index.add(header.last_offset - self.base_offset, position)
                if max_offset >= 0:
                    time_index.add(max_timestamp_ms, max_offset - self.base_offset)
                indexed_position = position
        if max_offset >= 0:
            time_index.add(max_timestamp_ms, max_offset - self.base_offset)
        return index, time_index

    def _read_aborted(self, info: SegmentInfo) -> list[AbortedTransaction]:
        """Return the aborted transactions that the checkpoint knows: the file, or its beginning if a crash came first.

        Raises:
            CorruptLog: its checksum does not match; they cannot be rebuilt from one segment alone.
        """
        if not info.txn_index_crc:
            return []
        content = known_beginning(self._disk.read_file(self._path(".txnindex")) or b"", info.txn_index_crc)
        if content is None:
            raise CorruptLog(
                f"{self._path('.txnindex')}: the checksum of this index does not match; restore it from a copy, or remove "
                "the partition's checkpoint file to have the whole log scanned"
            )
        return unpack_aborted(content)

    def sync(self) -> None:
        """fdatasync the `.log` file."""
        self.file.sync()

    def unload(self) -> None:
        """Give up what can be read again (indexes, tail, open file), if a checkpoint knows the segment as it is."""
        if self.info is not None and self.info.size_bytes == self.size_bytes:
            self._indexes = self._aborted = self._file = None
            self.recent_last_offsets.clear()
            self.recent_positions.clear()

    def remove_indexes(self) -> None:
        """Remove the index files that can be rebuilt, once they are in memory."""
        self._load_indexes()
        for kind in INDEX_SUFFIXES[:2]:
            self._disk.remove(self._path(kind))

    def remove(self) -> None:
        """Remove the segment's files; slices of it stay readable while they are referred to."""
        self._file = None
        for kind in SEGMENT_SUFFIXES:
            self._disk.remove(self._path(kind))

    def close(self) -> None:
        """Give up the file; it is closed once no slice or flush refers to it."""
        self._file = None
