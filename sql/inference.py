"""Columns of CREATE STREAM or TABLE from a schema registry, where the statement names none.

The statement is rewritten before it is planned and recorded: what the registry said when it was made is what it means from then
on, on every engine and after every restart. before: CREATE STREAM S WITH (KAFKA_TOPIC='t', VALUE_FORMAT='AVRO');
after: CREATE STREAM S (ID BIGINT, NAME STRING) WITH (KAFKA_TOPIC='t', VALUE_FORMAT='AVRO');

- A side without columns whose format has schemas gets those of its subject's newest schema, or of the id given. Names become
  upper-case, unless the schema was named by its id.
- The keys of maps are text, as maps of the dialect have them: numbers and booleans as text. A field that holds a map with other
  keys is left out, with a warning.
- A key is one column ROWKEY; in a format that only writes records its fields are the columns.
- A value that is a record gives its fields; anything else, or all of it with WRAP_SINGLE_VALUE=false, is one column ROWVAL.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from logflume.log.schemas import STRING, Column, DataType, FormatSpec, Kind, format_of, schema_names

from . import ast
from .binding.context import Context
from .errors import StatementError
from .options import KEY_SIDE, VALUE_SIDE, Options, Side, format_name, read_options, registered, registered_type
from .parser import parse_statement
from .planner import format_names
from .types import show_type

KEY_COLUMN, VALUE_COLUMN = "ROWKEY", "ROWVAL"
_KEYS_WITH_TEXT = frozenset([Kind.STRING, Kind.INTEGER, Kind.BIGINT, Kind.BOOLEAN, Kind.DATE, Kind.TIME, Kind.TIMESTAMP])
_log = logging.getLogger("logflume.sql")


def inferred(s: ast.CreateSource, context: Context) -> ast.CreateSource:
    """Return the statement with all of its columns; itself where it names them.

    Raises:
        StatementError: there is no such schema, or columns cannot hold it. RegistryUnavailable.
    """
    options = read_options(s.properties, "C")
    key_name, value_name = format_names(options, context)
    elements = list(s.elements)
    has_key = any(e.constraint in ("KEY", "PRIMARY KEY") for e in elements)
    has_value = any(e.constraint is None for e in elements)
    _check_ids(options, has_key=has_key, has_value=has_value)
    key = () if has_key else _columns(s, KEY_SIDE, key_name, options, context)
    value = () if has_value else _columns(s, VALUE_SIDE, value_name or "", options, context)
    if not key and not value:
        return s
    constraint = "PRIMARY KEY" if s.is_table else "KEY"
    added = [*_elements(key, constraint), *_elements(value, None)]
    headers = [e for e in elements if e.constraint in ("HEADERS", "HEADER")]
    return replace(s, elements=(*added, *(e for e in elements if e not in headers), *headers))


def _check_ids(options: Options, *, has_key: bool, has_value: bool) -> None:
    for side, has_columns in ((KEY_SIDE, has_key), (VALUE_SIDE, has_value)):
        name = f"{side.name}_SCHEMA_ID"
        if name in options and has_columns:
            raise StatementError(f"Table elements and {name} cannot both exist for create statement.", options.span(name))


def _columns(s: ast.CreateSource, side: Side, name: str, options: Options, context: Context) -> tuple[Column, ...]:
    """Return what the registry says of a side; nothing for a format without schemas."""
    topic = options.get("KAFKA_TOPIC")
    id_name = f"{side.name}_SCHEMA_ID"
    format = format_of(format_name(name, options.span(f"{side.name}_FORMAT"))) if name else None
    if format is None or format.schemas is None:
        if id_name in options:
            raise StatementError(
                f"{side.name}_FORMAT should support schema inference when {id_name} is provided. Current format is {name}.",
                options.span(id_name),
            )
        return ()
    if topic is None:
        return ()
    spec = registered(FormatSpec(name), side, topic, options, context)
    type = registered_type(spec, side, topic, s.span)
    names = () if any(each in options for each in side.full_names) else schema_names(spec)
    if len(names) > 1:
        shown = "\n".join(f"- {each}" for each in names)
        raise StatementError(
            f"{side.name.capitalize()} schema has multiple schema definitions. \n\n{shown}\n\nPlease specify a schema full name "
            f"in the WITH clause using {side.full_names[0]}",
            s.span,
        )
    try:
        type = _with_text_keys(type, "")
    except _KeysWithoutText as error:
        raise StatementError(f"Unsupported type at root of schema: {error}", s.span) from None
    if not spec.schema_id:
        type = _upper(type)
    if side is KEY_SIDE and format.can_unwrap:
        return (Column(KEY_COLUMN, type),)
    if side is VALUE_SIDE and options.get("WRAP_SINGLE_VALUE") is False:
        return (Column(VALUE_COLUMN, type),)
    if type.kind is Kind.STRUCT:
        return type.fields
    raise StatementError(
        "Schema returned from schema registry is anonymous type. To use this schema with ksqlDB, set "
        "'WRAP_SINGLE_VALUE=false' in the WITH clause properties.",
        s.span,
    )


class _KeysWithoutText(ValueError):
    """A map whose keys no text stands for."""


def _with_text_keys(type: DataType, path: str) -> DataType:
    """Return a type whose maps have text as keys, without the fields of which that cannot be said.

    Raises:
        _KeysWithoutText: it cannot be said of the type itself.
    """
    if type.key is not None and type.key.kind not in _KEYS_WITH_TEXT:
        raise _KeysWithoutText(f"Unsupported type for map key: {show_type(type.key)}")
    fields = []
    for field in type.fields:
        at = f"{path}{field.name}"
        try:
            fields.append(Column(field.name, _with_text_keys(field.type, f"{at}->")))
        except _KeysWithoutText as error:
            _log.warning("the field %s of the registered schema is left out: %s", at, error)
    if type.fields and not fields:
        raise _KeysWithoutText("Schema does not include any columns with types that ksqlDB supports.")
    return replace(
        type,
        key=None if type.key is None else STRING,
        element=None if type.element is None else _with_text_keys(type.element, path),
        fields=tuple(fields),
    )


def _upper(type: DataType) -> DataType:
    """Return a type with all names of fields in upper case."""
    return replace(
        type,
        key=None if type.key is None else _upper(type.key),
        element=None if type.element is None else _upper(type.element),
        fields=tuple(Column(field.name.upper(), _upper(field.type)) for field in type.fields),
    )


def _elements(columns: tuple[Column, ...], constraint: str | None) -> tuple[ast.ColumnElement, ...]:
    """Return columns as they would have been read from a statement."""
    if not columns:
        return ()
    shown = ", ".join(f"`{column.name}` {show_type(column.type)}" for column in columns)
    statement = parse_statement(f"CREATE STREAM S ({shown}) WITH (KAFKA_TOPIC='t')")
    assert isinstance(statement, ast.CreateSource)
    return tuple(replace(element, constraint=constraint) for element in statement.elements)
