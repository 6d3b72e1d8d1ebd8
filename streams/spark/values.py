"""Values of a format with a schema registry as a column of the data source: `option("value.format", "AVRO")` makes it a struct.

The type is that of the newest schema that the subject has when the job is planned; each record is read with the schema that it
was written with. A value that cannot be read fails the job and is named, or, with `value.errors` = `column`, is null: why stands
in `value_error` then, and its bytes in `value_bytes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from logflume.log import Chunk, DecodeError, InvalidInput, UnknownName
from logflume.log.schemas import Column, DataType, FormatSpec, Kind, default_registry, format_of, of_topic, schema_type

from ..columns.decode import ValueDecoder
from ..expr import Side

VALUE_OPTIONS = ("value.format", "value.registry", "value.subject", "value.full.name", "value.errors")
_ERRORS = ("fail", "column")
_SPARK_TYPES: Mapping[Kind, str] = {
    Kind.BOOLEAN: "BOOLEAN",
    Kind.INTEGER: "INT",
    Kind.BIGINT: "BIGINT",
    Kind.DOUBLE: "DOUBLE",
    Kind.STRING: "STRING",
    Kind.BYTES: "BINARY",
    Kind.DATE: "DATE",
    Kind.TIME: "INT",
    Kind.TIMESTAMP: "TIMESTAMP",
}
"""Spark has no time of day: it is milliseconds."""


@dataclass(frozen=True, slots=True)
class ValueForm:
    """How values are read. `type`: of the column."""

    spec: FormatSpec
    type: DataType
    keeps_errors: bool

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.type.fields if self.type.kind is Kind.STRUCT else (Column("value", self.type),)

    def names(self) -> tuple[str, ...]:
        """Return the names of the columns that `ddl` says."""
        return ("value", "value_error", "value_bytes") if self.keeps_errors else ("value",)

    def ddl(self) -> str:
        """Return the columns `value`, and those of errors, in Spark's words."""
        more = ", value_error STRING, value_bytes BINARY" if self.keeps_errors else ""
        return f"value {spark_type(self.type)}{more}"


def value_form(options: Mapping[str, str], topics: Sequence[str]) -> ValueForm | None:
    """Return how the options say that values are read; None: as bytes.

    Raises:
        InvalidInput, UnknownName: options that cannot be right, topics whose values differ. RegistryUnavailable, SchemaNotFound.
    """
    name = options.get("value.format", "").upper()
    if not name:
        given = [option for option in VALUE_OPTIONS if option in options]
        if given:
            raise InvalidInput(f'option "{given[0]}" is for values of a "value.format", such as AVRO')
        return None
    if format_of(name).schemas is None:
        raise InvalidInput(f'option "value.format" takes AVRO, PROTOBUF or JSON_SR, whose schemas are registered; found {name}')
    errors = options.get("value.errors", "fail")
    if errors not in _ERRORS:
        raise UnknownName('value of option "value.errors"', errors, _ERRORS)
    told = FormatSpec(name, subject=options.get("value.subject", ""), full_name=options.get("value.full.name", ""))
    registry = options.get("value.registry") or default_registry()
    specs = [of_topic(told, topic, "value", registry) for topic in topics]
    types = [schema_type(spec) for spec in specs]
    for topic, type in zip(topics, types, strict=True):
        if type != types[0]:
            raise InvalidInput(
                f"values of {topic} are {type}, those of {topics[0]} are {types[0]}: read them apart, or name one schema for all "
                'in option "value.subject"'
            )
    is_record = types[0].kind is Kind.STRUCT
    spec = FormatSpec(name, is_wrapped=is_record, registry=specs[0].registry, subject=specs[0].subject, full_name=told.full_name)
    return ValueForm(spec, types[0], errors == "column")


def spark_type(type: DataType) -> str:
    """Return a column type in Spark's words.

    >>> from logflume.log.schemas import BIGINT, struct, array
    >>> spark_type(struct(Column("a", array(BIGINT))))
    'STRUCT<`a`: ARRAY<BIGINT>>'
    """
    match type.kind:
        case Kind.DECIMAL:
            return f"DECIMAL({type.precision}, {type.scale})"
        case Kind.ARRAY:
            assert type.element is not None
            return f"ARRAY<{spark_type(type.element)}>"
        case Kind.MAP:
            assert type.key is not None
            assert type.element is not None
            return f"MAP<{spark_type(type.key)}, {spark_type(type.element)}>"
        case Kind.STRUCT:
            fields = ", ".join(f"`{field.name.replace('`', '``')}`: {spark_type(field.type)}" for field in type.fields)
            return f"STRUCT<{fields}>"
        case kind if kind in _SPARK_TYPES:
            return _SPARK_TYPES[kind]
    raise InvalidInput(f"Spark has no type for {type}")


class ValueReader:
    """Makes arrays of the values of chunks."""

    def __init__(self, form: ValueForm) -> None:
        self._form = form
        self._decoder = ValueDecoder(form.spec, form.columns, frozenset(column.name for column in form.columns))

    def arrays(self, chunk: Chunk) -> tuple[list[Any], list[str]]:
        """Return the columns that `ddl` names, of N records.

        Raises:
            DecodeError: naming the record, unless errors are kept. RegistryUnavailable.
        """
        import numpy as np
        import pyarrow as pa

        count = len(chunk)
        failed: dict[int, Exception] = {}
        found = self._decoder.decode(chunk, 0, count, failed.__setitem__)
        if failed and not self._form.keeps_errors:
            row = min(failed)
            where = f"{chunk.topic}-{chunk.partition}, offset {int(chunk.offsets[row])}"
            raise DecodeError(f'{where}: {failed[row]}; option "value.errors" = "column" keeps such records') from failed[row]
        rows = np.arange(count) if found.rows is None else found.rows
        is_there = np.zeros(count, np.bool_)
        is_there[rows] = True if found.nulls is None else ~found.nulls
        columns = self._form.columns
        lists = [_spread(found.columns[Side.VALUE, column.name].objects(), rows.tolist(), count) for column in columns]
        arrays = [_array(values, column.type) for values, column in zip(lists, columns, strict=True)]
        value = arrays[0]
        if self._form.type.kind is Kind.STRUCT:
            fields = [pa.field(column.name, array.type) for column, array in zip(columns, arrays, strict=True)]
            value = pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(~is_there))
        if not self._form.keeps_errors:
            return [value], ["value"]
        values = chunk.values()
        texts = [str(failed[row]) if row in failed else None for row in range(count)]
        kept = [values[row] if row in failed else None for row in range(count)]
        more = [pa.array(texts, pa.string()), pa.array(kept, pa.binary())]
        return [value, *more], ["value", "value_error", "value_bytes"]


def _spread(values: list[Any], rows: list[int], count: int) -> list[Any]:
    """Return values at their rows, None elsewhere."""
    if len(rows) == count:
        return values
    made: list[Any] = [None] * count
    for row, value in zip(rows, values, strict=True):
        made[row] = value
    return made


def _array(values: list[Any], type: DataType) -> Any:
    import pyarrow as pa

    from logflume.log.arrow_values import to_arrow_values

    arrow = _arrow_type(type)
    return pa.array(to_arrow_values(values, arrow), arrow) if not _has_times(type) else _of_times(values, type)


def _has_times(type: DataType) -> bool:
    inner = [each for each in (type.key, type.element) if each is not None] + [field.type for field in type.fields]
    return type.kind in (Kind.TIMESTAMP, Kind.TIME) or any(map(_has_times, inner))


def _of_times(values: list[Any], type: DataType) -> Any:
    """Return an array whose timestamps are microseconds and whose times of day are numbers, as Spark has them."""
    import pyarrow as pa

    from logflume.log.arrow_values import arrow_type, to_arrow_values

    made = arrow_type(type)
    return pa.array(to_arrow_values(values, made), made).cast(_arrow_type(type))


def _arrow_type(type: DataType) -> Any:
    """Return the Arrow type of a column as Spark reads it."""
    import pyarrow as pa

    from logflume.log.arrow_values import arrow_type

    match type.kind:
        case Kind.TIMESTAMP:
            return pa.timestamp("us", "UTC")
        case Kind.TIME:
            return pa.int32()
        case Kind.ARRAY:
            assert type.element is not None
            return pa.list_(_arrow_type(type.element))
        case Kind.MAP:
            assert type.key is not None
            assert type.element is not None
            return pa.map_(_arrow_type(type.key), _arrow_type(type.element))
        case Kind.STRUCT:
            return pa.struct([pa.field(field.name, _arrow_type(field.type)) for field in type.fields])
    return arrow_type(type)
