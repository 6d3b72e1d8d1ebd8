"""Compacted segments take the place of those that they were made from: a checkpoint names them, then their files are renamed."""

from __future__ import annotations

from collections.abc import Sequence

from logflume.log.errors import CorruptLog

from .checkpoint import SegmentInfo
from .disk import Disk
from .segment import SEGMENT_SUFFIXES, file_name


def finish_swaps(disk: Disk, directory: str, infos: Sequence[SegmentInfo], suffix: str) -> None:
    """Give the files of compacted segments, which a checkpoint names, their final names; those that have them already stay.

    Raises:
        CorruptLog: a file has another size than the checkpoint says; nothing was changed.
    """
    for info in infos:
        path = f"{directory}/{file_name(info.base_offset, '.log')}{suffix}"
        size_bytes = disk.size(path)
        if size_bytes not in (-1, info.size_bytes):
            raise CorruptLog(
                f"{path}: expected a compacted segment of {info.size_bytes} bytes, found {size_bytes}; restore this file from a "
                "copy, the log is left as it is"
            )
    for info in infos:
        for kind in SEGMENT_SUFFIXES:
            target = f"{directory}/{file_name(info.base_offset, kind)}"
            if disk.size(target + suffix) >= 0:
                disk.rename(target + suffix, target)
    disk.fsync_dir(directory)
