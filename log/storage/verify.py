"""Reading every byte of a partition's log to see whether it is good. Changes nothing; the log may be in use meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from logflume.log.errors import CorruptLog

from .disk import Disk
from .recovery import TakeBatch, scan_batches
from .segment import Segment

_INDEX_INTERVAL_BYTES = 1 << 30


class Damage(NamedTuple):
    """Bytes that are not what was written: from `position` of the file on."""

    path: str
    position: int
    cause: str


def verify_log(directory: str, *, disk: Disk) -> Iterator[Damage]:
    """Yield the first damage of each segment file: a checksum that does not match, offsets out of order, a cut.

    The end of the last segment is not damage: a write may be under way, or was torn by a crash that opening will mend.
    """
    bases = sorted(int(name[: -len(".log")]) for name in disk.list(directory) if name.endswith(".log"))
    for base_offset, next_base in zip(bases, [*bases[1:], None], strict=True):
        segment = Segment(disk, directory, base_offset, index_interval_bytes=_INDEX_INTERVAL_BYTES)
        size_bytes = disk.size(segment.path)
        try:
            end, _ = scan_batches(segment, 0, size_bytes, base_offset, _taker(segment))
        except CorruptLog as error:
            yield Damage(segment.path, segment.size_bytes, str(error))
            continue
        if next_base is None:
            continue
        if end < size_bytes:
            yield Damage(segment.path, end, f"expected whole batches up to byte {size_bytes}, the last one is cut or damaged")
        elif segment.next_offset > next_base:
            yield Damage(segment.path, 0, f"expected offsets below {next_base}, found {segment.next_offset - 1}")


def _taker(segment: Segment) -> TakeBatch:
    return lambda header, position, _: segment.note(header, position)
