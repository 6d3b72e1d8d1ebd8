"""A recorded case as nodes of the oracle, run step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import functions as f
from .aggregates import Aggregate, AggregatedTable, Fold, TableAggregate, count, reduce
from .base import KAFKA, Json, Node, Port, Record, Row, Rules, StoredTable, Table, WindowedKey
from .foreign_keys import ForeignKeyJoin
from .processors import Processor, processor
from .queues import Queue, Task
from .sessions import Sessions, SessionTable
from .sliding import SlidingWindows
from .stateless import Each, Split, flat, kept, mapped
from .stream_joins import JoinWindow, StreamGlobalJoin, StreamJoin, StreamTableJoin
from .suppress import Suppress
from .table_joins import TableJoin
from .tables import TableGroupBy, View
from .windows import FOREVER, Span, Throttle, TimeWindows, WindowTable


@dataclass(frozen=True, slots=True)
class Edge:
    """Where a node's records come from, and whether the key was changed on the way."""

    node: Node
    is_marked: bool = False


@dataclass(frozen=True, slots=True)
class Grouped:
    """Streams (or one table) grouped by key, their aggregators if they are a cogroup, and the window over them."""

    edges: tuple[Edge, ...]
    aggregators: tuple[Json, ...] = ()
    window: Json = None
    is_on_close: bool = False


class Topology:
    """All nodes of a case. `outputs` by topic, in order of production; `stores` by name."""

    def __init__(self, case: Json, rules: Rules = KAFKA) -> None:
        self.case, self.rules = case, rules
        self.task = Task()
        self.interval_ms = 0 if rules.holds_nothing_back else case.get("config", {}).get("emit_interval_ms", 0)
        self.edges: dict[str, Any] = {}
        self.inputs: list[tuple[str, Port]] = []
        self.global_inputs: list[tuple[str, Port]] = []
        self.stores: dict[str, Any] = {}
        self.outputs: dict[str, list[Record]] = {sink["topic"]: [] for sink in case["sinks"]}
        self.queues: list[Queue] = []
        self.graces: dict[Node, int] = {}
        for source in case["sources"]:
            self._source(source)
        for node in case["nodes"]:
            made = getattr(self, f"_{node['op']}")(node, [self.edges.get(name) for name in node["in"]])
            if made is not None:
                self.edges[node["id"]] = made
        for sink in case["sinks"]:
            self.edges[sink["in"]].node.children.append(self.outputs[sink["topic"]].append)
        if rules.knows_old_rows:
            for edge in self.edges.values():
                if isinstance(edge, Edge) and isinstance(edge.node, View) and edge.node.is_filter:
                    edge.node.ask_old()
        for queue in self.queues:
            queue.keeps_null_keys = _reaches_join(queue) if rules.drops_null_keys_early else _takes_null_keys(queue)

    def run(self) -> None:
        for step in self.case["steps"]:
            if "advance_wall_clock_ms" in step:
                self.task.advance(step["advance_wall_clock_ms"])
                continue
            record = Record(step["key"], step["value"], step["ts"])
            for topic, receive in self.global_inputs:
                if topic == step["topic"]:
                    receive(record)
            if ports := [receive for topic, receive in self.inputs if topic == step["topic"]]:
                self.task.take(lambda found, ports=ports: [receive(found) for receive in ports], record)

    def _source(self, source: Json) -> None:
        history_ms = source.get("versioned_history_ms")
        if source["kind"] == "stream":
            node: Any = Each(lambda r: [r])
        else:
            node = StoredTable(is_stored="store" in source or source["kind"] == "global_table", history_ms=history_ms)
            self._keep(source, node)
        inputs = self.global_inputs if source["kind"] == "global_table" else self.inputs
        inputs.append((source["topic"], node.receive))
        self.edges[source["id"]] = Edge(node)

    def _keep(self, spec: Json, table: Any) -> None:
        if "store" in spec:
            self.stores[spec["store"]] = table

    # -- streams

    def _filter(self, spec: Json, inputs: list[Edge]) -> Edge:
        return self._filtered(spec, inputs[0], f.predicate(spec["pred"]))

    def _filter_not(self, spec: Json, inputs: list[Edge]) -> Edge:
        test = f.predicate(spec["pred"])
        return self._filtered(spec, inputs[0], lambda key, value: not test(key, value))

    def _filtered(self, spec: Json, edge: Edge, test: Callable[[Any, Json], bool]) -> Edge:
        if isinstance(edge.node, Table):
            return self._view(spec, edge.node, lambda key, value: value if test(key, value) else None, is_filter=True)
        return self._after(edge, kept(test))

    def _map_values(self, spec: Json, inputs: list[Edge]) -> Edge:
        function = f.value_function(spec["value_fn"])
        if isinstance(inputs[0].node, Table):
            return self._view(spec, inputs[0].node, function, is_filter=False)
        return self._after(inputs[0], mapped(None, function))

    def _view(self, spec: Json, parent: Table, compute: Callable[[Any, Json], Json], *, is_filter: bool) -> Edge:
        view = View(parent, compute, is_filter=is_filter, is_stored="store" in spec)
        parent.children.append(view.receive)
        self.graces[view] = self.graces.get(parent, 0)
        self._keep(spec, view)
        return Edge(view)

    def _after(self, edge: Edge, node: Any, *, is_marked: bool | None = None) -> Edge:
        edge.node.children.append(node.receive)
        return Edge(node, edge.is_marked if is_marked is None else is_marked)

    def _map(self, spec: Json, inputs: list[Edge]) -> Edge:
        node = mapped(f.key_function(spec["key_fn"]), f.value_function(spec["value_fn"]))
        return self._after(inputs[0], node, is_marked=True)

    def _select_key(self, spec: Json, inputs: list[Edge]) -> Edge:
        return self._after(inputs[0], mapped(f.key_function(spec["key_fn"]), None), is_marked=True)

    def _flat_map(self, spec: Json, inputs: list[Edge]) -> Edge:
        return self._after(inputs[0], flat(f.flat_function(spec["flat_fn"]), is_keyed=True), is_marked=True)

    def _flat_map_values(self, spec: Json, inputs: list[Edge]) -> Edge:
        return self._after(inputs[0], flat(f.flat_function(spec["flat_fn"]), is_keyed=False))

    def _merge(self, spec: Json, inputs: list[Edge]) -> Edge:
        node = Each(lambda r: [r])
        for source in dict.fromkeys(edge.node for edge in inputs):  # with itself a stream is what it was
            source.children.append(node.receive)
        return Edge(node, any(edge.is_marked for edge in inputs))

    def _repartition(self, spec: Json, inputs: list[Edge]) -> Edge:
        return Edge(self._queued(inputs[0], is_marked=True))

    def _queued(self, edge: Edge, *, is_marked: bool | None = None) -> Node:
        """Return the queue behind a marked edge, else its own node."""
        if not (edge.is_marked if is_marked is None else is_marked):
            return edge.node
        queue = Queue(self.task)
        self.queues.append(queue)
        edge.node.children.append(queue.receive)
        return queue

    def _joined(self, edge: Edge) -> Node:
        """Return the queue that all joins of a marked edge share, else its own node."""
        if not edge.is_marked:
            return edge.node
        if edge.node.queue is None:
            edge.node.queue = self._queued(edge)
        return edge.node.queue

    def _split(self, spec: Json, inputs: list[Edge]) -> None:
        branches = [(branch["id"], f.predicate(branch["pred"])) for branch in spec["branches"]]
        rest = spec.get("default")
        streams = {name: Each(lambda r: [r]) for name in [*(name for name, _ in branches), *([rest] if rest else [])]}
        default = streams[rest].receive if rest else None
        self._after(inputs[0], Split([(test, streams[name].receive) for name, test in branches], default))
        for name, stream in streams.items():
            self.edges[name] = Edge(stream, inputs[0].is_marked)

    def _process(self, spec: Json, inputs: list[Edge]) -> Edge:
        return self._processed(spec, inputs[0], is_marked=True)

    def _process_values(self, spec: Json, inputs: list[Edge]) -> Edge:
        return self._processed(spec, inputs[0], is_marked=None)

    def _processed(self, spec: Json, edge: Edge, *, is_marked: bool | None) -> Edge:
        node = processor(self.task, spec["processor"], spec.get("args"))
        self._keep(spec, node)
        return self._after(edge, node, is_marked=is_marked)

    # -- aggregates

    def _group_by_key(self, spec: Json, inputs: list[Edge]) -> Grouped:
        return Grouped((inputs[0],))

    def _group_by(self, spec: Json, inputs: list[Edge]) -> Grouped:
        return Grouped((self._after(inputs[0], mapped(f.key_function(spec["key_fn"]), None), is_marked=True),))

    def _table_group_by(self, spec: Json, inputs: list[Edge]) -> Grouped:
        parent = inputs[0].node
        assert isinstance(parent, Table)
        node = TableGroupBy(parent, f.key_function(spec["key_fn"]), f.value_function(spec["value_fn"]))
        return Grouped((self._after(inputs[0], node, is_marked=True),))

    def _cogroup(self, spec: Json, inputs: list[Grouped]) -> Grouped:
        return Grouped(tuple(grouped.edges[0] for grouped in inputs), tuple(spec["aggs"]))

    def _window(self, spec: Json, inputs: list[Grouped]) -> Grouped:
        return Grouped(inputs[0].edges, inputs[0].aggregators, spec["window"], "emit" in spec)

    def _count(self, spec: Json, inputs: list[Grouped]) -> Edge:
        return self._aggregated(spec, inputs[0], [count()])

    def _reduce(self, spec: Json, inputs: list[Grouped]) -> Edge:
        subtract = f.reducer(spec["sub"]) if "sub" in spec else None
        return self._aggregated(spec, inputs[0], [reduce(f.reducer(spec["fn"]), subtract)])

    def _aggregate(self, spec: Json, inputs: list[Grouped]) -> Edge:
        subtract = f.aggregator(spec["sub"]) if "sub" in spec else None
        merge = f.merger(spec["merger"]) if "merger" in spec else None
        adders = inputs[0].aggregators or (spec["fn"],)
        folds = [Fold(spec["init"], f.aggregator(add), subtract, merge) for add in adders]
        return self._aggregated(spec, inputs[0], folds)

    def _aggregated(self, spec: Json, grouped: Grouped, folds: list[Fold]) -> Edge:
        table, inputs = self._windowed(grouped, folds)
        for edge, node in zip(grouped.edges, inputs, strict=True):
            self._queued(edge).children.append(node.receive)
        self._keep(spec, table)
        return Edge(table)

    def _windowed(self, grouped: Grouped, folds: list[Fold]) -> tuple[AggregatedTable, list[Any]]:
        window = grouped.window
        if window is None:
            plain = AggregatedTable(self.task, rules=self.rules)
            kind = TableAggregate if isinstance(grouped.edges[0].node, TableGroupBy) else Aggregate
            return plain, [kind(fold, plain) for fold in folds]
        grace = window.get("grace", 0)
        if window["type"] == "session":
            sessions = SessionTable(self.task, window["gap"] + grace, is_on_close=grouped.is_on_close, rules=self.rules)
            self.graces[sessions] = grace + window["gap"]
            return sessions, [Sessions(fold, sessions, window["gap"], grace, self._throttle()) for fold in folds]
        span = _span(window)
        table = WindowTable(self.task, span.keep_ms, is_on_close=grouped.is_on_close, rules=self.rules)
        self.graces[table] = grace
        if window["type"] == "sliding":
            return table, [SlidingWindows(fold, table, window["diff"], grace, self._throttle()) for fold in folds]
        return table, [TimeWindows(fold, table, span, self._throttle()) for fold in folds]

    def _throttle(self) -> Throttle:
        return Throttle(self.task, self.interval_ms)

    # -- tables

    def _to_stream(self, spec: Json, inputs: list[Edge]) -> Edge:
        stream = self._after(inputs[0], Each(lambda r: [r.but(old=None, is_latest=True)]))
        return self._select_key(spec, [stream]) if "key_fn" in spec else stream

    def _to_table(self, spec: Json, inputs: list[Edge]) -> Edge:
        table = StoredTable(is_stored="store" in spec, history_ms=spec.get("versioned_history_ms"))
        self._queued(inputs[0]).children.append(table.receive)
        self._keep(spec, table)
        return Edge(table)

    def _suppress(self, spec: Json, inputs: list[Edge]) -> Edge:
        parent = inputs[0].node
        assert isinstance(parent, Table)
        until_close = spec["until"] == "window_closes"
        wait_ms = self.graces.get(parent, 0) if until_close else spec["ms"]
        limit = spec["buffer"].get("max_records") if spec["buffer"].get("when_full") == "emit_early" else None
        table = Suppress(parent, until_close=until_close, wait_ms=wait_ms, max_records=limit, rules=self.rules)
        self.graces[table] = self.graces.get(parent, 0)
        return self._after(inputs[0], table)

    def _table_join(self, spec: Json, inputs: list[Edge]) -> Edge:
        left, right = inputs[0].node, inputs[1].node
        assert isinstance(left, Table)
        assert isinstance(right, Table)
        table = TableJoin(left, right, spec["type"], f.joiner(spec["joiner"]), is_stored="store" in spec, rules=self.rules)
        left.children.append(table.receive_left)
        right.children.append(table.receive_right)
        self.graces[table] = max(self.graces.get(left, 0), self.graces.get(right, 0))
        self._keep(spec, table)
        return Edge(table)

    def _fk_join(self, spec: Json, inputs: list[Edge]) -> Edge:
        left, right = inputs[0].node, inputs[1].node
        assert isinstance(left, Table)
        assert isinstance(right, Table)
        table = StoredTable(is_stored="store" in spec)
        join = ForeignKeyJoin(self.task, left, right, spec["type"], f.key_function(spec["fk"]), f.joiner(spec["joiner"]), table)
        left.children.append(join.receive_left)
        right.children.append(join.receive_right)
        self._keep(spec, table)
        return Edge(table)

    # -- joins of streams

    def _stream_join(self, spec: Json, inputs: list[Edge]) -> Edge:
        join = StreamJoin(
            self.task, spec["type"], JoinWindow(**spec["window"]), f.joiner(spec["joiner"]), self.interval_ms, self.rules
        )
        for edge, receive in zip(inputs, (join.receive_left, join.receive_right), strict=True):
            self._joined(edge).children.append(receive)
        return Edge(join)

    def _stream_table_join(self, spec: Json, inputs: list[Edge]) -> Edge:
        table = inputs[1].node
        assert isinstance(table, Table)
        join = StreamTableJoin(table, spec["type"], f.joiner(spec["joiner"]), spec.get("grace"))
        self._joined(inputs[0]).children.append(join.receive)
        return Edge(join)

    def _stream_global_join(self, spec: Json, inputs: list[Edge]) -> Edge:
        table = inputs[1].node
        assert isinstance(table, StoredTable)
        join = StreamGlobalJoin(table, spec["type"], f.key_function(spec["key_fn"]), f.joiner(spec["joiner"]))
        return self._after(inputs[0], join)

    # -- results

    def rows(self, store: str) -> list[Json]:
        """Return a store's rows as the cases write them."""
        table = self.stores[store]
        if isinstance(table, Processor):
            return [{"key": key, "value": value} for key, value in table.rows.items()]
        if isinstance(table, StoredTable) and table.versions is not None:
            return self._version_rows(table)
        rows = []
        for key, row in table.rows.items():
            if isinstance(table, WindowTable) and not table.is_visible(key.window_start):
                continue
            if isinstance(table, SessionTable) and not table.is_visible(key.window_end):
                continue
            is_windowed = isinstance(table, WindowTable | SessionTable)
            made = {**(_key_row(key) if is_windowed else {"key": key_json(key)}), "value": row.value}
            rows.append(made if isinstance(table, SessionTable) else {**made, "ts": row.ts})
        return rows

    def _version_rows(self, table: StoredTable) -> list[Json]:
        assert table.versions is not None
        found: set[tuple[Any, int]] = set()
        rows = []
        times = [step["ts"] for step in self.case["steps"] if "ts" in step]
        for key in table.versions.of:
            looked_up: list[Row | None] = [table.get(key), *(table.get_as_of(key, ts) for ts in times)]
            for row in looked_up:
                if row is not None and (key, row.ts) not in found:
                    found.add((key, row.ts))
                    rows.append({"key": key, "value": row.value, "ts": row.ts})
        return rows


def key_json(key: Any) -> Json:
    """Return a key as the cases write it."""
    return _key_row(key) if isinstance(key, WindowedKey) else key


def _key_row(key: Any) -> Json:
    if isinstance(key, WindowedKey):
        return {"key": key.key, "start": key.window_start, "end": key.window_end}
    return {"key": key}


def _span(window: Json) -> Span:
    grace = window.get("grace", 0)
    match window["type"]:
        case "unlimited":
            return Span(FOREVER, 1, 0, FOREVER, window["start"])
        case "sliding":
            return Span(window["diff"], 1, grace, 2 * window["diff"] + grace)
        case "tumbling":
            return Span(window["size"], window["size"], grace, window["size"] + grace)
    return Span(window["size"], window["advance"], grace, window["size"] + grace)


def _takes_null_keys(queue: Node) -> bool:
    """Return whether a join that accepts null keys is anywhere behind a queue."""
    for child in queue.children:
        node = getattr(child, "__self__", None)
        if isinstance(node, StreamTableJoin | StreamGlobalJoin | StreamJoin) and node.kind != "inner":
            return True
        if isinstance(node, Split):
            ports = [port for _, port in node.branches] + [node.default]
            if any(_takes_null_keys(port.__self__) for port in ports if port is not None):
                return True
        below = [getattr(node, "table", None)] if not isinstance(node, StreamTableJoin | StreamGlobalJoin) else []
        if any(isinstance(x, Node) and _takes_null_keys(x) for x in [node, *below]):
            return True
    return False


def _reaches_join(node: Node) -> bool:
    """Return whether records without a key that leave a node reach a join that takes them."""
    return any(_takes_them(port) for port in node.children)


def _takes_them(port: Port) -> bool:
    """Return whether records without a key that go there reach a join that takes them."""
    node = getattr(port, "__self__", None)
    match node:
        case StreamJoin():
            return node.kind == "outer" or (node.kind == "left" and port == node.receive_left)
        case StreamTableJoin():
            return node.kind == "left"
        case StreamGlobalJoin():
            return node.kind == "left" or _reaches_join(node)
        case Split():
            ports = [*(port for _, port in node.branches), node.default]
            return any(_takes_them(each) for each in ports if each is not None)
        case Each() | Queue() | Processor():
            return _reaches_join(node)
    return False
