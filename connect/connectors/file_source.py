"""The file source: CSV, JSON lines and Parquet into a topic, resumed exactly where it stopped.

An offset is a position in a file (bytes behind a row; a row number for Parquet and for sorted files) with a fingerprint of
the file, so that a file that was truncated, rewritten or rotated is found and never read again, or skipped, in silence.
"""

from __future__ import annotations

import glob
import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from logflume.connect.api import I64, Broken, Idle, Offset, RowSchema, SourceBatch, SourceConnector, SourceContext
from logflume.connect.columns import parse_columns
from logflume.connect.config import Config
from logflume.connect.errors import SourceChanged
from logflume.connect.pacing import Pacer
from logflume.log import InvalidInput, near_matches
from logflume.log.schemas import Column, Row

from .csv_reader import CsvDialect, CsvReader
from .event_time import EventTime
from .file_block import Block, BrokenAt, FileReader, Start
from .file_options import FILE_SPEC, RESTART
from .jsonl_reader import JsonLinesReader
from .parquet_reader import ParquetReader
from .sorted_reader import SortedReader

_ENDINGS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
_IDLE_S = 0.25


def read_files(config: Config, context: SourceContext) -> Iterator[SourceBatch | Idle]:
    """Yield the rows of the files of this task, file by file in order of name."""
    pacer = Pacer(
        records_per_second=config.number("rate.records.per.second"),
        replay_speed=config.number("replay.speed"),
        now_s=context.clock_s(),
    )
    progress = _Progress()
    loops: dict[str, _FileLoop] = {}
    try:
        while True:
            paths = [path for path in _paths(config) if zlib.crc32(path.encode()) % context.tasks == context.task]
            progress.expect(paths)
            for path in paths:
                if path not in loops:
                    loops[path] = _FileLoop(config, context, path, pacer, progress)
                yield from loops[path].read_on()
            if not config.flag("follow"):
                return
            yield Idle(_IDLE_S)
    finally:
        for loop in loops.values():
            loop.close()


def _paths(config: Config) -> list[str]:
    pattern = config.text("file")
    found = sorted(
        os.path.realpath(path) for path in glob.glob(os.path.expanduser(pattern), recursive=True) if os.path.isfile(path)
    )
    if not found and not config.flag("follow"):
        raise InvalidInput(f"file: no file matches {pattern!r} (in {os.getcwd()})")
    return found


class _Progress:
    """Bytes of the files of a task that are done; a Parquet file counts by the share of its rows."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self._done: dict[str, int] = {}

    def expect(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._sizes[path] = os.path.getsize(path) if os.path.exists(path) else 0

    def at(self, path: str, position: int, size: int) -> tuple[int, int]:
        """Return (done, total) bytes, given the position in one file and its size in the same unit."""
        self._done[path] = int(self._sizes.get(path, 0) * (position / size if size else 1.0))
        return sum(self._done.values()), sum(self._sizes.values())


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a block, ready to be given out in slices."""

    block: Block
    keys: list[Row | None]
    values: list[Row]
    times: I64


class _FileLoop:
    """Reads one file from its kept offset on.

    Invariant: while a reader is open, `_at` is the position behind all that it gave out; a file that was replaced is read to
    its end through the open reader before the new one is looked at.
    """

    def __init__(self, config: Config, context: SourceContext, path: str, pacer: Pacer, progress: _Progress) -> None:
        self._config, self._context, self._path, self._pacer, self._progress = config, context, path, pacer, progress
        self._partition = {"file": path}
        self._max_ms = -1
        self._reader: FileReader | None = None
        self._at = Start()

    def read_on(self) -> Iterator[SourceBatch | Idle]:
        """Yield what there is up to the present end; without `follow` the file is closed then."""
        if self._reader is None:
            self._reader, self._at = self._open(self._context.offset_of(self._partition))
        reader = self._reader
        is_replaced = reader.is_replaced()
        shape = _Shape(reader.columns, self._config, self._path)
        for block in reader.blocks(self._at):
            yield from self._give(reader, shape, shape.rows(block))
            self._at = Start(block.end, block.end_line)
        if is_replaced or not self._config.flag("follow"):
            self.close()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _open(self, kept: Offset | None) -> tuple[FileReader, Start]:
        declared = self._config.columns("value.columns")
        if kept is None:
            return open_reader(self._path, self._config, declared), Start()
        reader = open_reader(self._path, self._config, declared or parse_columns(str(kept["columns"])))
        try:
            reader.check(int(kept["position"]), kept["file"])
        except SourceChanged:
            reader.close()
            if self._config.text("on.change") != RESTART:
                raise
            return open_reader(self._path, self._config, declared), Start()
        self._max_ms = int(kept.get("max_ms", -1))
        return reader, Start(int(kept["position"]), int(kept["line"]))

    def _give(self, reader: FileReader, shape: _Shape, rows: _Rows) -> Iterator[SourceBatch | Idle]:
        """Yield the rows in slices of the batch size, as the pacer lets them go."""
        limit = self._config.integer("batch.max.records")
        block, at, count = rows.block, 0, len(rows.block)
        broken = list(block.broken)
        while True:
            upto = min(at + limit, count)
            if self._pacer.is_paced and at < count:
                due = self._pacer.due(rows.times[at:upto], now_s=self._context.clock_s())
                if due == 0:
                    yield Idle(self._pacer.wait_s(rows.times[at:upto], now_s=self._context.clock_s()))
                    continue
                upto = at + due
            is_last = upto == count
            mine = [each for each in broken if is_last or each.rows_before < upto]
            broken = broken[len(mine) :]
            position = block.end if is_last else int(block.ends[upto - 1])
            line = block.end_line if is_last else int(block.next_lines[upto - 1])
            yield self._batch(reader, shape, rows, at, upto, tuple(each.broken for each in mine), Start(position, line))
            self._pacer.gave(upto - at)
            at = upto
            if is_last:
                return

    def _batch(
        self, reader: FileReader, shape: _Shape, rows: _Rows, start: int, stop: int, broken: tuple[Broken, ...], behind: Start
    ) -> SourceBatch:
        times = rows.times[start:stop]
        keys, values, lines = rows.keys[start:stop], rows.values[start:stop], rows.block.lines[start:stop]
        if self._config.flag("timestamp.order.check") and len(times):
            is_late = times < np.maximum.accumulate(np.concatenate(([self._max_ms], times)))[:-1]
            if is_late.any():
                reason = "the event time is before that of an earlier row; sort the file, or set sort.by"
                late = np.flatnonzero(is_late).tolist()
                broken += tuple(
                    Broken(json.dumps(values[i], default=str).encode(), self._path, int(lines[i]), shape.time_name, reason)
                    for i in late
                )
                keep = np.flatnonzero(~is_late)
                times, lines = times[keep], lines[keep]
                keys, values = [keys[i] for i in keep], [values[i] for i in keep]
        if len(times):
            self._max_ms = max(self._max_ms, int(times.max()))
        done, total = self._progress.at(self._path, behind.position, reader.size())
        return SourceBatch(
            partition=self._partition,
            offset={
                "position": behind.position,
                "line": behind.line,
                "file": reader.identity(behind.position),
                "columns": ", ".join(f"`{column.name}` {column.type}" for column in reader.columns),
                "max_ms": self._max_ms,
            },
            schema=shape.schema,
            keys=keys,
            values=values,
            timestamps_ms=times,
            positions=lines.tolist(),
            broken=broken,
            done=done,
            total=total,
        )


class _Shape:
    """Which columns of the file make key, value and event time."""

    def __init__(self, columns: tuple[Column, ...], config: Config, path: str) -> None:
        names = [column.name for column in columns]
        for option in ("key.columns", "timestamp.columns", "sort.by"):
            for name in config.items(option):
                if name not in names:
                    near = near_matches(name, names)
                    hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(names)}"
                    raise InvalidInput(f"{option}: {path} has no column {name!r}{hint}")
        key_names = config.items("key.columns")
        self._columns = columns
        self._path = path
        self._key = [names.index(name) for name in key_names]
        self._value = [i for i, name in enumerate(names) if config.flag("key.in.value") or name not in key_names]
        self._needs_key = "compact" in config.table("topic.config.*").get("cleanup.policy", "")
        times = config.items("timestamp.columns")
        self._time = EventTime(times, config.text("timestamp.format"), config.text("timestamp.zone")) if times else None
        fixed_ms = config.integer("timestamp.fixed.ms")
        self._fixed_ms = fixed_ms if fixed_ms >= 0 else None
        self.time_name = ", ".join(times) or None
        self.schema = RowSchema(key=tuple(columns[i] for i in self._key), value=tuple(columns[i] for i in self._value))

    def rows(self, block: Block) -> _Rows:
        """Return the rows of a block; rows without a usable event time, or without a key for a compacted topic, become broken."""
        times, bad = self._times(block)
        bad.update(self._without_key(block))
        if bad:
            block, times = self._without(block, times, bad)
        values: list[Row] = list(zip(*(block.columns[i] for i in self._value), strict=True)) if self._value else [()] * len(block)
        keys: list[Row | None] = [None] * len(block)
        if self._key:
            keys = list(zip(*(block.columns[i] for i in self._key), strict=True))
        return _Rows(block, keys, values, times)

    def _times(self, block: Block) -> tuple[I64, dict[int, _Reason]]:
        if self._time is None:
            now_ms = time.time_ns() // 1_000_000 if self._fixed_ms is None else self._fixed_ms
            return np.full(len(block), now_ms, np.int64), {}
        times, bad = self._time.of(self._columns, block.columns)
        return times, {index: _Reason(self.time_name, reason) for index, reason in bad}

    def _without_key(self, block: Block) -> dict[int, _Reason]:
        if not self._needs_key or not self._key:
            return {}
        reason = _Reason(", ".join(self._columns[i].name for i in self._key), "the key is null, and the topic is compacted")
        keys = zip(*(block.columns[i] for i in self._key), strict=True)
        return {index: reason for index, key in enumerate(keys) if None in key}

    def _without(self, block: Block, times: I64, bad: Mapping[int, _Reason]) -> tuple[Block, I64]:
        """Move rows of a block to its broken ones."""
        keep = np.array([index for index in range(len(block)) if index not in bad], np.int64)
        moved = [
            BrokenAt(
                int(np.searchsorted(keep, index)),
                Broken(self._as_text(block, index), self._path, int(block.lines[index]), reason.column, reason.text),
            )
            for index, reason in sorted(bad.items())
        ]
        before = [replace(each, rows_before=int(np.searchsorted(keep, each.rows_before))) for each in block.broken]
        kept = replace(
            block,
            columns=[[values[index] for index in keep] for values in block.columns],
            ends=block.ends[keep],
            lines=block.lines[keep],
            next_lines=block.next_lines[keep],
            broken=tuple(sorted((*before, *moved), key=lambda each: (each.rows_before, each.broken.line))),
        )
        return kept, times[keep]

    def _as_text(self, block: Block, index: int) -> bytes:
        """Return a row that was read, but cannot be used, as JSON of its values."""
        row = {column.name: values[index] for column, values in zip(self._columns, block.columns, strict=True)}
        return json.dumps(row, default=str).encode()


@dataclass(frozen=True, slots=True)
class _Reason:
    column: str | None
    text: str


def open_reader(path: str, config: Config, declared: tuple[Column, ...]) -> FileReader:
    """Open a file in its format. Raises InvalidInput when it cannot be read or does not have the declared columns."""
    format = config.text("format")
    if format == "auto":
        ending = os.path.splitext(path)[1].lower()
        if ending not in _ENDINGS:
            raise InvalidInput(
                f"{path}: the format cannot be told from the ending {ending!r}; set format to csv, jsonl or parquet"
            )
        format = _ENDINGS[ending]
    reader: FileReader
    if format == "parquet":
        reader = ParquetReader(path, declared=declared)
    elif format == "jsonl":
        reader = JsonLinesReader(
            path, declared=declared, block_bytes=config.integer("block.bytes"), is_followed=config.flag("follow")
        )
    else:
        delimiter = config.text("csv.delimiter")
        dialect = CsvDialect(
            delimiter="\t" if path.lower().endswith(".tsv") and delimiter == "," else delimiter,
            has_header=config.flag("csv.header"),
            null_values=tuple(dict.fromkeys(("", *config.items("csv.null.values")))),
        )
        reader = CsvReader(
            path, dialect, declared=declared, block_bytes=config.integer("block.bytes"), is_followed=config.flag("follow")
        )
    return SortedReader(path, reader, config.items("sort.by")) if config.items("sort.by") else reader


FILE_SOURCE = SourceConnector(
    name="file-source",
    doc="Reads CSV, JSON lines or Parquet files into a topic, each row once, also through kill -9.",
    spec=FILE_SPEC,
    read=read_files,
)
