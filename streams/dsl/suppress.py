"""Holding changes of a table back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from logflume.log import InvalidInput

from .. import graph as g
from .windows import milliseconds

if TYPE_CHECKING:
    from .table import Table


@dataclass(frozen=True, slots=True)
class UntilWindowCloses:
    """See `until_window_closes`."""

    max_records: int | None
    max_bytes: int | None


@dataclass(frozen=True, slots=True)
class UntilTimeLimit:
    """See `until_time_limit`."""

    wait_ms: int
    max_records: int | None
    max_bytes: int | None
    when_full: g.WhenFull


def until_window_closes(*, max_records: int | None = None, max_bytes: int | None = None) -> UntilWindowCloses:
    """One result per window and key: the last, when no record can change it any more (its end and the grace are over).

    With a bound the application stops when more than that is held back: nothing may leave early here.
    """
    return UntilWindowCloses(_bound("max_records", max_records), _bound("max_bytes", max_bytes))


def until_time_limit(
    wait: float, *, max_records: int | None = None, max_bytes: int | None = None, when_full: str = "emit_early"
) -> UntilTimeLimit:
    """At most one change of a key per `wait` (ms): the latest leaves that long after the first that was held back.

    With a bound, "emit_early" lets the oldest out when more than that is held back, "shut_down" stops the application.

    >>> until_time_limit(60_000, max_records=1000).when_full
    <WhenFull.EMIT_EARLY: 'emit_early'>
    """
    if when_full not in ("emit_early", "shut_down"):
        raise InvalidInput(f"when_full={when_full!r}: expected 'emit_early' or 'shut_down'")
    bounds = (_bound("max_records", max_records), _bound("max_bytes", max_bytes))
    return UntilTimeLimit(milliseconds(wait), *bounds, g.WhenFull(when_full))


def _bound(name: str, value: int | None) -> int | None:
    if value is not None and value < 0:
        raise InvalidInput(f"{name} is a number of records or bytes, 0 or more, found {value}")
    return value


def suppressed(table: Table, until: UntilWindowCloses | UntilTimeLimit, name: str | None) -> Table:
    """Add the buffer behind a table."""
    from .table import Table

    if not isinstance(until, UntilWindowCloses | UntilTimeLimit):
        raise InvalidInput(f"suppress() takes lf.until_window_closes() or lf.until_time_limit(ms), found {until!r}")
    if isinstance(until, UntilWindowCloses) and table.schema.window is None:
        raise InvalidInput("until_window_closes() needs a windowed table: window(...) before the aggregate")
    if isinstance(until, UntilWindowCloses) and isinstance(table.schema.window, g.UnlimitedWindow):
        raise InvalidInput("an unlimited window never closes: until_window_closes() would never let anything out")
    store = name or f"{table.node.name}-suppress"
    node = g.Suppress(
        name=store, schema=table.schema, kind=g.EdgeKind.TABLE, inputs=(table.node.name,), store=store,
        wait_ms=until.wait_ms if isinstance(until, UntilTimeLimit) else None,
        max_records=until.max_records, max_bytes=until.max_bytes,
        when_full=until.when_full if isinstance(until, UntilTimeLimit) else g.WhenFull.SHUT_DOWN,
    )  # fmt: skip
    return Table(table.graph, table.graph.add(node, fix="pass name='...'"), table.base)
