"""What a service may switch off of pull queries: reading whole tables, ranges of keys, LIMIT (the rules of ksqlDB)."""

from __future__ import annotations

from collections.abc import Iterator

from logflume.log.schemas import Kind

from . import ast
from .binding.context import Context
from .catalog import SourceInfo
from .errors import StatementError
from .properties import LIMIT_CLAUSE, RANGE_SCAN, TABLE_SCAN
from .tree import names_in, split_conjuncts

_RANGE = ("<", "<=", ">", ">=")
_ADVICE = f"or SET '{TABLE_SCAN}' = 'true'. Add EMIT CHANGES if you intended to issue a push query."


def check_limit(query: ast.Query, context: Context) -> None:
    """Refuse LIMIT where it is switched off."""
    if query.limit is not None and not _is_on(LIMIT_CLAUSE, context):
        raise StatementError(
            f"LIMIT clause in pull queries is currently disabled. You can enable them by setting {LIMIT_CLAUSE}=true.",
            query.clause_span("LIMIT"),
        )


def check_scan(query: ast.Query, source: SourceInfo, context: Context, *, has_keys: bool) -> None:
    """Refuse a read of a table that needs more than a look-up of keys, where that is switched off."""
    if _is_on(TABLE_SCAN, context):
        return
    span = query.span if query.where is None else query.where.span
    keys = {c.name for c in source.key}
    about = [part for part in _conditions(query.where) if keys & {name.name for name in names_in(part)}]
    if query.where is None:
        raise StatementError(f"Missing WHERE clause. Query requires table scan to be enabled: give the keys, {_ADVICE}", span)
    if len(about) > len(keys):
        raise StatementError(
            "A comparison condition on the key column cannot be combined with other comparisons such as an IN predicate; give "
            f"each key once, {_ADVICE}",
            span,
        )
    if has_keys:
        return
    if len(keys) > 1:
        raise StatementError(f"Multi-column sources must specify every key in the WHERE clause, {_ADVICE}", span)
    if not about:
        raise StatementError(f"WHERE clause missing key column for disjunct: name {', '.join(keys)}, {_ADVICE}", span)
    if all(isinstance(part, ast.Binary) and part.op in _RANGE for part in about):
        if source.key[0].type.kind not in (Kind.STRING, Kind.BYTES):
            raise StatementError(
                f"Ranges of keys are read of STRING and BYTES only. Bound on key columns must be '=', {_ADVICE}", span
            )
        if _is_on(RANGE_SCAN, context):
            return
        raise StatementError(f"Query requires table scan to be enabled: it asks for a range of keys; give them, {_ADVICE}", span)
    raise StatementError(
        f"Bound on key columns '{', '.join(keys)}' must currently be '=' or IN, between a key column and a value, {_ADVICE}", span
    )


def _conditions(where: ast.Expression | None) -> Iterator[ast.Expression]:
    return iter(()) if where is None else iter(split_conjuncts(where))


def _is_on(name: str, context: Context) -> bool:
    return context.property(name, "true").lower() != "false"
