"""The forms in which the rows of a query are written, by media type."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from logflume.log.schemas import FORMATS, Column, FormatSpec, serde
from logflume.sql.render import to_json
from logflume.sql.results import PushQuery, PushRow, Rows
from logflume.sql.types import show_type

from .values import rest_row, schema_text


@dataclass(frozen=True, slots=True)
class StartedQuery:
    """A query that gives rows. `final`: what is said at the end of a pull query, if anything."""

    id: str
    columns: tuple[Column, ...]
    roles: Mapping[str, str]
    rows: Rows | PushQuery
    final: str | None = None


class Form(Protocol):
    """How an answer is written, from its head to its end."""

    media_type: str

    def head(self, query: StartedQuery) -> bytes: ...

    def row(self, columns: tuple[Column, ...], row: PushRow) -> bytes: ...

    def token(self, token: str) -> bytes: ...

    def end(self, message: str | None, error: str | None) -> bytes: ...


class Chunked:
    """One array of {header}, {row}, {finalMessage} or {errorMessage}: /query and application/vnd.ksql.v1+json."""

    media_type = "application/vnd.ksql.v1+json"

    def head(self, query: StartedQuery) -> bytes:
        return b"[" + to_json({"header": self.header(query)})

    def header(self, query: StartedQuery) -> dict[str, Any]:
        return {"queryId": query.id, "schema": schema_text(query.columns, query.roles)}

    def content(self, columns: tuple[Column, ...], row: PushRow) -> dict[str, Any]:
        return {"columns": rest_row(columns, row.values)}

    def row(self, columns: tuple[Column, ...], row: PushRow) -> bytes:
        content = self.content(columns, row)
        if row.is_tombstone:
            content["tombstone"] = True
        return b",\n" + to_json({"row": content})

    def token(self, token: str) -> bytes:
        return b",\n" + to_json({"continuationToken": {"continuationToken": token}})

    def end(self, message: str | None, error: str | None) -> bytes:
        if error is not None:
            text = {"@type": "generic_error", "error_code": 50000, "message": error}
            return b",\n" + to_json({"errorMessage": text}) + b"]\n"
        return (b"" if message is None else b",\n" + to_json({"finalMessage": message})) + b"]\n"


class Delimited:
    """A line for the head, then one array a line: the default of /query-stream."""

    media_type = "application/vnd.ksqlapi.delimited.v1"

    def head(self, query: StartedQuery) -> bytes:
        return to_json(_names_and_types(query)) + b"\n"

    def row(self, columns: tuple[Column, ...], row: PushRow) -> bytes:
        return to_json(rest_row(columns, row.values)) + b"\n"

    def token(self, token: str) -> bytes:
        return to_json({"continuationToken": token}) + b"\n"

    def end(self, message: str | None, error: str | None) -> bytes:
        if error is None:
            return b""
        return to_json({"@type": "generic_error", "error_code": 50000, "message": error}) + b"\n"


class OneArray:
    """One array of the head and the rows: application/json."""

    media_type = "application/json"

    def head(self, query: StartedQuery) -> bytes:
        return b"[" + to_json(_names_and_types(query))

    def row(self, columns: tuple[Column, ...], row: PushRow) -> bytes:
        return b",\n" + to_json(rest_row(columns, row.values))

    def token(self, token: str) -> bytes:
        return b",\n" + to_json({"continuationToken": token})

    def end(self, message: str | None, error: str | None) -> bytes:
        if error is None:
            return b"]\n"
        return b",\n" + to_json({"@type": "generic_error", "error_code": 50000, "message": error}) + b"]\n"


class Protobuf(Chunked):
    """As Chunked, with the rows as Protobuf messages of the schema that the header has; a null is a field that is not set.

    To make one for new columns takes long: not for an event loop.
    """

    media_type = "application/vnd.ksql.v1+protobuf"

    def __init__(self, columns: tuple[Column, ...]) -> None:
        self._schema, self._encode = proto_of(columns)

    def header(self, query: StartedQuery) -> dict[str, Any]:
        return super().header(query) | {"protoSchema": self._schema}

    def content(self, columns: tuple[Column, ...], row: PushRow) -> dict[str, Any]:
        message = self._encode(row.values)
        return {"protobufBytes": b64encode(message or b"").decode()}


@lru_cache(maxsize=64)
def proto_of(columns: tuple[Column, ...]) -> tuple[str, Callable[[tuple[Any, ...]], bytes | None]]:
    """Return the Protobuf schema of rows, and their encoder. Raises InvalidInput: Protobuf has no such columns."""
    spec = FormatSpec("PROTOBUF_NOSR", nullables="OPTIONAL")
    schemas = FORMATS["PROTOBUF"].schemas
    assert schemas is not None
    encode = serde(spec, columns).encode  # which refuses what the schema could not be written of
    return schemas.write(spec, columns), encode


Kind = type[Delimited] | type[OneArray] | type[Chunked]
MEDIA_TYPES: dict[str, Kind] = {form.media_type: form for form in (Delimited, OneArray, Chunked, Protobuf)}


def _names_and_types(query: StartedQuery) -> dict[str, Any]:
    names, types = [c.name for c in query.columns], [show_type(c.type) for c in query.columns]
    return {"queryId": query.id, "columnNames": names, "columnTypes": types}
