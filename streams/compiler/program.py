"""A sub-topology as Python: the generated module, and its binding to one task.

Per source there is `process_<source>(chunk, start, stop)`, one loop with everything from decoding to encoding in it; per
aggregate that emits at commit `flush_<node>()`; per table `restore_<source>`. `bind` makes them closures over the stores of a
task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from .. import graph as g
from ..seams import Outputs, Problems, StateStore, StoreSpec
from .aggregates import emit_aggregate, emit_flush
from .closing import OpenWindows
from .expressions import Compiler, Namespace
from .flow import Labels, Writer
from .generator import Emit, Generator
from .joins import emit_join
from .sources import emit_restore, emit_source
from .stateless import (
    emit_filter,
    emit_flat_map,
    emit_foreach,
    emit_pass,
    emit_project,
    emit_rekey,
    emit_repartition,
    emit_sink,
    emit_to_table,
)
from .usage import Wiring, wire

EMITTERS: Mapping[type, Emit] = MappingProxyType(
    {
        g.Filter: emit_filter,
        g.Project: emit_project,
        g.FlatMap: emit_flat_map,
        g.Rekey: emit_rekey,
        g.Repartition: emit_repartition,
        g.Aggregate: emit_aggregate,
        g.StreamTableJoin: emit_join,
        g.ToStream: emit_pass,
        g.ToTable: emit_to_table,
        g.Merge: emit_pass,
        g.Foreach: emit_foreach,
        g.Sink: emit_sink,
    }
)


class ChunkView:
    """The columns of the chunk at hand as lists, made once per chunk however many runs it is taken in."""

    __slots__ = ("_chunk", "_keys", "_times", "_values")

    def __init__(self) -> None:
        self._chunk: Any = None
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._times: list[int] = []

    def take(self, chunk: Any, start: int, stop: int) -> tuple[list[bytes | None], list[bytes | None], list[int]]:
        """Return keys, values and timestamps of records start..stop of a chunk."""
        if chunk is not self._chunk:
            self._chunk = chunk
            self._keys, self._values, self._times = chunk.keys(), chunk.values(), chunk.timestamps_ms.tolist()
        if stop - start == len(self._keys):
            return self._keys, self._values, self._times
        return self._keys[start:stop], self._values[start:stop], self._times[start:stop]

    def release(self, stop: int) -> None:
        """Let go of a chunk that was taken to its end."""
        if stop >= len(self._keys):
            self._chunk = None
            self._keys, self._values, self._times = [], [], []


@dataclass(frozen=True, slots=True, eq=False)
class CompiledProgram:
    """Implements `seams.Program`. Not picklable: ship the topology and compile it again."""

    sources: Mapping[str, str]
    stores: tuple[StoreSpec, ...]
    source_code: str
    wiring: Wiring
    _bind: Callable[..., dict[str, dict[str, Callable[..., None]]]] = field(repr=False)

    def bind(self, stores: Mapping[str, StateStore], outputs: Outputs, problems: Problems) -> BoundProgram:
        """Return the functions of one task."""

        def report(reason: str, node: str, chunk: Any, index: int, cause: object) -> None:
            if chunk is None:
                problems.report(reason, node, "", -1, -1, cause)
            else:
                problems.report(reason, node, chunk.topic, chunk.partition, int(chunk.offsets[index]), cause)

        functions = self._bind(stores, outputs.send, report, ChunkView)
        return BoundProgram(functions["process"], functions["restore"], tuple(functions["flush"].values()))


@dataclass(frozen=True, slots=True)
class BoundProgram:
    """Implements `seams.TaskFunction`."""

    _process: Mapping[str, Callable[[Any, int, int], None]]
    _restore: Mapping[str, Callable[[Any, int, int], None]]
    _flushes: Sequence[Callable[[], None]]

    def process(self, source: str, chunk: Any, start: int, stop: int) -> None:
        self._process[source](chunk, start, stop)

    def restore(self, source: str, chunk: Any, start: int, stop: int) -> None:
        self._restore[source](chunk, start, stop)

    def flush(self) -> None:
        for flush in self._flushes:
            flush()


def compile_program(nodes: Mapping[str, g.Node], sources: Sequence[str], outputs: Sequence[str]) -> CompiledProgram:
    """Compile a sub-topology: `sources` are its Source and Repartition nodes, `outputs` its Sink and Repartition nodes."""
    wiring = wire(nodes, sources, outputs)
    namespace, writer = Namespace(), Writer()
    namespace.add("window_keys", window_keys)
    namespace.add("headers_at", headers_at)
    namespace.add("OpenWindows", OpenWindows)
    generator = Generator(wiring, EMITTERS, namespace, writer, Compiler(namespace))
    bodies = {
        "process": {name: _function(generator, "process", wiring.nodes[name]) for name in sources},
        "restore": {n.name: _function(generator, "restore", n) for n in _kept_tables(wiring)},
        "flush": {n.name: _function(generator, "flush", n) for n in _flushed(wiring)},
    }
    closing = {node.store: namespace.add("window", node.window) for node in _flushed(wiring) if node.emit is g.Emit.FINAL}
    text = _module(bodies, wiring.labels, closing)
    scope: dict[str, Any] = dict(namespace.values)
    exec(compile(text, f"<topology {'-'.join(sources)}>", "exec"), scope)
    topics = {name: _topic(wiring.nodes[name]) for name in sources}
    return CompiledProgram(topics, store_specs(wiring.nodes), text, wiring, scope["bind"])


def _topic(node: g.Node) -> str:
    assert isinstance(node, g.Source | g.Repartition)
    return node.topic


def _kept_tables(wiring: Wiring) -> Iterator[g.Source]:
    for node in wiring.nodes.values():
        if isinstance(node, g.Source) and node.kind is g.EdgeKind.TABLE and node.store is not None:
            yield node


def _flushed(wiring: Wiring) -> Iterator[g.Aggregate]:
    for node in wiring.nodes.values():
        if isinstance(node, g.Aggregate) and node.emit is not g.Emit.UPDATE and wiring.children[node.name]:
            yield node


def store_specs(nodes: Mapping[str, g.Node]) -> tuple[StoreSpec, ...]:
    """Return the stores of the nodes, in their order."""
    found = []
    for node in nodes.values():
        if isinstance(node, g.Aggregate):
            columns = tuple(
                type(c)(a.name if len(a.aggregator.state_columns) == 1 else f"{a.name}_{c.name}", c.type)
                for a in node.aggregations
                for c in a.aggregator.state_columns
            )
            found.append(StoreSpec(node.store, node.schema.key, columns, node.window))
        elif (store := g.store_of(node)) is not None:
            found.append(StoreSpec(store, node.schema.key, node.schema.value, node.schema.window))
    return tuple(found)


def window_keys(keys: Sequence[bytes | None], times: Sequence[int], size_ms: int, advance_ms: int) -> Iterator[bytes]:
    """Yield the store keys of every window of each record; lazily, because a store that is all in memory asks for none."""
    pack = g.WINDOW_START.pack
    for key, time in zip(keys, times, strict=True):
        if key is not None and time >= 0:
            for start in range(max(0, (time - size_ms) // advance_ms * advance_ms + advance_ms), time + 1, advance_ms):
                yield key + pack(start)


def headers_at(chunk: Any, start: int, stop: int, causes: Sequence[int]) -> list[Any] | None:
    """Return the headers of the records that caused outputs, which pass them on; None where no record of the run has any."""
    if not chunk.header_counts[start:stop].any():
        return None
    headers = chunk.slice(start, stop).headers()
    return [headers[cause - start] for cause in causes]


def _function(generator: Generator, role: str, node: g.Node) -> str:
    """Return the text of one function, written as the body of `bind`."""
    writer = generator.writer
    generator.start(has_chunk=role != "flush")
    writer.names |= {f"view_{generator.label(name)}" for name in generator.wiring.sources}
    writer.globals = generator.namespace.values
    writer.lines, writer.depth = [], 2
    label = generator.label(node.name)
    if role == "flush":
        assert isinstance(node, g.Aggregate)
        emit_flush(generator, node)
    else:
        _write_loop(generator, role, node)
    body = writer.lines
    writer.lines, writer.depth = [], 1
    with writer.block(f"def {role}_{label}({'' if role == 'flush' else 'chunk, start, stop'}):"):
        _write_head(generator, role, node)
        writer.lines += body
        _write_tail(generator, role, node)
    return writer.text()


def _write_loop(generator: Generator, role: str, node: g.Node) -> None:
    writer = generator.writer
    with writer.block("for i, key, data, time in zip(range(start, stop), keys, values, times):"):
        if role == "restore":
            assert isinstance(node, g.Source)
            emit_restore(generator, node)
        else:
            assert isinstance(node, g.Source | g.Repartition)
            emit_source(generator, node)


def _write_head(generator: Generator, role: str, node: g.Node) -> None:
    writer = generator.writer
    for store in generator.stores:
        entries, dirty, kept = (generator.local(part, store) for part in ("entries", "dirty", "store"))
        writer.line(f"{entries}, {dirty} = {kept}.resident, {kept}.dirty")
    for store in generator.closing:
        writer.line(f"{generator.local('windows', store)} = {generator.local('closing', store)}.by_start()")
    for store in generator.clocks:
        writer.line(f"{generator.local('now', store)} = {generator.local('store', store)}.stream_time_ms")
    for output in generator.outputs:
        label = generator.label(output)
        lists = [f"{label}_keys", f"{label}_values", f"{label}_times", *([f"{label}_causes"] if generator.has_chunk else [])]
        writer.line(f"{', '.join(lists)} = {', '.join('[]' for _ in lists)}")
    if role == "flush":
        return
    writer.line(f"view = view_{generator.label(node.name)}")
    writer.line("keys, values, times = view.take(chunk, start, stop)")
    if role == "restore":
        return
    for store, window in generator.loads.items():
        wanted = "(key for key in keys if key is not None)"
        if window is not None:
            wanted = f"window_keys(keys, times, {window.size_ms}, {window.advance_ms})"
        writer.line(f"{generator.local('store', store)}.load({wanted})")


def _write_tail(generator: Generator, role: str, node: g.Node) -> None:
    writer = generator.writer
    for store in generator.clocks:
        writer.line(f"{generator.local('store', store)}.stream_time_ms = {generator.local('now', store)}")
    for output in generator.outputs:
        label = generator.label(output)
        more = ""
        if generator.has_chunk:
            more = f", headers=headers_at(chunk, start, stop, {label}_causes), causes={label}_causes"
        with writer.block(f"if {label}_keys:"):
            writer.line(f"send({output!r}, {label}_keys, {label}_values, {label}_times{more})")
    if role != "flush":
        writer.line("view.release(stop)")


def _module(bodies: Mapping[str, Mapping[str, str]], labels: Labels, closing: Mapping[str, str]) -> str:
    writer = Writer()
    with writer.block("def bind(stores, send, report, make_view):"):
        for store in labels.stores:
            writer.line(f"{labels.local('store', store)} = stores[{store!r}]")
        for store, window in closing.items():
            writer.line(f"{labels.local('closing', store)} = OpenWindows({labels.local('store', store)}, {window})")
        for name in bodies["process"]:
            writer.line(f"view_{labels.nodes[name]} = make_view()")
    parts = [writer.text()]
    for functions in bodies.values():
        parts += ["\n" + text for text in functions.values()]
    writer = Writer(depth=1)
    writer.line("return {")
    for role, functions in bodies.items():
        entries = ", ".join(f"{name!r}: {role}_{labels.nodes[name]}" for name in functions)
        writer.line(f"    {role!r}: {{{entries}}},")
    writer.line("}")
    return "".join([*parts, "\n", writer.text()])
