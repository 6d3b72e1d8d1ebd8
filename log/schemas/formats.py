"""The formats by name, what each can hold, and the factory of serdes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import MappingProxyType

from logflume.log.errors import InvalidInput, UnknownName

from . import avro_format, delimited, json_format, json_schema_format, kafka_format, proto_format
from .serde import FormatSpec, Row
from .types import Column, DataType, Kind

Decode = Callable[[bytes | None], Row | None]
Encode = Callable[[Row | None], bytes | None]

_SCALARS = frozenset(Kind) - {Kind.ARRAY, Kind.MAP, Kind.STRUCT, Kind.ANY}


@dataclass(frozen=True, slots=True)
class Format:
    """What a format can hold.

    Attributes:
        kinds: column types it supports.
        can_wrap, can_unwrap: whether a single column may be written as a record with one field, or bare.
        max_columns: None for any number.
        schema_kind: what a registry calls its schemas, from which columns can be inferred; empty: it has none.
        settings: which of `full_name` and `nullables` it knows.
    """

    name: str
    kinds: frozenset[Kind]
    can_wrap: bool
    can_unwrap: bool
    max_columns: int | None
    make_decode: Callable[[FormatSpec, tuple[Column, ...]], Decode]
    make_encode: Callable[[FormatSpec, tuple[Column, ...]], Encode]
    schema_kind: str = ""
    settings: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class CompiledSerde:
    """A serde whose two functions were made for its columns. Pickled as its spec and columns."""

    spec: FormatSpec
    columns: tuple[Column, ...]
    decode: Decode
    encode: Encode

    def __reduce__(self) -> tuple[Callable[..., CompiledSerde], tuple[FormatSpec, tuple[Column, ...]]]:
        return serde, (self.spec, self.columns)


_TYPED = frozenset(Kind) - {Kind.ANY}
_NAMED, _NULLABLE = frozenset({"full_name"}), frozenset({"nullables"})
_NUMBERS_AND_TEXT = frozenset({Kind.INTEGER, Kind.BIGINT, Kind.DOUBLE, Kind.STRING, Kind.BYTES, Kind.ANY})

_FORMATS = (
    Format("JSON", frozenset(Kind), True, True, None, json_format.make_decode, json_format.make_encode),
    Format("DELIMITED", _SCALARS, False, True, None, delimited.make_decode, delimited.make_encode),
    Format("KAFKA", _NUMBERS_AND_TEXT, False, True, 1, kafka_format.make_decode, kafka_format.make_encode),
    Format("NONE", frozenset(), False, False, 0, lambda *_: kafka_format.decode_nothing, lambda *_: kafka_format.encode_nothing),
    Format("AVRO", _TYPED, True, True, None, avro_format.make_decode, avro_format.make_encode, "AVRO", _NAMED),
    Format("JSON_SR", _TYPED, True, True, None, json_schema_format.make_decode, json_schema_format.make_encode, "JSON"),
    Format(
        "PROTOBUF", _TYPED, True, False, None, proto_format.make_decode, proto_format.make_encode, "PROTOBUF", _NAMED | _NULLABLE
    ),
    Format(
        "PROTOBUF_NOSR", _TYPED, True, False, None, proto_format.make_bare_decode, proto_format.make_bare_encode, "", _NULLABLE
    ),
)
FORMATS = MappingProxyType({format.name: format for format in _FORMATS})


def format_of(name: str) -> Format:
    """Return the format of that name (upper-case).

    Raises:
        UnknownName: with near matches.
    """
    found = FORMATS.get(name)
    if found is None:
        raise UnknownName("format", name, FORMATS)
    return found


def serde(spec: FormatSpec, columns: Iterable[Column]) -> CompiledSerde:
    """Make the serde of one side of a topic.

    For JSON, fewer columns than were written is fine: only those are decoded. DELIMITED goes by position and needs all.

    Raises:
        UnknownName: no such format.
        InvalidInput: the format cannot hold these columns.

    >>> from logflume.log.schemas import BIGINT, STRING, Column, FormatSpec, serde
    >>> s = serde(FormatSpec("JSON"), [Column("ID", BIGINT), Column("NAME", STRING)])
    >>> s.decode(b'{"id": "7", "name": 1.50, "more": []}')
    (7, '1.50')
    >>> s.encode((7, None))
    b'{"ID":7,"NAME":null}'
    """
    columns = tuple(columns)
    format = format_of(spec.name)
    check_columns(format, columns)
    if spec.name == "DELIMITED" and len(spec.delimiter) != 1:
        raise InvalidInput(f"a delimiter is one character, found {spec.delimiter!r}")
    if not columns and spec.name != "JSON":
        format = format_of("NONE")
    return CompiledSerde(spec, columns, format.make_decode(spec, columns), format.make_encode(spec, columns))


def check_columns(format: Format, columns: tuple[Column, ...]) -> None:
    """Raise InvalidInput unless the format can hold the columns; the wording of type errors is ksqlDB's."""
    names = [column.name for column in columns]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InvalidInput(f"columns {repeated} are given twice")
    if format.max_columns is not None and len(columns) > format.max_columns:
        raise InvalidInput(f"The '{format.name}' format only supports {format.max_columns or 'no'} columns, found {len(columns)}")
    for column in columns:
        _check_type(format, column.type)


def _check_type(format: Format, type: DataType) -> None:
    if type.kind not in format.kinds:
        raise InvalidInput(f"The '{format.name}' format does not support type '{type.kind}'")
    if type.kind is Kind.MAP and type.key is not None and type.key.kind is not Kind.STRING:
        raise InvalidInput(f"{format.name} only supports MAP types with STRING keys")
    inner = [t for t in (type.key, type.element) if t is not None] + [field.type for field in type.fields]
    for each in inner:
        _check_type(format, each)


def opaque(kind: str) -> CompiledSerde:
    """Return the serde of a side without a schema: one column `value`; kind is json (any JSON), bytes or text.

    >>> opaque("json").decode(b'{"a": [1, 2.5]}')
    ({'a': [1, 2.5]},)
    """
    specs = {
        "json": (FormatSpec("JSON", is_wrapped=False), DataType(Kind.ANY)),
        "bytes": (FormatSpec("KAFKA", is_wrapped=False), DataType(Kind.ANY)),
        "text": (FormatSpec("KAFKA", is_wrapped=False), DataType(Kind.STRING)),
    }
    if kind not in specs:
        raise UnknownName("kind of opaque serde", kind, specs)
    spec, type = specs[kind]
    return serde(replace(spec), (Column("value", type),))
