"""Archives: committed records of topics as Parquet files with their offsets, for a history that the log itself need not keep.

PATH/<topic>/<topic>-<partition>-<start>-<end>.parquet holds what a committed reader sees of offsets [start, end): columns
`offset`, `timestamp_ms`, `key`, `value`, `headers` and `digest` (`digests.py`), in order of
offsets. PATH is a directory or what pyarrow knows (s3://...).
A file appears whole, so its name says what it has: the files of a partition must follow each other, and the log after them.
An archive may also be tables that list such files (`archive_tables.py`): delta:PATH, iceberg:CATALOG/NAMESPACE.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from logflume.log import Chunk, InvalidInput, Log, LogflumeError, TopicPartition

from .archive_tables import DataFile, TableUnreadable, check_spans, is_table, open_table
from .digests import row_digests
from .ranges import OffsetRange, RangeLost, read_range

BATCH_RECORDS, BATCH_BYTES = 100_000, 64 << 20
COLUMNS = ("offset", "timestamp_ms", "key", "value", "headers", "digest")
RECORDS = b"logflume.records"
"""In a file's footer: how many it was written with."""
BY_OTHERS = "others have written it anew; restore it, or archive anew elsewhere"
_NAME = re.compile(r"(?P<topic>.+)-(?P<partition>\d{1,10})-(?P<start>\d{20})-(?P<end>\d{20})\.parquet")
_OWN_NAME = re.compile(r".+-\d{1,10}-\d{20}-\d{20}-[0-9a-f]{32}\.parquet")
"""Of a table's file that `logflume archive` has written."""


class ArchiveUnreadable(LogflumeError):
    """A file of an archive cannot be read, or does not hold what its name says or what was archived; names it."""

    code = "ARCHIVE_UNREADABLE"


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A file at `path` in the archive `root`, and which offsets it holds.

    `parts`: of a table the data files that may have rows of the partition; `path` is where the table is.
    """

    root: str
    path: str
    held: OffsetRange
    parts: tuple[DataFile, ...] | None = None


Archive = Mapping[TopicPartition, tuple[ArchiveFile, ...]]
"""Of each partition its files, in order and without a gap."""


def find_archive(root: str, topics: Sequence[str]) -> Archive:
    """Return what an archive holds of these topics.

    Raises:
        InvalidInput: no such archive, or the files of a partition leave a gap or overlap.
        ArchiveUnreadable: a table does not say which offsets it holds.
    """
    from pyarrow import fs

    if is_table(root):
        return _in_tables(root, topics)
    system, base = open_root(root)
    if system.get_file_info(base).type is not fs.FileType.Directory:
        raise _nothing_at(root)
    found: dict[TopicPartition, list[ArchiveFile]] = {}
    for topic in topics:
        for info in system.get_file_info(fs.FileSelector(f"{base}/{topic}", allow_not_found=True)):
            named = _NAME.fullmatch(info.base_name)
            if named is None or named["topic"] != topic:
                continue
            held = OffsetRange(topic, int(named["partition"]), int(named["start"]), int(named["end"]))
            found.setdefault(held.topic_partition, []).append(ArchiveFile(root, info.path, held))
    return {tp: _in_order(files) for tp, files in found.items()}


def _in_tables(root: str, topics: Sequence[str]) -> Archive:
    found: dict[TopicPartition, tuple[ArchiveFile, ...]] = {}
    try:
        tables = {topic: table for topic in topics if (table := open_table(root, topic)) is not None}
        if not tables:
            raise _nothing_at(root)
        for topic, table in tables.items():
            contents = table.contents()
            for partition, (start, end) in check_spans(root, topic, table, contents).items():
                held = OffsetRange(topic, partition, start, end)
                parts = tuple(each for each in contents.files if each.may_hold(held))
                found[held.topic_partition] = (ArchiveFile(root, table.location, held, parts),)
    except TableUnreadable as error:
        raise ArchiveUnreadable(str(error)) from error
    return found


def _nothing_at(root: str) -> InvalidInput:
    return InvalidInput(f"no archive at {root}; make one with: logflume archive TOPIC --to {root}")


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


def refuse_missing(logged: OffsetRange) -> None:
    """Refuse a partition of an archived topic of which there is no file: what was gone before it was archived, files say.

    Raises:
        RangeLost: the log has lost the beginning too.
    """
    if logged.start > 0:
        raise RangeLost(
            f"{logged.topic}-{logged.partition}: nothing is archived, and the log starts at {logged.start}: the records before "
            f"are in neither; if there never was more, go on from here with: logflume archive {logged.topic} --to PATH"
        )


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

    if file.parts is not None:
        yield from _read_parts(file, start, end)
        return
    system, _ = open_root(file.root)
    try:
        with system.open_input_file(file.path) as opened:
            parquet = pq.ParquetFile(opened)
            groups = range(parquet.num_row_groups)  # one at a time: how large they are was bounded by who wrote them
            wanted = list(COLUMNS)
            for batch in chain.from_iterable(parquet.iter_batches(BATCH_RECORDS, [group], wanted) for group in groups):
                if batch.column("offset").null_count:
                    raise ArchiveUnreadable(f"{file.path} has a row without an offset: {BY_OTHERS}")
                offsets = batch.column("offset").to_numpy()
                if len(offsets) and not file.held.start <= offsets[0] <= offsets[-1] < file.held.end:
                    raise ArchiveUnreadable(
                        f"{file.path} holds offsets {offsets[0]} to {offsets[-1]}, which its name does not say"
                    )
                first, stop = (int(each) for each in np.searchsorted(offsets, (start, end)))
                if first < stop:
                    yield _chunk(file, batch.slice(first, stop - first), offsets[first:stop])
            _check_rows(file.path, parquet.metadata)  # last: what is wrong with a row says more
    except (pa.ArrowException, OSError, KeyError) as error:
        raise ArchiveUnreadable(f"cannot read the archive's file {file.path}: {error}") from error


def _read_parts(file: ArchiveFile, start: int, end: int) -> Iterator[Chunk]:
    """Yield those records of a table's partition with start <= offset < end, so many offsets at a time."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    try:
        at, stop = max(start, file.held.start), min(end, file.held.end)
        dataset, step = _dataset(file, OffsetRange(*file.held.topic_partition, at, stop))
        while dataset is not None and at < stop:
            until = min(at + step, stop)
            is_in = (ds.field("offset") >= at) & (ds.field("offset") < until) & (ds.field("partition") == file.held.partition)
            rows = dataset.to_table(list(COLUMNS), filter=is_in).sort_by("offset").combine_chunks()
            for batch in rows.to_batches():
                offsets = batch.column("offset").to_numpy()
                if not (np.diff(offsets) > 0).all():
                    raise ArchiveUnreadable(f"{file.path} holds offsets of {at} to {until} twice; make it anew")
                yield _chunk(file, batch, offsets)
            at = until
    except (pa.ArrowException, OSError, KeyError) as error:
        raise ArchiveUnreadable(f"cannot read the archive's table {file.path}: {error}") from error


def _dataset(file: ArchiveFile, wanted: OffsetRange) -> tuple[Any, int]:
    """Return the data files that may have rows of a range, None for none, and how many offsets to read at a time."""
    import pyarrow.dataset as ds

    paths = [each.path for each in file.parts or () if each.may_hold(wanted)]
    if not paths:
        return None, BATCH_RECORDS
    system, _ = _place(paths[0])
    whole = ds.dataset([_place(path)[1] for path in paths], arrow_schema(), filesystem=system, format="parquet")
    groups = [group for part in whole.get_fragments() for group in part.row_groups]
    size_bytes, records = sum(each.total_byte_size for each in groups), sum(each.num_rows for each in groups)
    if not records:
        return None, BATCH_RECORDS
    return whole, max(1, min(BATCH_RECORDS, BATCH_BYTES * records // max(size_bytes, 1)))


def _place(path: str) -> tuple[Any, str]:
    """Return the file system of a path or URI, and where it is there; one file system for all of a bucket."""
    scheme, found, rest = path.partition("://")
    if not found:
        return open_root("/")[0], path
    if scheme == "file":
        return open_root("/")[0], f"/{rest.lstrip('/')}"
    return open_root(f"{scheme}://{rest.partition('/')[0]}")[0], rest


def arrow_schema() -> Any:
    """Return the columns of an archive's files, `partition` for those who read tables."""
    import pyarrow as pa

    binary = pa.binary()
    headers = pa.list_(pa.struct([("name", pa.string()), ("value", binary)]))
    types = (pa.int64(), pa.int64(), binary, binary, headers, pa.int32())
    return pa.schema([*zip(COLUMNS, types, strict=True), ("partition", pa.int32())])


def check_file(file: ArchiveFile) -> None:
    """Raise ArchiveUnreadable unless a file's footer says that it has the columns, and the offsets of its name, in order.

    Of a table the rows of files that others have written are read: those of a file of ours are as they were archived.
    """
    if file.parts is not None:
        for each in file.parts:
            _footer(each.path, *_place(each.path), more=("partition",))
        others = tuple(each for each in file.parts if not _OWN_NAME.fullmatch(each.path.rpartition("/")[2]))
        for _ in _read_parts(replace(file, parts=others), file.held.start, file.held.end):
            pass
        return
    names, footer = _footer(file.path, open_root(file.root)[0], file.path)
    last = file.held.start - 1
    for group in range(footer.num_row_groups):
        found = footer.row_group(group).column(names.index("offset")).statistics
        if found is not None and found.null_count:
            raise ArchiveUnreadable(f"{file.path} has a row without an offset: {BY_OTHERS}")
        if found is None or not found.has_min_max or not last < found.min <= found.max < file.held.end:
            told = "no smallest and largest offset" if found is None or not found.has_min_max else f"{found.min} to {found.max}"
            raise ArchiveUnreadable(f"{file.path} holds offsets ({told}) which its name does not say, or out of order")
        last = found.max
    _check_rows(file.path, footer)


def _check_rows(name: str, footer: Any) -> None:
    """Raise ArchiveUnreadable unless a file has as many rows as were archived: offsets do not tell, some are no record's."""
    said = (footer.metadata or {}).get(RECORDS)
    if said is None:
        raise ArchiveUnreadable(f"{name} does not say how many rows were archived: {BY_OTHERS}")
    if int(said) != footer.num_rows:
        raise ArchiveUnreadable(f"{name} holds {footer.num_rows} rows of the {int(said)} that were archived: {BY_OTHERS}")


def _footer(name: str, system: Any, path: str, *, more: Sequence[str] = ()) -> tuple[list[str], Any]:
    """Return the columns of a file, and its footer; raises ArchiveUnreadable unless it has those of an archive."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with system.open_input_file(path) as opened:
            footer = pq.read_metadata(opened)
    except (pa.ArrowException, OSError) as error:
        raise ArchiveUnreadable(f"cannot read the archive's file {name}: {error}") from error
    names = footer.schema.to_arrow_schema().names
    if missing := [each for each in (*COLUMNS, *more) if each not in names]:
        raise ArchiveUnreadable(f"{name} has no column {missing[0]!r}, only {', '.join(names)}")
    return names, footer


def _chunk(file: ArchiveFile, rows: Any, offsets: Any) -> Chunk:
    """Return rows as a chunk. Raises ArchiveUnreadable: one is not what was archived."""
    import pyarrow.compute as pc

    tp = file.held.topic_partition
    found = rows.column("headers")
    if len(found.flatten()):
        keys, values, times = (rows.column(name).to_pylist() for name in ("key", "value", "timestamp_ms"))
        headers = [tuple((header["name"], header["value"]) for header in each) for each in found.to_pylist()]
        chunk = Chunk.from_columns(tp.topic, keys, values, times, partition=tp.partition, headers=headers)
    else:
        chunk = Chunk.from_arrow(tp.topic, rows, partition=tp.partition)
    chunk.offsets, chunk.next_offset = offsets.astype(np.int64), int(offsets[-1]) + 1
    is_changed = pc.fill_null(pc.not_equal(rows.column("digest"), row_digests(chunk)), True).to_numpy(zero_copy_only=False)
    if is_changed.any():
        raise ArchiveUnreadable(
            f"{tp.topic}-{tp.partition} at offset {offsets[is_changed.argmax()]} in the archive's {file.path} is not what was "
            "archived: others have changed it (UPDATE); restore an older version, or archive anew elsewhere"
        )
    return chunk


def header_column(chunk: Chunk) -> Any:
    """Return the headers of a chunk as an Arrow column: lists of (name, value)."""
    import pyarrow as pa

    kind = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
    if chunk.header_counts.any():
        return pa.array([[{"name": name, "value": value} for name, value in each] for each in chunk.headers()], kind)
    return pa.ListArray.from_arrays(pa.array(np.zeros(len(chunk) + 1, np.int32)), pa.array([], kind.value_type), type=kind)


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


def make_directory(system: Any, path: str) -> None:
    """Make a directory and those above it. Raises InvalidInput: that cannot be, for there is a file, or no right to it."""
    import pyarrow as pa

    try:
        system.create_dir(path, recursive=True)
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(f"cannot make the directory {path}: {error}; give another") from None
