"""SELECT lists: stars spread out, names given, key columns found among the items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from logflume.log.schemas import Kind
from logflume.sql import ast
from logflume.sql.errors import StatementError
from logflume.sql.format import expression_text
from logflume.sql.tree import rewrite
from logflume.sql.words import joined_names
from logflume.streams.expr import Meta

from .expressions import Binder
from .scope import RESERVED_COLUMNS, WINDOW_COLUMNS, Scope, Visible


@dataclass(frozen=True, slots=True)
class Item:
    """One output column: its name and its expression, names in it canonical (source.column)."""

    name: str
    expression: ast.Expression
    has_alias: bool

    @property
    def span(self) -> ast.Span:
        return self.expression.span


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of the result's key: the expressions that may stand for it in the SELECT, best first. `is_synthetic`: ROWKEY.

    `sides`: what equals it where it is not null: the columns that FULL joins of tables were made on.
    """

    accepted: tuple[ast.Expression, ...]
    is_synthetic: bool = False
    sides: tuple[ast.Expression, ...] = ()


def canonical(e: ast.Expression, scope: Scope, clause: str, *, lambdas: frozenset[str] = frozenset()) -> ast.Expression:
    """Return the expression with every column name as source.column, so that equal meaning is equal text.

    Names that are no columns (time units, lambda parameters) stay; unknown ones are left for binding to refuse.
    """

    def change(node: ast.Expression) -> ast.Expression | None:
        if isinstance(node, ast.Name) and not (node.source is None and node.name in lambdas):
            found = scope.find(node)
            return None if found is None else ast.Name(found.name, found.source, span=node.span)
        if isinstance(node, ast.Lambda):
            inner = canonical(node.body, scope, clause, lambdas=lambdas | set(node.params))
            return ast.Lambda(node.params, inner, span=node.span)
        return None

    return rewrite(e, change)


def spread(
    items: Sequence[ast.SelectItem],
    scope: Scope,
    binder: Binder,
    leading: Sequence[ast.Expression] | None,
    *,
    has_bounds: bool = False,
) -> list[Item]:
    """Return the output columns of a SELECT list.

    `has_bounds`: * has the bounds of the windows behind the key, as what is shown has them; of a join it has them anyway.
    `leading`: expressions of a new key, which * puts in front, with the old key behind the values; None: the key stays.
    """
    is_rekeyed, leading = leading is not None, leading or ()
    clashing = _clashing(scope)
    taken: list[Item] = []
    generated = 0
    known = {c.name for c in scope.plain()}
    for item in items:
        if item.kind == "expr":
            assert item.expression is not None
            e = canonical(item.expression, scope, "SELECT")
            if item.alias is not None:
                _check_alias(item)
                taken.append(Item(item.alias, e, True))
            elif isinstance(e, ast.Name):
                name = f"{e.source}_{e.name}" if e.name in clashing and e.source is not None else e.name
                taken.append(Item(name, e, False))
            elif isinstance(e, ast.Dereference):
                taken.append(Item(_free(e.name, {i.name for i in taken} | known), e, False))
            else:
                while f"KSQL_COL_{generated}" in known:
                    generated += 1
                taken.append(Item(f"KSQL_COL_{generated}", e, False))
                generated += 1
        elif item.kind == "struct":
            taken.extend(_struct_fields(item, scope, binder))
        else:
            columns = scope.plain() if item.kind == "all" else scope.of_source(item.source or "", item.span)
            columns = [c for c in columns if c.source or c.is_key]  # not the synthetic key of a join before the last
            if is_rekeyed:
                columns = [c for c in columns if not c.is_key] + [c for c in columns if c.is_key]
            if item.kind == "all":
                for e in leading:
                    taken.append(Item(_leading_name(scope.shown(e), generated), e, True))
                    generated += not isinstance(e, ast.Name)
            if item.kind == "all" and not is_rekeyed and (has_bounds or scope.is_joined):
                columns = _with_bounds(columns, scope)
            for column in columns:
                e = ast.Name(column.name, column.source, span=item.span)
                if item.kind == "all" and e in leading:
                    continue
                taken.append(
                    Item(f"{column.source}_{column.name}" if scope.is_joined and column.source else column.name, e, False)
                )
    return taken


def _with_bounds(columns: Sequence[Visible], scope: Scope) -> list[Visible]:
    """Return columns with the bounds of each source's windows behind its key."""
    found: list[Visible] = []
    for source, group in groupby(columns, key=lambda c: c.source):
        own = list(group)
        keys = sum(c.is_key for c in own)
        bounds = [c for c in scope.columns if c.is_pseudo and c.source == source and c.name in (Meta.WINDOWSTART, Meta.WINDOWEND)]
        found += [*own[:keys], *bounds, *own[keys:]]
    return found


def _leading_name(e: ast.Expression, generated: int) -> str:
    if isinstance(e, ast.Name | ast.Dereference):
        return e.name
    return f"KSQL_COL_{generated}"


def _clashing(scope: Scope) -> set[str]:
    if not scope.is_joined:
        return set()
    names = [c.name for c in scope.columns]
    return {n for n in names if names.count(n) > 1}


def _check_alias(item: ast.SelectItem) -> None:
    if isinstance(item.expression, ast.Name) and item.expression.name == item.alias and item.alias in RESERVED_COLUMNS:
        raise StatementError(
            f"Reserved column name in select: `{item.alias}`. Please remove or alias the column.", item.expression.span
        )
    if item.alias in RESERVED_COLUMNS:
        raise StatementError(f"`{item.alias}` is a reserved column name. You cannot use it as an alias for a column.", item.span)


def _free(name: str, taken: set[str]) -> str:
    if name not in taken:
        return name
    number = 1
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"


def _struct_fields(item: ast.SelectItem, scope: Scope, binder: Binder) -> list[Item]:
    assert item.expression is not None
    e = canonical(item.expression, scope, "SELECT")
    type = binder.bind(e).type
    if type.kind is not Kind.STRUCT:
        what = f"Field {e.name}" if isinstance(e, ast.Dereference) else f"Column {expression_text(item.expression)}"
        raise StatementError(f"{what} is not a STRUCT type. '->*' takes the fields of a STRUCT, found {type}", item.span)
    return [Item(f.name, ast.Dereference(e, f.name, span=item.span), False) for f in type.fields]


def check_names(items: Sequence[Item], scope: Scope, *, has_window: bool) -> None:
    """Refuse pseudo-columns without an alias, as a stored result cannot have them. `has_window`: its bounds can be named."""
    for item in items:
        if item.has_alias or item.name not in RESERVED_COLUMNS:
            continue
        if isinstance(item.expression, ast.Name) and not (has_window and item.name in WINDOW_COLUMNS):
            scope.resolve(item.expression, "SELECT")
        raise StatementError(f"Reserved column name in select: `{item.name}`. Please remove or alias the column.", item.span)


def find_keys(keys: Sequence[KeyColumn], items: Sequence[Item], scope: Scope, *, sink: str, clause: str) -> list[Item]:
    """Return the item of each key column, in the key's order.

    `scope`: of the query's sources. `clause`: what made the key ('key column', 'grouping expression', ...), for messages.

    Raises:
        StatementError: a key column is not selected, or more than once.
    """
    found: list[Item] = []
    missing: list[KeyColumn] = []
    for key in keys:
        candidates = [[i for i in items if i.expression == e] for e in key.accepted]
        same = next((c for c in candidates if c), None)
        if same is None:
            missing.append(key)
        elif len(same) > 1:
            raise _repeated(same, clause)
        else:
            found.append(same[0])
    if missing:
        raise _missing(missing, scope, sink=sink, clause=clause)
    return found


def _repeated(same: Sequence[Item], clause: str) -> StatementError:
    names = sorted(i.name for i in same)
    if clause == "grouping expression":
        shown = " and ".join(f"`{n}`" for n in names)
        return StatementError(
            f"The projection contains a key column more than once: {shown}.\nUse AS_VALUE() for a copy.", same[1].span
        )
    first = same[0].expression
    shown_key = names[0]
    if isinstance(first, ast.Name):
        shown_key = f"{first.source}_{first.name}" if clause == "join expression" else first.name
    return StatementError(
        f"The projection contains a key column (`{shown_key}`) more than once, aliased as: {' and '.join(names)}.\n"
        "Each key column must only be in the projection once. If you intended to copy the key into the value, then consider "
        "using the AS_VALUE function to indicate which key reference should be copied.",
        same[1].span,
    )


def _missing(missing: Sequence[KeyColumn], scope: Scope, *, sink: str, clause: str) -> StatementError:
    if clause == "join expression":
        texts = [expression_text(e) for e in missing[0].accepted]
        joined = joined_names(texts, "or")
    else:
        texts = [expression_text(scope.shown(k.accepted[0])) for k in missing]
        joined = joined_names(texts, "and")
    plural = "s" if len(texts) > 1 else ""
    synthetic = ""
    if missing[0].is_synthetic:
        synthetic = (
            f"\n{texts[0]} was added as a synthetic key column because the join criteria did not match any source column. "
            "This expression must be included in the projection and may be aliased."
        )
    example = texts[0] if clause == "join expression" else ", ".join(texts)
    return StatementError(
        "Key missing from projection (ie, SELECT). See https://cnfl.io/2LV7ouS.\n"
        f"The query used to build `{sink}` must include the {clause}{plural} {joined} in its projection (eg, SELECT "
        f"{example}...).{synthetic}"
    )
