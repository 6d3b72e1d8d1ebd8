"""FROM: sources and stream-table joins as operators, with the scope of what can be named behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from logflume.log.schemas import BIGINT, BYTES, STRING, TIMESTAMP, Column, Kind, array, struct
from logflume.sql import ast
from logflume.sql import plan as p
from logflume.sql.catalog import SourceInfo
from logflume.sql.errors import NotSupported, StatementError
from logflume.sql.format import expression_text, name_text
from logflume.sql.functions.headers import last_header
from logflume.sql.functions.java_time import parse_timestamp
from logflume.sql.tree import walk
from logflume.sql.types import show_type
from logflume.streams import expr as x
from logflume.streams.graph import JoinKind

from .context import Context
from .expressions import Binder
from .projection import KeyColumn, canonical
from .scope import PSEUDO_COLUMNS, Scope, Visible, pseudo_columns

_LAST_HEADER = x.Function("last_header", last_header, handles_null=True)
_PARSE_TIMESTAMP = x.Function("parse_timestamp", parse_timestamp)
HEADERS_TYPE = array(struct(Column("KEY", STRING), Column("VALUE", BYTES)))


@dataclass(frozen=True, slots=True)
class Relation:
    """What FROM gives: an operator, the names behind it, and the key of its records.

    `is_copied`: whether the names are value columns already (behind a join), so that a change of key does not lose them.
    """

    operator: p.Operator
    scope: Scope
    keys: tuple[KeyColumn, ...]
    key_columns: tuple[Column, ...]
    sources: tuple[SourceInfo, ...]

    @property
    def is_table(self) -> bool:
        return self.sources[0].is_table and len(self.sources) == 1

    @property
    def first(self) -> SourceInfo:
        return self.sources[0]


def bind_relation(query: ast.Query, context: Context) -> Relation:
    """Bind FROM and its joins.

    Raises:
        StatementError: unknown sources, joins that cannot be. NotSupported: joins that are not there yet.
    """
    first = context.catalog.source(query.source.name, query.source.span)
    if not query.joins:
        return _single(first, query.source.alias)
    _check_sources(query, context)
    used = _pseudo_names(query)
    relation = _single(first, query.source.alias)
    for join in query.joins:
        relation = _join(relation, join, context, used, is_last=join is query.joins[-1])
    return relation


def _single(source: SourceInfo, alias: str) -> Relation:
    columns = source_columns(source, alias)
    keys = tuple(KeyColumn((ast.Name(c.name, alias),)) for c in source.key)
    scan = p.Scan(source, timestamp_expression(source))
    return Relation(scan, Scope(tuple(columns)), keys, source.key, (source,))


def source_columns(source: SourceInfo, alias: str) -> list[Visible]:
    """Return all that can be named of a source: key, value and header columns, then pseudo-columns."""
    headers = {h.name: h for h in source.headers}
    visible = [Visible(alias, c.name, x.ColumnRef(x.Side.KEY, c.name, c.type), is_key=True) for c in source.key]
    visible += [Visible(alias, c.name, x.ColumnRef(x.Side.VALUE, c.name, c.type)) for c in source.value]
    for header in headers.values():
        all_headers = x.ColumnRef(x.Side.META, x.Meta.HEADERS.value, HEADERS_TYPE)
        if header.key is None:
            visible.append(Visible(alias, header.name, all_headers))
        else:
            visible.append(Visible(alias, header.name, x.Call(_LAST_HEADER, (all_headers, x.Literal(header.key, STRING)), BYTES)))
    return [*visible, *pseudo_columns(alias, is_windowed=source.window is not None)]


def timestamp_expression(source: SourceInfo) -> x.Expr | None:
    """Return the event time of a source's records in ms; None: the record's own."""
    if source.timestamp is None:
        return None
    name, pattern = source.timestamp
    for side, columns in ((x.Side.KEY, source.key), (x.Side.VALUE, source.value)):
        for column in columns:
            if column.name == name:
                return as_timestamp(x.ColumnRef(side, name, column.type), pattern)
    raise AssertionError(f"{source.name} has no column {name}")


def as_timestamp(column: x.Expr, pattern: str | None) -> x.Expr:
    """Return a column as ms since the epoch; text by its pattern."""
    if column.type.kind is Kind.STRING:
        if pattern is None:
            return x.Cast(x.Cast(column, TIMESTAMP), BIGINT)
        return x.Call(_PARSE_TIMESTAMP, (column, x.Literal(pattern, STRING)), BIGINT)
    return column


# ------------------------------------------------------------------------------------------------ joins


def _check_sources(query: ast.Query, context: Context) -> None:
    refs = [query.source, *(j.source for j in query.joins)]
    names = [context.catalog.source(r.name, r.span).name for r in refs]
    if len(names) == 2 and names[0] == names[1]:
        raise StatementError(f"Can not join '{names[0]}' to '{names[1]}': self joins are not yet supported.", refs[1].span)
    for ref, name in zip(refs, names, strict=True):
        if names.count(name) > 1:
            raise StatementError(
                f"N-way joins do not support multiple occurrences of the same source. Source: '{name}'.", ref.span
            )
    kafka = [f"{n}" for n in names if context.catalog.source(n).value_format.name == "KAFKA"]
    if kafka:
        raise StatementError(
            f"Source(s) {', '.join(kafka)} are using the 'KAFKA' value format. This format does not yet support JOIN.\n"
            "Either use a different format, e.g. JSON or DELIMITED, or read the topic as another stream.",
            query.joins[0].span,
        )


def _pseudo_names(query: ast.Query) -> frozenset[str]:
    """Return the pseudo-columns that a query names: only those are carried through joins."""
    parts: list[ast.Expression] = [i.expression for i in query.select if i.expression is not None]
    parts += [e for e in (query.where, query.having, *(query.group_by or ()), *(query.partition_by or ())) if e is not None]
    parts += [j.on for j in query.joins]
    return frozenset(n.name for e in parts for n in walk(e) if isinstance(n, ast.Name) and n.name in PSEUDO_COLUMNS)


def _join(left: Relation, join: ast.Join, context: Context, used: frozenset[str], *, is_last: bool) -> Relation:
    right_source = context.catalog.source(join.source.name, join.source.span)
    right = _single(right_source, join.source.alias)
    left_on, right_on = _criteria(left, right, join, context)
    _check_kinds(left, right, join, left_on, right_on)
    _check_windows(left, right, join)
    left_expr = _binder(left, context).bind(left_on)
    right_expr = _binder(right, context).bind(right_on)
    if left_expr.type != right_expr.type:
        raise StatementError(
            f"Invalid join condition: types don't match. Got {_typed(left_on, left_expr)} = {_typed(right_on, right_expr)}.",
            join.on.span,
        )
    _check_partitions(left, right, join, context)
    stream = _keyed_by(left, left_on, left_expr)
    table, table_columns = _table_side(right, used)
    ours = [c for c in stream.scope.columns if not c.is_pseudo or c.name in used]
    outputs = [(_joined_name(c), c.expr) for c in ours]
    outputs += [(_joined_name(c), x.ColumnRef(x.Side.VALUE, f"TABLE:{_joined_name(c)}", c.type)) for c in table_columns]
    visible = [
        Visible(c.source, c.name, x.ColumnRef(x.Side.VALUE, _joined_name(c), c.type), c.is_key, c.is_pseudo)
        for c in [*ours, *table_columns]
    ]
    joined = p.JoinTable(stream.operator, table, JoinKind(join.kind.lower()), tuple(outputs))
    named = tuple(e for e in (left_on, right_on) if isinstance(e, ast.Name))
    accepted = named or (ast.Name("ROWKEY"),)
    key = KeyColumn(accepted, is_synthetic=not named)
    keys = (
        (KeyColumn((*left.keys[0].accepted, right_on)),)
        if left.keys and len(left.sources) > 1 and left_on in left.keys[0].accepted
        else (key,)
    )
    key_columns = (Column(_key_name(accepted[0]), left_expr.type),)
    return Relation(joined, Scope(tuple(visible)), keys, key_columns, (*left.sources, right_source))


def _joined_name(column: Visible) -> str:
    return f"{column.source}_{column.name}"


def _key_name(e: ast.Expression) -> str:
    assert isinstance(e, ast.Name)
    return e.name if e.source is None else f"{e.source}_{e.name}"


def _binder(relation: Relation, context: Context) -> Binder:
    return Binder(relation.scope, context.library, context.catalog.types, "JOIN ON", fixed_now_ms=context.fixed_now_ms)


def _typed(e: ast.Expression, bound: x.Expr) -> str:
    return f"{expression_text(e)}{{{show_type(bound.type)}}}"


def _criteria(left: Relation, right: Relation, join: ast.Join, context: Context) -> tuple[ast.Expression, ast.Expression]:
    """Return the two sides of ON in the order (of what is there, of the new source)."""
    both = Scope(left.scope.columns + right.scope.columns)
    for name in (n for n in walk(join.on) if isinstance(n, ast.Name)):
        both.resolve(name, "JOIN ON")
    on = canonical(join.on, both, "JOIN ON")
    if isinstance(on, ast.Binary) and on.op == "AND":
        raise StatementError(
            f"Invalid join condition: joins on multiple conditions are not yet supported. Got {expression_text(on)}.",
            join.on.span,
        )
    if not isinstance(on, ast.Binary) or on.op != "=":
        raise StatementError(f"Unsupported join expression: {expression_text(on)}; expected one equality.", join.on.span)
    sides = [_sources_of(on.left, both), _sources_of(on.right, both)]
    for e, found in zip((on.left, on.right), sides, strict=True):
        if len(found) != 1:
            raise StatementError(
                f"Invalid comparison expression '{expression_text(e)}' in join '{expression_text(on)}'. Each side of the "
                "join comparision "
                "must contain references from exactly one source.",
                e.span,
            )
    (first,), (second,) = sides
    new = join.source.alias
    if first == second:
        raise StatementError(
            "Each side of the join must reference exactly one source and not the same source. "
            f"Left side references `{first}` and right references `{second}`",
            join.on.span,
        )
    if new not in (first, second):
        raise StatementError(
            f"A join criteria is expected to reference the source (`{new}`) in the FROM clause, instead the right "
            "source references "
            f"`{second}` and the left source references `{first}`",
            join.on.span,
        )
    return (on.left, on.right) if second == new else (on.right, on.left)


def _sources_of(e: ast.Expression, scope: Scope) -> set[str]:
    found = {n.source for n in walk(e) if isinstance(n, ast.Name) and scope.find(n) is not None}
    return {s for s in found if s is not None}


def _is_key_column(relation: Relation, e: ast.Expression) -> bool:
    return len(relation.keys) == 1 and e in relation.keys[0].accepted


def _check_kinds(left: Relation, right: Relation, join: ast.Join, left_on: ast.Expression, right_on: ast.Expression) -> None:
    got = f"Got {expression_text(left_on)} = {expression_text(right_on)}."
    if left.is_table and not right.first.is_table:
        shown = "[INNER] JOIN" if join.kind == "INNER" else f"{join.kind} [OUTER] JOIN"
        raise StatementError(
            "Invalid join order: table-stream joins are not supported; only stream-table joins. "
            f"Got {name_text(left.first.name)} {shown} {name_text(right.first.name)}.",
            join.span,
        )
    if not right.first.is_table:
        if join.within is None:
            raise StatementError(
                f"{name_text(left.first.name)} and {name_text(right.first.name)}: Stream-Stream joins must have a WITHIN "
                "clause specified. "
                "None was provided.",
                join.span,
            )
        raise NotSupported("a join of two streams", join.span)
    if join.within is not None:
        raise StatementError(
            f"A window definition was provided for a {'Table' if left.is_table else 'Stream'}-Table join. These joins "
            "are not windowed. "
            "Please drop the window definition (ie. the WITHIN clause) and try to execute your join again.",
            join.within.span,
        )
    if left.is_table:
        _check_table_join(left, right, join, right_on, got)
    if join.kind not in ("INNER", "LEFT"):
        raise StatementError(
            f"Invalid join type: {join.kind} OUTER JOIN between streams and tables is not supported; INNER and LEFT are.",
            join.span,
        )
    if not _is_key_column(right, right_on):
        hint = ""
        if len(right.keys) == 1:
            hint = f" The primary key of {name_text(right.first.name)} is {right.first.key[0].name}."
        raise StatementError(
            f"Invalid join condition: stream-table joins require to join on the table's primary key. {got}{hint}", join.on.span
        )


def _check_table_join(left: Relation, right: Relation, join: ast.Join, right_on: ast.Expression, got: str) -> None:
    if not _is_key_column(right, right_on):
        raise StatementError(
            f"Invalid join condition: table-table joins require to join on the primary key of the right input table. {got}",
            join.on.span,
        )
    raise NotSupported("a join of two tables", join.span)


def _check_windows(left: Relation, right: Relation, join: ast.Join) -> None:
    ours, theirs = left.first.window, right.first.window
    if ours is None and theirs is None:
        return
    if (ours is None) != (theirs is None):
        shown = [
            f"`{r.first.name}` is {'not' if r.first.window is None else r.first.window.kind} windowed" for r in (left, right)
        ]
        raise StatementError("Can not join windowed source to non-windowed source.\n" + "\n".join(shown), join.span)
    raise NotSupported("a join of windowed sources", join.span)


def _check_partitions(left: Relation, right: Relation, join: ast.Join, context: Context) -> None:
    ours, theirs = (context.partitions.get(r.first.topic) for r in (left, right))
    if ours is not None and theirs is not None and ours != theirs:
        raise StatementError(
            f"Can't join `{left.scope.aliases[0]}` with `{right.scope.aliases[0]}` since the number of partitions don't match. "
            f"`{left.scope.aliases[0]}` partitions = {ours}; `{right.scope.aliases[0]}` partitions = {theirs}. Please "
            "repartition either "
            "one so that the number of partitions match.",
            join.span,
        )


def _keyed_by(left: Relation, on: ast.Expression, bound: x.Expr) -> Relation:
    """Return the stream keyed by one side of ON: as it is if that is its key, else re-keyed with its names kept as values."""
    if len(left.key_columns) == 1 and on in left.keys[0].accepted:
        return left
    carried = carry(left, left.scope.columns)
    key = (("KSQL_JOIN_KEY", bound),)
    prepared = p.Select(left.operator, (*carried.named, *key), "JOIN-KEY")
    rekeyed = p.Rekey(prepared, ((_join_key_name(on), x.ColumnRef(x.Side.VALUE, "KSQL_JOIN_KEY", bound.type)),), "JOIN-KEY")
    return Relation(rekeyed, carried.scope, left.keys, (Column(_join_key_name(on), bound.type),), left.sources)


def _join_key_name(on: ast.Expression) -> str:
    return _key_name(on) if isinstance(on, ast.Name) else "ROWKEY"


@dataclass(frozen=True, slots=True)
class Carried:
    """Columns copied among the values, and the scope that reads them there."""

    named: tuple[p.NamedExpr, ...]
    scope: Scope


def carry(relation: Relation, columns: Sequence[Visible]) -> Carried:
    """Return columns as value columns `SOURCE_NAME`; ROWTIME stays what it is of each record."""
    named: list[p.NamedExpr] = []
    visible: list[Visible] = []
    for column in columns:
        if column.is_pseudo and column.name == x.Meta.ROWTIME:
            visible.append(column)
            continue
        name = f"{column.source}_{column.name}"
        named.append((name, column.expr))
        visible.append(
            Visible(column.source, column.name, x.ColumnRef(x.Side.VALUE, name, column.type), column.is_key, column.is_pseudo)
        )
    return Carried(tuple(named), Scope(tuple(visible)))


def _table_side(right: Relation, used: frozenset[str]) -> tuple[p.Operator, list[Visible]]:
    """Return the table with its key and the wanted pseudo-columns among its values, as a lookup gives values only."""
    columns = [c for c in right.scope.columns if not c.is_pseudo or c.name in used]
    named = tuple((f"{c.source}_{c.name}", c.expr) for c in columns)
    return p.Select(right.operator, named, f"TABLE-{right.first.name}"), columns
