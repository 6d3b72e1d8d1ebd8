"""Reads CSV (RFC 4180, UTF-8) in blocks of bytes from any row on; a row that does not fit is named with its line and column.

pyarrow parses each block; where rows end is found by `row_ends`, so that every row has an exact position to resume from. All
fields are read as text and cast column by column: one meaning of a value, whether its neighbours are broken or not.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from logflume.connect.api import I64, Broken
from logflume.log import InvalidInput
from logflume.log.arrow_values import cast_texts, column_type
from logflume.log.schemas import STRING, Column

from .file_block import Block, BrokenAt, Start
from .file_identity import check_grown_only, fingerprint
from .lines import LineFile
from .row_ends import quoted_row_ends

_log = logging.getLogger("logflume.connect")
_INFER_BYTES = 1 << 20
_NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvDialect:
    """How the text is written."""

    delimiter: str = ","
    has_header: bool = True
    null_values: tuple[str, ...] = ("",)


class CsvReader:
    """A CSV file. `columns` are those that are read; the file may have more, named by its header."""

    def __init__(
        self, path: str, dialect: CsvDialect, *, declared: tuple[Column, ...], block_bytes: int, is_followed: bool
    ) -> None:
        self._path = path
        self._dialect = dialect
        self._file = LineFile(path, block_bytes=block_bytes, is_followed=is_followed)
        try:
            self._names, self._body, self._body_line = self._header(declared)
            self.columns = declared or self._inferred()
            self._indices = self._indices_of(self.columns)
        except BaseException:
            self._file.close()
            raise

    def blocks(self, start: Start) -> Iterator[Block]:
        if start.position < self._body:
            start = Start(self._body, self._body_line)
        delimiter = self._dialect.delimiter.encode()
        for data, position, line in self._file.runs(start, lambda data: quoted_row_ends(data, delimiter=delimiter)):
            yield self._block(data, position, line)

    def size(self) -> int:
        return self._file.size()

    def identity(self, position: int) -> dict[str, Any]:
        return fingerprint(self._file.fd, position)

    def check(self, position: int, kept: Mapping[str, Any]) -> None:
        check_grown_only(self._file.fd, self._path, position, kept)
        self._file.check_row_start(position)

    def is_replaced(self) -> bool:
        return self._file.is_replaced()

    def close(self) -> None:
        self._file.close()

    def _header(self, declared: tuple[Column, ...]) -> tuple[list[str], int, int]:
        """Return the names of the file's columns, and the position and line of the first row."""
        head = self._file.first_bytes(_INFER_BYTES)
        skip = len(_BOM) if head.startswith(_BOM) else 0
        if not self._dialect.has_header:
            if not declared:
                raise InvalidInput(
                    f"{self._path}: without a header (csv.header = false) the option value.columns must name the columns"
                )
            return [column.name for column in declared], skip, 1
        ends = quoted_row_ends(head[skip:], delimiter=self._dialect.delimiter.encode())
        end = skip + int(ends[0]) if len(ends) else len(head)
        if end == skip:
            raise InvalidInput(f"{self._path}: the file is empty, expected a header line with the names of the columns")
        if not len(ends) and len(head) >= _INFER_BYTES:
            raise InvalidInput(f"{self._path}: the header line is longer than {_INFER_BYTES} bytes; is this a CSV file?")
        names = [str(name) for name in self._parse_texts(head[skip:end], None)[0].to_pylist()]
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidInput(f"{self._path}: the header names {', '.join(doubled)} twice")
        return names, end, 1 + head[:end].count(b"\n")

    def _parse_texts(self, data: bytes, names: list[str] | None) -> list[Any]:
        """Parse the header row: one Arrow array that holds its fields."""
        table = pa_csv.read_csv(
            io.BytesIO(data),
            read_options=pa_csv.ReadOptions(use_threads=False, column_names=names),
            parse_options=self._parse_options(),
        )
        return [pa.array(table.column_names)]

    def _parse_options(self) -> Any:
        return pa_csv.ParseOptions(delimiter=self._dialect.delimiter, newlines_in_values=True)

    def _inferred(self) -> tuple[Column, ...]:
        """Infer the types from the rows in the first megabyte."""
        data = self._file.first_bytes(_INFER_BYTES)[self._body :]
        ends = quoted_row_ends(data, delimiter=self._dialect.delimiter.encode())
        data = data[: int(ends[-1])] if len(ends) else data
        try:
            table = pa_csv.read_csv(
                io.BytesIO(data),
                read_options=pa_csv.ReadOptions(column_names=self._names, use_threads=False, block_size=_INFER_BYTES),
                parse_options=pa_csv.ParseOptions(
                    delimiter=self._dialect.delimiter, newlines_in_values=True, invalid_row_handler=lambda row: "skip"
                ),
                convert_options=pa_csv.ConvertOptions(null_values=list(self._dialect.null_values), strings_can_be_null=True),
            )
        except pa.ArrowException as error:
            raise InvalidInput(f"{self._path}: cannot infer the columns ({error}); declare them with value.columns") from error
        columns = tuple(Column(field.name, column_type(field.type)) for field in table.schema)
        for column, values in zip(columns, table.columns, strict=True):
            if column.type == STRING:
                self._tell_numbers(column.name, values.combine_chunks())
        return columns

    def _tell_numbers(self, name: str, texts: Any) -> None:
        """Tell of a column that a few rows keep from being one of numbers: likely broken ones."""
        unfit = texts.filter(pc.invert(pc.match_substring_regex(texts, _NUMBER)))
        if 0 < len(unfit) <= len(texts) // 20:
            text = unfit[0].as_py()
            _log.warning(
                "%s: column %s is text, because %s of the first %s rows hold no number there (the first: %.40r); declare it "
                "DOUBLE in value.columns, and those are broken rows",
                self._path, name, f"{len(unfit):,}", f"{len(texts):,}", text,
            )  # fmt: skip

    def _indices_of(self, columns: tuple[Column, ...]) -> list[int]:
        missing = [column.name for column in columns if column.name not in self._names]
        if missing:
            raise InvalidInput(f"{self._path}: no column {', '.join(missing)}; the header has {', '.join(self._names)}")
        return [self._names.index(column.name) for column in columns]

    def _block(self, data: bytes, position: int, line: int) -> Block:
        ends = quoted_row_ends(data, delimiter=self._dialect.delimiter.encode())
        if not len(ends) or int(ends[-1]) < len(data):
            ends = np.append(ends, len(data))
        starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
        starts, ends = _without_blank_rows(data, starts, ends)
        texts, bad = self._texts(data, starts, ends)
        reasons: dict[int, tuple[str | None, str]] = {row: (None, reason) for row, reason in bad.items()}
        good = np.array([row for row in range(len(starts)) if row not in bad], np.int64) if bad else np.arange(len(starts))
        columns: list[list[Any]] = []
        for column, index in zip(self.columns, self._indices, strict=True):
            values, unfit = cast_texts(texts[index], column.type)
            columns.append(values)
            for at, reason in unfit:
                reasons.setdefault(int(good[at]), (column.name, reason))
        lines = line + _newlines_before(data, starts)
        if reasons:
            keep = [at for at, row in enumerate(good.tolist()) if row not in reasons]
            columns = [[values[at] for at in keep] for values in columns]
            good = good[keep]
        broken = tuple(
            BrokenAt(
                int(np.searchsorted(good, row)),
                Broken(data[int(starts[row]) : int(ends[row])].rstrip(b"\r\n"), self._path, int(lines[row]), column, reason),
            )
            for row, (column, reason) in sorted(reasons.items())
        )
        return Block(
            columns=columns,
            ends=position + ends[good],
            lines=lines[good],
            next_lines=(line + _newlines_before(data, ends))[good],
            broken=broken,
            end=position + len(data),
            end_line=line + data.count(b"\n"),
        )

    def _texts(self, data: bytes, starts: I64, ends: I64) -> tuple[list[Any], dict[int, str]]:
        """Parse rows into one binary array per column of the file; rows of a wrong width are left out and named."""
        bad: dict[int, str] = {}
        if not len(starts):
            return [pa.array([], pa.binary()) for _ in self._names], bad
        try:
            texts, bad = self._parse(data)
            if len(texts[0]) + len(bad) == len(starts):
                return texts, bad
        except pa.ArrowException:
            pass
        return self._texts_by_row(data, starts, ends)

    def _texts_by_row(self, data: bytes, starts: I64, ends: I64) -> tuple[list[Any], dict[int, str]]:
        """Parse row by row: for a block that cannot be split into the rows that its newlines say (a lone carriage return)."""
        bad: dict[int, str] = {}
        parts: list[list[Any]] = [[] for _ in self._names]
        for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            try:
                texts, wrong = self._parse(data[start:end])
            except pa.ArrowException as error:
                bad[row] = f"not CSV: {str(error).splitlines()[0]}"
                continue
            if wrong or len(texts[0]) != 1:
                bad[row] = next(iter(wrong.values()), "a carriage return inside a row that is not quoted")
                continue
            for part, text in zip(parts, texts, strict=True):
                part.append(text[0].as_py())
        return [pa.array(part, pa.binary()) for part in parts], bad

    def _parse(self, data: bytes) -> tuple[list[Any], dict[int, str]]:
        bad: dict[int, str] = {}

        def note(row: Any) -> str:
            bad[row.number - 1] = f"expected {row.expected_columns} fields, found {row.actual_columns}"
            return "skip"

        table = pa_csv.read_csv(
            io.BytesIO(data),
            read_options=pa_csv.ReadOptions(column_names=self._names, use_threads=False, block_size=len(data) + 1),
            parse_options=pa_csv.ParseOptions(
                delimiter=self._dialect.delimiter, newlines_in_values=True, invalid_row_handler=note
            ),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(self._names, pa.binary()),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                null_values=list(self._dialect.null_values),
            ),
        )
        return [_one_array(column) for column in table.columns], bad


def _one_array(column: Any) -> Any:
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays(column.chunks)
        if column.num_chunks
        else pa.array([], pa.binary())
    )


def _without_blank_rows(data: bytes, starts: I64, ends: I64) -> tuple[I64, I64]:
    """Leave out rows that are only a line end, as the parser does."""
    sizes = ends - starts
    maybe = np.flatnonzero(sizes <= 2).tolist()
    blank = [row for row in maybe if not data[int(starts[row]) : int(ends[row])].strip(b"\r\n")]
    return (np.delete(starts, blank), np.delete(ends, blank)) if blank else (starts, ends)


def _newlines_before(data: bytes, starts: I64) -> I64:
    newlines = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
    return np.searchsorted(newlines, starts).astype(np.int64)
