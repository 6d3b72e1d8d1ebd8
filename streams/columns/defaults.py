"""Absent fields of typed values take the defaults of their class, so that a column has what an object of the class has.

Decoders give null for a field that is absent as for one that is null. Where a column's field has a default the two are told
apart: by what the kernels put under a null of JSON; else the record is looked at once more, in JSON for the field's name, in Avro
whether the writer's schema has it. Other formats know no difference; there, null is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from logflume.log import DecodeError
from logflume.log.records import I64
from logflume.log.schemas import (
    ABSENT,
    ColumnDefault,
    FormatSpec,
    class_fields,
    column_defaults,
    field_of,
    filler_of,
    format_of,
    frame_schema_id,
    parse_exactly,
    registry_at,
)
from logflume.log.schemas import Column as Field

from ..expr import Side
from ..kernels import loaded_kernels
from ..vectors.expressions import KINDS, Mask
from .batch import ColumnId
from .column import Column, patched, typed
from .fields import Extracted

Report = Callable[[int, Exception], None]
Values = Callable[[I64], Sequence[bytes | None]]
_JSON = frozenset({"JSON", "JSON_SR"})
_FRAME_BYTES = 5


class Seen(NamedTuple):
    """What the kernels saw of N rows: by field, where it is absent; and which rows they did not see."""

    absent: dict[str, Mask]
    is_unseen: Mask

    def take(self, rows: I64) -> Seen:
        """Return what was seen of some rows."""
        return Seen({name: absent[rows] for name, absent in self.absent.items()}, self.is_unseen[rows])


@dataclass(frozen=True, slots=True)
class _Filled:
    """A column that may have to be filled: with its default, or, by `fill`, with those of nested objects."""

    name: str
    default: ColumnDefault | None
    fill: Callable[[Any, Any], Any] | None

    def value(self, value: Any, data: bytes | None) -> Any:
        """Return the value of a row by the JSON that it was read of."""
        part = field_of(_parsed(data), self.name)
        if part is ABSENT:
            return value if self.default is None else self.default.make()
        return value if self.fill is None else self.fill(value, part)


class Defaults:
    """Fills the columns of one source. Keeps which fields the schemas have that it met."""

    def __init__(self, format: FormatSpec, filled: tuple[_Filled, ...]) -> None:
        self._format, self._filled = format, filled
        self._written: dict[int, frozenset[str]] = {}

    @classmethod
    def of(cls, value_class: type[Any], format: FormatSpec, kept: Sequence[Field]) -> Defaults | None:
        """Return what fills the columns that are kept; None: none of them ever has to be."""
        defaults, names = column_defaults(value_class), {column.name for column in kept}
        found = tuple(
            _Filled(field.name, defaults.get(field.name), filler_of(field.hint) if format.name in _JSON else None)
            for field in class_fields(value_class)
            if field.name in names
        )
        filled = tuple(each for each in found if each.default is not None or each.fill is not None)
        return cls(format, filled) if filled else None

    def seen(self, found: Extracted, names: Sequence[str]) -> Seen | None:
        """Return what the kernels saw of the fields of these names; None: those of this format do not tell."""
        loaded = loaded_kernels()
        if self._format.name not in _JSON or loaded is None:
            return None
        written = loaded.json.WRITTEN_NULL
        absent = {}
        for each in self._filled:
            f = names.index(each.name)
            absent[each.name] = found.nulls[f] & (found.values[f] != written) & found.certain
        return Seen(absent, ~found.certain)

    def fill(
        self,
        columns: dict[ColumnId, Column],
        nulls: Mask | None,
        values: Values,
        seen: Seen | None,
        memory: list[Any],
        report: Report,
    ) -> set[int]:
        """Fill columns of N rows; return the rows for which no default could be made, which are reported.

        `values` gives what rows were decoded of, ids of schemas in front.
        """
        failed: set[int] = set()
        for each in self._filled:
            column = columns[Side.VALUE, each.name]
            alive = np.ones(column.count, np.bool_) if nulls is None else ~nulls
            if each.fill is not None:
                rows = np.flatnonzero(alive)
                objects, datas = column.objects(), values(rows)
                makes = [partial(each.value, objects[row], data) for row, data in zip(rows.tolist(), datas, strict=True)]
                rows, found = _made(each.name, rows, makes, failed, report)
            else:
                assert each.default is not None
                rows = self._absent(each.name, column.nulls() & alive, values, seen)
                if each.default.is_constant:
                    found = [each.default.make()]
                else:
                    rows, found = _made(each.name, rows, [each.default.make] * len(rows), failed, report)
            if len(rows):
                columns[Side.VALUE, each.name] = _put(column, rows, found, memory)
        return failed

    def _absent(self, name: str, gone: Mask, values: Values, seen: Seen | None) -> I64:
        """Return the rows that lack a field, of those where it was decoded as null."""
        rows = np.flatnonzero(gone if seen is None else gone & seen.is_unseen)
        if len(rows):
            lacks = self._lacks(name)
            rows = rows[np.fromiter((lacks(data) for data in values(rows)), np.bool_, len(rows))]
        return rows if seen is None else np.concatenate([np.flatnonzero(gone & seen.absent[name]), rows])

    def _lacks(self, name: str) -> Callable[[bytes | None], bool]:
        """Return what tells of a record whether it lacks a field that was decoded as null."""
        if self._format.name in _JSON:
            written = msgspec.json.encode(name)
            is_spelled_so = name != name.upper()

            def lacks(data: bytes | None) -> bool:
                if data and is_spelled_so and written not in data and b"\\" not in data:
                    return True
                return field_of(_parsed(data), name) is ABSENT

            return lacks
        if self._format.name == "AVRO":
            return lambda data: name.upper() not in self._written_names(data)
        return lambda data: True

    def _written_names(self, data: bytes | None) -> frozenset[str]:
        """Return the fields of the schema that a record of Avro was written with, in capitals."""
        schema_id = frame_schema_id(data or b"")
        found = self._written.get(schema_id)
        if found is None:
            schemas = format_of(self._format.name).schemas
            assert schemas is not None
            type = schemas.read(registry_at(self._format.registry).by_id(schema_id), self._format.full_name)
            found = self._written[schema_id] = frozenset(field.name.upper() for field in type.fields)
        return found


def _parsed(data: bytes | None) -> Any:
    """Return the JSON object that a row was decoded of, behind the id of its schema if it has one."""
    payload = (data or b"{}")[_FRAME_BYTES if data and data[0] == 0 else 0 :]
    try:
        found = msgspec.json.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        found = parse_exactly(payload)
    return found if isinstance(found, dict) else {}


def _made(name: str, rows: I64, makes: Sequence[Callable[[], Any]], failed: set[int], report: Report) -> tuple[I64, list[Any]]:
    """Return the values of rows, but for those that could not be made."""
    found, wrong = [], []
    for row, make in zip(rows.tolist(), makes, strict=True):
        try:
            found.append(make())
        except Exception as error:  # noqa: BLE001
            wrong.append(row)
            if row not in failed:
                report(row, DecodeError(f"field {name!r} is absent, and its default could not be made: {error!r}"))
    failed.update(wrong)
    return (rows[~np.isin(rows, wrong)] if wrong else rows), found


def _put(column: Column, rows: I64, values: list[Any], memory: list[Any]) -> Column:
    """Return a column with other values in some rows; one value: in all of them."""
    vector = column.vector() if column.kind in KINDS and column.has_vector else None
    if vector is not None and typed(values, column.kind) is not None:
        return patched(vector, column.count, column.kind, rows, values, memory)
    objects = list(column.objects())
    for row, value in zip(rows.tolist(), values * len(rows) if len(values) == 1 else values, strict=True):
        objects[row] = value
    return Column.of_objects(objects, column.kind)
