"""Queries: syntax tree -> logical plan. The static rules of the dialect are checked here, each with its cause and position."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from logflume.log.schemas import ANY, BIGINT, BOOLEAN, Column, array
from logflume.sql import ast
from logflume.sql import plan as p
from logflume.sql.catalog import WindowInfo
from logflume.sql.errors import StatementError, SyntaxFault
from logflume.sql.format import expression_text
from logflume.sql.functions import unknown_function
from logflume.sql.options import calendar_of
from logflume.sql.rules import column_refs
from logflume.sql.tree import children, free_names, walk
from logflume.sql.types import show_type
from logflume.sql.words import joined_names
from logflume.streams import expr as x
from logflume.streams.calendars import LONGEST_MS
from logflume.streams.functions import Library
from logflume.streams.graph import CalendarWindow, Emit, SessionWindow, TimeWindow
from logflume.streams.java_time import UNITS_MS

from .aggregation import BoundAggregate, aggregate_calls, bind_aggregate, has_aggregate, refuse_bounds
from .context import Context
from .expressions import Binder, over_refused
from .joins import bind_relation
from .projection import Item, KeyColumn, canonical, check_names, find_keys, spread
from .scope import RESERVED_COLUMNS, WINDOW_COLUMNS, Scope, Visible, pseudo_columns
from .sources import Relation, carry
from .top_rows import TopRows, followed, top_rows

DAY_MS = 86_400_000
NEW_PLANNER = "ksql.new.query.planner.enabled"

WINDOWS_MAX = 10_000
"""In how many windows one record may be: each costs an entry and a change of it."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a query is for. `sink`: the stream or table it makes or fills; None: someone watches. `statement`: for messages.

    `timestamp`: the column that gives the sink's event time. `needs_undo`: aggregates over a table follow its changes, so each
    must be able to take a row out again.
    """

    query_id: str
    sink: str | None = None
    statement: str = "SELECT"
    timestamp: str | None = None
    needs_undo: bool = True

    @property
    def is_persistent(self) -> bool:
        return self.sink is not None


@dataclass(frozen=True, slots=True)
class BoundQuery:
    """A query with the columns of its result; `root` puts out `value` under the key `key`."""

    root: p.Operator
    kind: p.ResultKind
    key: tuple[Column, ...]
    value: tuple[Column, ...]
    relation: Relation
    window: p.Windows | None
    has_new_key: bool
    columns: tuple[str, ...]

    @property
    def is_grouped(self) -> bool:
        return any(isinstance(o, p.Aggregate) for o in p.operators(self.root))


def unknown_timestamp(name: str) -> str:
    return f"The TIMESTAMP column set in the WITH clause does not exist in the schema: '{name}'"


def bind_query(query: ast.Query, context: Context, target: Target) -> BoundQuery:
    """Bind a query.

    Raises:
        StatementError: with the position of what is to blame.
    """
    try:
        bound = _bound_query(query, context, target)
        _check_snapshot(query, bound, target)
        return bound
    except StatementError as e:
        if e.span == ast.NOWHERE:
            e.span = query.span
        raise


def _bound_query(query: ast.Query, context: Context, target: Target) -> BoundQuery:
    top = top_rows(query)
    if top is not None:
        return _first_rows(top, context, target)
    _check_once_only(query)
    if query.unions:
        return _united(query, context, target)
    _check_clauses(query, context.functions)
    relation = bind_relation(query, context, lambda ref: _inner_relation(ref, context, target))
    if query.is_distinct:
        query = _distinct(query, relation, context, target)
    elif not target.is_persistent and is_whole(query, context.functions):
        query = replace(query, group_by=(ast.StringLiteral("all"),))
    shape = _Shape(query, context, target, relation)
    for e in shape.expressions():
        _check_functions(e, context.functions)
    relation = shape.filtered()
    if query.group_by is not None or any(has_aggregate(e, context.functions) for e in shape.expressions()):
        return shape.aggregated(relation)
    if query.partition_by is not None:
        return shape.partitioned(relation)
    return shape.projected(relation)


def is_whole(query: ast.Query, library: Library) -> bool:
    """Tell whether a query aggregates all of its rows, which only a result that is looked at may."""
    found = [item.expression for item in query.select if item.expression is not None]
    is_grouped = query.group_by is not None or query.is_distinct or query.window is not None or query.having is not None
    return not is_grouped and any(has_aggregate(e, library) for e in found)


def _check_once_only(query: ast.Query) -> None:
    """Refuse what only a result that ends can have."""
    for clause, is_there in (("ORDER BY", bool(query.order_by)), ("OFFSET", query.offset > 0)):
        if is_there:
            span = query.clause_span("LIMIT" if clause == "OFFSET" else clause)
            raise StatementError(
                f"{clause} is for queries that end: without EMIT CHANGES, and not within another statement", span
            )
    for part in (part for e in _written(query) for part in walk(e)):
        if isinstance(part, ast.Over):
            raise over_refused(part)
    for ref in (query.source, *(join.source for join in query.joins)):
        if ref.as_of is not None:
            reason = "AS OF is for queries that end: a query that follows its topics reads them from their start"
            raise StatementError(reason, ref.as_of.span)


def _first_rows(top: TopRows, context: Context, target: Target) -> BoundQuery:
    """Bind the first rows of each group, which are a table."""
    if bind_relation(top.query, context, lambda ref: _inner_relation(ref, context, target)).is_table:
        raise StatementError(
            f"the first rows of groups are those of a stream, found the table {top.query.source.name or top.query.source.alias}: "
            "a query that ends, without EMIT CHANGES, has them of a table",
            top.query.source.span,
        )
    inner = bind_query(top.kept(), context, replace(target, sink=None, timestamp=None))

    def binder(scope: Scope) -> Binder:
        return Binder(scope, context.functions, context.catalog.types, "SELECT", fixed_now_ms=context.fixed_now_ms)

    found = followed(top, inner.value, inner.root, binder, sink=target.sink)
    names = tuple(c.name for c in found.key) + tuple(name for name, _ in found.columns)
    if target.timestamp is not None and target.timestamp not in names:
        raise StatementError(unknown_timestamp(target.timestamp), top.query.span)
    value = tuple(Column(name, e.type) for name, e in found.columns)
    return BoundQuery(found.root, p.ResultKind.TABLE, found.key, value, inner.relation, None, True, names)


def _check_snapshot(query: ast.Query, bound: BoundQuery, target: Target) -> None:
    """Refuse EMIT SNAPSHOT, CHANGES where there are no rows that change, or nobody looks."""
    if query.emit != ast.SNAPSHOT:
        return
    reason = None
    if target.is_persistent:
        reason = "is for who looks at a table; a query that runs for good has EMIT CHANGES"
    elif bound.kind is not p.ResultKind.TABLE:
        reason = "needs rows that change, and this query gives a STREAM: EMIT CHANGES gives all that was there and what comes"
    if reason is not None:
        raise StatementError(f"EMIT {ast.SNAPSHOT} {reason}", query.clause_span("EMIT"))


def _distinct(query: ast.Query, relation: Relation, context: Context, target: Target) -> ast.Query:
    """Return SELECT DISTINCT as what it means: a group of each row."""
    shape = _Shape(query, context, target, relation)
    if query.group_by is not None or any(has_aggregate(e, context.functions) for e in shape.expressions()):
        raise StatementError(
            "SELECT DISTINCT with aggregates: GROUP BY gives each group once already", query.clause_span("DISTINCT")
        )
    items = shape.items(relation)
    groups = tuple(dict.fromkeys(i.expression for i in items))
    select = tuple(ast.SelectItem("expr", i.expression, i.name, span=i.span) for i in items)
    return replace(query, select=select, group_by=groups)


def _inner_relation(ref: ast.SourceRef, context: Context, target: Target) -> Relation:
    """Bind a query in the place of a source: its columns under the alias, its key where the SELECT has it."""
    assert ref.query is not None
    if top_rows(ref.query) is not None:
        raise StatementError(
            f"{ref.alias} is the first rows of groups, which another query reads only from a table of theirs: CREATE TABLE "
            "... AS SELECT ... QUALIFY, then read that",
            ref.span,
        )
    bound = bind_query(ref.query, context, replace(target, sink=None, timestamp=None, needs_undo=True))
    for column in bound.value:
        if column.name in RESERVED_COLUMNS:
            raise StatementError(
                f"the column `{column.name}` of {ref.alias} needs a name of its own: give it one with AS", ref.span
            )
    selected = bound.root.columns if isinstance(bound.root, p.Select) else ()
    named = {e.name: name for name, e in selected if isinstance(e, x.ColumnRef) and e.side is x.Side.KEY}
    is_keyed = all(c.name in named for c in bound.key)
    if target.is_persistent and not is_keyed:
        missing = ", ".join(c.name for c in bound.key if c.name not in named)
        raise StatementError(f"the query {ref.alias} must select its key as it is: {missing}", ref.span)
    keys = [named[c.name] for c in bound.key] if is_keyed else []
    columns = [Visible(ref.alias, c.name, x.ColumnRef(x.Side.VALUE, c.name, c.type), c.name in keys) for c in bound.value]
    columns += pseudo_columns(ref.alias, is_windowed=bound.window is not None)
    first, *others = bound.relation.sources
    return Relation(
        bound.root,
        Scope(tuple(columns)),
        tuple(KeyColumn((ast.Name(name, ref.alias),)) for name in keys),
        bound.key if is_keyed else (),
        (replace(first, window=window_info(bound)), *others),
        bound.kind is p.ResultKind.TABLE,
    )


def window_info(bound: BoundQuery) -> WindowInfo | None:
    """Return the windows of a result as a source over it has them."""
    inherited = bound.relation.first.window
    if bound.window is None or (inherited is not None and not bound.is_grouped):
        return None if bound.window is None else inherited
    if isinstance(bound.window, TimeWindow):
        kind = "TUMBLING" if bound.window.advance_ms == bound.window.size_ms else "HOPPING"
        return WindowInfo(kind, bound.window.size_ms, bound.window.advance_ms)
    if isinstance(bound.window, CalendarWindow):
        return WindowInfo("CALENDAR", unit=str(bound.window.unit), zone=bound.window.zone)
    return WindowInfo("SESSION")


def _united(query: ast.Query, context: Context, target: Target) -> BoundQuery:
    """Bind UNION ALL: streams of the same columns by position, named as in the first."""
    queries = (replace(query, unions=()), *query.unions)
    parts = [bind_query(each, context, target) for each in queries]
    first = parts[0]
    for each, part in zip(queries, parts, strict=True):
        if part.kind is not p.ResultKind.STREAM or part.window is not None:
            raise StatementError("UNION ALL is of streams without windows; a part of it is a table, or windowed", each.span)
        types = [[c.type for c in side] for side in (part.key, part.value)]
        if types != [[c.type for c in side] for side in (first.key, first.value)]:
            raise StatementError(
                f"the parts of UNION ALL have other columns: ({_shown(first)}) and ({_shown(part)}); name them in one order, "
                "with CAST where types differ",
                each.span,
            )
    root = p.Union(tuple(_renamed(part, first) for part in parts))
    sources = tuple(source for part in parts for source in part.relation.sources)
    relation = replace(first.relation, operator=root, sources=sources)
    return replace(first, root=root, relation=relation, has_new_key=True)


def _shown(bound: BoundQuery) -> str:
    parts = [f"{c.name} {show_type(c.type)} KEY" for c in bound.key] + [f"{c.name} {show_type(c.type)}" for c in bound.value]
    return ", ".join(parts)


def _renamed(part: BoundQuery, first: BoundQuery) -> p.Operator:
    """Return a part of a union with the names of the first, keys as the result has them."""
    refs = zip(first.value, part.value, strict=True)
    root: p.Operator = p.Select(part.root, tuple((a.name, x.ColumnRef(x.Side.VALUE, b.name, b.type)) for a, b in refs), "PART")
    ours = p.key_columns(root)
    if not ours or not first.key:
        return root
    keys = zip(first.key, ours, strict=True)
    return p.Rekey(root, tuple((a.name, x.ColumnRef(x.Side.KEY, b.name, b.type)) for a, b in keys), "PART")


def _check_functions(e: ast.Expression, library: Library) -> None:
    """Refuse unknown functions before anything is concluded from their absence."""
    for part in walk(e):
        if isinstance(part, ast.Call) and library.kind_of(part.name) is None:
            error = unknown_function(library, part.name)
            error.span = part.span
            raise error


def _check_clauses(query: ast.Query, library: Library) -> None:
    if query.window is not None and query.group_by is None:
        found = [i.expression for i in query.select if i.expression is not None]
        plain = [e for e in found if not has_aggregate(e, library)]
        if plain and len(plain) < len(found):
            shown = ", ".join(map(expression_text, plain))
            raise StatementError(
                f"Non-aggregate SELECT expression(s) not part of GROUP BY: {shown}\nAdd GROUP BY {shown}", plain[0].span
            )
        raise StatementError("WINDOW clause requires a GROUP BY clause.", query.clause_span("WINDOW"))
    if query.having is not None and query.group_by is None:
        raise StatementError("HAVING requires a GROUP BY clause; WHERE filters records.", query.clause_span("HAVING"))
    if query.group_by is not None and query.partition_by is not None:
        raise StatementError("Queries only support one of PARTITION BY and GROUP BY", query.clause_span("PARTITION BY"))
    if query.emit == "FINAL" and (query.group_by is None or query.window is None):
        raise StatementError(
            "EMIT FINAL is only supported for windowed aggregations. Add GROUP BY and WINDOW.", query.clause_span("EMIT")
        )


def _written(query: ast.Query) -> list[ast.Expression]:
    """Return the expressions of a query's clauses."""
    found = [item.expression for item in query.select] + [query.where, query.having, *(query.group_by or ())]
    return [e for e in found if e is not None]


@dataclass(frozen=True, slots=True)
class _Shape:
    """One query on its way to a plan: what all its clauses need."""

    query: ast.Query
    context: Context
    target: Target
    relation: Relation

    def binder(self, scope: Scope, clause: str) -> Binder:
        return Binder(scope, self.context.functions, self.context.catalog.types, clause, fixed_now_ms=self.context.fixed_now_ms)

    def expressions(self) -> list[ast.Expression]:
        found = [i.expression for i in self.query.select if i.expression is not None]
        return found if self.query.having is None else [*found, self.query.having]

    def items(self, relation: Relation, leading: Sequence[ast.Expression] | None = None) -> list[Item]:
        binder, is_shown = self.binder(relation.scope, "SELECT"), not self.target.is_persistent
        items = spread(self.query.select, relation.scope, binder, leading, has_bounds=is_shown)
        wanted = self.target.timestamp
        if wanted is not None and all(i.name != wanted for i in items):
            raise StatementError(unknown_timestamp(wanted), self.query.span)
        if self.target.is_persistent:
            check_names(items, relation.scope, has_window=self.query.window is not None)
        return items

    def filtered(self) -> Relation:
        """WHERE."""
        where, relation = self.query.where, self.relation
        if where is None:
            return relation
        if self.query.window is not None:
            _refuse_later_bounds(where, relation.scope)
        _refuse_calls(where, self.context.functions, "WHERE")
        predicate = self.binder(relation.scope, "WHERE").condition(where)
        return replace(relation, operator=p.Filter(relation.operator, predicate))

    # ---------------------------------------------------------------------------------------- no change of key

    def projected(self, relation: Relation) -> BoundQuery:
        items = self.items(relation)
        kind = p.ResultKind.TABLE if relation.is_table else p.ResultKind.STREAM
        clause = "join expression" if len(relation.sources) > 1 else "key column"
        spread_out, binder = self._exploded(relation, items, kind)
        for item in items:
            binder.bind(item.expression)
        if self._may_drop_keys(relation):
            return self._chosen_keys(spread_out, binder, items)
        key_items = self._keys(relation.keys, items, clause, relation)
        columns = self._bind_items(_beside(items, key_items), binder)
        key = _named_key(relation.key_columns, key_items)
        root = p.Select(spread_out.operator, tuple(columns))
        return self._bound(
            root, kind, key, columns, relation, items, window=_window_of(relation), has_new_key=len(relation.sources) > 1
        )

    def _keys(self, keys: Sequence[KeyColumn], items: Sequence[Item], clause: str, relation: Relation) -> list[Item]:
        """Return the key items: all that a stored result needs, or those there are for one that is watched."""
        if not self.target.is_persistent:
            return []
        if len(relation.sources) == 2 and any(isinstance(o, p.JoinForeign) for o in p.operators(relation.operator)):
            _check_foreign_keys(keys, items, relation)
        return find_keys(keys, items, relation.scope, sink=self.target.sink or "", clause=clause)

    def _may_drop_keys(self, relation: Relation) -> bool:
        """Tell whether the SELECT says which key columns stay, and in which order, as ksqlDB's newer planner has it."""
        is_asked = self.context.property(NEW_PLANNER, "false").lower() == "true"
        return is_asked and self.target.is_persistent and not relation.is_table and len(relation.sources) == 1

    def _chosen_keys(self, relation: Relation, binder: Binder, items: Sequence[Item]) -> BoundQuery:
        accepted = [e for key in relation.keys for e in key.accepted]
        key_items = [
            i for n, i in enumerate(items) if i.expression in accepted and i.expression not in [j.expression for j in items[:n]]
        ]
        columns = self._bind_items(_beside(items, key_items), binder)
        keys = [(i.name, binder.bind(i.expression)) for i in key_items]
        root: p.Operator = p.Select(relation.operator, tuple(columns))
        key = tuple(Column(name, e.type) for name, e in keys)
        is_new = [e.name for _, e in keys if isinstance(e, x.ColumnRef)] != [c.name for c in relation.key_columns]
        if is_new and relation.first.window is None:
            root = p.Rekey(root, tuple(keys), "KEY")
        return self._bound(
            root, p.ResultKind.STREAM, key, columns, relation, items, window=_window_of(relation), has_new_key=is_new
        )

    def _bind_items(self, items: Sequence[Item], binder: Binder, *, taken: Sequence[str] = ()) -> list[tuple[str, x.Expr]]:
        columns: list[tuple[str, x.Expr]] = []
        for item in items:
            e = binder.bind(item.expression)
            if e.type == ANY:
                raise StatementError(
                    "Can't infer a type of null. Please explicitly cast it to a required type, e.g. CAST(null AS VARCHAR).",
                    item.span,
                )
            if item.name in taken or any(item.name == name for name, _ in columns):
                raise StatementError(
                    f"Duplicate value columns found in schema: `{item.name}` {show_type(e.type)}; give one of them another name "
                    "with AS",
                    item.span,
                )
            columns.append((item.name, e))
        if not columns and self.target.is_persistent:
            raise StatementError(
                "The projection contains no value columns. Select something beside the key; AS_VALUE copies it.", self.query.span
            )
        return columns

    def _exploded(self, relation: Relation, items: Sequence[Item], kind: p.ResultKind) -> tuple[Relation, Binder]:
        """Put table functions before the projection; their items then read like columns."""
        library = self.context.functions
        calls = _table_calls([i.expression for i in items], library, relation.scope)
        if not calls:
            return relation, self.binder(relation.scope, "SELECT")
        if kind is p.ResultKind.TABLE:
            raise StatementError("Table source is not supported with table functions; read the topic as a STREAM", calls[0].span)
        binder = self.binder(relation.scope, "SELECT")
        kept = [c for c in relation.scope.columns if not c.is_pseudo]
        named = {n.name for i in items for n in walk(i.expression) if isinstance(n, ast.Name)}
        kept += [c for c in relation.scope.columns if c.is_pseudo and c.name in named]
        carried = carry(relation, kept)
        lists = [_table_function_list(call, binder) for call in calls]
        columns = [(name, e, False) for name, e in carried.named]
        columns += [(f"KSQL_UDTF_{n}", e, True) for n, e in enumerate(lists)]
        substitutions: dict[ast.Expression, x.Expr] = {}
        for n, (call, e) in enumerate(zip(calls, lists, strict=True)):
            assert e.type.element is not None
            substitutions[call] = x.ColumnRef(x.Side.VALUE, f"KSQL_UDTF_{n}", e.type.element)
        spread_out = replace(relation, operator=p.Explode(_rows(relation.operator), tuple(columns)), scope=carried.scope)
        return spread_out, replace(self.binder(carried.scope, "SELECT"), substitutions=substitutions)

    def _bound(
        self,
        root: p.Operator,
        kind: p.ResultKind,
        key: tuple[Column, ...],
        columns: Sequence[tuple[str, x.Expr]],
        relation: Relation,
        items: Sequence[Item],
        *,
        window: p.Windows | None,
        has_new_key: bool,
    ) -> BoundQuery:
        value = tuple(Column(name, e.type) for name, e in columns)
        shown = tuple(i.name for i in items)
        return BoundQuery(root, kind, key, value, relation, window, has_new_key, shown)

    # ---------------------------------------------------------------------------------------- PARTITION BY

    def partitioned(self, relation: Relation) -> BoundQuery:
        if relation.is_table:
            raise StatementError(
                "Cannot repartition a TABLE source. PARTITION BY is for streams; GROUP BY makes a table of another key",
                self._span("PARTITION BY"),
            )
        binder = self.binder(relation.scope, "PARTITION BY")
        given = self.query.partition_by or ()
        for n, e in enumerate(given):
            if e in given[:n]:
                raise SyntaxFault(f"Duplicate PARTITION BY expression: {expression_text(e)}", e.span)
        wanted = [] if [type(e) for e in given] == [ast.NullLiteral] else list(given)
        for e in wanted:
            _refuse_calls(e, self.context.functions, "PARTITION BY")
        exprs = [canonical(e, relation.scope, "PARTITION BY") for e in wanted]
        if relation.first.window is not None:
            if exprs == [key.accepted[0] for key in relation.keys]:
                return self.projected(relation)
            raise StatementError(
                "Implicit repartitioning of windowed sources is not supported. See "
                "https://github.com/confluentinc/ksql/issues/4385. The window is part of the key; GROUP BY makes a table without "
                "windows",
                self._span("PARTITION BY"),
            )
        bound = [binder.bind(e) for e in wanted]
        for e, b in zip(wanted, bound, strict=True):
            if b.type == ANY:
                raise StatementError("Cannot PARTITION BY multiple columns including NULL", e.span)
        items = self.items(relation, leading=exprs)
        key_items = self._keys([KeyColumn((e,)) for e in exprs], items, "partitioning expression", relation)
        spread_out, select_binder = self._exploded(relation, items, p.ResultKind.STREAM)
        if spread_out is not relation:
            binder = replace(select_binder, clause="PARTITION BY")
            bound = [binder.bind(e) for e in exprs]
        columns = self._bind_items(_beside(items, key_items), select_binder)
        names = [i.name for i in key_items] or [f"KSQL_COL_{n}" for n in range(len(bound))]
        hidden = [(f"KSQL_KEY_{n}", b) for n, b in enumerate(bound) if any(c.side is x.Side.VALUE for c in column_refs(b))]
        kept = dict(hidden)
        keys = [
            (n, x.ColumnRef(x.Side.VALUE, f"KSQL_KEY_{i}", b.type) if f"KSQL_KEY_{i}" in kept else b)
            for i, (n, b) in enumerate(zip(names, bound, strict=True))
        ]
        keyed = p.Rekey(
            p.Select(spread_out.operator, (*columns, *hidden), "PARTITION-BY"),
            tuple(keys),
            "PARTITION-BY",
        )
        refs = [(n, x.ColumnRef(x.Side.VALUE, n, e.type)) for n, e in columns]
        root = p.Select(keyed, tuple(refs))
        key = tuple(Column(n, b.type) for n, b in zip(names, bound, strict=True))
        return self._bound(root, p.ResultKind.STREAM, key, columns, relation, items, window=None, has_new_key=True)

    def _span(self, clause: str) -> ast.Span:
        return self.query.clause_span(clause)

    # ---------------------------------------------------------------------------------------- GROUP BY

    def aggregated(self, relation: Relation) -> BoundQuery:
        query, library = self.query, self.context.functions
        self._check_aggregation(relation)
        groups = [canonical(e, relation.scope, "GROUP BY") for e in query.group_by or ()]
        group_binder = self.binder(relation.scope, "GROUP BY")
        for n, given in enumerate(query.group_by or ()):
            if query.window is not None:
                refuse_bounds(given, relation.scope)
            _refuse_calls(given, library, "GROUP BY")
            if groups[n] in groups[:n]:
                raise SyntaxFault(f"Duplicate GROUP BY expression: {expression_text(given)}", given.span)
        bound_groups = [group_binder.bind(e) for e in groups]
        items = self.items(relation)
        if query.having is not None and query.window is not None:
            refuse_bounds(query.having, relation.scope)
        having = None if query.having is None else canonical(query.having, relation.scope, "HAVING")
        calls = aggregate_calls([*(i.expression for i in items), *([having] if having else [])], library)
        if not calls and query.is_distinct:
            calls = [ast.Call("COUNT", (), is_star=True)]
        if not calls:
            raise StatementError(
                "GROUP BY requires aggregate functions in either the SELECT or HAVING clause.", query.clause_span("GROUP BY")
            )
        if query.window is not None:
            for arg in (arg for call in calls for arg in call.args):
                refuse_bounds(arg, relation.scope)
        aggregates = [
            bind_aggregate(c, n, self.binder(relation.scope, "SELECT"), self.context.properties) for n, c in enumerate(calls)
        ]
        if relation.is_table and query.window is not None:
            raise StatementError(
                "Windowing not supported for table aggregations. The rows of a table have no end; read the topic as a STREAM.",
                query.clause_span("WINDOW"),
            )
        if relation.is_table and self.target.needs_undo:
            without = [a.call.name for a in aggregates if not a.has_undo]
            if without:
                names = list(dict.fromkeys(without))
                some = f"function{'s' if len(names) > 1 else ''} {joined_names(names, 'and')}"
                raise StatementError(
                    f"The aggregation {some} cannot be applied to a table source, only to a stream source.",
                    query.clause_span("GROUP BY"),
                )
        compound = [c.name for c in calls if not library.aggregates[c.name].is_simple]
        if compound and relation.first.value_format.name == "DELIMITED":
            raise StatementError(
                "One of the functions used in the statement has an intermediate type that the value format can not handle. "
                f"Please remove the function or change the format. It is {', '.join(compound)}.",
                calls[0].span,
            )
        self._check_items(items, having, groups, relation)
        key_items = self._group_keys(groups, items, relation)
        names = _group_names(groups, key_items, items)
        window = None if query.window is None else _window(query.window, is_final=query.emit == "FINAL")
        if window is not None:
            relation = replace(relation, operator=_rows(relation.operator))
        operator, placed = _grouped(relation, groups, bound_groups, names, aggregates)
        emit = Emit.FINAL if query.emit == "FINAL" else self.context.emit
        root: p.Operator = p.Aggregate(operator, tuple(a.aggregation for a in placed), window, emit)
        after = self._after(groups, names, bound_groups, placed, window, relation)
        if having is not None:
            root = p.Filter(root, replace(after, clause="HAVING").condition(having), "HAVING")
        columns = self._bind_items([i for i in items if i not in key_items], after, taken=names if key_items else ())
        root = p.Select(root, tuple(columns))
        key = tuple(Column(n, b.type) for n, b in zip(names, bound_groups, strict=True))
        has_new_key = tuple(groups) != tuple(k.accepted[0] for k in relation.keys)
        return self._bound(root, p.ResultKind.TABLE, key, columns, relation, items, window=window, has_new_key=has_new_key)

    def _check_aggregation(self, relation: Relation) -> None:
        query, library = self.query, self.context.functions
        if query.group_by is None:
            call = aggregate_calls(self.expressions(), library)[0]
            shown = f"{call.name}(ROWTIME)" if call.is_star else expression_text(call)
            raise StatementError(
                f"{self.target.statement} statement does not support aggregate function [{shown}] without a GROUP BY clause.",
                call.span,
            )
        for e in self.expressions():
            for part in walk(e):
                if isinstance(part, ast.Call) and part.name in library.tables:
                    raise StatementError("Table functions cannot be used with aggregations.", part.span)
        kafka = [s.name for s in relation.sources if s.value_format.name == "KAFKA"]
        if kafka:
            raise StatementError(
                f"Source(s) {', '.join(kafka)} are using the 'KAFKA' value format. This format does not yet support GROUP BY.",
                query.clause_span("GROUP BY"),
            )

    def _check_items(
        self, items: Sequence[Item], having: ast.Expression | None, groups: Sequence[ast.Expression], relation: Relation
    ) -> None:
        """Refuse what is neither an aggregate nor made of the group's expressions."""
        known = WINDOW_COLUMNS if self.query.window is not None else ()
        selected = [i.expression for i in items]
        for e, clause in (*((e, "SELECT") for e in selected), *(((having, "HAVING"),) if having is not None else ())):
            for name in free_names(e):
                is_unit = name.source is None and name.name in UNITS_MS and relation.scope.find(name) is None
                if name.name not in known and not is_unit:
                    relation.scope.resolve(name, clause)
        library = self.context.functions

        def shown(expressions: Sequence[ast.Expression]) -> str:
            return ", ".join(expression_text(relation.scope.shown(e)) for e in expressions)

        wrong = [e for e in selected if any(_ungrouped(e, groups, library, known))]
        if wrong:
            raise StatementError(
                f"Non-aggregate SELECT expression(s) not part of GROUP BY: {shown(wrong)}\n"
                "Either add the column(s) to the GROUP BY or remove them from the SELECT.",
                wrong[0].span,
            )
        names = [] if having is None else list(dict.fromkeys(_ungrouped(having, groups, library, known)))
        if names:
            raise StatementError(
                f"Non-aggregate HAVING expression not part of GROUP BY: {shown(names)}\n"
                "Consider switching the HAVING clause to a WHERE clause before the GROUP BY.",
                names[0].span,
            )

    def _group_keys(self, groups: Sequence[ast.Expression], items: Sequence[Item], relation: Relation) -> list[Item]:
        if not self.target.is_persistent:
            return []
        keys = [KeyColumn((e,)) for e in groups]
        return find_keys(keys, items, relation.scope, sink=self.target.sink or "", clause="grouping expression")

    def _after(
        self,
        groups: Sequence[ast.Expression],
        names: Sequence[str],
        bound: Sequence[x.Expr],
        aggregates: Sequence[BoundAggregate],
        window: p.Windows | None,
        relation: Relation,
    ) -> Binder:
        """Return the binder of what stands behind the aggregation: groups are the key, calls are columns."""
        substitutions: dict[ast.Expression, x.Expr] = {a.call: a.column for a in aggregates}
        for e, name, b in zip(groups, names, bound, strict=True):
            substitutions[e] = x.ColumnRef(x.Side.KEY, name, b.type)
        visible = [Visible("", "ROWTIME", x.ColumnRef(x.Side.META, "ROWTIME", BIGINT), is_pseudo=True)]
        if window is not None:
            # Over windowed sources their names have been found as the sources' own; here they are the bounds of the new window.
            sources = {c.source for c in relation.scope.columns if c.name in WINDOW_COLUMNS} or {""}
            visible += [
                Visible(source, meta.value, x.ColumnRef(x.Side.META, meta.value, type), is_pseudo=True)
                for source in sorted(sources)
                for meta, type in WINDOW_COLUMNS.items()
            ]
        return replace(self.binder(Scope(tuple(visible)), "SELECT"), substitutions=substitutions, naming=relation.scope)


def _check_foreign_keys(keys: Sequence[KeyColumn], items: Sequence[Item], relation: Relation) -> None:
    """Refuse a foreign-key join without the key of its left table, which is that of the result."""
    selected = [i.expression for i in items]
    missing = [key.accepted[0] for key in keys if not any(e in selected for e in key.accepted)]
    if missing:
        shown = ", ".join(_quoted(e) for e in missing)
        plural = "s" if len(missing) > 1 else ""
        raise StatementError(
            "Primary key column missing in projection. For foreign-key table-table joins, the projection must include all "
            f"primary key columns from the left input table (`{relation.first.name}`). Missing column{plural}: {shown}."
        )


def _quoted(e: ast.Expression) -> str:
    assert isinstance(e, ast.Name)
    return f"`{e.name}`"


def _beside(items: Sequence[Item], keys: Sequence[Item]) -> list[Item]:
    """Return the items that are values: those beside the key. Raises StatementError for one with a key column's name."""
    values = [item for item in items if item not in keys]
    names = {key.name for key in keys}
    for item in values:
        if item.name in names:
            raise StatementError(
                f"Value columns clash with key columns: `{item.name}`; give one of them another name with AS", item.span
            )
    return values


def _named_key(columns: Sequence[Column], items: Sequence[Item]) -> tuple[Column, ...]:
    """Return the key columns under the names that the SELECT gives them."""
    if not items:
        return tuple(columns)
    return tuple(Column(item.name, column.type) for item, column in zip(items, columns, strict=True))


def _window_of(relation: Relation) -> p.Windows | None:
    window = relation.first.window
    return None if window is None else window.of_key()


def _refuse_later_bounds(where: ast.Expression, scope: Scope) -> None:
    """Refuse the bounds of the window that groups in WHERE, which is before it."""
    for part in walk(where):
        if isinstance(part, ast.Name) and part.name in WINDOW_COLUMNS and scope.find(part) is None:
            raise StatementError(f"Error in WHERE expression: Unknown column {part.name}.", part.span)


def _refuse_calls(e: ast.Expression, library: Library, clause: str) -> None:
    for part in walk(e):
        if isinstance(part, ast.Call) and part.name in library.tables:
            raise StatementError(f"Table functions cannot be used in the {clause} clause.", part.span)
        if isinstance(part, ast.Call) and part.name in library.aggregates:
            hint = " HAVING filters groups." if clause == "WHERE" else ""
            raise StatementError(
                f"{clause} does not support aggregate functions: {part.name} is an aggregate function.{hint}", part.span
            )


def _ungrouped(
    e: ast.Expression, groups: Sequence[ast.Expression], library: Library, known: Collection[str]
) -> Iterator[ast.Name]:
    """Yield the columns that stand outside aggregates and are not of the group. `known`: the bounds of its window."""
    if e in groups or isinstance(e, ast.Lambda) or (isinstance(e, ast.Call) and e.name in library.aggregates):
        return
    if isinstance(e, ast.Name):
        if e.name not in known:
            yield e
        return
    for child in children(e):
        yield from _ungrouped(child, groups, library, known)


def _group_names(groups: Sequence[ast.Expression], key_items: Sequence[Item], items: Sequence[Item]) -> list[str]:
    """Return the names of the key columns: as selected, else the column's own."""
    if key_items:
        return [i.name for i in key_items]
    names: list[str] = []
    for n, e in enumerate(groups):
        name = e.name if isinstance(e, ast.Name | ast.Dereference) else f"KSQL_KEY_{n}"
        names.append(name if name not in names else f"{name}_{n}")
    return names


def _calendar(window: ast.CalendarWindow) -> CalendarWindow:
    """Return a window of the calendar; without a grace of its own it closes with its last instant."""
    found = calendar_of(window.unit, window.zone, window.span)
    grace_ms = 0 if window.grace is None else window.grace.ms
    retention_ms = 0 if window.retention is None else window.retention.ms
    if window.retention is not None and retention_ms < LONGEST_MS[found.unit] + grace_ms:
        raise StatementError(
            f"The window retention period ({retention_ms} ms) is smaller than the longest {found.unit} plus grace period; make "
            "it longer",
            window.retention.span,
        )
    return replace(found, grace_ms=grace_ms, retention_ms=retention_ms)


def _window(window: ast.Window | ast.CalendarWindow, *, is_final: bool) -> p.Windows:
    """Return a window with its grace: as given, else so long that a record counts for a day, or none where one waits for it."""
    if isinstance(window, ast.CalendarWindow):
        return _calendar(window)
    size = window.size.ms
    advance = size if window.advance is None else window.advance.ms
    if size < 1 or advance < 1:
        raise StatementError("a window's SIZE and ADVANCE BY must be at least 1 millisecond", window.span)
    if advance > size:
        raise StatementError(
            f"ADVANCE BY ({advance} ms) must not be longer than SIZE ({size} ms): records between windows would be lost",
            window.span,
        )
    if size // advance > WINDOWS_MAX:
        raise StatementError(
            f"each record would be in {size // advance:,} windows of {size} ms by {advance} ms; at most {WINDOWS_MAX:,} are "
            "possible: make ADVANCE BY longer",
            window.span,
        )
    grace = window.grace.ms if window.grace is not None else 0 if is_final else max(DAY_MS - size, 0)
    retention = 0 if window.retention is None else window.retention.ms
    if window.retention is not None and retention < size + (window.grace.ms if window.grace else 0):
        raise StatementError(
            f"The window retention period ({retention} ms) is smaller than size plus grace period; make it longer",
            window.retention.span,
        )
    return SessionWindow(size, grace, retention) if window.kind == "SESSION" else TimeWindow(size, advance, grace, retention)


def _grouped(
    relation: Relation,
    groups: Sequence[ast.Expression],
    bound: Sequence[x.Expr],
    names: Sequence[str],
    aggregates: Sequence[BoundAggregate],
) -> tuple[p.Operator, list[BoundAggregate]]:
    """Return the input keyed by the groups, with the aggregates reading it: as it is if that is its key already."""
    is_same = [k.accepted[0] for k in relation.keys] == list(groups) and [c.name for c in relation.key_columns] == list(names)
    if is_same and len(relation.sources) == 1 and not relation.is_table and relation.first.window is None:
        return relation.operator, list(aggregates)
    columns: list[p.NamedExpr] = [(f"KSQL_KEY_{n}", b) for n, b in enumerate(bound)]
    placed: list[BoundAggregate] = []
    for aggregate in aggregates:
        refs: list[x.Expr] = []
        for arg in aggregate.aggregation.args:
            if isinstance(arg, x.Literal):
                refs.append(arg)
                continue
            name = next((n for n, e in columns if e == arg), None)
            if name is None:
                name = f"KSQL_ARG_{len(columns)}"
                columns.append((name, arg))
            refs.append(x.ColumnRef(x.Side.VALUE, name, arg.type))
        placed.append(replace(aggregate, aggregation=replace(aggregate.aggregation, args=tuple(refs))))
    if relation.is_table:
        keys = tuple(zip(names, bound, strict=True))
        read = {c.name for each in placed for arg in each.aggregation.args for c in column_refs(arg)}
        # A row of nothing would not be there: where no column is read, the key stands for the row.
        kept = [column for column in columns if column[0] in read] or columns[:1]
        return p.Regroup(relation.operator, keys, tuple(kept)), placed
    prepared: p.Operator = p.Select(relation.operator, tuple(columns), "GROUP-BY")
    if len(bound) > 1:
        prepared = p.Filter(prepared, _none_is_null(bound), "GROUP-KEYS")
    keys = tuple(
        (n, x.ColumnRef(x.Side.VALUE, f"KSQL_KEY_{i}", b.type)) for i, (n, b) in enumerate(zip(names, bound, strict=True))
    )
    return p.Rekey(prepared, keys, "GROUP-BY"), placed


def _rows(operator: p.Operator) -> p.Operator:
    """Return the records of a stream that are rows: one with a null value is in no window, and has no items."""
    return operator if isinstance(operator, p.Filter) else p.Filter(operator, x.Literal(True, BOOLEAN), "ROWS")


def _none_is_null(bound: Sequence[x.Expr]) -> x.Expr:
    """A record of which one group expression is null belongs to no group."""
    tests = [
        x.Unary(x.UnaryOp.IS_NOT_NULL, x.ColumnRef(x.Side.VALUE, f"KSQL_KEY_{n}", b.type), BOOLEAN) for n, b in enumerate(bound)
    ]
    test: x.Expr = tests[0]
    for each in tests[1:]:
        test = x.Binary(x.BinaryOp.AND, test, each, BOOLEAN)
    return test


# ------------------------------------------------------------------------------------------------ table functions


def _table_calls(expressions: Sequence[ast.Expression], library: Library, scope: Scope) -> list[ast.Call]:
    """Return the table function calls in order; two equal ones are two."""
    found: list[ast.Call] = []
    for e in expressions:
        for part in walk(e):
            if not isinstance(part, ast.Call) or part.name not in library.tables:
                continue
            within = [n for arg in part.args for n in walk(arg) if isinstance(n, ast.Call) and n.name in library.tables]
            if within:
                raise StatementError(f"Table functions cannot be nested: {part.name}({within[0].name}())", part.span)
            found.append(part)
        if isinstance(e, ast.SearchedCase | ast.SimpleCase) and any(c in found for c in walk(e)):
            raise StatementError("Table functions cannot be used in CASE: " + expression_text(scope.shown(e)), e.span)
    return found


def _table_function_list(call: ast.Call, binder: Binder) -> x.Expr:
    """Bind a table function to the expression of its list."""
    scalar = replace(binder, functions=binder.functions.extended(scalars=(binder.functions.tables[call.name],)))
    bound = scalar.bind(call)
    assert isinstance(bound, x.Call)
    return replace(bound, type=array(bound.type))
