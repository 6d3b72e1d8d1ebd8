"""Aggregates over columns: which ones are held, and the step that counts records into a store (`tallies.py`).

before: ... -> Aggregate              arguments of all rows are computed; living rows are counted between the marked ones
after:  Aggregate -> ToStream -> ...  results of changed entries, as rows of the same steps, at a task commit or at each update
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from logflume.log.records import I64
from logflume.log.schemas import Kind

from .. import graph as g
from ..compiler.codecs import encode_fragment
from ..compiler.expressions import Fragment, Namespace
from ..expr import Meta, Side
from ..functions import State, results_of
from ..state.columns import holds
from .flow import Batch, Builder, Flow, Keys, Step, make_output, make_project, prepare_all
from .vectors import KINDS, ColumnId, Kinds, Mask, Rows, Unsupported, Vector, VectorOf, compile_vector, full

_KERNELS = ("count", "sum", "mean", "min", "max")
_MAX_WINDOWS = 60
"""In how many windows a record may count; room is made for that many of each record in a run."""
_MAX_TIME_MS = 1 << 60
"""Later records are left to the reference tier: no sum of a time and a window overflows."""
_EXACT = 2**53
_RESULT_META = {Meta.ROWTIME: Kind.BIGINT, "WINDOWSTART": Kind.BIGINT, "WINDOWEND": Kind.BIGINT}


@dataclass(frozen=True, slots=True, eq=False)
class Aggregated:
    """One aggregation: the kernel's name, its first state column, its argument (-1: none), its result from the state columns."""

    kernel: str
    column: int
    arg: int
    result: VectorOf


@dataclass(frozen=True, slots=True, eq=False)
class AggregatePlan:
    """What an aggregate does, over columns. A state columns.

    Attributes:
        arg_kinds: of the arguments.
        first_state: the state of an entry before its first record.
        is_float: per state column.
        meta: columns beside the results that something reads.
        then: what follows, None where only the reference tier holds it.
        encode: state of an entry -> JSON, for results of single updates that the kernels are not certain to write.
        output: the sink of single updates.
        keeps_before: whether a consumer compares results with those at the last commit; then that is the reference tier.
    """

    node: g.Aggregate
    parts: tuple[Aggregated, ...]
    arg_kinds: tuple[Kind, ...]
    first_state: State
    is_float: tuple[bool, ...]
    meta: tuple[str, ...]
    then: tuple[Step, ...] | None
    encode: Callable[[State], bytes] | None
    output: str
    keeps_before: bool

    @property
    def most_windows(self) -> int:
        """In how many windows a record counts at most."""
        window = self.node.window
        return 1 if window is None else -(-window.size_ms // window.advance_ms)

    def results(self, rows: Rows) -> dict[ColumnId, Vector]:
        """Return the results of rows of state columns."""
        return {(Side.VALUE, a.name): part.result(rows) for a, part in zip(self.node.aggregations, self.parts, strict=True)}


@dataclass(frozen=True, slots=True)
class AggregateStep:
    store: str
    args: tuple[VectorOf, ...]
    arg_kinds: tuple[Kind, ...]

    def prepare(self, batch: Batch, flow: Flow) -> None:
        tally, keys = batch.tallies[self.store], flow.key
        assert keys is not None
        batch.mark(keys.sizes < 0, flow.alive)
        batch.mark(flow.times > _MAX_TIME_MS, flow.alive)
        addresses, kept = np.zeros((len(self.args), 2), np.int64), []
        for i, (kind, compute) in enumerate(zip(self.arg_kinds, self.args, strict=True)):
            vector = compute(flow.rows)
            batch.mark(vector.unsure, flow.alive)
            dtype = {Kind.BOOLEAN: np.bool_, Kind.DOUBLE: np.float64}.get(kind, np.int64)
            data, nulls = full(vector.data, flow.rows.count, dtype), vector.nulls
            if nulls is not None:
                nulls = full(nulls, flow.rows.count, np.bool_)
                addresses[i, 0] = nulls.ctypes.data
            addresses[i, 1] = data.ctypes.data
            kept += [data, nulls]
        alive = np.ascontiguousarray(flow.alive)
        tally.load(keys, flow.times, alive & ~batch.marks)
        batch.effects.append(Update(batch, self.store, keys, flow.times, alive, addresses, (kept, flow.rows)))


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """N rows on their way into the entries of a store. `kept`: the memory that addresses point into."""

    batch: Batch
    store: str
    keys: Keys
    times: I64
    alive: Mask
    arguments: I64
    kept: object

    def apply(self, first: int, last: int) -> None:
        """Count the living ones of rows first..last."""
        self.batch.tallies[self.store].update(self, first, last)


@dataclass(frozen=True, slots=True)
class PassStep:
    then: tuple[Step, ...]

    def prepare(self, batch: Batch, flow: Flow) -> None:
        prepare_all(self.then, batch, flow)


def make_pass(builder: Builder, node: g.Node, source: str, kinds: Kinds) -> Step:
    """Return the step of a node that changes nothing of a record itself."""
    return PassStep(builder.after(node.name, kinds))


def make_aggregate(builder: Builder, node: g.Node, source: str, kinds: Kinds) -> Step:
    """Return the step of an Aggregate."""
    assert isinstance(node, g.Aggregate)
    wiring, window = builder.wiring, node.window
    if node.emit is g.Emit.FINAL or g.is_bare(node.schema) or wiring.raw_keys[source] is None:
        raise Unsupported("the emission, the state or the key of an aggregate")
    if (window is None and node.schema.window is not None) or (window and window.size_ms > _MAX_WINDOWS * window.advance_ms):
        raise Unsupported("a key that is windowed already, or that many windows")
    states = [column for a in node.aggregations for column in a.aggregator.state_columns]
    if not holds(states):
        raise Unsupported("the state of an aggregate")
    parts, args, first_state = _parts(node, kinds)
    meta: tuple[str, ...] = ()
    then, encode, output = None, None, ""
    try:
        meta, then = _results(builder, node)
        encode, output = _direct(builder, node)
    except Unsupported:
        if node.emit is g.Emit.UPDATE:
            raise
    is_float = tuple(column.type.kind is Kind.DOUBLE for column in states)
    arg_kinds = tuple(kind for kind, _ in args)
    keeps_before = node.name in wiring.wants_old
    builder.aggregates[node.store] = AggregatePlan(
        node, parts, arg_kinds, first_state, is_float, meta, None if keeps_before else then, encode, output, keeps_before
    )
    return AggregateStep(node.store, tuple(compute for _, compute in args), arg_kinds)


def _parts(node: g.Aggregate, kinds: Kinds) -> tuple[tuple[Aggregated, ...], list[tuple[Kind, VectorOf]], State]:
    """Return the aggregations, their arguments and the first state."""
    parts: list[Aggregated] = []
    args: list[tuple[Kind, VectorOf]] = []
    first_state: list[Any] = []
    for aggregation in node.aggregations:
        aggregator = aggregation.aggregator
        kernel, state = aggregator.kernel or "", aggregator.state_columns[0].type.kind
        if kernel not in _KERNELS or len(aggregation.args) != (0 if kernel == "count" and not aggregation.args else 1):
            raise Unsupported(f"the aggregation {aggregator.name}")
        if kernel in ("sum", "mean") and state not in (Kind.BIGINT, Kind.DOUBLE):
            raise Unsupported(f"{kernel} in {state}")
        arg = -1
        if aggregation.args:
            kind, compute = compile_vector(aggregation.args[0], kinds)
            takes = {"sum": (Kind.INTEGER, Kind.BIGINT), "mean": (Kind.INTEGER, Kind.BIGINT)}.get(kernel, ())
            if kernel != "count" and kind is not state and kind not in takes:
                raise Unsupported(f"{kernel} of {kind} in {state}")
            arg = len(args)
            args.append((kind, compute))
        parts.append(Aggregated(kernel, len(first_state), arg, _result(aggregation, len(first_state), state)))
        first_state += aggregator.initial
    if any(type(value) not in (int, float, type(None)) for value in first_state):
        raise Unsupported("the first state")
    return tuple(parts), args, tuple(first_state)


def state_column(at: int) -> ColumnId:
    """Return what a state column is called among the columns of rows."""
    return Side.META, f"state {at}"


def _result(aggregation: g.Aggregation, at: int, state: Kind) -> VectorOf:
    """Return the function from the state columns to a result."""
    aggregator = aggregation.aggregator
    if aggregator.kernel != "mean":
        probe = object()
        if aggregator.result((probe,)) is not probe:
            raise Unsupported("a result of its own")
        return lambda rows: rows.columns[state_column(at)]
    empty = aggregator.result(aggregator.initial)

    def mean(rows: Rows) -> Vector:
        sums, counts = rows.columns[state_column(at)].data, rows.columns[state_column(at + 1)].data
        is_empty = counts == 0
        unsure = (sums > _EXACT) | (sums < -_EXACT) if state is Kind.BIGINT else None
        data = np.where(is_empty, empty or 0.0, sums / np.where(is_empty, 1, counts))
        return Vector(data, None, is_empty if empty is None and is_empty.any() else None, unsure)

    return mean


def _results(builder: Builder, node: g.Aggregate) -> tuple[tuple[str, ...], tuple[Step, ...]]:
    """Return the columns beside the results that are read, and the steps that follow them."""
    kinds: dict[ColumnId, Kind] = {}
    for column in node.schema.value:
        if column.type.kind not in KINDS:
            raise Unsupported(f"a result of type {column.type}")
        kinds[Side.VALUE, column.name] = column.type.kind
    wanted = {name for side, name in builder.wiring.needs[node.name] if side is Side.META}
    meta = tuple(sorted(wanted & set(_RESULT_META)))
    for name in meta:
        kinds[Side.META, name] = _RESULT_META[name]
    after = replace(builder, makers=MappingProxyType({**builder.makers, g.ToStream: make_pass}), table_makers=_ON_TABLES)
    return meta, after.after(node.name, kinds)


def _make_view(builder: Builder, node: g.Node, source: str, kinds: Kinds) -> Step:
    if g.store_of(node) is not None:
        raise Unsupported("a view that is kept")
    return make_project(builder, node, source, kinds)


_ON_TABLES: Mapping[type, Any] = MappingProxyType({g.Project: _make_view, g.Sink: make_output})


def _direct(builder: Builder, node: g.Aggregate) -> tuple[Callable[[State], bytes], str]:
    """Return the encoder of an entry's results for the only sink, and its name; nothing may be computed on the way."""
    wiring, at = builder.wiring, node.name
    while True:
        children = wiring.children[at]
        if len(children) != 1 or not isinstance(children[0], g.ToStream | g.Sink):
            raise Unsupported("something computed from each update")
        sink = children[0]
        if isinstance(sink, g.Sink):
            break
        at = sink.name
    names = [column.name for column in sink.schema.value]
    places = [position for position, a in enumerate(node.aggregations) if a.name in names]
    if [node.aggregations[place].name for place in places] != names or sink.timestamp is not None:
        raise Unsupported("other columns, or another time")
    namespace = Namespace()
    values = [Fragment(f"row[{place}]", is_atom=True) for place in places]
    code = encode_fragment(namespace, "out", sink.value_format, sink.schema.value, values).code
    encode: Callable[[State], bytes] = eval(f"lambda row: {code}", dict(namespace.values))
    results = results_of(node.aggregations)
    return lambda state: encode(results(state)), sink.name
