"""Several grouped streams that are aggregated into one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from logflume.log import InvalidInput

from .. import graph as g
from . import aggregates as a
from .callables import expect_arguments
from .face import Face
from .naming import slug
from .table import Grouped, Table, aggregated, span_of


@dataclass(frozen=True, slots=True)
class Cogrouped(metaclass=Face):
    """Grouped streams with an aggregator each, over one aggregate.

    >>> import logflume.streams as lf
    >>> from logflume.streams.testing import TopologyTestDriver
    >>> app = lf.App("shop")
    >>> orders, returns = app.stream("orders", int).group_by_key(), app.stream("returns", int).group_by_key()
    >>> both = orders.cogroup(lambda balance, order: balance + order)
    >>> both = both.cogroup(returns, lambda balance, back: balance - back)
    >>> both.aggregate(0, name="balances").to("balances")
    >>> driver = TopologyTestDriver(app)
    >>> driver.input("orders").send(100, key="ann")
    >>> driver.input("returns").send(30, key="ann")
    >>> [record.value for record in driver.output("balances").read()]
    [100, 70]
    """

    inputs: tuple[tuple[Grouped, Callable[..., Any]], ...]
    over: g.Window | None = None

    def cogroup(self, grouped: Grouped, add: Callable[..., Any]) -> Cogrouped:
        """Add a grouped stream; `add(aggregate, value)` or `add(aggregate, value, key)` gives the next aggregate."""
        if not isinstance(grouped, Grouped):
            raise InvalidInput(f"cogroup() takes a grouped stream (group_by_key(), group_by(...)), found {grouped!r:.100}")
        expect_arguments(add, (2, 3), 2, "cogroup()")
        self.inputs[0][0].stream.graph.expect_own(grouped.stream.graph, repr(grouped.base))
        first = self.inputs[0][0].stream.schema.key
        if [c.type for c in grouped.stream.schema.key] != [c.type for c in first]:
            raise InvalidInput(
                f"cogroup() needs one type of key: {self.inputs[0][0].base!r} has {[str(c.type) for c in first]}, "
                f"{grouped.base!r} has {[str(c.type) for c in grouped.stream.schema.key]}"
            )
        return replace(self, inputs=(*self.inputs, (grouped, add)))

    def window(self, window: g.Window) -> Cogrouped:
        """Aggregate per window."""
        return replace(self, over=self.inputs[0][0].window(window).over)

    def aggregate(
        self, init: Any, *, merge: Callable[[Any, Any], Any] | None = None, name: str | None = None, emit: str = "commit"
    ) -> Table:
        """Aggregate all of them, from `init` (a value, or a callable that makes one); `merge` of two sessions is needed for
        those.

        `name`, `emit`: as in `Grouped.aggregate`.
        """
        bound = tuple(
            (a.bind_aggregate("value", a.aggregate(init, add, merge=merge), grouped.stream.scope()),)
            for grouped, add in self.inputs
        )
        base = "-".join(grouped.base for grouped, _ in self.inputs)
        store = name or f"{base}{span_of(self.over)}-{slug('aggregate')}"
        return aggregated([grouped.stream for grouped, _ in self.inputs], bound, store, emit, self.over, None)
