"""Writing archives (`archives.py`): once, or again and again beside the log, so that its retention may be short; and the check.

A file is written under another name, kept by the disk, then given its own: whatever ends this, the next run goes on behind
the last whole file. In a directory one process archives a topic at a time (a lock); elsewhere whoever starts them sees to it.
"""

from __future__ import annotations

import fcntl
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from logflume.log import Chunk, InvalidInput, Log, LogflumeError, TopicPartition, load_kernels

from .archive_tables import ArchiveConflict, TopicTable, is_table, open_table
from .archives import (
    RECORDS,
    ArchiveFile,
    ArchiveUnreadable,
    arrow_schema,
    check_file,
    find_archive,
    header_column,
    join_history,
    make_directory,
    open_root,
    refuse_missing,
)
from .digests import row_digests
from .ranges import OffsetRange, RangeLost, read_range, split

RECORDS_PER_FILE = 1_000_000
KERNELS_FROM_RECORDS = 50_000
UNFINISHED = ".unfinished"
STATISTICS = ["offset", "timestamp_ms", "partition"]
GROUP_RECORDS, GROUP_BYTES = 100_000, 64 << 20
"""Of a row group, which is what is held in memory of a file."""


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
        InvalidInput: another process archives this topic there (seen where the archive is a directory of this machine).
        ArchiveConflict: the archive is a table, and another process has changed it meanwhile.
    """
    logged = _logged(log, topic)
    place = _Place.of(root, topic)
    with _alone(place.system, place.folder):
        held = find_archive(root, [topic])
        wanted: list[OffsetRange] = []
        for tp, whole in logged.items():
            files = held.get(tp, ())
            join_history(whole, files)
            first = max(files[-1].held.end if files else 0, whole.start)
            rest = OffsetRange(*tp, first, max(first, whole.end))
            is_all_gone = not files and rest.start > 0
            wanted += split(rest, records_per_file) or ([rest] if is_all_gone else [])  # an empty file says so
        if sum(map(len, wanted)) >= KERNELS_FROM_RECORDS:
            load_kernels()
        for each in wanted:
            name = place.name(each)
            records = _write(place.system, name, read_range(log, each))
            place.add(name, each, records)
            on_file(ArchiveFile(root, name, each), records)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where files of a topic are written, and the table that lists them; None: their names say what they hold."""

    root: str
    topic: str
    system: Any
    folder: str
    table: TopicTable | None

    @classmethod
    def of(cls, root: str, topic: str) -> _Place:
        table = open_table(root, topic, schema=arrow_schema()) if is_table(root) else None
        system, folder = open_root(f"{root}/{topic}" if table is None else table.location)
        return cls(root, topic, system, folder, table)

    def name(self, held: OffsetRange) -> str:
        """Return what a file is called; that of a table is nobody else's, who may archive the same range at the same time."""
        own = "" if self.table is None else f"-{uuid.uuid4().hex}"
        return f"{self.folder}/{held.topic}-{held.partition}-{held.start:020d}-{held.end:020d}{own}.parquet"

    def add(self, name: str, held: OffsetRange, records: int) -> None:
        """Make a file part of the archive; remove it if another has changed the table meanwhile.

        Whose answer was lost may have committed all the same, and be told of a conflict with itself: the table says what stays.
        """
        if self.table is None:
            return
        first = self.table.spans().get(held.partition, (held.start, 0))[0]
        size_bytes = int(self.system.get_file_info(name).size)
        try:
            self.table.add(name, held, first, records=records, size_bytes=size_bytes)
        except ArchiveConflict:
            if not self._may_list(name):
                self.system.delete_file(name)
            raise

    def _may_list(self, name: str) -> bool:
        """Return whether the table lists a file by now; True too if it cannot be read: a file too many harms nobody."""
        try:
            table = open_table(self.root, self.topic)
            files = () if table is None else table.contents().files
        except LogflumeError:
            return True
        return any(each.path.endswith(name.rpartition("/")[2]) for each in files)


def _logged(log: Log, topic: str) -> dict[TopicPartition, OffsetRange]:
    """Return what the log has of each partition of a topic, committed."""
    admin = log.admin()
    every = [TopicPartition(topic, partition) for partition in range(admin.describe_topics([topic])[topic].partitions)]
    starts, ends = admin.start_offsets(every), admin.end_offsets(every, read_committed=True)
    return {tp: OffsetRange(*tp, starts[tp], max(starts[tp], ends[tp])) for tp in every}


@contextmanager
def _alone(system: Any, folder: str) -> Iterator[None]:
    """Make a topic's folder; in a directory keep others out and remove what a killed one left unfinished."""
    from pyarrow import fs

    make_directory(system, folder)
    if not isinstance(system, fs.LocalFileSystem):
        yield
        return
    with Path(folder, ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidInput(f"another process writes the archive {folder}: one archives a topic at a time") from None
        for left in Path(folder).glob(f"*{UNFINISHED}"):
            left.unlink()
        yield


def keep_archiving(
    log: Log,
    topics: Sequence[str],
    root: str,
    *,
    every_s: float,
    stop: threading.Event,
    on_file: Callable[[ArchiveFile, int], None] = lambda *_: None,
    on_problem: Callable[[LogflumeError], None] = lambda _: None,
) -> None:
    """Archive topics again and again, `every_s` after the last time, until `stop` is set; blocks.

    A broker that is away for a time is waited for (`on_problem` is told); what no retry can help is raised.
    """
    while not stop.is_set():
        for topic in topics:
            try:
                archive_topic(log, topic, root, on_file=on_file)
            except LogflumeError as error:
                if not error.is_retriable:
                    raise
                on_problem(error)
        stop.wait(every_s)


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the archive and the log of a partition meet; `archived` None: nothing is. `problem`: why they do not, in words."""

    archived: OffsetRange | None
    logged: OffsetRange
    problem: str | None


def check_archive(log: Log, topic: str, root: str) -> list[Meeting]:
    """Return of each partition whether archive and log are one history, and whether the files' footers say what their names say.

    Raises:
        InvalidInput: no such archive, or files of a partition leave a gap or overlap.
        UnknownName: no such topic.
    """
    held = find_archive(root, [topic])
    found = []
    for tp, whole in _logged(log, topic).items():
        files = held.get(tp, ())
        archived = OffsetRange(*tp, files[0].held.start, files[-1].held.end) if files else None
        found.append(Meeting(archived, whole, _problem(whole, files)))
    return found


def _problem(logged: OffsetRange, files: Sequence[ArchiveFile]) -> str | None:
    try:
        if not files:
            refuse_missing(logged)
        join_history(logged, files)
        for file in files:
            check_file(file)
    except (RangeLost, InvalidInput, ArchiveUnreadable) as error:
        return str(error)
    return None


def _write(system: Any, name: str, chunks: Iterator[Chunk]) -> int:
    """Write a file under another name, then give it its own; return how many records it has."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import fs

    schema, binary = arrow_schema(), pa.binary()
    unfinished = f"{name}.{uuid.uuid4().hex[:8]}{UNFINISHED}"
    records = 0
    options: dict[str, Any] = {"compression": "zstd", "use_dictionary": ["partition"], "write_statistics": STATISTICS}
    with system.open_output_stream(unfinished) as opened, pq.ParquetWriter(opened, schema, **options) as writer:
        for group in grouped(chunks):
            batches = []
            for chunk in group:
                plain = chunk.to_arrow()
                key, value = (plain.column(name).cast(binary) for name in ("key", "value"))
                columns = [plain.column("offset"), plain.column("timestamp_ms"), key, value, header_column(chunk)]
                columns.append(pa.array(row_digests(chunk)))
                columns.append(pa.array(np.full(len(chunk), chunk.partition, np.int32)))
                batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
                records += len(chunk)
            writer.write_table(pa.Table.from_batches(batches))
        writer.add_key_value_metadata({RECORDS.decode(): str(records)})
    if isinstance(system, fs.LocalFileSystem):
        _sync(Path(unfinished))
    system.move(unfinished, name)
    if isinstance(system, fs.LocalFileSystem):
        _sync(Path(name).parent)
    return records


def grouped(chunks: Iterator[Chunk]) -> Iterator[list[Chunk]]:
    """Yield chunks in groups that a reader takes at a time: a group is full with GROUP_RECORDS or GROUP_BYTES."""
    group: list[Chunk] = []
    records = size_bytes = 0
    for chunk in chunks:
        group.append(chunk)
        records, size_bytes = records + len(chunk), size_bytes + len(chunk.buffer)
        if records >= GROUP_RECORDS or size_bytes >= GROUP_BYTES:
            yield group
            group, records, size_bytes = [], 0, 0
    if group:
        yield group


def _sync(path: Path) -> None:
    """Have the disk keep a file, or the names in a directory."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
