"""CREATE OR REPLACE ... AS: which changes of a running query keep its state and what others read of it (the rules of ksqlDB)."""

from __future__ import annotations

from collections.abc import Iterator

from . import plan as p
from .ast import Span
from .definitions import check_replacement
from .errors import StatementError
from .planner import PlannedQuery


def check_replaceable(old: PlannedQuery, new: PlannedQuery, span: Span, *, is_beside: bool) -> None:
    """Refuse a replacement that readers could not follow; unless it was computed beside the old query, or the state neither."""
    if not is_beside:
        check_query_replacement(old, new, span)
    elif old.sink is not None and new.sink is not None:
        check_replacement(old.sink, new.sink, span)


def check_query_replacement(old: PlannedQuery, new: PlannedQuery, span: Span) -> None:
    """Refuse a replacement that the state or the readers of a query could not follow.

    A filter may come, go or change, and columns be added at the end. Everything that keeps state must stay as it is.

    Raises:
        StatementError: naming what changed.
    """
    assert old.sink is not None
    if new.sink is None:
        raise StatementError(f"Cannot upgrade data source: `{old.sink.name}`", span)
    check_replacement(old.sink, new.sink, span)
    if old.plan.sources != new.plan.sources:
        raise StatementError(
            f"Cannot upgrade data source: `{old.sink.name}`: it reads {', '.join(old.plan.sources)}, the new one "
            f"{', '.join(new.plan.sources)}",
            span,
        )
    before, after = list(_fixed(old.plan.root)), list(_fixed(new.plan.root))
    for operator in before + after:
        if isinstance(operator, p.Aggregate) and operator.window is not None:
            raise StatementError(f"Upgrades not yet supported for windowed aggregations: `{old.sink.name}`", span)
        if not isinstance(operator, p.Scan | p.Rekey | p.Explode | p.Aggregate):
            raise StatementError(f"Upgrades not yet supported for joins: `{old.sink.name}`", span)
    if [_meaning(o) for o in before] != [_meaning(o) for o in after]:
        raise StatementError(
            f"Cannot upgrade data source: `{old.sink.name}`: what is grouped, aggregated or exploded may not change, only "
            "WHERE and columns at the end. DROP it and create it again to compute it anew",
            span,
        )


def _fixed(root: p.Operator) -> Iterator[p.Operator]:
    """Yield the operators that must stay."""
    return (o for o in p.operators(root) if not isinstance(o, p.Filter | p.Select))


def _meaning(operator: p.Operator) -> tuple[object, ...]:
    """Return what of an operator decides what its state and its keys mean."""
    match operator:
        case p.Scan(source):
            return "SCAN", source.name
        case p.Rekey(_, keys):
            return "KEY", keys
        case p.Explode(_, columns):
            return "EXPLODE", columns
        case p.Aggregate(_, aggregations):
            return "AGGREGATE", tuple((a.name, a.aggregator.type, a.args) for a in aggregations), operator.emit
    return (type(operator).__name__,)
