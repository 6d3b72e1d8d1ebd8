"""Tables, and streams grouped on their way to one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, overload

from logflume.log import InvalidInput
from logflume.log.schemas import Column, FormatSpec

from .. import graph as g
from ..expr import Expr
from . import aggregates as a
from .binding import Scope
from .callables import expect_arguments
from .calling import condition, foreach_node
from .face import Face, picture
from .fields import Value
from .naming import Graph, duration, slug
from .sinks import sink
from .steps import missing_step
from .stream import Function, On, Stream, bind_columns, single_value
from .typevars import K, R, V
from .windows import Duration, milliseconds

if TYPE_CHECKING:
    from .cogroups import Cogrouped
    from .grouped_table import GroupedTable
    from .suppress import UntilTimeLimit, UntilWindowCloses

_FIX = "pass name='...'"


@dataclass(frozen=True, slots=True)
class Grouped(Generic[K, V], metaclass=Face):
    """A stream by key, perhaps by window, waiting for an aggregate.

    >>> import logflume.streams as lf
    >>> from logflume.streams.testing import TopologyTestDriver
    >>> app = lf.App("shop")
    >>> hourly = app.stream("orders").group_by(lf.col.user.cast(str), name="by-user").window(lf.tumbling(hours=1))
    >>> hourly.aggregate(orders=lf.count(), spent=lf.sum(lf.col.price)).to("spent")
    >>> driver = TopologyTestDriver(app)
    >>> for price in (120, 8):
    ...     driver.input("orders").send({"user": "u1", "price": price}, timestamp_ms=3_600_000)
    >>> driver.output("spent").read()[-1].key
    WindowedKey(key='u1', start_ms=3600000, end_ms=7200000)
    >>> driver.store("by-user-1h-orders-spent").rows()[0].value
    {'orders': 2, 'spent': 128}
    """

    stream: Stream
    base: str
    over: g.Window | None = None

    if not TYPE_CHECKING:  # for it the names are those that there are

        def __getattr__(self, name: str) -> Any:
            raise missing_step(self, "a grouped stream", name)

    def window(self, window: g.Window) -> Grouped[Any, V]:
        """Aggregate per window: `window(lf.tumbling(hours=1, grace=lf.minutes(10)))`, or per `lf.session(minutes=30)`."""
        if not isinstance(window, g.Window):
            raise InvalidInput(
                "expected lf.tumbling(...), lf.hopping(...), lf.sliding(...), lf.session(...), lf.calendar(...) or "
                f"lf.unlimited(), found {window!r}"
            )
        return replace(self, over=window)

    def cogroup(self, add: Callable[..., Any]) -> Cogrouped:
        """Aggregate together with other grouped streams; `add(aggregate, value)` is for the values of this one."""
        from .cogroups import Cogrouped

        expect_arguments(add, (2, 3), 2, "cogroup()")
        if self.over is not None:
            raise InvalidInput("cogroup() comes before window(): the window is that of all its streams")
        return Cogrouped(((self, add),))

    def aggregate(
        self, *plain: Any, name: str | None = None, emit: str = "commit", ttl: Duration | None = None, **columns: Any
    ) -> Table[K, Any]:
        """Aggregate into named columns, or with functions of your own.

        `aggregate(n=lf.count(), delay=lf.mean(col.dep_delay))`, or `aggregate(init, add)` with `add(aggregate, value)` or
        `add(aggregate, value, key)`, whose results are the values themselves.

        Args:
            name: of the store (and so of its changelog topic).
            emit: "commit": the latest result of a key leaves once per task commit; "update": each result leaves at once;
                "final": the result of a window leaves once, when it closes (stream time passes its end and the grace).
            ttl: without a window: how long a key is kept behind its newest record, by stream time; then its row is deleted.
        """
        scope = self.stream.scope()
        if plain:
            if columns or len(plain) not in (1, 2):
                raise InvalidInput("aggregate() takes named aggregates, or init and a function")
            only = plain[0] if len(plain) == 1 else a.aggregate(*plain)
            return self._single("aggregate", only, name, emit, ttl)
        if not columns:
            raise InvalidInput("aggregate() needs at least one aggregate: aggregate(n=lf.count())")
        bound = tuple(a.bind_aggregate(column, wanted, scope) for column, wanted in columns.items())
        return self._aggregate("-".join(columns), bound, name, emit, None, ttl)

    def count(self, *, name: str | None = None, emit: str = "commit", ttl: Duration | None = None) -> Table[K, Any]:
        """Number of records per key, in a column `count`."""
        return self.aggregate(count=a.count(), name=name, emit=emit, ttl=ttl)

    def sum(self, value: Any, *, name: str | None = None, emit: str = "commit") -> Table[K, Any]:
        """Sum per key, in a column `sum`."""
        return self.aggregate(sum=a.sum(value), name=name, emit=emit)

    def mean(self, value: Any, *, name: str | None = None, emit: str = "commit") -> Table[K, Any]:
        """Mean per key, in a column `mean`."""
        return self.aggregate(mean=a.mean(value), name=name, emit=emit)

    def min(self, value: Any, *, name: str | None = None, emit: str = "commit") -> Table[K, Any]:
        """Smallest value per key, in a column `min`."""
        return self.aggregate(min=a.min(value), name=name, emit=emit)

    def max(self, value: Any, *, name: str | None = None, emit: str = "commit") -> Table[K, Any]:
        """Largest value per key, in a column `max`."""
        return self.aggregate(max=a.max(value), name=name, emit=emit)

    def reduce(
        self, function: Callable[[V, V], V], *, name: str | None = None, emit: str = "commit", ttl: Duration | None = None
    ) -> Table[K, V]:
        """Combine the values of a key: the first as it is, then `function(aggregate, value)`."""
        return self._single("reduce", a.reduce(function), name, emit, ttl)

    def top_n(self, n: int, by: Any, *, largest: bool = True, name: str | None = None, emit: str = "commit") -> Table[K, Any]:
        """Keep the `n` records of a key with the largest (or smallest) values of `by`, as a list, the first first.

        Ties stay in order of arrival; records where `by` is null do not count. Beside other aggregates: `lf.top_n(...)`.

        >>> import logflume.streams as lf
        >>> from logflume.streams.testing import TopologyTestDriver
        >>> app = lf.App("games")
        >>> app.stream("scores").group_by_key().top_n(2, by=lf.col.points).to("best")
        >>> driver = TopologyTestDriver(app)
        >>> for player, points in (("ann", 3), ("bob", 7), ("cid", 5)):
        ...     driver.input("scores").send({"player": player, "points": points}, key="chess")
        >>> [row["player"] for row in driver.output("best").read()[-1].value]
        ['bob', 'cid']
        """
        return self._single("top_n", a.top_n(n, by, largest=largest), name, emit, None)

    def _single(self, what: str, wanted: Any, name: str | None, emit: str, ttl: Duration | None) -> Table[K, Any]:
        bound = a.bind_aggregate("value", wanted, self.stream.scope())
        return self._aggregate(what, (bound,), name, emit, self.stream.schema.value_class if what == "reduce" else None, ttl)

    def _aggregate(
        self, what: str, bound: tuple[g.Aggregation, ...], name: str | None, emit: str, value_class: type[Any] | None,
        ttl: Duration | None,
    ) -> Table[K, Any]:  # fmt: skip
        store = name or f"{self.base}{span_of(self.over)}-{slug(what)}"
        return aggregated([self.stream], (bound,), store, emit, self.over, value_class, ttl)


def span_of(window: g.Window | None) -> str:
    """Return a window as part of a store's name."""
    match window:
        case g.TimeWindow():
            every = f"-every-{duration(window.advance_ms)}" if window.advance_ms != window.size_ms else ""
            return f"-{duration(window.size_ms)}{every}"
        case g.SlidingWindow():
            return f"-sliding-{duration(window.size_ms)}"
        case g.SessionWindow():
            return f"-session-{duration(window.gap_ms)}"
        case g.UnlimitedWindow():
            return "-unlimited"
        case g.CalendarWindow():
            return f"-{window.unit}"
    return ""


def checked_emit(emit: str) -> g.Emit:
    """Return when results leave."""
    if emit not in ("commit", "update", "final"):
        raise InvalidInput(f"emit={emit!r}: expected 'commit', 'update' or 'final'")
    return g.Emit(emit)


def aggregated(
    streams: list[Stream],
    bound: tuple[tuple[g.Aggregation, ...], ...],
    store: str,
    emit: str,
    over: g.Window | None,
    value_class: type[Any] | None,
    ttl: Duration | None = None,
) -> Table:
    """Add an aggregate of grouped streams, each with its own aggregations."""
    stream = streams[0]
    if over is not None and any(each.schema.window is not None for each in streams):
        raise InvalidInput("the key is windowed already: select_key(...) before another window")
    if isinstance(over, g.SessionWindow) and (without := [x.name for x in bound[0] if x.aggregator.merge is None]):
        raise InvalidInput(f"sessions merge, but {without[0]!r} does not say how: aggregate(init, add, merge=...)")
    schema = g.Schema(
        stream.schema.key,
        tuple(Column(x.name, x.aggregator.type) for x in bound[0]),
        window=over or stream.schema.window,
        value_class=value_class,
    )
    node = g.Aggregate(
        name=store, schema=schema, kind=g.EdgeKind.TABLE, inputs=tuple(each.node.name for each in streams), store=store,
        aggregations=bound[0], others=bound[1:], window=over, emit=checked_emit(emit),
        ttl_ms=None if ttl is None else milliseconds(ttl),
    )  # fmt: skip
    return Table(stream.graph, stream.graph.add(node, fix=_FIX), store)


@dataclass(frozen=True, slots=True)
class Table(Generic[K, V], metaclass=Face):
    """Rows by key, changing over time.

    >>> import logflume.streams as lf
    >>> from logflume.streams.testing import TopologyTestDriver
    >>> app = lf.App("shop")
    >>> users = app.table("users")
    >>> users.filter(lf.col.country == "DE").select(name=lf.col.name).to("germans")
    >>> driver = TopologyTestDriver(app)
    >>> driver.input("users").send({"name": "Ann", "country": "DE"}, key="u1")
    >>> driver.input("users").send({"name": "Ann", "country": "FR"}, key="u1")
    >>> [record.value for record in driver.output("germans").read()]
    [{'name': 'Ann'}, None]
    """

    graph: Graph = field(repr=False)
    node: g.Node = field(repr=False)
    base: str

    if not TYPE_CHECKING:  # for it the names are those that there are

        def __getattr__(self, name: str) -> Any:
            raise missing_step(self, "a table", name)

    def _repr_svg_(self) -> str:
        return picture(self.graph, self.node)

    @property
    def schema(self) -> g.Schema:
        """Columns of the key and the value."""
        return self.node.schema

    @overload
    def filter(self, predicate: Value | Callable[[V], Any], *, store: str | None = None) -> Table[K, V]: ...

    @overload
    def filter(self, predicate: Callable[[K, V], Any], *, store: str | None = None) -> Table[K, V]: ...

    def filter(self, predicate: Value | Callable[[V], Any] | Callable[[K, V], Any], *, store: str | None = None) -> Table[K, V]:
        """Keep rows for which the condition is True; a row that stops passing goes out as deleted. `store` keeps the result."""
        test = condition(predicate, self.scope(), "filter()")
        name = self.graph.free(f"{self.node.name}-filter")
        common: dict[str, Any] = {"schema": self.schema, "kind": self.node.kind, "inputs": (self.node.name,)}
        return self._then(g.Filter(name=store or name, predicate=test, store=store, **common))

    def select(self, *columns: Value, store: str | None = None, **named: Any) -> Table[K, Any]:
        """Make the rows of these columns; key columns and `lf.window_start` can be among them."""
        bound = bind_columns(columns, named, self.scope())
        schema = replace(self.schema, value=tuple(Column(n, x.type) for n, x in bound.items()), value_class=None)
        name = self.graph.free(f"{self.node.name}-select")
        return self._view(store or name, schema, tuple(bound.items()), store)

    @overload
    def map_values(self, function: Value, *, store: str | None = None) -> Table[K, Any]: ...

    @overload
    def map_values(self, function: Callable[[V], R], *, store: str | None = None) -> Table[K, R]: ...

    @overload
    def map_values(self, function: Callable[[K, V], R], *, store: str | None = None) -> Table[K, R]: ...

    def map_values(self, function: Value | Function, *, store: str | None = None) -> Table[K, Any]:
        """Replace each row by `function(row)` or `function(key, row)`, or by one expression; deleted rows stay deleted."""
        expr, column, value_class = single_value(function, self.scope(), "map_values()")
        schema = replace(self.schema, value=(column,), value_class=value_class)
        name = self.graph.free(f"{self.node.name}-map")
        return self._view(store or name, schema, (("value", expr),), store)

    def _view(self, name: str, schema: g.Schema, columns: tuple[tuple[str, Expr], ...], store: str | None) -> Table[K, Any]:
        common: dict[str, Any] = {"schema": schema, "kind": self.node.kind, "inputs": (self.node.name,)}
        return self._then(g.Project(name=name, columns=columns, store=store, **common))

    def group_by(
        self, *keys: Value | Function, value: Value | Function | None = None, key: Any = None, name: str | None = None
    ) -> GroupedTable:
        """Group the rows by columns or a function's result: what follows is computed over the rows that are there.

        `value`: what the rows are in their groups, as in `map_values`. `key`, `name`: as in `Stream.group_by`.

        >>> import logflume.streams as lf
        >>> from logflume.streams.testing import TopologyTestDriver
        >>> app = lf.App("users")
        >>> app.table("users").group_by(lf.col.city.cast(str)).count(name="cities", emit="update").to("cities")
        >>> driver = TopologyTestDriver(app)
        >>> for city in ("Rome", "Oslo"):
        ...     driver.input("users").send({"city": city}, key="ann")
        >>> [(record.key, record.value["count"]) for record in driver.output("cities").read()]
        [('Rome', 1), ('Rome', 0), ('Oslo', 1)]
        """
        from .grouped_table import regrouped

        return regrouped(self, keys, value, key, name)

    def join(
        self,
        table: Table,
        joiner: Function | None = None,
        *,
        on: On | None = None,
        prefix: str = "",
        store: str | None = None,
        name: str | None = None,
    ) -> Table:
        """Join the rows of two tables: by key, or by the key that a row of this one names (`on`, a foreign key).

        Args:
            joiner: `joiner(row, other)` or `joiner(key, row, other)`; without it the result has the columns of both.
            on: the other table's key, by columns or a function of this table's rows.
            prefix: in front of the names of the other table's columns.
            store: keeps the result under this name.
            name: of the join.
        """
        return self._join(g.JoinKind.INNER, table, joiner, on, prefix, store, name)

    def left_join(
        self,
        table: Table,
        joiner: Function | None = None,
        *,
        on: On | None = None,
        prefix: str = "",
        store: str | None = None,
        name: str | None = None,
    ) -> Table:
        """Join as in `join`, with nulls where the other table has no row."""
        return self._join(g.JoinKind.LEFT, table, joiner, on, prefix, store, name)

    def outer_join(
        self,
        table: Table,
        joiner: Function | None = None,
        *,
        prefix: str = "",
        store: str | None = None,
        name: str | None = None,
    ) -> Table:
        """Join by key as in `join`, with nulls where either table has no row."""
        return self._join(g.JoinKind.OUTER, table, joiner, None, prefix, store, name)

    def _join(
        self, kind: g.JoinKind, table: Table, joiner: Function | None, on: On | None, prefix: str, store: str | None,
        name: str | None,
    ) -> Table:  # fmt: skip
        from .table_joins import foreign_key_join, table_join

        if not isinstance(table, Table):
            raise InvalidInput(f"a table joins a table, found {type(table).__name__} (to_table() makes one of a stream)")
        self.graph.expect_own(table.graph, repr(table.base))
        if on is not None:
            return foreign_key_join(self, kind, table, joiner, on, prefix, store, name)
        return table_join(self, kind, table, joiner, prefix, store, name)

    def suppress(self, until: UntilWindowCloses | UntilTimeLimit, *, name: str | None = None) -> Table[K, V]:
        """Hold changes back: `suppress(lf.until_window_closes())`, `suppress(lf.until_time_limit(lf.minutes(1)))`.

        Time is that of the records: without new ones nothing leaves. `name`: of the buffer's store.
        """
        from .suppress import suppressed

        return suppressed(self, until, name)

    def late(self, *, name: str | None = None) -> Stream:
        """The records that a windowed aggregate did not count because all their windows were closed, as they came.

        >>> import logflume.streams as lf
        >>> from logflume.streams.testing import TopologyTestDriver
        >>> app = lf.App("clicks")
        >>> hourly = app.stream("clicks").group_by_key().window(lf.tumbling(hours=1)).count()
        >>> hourly.late().to("late")
        >>> driver = TopologyTestDriver(app)
        >>> for time_ms in (1, 3_600_000, 2):
        ...     driver.input("clicks").send({"page": "/"}, key="ann", timestamp_ms=time_ms)
        >>> driver.output("late").read()
        [TestRecord(key='ann', value={'page': '/'}, timestamp_ms=2)]
        """
        node = self.node
        if not isinstance(node, g.Aggregate) or (node.window is None and node.ttl_ms is None):
            raise InvalidInput(f"late() is of a windowed aggregate itself (window(...).count().late()); {self.base!r} is none")
        schemas = {self.graph.nodes[source].schema for source in node.inputs}
        if len(schemas) > 1:
            raise InvalidInput("late() of a cogroup needs streams of the same columns")
        base = name or f"{self.base}-late"
        late = g.Late(name=base, schema=schemas.pop(), kind=g.EdgeKind.STREAM, inputs=(node.name,))
        return Stream(self.graph, self.graph.add(late, fix=_FIX), base)

    def to_stream(self) -> Stream[K, V]:
        """The changes as a stream of new rows, deletions included."""
        name = self.graph.free(f"{self.node.name}-stream")
        node = g.ToStream(name=name, schema=self.schema, kind=g.EdgeKind.STREAM, inputs=(self.node.name,))
        return Stream(self.graph, self.graph.add(node, fix=_FIX), self.base)

    def foreach(self, function: Function) -> None:
        """Call `function(row)`, `function(key, row)` or `function(key, row, timestamp_ms)` for each change."""
        self.graph.add(foreach_node(self.graph, self.node, function, "foreach()"), fix=_FIX)

    def to(
        self,
        topic: str | Value | Function,
        *,
        topics: Sequence[str] = (),
        format: str | FormatSpec | None = None,
        key_format: str | FormatSpec | None = None,
        partitions: int | None = None,
        **configs: str,
    ) -> None:
        """Write the changes to a topic, created if missing: compacted, unless `cleanup_policy` differs or rows are windowed.

        `topic` may be computed from the row, as in `Stream.to`; a deleted row has none, unless it follows from the key.
        """
        defaults = {} if self.schema.window else {"cleanup.policy": "compact"}
        sink(self.graph, self.node, topic, topics, format, key_format, partitions, defaults | configs)

    def scope(self) -> Scope:
        """Where the names of expressions are looked up."""
        return Scope(self.schema, f"{self.base!r}")

    def _then(self, node: g.Node) -> Table[K, V]:
        return Table(self.graph, self.graph.add(node, fix=_FIX), self.base)


@dataclass(frozen=True, slots=True)
class GlobalTable(metaclass=Face):
    """Rows by key that every task has all of, whatever its partition: streams join it by any key."""

    graph: Graph = field(repr=False)
    node: g.Source = field(repr=False)
    base: str

    @property
    def schema(self) -> g.Schema:
        """Columns of the key and the value."""
        return self.node.schema
