"""Statements that only change the catalog: CREATE, ALTER, DROP of sources and types. Each gives a new catalog or an error."""

from __future__ import annotations

import re
from dataclasses import fields, replace

from logflume.log.schemas import Column, FormatSpec

from . import ast
from .binding.context import Context
from .binding.scope import RESERVED_COLUMNS
from .catalog import OWN_QUERY_IDS, Catalog, SourceInfo, WindowInfo
from .connectors import create_connector, drop_connector
from .errors import NotSupported, StatementError, for_tests_only
from .options import check_format
from .planner import plan_source
from .properties import check_property
from .types import resolve_type, show_columns, show_type


def apply_definition(statement: ast.Statement, context: Context) -> Catalog:
    """Return the catalog after a definition.

    Raises:
        StatementError: it cannot be done; nothing has changed.
    """
    match statement:
        case ast.CreateSource():
            return create_source(statement, context)
        case ast.Drop():
            return drop_source(statement, context)
        case ast.AlterSource():
            return alter_source(statement, context)
        case ast.CreateType(name, type, if_not_exists):
            if name in context.catalog.types:
                if if_not_exists:
                    return context.catalog
                raise StatementError(
                    f"Cannot register custom type '{name}' since it is already registered with type: "
                    f"{show_type(context.catalog.types[name])}. DROP TYPE {name} first.",
                    statement.span,
                )
            return context.catalog.with_type(name, resolve_type(type, context.catalog.types))
        case ast.DropType(name, if_exists):
            if name not in context.catalog.types and not if_exists:
                raise StatementError(f"Type {name} does not exist. SHOW TYPES lists what does.", statement.span)
            return context.catalog.without_type(name)
        case ast.CreateConnector():
            return create_connector(statement, context.catalog)
        case ast.DropConnector():
            return drop_connector(statement, context.catalog)
        case ast.AlterSystem(name, value):
            check_property(name, value, statement.span)
            return context.catalog.with_property(name, value)
        case ast.AssertInTest(what):
            raise for_tests_only(what, statement.span)
    raise NotSupported(statement.__class__.__name__, statement.span)


def create_source(s: ast.CreateSource, context: Context) -> Catalog:
    """CREATE STREAM or TABLE over a topic."""
    existing = context.catalog.sources.get(s.name)
    source = plan_source(s, context)
    if existing is None:
        return context.catalog.with_source(source)
    if s.if_not_exists:
        return context.catalog
    if not s.or_replace:
        check_is_free(s.name, s.is_table, context.catalog, s.span)
    check_replacement(existing, source, s.span)
    return context.catalog.with_source(source)


def check_is_free(name: str, is_table: bool, catalog: Catalog, span: ast.Span) -> None:
    """Refuse a name that is taken."""
    existing = catalog.sources.get(name)
    if existing is not None:
        kind = "table" if is_table else "stream"
        raise StatementError(
            f"Cannot add {kind} '{name}': A {existing.kind.lower()} with the same name already exists; use CREATE OR "
            "REPLACE or DROP it",
            span,
        )


def check_replacement(old: SourceInfo, new: SourceInfo, span: ast.Span) -> None:
    """Refuse a replacement that would make data unreadable: other kind, key, formats, windows, topic, or columns lost."""
    if old.is_table != new.is_table:
        raise _not_upgradeable(old, "type", f"K{old.kind}", f"K{new.kind}", span)
    if old.is_read_only or new.is_read_only:
        raise StatementError(
            f"Cannot add {new.kind.lower()} '{new.name}': CREATE OR REPLACE is not supported on source {new.kind.lower()}s.", span
        )
    if any(getattr(old, each) != getattr(new, each) for each in ("topic", "key_format", "value_format", "window")):
        raise _not_upgradeable(old, "topic", _topic_text(old, new), _topic_text(new, old), span)
    if old.timestamp != new.timestamp:
        raise _not_upgradeable(old, "timestampColumn", _timestamp_text(old), _timestamp_text(new), span)
    changed = [show_columns([c], ()) for i, c in enumerate(old.key) if c not in new.key[i : i + 1]]
    kind = "key " if changed else ""
    changed = changed or [show_columns((), [c]) for i, c in enumerate(old.value) if c not in new.value[i : i + 1]]
    if len(new.key) != len(old.key) or changed:
        identical = "Key columns must be identical. " if kind or not changed else ""
        wrong = f"{identical}The following {kind}columns are changed, missing or reordered: [{', '.join(changed)}]"
        before, after = (show_columns(source.key, source.value) for source in (old, new))
        raise _not_upgradeable(old, "schema", before, after, span, f". ({wrong})")


def _not_upgradeable(old: SourceInfo, what: str, before: str, after: str, span: ast.Span, more: str = "") -> StatementError:
    return StatementError(
        f"Cannot upgrade data source: DataSource '`{old.name}`' has {what} = {before} which is not upgradeable to {after}{more}",
        span,
    )


def _timestamp_text(source: SourceInfo) -> str:
    if source.timestamp is None:
        return "none"
    name, pattern = source.timestamp
    return f"`{name}`" if pattern is None else f"`{name}` by '{pattern}'"


def _topic_text(source: SourceInfo, other: SourceInfo) -> str:
    key, value = (
        ", ".join([own.name, *(f"{f.name}={getattr(own, f.name)!r}" for f in fields(own) if _differs(own, its, f.name))])
        for own, its in ((source.key_format, other.key_format), (source.value_format, other.value_format))
    )
    windows = "" if source.window == other.window else f", {_window_text(source.window)}"
    return f"{source.topic} (key {key}{windows}; value {value})"


def _window_text(window: WindowInfo | None) -> str:
    if window is None:
        return "not windowed"
    return f"{window.kind} windows" if window.size_ms is None else f"{window.kind} windows of {window.size_ms} ms"


def _differs(own: FormatSpec, other: FormatSpec, name: str) -> bool:
    return name != "name" and bool(getattr(own, name) != getattr(other, name))


def _check_is_unused(source: SourceInfo, catalog: Catalog, span: ast.Span) -> None:
    """Refuse to drop what queries read or write, but for the query that made it."""
    results = {s.query_id: s.name for s in catalog.sources.values() if s.query_id is not None}
    readers = catalog.readers_of(source.name)
    reading = sorted(q for q in readers if q not in results)
    writing = sorted(q for q in catalog.writers_to(source.name) if q != source.query_id)
    if reading or writing:
        raise StatementError(
            f"Cannot drop {source.name}.\nThe following queries read from this source: [{', '.join(reading)}].\n"
            f"The following queries write into this source: [{', '.join(writing)}].\n"
            f"You need to terminate them before dropping {source.name}.",
            span,
        )
    if readers:
        named = ", ".join(sorted(results[q] for q in readers))
        raise StatementError(
            f"Cannot drop {source.name}.\nThe following streams and/or tables read from this source: [{named}].\n"
            f"You need to drop them before dropping {source.name}.",
            span,
        )


def drop_source(s: ast.Drop, context: Context) -> Catalog:
    """DROP STREAM or TABLE, with the query that feeds a CREATE ... AS result."""
    catalog = context.catalog
    source = catalog.sources.get(s.name)
    kind = "table" if s.is_table else "stream"
    if source is None:
        if s.if_exists:
            return catalog
        raise StatementError(f"{kind.capitalize()} {s.name} does not exist.{catalog.hint(s.name)}", s.span)
    if source.is_table != s.is_table:
        raise StatementError(f"Incompatible data source type is {source.kind}, but statement was DROP {kind.upper()}", s.span)
    if source.is_read_only and s.delete_topic:
        raise StatementError(f"Cannot delete topic for read-only source: {source.name}", s.span)
    _check_is_unused(source, catalog, s.span)
    if source.query_id is not None:
        catalog = catalog.without_query(source.query_id)
    return catalog.without_source(s.name)


def check_topic_is_own(source: SourceInfo, catalog: Catalog, span: ast.Span) -> None:
    """Refuse to delete a topic that other sources are over, or other queries read or write."""
    others = [other.name for other in catalog.sources.values() if other.topic == source.topic and other.name != source.name]
    keepers = [q.id for q in catalog.queries.values() if q.dead_letter_topic == source.topic]
    used = sorted({*others, *keepers, *(q for name in others for q in (*catalog.readers_of(name), *catalog.writers_to(name)))})
    if used:
        raise StatementError(
            f"Could not delete the corresponding kafka topic: {source.topic}: {', '.join(used)} use it too. Leave out DELETE "
            "TOPIC, or drop those first",
            span,
        )


def new_query_id(s: ast.CreateAs | ast.InsertQuery, catalog: Catalog) -> str:
    """Return the id of a new query: given, else made of its kind, its result and a number that is never used again."""
    number = catalog.next_number
    if isinstance(s, ast.CreateAs):
        return f"{'CTAS' if s.is_table else 'CSAS'}_{s.name}_{number}"
    given = next((p for p in s.properties if p.name == "QUERY_ID"), None)
    if given is None:
        return f"INSERTQUERY_{number}"
    query_id = str(given.value).upper()
    if query_id.startswith(OWN_QUERY_IDS):
        raise StatementError(
            f"Query IDs must not start with a reserved query ID prefix ({', '.join(OWN_QUERY_IDS)}). Got '{query_id}'.",
            given.span,
        )
    if query_id in catalog.queries:
        raise StatementError(f"Query ID '{query_id}' already exists. Choose another.", given.span)
    if not re.fullmatch(r"[A-Z0-9_]{1,150}", query_id):
        raise StatementError("Query IDs may contain only alphanumeric characters and '_'.", given.span)
    return query_id


def is_given_away(query_id: str, catalog: Catalog) -> bool:
    """Tell whether nobody has an id and nobody ever will: other queries have its number.

    >>> is_given_away("CTAS_T_4", Catalog(next_number=4)), is_given_away("CTAS_T_4", Catalog(next_number=5))
    (False, True)
    """
    numbered = re.fullmatch(r"(?:C[ST]AS_.+|INSERTQUERY)_([0-9]+)", query_id)
    return numbered is not None and int(numbered[1]) < catalog.next_number and query_id not in catalog.queries


def id_beside(query_id: str) -> str:
    """Return the id of the query that takes the place of another: the same however often it is tried.

    >>> id_beside("CTAS_SUMS_7"), id_beside("CTAS_SUMS_7_R2")
    ('CTAS_SUMS_7_R2', 'CTAS_SUMS_7_R3')
    """
    first, _, number = query_id.rpartition("_R")
    return f"{first}_R{int(number) + 1}" if first and number.isdecimal() else f"{query_id}_R2"


def alter_source(s: ast.AlterSource, context: Context) -> Catalog:
    """ALTER STREAM or TABLE ... ADD COLUMN."""
    kind = "table" if s.is_table else "stream"
    source = context.catalog.sources.get(s.name)
    if source is None:
        raise StatementError(f"Source {s.name} does not exist.{context.catalog.hint(s.name)}", s.span)
    if source.is_table != s.is_table:
        raise StatementError(f"Incompatible data source type is {source.kind}, but statement was ALTER {kind.upper()}", s.span)
    if source.is_read_only:
        raise StatementError(
            f"Cannot alter {kind} '{source.name}': ALTER operations are not supported on source {kind}s.", s.span
        )
    if source.query_id is not None:
        raise StatementError("ALTER command is not supported for CREATE ... AS statements.", s.span)
    value = list(source.value)
    known = {c.name for c in source.columns()} | RESERVED_COLUMNS
    for name, type_name in s.columns:
        if name in known:
            why = "The name is reserved." if name in RESERVED_COLUMNS else "A column with the same name already exists."
            raise StatementError(f"Cannot add column `{name}` to schema. {why}", s.span)
        known.add(name)
        value.append(Column(name, resolve_type(type_name, context.catalog.types)))
    check_format(source.value_format, tuple(value), is_key=False, span=s.span)
    return context.catalog.with_source(replace(source, value=tuple(value)))
