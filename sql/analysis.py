"""EXPLAIN ANALYZE: what the steps of a query that runs put out, in all and while one looks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from logflume.log import near_matches
from logflume.log.schemas import BIGINT, DOUBLE, STRING, Column
from logflume.streams.runtime import EngineStatus

from . import ast
from .errors import StatementError
from .results import Rows

WATCHED_S = 1.0
"""How long rates are counted over."""
_COLUMNS = (Column("STEP", STRING), Column("ROWS OUT", BIGINT), Column("ROWS/S", DOUBLE))


def analyzed(
    s: ast.Explain,
    known: Iterable[str],
    status: Callable[[], EngineStatus | None],
    *,
    may_read: Callable[[str], bool],
    wait: Callable[[float], object],
    monotonic_s: Callable[[], float],
) -> Rows:
    """Look at a query twice and tell of its steps, in the order in which rows go through them.

    `may_read`: whether who asks may read a topic; a record that was left out is shown to no others.

    Raises:
        StatementError: there is no such query, or nobody on this machine counts its steps.
    """
    query_id = s.query_id or ""
    if query_id not in known:
        near = near_matches(query_id, known)
        hint = f" Did you mean {' or '.join(near)}?" if near else " SHOW QUERIES lists what runs."
        raise StatementError(f"Query with id:{query_id} does not exist.{hint}", s.span)
    before, since_s = _counts(status()), monotonic_s()
    wait(WATCHED_S)
    found = status()
    elapsed_s = max(monotonic_s() - since_s, 1e-3)
    if found is None or not found.tasks:
        cause = f": {found.error}" if found is not None and found.error else "; SHOW QUERIES tells its state"
        raise StatementError(f"query {query_id} has no steps that are counted on this machine{cause}", s.span)
    counts = _counts(found)
    rows = [(step, count, round((count - before.get(step, 0)) / elapsed_s, 1)) for step, count in counts.items()]
    dropped = (
        "; ".join(f"{each} (the first: {each.first})" if may_read(each.topic) else str(each) for each in found.left_out) or "none"
    )
    note = (
        f"{str(found.state).upper()}, {len(found.tasks)} tasks; in {found.records_in}, out {found.records_out}, "
        f"lag {'unknown' if found.lag_records is None else found.lag_records}, left out: {dropped}; "
        f"{sum(task.entries_in_memory for task in found.tasks)} entries of state in memory; task commits {found.commit.commits}, "
        f"p50 {found.commit.latency_p50_ms:.1f} ms"
    )
    return Rows(f"EXPLAIN ANALYZE {query_id}", _COLUMNS, tuple(rows), note)


def _counts(status: EngineStatus | None) -> dict[str, int]:
    """Return the rows that left each step, over all tasks."""
    total: Counter[str] = Counter()
    for task in () if status is None else status.tasks:
        for step, count in task.nodes.items():
            total[step] += count
    return dict(total)
