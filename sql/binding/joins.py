"""JOIN: criteria, what may be joined with what, and the result as an operator with its key and names.

What a join puts out are values named SOURCE_COLUMN, key columns of both sides among them, so that each column can be told from
those of all other sources. A join of streams or tables reads both its sides that way too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from logflume.log.schemas import Column
from logflume.sql import ast
from logflume.sql import plan as p
from logflume.sql.errors import StatementError
from logflume.sql.format import expression_text, name_text
from logflume.sql.options import check_key_type
from logflume.sql.tree import walk
from logflume.sql.types import show_type
from logflume.streams import expr as x
from logflume.streams.graph import JoinKind

from .context import Context
from .expressions import Binder
from .projection import KeyColumn, canonical
from .scope import RESERVED_COLUMNS, Scope, Visible
from .sources import Relation, carry, scan_relation

SYNTHETIC_KEY = "ROWKEY"


def bind_relation(query: ast.Query, context: Context, inner: Callable[[ast.SourceRef], Relation]) -> Relation:
    """Bind FROM and its joins; `inner` binds a query in the place of a source.

    Raises:
        StatementError: unknown sources, joins that cannot be.
    """

    def one(ref: ast.SourceRef) -> Relation:
        if ref.query is not None:
            return inner(ref)
        return scan_relation(context.catalog.source(ref.name, ref.span), ref.alias, context)

    if not query.joins:
        return one(query.source)
    _check_sources(query, context)
    used = _pseudo_names(query)
    relation = one(query.source)
    rights = [one(join.source) for join in query.joins]
    _check_criteria(relation, rights, query)
    for join, right in zip(query.joins, rights, strict=True):
        relation = _join(relation, right, join, context, used)
    return relation


def _check_criteria(first: Relation, rights: Sequence[Relation], query: ast.Query) -> None:
    """Refuse conditions that are none of their sources, of all joins, before anything is said of what they join."""
    columns = first.scope.columns
    for join, right in zip(query.joins, rights, strict=True):
        _criteria(Scope(columns), right.scope, join)
        columns += right.scope.columns


def _check_sources(query: ast.Query, context: Context) -> None:
    refs = [query.source, *(j.source for j in query.joins)]
    aliases = [r.alias for r in refs]
    for ref in refs:
        if aliases.count(ref.alias) > 1 and any(r.query is not None for r in refs):
            raise StatementError(f"two sources of the join are named {name_text(ref.alias)}; give each its own alias", ref.span)
    refs = [r for r in refs if r.query is None]
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
    """Return the pseudo-columns that a query names, or means by *: only those are carried through joins."""
    parts: list[ast.Expression] = [i.expression for i in query.select if i.expression is not None]
    parts += [e for e in (query.where, query.having, *(query.group_by or ()), *(query.partition_by or ())) if e is not None]
    parts += [j.on for j in query.joins]
    named = {n.name for e in parts for n in walk(e) if isinstance(n, ast.Name) and n.name in RESERVED_COLUMNS}
    bounds = {x.Meta.WINDOWSTART.value, x.Meta.WINDOWEND.value} if any(i.kind == "all" for i in query.select) else set()
    return frozenset(named | bounds)


def _join(left: Relation, right: Relation, join: ast.Join, context: Context, used: frozenset[str]) -> Relation:
    left_on, right_on = _criteria(left.scope, right.scope, join)
    got = _got(left_on, right_on, join, left, right)
    _check_kinds(left, right, join, got)
    _check_windows(left, right, join, left_on, right_on)
    left_expr = _binder(left, context).bind(left_on)
    right_expr = _binder(right, context).bind(right_on)
    if left_expr.type != right_expr.type:
        sides = [_typed(left_on, left_expr), _typed(right_on, right_expr)]
        if not got.startswith(f"Got {expression_text(left_on)} = "):
            sides.reverse()
        raise StatementError(
            f"Invalid join condition: types don't match. Got {' = '.join(sides)}. CAST one side to the type of the other.",
            join.on.span,
        )
    check_key_type(Column(_join_key_name(left_on), left_expr.type), join.on.span)
    is_foreign = left.is_table and not _is_key_column(left, left_on) and not _is_side(left, left_on)
    if right.is_table:
        _check_key(left, right, join, right_on, got, is_foreign=is_foreign)
    if not is_foreign:
        _check_partitions(left, right, join, context)
    if right.is_table and not left.is_table:
        return _stream_table(left, right, join, left_on, right_on, left_expr, used)
    on = _On(left_on, right_on, left_expr, right_expr)
    if is_foreign:
        return _foreign_key(left, right, join, on, used)
    return _tables(left, right, join, on, used) if left.is_table else _streams(left, right, join, on, used)


@dataclass(frozen=True, slots=True)
class _On:
    """The two sides of ON: what is there, and the new source."""

    left: ast.Expression
    right: ast.Expression
    left_expr: x.Expr
    right_expr: x.Expr


def _stream_table(
    left: Relation,
    right: Relation,
    join: ast.Join,
    left_on: ast.Expression,
    right_on: ast.Expression,
    left_expr: x.Expr,
    used: frozenset[str],
) -> Relation:
    stream = _keyed_by(left, left_on, left_expr)
    table, table_columns = _table_side(right, used)
    ours = _wanted(stream, used)
    outputs = [(_joined_name(c), c.expr) for c in ours]
    outputs += [(_joined_name(c), x.ColumnRef(x.Side.VALUE, f"TABLE:{_joined_name(c)}", c.type)) for c in table_columns]
    joined = p.JoinTable(stream.operator, table, JoinKind(join.kind.lower()), tuple(outputs))
    return _result(joined, left, right, join, left_on, right_on, left_expr, [*ours, *table_columns])


def _streams(left: Relation, right: Relation, join: ast.Join, on: _On, used: frozenset[str]) -> Relation:
    assert join.within is not None, "checked: two streams join within a time"
    window = left.first.window
    wanted = _wanted(left, used), _wanted(right, used)
    sides = (
        _keyed_values(left, wanted[0], on.left, on.left_expr, "LEFT"),
        _keyed_values(right, wanted[1], on.right, on.right_expr, "RIGHT"),
    )
    before, after = join.within.before.ms, join.within.after.ms
    grace = None if join.within.grace is None else join.within.grace.ms
    if join.kind == "RIGHT":
        sides, wanted, before, after = sides[::-1], wanted[::-1], after, before
    columns = _pairs(*wanted)
    operator = p.JoinStreams(*sides, _KINDS[join.kind], columns, before, after, grace)
    assert window is None or right.first.window is not None, "checked: both sides are windowed, or none"
    return _result(operator, left, right, join, on.left, on.right, on.left_expr, [*_wanted(left, used), *_wanted(right, used)])


def _tables(left: Relation, right: Relation, join: ast.Join, on: _On, used: frozenset[str]) -> Relation:
    wanted = _wanted(left, used), _wanted(right, used)
    sides = _values(left, wanted[0], "LEFT"), _values(right, wanted[1], "RIGHT")
    if join.kind == "RIGHT":
        sides, wanted = sides[::-1], wanted[::-1]
    operator = p.JoinTables(*sides, _KINDS[join.kind], _pairs(*wanted))
    return _result(operator, left, right, join, on.left, on.right, on.left_expr, [*_wanted(left, used), *_wanted(right, used)])


def _foreign_key(left: Relation, right: Relation, join: ast.Join, on: _On, used: frozenset[str]) -> Relation:
    ours, theirs = _wanted(left, used), _wanted(right, used)
    key = [("KSQL_FOREIGN_KEY", on.left_expr)]
    asking = _values(left, ours, "LEFT", extra=key)
    foreign = x.ColumnRef(x.Side.VALUE, "KSQL_FOREIGN_KEY", on.left_expr.type)
    kind = _KINDS[join.kind]
    operator = p.JoinForeign(asking, _values(right, theirs, "RIGHT"), kind, _pairs(ours, theirs), foreign)
    scope = Scope(tuple(_joined(c) for c in (*ours, *theirs)))
    return Relation(operator, scope, left.keys, left.key_columns, (*left.sources, *right.sources), True)


_KINDS = {"INNER": JoinKind.INNER, "LEFT": JoinKind.LEFT, "RIGHT": JoinKind.LEFT, "FULL": JoinKind.OUTER}
"""How a join runs: RIGHT is LEFT with its sides changed over."""


def _values(relation: Relation, columns: list[Visible], name: str, *, extra: Sequence[p.NamedExpr] = ()) -> p.Operator:
    """Return a side of a join with the columns that are wanted as its values."""
    return p.Select(relation.operator, (*((_joined_name(c), c.expr) for c in columns), *extra), name)


def _keyed_values(relation: Relation, columns: list[Visible], on: ast.Expression, bound: x.Expr, name: str) -> p.Operator:
    """Return a stream with the wanted columns as its values, keyed by its side of ON."""
    if len(relation.key_columns) == 1 and on in relation.keys[0].accepted:
        return _values(relation, columns, name)
    prepared = _values(relation, columns, f"{name}-KEY", extra=[("KSQL_JOIN_KEY", bound)])
    key = x.ColumnRef(x.Side.VALUE, "KSQL_JOIN_KEY", bound.type)
    rekeyed = p.Rekey(prepared, ((_join_key_name(on), key),), name)
    return p.Select(rekeyed, tuple((_joined_name(c), x.ColumnRef(x.Side.VALUE, _joined_name(c), c.type)) for c in columns), name)


def _pairs(lefts: list[Visible], rights: list[Visible]) -> tuple[p.NamedExpr, ...]:
    """Return the columns of both sides as a join puts them out."""
    ours = [(name, x.ColumnRef(x.Side.VALUE, name, c.type)) for c in lefts for name in (_joined_name(c),)]
    return (*ours, *((name, x.ColumnRef(x.Side.VALUE, f"TABLE:{name}", c.type)) for c in rights for name in (_joined_name(c),)))


def _joined(c: Visible) -> Visible:
    """Return a column of one side as it is named behind the join; a synthetic key of a join before is no key any more."""
    is_key = c.is_key and c.source != ""
    return Visible(c.source, c.name, x.ColumnRef(x.Side.VALUE, _joined_name(c), c.type), is_key, c.is_pseudo)


def _wanted(relation: Relation, used: frozenset[str]) -> list[Visible]:
    return [c for c in relation.scope.columns if not c.is_pseudo or c.name in used]


def _result(
    operator: p.Operator,
    left: Relation,
    right: Relation,
    join: ast.Join,
    left_on: ast.Expression,
    right_on: ast.Expression,
    left_expr: x.Expr,
    columns: list[Visible],
) -> Relation:
    """Return the relation behind a join. Its key is one side of ON, or a synthetic column where no side is a column."""
    columns = [c for c in columns if c.source or c.name != _synthetic_name(left, left_on)]
    visible = [_joined(c) for c in columns]
    named = tuple(e for e in (left_on, right_on) if isinstance(e, ast.Name)) if join.kind != "FULL" else ()
    sides: tuple[ast.Expression, ...] = ()
    if left.is_table and right.is_table:
        there = left.keys[0]
        sides = (*(there.sides or there.accepted), left_on, right_on)
        named = () if there.is_synthetic else named
    if left.keys and len(left.sources) > 1 and left_on in left.keys[0].accepted and join.kind != "FULL":
        key = KeyColumn((*left.keys[0].accepted, right_on))
    elif named:
        key = KeyColumn(named)
    else:
        name = _free_key_name({c.name for c in columns})
        visible.append(Visible("", name, x.ColumnRef(x.Side.KEY, p.key_columns(operator)[0].name, left_expr.type), is_key=True))
        key = KeyColumn((ast.Name(name, ""),), is_synthetic=True, sides=sides)
    key_columns = (Column(_key_name(key.accepted[0]), left_expr.type),)
    sources = (*left.sources, *right.sources)
    return Relation(operator, Scope(tuple(visible)), (key,), key_columns, sources, left.is_table and right.is_table)


def _synthetic_name(left: Relation, left_on: ast.Expression) -> str | None:
    """Return the name of the left's synthetic key where the join is on it: the result's takes its place."""
    if not left.is_table or not left.keys or not left.keys[0].is_synthetic:
        return None
    name = left.keys[0].accepted[0]
    return name.name if isinstance(name, ast.Name) and _is_side(left, left_on) else None


def _free_key_name(taken: set[str]) -> str:
    """Return ROWKEY, or the first of ROWKEY_1, ROWKEY_2, ... that no column has."""
    name, number = SYNTHETIC_KEY, 0
    while name in taken:
        number += 1
        name = f"{SYNTHETIC_KEY}_{number}"
    return name


def _joined_name(column: Visible) -> str:
    return f"{column.source}_{column.name}"


def _key_name(e: ast.Expression) -> str:
    assert isinstance(e, ast.Name)
    return f"{e.source}_{e.name}" if e.source else e.name


def _binder(relation: Relation, context: Context) -> Binder:
    return Binder(relation.scope, context.functions, context.catalog.types, "JOIN ON", fixed_now_ms=context.fixed_now_ms)


def _typed(e: ast.Expression, bound: x.Expr) -> str:
    return f"{expression_text(e)}{{{show_type(bound.type)}}}"


def _criteria(left: Scope, right: Scope, join: ast.Join) -> tuple[ast.Expression, ast.Expression]:
    """Return the two sides of ON in the order (of what is there, of the new source)."""
    both = Scope(left.columns + right.columns)
    for name in (n for n in walk(join.on) if isinstance(n, ast.Name)):
        both.resolve(name, "JOIN ON")
    on = canonical(join.on, both, "JOIN ON")
    if isinstance(on, ast.Binary) and on.op == "AND":
        raise StatementError(
            f"Invalid join condition: joins on multiple conditions are not yet supported. Got {expression_text(on)}.",
            join.on.span,
        )
    if isinstance(on, ast.Binary) and on.op in ("<>", "<", "<=", ">", ">="):
        raise StatementError(f"Only equality join criteria is supported. Got {expression_text(on)}.", join.on.span)
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


def _is_side(relation: Relation, e: ast.Expression) -> bool:
    return len(relation.keys) == 1 and e in relation.keys[0].sides


def _got(left_on: ast.Expression, right_on: ast.Expression, join: ast.Join, left: Relation, right: Relation) -> str:
    """Write the condition as the user did, names in full."""
    both = Scope(left.scope.columns + right.scope.columns)
    on = canonical(join.on, both, "JOIN ON")
    assert isinstance(on, ast.Binary)
    return f"Got {expression_text(on.left)} = {expression_text(on.right)}."


def _check_kinds(left: Relation, right: Relation, join: ast.Join, got: str) -> None:
    """Refuse kinds of sources that do not join, and WITHIN where it has no place."""
    if left.is_table and not right.is_table:
        raise StatementError(
            "Invalid join order: table-stream joins are not supported; only stream-table joins. "
            f"{_got_kind(left, right, join)} Name the stream first.",
            join.span,
        )
    if not right.is_table:
        if join.within is None:
            raise StatementError(
                f"{name_text(left.first.name)} and {name_text(right.first.name)}: Stream-Stream joins must have a WITHIN clause "
                "specified. None was provided. To learn about how to specify a WITHIN clause with a stream-stream join, please "
                "visit: https://docs.confluent.io/current/ksql/docs/syntax-reference.html#create-stream-as-select\n"
                "WITHIN 1 HOUR says how far apart in time two records may be.",
                join.span,
            )
        return
    if join.within is not None:
        kind, that_is, again = ("Table", "i.e.", "Table-Table join") if left.is_table else ("Stream", "ie.", "join")
        raise StatementError(
            f"A window definition was provided for a {kind}-Table join. These joins are not windowed. Please drop the window "
            f"definition ({that_is} the WITHIN clause) and try to execute your {again} again.",
            join.within.span,
        )
    if not left.is_table and join.kind not in ("INNER", "LEFT"):
        which = "full-outer" if join.kind == "FULL" else "right-outer"
        raise StatementError(
            f"Invalid join type: {which} join not supported for stream-table join. {_got_kind(left, right, join)} "
            "INNER and LEFT are.",
            join.span,
        )


def _got_kind(left: Relation, right: Relation, join: ast.Join) -> str:
    return f"Got {name_text(left.first.name)} {_SHOWN_KINDS[join.kind]} {name_text(right.first.name)}."


_SHOWN_KINDS = {
    "INNER": "[INNER] JOIN",
    "LEFT": "LEFT [OUTER] JOIN",
    "RIGHT": "RIGHT [OUTER] JOIN",
    "FULL": "[FULL] OUTER JOIN",
}


def _check_key(left: Relation, right: Relation, join: ast.Join, right_on: ast.Expression, got: str, *, is_foreign: bool) -> None:
    """Refuse a join with a table on anything but its primary key."""
    kind = "table-table" if left.is_table else "stream-table"
    which = "the primary key of the right input table" if left.is_table else "the table's primary key"
    if not _is_key_column(right, right_on):
        hint = f" The primary key of {name_text(right.first.name)} is {right.first.key[0].name}." if len(right.keys) == 1 else ""
        raise StatementError(f"Invalid join condition: {kind} joins require to join on {which}. {got}{hint}", join.on.span)
    if is_foreign and join.kind == "FULL":
        raise StatementError(
            f"Invalid join type: full-outer join not supported for foreign-key table-table join. {_got_kind(left, right, join)}",
            join.span,
        )
    if is_foreign and join.kind == "RIGHT":
        raise StatementError(f"Invalid join type: RIGHT OUTER JOIN on a foreign key is not supported. {got}", join.span)
    if is_foreign and len(left.sources) > 1:
        raise StatementError(
            f"Invalid join condition: foreign-key table-table joins are not supported as part of n-way joins. {got}", join.on.span
        )


def _check_windows(left: Relation, right: Relation, join: ast.Join, left_on: ast.Expression, right_on: ast.Expression) -> None:
    ours, theirs = left.first.window, right.first.window
    if ours is None and theirs is None:
        return
    if ours is None or theirs is None:
        shown = [
            f"`{r.scope.aliases[0]}` is {'not' if r.first.window is None else r.first.window.kind} windowed"
            for r in (left, right)
        ]
        raise StatementError("Can not join windowed source to non-windowed source.\n" + "\n".join(shown), join.span)
    if ours.kind != theirs.kind and "SESSION" in (ours.kind, theirs.kind):
        raise StatementError(
            f"Incompatible windowed sources.\nLeft source: {ours.kind}\nRight source: {theirs.kind}\n"
            "Session windowed sources can only be joined to other session windowed sources, and may still not result in expected "
            "behaviour as session bounds must be an exact match for the join to work\n"
            "Hopping and tumbling windowed sources can only be joined to other hopping and tumbling windowed sources",
            join.span,
        )
    has_same_windows = ours.size_ms == theirs.size_ms
    if not (has_same_windows and _is_key_column(left, left_on) and _is_key_column(right, right_on)):
        raise StatementError(
            "Implicit repartitioning of windowed sources is not supported. See https://github.com/confluentinc/ksql/issues/4385.",
            join.on.span,
        )


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
    return Relation(rekeyed, carried.scope, left.keys, (Column(_join_key_name(on), bound.type),), left.sources, False)


def _join_key_name(on: ast.Expression) -> str:
    return _key_name(on) if isinstance(on, ast.Name) else SYNTHETIC_KEY


def _table_side(right: Relation, used: frozenset[str]) -> tuple[p.Operator, list[Visible]]:
    """Return the table with its key and the wanted pseudo-columns among its values, as a lookup gives values only."""
    columns = [c for c in right.scope.columns if not c.is_pseudo or c.name in used]
    named = tuple((f"{c.source}_{c.name}", c.expr) for c in columns)
    return p.Select(right.operator, named, f"TABLE-{right.first.name}"), columns
