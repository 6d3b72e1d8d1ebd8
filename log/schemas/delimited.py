"""The DELIMITED serde: one line of RFC 4180-like CSV, fields by position.

An empty field is null, decimals are plain, bytes are base64, time types are integers. The quoting of the writer is that of
Commons CSV's minimal mode, which readers of such topics compare as text: a first field that does not start with a letter or
digit is quoted, and so is any field that starts at or below '#', ends at or below a blank, or holds the delimiter, a quote or
a line end. A null is an empty field without quotes; a lone null column is quoted, since an empty line is no row.
"""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Callable
from typing import Any

from logflume.log.errors import DecodeError, InvalidInput

from .coerce import from_text, java_double_text
from .serdes import FormatSpec, Row
from .types import Column, DataType, Kind

_FIELD_MAX_CHARS = 1 << 24


def make_decode(spec: FormatSpec, columns: tuple[Column, ...]) -> Callable[[bytes | None], Row | None]:
    """Return the decoder: exactly `len(columns)` fields, of the first line that is not empty."""
    parsers = [from_text(column.type, column.name) for column in columns]
    count = len(columns)
    delimiter = spec.delimiter

    def decode(data: bytes | None) -> Row | None:
        if data is None:
            return None
        try:
            text = str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise DecodeError(f"delimited text is not UTF-8: {error}") from None
        fields = text.split(delimiter) if '"' not in text and "\n" not in text and "\r" not in text else _split(text, delimiter)
        if len(fields) != count or (not text and count == 1):
            found = len(fields) if text else 0
            raise DecodeError(f"expected {count} fields separated by {delimiter!r}, found {found}: {text[:60]!r}")
        return tuple([parse(field) if field else None for parse, field in zip(parsers, fields, strict=True)])

    return decode


def make_encode(spec: FormatSpec, columns: tuple[Column, ...]) -> Callable[[Row | None], bytes | None]:
    """Return the encoder."""
    writers = [_writer(column.type) for column in columns]
    delimiter = spec.delimiter

    def encode(row: Row | None) -> bytes | None:
        if row is None:
            return None
        try:
            texts = [None if value is None else write(value) for write, value in zip(writers, row, strict=True)]
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"the row cannot be written as delimited text: {error}") from None
        if texts == [None]:
            return b'""'
        fields = ["" if text is None else _quote(text, delimiter, is_first=i == 0) for i, text in enumerate(texts)]
        return delimiter.join(fields).encode()

    return encode


def _split(text: str, delimiter: str) -> list[str]:
    """Parse the first line that is not empty (a quoted field may span lines)."""
    if len(text) > _FIELD_MAX_CHARS:
        raise DecodeError(f"delimited text of {len(text)} characters; the limit is {_FIELD_MAX_CHARS}")
    csv.field_size_limit(max(csv.field_size_limit(), _FIELD_MAX_CHARS))
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        return next((fields for fields in reader if fields), [])
    except csv.Error as error:
        raise DecodeError(f"not delimited text: {error}: {text[:60]!r}") from None


def _writer(type: DataType) -> Callable[[Any], str]:
    match type.kind:
        case Kind.BOOLEAN:
            return lambda value: "true" if value else "false"
        case Kind.DOUBLE:
            return java_double_text
        case Kind.DECIMAL:
            return lambda value: format(value, "f")
        case Kind.BYTES:
            return lambda value: base64.b64encode(value).decode()
    return str


def _quote(text: str, delimiter: str, *, is_first: bool) -> str:
    if not text:
        return '""' if is_first else ""
    head = text[0]
    must_quote = (
        head <= "#"
        or (is_first and not (head.isascii() and head.isalnum()))
        or text[-1] <= " "
        or delimiter in text
        or '"' in text
        or "\n" in text
        or "\r" in text
    )
    return '"' + text.replace('"', '""') + '"' if must_quote else text
