"""Reads JSON lines (one object a line, UTF-8) in blocks from any line on; values are taken as the JSON serde takes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from logflume.connect.api import Broken
from logflume.log import DecodeError, InvalidInput
from logflume.log.schemas import BIGINT, BOOLEAN, DOUBLE, STRING, Column, DataType, FormatSpec, Kind, Row, array, serde, struct

from .file_block import Block, BrokenAt, Start
from .file_identity import check_grown_only, fingerprint
from .lines import LineFile
from .row_ends import newline_ends

_INFER_BYTES = 1 << 20
_PATH = re.compile(r"\$\.([^.:\[]+)")


class JsonLinesReader:
    """A JSON lines file. Undeclared columns are inferred from its first megabyte."""

    def __init__(self, path: str, *, declared: tuple[Column, ...], block_bytes: int, is_followed: bool) -> None:
        self._path = path
        self._file = LineFile(path, block_bytes=block_bytes, is_followed=is_followed)
        try:
            self.columns = declared or infer_columns(path, self._file.first_bytes(_INFER_BYTES))
            self._decode: Callable[[bytes | None], Row | None] = serde(FormatSpec("JSON"), self.columns).decode
        except BaseException:
            self._file.close()
            raise

    def blocks(self, start: Start) -> Iterator[Block]:
        for data, position, line in self._file.runs(start, newline_ends):
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

    def _block(self, data: bytes, position: int, line: int) -> Block:
        rows: list[Row] = []
        ends: list[int] = []
        lines: list[int] = []
        broken: list[BrokenAt] = []
        at = position
        for number, text in enumerate(_split(data), line):
            at += len(text)
            if not text.strip():
                continue
            try:
                row = self._decode(text)
                if row is None:
                    raise DecodeError("expected a JSON object, found null")
            except DecodeError as error:
                named = _PATH.match(str(error))
                column = named[1] if named else None
                broken.append(BrokenAt(len(rows), Broken(text.rstrip(b"\r\n"), self._path, number, column, str(error))))
                continue
            rows.append(row)
            ends.append(at)
            lines.append(number)
        columns = [list(values) for values in zip(*rows, strict=True)] if rows else [[] for _ in self.columns]
        return Block(
            columns=columns,
            ends=np.array(ends, np.int64),
            lines=np.array(lines, np.int64),
            next_lines=np.array(lines, np.int64) + 1,
            broken=tuple(broken),
            end=position + len(data),
            end_line=line + data.count(b"\n"),
        )


def _split(data: bytes) -> list[bytes]:
    """Split behind each line feed (`splitlines` would split at other marks too)."""
    parts = [part + b"\n" for part in data.split(b"\n")]
    parts[-1] = parts[-1][:-1]
    return parts if parts[-1] else parts[:-1]


def infer_columns(path: str, data: bytes) -> tuple[Column, ...]:
    """Return the columns of the objects in `data`: a field's type is the narrowest one that holds all its values.

    Raises:
        InvalidInput: no line holds an object.
    """
    end = data.rfind(b"\n") + 1
    types: dict[str, DataType | None] = {}
    for text in (data[:end] or data).split(b"\n"):
        try:
            value = msgspec.json.decode(text) if text.strip() else None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(value, dict):
            for name, item in value.items():
                types[name] = _widest(types.get(name), _type_of(item))
    if not types:
        raise InvalidInput(f"{path}: no line of its first megabyte is a JSON object; expected one a line")
    return tuple(Column(name, data_type or STRING) for name, data_type in types.items())


def _type_of(value: Any) -> DataType | None:
    match value:
        case None:
            return None
        case bool():
            return BOOLEAN
        case int():
            return BIGINT if -(2**63) <= value < 2**63 else STRING
        case float():
            return DOUBLE
        case list():
            element: DataType | None = None
            for item in value:
                element = _widest(element, _type_of(item))
            return array(element or STRING)
        case dict():
            return struct(*(Column(name, _type_of(item) or STRING) for name, item in value.items()))
        case _:
            return STRING


def _widest(one: DataType | None, other: DataType | None) -> DataType | None:
    if one is None or other is None or one == other:
        return other if one is None else one
    if {one, other} == {BIGINT, DOUBLE}:
        return DOUBLE
    if one.kind is Kind.ARRAY and other.kind is Kind.ARRAY:
        return array(_widest(one.element, other.element) or STRING)
    if one.kind is Kind.STRUCT and other.kind is Kind.STRUCT:
        fields: dict[str, DataType | None] = {f.name: f.type for f in one.fields}
        for field in other.fields:
            fields[field.name] = _widest(fields.get(field.name), field.type)
        return struct(*(Column(name, t or STRING) for name, t in fields.items()))
    return STRING
