"""The formats by name, what each can hold, and the factory of serdes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from types import MappingProxyType

from logflume.log.errors import DecodeError, InvalidInput, UnknownName

from . import avro_format, delimited, json_format, json_schema_format, kafka_format, proto_format, row_format, text_format
from .fitting import Target
from .layouts import PLAIN_KINDS, Layout, Unheld
from .registries import RegisteredSchema, SchemaNotFound, registry_at
from .serdes import FormatSpec, Row
from .types import Column, DataType, Kind
from .writing import schema_to_write_with

Decode = Callable[[bytes | None], Row | None]
Encode = Callable[[Row | None], bytes | None]

_SCALARS = frozenset(Kind) - {Kind.ARRAY, Kind.MAP, Kind.STRUCT, Kind.ANY}


@dataclass(frozen=True, slots=True)
class Schemas:
    """The schemas of a format.

    Attributes:
        kind: what a registry calls them.
        write: the text of the schema that columns are written with.
        read: the type that a registered schema describes; of the record of that name where there are several.
        target: what a registered schema takes from who writes with it.
        check: raises DecodeError or InvalidInput where what was written with a schema cannot be read into columns.
        names: the records of a registered schema that a full name chooses from; none where there is nothing to choose.
    """

    kind: str
    write: Callable[[FormatSpec, tuple[Column, ...]], str]
    read: Callable[[RegisteredSchema, str], DataType]
    target: Callable[[RegisteredSchema, str], Target]
    check: Callable[[RegisteredSchema, FormatSpec, tuple[Column, ...]], None]
    names: Callable[[RegisteredSchema], tuple[str, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Layouts:
    """The layouts of a format; both functions raise Unheld.

    Attributes:
        read: (format, declared columns, those that are wanted, a record) -> how records that begin as this one are read.
        write: (format, columns) -> how rows are written; registers their schema.
    """

    read: Callable[[FormatSpec, tuple[Column, ...], tuple[Column, ...], bytes], Layout]
    write: Callable[[FormatSpec, tuple[Column, ...]], Layout]


@dataclass(frozen=True, slots=True)
class Format:
    """What a format can hold.

    Attributes:
        kinds: column types it supports.
        can_wrap, can_unwrap: whether a single column may be written as a record with one field, or bare.
        max_columns: None for any number.
        schemas: its schemas in a registry; None: it has none.
        settings: which of `full_name` and `nullables` it knows.
        layouts: how kernels read and write its records; None: they do not.
        is_by_name: whether a serde of fewer columns reads what was written with more.
        make_part_decode: decodes some of the columns where it is not by name; None: all are decoded.
    """

    name: str
    kinds: frozenset[Kind]
    can_wrap: bool
    can_unwrap: bool
    max_columns: int | None
    make_decode: Callable[[FormatSpec, tuple[Column, ...]], Decode]
    make_encode: Callable[[FormatSpec, tuple[Column, ...]], Encode]
    schemas: Schemas | None = None
    settings: frozenset[str] = frozenset()
    layouts: Layouts | None = None
    is_by_name: bool = False
    make_part_decode: Callable[[FormatSpec, tuple[Column, ...], tuple[Column, ...]], Decode] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CompiledSerde:
    """A serde whose two functions were made for its columns. Pickled as its spec and columns."""

    spec: FormatSpec
    columns: tuple[Column, ...]
    decode: Decode
    encode: Encode

    def __reduce__(self) -> tuple[Callable[..., CompiledSerde], tuple[FormatSpec, tuple[Column, ...]]]:
        return serde, (self.spec, self.columns)


_NAMINGS = {"TOPIC": "{topic}-{side}", "RECORD": "{record}", "TOPIC_RECORD": "{topic}-{record}"}
_TYPED = frozenset(Kind) - {Kind.ANY}
_NAMED, _NULLABLE = frozenset({"full_name"}), frozenset({"nullables"})
_PROTO_SETTINGS = _NAMED | _NULLABLE
_NUMBERS_AND_TEXT = frozenset({Kind.INTEGER, Kind.BIGINT, Kind.DOUBLE, Kind.STRING, Kind.BYTES, Kind.ANY})

_AVRO = Schemas("AVRO", avro_format.write_schema, avro_format.read_schema, avro_format.target, avro_format.check_schema)
_JSON = Schemas(
    "JSON",
    json_schema_format.write_schema,
    json_schema_format.read_schema,
    json_schema_format.target,
    json_schema_format.check_schema,
)
_PROTO = Schemas(
    "PROTOBUF",
    proto_format.write_schema,
    proto_format.read_schema,
    proto_format.target,
    proto_format.check_schema,
    proto_format.message_names,
)
_AVRO_LAYOUTS = Layouts(avro_format.read_layout, avro_format.write_layout)
_JSON_LAYOUTS = Layouts(json_schema_format.read_layout, json_schema_format.write_layout)
_PROTO_LAYOUTS = Layouts(proto_format.read_layout, proto_format.write_layout)
_BARE_PROTO_LAYOUTS = Layouts(proto_format.read_bare_layout, proto_format.write_bare_layout)
_FORMATS = (
    Format("JSON", frozenset(Kind), True, True, None, json_format.make_decode, json_format.make_encode, is_by_name=True),
    Format("DELIMITED", _SCALARS, False, True, None, delimited.make_decode, delimited.make_encode),
    Format("KAFKA", _NUMBERS_AND_TEXT, False, True, 1, kafka_format.make_decode, kafka_format.make_encode),
    Format("TEXT", frozenset({Kind.ANY}), False, True, 1, text_format.make_decode, text_format.make_encode),
    Format("NONE", frozenset(), False, False, 0, lambda *_: kafka_format.decode_nothing, lambda *_: kafka_format.encode_nothing),
    Format(
        "AVRO", _TYPED, True, True, None, avro_format.make_decode, avro_format.make_encode, _AVRO, _NAMED, _AVRO_LAYOUTS, True
    ),
    Format(
        "JSON_SR", _TYPED, True, True, None, json_schema_format.make_decode, json_schema_format.make_encode, _JSON, _NAMED,
        _JSON_LAYOUTS, True,
    ),
    Format(
        "PROTOBUF", _TYPED, True, False, None, proto_format.make_decode, proto_format.make_encode, _PROTO, _PROTO_SETTINGS,
        _PROTO_LAYOUTS, True,
    ),
    Format(
        "PROTOBUF_NOSR", _TYPED, True, True, None, proto_format.make_bare_decode, proto_format.make_bare_encode, None, _NULLABLE,
        _BARE_PROTO_LAYOUTS, make_part_decode=proto_format.make_bare_decode,
    ),
)  # fmt: skip
FORMATS = MappingProxyType({format.name: format for format in _FORMATS})
"""Formats of topics, by name."""
_ROW = Format(
    "ROW", _TYPED, True, True, None, row_format.make_decode, row_format.make_encode,
    layouts=Layouts(row_format.read_layout, row_format.write_layout), make_part_decode=row_format.make_part_decode,
)  # fmt: skip
ROW_FORMAT = FormatSpec(_ROW.name)
"""Of topics that one application writes and reads."""
_ALL = MappingProxyType({**FORMATS, _ROW.name: _ROW})


def format_of(name: str) -> Format:
    """Return the format of that name (upper-case).

    Raises:
        UnknownName: with near matches.
    """
    found = _ALL.get(name)
    if found is None:
        raise UnknownName("format", name, FORMATS)
    return found


def format_of_kind(kind: str) -> str:
    """Return the name of the format whose schemas a registry calls so.

    >>> format_of_kind("JSON")
    'JSON_SR'
    """
    return next(format.name for format in _FORMATS if format.schemas is not None and format.schemas.kind == kind)


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
    if not columns and spec.name not in ("JSON", _ROW.name):
        format = format_of("NONE")
    return CompiledSerde(spec, columns, format.make_decode(spec, columns), format.make_encode(spec, columns))


def part_decode(spec: FormatSpec, columns: tuple[Column, ...], wanted: tuple[Column, ...]) -> Decode:
    """Return what decodes some of the columns of a record that is written with all of them.

    A value that does not fit its column makes the record undecodable only where that column is wanted, or where the format has no
    way to find a value but to read what stands before it. It is the same with kernels and without.

    >>> from logflume.log.schemas import BIGINT, STRING, Column, FormatSpec, part_decode
    >>> id, name = Column("ID", BIGINT), Column("NAME", STRING)
    >>> part_decode(FormatSpec("JSON"), (id, name), (name,))(b'{"id": "x", "name": "y"}')
    ('y',)
    """
    format = format_of(spec.name)
    has_names = spec.is_wrapped or len(columns) > 1
    if has_names and format.is_by_name:
        return format.make_decode(spec, wanted)
    if has_names and format.make_part_decode is not None:
        return format.make_part_decode(spec, columns, wanted)
    decode = serde(spec, columns).decode
    if wanted == columns:
        return decode
    places = [columns.index(column) for column in wanted]

    def pick(data: bytes | None) -> Row | None:
        row = decode(data)
        return None if row is None else tuple([row[place] for place in places])

    return pick


def has_layouts(spec: FormatSpec, columns: tuple[Column, ...], wanted: tuple[Column, ...]) -> bool:
    """Return whether kernels may read or write these columns of a format: records, in JSON of plain columns."""
    format = format_of(spec.name)
    if format.layouts is None or not columns or (not spec.is_wrapped and len(columns) == 1):
        return False
    concerned = wanted if wanted and format.is_by_name else columns
    return format.schemas is not _JSON or all(column.type.kind in PLAIN_KINDS for column in concerned)


def read_layout(spec: FormatSpec, columns: tuple[Column, ...], wanted: tuple[Column, ...], record: bytes) -> Layout | None:
    """Return how records that begin as this one are read into some of the columns; None: not by a layout.

    Raises:
        RegistryUnavailable.
    """
    layouts = format_of(spec.name).layouts
    assert layouts is not None
    try:
        return layouts.read(spec, columns, wanted, record)
    except (Unheld, DecodeError):
        return None


def write_layout(spec: FormatSpec, columns: tuple[Column, ...]) -> Layout | None:
    """Return how rows of columns are written; None: not by a layout. Registers their schema if needed.

    Raises:
        RegistryRefused, RegistryUnavailable, SchemaNotFound.
    """
    layouts = format_of(spec.name).layouts
    assert layouts is not None
    try:
        return layouts.write(spec, columns)
    except (Unheld, DecodeError):
        return None


def check_columns(format: Format, columns: tuple[Column, ...]) -> None:
    """Raise InvalidInput unless the format can hold the columns; the wording of type errors is ksqlDB's."""
    counts = Counter(column.name for column in columns)
    repeated = sorted(name for name, count in counts.items() if count > 1)
    if repeated:
        raise InvalidInput(f"columns {repeated} are given twice")
    if format.max_columns is not None and len(columns) > format.max_columns:
        raise InvalidInput(f"The '{format.name}' format only supports {format.max_columns or 'no'} columns, found {len(columns)}")
    for column in columns:
        if "JSON" in format.name and any(c in '"\\' or c < " " for c in column.name):
            raise InvalidInput(
                f"{format.name} has no column names with quotes, backslashes or control characters, found {column.name!r}"
            )
        at = f", column: `{column.name}`" if format.name == "DELIMITED" else ""
        _check_proto_name(format, column.name)
        _check_type(format, column.type, at)


_PROTO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def _check_proto_name(format: Format, name: str) -> None:
    if format.name.startswith("PROTOBUF") and not _PROTO_NAME.match(name):
        raise InvalidInput(
            f"Schema is not compatible with Protobuf: a field's name has letters of ASCII, digits and _ alone, found {name!r}"
        )


def _check_type(format: Format, type: DataType, at: str) -> None:
    if type.kind not in format.kinds:
        raise InvalidInput(f"The '{format.name}' format does not support type '{type.kind}'{at}")
    if type.kind is Kind.MAP and type.key is not None and type.key.kind is not Kind.STRING:
        raise InvalidInput(
            f"{format.name}{' format' if format.name.startswith('PROTOBUF') else ''} only supports MAP types with STRING keys"
        )
    has_repeated = type.kind is Kind.ARRAY and type.element is not None and type.element.kind in (Kind.ARRAY, Kind.MAP)
    if format.name.startswith("PROTOBUF") and has_repeated:
        raise InvalidInput(f"the {format.name} format cannot hold {type}: a repeated field cannot be repeated again")
    inner = [t for t in (type.key, type.element) if t is not None] + [field.type for field in type.fields]
    for field in type.fields:
        _check_proto_name(format, field.name)
    for each in inner:
        _check_type(format, each, at)


def of_topic(spec: FormatSpec, topic: str, side: str, registry: str) -> FormatSpec:
    """Return the format of a side ("key" or "value") of a topic: with the registry and the subject, if it has schemas.

    Raises:
        UnknownName: no such `naming`. InvalidInput: named after the record, whose name nobody said; ids of keys in headers.
    """
    if format_of(spec.name).schemas is None:
        return spec
    if side == "key" and spec.has_ids_in_headers:
        raise InvalidInput("schema ids in headers are for values; a key's id stands before it")
    if spec.naming not in _NAMINGS:
        raise UnknownName("naming of subjects", spec.naming, _NAMINGS)
    if spec.naming != "TOPIC" and not (spec.full_name or spec.subject):
        raise InvalidInput(f"a subject named by {spec.naming} needs the record's full_name, such as full_name='shop.Order'")
    subject = spec.subject or _NAMINGS[spec.naming].format(topic=topic, side=side, record=spec.full_name)
    return replace(spec, registry=spec.registry or registry, subject=subject)


def register_schema(spec: FormatSpec, columns: Iterable[Column]) -> int:
    """Register the schema that rows of these columns are written with, and return its id; 0 for a format without schemas.

    Raises:
        RegistryRefused: the schema does not fit those that the subject has. RegistryUnavailable.
    """
    schemas = format_of(spec.name).schemas
    columns = tuple(columns)
    if schemas is None or not columns:
        return 0
    return schema_to_write_with(
        spec, schemas.kind, columns, lambda: schemas.write(spec, columns), lambda each: schemas.target(each, spec.full_name)
    ).id


def check_readable(spec: FormatSpec, columns: tuple[Column, ...], required: Collection[str] = ()) -> None:
    """Raise InvalidInput unless the newest schema of a subject can be read into columns and has those that are required.

    A subject without schemas says nothing yet; nor does a format without a registry.

    Raises:
        InvalidInput; RegistryUnavailable.
    """
    schemas = format_of(spec.name).schemas
    if schemas is None:
        return
    try:
        type, found = _registered(spec, schemas)
    except SchemaNotFound:
        return
    names = [field.name for field in type.fields]
    known = {name.upper() for name in names}
    for column in columns:
        if spec.is_wrapped and column.name in required and column.name.upper() not in known:
            what = f"field of {spec.subject}, schema {found.id} (give it a default if it may be absent)"
            raise UnknownName(what, column.name, names)
    try:
        schemas.check(found, spec, columns)
    except DecodeError as error:
        raise InvalidInput(f"{spec.subject}, schema {found.id}: {error}") from None


class SchemaKindMismatch(InvalidInput):
    """A registered schema is of another kind than the format writes. `found`: of which."""

    code = "SCHEMA_KIND"

    def __init__(self, message: str, found: str) -> None:
        super().__init__(message)
        self.found = found


def schema_type(spec: FormatSpec) -> DataType:
    """Return the type that the registry has for a side of a topic: of `schema_id`, else of the newest schema of `subject`.

    Raises:
        SchemaNotFound, RegistryUnavailable; DecodeError: a schema that columns cannot hold.
    """
    schemas = format_of(spec.name).schemas
    if schemas is None:
        raise InvalidInput(f"the format {spec.name} has no schemas in a registry")
    return _registered(spec, schemas)[0]


def schema_names(spec: FormatSpec) -> tuple[str, ...]:
    """Return the records that a registered schema lets choose from, by name. Raises as `schema_type` does."""
    schemas = format_of(spec.name).schemas
    if schemas is None or schemas.names is None:
        return ()
    return schemas.names(_registered(spec, schemas)[1])


def _registered(spec: FormatSpec, schemas: Schemas) -> tuple[DataType, RegisteredSchema]:
    registry = registry_at(spec.registry)
    found = registry.by_id(spec.schema_id) if spec.schema_id else registry.latest(spec.subject)
    if found.kind != schemas.kind:
        raise SchemaKindMismatch(f"schema {found.id} of {spec.subject} is {found.kind}, expected {schemas.kind}", found.kind)
    return schemas.read(found, spec.full_name), found


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
