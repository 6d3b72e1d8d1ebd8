"""Statements -> plans: what a CREATE makes, what a query becomes, where its result goes. Changes nothing; gives drafts.

`plan_query` is what a Spark backfill uses: text and catalog in, a picklable topology out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from logflume.log import InvalidInput, check_own_topic
from logflume.log.schemas import (
    AVRO_NAMESPACE,
    BIGINT,
    STRING,
    TIMESTAMP,
    Column,
    FormatSpec,
    Kind,
    format_of,
    register_schema,
)
from logflume.streams import expr as x
from logflume.streams.functions import can_cast_implicitly
from logflume.streams.graph import Topology
from logflume.streams.java_time import pattern_parts

from . import ast
from . import plan as p
from .binding.context import (
    DEFAULT_KEY_FORMAT,
    DEFAULT_VALUE_FORMAT,
    OUTPUT_PREFIX,
    WRAP_SINGLE_VALUES,
    Context,
)
from .binding.query import BoundQuery, Target, bind_query, unknown_timestamp, window_info
from .binding.scope import RESERVED_COLUMNS
from .binding.sources import HEADERS_TYPE, as_timestamp
from .catalog import Catalog, HeaderColumn, QueryInfo, SourceInfo, WindowInfo
from .dead_letters import check_dead_letters, dead_letter_topic
from .errors import NoColumns, StatementError, SyntaxFault
from .format import name_text, statement_text
from .options import (
    KEY_SIDE,
    VALUE_SIDE,
    Options,
    Side,
    calendar_of,
    check_schema,
    format_name,
    key_format,
    read_options,
    registered,
    registered_type,
    value_format,
)
from .parser import parse_statement
from .rules import optimize
from .topology import build_topology
from .types import resolve_type, show_columns, show_type


@dataclass(frozen=True, slots=True)
class PlannedQuery:
    """A persistent query, ready to run: its plan, its entry in the catalog, and the source that it makes (None: INSERT INTO)."""

    plan: p.QueryPlan
    query: QueryInfo
    sink: SourceInfo | None

    @property
    def topology(self) -> Topology:
        return build_topology(self.plan)


# ------------------------------------------------------------------------------------------------ CREATE STREAM / TABLE


def _retention_refused(options: Options) -> StatementError:
    return StatementError(
        "Invalid config variable in the WITH clause: RETENTION_MS. Non-windowed tables do not support retention.",
        options.span("RETENTION_MS"),
    )


def plan_source(s: ast.CreateSource, context: Context) -> SourceInfo:
    """Return the source that CREATE STREAM or TABLE declares.

    Raises:
        StatementError: columns, formats or properties that cannot be.
    """
    _check_source_name(s.name, s.span)
    options = read_options(s.properties, "C")
    if s.is_source and s.or_replace:
        raise StatementError(_replace_refused(s), s.span)
    if not s.elements:
        raise NoColumns(s.name, options.get("KAFKA_TOPIC") or "", "TABLE" if s.is_table else "STREAM", s.span)
    key, value, headers = _columns(s, context.catalog)
    if s.is_table and not key:
        raise StatementError("Tables require a PRIMARY KEY. Please define the PRIMARY KEY.", s.span)
    if s.is_table and "RETENTION_MS" in options and "WINDOW_TYPE" not in options:
        raise _retention_refused(options)
    topic = options.get("KAFKA_TOPIC")
    if topic is None:
        raise StatementError(
            "Missing required property \"KAFKA_TOPIC\" which has no default value. Give it, e.g. WITH (KAFKA_TOPIC='x')", s.span
        )
    _check_own_topic(topic, options.span("KAFKA_TOPIC"))
    at = s.span
    key_name, value_name = format_names(options, context)
    if value_name is None:
        raise StatementError(
            "Statement is missing the 'VALUE_FORMAT' property from the WITH clause. Either provide one or set a default via the "
            f"'{DEFAULT_VALUE_FORMAT}' config. JSON, AVRO and DELIMITED are formats.",
            at,
        )
    key_spec = key_format(format_name(key_name, options.span("KEY_FORMAT")), key, options, span=at)
    value_spec = _value_spec(format_name(value_name, options.span("VALUE_FORMAT")), value, options, context, at)
    key_spec = registered(key_spec, KEY_SIDE, topic, options, context)
    value_spec = registered(value_spec, VALUE_SIDE, topic, options, context)
    check_schema(key_spec, key, at)
    check_schema(value_spec, value, at)
    window = None
    if "WINDOW_TYPE" in options:
        if not key:
            raise StatementError("Windowed sources require a key column.", options.span("WINDOW_TYPE"))
        window = _window(options)
    timestamp = _timestamp(options, key + value)
    return SourceInfo(
        name=s.name,
        is_table=s.is_table,
        topic=topic,
        key=key,
        value=value,
        key_format=key_spec,
        value_format=value_spec,
        headers=headers,
        window=window,
        timestamp=timestamp,
        is_read_only=s.is_source,
        partitions=options.get("PARTITIONS"),
        statement=statement_text(s),
    )


def _window(options: Options) -> WindowInfo:
    kind = options.get("WINDOW_TYPE")
    if kind != "CALENDAR":
        return WindowInfo(kind, options.get("WINDOW_SIZE"))
    found = calendar_of(options.get("WINDOW_UNIT"), options.get("WINDOW_ZONE") or "UTC", options.span("WINDOW_UNIT"))
    return WindowInfo(kind, unit=str(found.unit), zone=found.zone)


def _replace_refused(s: ast.CreateSource) -> str:
    kind = "table" if s.is_table else "stream"
    return f"Cannot add {kind} '{s.name}': CREATE OR REPLACE is not supported on source {kind}s."


def format_names(options: Options, context: Context) -> tuple[str, str | None]:
    """Return the names of the key's and the value's format: given, else by the session's defaults; None: there is none."""
    both = options.get("FORMAT")
    key = options.get("KEY_FORMAT") or both or context.property(DEFAULT_KEY_FORMAT, "KAFKA").upper()
    default_value = context.property(DEFAULT_VALUE_FORMAT, "").upper() or None
    return key, options.get("VALUE_FORMAT") or both or default_value


def _value_spec(name: str, columns: tuple[Column, ...], options: Options, context: Context, span: ast.Span) -> FormatSpec:
    wraps = context.property(WRAP_SINGLE_VALUES, "true").lower() != "false"
    return value_format(name, columns, options, span=span, wraps_by_default=wraps)


def _columns(s: ast.CreateSource, catalog: Catalog) -> tuple[tuple[Column, ...], tuple[Column, ...], tuple[HeaderColumn, ...]]:
    key: list[Column] = []
    value: list[Column] = []
    headers: list[HeaderColumn] = []
    seen: set[str] = set()
    for element in s.elements:
        if element.name in RESERVED_COLUMNS:
            raise StatementError(
                f"'{element.name}' is a reserved column name. You cannot use it as a name for a column.", element.span
            )
        if element.name in seen:
            raise SyntaxFault(f"Duplicate column names: '{element.name}'; name each column once", element.span)
        seen.add(element.name)
        type = resolve_type(element.type, catalog.types)
        _check_constraint(s, element)
        if element.constraint in ("KEY", "PRIMARY KEY"):
            key.append(Column(element.name, type))
        elif element.constraint in ("HEADERS", "HEADER"):
            expected = HEADERS_TYPE if element.constraint == "HEADERS" else None
            if expected is not None and type != expected:
                raise StatementError(
                    "Invalid type for HEADERS column: expected ARRAY<STRUCT<`KEY` STRING, `VALUE` BYTES>>, got "
                    f"{show_type(type)}",
                    element.span,
                )
            if expected is None and str(type) != "BYTES":
                raise StatementError(
                    f"Invalid type for HEADER('{element.header_key}') column: expected BYTES, got {show_type(type)}", element.span
                )
            _check_header(element, headers)
            headers.append(HeaderColumn(element.name, element.header_key))
        else:
            value.append(Column(element.name, type))
    return tuple(key), tuple(value), tuple(headers)


def _check_header(element: ast.ColumnElement, before: Sequence[HeaderColumn]) -> None:
    """Refuse the same header twice, and one header beside all of them."""
    for other in before:
        if None in (other.key, element.header_key) or other.key == element.header_key:
            shown = "HEADERS" if other.key is None else f"HEADER('{other.key}')"
            raise StatementError(f"Schema already contains a {shown} column.", element.span)


def _check_constraint(s: ast.CreateSource, element: ast.ColumnElement) -> None:
    if element.constraint == "PRIMARY KEY" and not s.is_table:
        raise SyntaxFault(f"Column `{element.name}` is a 'PRIMARY KEY' column: please use 'KEY' for streams.", element.span)
    if element.constraint == "KEY" and s.is_table:
        raise SyntaxFault(
            f"Column `{element.name}` is a 'KEY' column: please use 'PRIMARY KEY' for tables.\n"
            "Tables have PRIMARY KEYs, which are unique and NON NULL.\nStreams have KEYs, which have no uniqueness or "
            "NON NULL constraints.",
            element.span,
        )


def _check_source_name(name: str, span: ast.Span) -> None:
    if re.fullmatch("[A-Za-z0-9_-]+", name) is None:
        raise SyntaxFault(
            f"Illegal argument at {name!r}. Source names may only contain alphanumeric values, '_' or '-'. Got: '{name}'", span
        )


def check_timestamp_format(options: Options) -> None:
    """Refuse a TIMESTAMP_FORMAT that is not a pattern."""
    try:
        pattern_parts(options.get("TIMESTAMP_FORMAT") or "")
    except ValueError as e:
        raise StatementError(
            f"Invalid datetime format for config:TIMESTAMP_FORMAT, reason:{e}", options.span("TIMESTAMP_FORMAT")
        ) from None


def _timestamp(options: Options, columns: tuple[Column, ...]) -> tuple[str, str | None] | None:
    name = options.get("TIMESTAMP")
    if name is None:
        return None
    at = options.span("TIMESTAMP")
    types = {c.name: c.type for c in columns}
    if name not in types:
        raise StatementError(unknown_timestamp(name), at)
    pattern = options.get("TIMESTAMP_FORMAT")
    type = types[name]
    if type == STRING:
        if pattern is None:
            raise StatementError(
                "A String timestamp field has been specified without also specifying the timestamp_format. "
                "Give it, e.g. TIMESTAMP_FORMAT='yyyy-MM-dd HH:mm:ss'.",
                at,
            )
        check_timestamp_format(options)
    elif pattern is not None:
        raise StatementError(
            "'TIMESTAMP_FORMAT' set in the WITH clause can only be used when the timestamp column is of type STRING. "
            f"{name} is {show_type(type)}.",
            options.span("TIMESTAMP_FORMAT"),
        )
    elif type not in (BIGINT, TIMESTAMP):
        raise StatementError(
            f"Timestamp column, `{name}`, should be LONG(INT64), TIMESTAMP, or a String with a timestamp_format specified.", at
        )
    return name, pattern


# ------------------------------------------------------------------------------------------------ CREATE ... AS SELECT


def plan_create_as(s: ast.CreateAs, context: Context, *, query_id: str) -> PlannedQuery:
    """Plan CREATE STREAM or TABLE ... AS SELECT.

    Raises:
        StatementError: with the position of what is to blame.
    """
    what = f"CREATE {'TABLE' if s.is_table else 'STREAM'} AS SELECT"
    _refuse_limit(s.query, what)
    _check_source_name(s.name, s.span)
    options = read_options(s.properties, "A")
    bound = bind_query(s.query, context, Target(query_id, s.name, what, options.get("TIMESTAMP")))
    _check_kind(bound, s)
    first = bound.relation.first
    key_name, value_name = _sink_formats(bound, options, context)
    at = s.query.span
    if s.query.partition_by and not bound.key and key_name != "NONE":
        raise StatementError("Key format specified for stream without key columns.", options.span("KEY_FORMAT"))
    key_spec = key_format(format_name(key_name, options.span("KEY_FORMAT")), bound.key, options, span=at)
    value_spec = _value_spec(format_name(value_name, options.span("VALUE_FORMAT")), bound.value, options, context, at)
    timestamp = _timestamp(options, bound.key + bound.value)
    topic = options.get("KAFKA_TOPIC") or context.property(OUTPUT_PREFIX, "") + s.name
    _check_own_topic(topic, options.span("KAFKA_TOPIC"))
    _check_loop(topic, bound, _without(s, context.catalog), s.span)
    _check_letters(topic, bound, context, s.span)
    key_spec = _inherited(registered(key_spec, KEY_SIDE, topic, options, context), first.key_format, KEY_SIDE, options)
    key_spec = _sink_key(key_spec, s.name)
    value_spec = _inherited(registered(value_spec, VALUE_SIDE, topic, options, context), first.value_format, VALUE_SIDE, options)
    _check_sink_schemas(bound, key_spec, value_spec, topic, options, at)
    partitions = options.get("PARTITIONS") or context.partitions.get(first.topic)
    info = SourceInfo(
        name=s.name,
        is_table=s.is_table,
        topic=topic,
        key=bound.key,
        value=bound.value,
        key_format=key_spec,
        value_format=value_spec,
        window=window_info(bound),
        timestamp=None,
        query_id=query_id,
        partitions=partitions,
        statement=statement_text(s),
    )
    configs = {"cleanup.policy": _cleanup_policy(bound)}
    if "RETENTION_MS" in options:
        if s.is_table and bound.window is None:
            raise _retention_refused(options)
        configs["retention.ms"] = str(options.get("RETENTION_MS"))
    elif bound.window is not None and bound.window.retention_ms:
        configs["retention.ms"] = str(bound.window.retention_ms)
    output = p.Output(
        topic,
        bound.key,
        bound.value,
        key_spec,
        value_spec,
        _sink_timestamp(timestamp, bound),
        options.get("PARTITIONS"),
        tuple(configs.items()),
    )
    return PlannedQuery(_query_plan(query_id, bound, output), _query_info(query_id, s, s.name, bound, context), info)


def _refuse_limit(query: ast.Query, what: str) -> None:
    """Refuse to keep only the first rows of what never ends."""
    if query.limit is not None:
        raise StatementError(f"{what} statements don't support LIMIT clause.", query.clause_span("LIMIT"))


def _sink_key(spec: FormatSpec, name: str) -> FormatSpec:
    """Name the record of an Avro key after the result: ORDERS_BY_ID -> OrdersByIdKey."""
    if spec.name != "AVRO" or spec.full_name:
        return spec
    camel = "".join(part.capitalize() for part in re.split(r"[^A-Za-z0-9]+", name))
    return replace(spec, full_name=f"{AVRO_NAMESPACE}.{camel}Key")


def _check_sink_schemas(
    bound: BoundQuery, key: FormatSpec, value: FormatSpec, topic: str, options: Options, span: ast.Span
) -> None:
    """Refuse a result whose columns are not the first ones of the schema that it is to be written with."""
    for side, spec, columns in ((KEY_SIDE, key, bound.key), (VALUE_SIDE, value, bound.value)):
        name = f"{side.name}_SCHEMA_ID"
        if name not in options:
            check_schema(spec, columns, span)
            continue
        at = options.span(name)
        if format_of(spec.name).schemas is None:
            raise StatementError(
                f"Could not determine output schema for query due to error: {spec.name} does not support the following configs: "
                f"[schemaId]. {side.name}_FORMAT should support schema inference when {name} is provided.",
                at,
            )
        type = registered_type(spec, side, topic, at)
        is_bare = not spec.is_wrapped and len(columns) == 1
        found = (Column(columns[0].name, type),) if is_bare or type.kind is not Kind.STRUCT else type.fields
        changed = [c for c, there in zip_longest(columns, found) if c is not None and c != there]
        if changed:
            raise StatementError(
                f"The following {side.name.lower()} columns are changed, missing or reordered: [{_columns_text(changed, side)}]. "
                f"Schema from schema registry is [{_columns_text(found, side)}]",
                at,
            )


def register_schemas(planned: PlannedQuery, span: ast.Span) -> None:
    """Register what the records of a query are written with, before it starts.

    Raises:
        StatementError: the registry refuses, as with a schema that its older ones are not compatible with. RegistryUnavailable.
    """
    output = planned.plan.output
    if output is None:
        return
    for spec, columns in ((output.key_format, output.key), (output.value_format, output.value)):
        try:
            register_schema(spec, columns)
        except InvalidInput as error:
            raise StatementError(f"Could not register schema for topic: {output.topic}: {error}", span) from None


def _columns_text(columns: Sequence[Column], side: Side) -> str:
    key = " KEY" if side is KEY_SIDE else ""
    return ", ".join(f"`{c.name}` {show_type(c.type)}{key}" for c in columns)


def _cleanup_policy(bound: BoundQuery) -> str:
    if bound.kind is p.ResultKind.STREAM:
        return "delete"
    return "compact" if bound.window is None else "compact,delete"


def _check_loop(topic: str, bound: BoundQuery, catalog: Catalog, span: ast.Span) -> None:
    """Refuse to write to a topic that is read, by this query or by those that make what it reads."""
    todo = [(source.topic, "") for source in bound.relation.sources]
    seen: set[str] = set()
    while todo:
        read, by_way_of = todo.pop()
        if read == topic:
            raise StatementError(
                f"topic '{topic}' is written from what is read from it{by_way_of}, so each record would come back for ever: "
                "write to another topic",
                span,
            )
        if read in seen:
            continue
        seen.add(read)
        for query in catalog.queries.values():
            if catalog.sources[query.sink].topic == read:
                todo += [(catalog.sources[name].topic, f" (by way of {query.id})") for name in query.sources]


def _check_letters(topic: str, bound: BoundQuery, context: Context, span: ast.Span) -> None:
    reads = [source.topic for source in bound.relation.sources]
    letters = dead_letter_topic(context.properties)
    check_dead_letters(letters, reads=reads, writes=topic, catalog=context.catalog, span=span)


def _without(s: ast.CreateAs, catalog: Catalog) -> Catalog:
    """Return the catalog without the queries that CREATE OR REPLACE replaces."""
    replaced = catalog.sources.get(s.name)
    return catalog if replaced is None or replaced.query_id is None else catalog.without_query(replaced.query_id)


def _check_own_topic(topic: str, span: ast.Span) -> None:
    """Refuse a topic that somebody keeps for himself, the catalog's own among them."""
    try:
        check_own_topic(topic)
    except InvalidInput as error:
        raise StatementError(str(error), span) from None


def _check_kind(bound: BoundQuery, s: ast.CreateAs) -> None:
    wanted = p.ResultKind.TABLE if s.is_table else p.ResultKind.STREAM
    if bound.kind is not wanted:
        raise StatementError(
            f"Invalid result type. Your SELECT query produces a {bound.kind}. "
            f"Please use CREATE {bound.kind} AS SELECT statement instead.",
            s.span,
        )
    first = bound.relation.first
    if first.is_table and first.window is not None:
        raise StatementError(
            "KSQL does not support persistent queries on windowed tables. Read the topic as a STREAM WITH (WINDOW_TYPE=...).",
            s.query.source.span,
        )


def _sink_formats(bound: BoundQuery, options: Options, context: Context) -> tuple[str, str]:
    """Return the names of the sink's formats: given, else those of the first source; NONE where there is no key."""
    first = bound.relation.first
    both = options.get("FORMAT")
    inherited = first.key_format.name
    if inherited == "NONE" and bound.key:
        inherited = context.property(DEFAULT_KEY_FORMAT, "KAFKA").upper()
    if not bound.key and bound.has_new_key:
        inherited = "NONE"
    return options.get("KEY_FORMAT") or both or inherited, options.get("VALUE_FORMAT") or both or first.value_format.name


def _inherited(spec: FormatSpec, source: FormatSpec, side: Side, options: Options) -> FormatSpec:
    """A sink is written with the delimiter and the nulls of its source unless told otherwise."""
    if spec.name != source.name:
        return spec
    delimiter = spec.delimiter if side.delimiter in options else source.delimiter
    nullables = spec.nullables if side.nullables in options else source.nullables
    return replace(spec, delimiter=delimiter, nullables=nullables)


def _sink_timestamp(timestamp: tuple[str, str | None] | None, bound: BoundQuery) -> x.Expr | None:
    if timestamp is None:
        return None
    name, pattern = timestamp
    for side, columns in ((x.Side.KEY, bound.key), (x.Side.VALUE, bound.value)):
        for column in columns:
            if column.name == name:
                return as_timestamp(x.ColumnRef(side, name, column.type), pattern)
    raise AssertionError(name)


def _query_plan(query_id: str, bound: BoundQuery, output: p.Output | None, limit: int | None = None) -> p.QueryPlan:
    return p.QueryPlan(
        query_id,
        optimize(bound.root),
        bound.kind,
        bound.key,
        bound.value,
        tuple(dict.fromkeys(s.name for s in bound.relation.sources)),
        bound.window,
        output,
        limit,
    )


def _query_info(query_id: str, s: ast.CreateAs | ast.InsertQuery, sink: str, bound: BoundQuery, context: Context) -> QueryInfo:
    sources = tuple(dict.fromkeys(source.name for source in bound.relation.sources))
    return QueryInfo(query_id, statement_text(s), sink, sources, dict(context.properties))


# ------------------------------------------------------------------------------------------------ INSERT INTO ... SELECT


def plan_insert(s: ast.InsertQuery, context: Context, *, query_id: str) -> PlannedQuery:
    """Plan INSERT INTO ... SELECT."""
    if s.target not in context.catalog.sources:
        raise StatementError(f"Source `{s.target}` does not exist.{context.catalog.hint(s.target)}", s.span)
    sink = context.catalog.source(s.target, s.span)
    if sink.is_table:
        raise StatementError(f"INSERT INTO can only be used to insert into a stream. {sink.name} is a table.", s.span)
    if sink.headers:
        raise StatementError(f"Cannot insert into {sink.name} because it has header columns", s.span)
    if sink.is_read_only:
        raise StatementError(f"Cannot insert into read-only stream: {sink.name}", s.span)
    _refuse_limit(s.query, "INSERT INTO")
    read_options(s.properties, "I")
    bound = bind_query(s.query, context, Target(query_id, s.target, "INSERT INTO"))
    if bound.kind is not p.ResultKind.STREAM:
        raise StatementError(
            "Incompatible data sink and query result. Data sink "
            f"({sink.name}) type is KSTREAM but select query result is KTABLE. INSERT INTO needs a query that gives a STREAM.",
            s.span,
        )
    _check_loop(sink.topic, bound, context.catalog, s.span)
    _check_letters(sink.topic, bound, context, s.span)
    root = _fitted(bound, sink, s)
    output = p.Output(
        sink.topic,
        sink.key,
        sink.value,
        sink.key_format,
        sink.value_format,
        _sink_timestamp(sink.timestamp, _as_sink(bound, sink)),
    )
    plan = _query_plan(query_id, replace(bound, root=root, key=sink.key, value=sink.value), output)
    return PlannedQuery(plan, _query_info(query_id, s, sink.name, bound, context), None)


def _as_sink(bound: BoundQuery, sink: SourceInfo) -> BoundQuery:
    return replace(bound, key=sink.key, value=sink.value)


def _fitted(bound: BoundQuery, sink: SourceInfo, s: ast.InsertQuery) -> p.Operator:
    """Return the result cast to the sink's columns, or refuse it."""
    names_fit = [c.name for c in bound.key + bound.value] == [c.name for c in sink.key + sink.value]
    same_sides = len(bound.key) == len(sink.key)
    types_fit = (
        same_sides
        and names_fit
        and all(can_cast_implicitly(a.type, b.type) for a, b in zip(bound.key + bound.value, sink.key + sink.value, strict=True))
    )
    if not types_fit:
        raise StatementError(
            f"Incompatible schema between results and sink.\nResult schema is {show_columns(bound.key, bound.value)}\n"
            f"Sink schema is {show_columns(sink.key, sink.value)}",
            s.span,
        )
    root = bound.root
    if any(a.type != b.type for a, b in zip(bound.value, sink.value, strict=True)):
        columns = tuple(
            (
                b.name,
                x.ColumnRef(x.Side.VALUE, a.name, a.type)
                if a.type == b.type
                else x.Cast(x.ColumnRef(x.Side.VALUE, a.name, a.type), b.type),
            )
            for a, b in zip(bound.value, sink.value, strict=True)
        )
        root = p.Select(root, columns, "CAST")
    if any(a.type != b.type for a, b in zip(bound.key, sink.key, strict=True)):
        keys = tuple(
            (b.name, x.Cast(x.ColumnRef(x.Side.KEY, a.name, a.type), b.type)) for a, b in zip(bound.key, sink.key, strict=True)
        )
        root = p.Rekey(root, keys, "CAST-KEY")
    return root


# ------------------------------------------------------------------------------------------------ watched queries


def plan_push(query: ast.Query, context: Context, *, query_id: str) -> p.QueryPlan:
    """Plan SELECT ... EMIT CHANGES: the result is watched, all columns are values."""
    return watched_plan(bind_query(query, context, Target(query_id)), query_id=query_id, limit=query.limit)


def watched_plan(bound: BoundQuery, *, query_id: str, limit: int | None = None) -> p.QueryPlan:
    """Return the plan of a bound query that is watched."""
    return _query_plan(query_id, bound, None, limit)


def plan_query(sql_text: str, catalog: Catalog, *, properties: dict[str, str] | None = None, query_id: str = "QUERY") -> Topology:
    """Plan one query statement (CREATE ... AS SELECT, INSERT INTO ... SELECT, SELECT ... EMIT CHANGES) as a picklable topology.

    Raises:
        StatementError: with position, cause and fix.
    """
    statement = parse_statement(sql_text)
    context = Context(catalog, properties=properties or {})
    match statement:
        case ast.CreateAs():
            return plan_create_as(statement, context, query_id=query_id).topology
        case ast.InsertQuery():
            return plan_insert(statement, context, query_id=query_id).topology
        case ast.QueryStatement(query):
            return build_topology(plan_push(query, context, query_id=query_id))
    raise StatementError(f"expected a query, found {name_text(type(statement).__name__)}", statement.span)
