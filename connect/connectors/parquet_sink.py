"""The Parquet sink: topics into files that appear whole, once, and are named `<topic>-<partition>-<first offset>.parquet`.

A file is written under a temporary name, synced, then linked under its own name, which fails when that exists: so two tasks
that both think they own a partition cannot both publish. Each file's footer holds the offset that follows it; a task goes on
from the last file, so what is delivered again is never written again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from logflume.connect.api import EXACTLY_ONCE, Refused, RowSchema, SinkBatch, SinkConnector, SinkContext
from logflume.connect.config import Config
from logflume.connect.errors import Problem, TargetConflict, TargetRefused
from logflume.connect.spec import Option, OptionType, Spec
from logflume.log import TopicPartition
from logflume.log.arrow_values import arrow_type, to_arrow_values
from logflume.log.schemas import Row

from .paths import unwritable

NEXT_OFFSET = b"logflume.next_offset"
_ROW_GROUP_ROWS = 50_000
_WRITE, _SKIP = "write", "skip"


def _target_problems(config: Config) -> Iterable[Problem]:
    path = Path(config.text("path")).expanduser()
    if wrong := unwritable(path, makes_directories=True):
        yield Problem("path", f"there can be no directory {path}: {wrong}")


PARQUET_SPEC = Spec(
    options=(
        Option(name="path", type=OptionType.STRING, doc="Directory; each topic gets a directory of its own in it."),
        Option(
            name="rotate.records",
            type=OptionType.INTEGER,
            default=1_000_000,
            minimum=1,
            doc="Close a file after this many records.",
        ),
        Option(
            name="rotate.bytes",
            type=OptionType.INTEGER,
            default=128 << 20,
            minimum=1,
            doc="Close a file once its columns, uncompressed, have this many bytes.",
        ),
        Option(
            name="rotate.seconds",
            type=OptionType.DOUBLE,
            default=60.0,
            minimum=0.01,
            doc="Close a file this long after its first record.",
        ),
        Option(
            name="compression",
            type=OptionType.STRING,
            default="zstd",
            allowed=("zstd", "snappy", "gzip", "lz4", "none"),
            doc="Compression of the columns.",
        ),
        Option(
            name="tombstones",
            type=OptionType.STRING,
            default=_WRITE,
            allowed=(_WRITE, _SKIP),
            doc="write: a null value is a row whose value columns are null; skip: leave it out.",
        ),
    ),
)


class ParquetTarget:
    """The files of the partitions of one task. Invariant: `_safe[p]` is behind the last published file, or records left out."""

    def __init__(self, config: Config, context: SinkContext) -> None:
        self._config = config
        self._context = context
        self._root = Path(config.text("path")).expanduser()
        self._schema = pa.schema([pa.field(c.name, arrow_type(c.type)) for c in (*context.schema.key, *context.schema.value)])
        self._files: dict[TopicPartition, _OpenFile] = {}
        self._safe: dict[TopicPartition, int] = {}

    def open(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for partition in partitions:
            directory = self._root / partition.topic
            try:
                directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise TargetRefused(f"path: cannot make {directory}: {error.strerror}") from error
            _remove_leftovers(directory, partition)
            if (last := last_file(directory, partition)) is not None:
                found[partition] = next_offset_of(last)
        return found

    def put(self, batch: SinkBatch) -> Sequence[Refused]:
        rows, offsets = _rows(batch, is_skipping=self._config.text("tombstones") == _SKIP)
        file = self._files.get(batch.partition)
        if rows and file is None:
            file = self._files[batch.partition] = self._new_file(batch.partition, offsets[0])
        if file is None:
            self._safe[batch.partition] = batch.next_offset
            return ()
        file.add(rows, batch.next_offset)
        if file.records >= self._config.integer("rotate.records") or file.size_bytes >= self._config.integer("rotate.bytes"):
            self._publish(batch.partition)
        return ()

    def flush(self, *, is_final: bool) -> Mapping[TopicPartition, int]:
        oldest_s = self._context.clock_s() - self._config.number("rotate.seconds")
        for partition in [p for p, file in self._files.items() if is_final or file.opened_s <= oldest_s]:
            self._publish(partition)
        return dict(self._safe)

    def release(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            self._safe.pop(partition, None)
            if (file := self._files.pop(partition, None)) is not None:
                file.discard()

    def close(self) -> None:
        self.release(list(self._files))

    def _new_file(self, partition: TopicPartition, first_offset: int) -> _OpenFile:
        name = f"{partition.topic}-{partition.partition}-{first_offset:020d}.parquet"
        directory = self._root / partition.topic
        temporary = directory / f".{name}.{self._context.task}-{os.getpid()}.tmp"
        compression = self._config.text("compression")
        return _OpenFile(directory / name, temporary, self._schema, compression, self._context.clock_s())

    def _publish(self, partition: TopicPartition) -> None:
        file = self._files.pop(partition)
        self._safe[partition] = file.publish()


class _OpenFile:
    """A file that is being written under its temporary name."""

    def __init__(self, path: Path, temporary: Path, schema: Any, compression: str, now_s: float) -> None:
        self.opened_s = now_s
        self.records = 0
        self.size_bytes = 0
        self._path, self._temporary, self._schema = path, temporary, schema
        self._next_offset = -1
        self._pending: list[Row] = []
        self._file = temporary.open("wb")
        self._writer = pq.ParquetWriter(self._file, schema, compression=compression)

    def add(self, rows: list[Row], next_offset: int) -> None:
        self._pending.extend(rows)
        self.records += len(rows)
        self._next_offset = next_offset
        if len(self._pending) >= _ROW_GROUP_ROWS:
            self._write_group()

    def publish(self) -> int:
        """Make the file durable under its name; returns the offset behind it. Raises TargetConflict when the name is taken."""
        if self._pending:
            self._write_group()
        self._writer.add_key_value_metadata({NEXT_OFFSET: str(self._next_offset).encode()})
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        try:
            _publish(self._temporary, self._path)
        finally:
            self._temporary.unlink(missing_ok=True)
        _sync_directory(self._path.parent)
        return self._next_offset

    def discard(self) -> None:
        """Drop what was written."""
        self._writer.close()
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    def _write_group(self) -> None:
        columns = list(zip(*self._pending, strict=True))
        arrays = [
            pa.array(to_arrow_values(values, field.type), field.type) for values, field in zip(columns, self._schema, strict=True)
        ]
        table = pa.Table.from_arrays(arrays, schema=self._schema)
        self.size_bytes += table.nbytes
        self._writer.write_table(table)
        self._pending.clear()


def _publish(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        raise TargetConflict(
            f"{path} exists already: another task of this connector wrote it; going on from what the directory holds"
        ) from error
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.EXDEV):
            raise
        temporary.rename(path)


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def last_file(directory: Path, partition: TopicPartition) -> Path | None:
    """Return the file of a partition with the highest first offset."""
    prefix = f"{partition.topic}-{partition.partition}-"
    names = [p.name for p in directory.iterdir() if p.name.startswith(prefix) and p.name.endswith(".parquet")]
    numbered = [name for name in names if name[len(prefix) : -len(".parquet")].isdigit()]
    return directory / max(numbered) if numbered else None


def next_offset_of(path: Path) -> int:
    """Return the offset behind a file. Raises TargetRefused when it is not one of this sink's."""
    try:
        metadata = pq.read_metadata(path).metadata or {}
        return int(metadata[NEXT_OFFSET])
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        raise TargetRefused(
            f"{path} is not a file of this sink ({type(error).__name__}: {error}); move it away, or set another path"
        ) from error


def _remove_leftovers(directory: Path, partition: TopicPartition) -> None:
    """Remove what an earlier owner of the partition left unfinished; if that still lives, its next write to it fails."""
    prefix = f".{partition.topic}-{partition.partition}-"
    for path in directory.iterdir():
        if path.name.startswith(prefix) and path.name.endswith(".tmp"):
            path.unlink(missing_ok=True)


def _rows(batch: SinkBatch, *, is_skipping: bool) -> tuple[list[Row], list[int]]:
    """Return key and value columns of each record as one row, and the offsets."""
    schema: RowSchema = batch.schema
    no_key, no_value = (None,) * len(schema.key), (None,) * len(schema.value)
    rows: list[Row] = []
    offsets: list[int] = []
    for key, value, offset in zip(batch.keys, batch.values, batch.offsets.tolist(), strict=True):
        if value is None and is_skipping:
            continue
        rows.append((*(key if key is not None and schema.key else no_key), *(no_value if value is None else value)))
        offsets.append(offset)
    return rows, offsets


PARQUET_SINK = SinkConnector(
    name="parquet-sink",
    doc="Writes topics to Parquet files, each record in exactly one file, also through kill -9.",
    spec=PARQUET_SPEC,
    start=ParquetTarget,
    guarantee_of=lambda config: EXACTLY_ONCE,
    target_problems=_target_problems,
)
