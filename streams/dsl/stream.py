"""Streams as a user builds them: each method adds a node to the graph and returns what comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, overload

from logflume.log import InvalidInput
from logflume.log.schemas import ANY, BOOLEAN, Column, DataType, FormatSpec, is_object_class

from .. import graph as g
from ..expr import Cast, ColumnRef, Expr, Index, Literal, Side, Unary, UnaryOp
from ..planner import internal_format
from .binding import Scope, bind
from .callables import Items, Pair, Pairs, returned_type
from .calling import call, condition, foreach_node
from .face import Face, picture
from .fields import Field, Value
from .naming import Graph, slug
from .schemas import PRIMITIVES, is_single, key_columns, key_format, value_format
from .sinks import check_partitions, sink
from .steps import missing_step
from .typevars import K, R, V
from .windows import Duration

if TYPE_CHECKING:
    from ..processors import Processor
    from .processing import ProcessorStore
    from .table import GlobalTable, Grouped, Table

Function = Callable[..., Any]
On = Value | Function | tuple[Value | Function, ...]
_VALUE = ColumnRef(Side.VALUE, "value", ANY)
_FIX = "pass name='...'"


class Within(NamedTuple):
    """The times of a join as its caller gave them, in ms."""

    within: Duration | None
    before: Duration | None
    after: Duration | None
    grace: Duration | None


@dataclass(frozen=True, slots=True)
class Stream(Generic[K, V], metaclass=Face):
    """A stream of independent records with keys K and values V, where they are known.

    Immutable: methods return new streams, and one stream may be used many times.

    Attributes:
        base: what its records are, for names of stores and internal topics.

    >>> import logflume.streams as lf
    >>> from logflume.streams.testing import TopologyTestDriver
    >>> app = lf.App("shop")
    >>> orders, users = app.stream("orders"), app.table("users")
    >>> big, small = orders.split(lf.col.price > 100)
    >>> big.join(users, on=lf.col.user).select(who=lf.col.name, price=lf.col.price).to("big")
    >>> small.map_values(lambda order: order["price"]).to("small")
    >>> driver = TopologyTestDriver(app)
    >>> driver.input("users").send({"name": "Ann"}, key="u1")
    >>> driver.input("orders").send({"user": "u1", "price": 120})
    >>> driver.input("orders").send({"user": "u1", "price": 8})
    >>> driver.output("big").read()
    [TestRecord(key='u1', value={'who': 'Ann', 'price': 120}, timestamp_ms=0)]
    >>> driver.output("small").read()[0].value
    8
    """

    graph: Graph = field(repr=False)
    node: g.Node = field(repr=False)
    base: str

    if not TYPE_CHECKING:  # for it the names are those that there are

        def __getattr__(self, name: str) -> Any:
            raise missing_step(self, "a stream", name)

    def _repr_svg_(self) -> str:
        return picture(self.graph, self.node)

    @property
    def schema(self) -> g.Schema:
        """Columns of the key and the value."""
        return self.node.schema

    @overload
    def filter(self, predicate: Value | Callable[[V], Any]) -> Stream[K, V]: ...

    @overload
    def filter(self, predicate: Callable[[K, V], Any]) -> Stream[K, V]: ...

    def filter(self, predicate: Value | Callable[[V], Any] | Callable[[K, V], Any]) -> Stream[K, V]:
        """Keep records for which the condition is True: `filter(col.delay > 15)` or `filter(lambda value: ...)`."""
        return self._filter(condition(predicate, self.scope(), "filter()"))

    @overload
    def filter_not(self, predicate: Value | Callable[[V], Any]) -> Stream[K, V]: ...

    @overload
    def filter_not(self, predicate: Callable[[K, V], Any]) -> Stream[K, V]: ...

    def filter_not(self, predicate: Value | Callable[[V], Any] | Callable[[K, V], Any]) -> Stream[K, V]:
        """Keep records for which the condition is not True."""
        return self._filter(Unary(UnaryOp.IS_NOT_TRUE, condition(predicate, self.scope(), "filter_not()"), BOOLEAN))

    def _filter(self, predicate: Expr) -> Stream[K, V]:
        name = self.graph.free(f"{self.node.name}-filter")
        return self.then(
            g.Filter(name=name, schema=self.schema, kind=self.node.kind, inputs=(self.node.name,), predicate=predicate)
        )

    def split(self, *predicates: Value | Function) -> tuple[Stream[K, V], ...]:
        """Return one stream per condition, and one more for the rest: a record goes to the first whose condition is True.

        A condition is asked once about a record that no earlier one has taken. A record for which one fails is in no branch.
        """
        if not predicates:
            raise InvalidInput("split() needs at least one condition")
        tests = tuple(condition(predicate, self.scope(), "split()") for predicate in predicates)
        common: dict[str, Any] = {"schema": self.schema, "kind": self.node.kind}
        name = self.graph.free(f"{self.node.name}-split")
        made = self.then(g.Split(name=name, inputs=(self.node.name,), predicates=tests, **common))
        return tuple(
            made.then(g.Branch(name=self.graph.free(f"{name}-{label}"), inputs=(name,), number=number, **common))
            for number, label in [*enumerate(range(1, len(tests) + 1)), (g.REST, "rest")]
        )

    def select(self, *columns: Value, **named: Any) -> Stream[K, Any]:
        """Make the value of these columns: `select(col.id, price=col.price * 1.2)`."""
        return self._project(bind_columns(columns, named, self.scope()))

    def with_columns(self, **named: Any) -> Stream[K, Any]:
        """Add columns to the value, or replace those of the same name."""
        if g.is_bare(self.schema):
            raise InvalidInput("with_columns() needs named columns; give the source a class, or use map_values(function)")
        kept: dict[str, Expr] = {c.name: ColumnRef(Side.VALUE, c.name, c.type) for c in self.schema.value}
        kept |= bind_columns((), named, self.scope())
        return self._project(kept)

    @overload
    def map_values(self, function: Value) -> Stream[K, Any]: ...

    @overload
    def map_values(self, function: Callable[[V], R]) -> Stream[K, R]: ...

    @overload
    def map_values(self, function: Callable[[K, V], R]) -> Stream[K, R]: ...

    def map_values(self, function: Value | Function) -> Stream[K, Any]:
        """Replace the value by `function(value)` or `function(key, value)`, or by one expression; the key stays.

        A function annotated to return a class gives its fields to the expressions that follow.
        """
        return self._single(function, "map_values()")

    def _project(self, columns: dict[str, Expr]) -> Stream[K, Any]:
        schema = replace(self.schema, value=tuple(Column(n, x.type) for n, x in columns.items()), value_class=None)
        name = self.graph.free(f"{self.node.name}-select")
        return self.then(
            g.Project(name=name, schema=schema, kind=self.node.kind, inputs=(self.node.name,), columns=tuple(columns.items()))
        )

    def _single(self, function: Value | Function, what: str) -> Stream[K, Any]:
        expr, column, value_class = single_value(function, self.scope(), what)
        schema = replace(self.schema, value=(column,), value_class=value_class)
        name = self.graph.free(f"{self.node.name}-map")
        return self.then(
            g.Project(name=name, schema=schema, kind=self.node.kind, inputs=(self.node.name,), columns=(("value", expr),))
        )

    def map(self, function: Function, *, key: Any = None, name: str | None = None) -> Stream:
        """Replace key and value by the pair that `function(value)` or `function(key, value)` returns.

        `key`: the type of the new keys (`str`); without it they are written as JSON.
        """
        type = _key_type(key)
        paired = self._pairs(call(function, "map()", contract=partial(Pair, key=type)), is_exploded=False)
        return paired.unpair(self, type, name or f"{self.base}-by-{_label(function)}")

    def flat_map(self, function: Function, *, key: Any = None, name: str | None = None) -> Stream:
        """Replace each record by the (key, value) pairs that `function(value)` or `function(key, value)` returns, in order."""
        type = _key_type(key)
        paired = self._pairs(call(function, "flat_map()", contract=partial(Pairs, key=type)), is_exploded=True)
        return paired.unpair(self, type, name or f"{self.base}-by-{_label(function)}")

    @overload
    def flat_map_values(self, function: Callable[[V], Iterable[R]]) -> Stream[K, R]: ...

    @overload
    def flat_map_values(self, function: Callable[[K, V], Iterable[R]]) -> Stream[K, R]: ...

    def flat_map_values(self, function: Function) -> Stream[K, Any]:
        """Replace each record by one for each value that `function(value)` or `function(key, value)` returns; the key stays."""
        return self._pairs(call(function, "flat_map_values()", contract=Items), is_exploded=True)

    def _pairs(self, expr: Expr, *, is_exploded: bool) -> Stream[K, Any]:
        schema = replace(self.schema, value=(Column("value", ANY),), value_class=None)
        common: dict[str, Any] = {"schema": schema, "kind": self.node.kind, "inputs": (self.node.name,)}
        if is_exploded:
            name = self.graph.free(f"{self.node.name}-flat_map")
            return self.then(g.FlatMap(name=name, columns=(("value", expr, True),), **common))
        return self.then(g.Project(name=self.graph.free(f"{self.node.name}-map"), columns=(("value", expr),), **common))

    def unpair(self, origin: Stream, key: DataType, name: str) -> Stream:
        """Split values that are (key, value) pairs."""
        rekeyed = self._rekey((("key", cast_to(Index(_VALUE, Literal(0, ANY), ANY), key)),), name)
        value = Index(_VALUE, Literal(1, ANY), ANY)
        schema = replace(rekeyed.schema, value=(Column("value", ANY),), value_class=None)
        node = g.Project(
            name=self.graph.free(f"{name}-value"), schema=schema, kind=g.EdgeKind.STREAM, inputs=(rekeyed.node.name,),
            columns=(("value", value),),
        )  # fmt: skip
        return replace(rekeyed.then(node), base=origin.base)

    def select_key(self, *keys: Value | Function, key: Any = None, name: str | None = None) -> Stream[Any, V]:
        """Change the key: to one or several columns, or to what `function(value)` or `function(key, value)` returns.

        `key`: the type of a function's keys (`str`); without it, or an annotation, they are written as JSON.
        """
        columns = bind_keys(keys, key, "select_key()", self.scope())
        return self._rekey(columns, name or f"{self.base}-by-{'-'.join(slug(c) for c, _ in columns)}")

    def _rekey(self, columns: tuple[tuple[str, Expr], ...], name: str) -> Stream[Any, V]:
        schema = replace(self.schema, key=tuple(Column(n, x.type) for n, x in columns), window=None)
        node = g.Rekey(name=name, schema=schema, kind=g.EdgeKind.STREAM, inputs=(self.node.name,), key=columns)
        return Stream(self.graph, self.graph.add(node, fix=_FIX), self.base)

    def group_by(self, *keys: Value | Function, key: Any = None, name: str | None = None) -> Grouped[Any, V]:
        """Group by columns or a function's result: what follows is computed per key, through a repartition topic.

        `name` names that topic; by default it is derived from what is grouped by what.
        """
        from .table import Grouped

        columns = bind_keys(keys, key, "group_by()", self.scope())
        if self._is_key(columns):
            return Grouped(self, self.base)
        base = name or f"{self.base}-by-{'-'.join(slug(c) for c, _ in columns)}"
        return Grouped(self._rekey(columns, base), base)

    def group_by_key(self) -> Grouped[K, V]:
        """Group by the key as it is: no repartition topic unless the key was changed before."""
        from .table import Grouped

        return Grouped(self, self.base)

    def _is_key(self, columns: tuple[tuple[str, Expr], ...]) -> bool:
        """Return whether these are the key columns as they are."""
        return [x for _, x in columns] == [
            ColumnRef(Side.KEY, c.name, c.type) for c in self.schema.key
        ] and not self.schema.window

    def join(
        self,
        other: Stream | Table | GlobalTable,
        joiner: Function | None = None,
        *,
        on: On | None = None,
        within: Duration | None = None,
        before: Duration | None = None,
        after: Duration | None = None,
        grace: Duration | None = None,
        prefix: str = "",
        name: str | None = None,
    ) -> Stream:
        """Join each record with the table's row of its key, or with the records of another stream of its key and about its time.

        Records without a partner are dropped.

        Args:
            joiner: `joiner(value, other)` or `joiner(key, value, other)`; without it the result has the columns of both.
            on: the key of the other side for a record, when it is not the record's key (a tuple for several columns); goes
                through a repartition topic, but for a global table.
            within, before, after: of streams: partners have times from `before` ahead of to `after` behind the record's (ms);
                with `within` both. With `grace` records up to that late still count.
            grace: of a versioned table: records wait that long for the table's row of their time.
            prefix: in front of the names of the other side's columns.
            name: of the join.
        """
        return self._join(g.JoinKind.INNER, other, joiner, on, Within(within, before, after, grace), prefix, name)

    def left_join(
        self,
        other: Stream | Table | GlobalTable,
        joiner: Function | None = None,
        *,
        on: On | None = None,
        within: Duration | None = None,
        before: Duration | None = None,
        after: Duration | None = None,
        grace: Duration | None = None,
        prefix: str = "",
        name: str | None = None,
    ) -> Stream:
        """Join as in `join`, with nulls for what is not there; of a stream, once no partner can come any more."""
        return self._join(g.JoinKind.LEFT, other, joiner, on, Within(within, before, after, grace), prefix, name)

    def outer_join(
        self,
        other: Stream,
        joiner: Function | None = None,
        *,
        within: Duration | None = None,
        before: Duration | None = None,
        after: Duration | None = None,
        grace: Duration | None = None,
        prefix: str = "",
        name: str | None = None,
    ) -> Stream:
        """Join two streams as in `join`, with nulls for what is missing on either side once no partner can come any more."""
        return self._join(g.JoinKind.OUTER, other, joiner, None, Within(within, before, after, grace), prefix, name)

    def _join(
        self, kind: g.JoinKind, other: Stream | Table | GlobalTable, joiner: Function | None, on: On | None, within: Within,
        prefix: str, name: str | None,
    ) -> Stream:  # fmt: skip
        from .stream_joins import stream_join, table_join
        from .table import GlobalTable, Table

        if not isinstance(other, Stream | Table | GlobalTable):
            raise InvalidInput(f"a stream joins a stream or a table, found {other!r}: app.stream(...) or app.table(...)")
        self.graph.expect_own(other.graph, repr(other.base))
        if isinstance(other, Stream):
            return stream_join(self, kind, other, joiner, on, within, prefix, name)
        return table_join(self, kind, other, joiner, on, within, prefix, name)

    def rekeyed_on(self, on: On | None, key: tuple[Column, ...]) -> tuple[Stream, tuple[str, ...]]:
        """Return the stream by the key of a join's other side, and the names of the columns that it is joined on."""
        if on is None:
            return self, ()
        columns = bind_keys(on if isinstance(on, tuple) else (on,), None, "join(on=...)", self.scope())
        names = tuple(column for column, _ in columns)
        if len(columns) == len(key):
            columns = tuple((n, cast_to(x, column.type)) for (n, x), column in zip(columns, key, strict=True))
        if self._is_key(columns):
            return self, names
        return self._rekey(columns, f"{self.base}-by-{'-'.join(slug(column) for column in names)}"), names

    def to_table(self, *, name: str | None = None, store: str | None = None, history: Duration | None = None) -> Table[K, V]:
        """Read the stream as a table: the latest value of each key; a null value deletes it. `store` keeps the rows readable.

        `history` (ms) keeps the rows of that long ago too: joins see the row of their record's time (a versioned table).
        """
        from .table import Table
        from .windows import milliseconds

        base = name or f"{self.base}-table"
        history_ms = None if history is None else milliseconds(history)
        node = g.ToTable(
            name=base, schema=self.schema, kind=g.EdgeKind.TABLE, inputs=(self.node.name,),
            store=base if store is None and history_ms is not None else store, history_ms=history_ms,
        )  # fmt: skip
        return Table(self.graph, self.graph.add(node, fix=_FIX), base)

    def map_batches(
        self, function: Function, returns: Any = None, *, form: str = "arrow", rows_max: int = 10_000, name: str | None = None
    ) -> Stream:
        """Replace the value columns by those that `function(table)` gives for many records at once; the key stays.

        Args:
            function: takes and gives a table with one row per record, in order. Which records come together is chance; if it
                raises, it is asked again about fewer, down to one, and the record that fails is left out and counted.
            returns: the new columns, a class or {"score": float}; by default those of the stream.
            form: "arrow" (pyarrow.Table), "polars", "pandas", or "numpy" ({name: array}); any of them may be given back.
            rows_max: at most so many records at once.

        >>> import logflume.streams as lf
        >>> from logflume.streams.testing import TopologyTestDriver
        >>> app = lf.App("scores")
        >>> shots = app.stream("shots").select(distance=lf.col.distance.cast(float))
        >>> scored = shots.map_batches(lambda t: {"score": 1 / t["distance"]}, {"score": float}, form="numpy")
        >>> scored.to("scores")
        >>> driver = TopologyTestDriver(app)
        >>> driver.input("shots").send_together([("a", {"distance": 4}, 0), ("b", {"distance": 2}, 0)])
        >>> [record.value["score"] for record in driver.output("scores").read()]
        [0.25, 0.5]
        """
        from .batches import map_batches

        return map_batches(self, function, returns, form, rows_max, name)

    def map_async(
        self,
        function: Function,
        *,
        limit: int = 100,
        ordered: bool = True,
        retries: int = 0,
        pause: Duration = 100,
        timeout: Duration | None = None,
        rows_max: int = 1,
        name: str | None = None,
    ) -> Stream:
        """Replace the value by what the coroutine `function(value)` or `function(key, value)` gives; the key stays.

        Args:
            limit: how many calls are under way at a time.
            ordered: results leave in the order of the records; False: as they come, at the latest with the task commit.
            retries: how often a call that raises is made again, after `pause`, then twice that, and so on. What fails to the end
                is left out and counted.
            timeout: of a call.
            rows_max: above 1 the function takes lists of up to so many (keys and) values, and gives a list.

        >>> import asyncio
        >>> import logflume.streams as lf
        >>> from logflume.streams.testing import TopologyTestDriver
        >>> async def priced(order):
        ...     await asyncio.sleep(0)
        ...     return {**order, "price": 3}
        >>> app = lf.App("orders")
        >>> app.stream("orders").map_async(priced, limit=10, retries=2).to("priced")
        >>> driver = TopologyTestDriver(app)
        >>> driver.input("orders").send({"item": "pen"})
        >>> driver.output("priced").read()[0].value
        {'item': 'pen', 'price': 3}
        """
        from .batches import Calls, map_async

        return map_async(self, function, Calls(limit, ordered, retries, pause, timeout, rows_max), name)

    @overload
    def process(
        self, processor: Callable[[], Processor], *stores: ProcessorStore, key: Any = None, name: str | None = None
    ) -> Stream: ...

    @overload
    def process(
        self,
        processor: Callable[[], Processor],
        *stores: ProcessorStore,
        children: Sequence[str],
        key: Any = None,
        name: str | None = None,
    ) -> tuple[Stream, ...]: ...

    def process(
        self,
        processor: Callable[[], Processor],
        *stores: ProcessorStore,
        children: Sequence[str] = (),
        key: Any = None,
        name: str | None = None,
    ) -> Stream | tuple[Stream, ...]:
        """Process each record by a class of your own (`lf.Processor`), with stores, schedules and as many results as it likes.

        Args:
            processor: called once per task.
            children: names to which it may forward a record (`context.forward(record, child="bad")`; without a name to all of
                them); then there is one stream for each.
            key: the type of the new keys (`str`); without it they are written as JSON.

        >>> import logflume.streams as lf
        >>> from logflume.streams.testing import TopologyTestDriver
        >>> class Sorting(lf.Processor):
        ...     def process(self, record):
        ...         self.context.forward(record, child="paid" if record.value["paid"] else "open")
        >>> app = lf.App("orders")
        >>> paid, unpaid = app.stream("orders").process(Sorting, key=str, children=["paid", "open"])
        >>> unpaid.to("reminders")
        >>> driver = TopologyTestDriver(app)
        >>> for number, is_paid in (("1", True), ("2", False)):
        ...     driver.input("orders").send({"paid": is_paid}, key=number)
        >>> [record.key for record in driver.output("reminders").read()]
        ['2']
        """
        from .processing import processed

        made, *found = processed(self, processor, stores, key, name, children, is_keyed=False)
        return tuple(found) if children else made

    def process_values(self, processor: Callable[[], Processor], *stores: ProcessorStore, name: str | None = None) -> Stream:
        """Process as in `process`, by a class that keeps the keys: nothing has to be repartitioned behind it."""
        from .processing import processed

        return processed(self, processor, stores, None, name, (), is_keyed=True)[0]

    def deduplicate(
        self,
        *by: Value | Function,
        within: Duration | None = None,
        grace: Duration | None = None,
        key: Any = None,
        name: str | None = None,
    ) -> Stream:
        """Let the first record of each key pass, or of each value of `by`, which becomes the key; the others end here.

        Args:
            within: records are the same only if their times are less than this apart; without it keys are kept for ever.
            grace: how late a record may come and still be compared with those about its time; by default `within`.
            name: of the store.

        >>> import logflume.streams as lf
        >>> from logflume.streams.testing import TopologyTestDriver
        >>> app = lf.App("payments")
        >>> app.stream("payments").deduplicate(lf.col.id.cast(str), within=lf.hours(1)).to("once")
        >>> driver = TopologyTestDriver(app)
        >>> for time_ms in (0, 5, 3_600_000):
        ...     driver.input("payments").send({"id": "p1"}, timestamp_ms=time_ms)
        >>> [record.timestamp_ms for record in driver.output("once").read()]
        [0, 3600000]
        """
        from .windows import milliseconds

        grouped = self.group_by(*by, key=key) if by else self.group_by_key()
        if not grouped.stream.schema.key:
            raise InvalidInput("deduplicate() needs a key: deduplicate(lf.col.id), or stream(..., key=str)")
        within_ms = None if within is None else milliseconds(within)
        if within_ms == 0 or (within_ms is None and grace is not None):
            raise InvalidInput(f"deduplicate() takes within=lf.hours(1), a time above 0, and with it grace=; found {within!r}")
        store = name or f"{grouped.base}-{'distinct' if within_ms is None else 'deduplicate'}"
        node = g.Deduplicate(
            name=store, schema=grouped.stream.schema, kind=g.EdgeKind.STREAM, inputs=(grouped.stream.node.name,), store=store,
            within_ms=within_ms, grace_ms=(within_ms or 0) if grace is None else milliseconds(grace),
        )  # fmt: skip
        return Stream(self.graph, self.graph.add(node, fix=_FIX), grouped.base)

    def distinct(self, *by: Value | Function, key: Any = None, name: str | None = None) -> Stream:
        """Let the first record of each key pass, or of each value of `by`, which becomes the key: what has passed stays known."""
        return self.deduplicate(*by, key=key, name=name)

    def merge(self, *others: Stream) -> Stream[K, V]:
        """Interleave with other streams of the same columns; each keeps its own order.

        With one whose values have no known type all are as those: a typed record is the object that a function would get.
        """
        for other in others:
            if not isinstance(other, Stream):
                raise InvalidInput(f"merge() takes streams, found {other!r:.100}")
            self.graph.expect_own(other.graph, repr(other.base))
        name = self.graph.free("-".join([self.base, *(other.base for other in others), "merge"]))
        inputs = (self.node.name, *(other.node.name for other in others))
        schema = next((each.schema for each in (self, *others) if g.is_bare(each.schema)), self.schema)
        return self.then(g.Merge(name=name, schema=schema, kind=g.EdgeKind.STREAM, inputs=inputs))

    def peek(self, function: Function) -> Stream[K, V]:
        """Call `function(value)`, `function(key, value)` or `function(key, value, timestamp_ms)` for each record, and go on."""
        node = foreach_node(self.graph, self.node, function, "peek()")
        return self.then(node)

    def foreach(self, function: Function) -> None:
        """Call a function for each record, as `peek` does; nothing follows."""
        self.then(foreach_node(self.graph, self.node, function, "foreach()"))

    def repartition(self, name: str, *, partitions: int | None = None) -> Stream[K, V]:
        """Write to an internal topic by key and go on behind it."""
        check_partitions(partitions)
        if not isinstance(name, str):
            raise InvalidInput(f"repartition() takes the name of its internal topic, found {name!r}")
        node = g.Repartition(
            name=f"{name}-repartition", schema=self.schema, kind=g.EdgeKind.STREAM, inputs=(self.node.name,),
            topic=f"{self.graph.name}-{name}-repartition", partitions=partitions,
            key_format=key_format(self.schema.key, None),
            value_format=value_format(self.schema, "JSON") if is_single(self.schema) else internal_format(self.schema),
        )  # fmt: skip
        return Stream(self.graph, self.graph.add(node, fix="give this repartition another name"), name)

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
        """Write to a topic, created if missing. Values are JSON unless `format` says otherwise (see `App.stream`).

        So is text that a function gives, in quotes: `format="KAFKA"` writes text and bytes as they are.

        `topic` may be computed from the record: a column expression, or `function(value)` or `function(key, value)`. Then it is
        one of `topics`, which are created if missing, or without them any topic that exists. A record without such a topic is
        refused: counted, and kept as a dead letter, as if its topic had not taken it.

        >>> import logflume.streams as lf
        >>> from logflume.streams.testing import TopologyTestDriver
        >>> app = lf.App("orders")
        >>> app.stream("orders").to(lf.col.country.cast(str) + "-orders", topics=["de-orders", "fr-orders"])
        >>> driver = TopologyTestDriver(app, on_problem="skip")
        >>> for country in ("de", "fr", "??"):
        ...     driver.input("orders").send({"country": country})
        >>> driver.output("fr-orders").read()[0].value, driver.problems
        ({'country': 'fr'}, Counter({'refused': 1}))
        """
        sink(self.graph, self.node, topic, topics, format, key_format, partitions, configs)

    def scope(self) -> Scope:
        """Where the names of expressions are looked up."""
        return Scope(self.schema, f"{self.base!r}")

    def then(self, node: g.Node) -> Stream[K, V]:
        """Return what comes out of a node behind this stream."""
        return Stream(self.graph, self.graph.add(node, fix=_FIX), self.base)


def single_value(function: Value | Function, scope: Scope, what: str) -> tuple[Expr, Column, type[Any] | None]:
    """Return the one value that an expression or a function gives: as a tree, its column, and its class if that is known."""
    if isinstance(function, Value):
        expr = bind(function, scope)
        python = next((p for p, t in PRIMITIVES.items() if t == expr.type), None)
        return expr, Column("value", expr.type), python
    return call(function, what), Column("value", ANY), object_class(returned_type(function))


def bind_keys(keys: tuple[Value | Function, ...], type: Any, what: str, scope: Scope) -> tuple[tuple[str, Expr], ...]:
    """Return new key columns by name; `type`: of those whose own is unknown."""
    if not keys:
        raise InvalidInput(f"{what} needs at least one column or function")
    wanted = _key_type(type)
    found: dict[str, Expr] = {}
    for key in keys:
        if isinstance(key, Value):
            name, expr = (key.name if isinstance(key, Field) else slug(repr(key))), bind(key, scope)
        else:
            name, expr = _label(key), call(key, what)
            annotated = returned_type(key)
            wanted = PRIMITIVES[annotated] if type is None and annotated in PRIMITIVES else wanted
        if name in found:
            raise InvalidInput(f"{what}: two key columns are named {name!r}; select(...) them under other names first")
        found[name] = cast_to(expr, wanted)
    return tuple(found.items())


def bind_columns(columns: tuple[Value, ...], named: dict[str, Any], scope: Scope) -> dict[str, Expr]:
    """Return new columns by name; a column given without a name keeps its own."""
    found: dict[str, Expr] = {}
    for column in columns:
        if not isinstance(column, Field):
            raise InvalidInput(f"`{column!r}` needs a name: select(name={column!r})")
        found[column.name] = bind(column, scope)
    for name, value in named.items():
        if callable(value) and not isinstance(value, Value):
            found[name] = call(value, f"{name}=")
        else:
            found[name] = bind(value, scope)
    if not found:
        raise InvalidInput("select() needs at least one column")
    return found


def object_class(hint: Any) -> type[Any] | None:
    """Return the annotated class of a function's results when its fields are known."""
    return hint if is_object_class(hint) else None


def _key_type(type: Any) -> DataType:
    """Return the type that a user gave for the keys of a function."""
    columns = () if type is None else key_columns(type)
    if len(columns) > 1:
        raise InvalidInput(
            f"key= is the type of one key (str, int, ...), found {type!r}; a key of several columns is made by select_key(...) "
            "or group_by(...), given each of them"
        )
    return columns[0].type if columns else ANY


def cast_to(expr: Expr, type: DataType) -> Expr:
    """Cast a value of unknown type to the type of a key."""
    return Cast(expr, type) if expr.type == ANY and type != ANY else expr


def _label(function: Any) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return "key" if name == "<lambda>" else slug(name)
