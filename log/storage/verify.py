"""Reading every byte of a partition's log to see whether it is good. Changes nothing; the log may be in use meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

from crc32c import crc32c

from logflume.log.errors import CorruptLog, StorageError

from .checking import checked_batches
from .checkpoint import FILE_NAME, SegmentInfo, unpack_checkpoint
from .disk import Disk
from .epochs import LeaderEpochs
from .recovery import TakeBatch, scan_batches
from .segment import INDEX_SUFFIXES, Segment, file_name
from .statefiles import EPOCHS_FILE
from .txnindex import known_beginning

_INDEX_INTERVAL_BYTES = 1 << 30
_TRIES = 3


class Damage(NamedTuple):
    """Bytes that are not what was written: from `position` of the file on."""

    path: str
    position: int
    cause: str


def verify_log(directory: str, *, disk: Disk) -> list[Damage]:
    """Return the first damage of each file: checksums that do not match, offsets out of order, a cut, a missing file.

    The end of the last segment is not damage: a write may be under way, or was torn by a crash that opening will mend. Nor are
    gaps between offsets where compaction left them.
    """
    for _ in range(_TRIES):
        before = disk.read_file(f"{directory}/{FILE_NAME}")
        found = list(_damages(directory, disk, before))
        if not found or disk.read_file(f"{directory}/{FILE_NAME}") == before:
            break  # else the log was rolled, compacted or cut under our hands
    return found


def _damages(directory: str, disk: Disk, checkpoint_bytes: bytes | None) -> Iterator[Damage]:
    try:
        checkpoint = unpack_checkpoint(checkpoint_bytes, f"{directory}/{FILE_NAME}")
    except StorageError as error:
        yield Damage(f"{directory}/{FILE_NAME}", 0, str(error))
        checkpoint = None
    infos = {info.base_offset: info for info in checkpoint.segments} if checkpoint else {}
    sealed = set(sorted(infos)[:-1])
    epochs = LeaderEpochs()  # with none nothing is compared
    if checkpoint is not None and checkpoint.epochs_crc:
        content = disk.read_file(f"{directory}/{EPOCHS_FILE}") or b""
        if crc32c(content) == checkpoint.epochs_crc:
            epochs = LeaderEpochs.from_bytes(content) or epochs
        else:
            yield Damage(f"{directory}/{EPOCHS_FILE}", 0, "expected the leader epochs that the checkpoint knows, found others")
    bases = sorted(int(name[: -len(".log")]) for name in disk.list(directory) if name.endswith(".log"))
    for base_offset in sorted(infos.keys() - set(bases)):
        yield Damage(f"{directory}/{file_name(base_offset, '.log')}", 0, "expected a segment, found no such file")
    for base_offset, next_base in zip_longest(bases, bases[1:]):
        info = infos.get(base_offset)
        if info is not None and base_offset in sealed:
            is_dense = checkpoint is None or base_offset >= checkpoint.dense_offset
            yield from _sealed_damages(directory, disk, info, epochs, is_dense=is_dense)
        else:
            is_dense = checkpoint is not None and base_offset >= checkpoint.dense_offset
            yield from _open_damages(directory, disk, base_offset, next_base, has_gaps=not is_dense)


def _sealed_damages(directory: str, disk: Disk, info: SegmentInfo, epochs: LeaderEpochs, *, is_dense: bool) -> Iterator[Damage]:
    """Compare the files of a sealed segment with what the checkpoint knows of them."""
    crcs = (info.index_crc, info.time_index_crc, info.txn_index_crc)
    for kind, crc in zip(INDEX_SUFFIXES, crcs, strict=True):
        path = f"{directory}/{file_name(info.base_offset, kind)}"
        content = disk.read_file(path)
        if content is None and not crc:
            continue
        is_known = known_beginning(content or b"", crc) is not None if kind == ".txnindex" else crc32c(content or b"") == crc
        if not is_known:
            found = "no such file" if content is None else "another checksum"
            yield Damage(path, 0, f"expected the index that the checkpoint knows, found {found}")
    segment = Segment(disk, directory, info.base_offset, index_interval_bytes=_INDEX_INTERVAL_BYTES, info=info, is_dense=is_dense)
    size_bytes, position = disk.size(segment.path), 0
    if size_bytes != info.size_bytes:
        yield Damage(segment.path, min(size_bytes, info.size_bytes), f"expected {info.size_bytes} bytes, found {size_bytes}")
        return
    try:
        for at, header, _ in checked_batches(segment, 0, info.size_bytes, epochs=epochs):
            position = at + header.size_bytes
    except CorruptLog as error:
        yield Damage(segment.path, position, str(error))


def _open_damages(directory: str, disk: Disk, base_offset: int, next_base: int | None, *, has_gaps: bool) -> Iterator[Damage]:
    """Scan a segment that is written to, or of which no checkpoint knows."""
    segment = Segment(disk, directory, base_offset, index_interval_bytes=_INDEX_INTERVAL_BYTES)
    size_bytes = disk.size(segment.path)
    try:
        end, _ = scan_batches(segment, 0, size_bytes, base_offset, _taker(segment), has_gaps=has_gaps)
    except CorruptLog as error:
        yield Damage(segment.path, segment.size_bytes, str(error))
        return
    if next_base is None:
        return
    if end < size_bytes:
        yield Damage(segment.path, end, f"expected whole batches up to byte {size_bytes}, the last one is cut or damaged")
    elif segment.next_offset > next_base:
        yield Damage(segment.path, 0, f"expected offsets below {next_base}, found {segment.next_offset - 1}")


def _taker(segment: Segment) -> TakeBatch:
    return lambda header, position, _: segment.note(header, position)
