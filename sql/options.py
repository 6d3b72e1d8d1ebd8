"""WITH (...) clauses: which properties exist, what they may be, and the formats they describe.

One spec per property is its documentation and its validation; unknown names are refused with near matches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from logflume.log import DecodeError, InvalidInput, near_matches
from logflume.log.schemas import (
    FORMATS,
    Column,
    DataType,
    FormatSpec,
    SchemaKindMismatch,
    SchemaNotFound,
    check_columns,
    format_of,
    of_topic,
    schema_type,
)
from logflume.streams import calendar
from logflume.streams.calendars import CalendarUnit
from logflume.streams.graph import CalendarWindow
from logflume.streams.java_time import UNITS_MS

from . import ast
from .ast import NOWHERE, Span
from .binding.context import REGISTRY_URL, Context
from .errors import StatementError, SyntaxFault
from .types import has_map, show_type

_NAMED_DELIMITERS = {"TAB": "\t", "SPACE": " "}


@dataclass(frozen=True, slots=True)
class PropertySpec:
    """`where`: C (CREATE with columns), A (CREATE ... AS), I (INSERT INTO ... SELECT).

    `read` raises ValueError: the value is not of the property's type; Unreadable: it is, and cannot be read.
    """

    name: str
    where: str
    read: Callable[[Any], Any]
    doc: str


class Unreadable(ValueError):
    """Text that has a syntax of its own, such as a duration, and is not of it."""


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("expected text that is not empty")
    return value


def _upper(value: Any) -> str:
    return _text(value).upper()


def _stripped(value: Any) -> str:
    return str(value).strip()


def _nullables(value: Any) -> str:
    word = _upper(value)
    if word not in ("OPTIONAL", "WRAPPER"):
        raise ValueError("String must be one of: OPTIONAL, WRAPPER, null")
    return word


def _naming(value: Any) -> str:
    word = _upper(value)
    if word not in ("TOPIC", "RECORD", "TOPIC_RECORD"):
        raise ValueError("expected TOPIC, RECORD or TOPIC_RECORD")
    return word


def _id_place(value: Any) -> str:
    word = _upper(value)
    if word not in ("PREFIX", "HEADER"):
        raise ValueError("expected PREFIX or HEADER")
    return word


def _whole(value: Any, kind: str, wanted: str) -> int:
    number = int(value) if isinstance(value, str) and re.fullmatch(r"[+-]?\d+", value.strip()) else value
    if not isinstance(number, int) or isinstance(number, bool):
        raise ValueError(f"Not a number of type {kind}. {wanted} is expected")
    return number


def _positive(value: Any) -> int:
    wanted = "A whole number of at least 1"
    number = _whole(value, "INT", wanted)
    if number < 1:
        raise ValueError(f"{wanted} is expected")
    return number


def _number(kind: str) -> Callable[[Any], int]:
    return lambda value: _whole(value, kind, "A whole number")


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError("Expected value to be either true or false")


def _delimiter(value: Any) -> str:
    if isinstance(value, str):
        if not value.strip():
            raise Unreadable(
                "Delimiter cannot be empty, if you meant to have a tab or space for delimiter, please use the special values "
                "'TAB' or 'SPACE'\nExample valid value: ';'"
            )
        if value.upper() in _NAMED_DELIMITERS:
            return _NAMED_DELIMITERS[value.upper()]
        if len(value) == 1 and not value.isspace():
            return value
    raise Unreadable(
        f"Invalid delimiter value: '{value}'. Delimiter must be a single character or TAB,SPACE\nExample valid value: ';'"
    )


def _column_name(value: Any) -> str:
    text = _text(value)
    return text[1:-1] if len(text) > 1 and text[0] in '`"' and text[-1] == text[0] else text.upper()


def _window_type(value: Any) -> str:
    kind = _upper(value)
    if kind not in ("TUMBLING", "HOPPING", "SESSION", "CALENDAR"):
        raise ValueError("String must be one of: SESSION, HOPPING, TUMBLING, null; or CALENDAR")
    return kind


def calendar_of(unit: str, zone: str, span: Span) -> CalendarWindow:
    """Return the windows of a calendar. Raises StatementError: there is no such unit or time zone."""
    units = [str(known).upper() for known in CalendarUnit]
    if unit not in units:
        raise StatementError(f"unknown unit of a calendar {unit}; expected one of {', '.join(units)}", span)
    try:
        return calendar(unit.lower(), zone=zone)
    except InvalidInput as e:
        raise StatementError(str(e), span) from None


def _window_size(value: Any) -> int:
    parts = _text(value).split()
    wrong = ""
    if len(parts) != 2:
        wrong = f"Expected 2 tokens, got: {len(parts)}"
    elif re.fullmatch("[0-9]{1,18}", parts[0]) is None:
        wrong = f"Not numeric: '{parts[0]}'"
    elif parts[1].upper() not in UNITS_MS:
        wrong = f"Unknown time unit: '{parts[1].upper()}'"
    if wrong:
        raise Unreadable(f"Invalid duration: '{value}'. {wrong}. Expected a number and a unit such as '30 SECONDS'")
    return int(parts[0]) * UNITS_MS[parts[1].upper()]


PROPERTIES: tuple[PropertySpec, ...] = (
    PropertySpec("KAFKA_TOPIC", "CA", _text, "the topic; by default the upper-case name for CREATE ... AS"),
    PropertySpec("PARTITIONS", "CA", _positive, "partitions of a topic to be created"),
    PropertySpec("REPLICAS", "CA", _number("SHORT"), "replicas of a topic to be created"),
    PropertySpec("RETENTION_MS", "CA", _number("LONG"), "how long records are kept"),
    PropertySpec("CLEANUP_POLICY", "CA", _text, "follows from STREAM or TABLE and cannot be set"),
    PropertySpec("FORMAT", "CA", _upper, "key and value format"),
    PropertySpec("KEY_FORMAT", "CA", _upper, "key format, KAFKA by default"),
    PropertySpec("VALUE_FORMAT", "CA", _upper, "value format"),
    PropertySpec("TIMESTAMP", "CA", _column_name, "the column with the event time"),
    PropertySpec("TIMESTAMP_FORMAT", "CA", _text, "the pattern of a text column with the event time"),
    PropertySpec("WRAP_SINGLE_VALUE", "CA", _boolean, "whether a single value column is written as a record with one field"),
    PropertySpec("KEY_DELIMITER", "CA", _delimiter, "DELIMITED keys: one character, SPACE or TAB"),
    PropertySpec("VALUE_DELIMITER", "CA", _delimiter, "DELIMITED values: one character, SPACE or TAB"),
    PropertySpec("WINDOW_TYPE", "C", _window_type, "how a windowed key is read"),
    PropertySpec("WINDOW_SIZE", "C", _window_size, "the size of its windows, e.g. '30 SECONDS'"),
    PropertySpec("WINDOW_UNIT", "C", _upper, "of CALENDAR windows: DAY, WEEK, MONTH, QUARTER or YEAR"),
    PropertySpec("WINDOW_ZONE", "C", _text, "of CALENDAR windows: on which clocks, UTC by default"),
    PropertySpec("SOURCE_CONNECTOR", "C", _text, "informational"),
    PropertySpec("SOURCED_BY_CONNECTOR", "C", _text, "informational"),
    PropertySpec("KEY_SCHEMA_ID", "CA", _number("INT"), "key schema by id, from a registry"),
    PropertySpec("VALUE_SCHEMA_ID", "CA", _number("INT"), "value schema by id, from a registry"),
    PropertySpec("KEY_SCHEMA_FULL_NAME", "CA", _stripped, "name of the key's record schema"),
    PropertySpec("VALUE_SCHEMA_FULL_NAME", "CA", _stripped, "name of the value's record schema"),
    PropertySpec("VALUE_AVRO_SCHEMA_FULL_NAME", "CA", _stripped, "name of the value's Avro record"),
    PropertySpec("KEY_PROTOBUF_NULLABLE_REPRESENTATION", "CA", _nullables, "OPTIONAL or WRAPPER"),
    PropertySpec("VALUE_PROTOBUF_NULLABLE_REPRESENTATION", "CA", _nullables, "OPTIONAL or WRAPPER"),
    PropertySpec("KEY_SUBJECT_NAMING", "CA", _naming, "the key schema's subject is called by TOPIC, RECORD or TOPIC_RECORD"),
    PropertySpec("VALUE_SUBJECT_NAMING", "CA", _naming, "the value schema's subject is called by TOPIC, RECORD or TOPIC_RECORD"),
    PropertySpec("KEY_USE_LATEST_SCHEMA", "CA", _boolean, "write keys with the newest schema of the subject"),
    PropertySpec("VALUE_USE_LATEST_SCHEMA", "CA", _boolean, "write values with the newest schema of the subject"),
    PropertySpec("KEY_REGISTER_SCHEMA", "CA", _boolean, "false: the key schema must be registered already"),
    PropertySpec("VALUE_REGISTER_SCHEMA", "CA", _boolean, "false: the value schema must be registered already"),
    PropertySpec("KEY_NORMALIZE_SCHEMA", "CA", _boolean, "register the key schema in the registry's normal form"),
    PropertySpec("VALUE_NORMALIZE_SCHEMA", "CA", _boolean, "register the value schema in the registry's normal form"),
    PropertySpec("VALUE_SCHEMA_ID_PLACE", "CA", _id_place, "PREFIX: schema ids before values; HEADER: GUIDs in headers"),
    PropertySpec("QUERY_ID", "I", _upper, "the id of the query"),
)


@dataclass(frozen=True, slots=True)
class Side:
    """The key or the value of a topic, and the properties that name its schema; the first that is given counts."""

    name: str
    full_names: tuple[str, ...]

    @property
    def nullables(self) -> str:
        return f"{self.name}_PROTOBUF_NULLABLE_REPRESENTATION"

    @property
    def delimiter(self) -> str:
        return f"{self.name}_DELIMITER"

    @property
    def registration(self) -> tuple[str, ...]:
        """The properties that say how schemas are named, registered and told; only formats with a registry know them."""
        names = ("SUBJECT_NAMING", "USE_LATEST_SCHEMA", "REGISTER_SCHEMA", "NORMALIZE_SCHEMA", "SCHEMA_ID_PLACE")
        return tuple(f"{self.name}_{name}" for name in names)


KEY_SIDE = Side("KEY", ("KEY_SCHEMA_FULL_NAME",))
VALUE_SIDE = Side("VALUE", ("VALUE_SCHEMA_FULL_NAME", "VALUE_AVRO_SCHEMA_FULL_NAME"))


@dataclass(frozen=True, slots=True)
class Options:
    """The properties of one WITH clause, read and checked one by one."""

    values: dict[str, Any]
    spans: dict[str, Span]

    def get(self, name: str, default: Any = None) -> Any:
        return self.values.get(name, default)

    def span(self, name: str) -> Span:
        return self.spans.get(name, NOWHERE)

    def __contains__(self, name: str) -> bool:
        return name in self.values


def read_options(properties: Sequence[ast.Property], where: str) -> Options:
    """Read a WITH clause of a kind of statement (C, A or I).

    Raises:
        StatementError: unknown property, bad value (each a SyntaxFault), or properties that exclude each other; at the property.
    """
    specs = {p.name: p for p in PROPERTIES if where in p.where}
    values: dict[str, Any] = {}
    spans: dict[str, Span] = {}
    for given in properties:
        spec = specs.get(given.name)
        if spec is None:
            near = near_matches(given.name, specs)
            hint = f" Did you mean {' or '.join(near)}?" if near else f" Known are {', '.join(specs)}."
            unknown = ",".join(dict.fromkeys(p.name for p in properties if p.name not in specs))
            raise SyntaxFault(f"Invalid config variable(s) in the WITH clause: {unknown}.{hint}", given.span)
        if given.name in values:
            raise SyntaxFault(f"Duplicate config in the WITH clause: {given.name}", given.span)
        try:
            values[given.name] = spec.read(given.value)
        except Unreadable as e:
            raise SyntaxFault(f"Failed to prepare statement: Configuration {given.name} is invalid: {e}", given.span) from None
        except ValueError as e:
            wrong = f"Invalid value {given.value} for property {given.name}: {e}"
            raise SyntaxFault(f"Failed to prepare statement: {wrong}", given.span) from None
        spans[given.name] = given.span
    options = Options(values, spans)
    _check_exclusions(options)
    return options


def _check_exclusions(options: Options) -> None:
    for side in ("KEY_FORMAT", "VALUE_FORMAT"):
        if "FORMAT" in options and side in options:
            raise StatementError(
                f"Cannot supply both '{side}' and 'FORMAT' properties, as 'FORMAT' sets both key and value formats. "
                "Either use just 'FORMAT', or use 'KEY_FORMAT' and 'VALUE_FORMAT'.",
                options.span("FORMAT"),
            )
    if "VALUE_AVRO_SCHEMA_FULL_NAME" in options and "VALUE_SCHEMA_FULL_NAME" in options:
        raise StatementError(
            "Cannot supply both 'VALUE_AVRO_SCHEMA_FULL_NAME' and 'VALUE_SCHEMA_FULL_NAME' properties. Please only set "
            "'VALUE_SCHEMA_FULL_NAME'.",
            options.span("VALUE_AVRO_SCHEMA_FULL_NAME"),
        )
    if "CLEANUP_POLICY" in options:
        raise StatementError(
            "Invalid config variable in the WITH clause: CLEANUP_POLICY.\nThe CLEANUP_POLICY config is automatically inferred "
            "based on the type of source (STREAM or TABLE).\nUsers can't set the CLEANUP_POLICY config manually.",
            options.span("CLEANUP_POLICY"),
        )
    if "TIMESTAMP_FORMAT" in options and "TIMESTAMP" not in options:
        raise StatementError("TIMESTAMP_FORMAT needs TIMESTAMP, the column it is for", options.span("TIMESTAMP_FORMAT"))
    kind = options.get("WINDOW_TYPE")
    if kind not in ("TUMBLING", "HOPPING") and "WINDOW_SIZE" in options:
        raise StatementError(
            f"'WINDOW_SIZE' should not be set for {kind or 'SESSION'} windows."
            + ("" if kind else " Keys have other windows if WINDOW_TYPE says so."),
            options.span("WINDOW_SIZE"),
        )
    for name in ("WINDOW_UNIT", "WINDOW_ZONE"):
        if name in options and kind != "CALENDAR":
            raise StatementError(f"'{name}' is for CALENDAR windows: WINDOW_TYPE='CALENDAR'", options.span(name))
    if kind == "CALENDAR" and "WINDOW_UNIT" not in options:
        raise StatementError(
            "CALENDAR windows require 'WINDOW_UNIT' to be provided in the WITH clause. For example: 'WINDOW_UNIT'='MONTH'",
            options.span("WINDOW_TYPE"),
        )
    if kind in ("TUMBLING", "HOPPING") and "WINDOW_SIZE" not in options:
        raise StatementError(
            f"{kind} windows require 'WINDOW_SIZE' to be provided in the WITH clause. For example: 'WINDOW_SIZE'='10 SECONDS'",
            options.span("WINDOW_TYPE"),
        )


def format_name(name: str, span: Span) -> str:
    """Return the name of a format that works here.

    Raises:
        StatementError: unknown, with near matches.
    """
    if name in FORMATS:
        return name
    near = near_matches(name, FORMATS)
    hint = f"; did you mean {' or '.join(near)}?" if near else f"; known are {', '.join(FORMATS)}"
    raise StatementError(f"Unknown format: {name}{hint}", span)


def registered_type(spec: FormatSpec, side: Side, topic: str, span: Span) -> DataType:
    """Return the type that the registry has for a side of a topic.

    Raises:
        StatementError: it has none, or one of another kind. RegistryUnavailable.
    """
    try:
        return schema_type(spec)
    except SchemaNotFound as error:
        by_id = f"\nSchema Id: {spec.schema_id}" if spec.schema_id else ""
        raise StatementError(
            f"Schema for message {side.name.lower()}s on topic '{topic}' does not exist in the Schema Registry.\n"
            f"Subject: {spec.subject}{by_id}\n"
            f"Name the columns in the statement, register a schema, or name another one. ({error})",
            span,
        ) from None
    except SchemaKindMismatch as error:
        by_id = f", schema id: {spec.schema_id}" if spec.schema_id else ""
        raise StatementError(
            f"{side.name.capitalize()} schema is not in the expected format. You may want to set {side.name}_FORMAT to "
            f"'{error.found}'.\ntopic: {topic}{by_id}\nexpected format: {spec.name.removesuffix('_SR')}\n"
            f"actual format from Schema Registry: {error.found}",
            span,
        ) from None
    except (DecodeError, InvalidInput) as error:
        source = f"topic: {topic}{f', schema id: {spec.schema_id}' if spec.schema_id else ''}"
        raise StatementError(
            f"Unable to verify if the {side.name.lower()} schema for {source} is compatible with ksqlDB.\nReason: {error}", span
        ) from None


def registered(spec: FormatSpec, side: Side, topic: str, options: Options, context: Context) -> FormatSpec:
    """Return a format with where its schemas are and how they are named.

    Raises:
        StatementError: a property that the format does not know.
    """
    format = format_of(spec.name)
    given = next((name for name in side.full_names if name in options), None)
    for name, setting, shown in ((given, "full_name", "fullSchemaName"), (side.nullables, "nullables", "nullableRepresentation")):
        if name is not None and name in options and setting not in format.settings:
            only = f"Property {name} can only be enabled with protobuf format: " if name == side.nullables else ""
            raise StatementError(f"{only}{spec.name} does not support the following configs: [{shown}]", options.span(name))
    if given is not None and not options.get(given):
        raise StatementError("fullSchemaName cannot be empty. Format configuration: {fullSchemaName=}", options.span(given))
    told = [name for name in side.registration if name in options]
    if format.schemas is None:
        if told:
            raise StatementError(f"{spec.name} has no schemas in a registry: {told[0]} is not for it", options.span(told[0]))
        return replace(spec, nullables=options.get(side.nullables, ""))
    naming, latest, registers, normalizes, place = side.registration
    if options.get(latest) and f"{side.name}_SCHEMA_ID" in options:
        raise StatementError(f"{latest} and {side.name}_SCHEMA_ID exclude each other", options.span(latest))
    spec = replace(
        spec,
        schema_id=options.get(f"{side.name}_SCHEMA_ID", 0),
        full_name="" if given is None else options.get(given),
        nullables=options.get(side.nullables, ""),
        naming=options.get(naming, "TOPIC"),
        uses_latest=options.get(latest, False),
        registers=options.get(registers, True),
        normalizes=options.get(normalizes, False),
        has_ids_in_headers=options.get(place) == "HEADER",
    )
    try:
        return of_topic(spec, topic, side.name.lower(), context.property(REGISTRY_URL, ""))
    except InvalidInput as error:
        raise StatementError(str(error), options.span(told[0]) if told else NOWHERE) from None


def check_key_type(column: Column, span: Span) -> None:
    """Refuse a key that holds a map: two equal maps may be written in another order."""
    if has_map(column.type):
        raise StatementError(
            "Map keys, including types that contain maps, are not supported as they may lead to unexpected behavior "
            f"due to inconsistent serialization. Key column name: `{column.name}`. Column type: {show_type(column.type)}. "
            "See https://github.com/confluentinc/ksql/issues/6621 for more.",
            span,
        )


def key_format(name: str, columns: tuple[Column, ...], options: Options, *, span: Span = NOWHERE) -> FormatSpec:
    """Return the key's format, checked against its columns. A single key column is written bare.

    Without columns the format is remembered (results with a key inherit it) and nothing is written.

    Raises:
        StatementError: the format cannot hold the columns.
    """
    delimiter = _delimiter_for(KEY_SIDE, name, options)
    spec = FormatSpec(name, is_wrapped=len(columns) != 1 or not format_of(name).can_unwrap, delimiter=delimiter)
    for column in columns:
        check_key_type(column, span)
    check_format(spec, columns, is_key=True, span=span)
    return spec


def value_format(
    name: str, columns: tuple[Column, ...], options: Options, *, span: Span = NOWHERE, wraps_by_default: bool = True
) -> FormatSpec:
    """Return the value's format, checked against its columns and WRAP_SINGLE_VALUE."""
    wraps = options.get("WRAP_SINGLE_VALUE")
    format = None if name == "NONE" else format_of(name)
    if wraps is not None and format is not None:
        at = options.span("WRAP_SINGLE_VALUE")
        if not (format.can_wrap if wraps else format.can_unwrap):
            raise StatementError(f"Format '{name}' does not support 'WRAP_SINGLE_VALUE' set to '{str(wraps).lower()}'.", at)
        if len(columns) != 1:
            raise StatementError("'WRAP_SINGLE_VALUE' is only valid for single-field value schemas", at)
    can_wrap = format is not None and format.can_wrap
    wraps_by_default = wraps_by_default or (can_wrap and format is not None and not format.can_unwrap)
    is_wrapped = can_wrap and (wraps_by_default if wraps is None else wraps or len(columns) != 1)
    delimiter = _delimiter_for(VALUE_SIDE, name, options)
    spec = FormatSpec(name, is_wrapped=is_wrapped or len(columns) != 1, delimiter=delimiter)
    check_format(spec, columns, is_key=False, span=span)
    return spec


def check_schema(spec: FormatSpec, columns: tuple[Column, ...], span: Span) -> None:
    """Raise StatementError unless there is a schema that the columns can be written with."""
    schemas = format_of(spec.name).schemas
    if schemas is None or not columns or spec.schema_id:
        return
    try:
        schemas.write(spec, columns)
    except InvalidInput as error:
        raise StatementError(str(error), span) from None


def _delimiter_for(side: Side, name: str, options: Options) -> str:
    delimiter: str = options.get(side.delimiter, ",")
    if side.delimiter in options and name != "DELIMITED":
        raise StatementError(f"{name} does not support the following configs: [delimiter]", options.span(side.delimiter))
    return delimiter


def check_format(spec: FormatSpec, columns: tuple[Column, ...], *, is_key: bool, span: Span) -> None:
    """Raise StatementError unless the format can hold the columns."""
    shown = ", ".join(f"`{c.name}` {show_type(c.type)}{' KEY' if is_key else ''}" for c in columns)
    if spec.name == "NONE":
        if columns:
            raise StatementError(f"The 'NONE' format can only be used when no columns are defined. Got: [{shown}]", span)
        return
    try:
        if spec.name == "KAFKA" and len(columns) > 1:
            raise InvalidInput(f"The 'KAFKA' format only supports a single field. Got: [{shown}]")
        check_columns(format_of(spec.name), columns)
    except InvalidInput as e:
        if not is_key:
            raise StatementError(str(e), span) from None
        raise StatementError(
            f"Key format does not support schema.\nformat: {spec.name}\n"
            f"schema: Persistence{{columns=[{shown}], features=[]}}\nreason: {e}",
            span,
        ) from None
