"""Archives: committed records of topics as Parquet files with their offsets, for a history that the log itself need not keep.

PATH/<topic>/<topic>-<partition>-<start>-<end>.parquet holds what a committed reader sees of offsets [start, end): columns
`offset`, `timestamp_ms`, `key`, `value` and `headers`, in order of offsets. PATH is a directory or what pyarrow knows (s3://...).
A file appears whole, so its name says what it has: the files of a partition must follow each other, and the log after them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from logflume.log import Chunk, InvalidInput, Log, LogflumeError, TopicPartition

from .ranges import OffsetRange, RangeLost, read_range, split

RECORDS_PER_FILE = 1_000_000
BATCH_RECORDS = 50_000
COLUMNS = ("offset", "timestamp_ms", "key", "value", "headers")
_NAME = re.compile(r"(?P<topic>.+)-(?P<partition>\d{1,10})-(?P<start>\d{20})-(?P<end>\d{20})\.parquet")


class ArchiveUnreadable(LogflumeError):
    """A file of an archive cannot be read, or does not hold what its name says; names it."""

    code = "ARCHIVE_UNREADABLE"


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A file at `path` in the archive `root`, and which offsets it holds."""

    root: str
    path: str
    held: OffsetRange


Archive = Mapping[TopicPartition, tuple[ArchiveFile, ...]]
"""Of each partition its files, in order and without a gap."""


def find_archive(root: str, topics: Sequence[str]) -> Archive:
    """Return what an archive holds of these topics.

    Raises:
        InvalidInput: no such archive, or the files of a partition leave a gap or overlap.
    """
    from pyarrow import fs

    system, base = open_root(root)
    if system.get_file_info(base).type is not fs.FileType.Directory:
        raise InvalidInput(f"no archive at {root}; make one with: logflume archive TOPIC --to {root}")
    found: dict[TopicPartition, list[ArchiveFile]] = {}
    for topic in topics:
        for info in system.get_file_info(fs.FileSelector(f"{base}/{topic}", allow_not_found=True)):
            named = _NAME.fullmatch(info.base_name)
            if named is None or named["topic"] != topic:
                continue
            held = OffsetRange(topic, int(named["partition"]), int(named["start"]), int(named["end"]))
            found.setdefault(held.topic_partition, []).append(ArchiveFile(root, info.path, held))
    return {tp: _in_order(files) for tp, files in found.items()}


def _in_order(files: list[ArchiveFile]) -> tuple[ArchiveFile, ...]:
    ordered = tuple(sorted(files, key=lambda each: (each.held.start, each.held.end)))
    for one, other in pairwise(ordered):
        if one.held.end != other.held.start:
            what = "leave a gap between" if one.held.end < other.held.start else "overlap:"
            raise InvalidInput(
                f"files of the archive {what} {one.path} and {other.path}: one ends at offset {one.held.end}, the other "
                f"begins at {other.held.start}; remove the wrong one, or archive again from an empty directory"
            )
    return ordered


def join_history(logged: OffsetRange, files: Sequence[ArchiveFile]) -> OffsetRange:
    """Return the whole history of a partition of which the log has `logged`; a log that has all of it needs no archive.

    Raises:
        RangeLost: there is a gap between the two.
        InvalidInput: the archive is of another topic of that name.
    """
    if not files or logged.start <= files[0].held.start:
        return logged
    first, end = files[0].held.start, files[-1].held.end
    name = f"{logged.topic}-{logged.partition}"
    if end < logged.start:
        raise RangeLost(
            f"{name}: the archive ends at offset {end} and the log starts at {logged.start}: the records between are in neither; "
            "archive more often than the log's retention takes records away"
        )
    if end > logged.end:
        raise InvalidInput(
            f"{name}: the archive ends at offset {end}, beyond the end of the log at {logged.end}: it is of another topic of "
            "that name"
        )
    return OffsetRange(logged.topic, logged.partition, first, logged.end)


def left_to_the_log(wanted: OffsetRange, files: Sequence[ArchiveFile]) -> OffsetRange:
    """Return the part of a range that has to be in the log."""
    if not files or wanted.start < files[0].held.start:
        return wanted
    start = min(max(wanted.start, files[-1].held.end), wanted.end)
    return OffsetRange(wanted.topic, wanted.partition, start, wanted.end)


def read_history(log: Log, wanted: OffsetRange, files: Sequence[ArchiveFile]) -> Iterator[Chunk]:
    """Yield the records of a range, from the archive as far as that goes, then from the log."""
    rest = left_to_the_log(wanted, files)
    if rest.start > wanted.start:
        for file in files:
            if file.held.start < rest.start and file.held.end > wanted.start:
                yield from _read(file, wanted.start, rest.start)
    yield from read_range(log, rest)


def _read(file: ArchiveFile, start: int, end: int) -> Iterator[Chunk]:
    """Yield those records of a file with start <= offset < end."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    system, _ = open_root(file.root)
    try:
        with system.open_input_file(file.path) as opened:
            parquet = pq.ParquetFile(opened)
            for batch in parquet.iter_batches(BATCH_RECORDS, columns=list(COLUMNS)):
                offsets = batch.column("offset").to_numpy()
                if len(offsets) and not file.held.start <= offsets[0] <= offsets[-1] < file.held.end:
                    raise ArchiveUnreadable(
                        f"{file.path} holds offsets {offsets[0]} to {offsets[-1]}, which its name does not say"
                    )
                first, stop = (int(each) for each in np.searchsorted(offsets, (start, end)))
                if first < stop:
                    yield _chunk(file.held.topic_partition, batch.slice(first, stop - first), offsets[first:stop])
    except (pa.ArrowException, OSError, KeyError) as error:
        raise ArchiveUnreadable(f"cannot read the archive's file {file.path}: {error}") from error


def _chunk(tp: TopicPartition, rows: Any, offsets: Any) -> Chunk:
    keys, values, times, found = (rows.column(name).to_pylist() for name in ("key", "value", "timestamp_ms", "headers"))
    headers = None
    if any(found):
        headers = [tuple((header["name"], header["value"]) for header in each) for each in found]
    chunk = Chunk.from_columns(tp.topic, keys, values, times, partition=tp.partition, headers=headers)
    chunk.offsets, chunk.next_offset = offsets.astype(np.int64), int(offsets[-1]) + 1
    return chunk


def archive_topic(
    log: Log,
    topic: str,
    root: str,
    *,
    records_per_file: int = RECORDS_PER_FILE,
    on_file: Callable[[ArchiveFile, int], None] = lambda *_: None,
) -> None:
    """Write what is committed now and not in the archive yet; whatever ends this, the next time goes on behind the last file.

    Args:
        on_file: told of each file, and how many records it has.

    Raises:
        RangeLost: retention has taken records before they were archived.
        UnknownName: no such topic.
    """
    from pyarrow import fs

    system, base = open_root(root)
    admin = log.admin()
    partitions = admin.describe_topics([topic])[topic].partitions
    every = [TopicPartition(topic, partition) for partition in range(partitions)]
    starts, ends = admin.start_offsets(every), admin.end_offsets(every, read_committed=True)
    system.create_dir(f"{base}/{topic}", recursive=True)
    held = find_archive(root, [topic])
    wanted: list[OffsetRange] = []
    for tp in every:
        logged = OffsetRange(*tp, starts[tp], max(starts[tp], ends[tp]))
        files = held.get(tp, ())
        join_history(logged, files)
        first = max(files[-1].held.end if files else 0, logged.start)
        wanted += split(OffsetRange(*tp, first, max(first, logged.end)), records_per_file)
    for each in wanted:
        name = f"{base}/{topic}/{topic}-{each.partition}-{each.start:020d}-{each.end:020d}.parquet"
        records = _write(system, name, read_range(log, each))
        if isinstance(system, fs.LocalFileSystem):
            _sync(Path(name).parent)
        on_file(ArchiveFile(root, name, each), records)


def _write(system: Any, name: str, chunks: Iterator[Chunk]) -> int:
    """Write a file under another name, then give it its own; return how many records it has."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import fs

    header = pa.struct([("name", pa.string()), ("value", pa.binary())])
    types = (pa.int64(), pa.int64(), pa.binary(), pa.binary(), pa.list_(header))
    schema = pa.schema(list(zip(COLUMNS, types, strict=True)))
    unfinished = f"{name}.{os.getpid()}.unfinished"
    records = 0
    with system.open_output_stream(unfinished) as opened, pq.ParquetWriter(opened, schema, compression="zstd") as writer:
        for chunk in chunks:
            found = [[{"name": name, "value": value} for name, value in each] for each in chunk.headers()]
            columns = (chunk.offsets, chunk.timestamps_ms, chunk.keys(), chunk.values(), found)
            arrays = [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
            records += len(chunk)
    if isinstance(system, fs.LocalFileSystem):
        _sync(Path(unfinished))
    system.move(unfinished, name)
    return records


def _sync(path: Path) -> None:
    """Have the disk keep a file, or the names in a directory."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@cache
def open_root(root: str) -> tuple[Any, str]:
    """Return the file system of an archive and where the archive is in it."""
    import pyarrow as pa
    from pyarrow import fs

    if "://" not in root:
        return fs.LocalFileSystem(), str(Path(root).expanduser().resolve())
    try:
        system, base = fs.FileSystem.from_uri(root)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidInput(f"an archive is a directory or a URI such as s3://bucket/folder, found {root!r}: {error}") from error
    return system, str(base).rstrip("/")
