"""Tables grouped by another key, on their way to an aggregate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from logflume.log import InvalidInput
from logflume.log.schemas import ANY, INTEGER, Column

from .. import graph as g
from ..expr import ColumnRef, Expr, Side
from . import aggregates as a
from .binding import Scope, bind
from .calling import call
from .face import Face
from .fields import Value
from .naming import Graph, slug
from .stream import Function, bind_keys
from .table import checked_emit

if TYPE_CHECKING:
    from .table import Table

_FIX = "pass name='...'"


@dataclass(frozen=True, slots=True)
class GroupedTable(metaclass=Face):
    """The rows of a table by another key, waiting for an aggregate. What is aggregated has to be undone when a row changes."""

    graph: Graph = field(repr=False)
    node: g.Regroup = field(repr=False)
    row: g.Schema = field(repr=False)
    base: str

    def aggregate(self, *plain: Any, name: str | None = None, emit: str = "commit", **columns: Any) -> Table:
        """Aggregate into named columns, or with functions of your own: `aggregate(init, add, subtract)`.

        `aggregate(n=lf.count(), total=lf.sum(col.price))`; min and max cannot be undone. `name`, `emit`: as in
        `Grouped.aggregate`.
        """
        if plain:
            if columns or len(plain) not in (1, 3):
                raise InvalidInput("aggregate() of a table takes named aggregates, or init, add and subtract")
            only = plain[0] if len(plain) == 1 else a.aggregate(plain[0], plain[1], subtract=plain[2])
            return self._aggregated("aggregate", {"value": only}, name, emit)
        if not columns:
            raise InvalidInput("aggregate() needs at least one aggregate: aggregate(n=lf.count())")
        return self._aggregated("-".join(columns), columns, name, emit)

    def count(self, *, name: str | None = None, emit: str = "commit") -> Table:
        """Number of rows per key, in a column `count`."""
        return self.aggregate(count=a.count(), name=name, emit=emit)

    def sum(self, value: Any, *, name: str | None = None, emit: str = "commit") -> Table:
        """Sum per key, in a column `sum`."""
        return self.aggregate(sum=a.sum(value), name=name, emit=emit)

    def mean(self, value: Any, *, name: str | None = None, emit: str = "commit") -> Table:
        """Mean per key, in a column `mean`."""
        return self.aggregate(mean=a.mean(value), name=name, emit=emit)

    def reduce(
        self,
        add: Callable[[Any, Any], Any],
        subtract: Callable[[Any, Any], Any],
        *,
        name: str | None = None,
        emit: str = "commit",
    ) -> Table:
        """Combine the rows of a key: the first as it is, then `add(aggregate, row)`; `subtract` takes a row out again."""
        return self._aggregated("reduce", {"value": a.reduce(add, subtract=subtract)}, name, emit)

    def top_n(self, n: int, by: Any, *, largest: bool = True, name: str | None = None, emit: str = "commit") -> Table:
        """Keep the `n` rows of a key with the largest (or smallest) values of `by`, as in `Grouped.top_n`; all are stored."""
        return self._aggregated("top_n", {"value": a.top_n(n, by, largest=largest)}, name, emit)

    def _aggregated(self, what: str, columns: dict[str, Any], name: str | None, emit: str) -> Table:
        from .table import Table

        scope = Scope(self.row, f"{self.base!r}")
        bound = tuple(a.bind_aggregate(column, wanted, scope, is_undone=True) for column, wanted in columns.items())
        for each in bound:
            if each.aggregator.undo is None:
                raise InvalidInput(
                    f"{each.aggregator.name}() cannot take back the row that a change replaces, as an aggregate of a table "
                    "has to: use one that can (count, sum, mean), or aggregate(init, add, subtract)"
                )
        if checked_emit(emit) is g.Emit.FINAL:
            raise InvalidInput("emit='final' needs a window, whose end makes a result final; a table's rows can always change")
        store = name or f"{self.base}-{slug(what)}"
        node = g.TableAggregate(
            name=store, schema=g.Schema(self.row.key, tuple(Column(x.name, x.aggregator.type) for x in bound)),
            kind=g.EdgeKind.TABLE, inputs=(self.node.name,), store=store, row=self.row, aggregations=bound, emit=g.Emit(emit),
        )  # fmt: skip
        return Table(self.graph, self.graph.add(node, fix=_FIX), store)


def regrouped(
    table: Table, keys: tuple[Value | Function, ...], value: Value | Function | None, type: Any, name: str | None
) -> GroupedTable:
    """Add the regrouping of a table."""
    columns = bind_keys(keys, type, "group_by()", table.scope())
    schema, values = _rows(table, value)
    row = replace(schema, key=tuple(Column(n, x.type) for n, x in columns), window=None)
    base = name or f"{table.base}-by-{'-'.join(slug(column) for column, _ in columns)}"
    doubled = tuple(Column(sign + c.name, c.type) for sign in "-+" for c in row.value)
    node = g.Regroup(
        name=base, schema=g.Schema(row.key, (Column(g.REGROUPED, INTEGER), *doubled)), kind=g.EdgeKind.STREAM,
        inputs=(table.node.name,), key=columns, columns=values,
    )  # fmt: skip
    table.graph.add(node, fix=_FIX)
    return GroupedTable(table.graph, node, row, base)


def _rows(table: Table, value: Value | Function | None) -> tuple[g.Schema, tuple[tuple[str, Expr], ...]]:
    """Return what the rows are in their groups."""
    schema = table.schema
    if value is None:
        return schema, tuple((c.name, ColumnRef(Side.VALUE, c.name, c.type)) for c in schema.value)
    expr = bind(value, table.scope()) if isinstance(value, Value) else call(value, "group_by(value=...)")
    return g.Schema(schema.key, (Column("value", expr.type if isinstance(value, Value) else ANY),)), (("value", expr),)
