"""Rows from outside as the records of a source: its serdes and decoders are made once, and kept while the source is as it was."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import attrgetter
from typing import Annotated, Any

import msgspec

from logflume.log import DecodeError, Headers, InvalidInput, near_matches
from logflume.log.schemas import INT_RANGES, CompiledSerde, FrameSplitter, Kind, from_json, serde

from . import ast
from .catalog import SourceInfo
from .errors import StatementError

SOURCES_MAX = 256
_ANY_OBJECT = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)
_AS_THEY_ARE: Mapping[Kind, Any] = {
    Kind.BOOLEAN: bool,
    Kind.DOUBLE: float,
    Kind.STRING: str,
    **{
        kind: Annotated[int, msgspec.Meta(ge=INT_RANGES[kind][0], le=INT_RANGES[kind][1])] for kind in (Kind.INTEGER, Kind.BIGINT)
    },
}
"""What a JSON value of this type becomes without a look at it; all others go through `from_json`."""
_OPENS, _CLOSES = b"{}"
_FieldsOf = Callable[[bytes], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class ValuesRecord:
    """A record to be written."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Records of one topic, in columns of the same length. `headers` None: none has any."""

    topic: str
    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps_ms: list[int]
    headers: list[Headers] | None = None

    @classmethod
    def of(cls, records: Sequence[ValuesRecord]) -> RecordColumns:
        """Return records of one topic, at least one, as columns."""
        return cls(
            records[0].topic,
            [r.key for r in records],
            [r.value for r in records],
            [r.timestamp_ms for r in records],
            [r.headers for r in records] if any(r.headers for r in records) else None,
        )


class RowRecords:
    """Makes the records of one source."""

    def __init__(self, source: SourceInfo) -> None:
        self.source = source
        self._columns = {column.name: column for column in source.columns()}
        self._key: CompiledSerde = serde(source.key_format, source.key)
        self._value: CompiledSerde = serde(source.value_format, source.value)
        spec = source.value_format
        self._splitter = FrameSplitter("value", spec.registry) if spec.has_ids_in_headers else None
        self._keys = len(source.key)
        self._row_decoders = self._make_decoders()
        self._decoders = [self._decoder(each) for each in self._row_decoders]
        self._names = [f"f{i}" for i in range(self._keys + len(source.value))]
        self._converted = [(i, c) for i, c in enumerate((*source.key, *source.value)) if c.type.kind not in _AS_THEY_ARE]

    def record(
        self, key: tuple[Any, ...] | None, row: tuple[Any, ...], timestamp_ms: int, span: ast.Span = ast.NOWHERE
    ) -> ValuesRecord:
        """Return the record of a row. Raises StatementError: a value cannot be written in the source's format."""
        try:
            key_bytes, value = self._key.encode(key), self._value.encode(row)
            if self._splitter is None or value is None:
                return ValuesRecord(self.source.topic, key_bytes, value, timestamp_ms)
            payload, header = self._splitter.split(value)
            return ValuesRecord(self.source.topic, key_bytes, payload, timestamp_ms, (header,))
        except InvalidInput as e:
            raise StatementError(f"Could not serialize the values: {e}", span) from None

    def columns_of_json(self, lines: Sequence[bytes], timestamp_ms: int) -> RecordColumns | None:
        """Return the records of rows that came as JSON objects, a stripped line each; None: each has to be looked at alone."""
        rows = None if self._converted or self._splitter is not None else self._decoded(lines)
        if rows is None:
            return None
        keys, values = _tuples(rows, self._names[: self._keys]), _tuples(rows, self._names[self._keys :])
        nothing = (None,) * self._keys
        if nothing in keys and self.source.is_table:
            return None
        encode_key, encode_value = self._key.encode, self._value.encode
        try:
            key_bytes = [None if key == nothing else encode_key(key) for key in keys]
            value_bytes = [encode_value(value) for value in values]
        except InvalidInput:
            return None
        return RecordColumns(self.source.topic, key_bytes, value_bytes, [timestamp_ms] * len(rows))

    def _decoded(self, lines: Sequence[bytes]) -> list[Any] | None:
        """Return one row for each line, all spelled alike; None: some line is no such row.

        Where every line begins and ends an object, no row can go over the end of a line; so as many rows as lines are one each.
        """
        if not all(line[0] == _OPENS and line[-1] == _CLOSES for line in lines):
            return None
        text = b"\n".join(lines)
        for decoder in self._row_decoders:
            try:
                rows: list[Any] = decoder.decode_lines(text)
            except (ValueError, RecursionError):
                continue
            return rows if len(rows) == len(lines) else None
        return None

    def record_of_json(self, line: bytes, timestamp_ms: int) -> ValuesRecord:
        """Return the record of a row that came as a JSON object; fields that it lacks are null, names may be in any case.

        Raises:
            StatementError: no JSON object, an unknown field, a value that does not fit, a table's row without its key.
        """
        for decode in self._decoders:
            try:
                fields = decode(line)
                break
            except (ValueError, RecursionError):
                continue
        else:
            fields = self._looked_up(line)
        key = fields[: self._keys]
        if not any(value is not None for value in key):
            if self.source.is_table:
                names = ", ".join(c.name for c in self.source.key)
                raise StatementError(f"Value for primary key column(s) {names} is required for tables")
            return self.record(None, fields[self._keys :], timestamp_ms)
        return self.record(key, fields[self._keys :], timestamp_ms)

    def _make_decoders(self) -> list[msgspec.json.Decoder[Any]]:
        """Return decoders for names as declared and, where none has a lower-case letter, in lower case; both know no others."""
        columns = (*self.source.key, *self.source.value)
        fields = [(f"f{i}", _AS_THEY_ARE.get(c.type.kind, Any) | None, None) for i, c in enumerate(columns)]
        spellings = [[c.name for c in columns]]
        if all(name == name.upper() for name in spellings[0]):
            spellings.append([name.lower() for name in spellings[0]])
        found: list[msgspec.json.Decoder[Any]] = []
        for names in spellings:
            if any(c in '"\\' or c < " " for name in names for c in name):
                continue  # msgspec takes no such names; such a row is looked up
            renamed = {f"f{i}": name for i, name in enumerate(names)}
            struct = msgspec.defstruct("Row", fields, rename=renamed, forbid_unknown_fields=True, gc=False)
            found.append(msgspec.json.Decoder(struct, float_hook=Decimal))
        return found

    def _decoder(self, decoder: msgspec.json.Decoder[Any]) -> _FieldsOf:
        def decode(line: bytes) -> tuple[Any, ...]:
            fields: tuple[Any, ...] = msgspec.structs.astuple(decoder.decode(line))
            if not self._converted:
                return fields
            values = list(fields)
            for i, column in self._converted:
                values[i] = self._fitting(values[i], column.name)
            return tuple(values)

        return decode

    def _looked_up(self, line: bytes) -> tuple[Any, ...]:
        """Return the fields of any JSON object: what the decoders refuse, and what is wrong with it."""
        try:
            row: dict[str, Any] = _ANY_OBJECT.decode(line)
        except (ValueError, RecursionError) as error:
            raise StatementError(f"Invalid JSON in inserts stream: {error}") from None
        values: dict[str, Any] = {}
        for name, value in row.items():
            found = name if name in self._columns else name.upper()
            if found not in self._columns:
                near = near_matches(name, self._columns)
                hint = f" Did you mean {' or '.join(near)}?" if near else f" Its columns are {', '.join(self._columns)}."
                raise StatementError(f"Column name(s) `{name}` does not exist in {self.source.name}.{hint}")
            values[found] = self._fitting(value, found)
        return tuple(values.get(c.name) for c in (*self.source.key, *self.source.value))

    def _fitting(self, value: Any, name: str) -> Any:
        try:
            return from_json(value, self._columns[name].type, name)
        except DecodeError as error:
            raise StatementError(f"Could not take the value of `{name}`: {error}") from None


def _tuples(rows: Sequence[Any], names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return some fields of each row."""
    return list(zip(*(map(attrgetter(name), rows) for name in names), strict=True)) if names else [()] * len(rows)


class RecordMakers:
    """Keeps the `RowRecords` of the sources that were written to last, at most SOURCES_MAX. Thread-safe."""

    def __init__(self) -> None:
        self._kept: dict[str, RowRecords] = {}

    def knows(self, source: SourceInfo) -> bool:
        """Tell whether a record of this source is made without asking anybody for anything."""
        found = self._kept.get(source.name)
        return found is not None and found.source is source and not (source.key_format.registry or source.value_format.registry)

    def of(self, source: SourceInfo) -> RowRecords:
        """Return what makes records of a source as it is now."""
        found = self._kept.get(source.name)
        if found is None or found.source is not source:
            found = self._kept[source.name] = RowRecords(source)
            while len(self._kept) > SOURCES_MAX:
                self._kept.pop(next(iter(self._kept), source.name), None)
        return found


def now_ms() -> int:
    """Return the time that rows without one get."""
    return time.time_ns() // 1_000_000
