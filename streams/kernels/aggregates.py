"""Aggregates from one JSON source, over columns: what the compiled tier holds of them, worked out from the graph.

before: Source -> Filter -> Project -> Aggregate     rows to arguments, as the stateless chain computes its outputs
after:  Aggregate -> ToStream -> Filter -> Sink      changed slots to JSON; whatever else follows is left to the reference tier
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from logflume.log.schemas import Kind

from .. import graph as g
from ..aggregators import State, first, results_of
from ..compiler import CompiledProgram
from ..compiler.codecs import encode_fragment
from ..compiler.expressions import Fragment, Namespace
from ..expr import Side, columns_used
from ..state.columns import holds
from .columns import KINDS, Column, Environment, Rows, Unsupported, Values, compile_column, truth
from .stateless import Chain, _fields, _output, _plain, _project, _reader

_KERNELS = ("count", "sum", "mean", "min", "max")
_MAX_WINDOWS = 1000
_EXACT = 2**53


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One aggregation: the kernel's name, its first state column, its argument (-1: none) and its result from the states."""

    kernel: str
    column: int
    arg: int
    result: Column


@dataclass(frozen=True, slots=True, eq=False)
class AggregateChain:
    """What a sub-topology with one aggregate does, over columns.

    Attributes:
        node: the aggregate.
        steps: its aggregations.
        before: from the source to the arguments, which are its outputs.
        time: the event time of a row, None: the record's own.
        first_state: the state of an entry before its first record; A values.
        after: from the results to a sink, None where only the reference tier holds what follows.
        encode: state of one entry -> JSON, for what the kernels are not certain to write; only where nothing is computed.
    """

    node: g.Aggregate
    before: Chain
    time: Column | None
    steps: tuple[Step, ...]
    first_state: tuple[Any, ...]
    after: Chain | None
    encode: Callable[[State], bytes] | None
    has_consumers: bool

    @property
    def most_windows(self) -> int:
        """In how many windows a record counts at most."""
        window = self.node.window
        return 1 if window is None else -(-window.size_ms // window.advance_ms)


def aggregate_chain(program: CompiledProgram) -> AggregateChain:
    """Return what the program does over columns.

    Raises:
        Unsupported: only the reference tier holds it.
    """
    wiring = program.wiring
    if len(program.sources) != 1 or len(program.stores) != 1:
        raise Unsupported("several sources or stores")
    source = wiring.nodes[next(iter(program.sources))]
    needs, time = wiring.needs[source.name], None
    if isinstance(source, g.Source) and source.kind is g.EdgeKind.STREAM:
        time = source.timestamp
    elif not isinstance(source, g.Repartition):
        raise Unsupported("the source")
    if source.schema.window is not None or source.value_format.name != "JSON":
        raise Unsupported("the source's format")
    if not source.value_format.is_wrapped and len(source.schema.value) == 1:
        raise Unsupported("a bare value")
    if time is not None:
        needs = needs | columns_used(time)
    fields = _fields(source, needs)
    environment: Environment = {(Side.VALUE, c.name): (c.type.kind, _reader(c.name)) for c in fields}
    event_time = None
    if time is not None:
        kind, event_time = compile_column(time, environment)
        if kind not in (Kind.BIGINT, Kind.TIMESTAMP):
            raise Unsupported(f"a time of type {kind}")
    node, conditions = _to_aggregate(program, source, environment)
    aggregate, environment = node
    steps, args, first_state = _steps(program, aggregate, environment)
    before = Chain(
        "", tuple(c.name for c in fields), np.array([KINDS[c.type.kind] for c in fields], np.int64),
        tuple(c.type.kind for c in fields), tuple(conditions), args, np.zeros(0, np.uint8), np.zeros(0, np.int64),
    )  # fmt: skip
    after, encode = None, None
    try:
        after, encode = _to_sink(program, aggregate, steps)
    except Unsupported:
        if aggregate.emit is g.Emit.UPDATE or aggregate.name in wiring.wants_old:
            raise
    return AggregateChain(
        aggregate, before, event_time, steps, first_state, after, encode, bool(wiring.children[aggregate.name]),
    )  # fmt: skip


def _to_aggregate(
    program: CompiledProgram, source: g.Node, environment: Environment
) -> tuple[tuple[g.Aggregate, Environment], list[Any]]:
    """Follow the only way from the source to the aggregate; return it with its input's columns, and the conditions before."""
    wiring, node, conditions = program.wiring, source, []
    while True:
        children = wiring.children[node.name]
        if len(children) != 1 or (node.name in wiring.outputs and node is not source):
            raise Unsupported("several consumers")
        node = children[0]
        match node:
            case g.Aggregate():
                break
            case g.Filter() if node.kind is g.EdgeKind.STREAM:
                conditions.append(truth(node.predicate, environment))
            case g.Project() if node.kind is g.EdgeKind.STREAM:
                environment = _project(node, environment, wiring.needs[node.name])
            case _:
                raise Unsupported(type(node).__name__)
    assert isinstance(node, g.Aggregate)
    window = node.window
    if node.emit is g.Emit.FINAL or (window is None and node.schema.window is not None):
        raise Unsupported("the emission, or a key that is windowed already")
    if window is not None and window.size_ms > _MAX_WINDOWS * window.advance_ms:
        raise Unsupported("that many windows")
    if not holds(program.stores[0].columns) or g.is_bare(node.schema):
        raise Unsupported("the state")
    return (node, environment), conditions


def _steps(
    program: CompiledProgram, node: g.Aggregate, environment: Environment
) -> tuple[tuple[Step, ...], tuple[tuple[int, Column], ...], tuple[Any, ...]]:
    """Return the aggregations, their arguments and the first state."""
    steps: list[Step] = []
    args: list[tuple[int, Column]] = []
    first_state: list[Any] = []
    for aggregation in node.aggregations:
        aggregator = aggregation.aggregator
        kernel, at = aggregator.kernel or "", len(first_state)
        state = aggregator.state_columns[0].type.kind
        if kernel not in _KERNELS or len(aggregation.args) > 1 or (kernel != "count" and not aggregation.args):
            raise Unsupported(f"the aggregation {aggregator.name}")
        if kernel in ("sum", "mean") and state not in (Kind.BIGINT, Kind.DOUBLE):
            raise Unsupported(f"{kernel} in {state}")
        arg = -1
        if aggregation.args:
            kind, column = compile_column(aggregation.args[0], environment)
            arg = len(args)
            args.append((KINDS[kind], column))
            if kernel in ("min", "max") and kind is not state:
                raise Unsupported(f"{kernel} of {kind} in {state}")
            if kernel in ("sum", "mean") and kind not in (Kind.INTEGER, Kind.BIGINT, *([state] if state is Kind.DOUBLE else [])):
                raise Unsupported(f"{kernel} of {kind} in {state}")
        first_state += aggregator.initial
        steps.append(Step(kernel, at, arg, _result(aggregation, at, state)))
    if any(type(value) not in (int, float, type(None)) for value in first_state):
        raise Unsupported("the first state")
    return tuple(steps), tuple(args), tuple(first_state)


def _result(aggregation: g.Aggregation, at: int, state: Kind) -> Column:
    """Return the function from the states to a result. The states are columns of side META, named by their place."""
    if aggregation.aggregator.kernel != "mean":
        return lambda rows: rows.columns[Side.META, str(at)]
    empty = aggregation.aggregator.result(aggregation.aggregator.initial)

    def mean(rows: Rows) -> Values:
        sums, counts = rows.columns[Side.META, str(at)].data, rows.columns[Side.META, str(at + 1)].data
        is_empty = counts == 0
        if state is Kind.BIGINT:
            np.logical_or(rows.marks, (sums > _EXACT) | (sums < -_EXACT), out=rows.marks)
        data = sums / np.where(is_empty, 1, counts)
        data[is_empty] = empty or 0.0
        return Values(is_empty & (empty is None), data)

    return mean


def _to_sink(
    program: CompiledProgram, aggregate: g.Aggregate, steps: tuple[Step, ...]
) -> tuple[Chain, Callable[[State], bytes] | None]:
    """Follow the only way from the aggregate to a sink.

    Returns the chain, and the encoder of one entry's results; without one where something is computed from them.
    """
    wiring, node, conditions = program.wiring, aggregate, []
    environment: Environment = {}
    for aggregation, step in zip(aggregate.aggregations, steps, strict=True):
        is_plain = aggregation.aggregator.result is first
        if step.kernel != "mean" and not is_plain:
            raise Unsupported("a result of its own")
        environment = {**environment, (Side.VALUE, aggregation.name): (aggregation.aggregator.type.kind, step.result)}
    results = environment
    at: g.Node = node
    while not isinstance(at, g.Sink):
        children = wiring.children[at.name]
        if len(children) != 1 or at.name in wiring.wants_old:
            raise Unsupported("several consumers, or one that compares")
        at = children[0]
        match at:
            case g.Filter() if at.kind is g.EdgeKind.STREAM:
                conditions.append(truth(at.predicate, environment))
            case g.Project():
                environment = _project(at, environment, wiring.needs[at.name])
            case g.ToStream() | g.Sink():
                pass
            case _:
                raise Unsupported(type(at).__name__)
    raw = wiring.raw_keys[at.inputs[0]]
    if raw is None or raw[0] != at.key_format or at.timestamp is not None or at.value_format.name != "JSON":
        raise Unsupported("the sink's formats")
    columns = at.schema.value
    if not columns or (not at.value_format.is_wrapped and len(columns) == 1):
        raise Unsupported("a bare value")
    labels = [f'{"," if i else "{"}"{_plain(column.name)}":'.encode() for i, column in enumerate(columns)]
    chain = Chain(
        at.name, (), np.zeros(0, np.int64), (), tuple(conditions), tuple(_output(column, environment) for column in columns),
        np.frombuffer(b"".join(labels), np.uint8), np.cumsum([len(label) for label in labels], dtype=np.int64),
    )  # fmt: skip
    found = [results.get((Side.VALUE, aggregation.name)) for aggregation in aggregate.aggregations]
    written = [environment.get((Side.VALUE, column.name)) for column in columns]
    if conditions or any(each not in found for each in written):
        if aggregate.emit is g.Emit.UPDATE:
            raise Unsupported("something computed from each update")
        return chain, None
    return chain, _encoder(at, results_of(aggregate.aggregations), [found.index(each) for each in written])


def _encoder(sink: g.Sink, results: Callable[[State], State], places: list[int]) -> Callable[[State], bytes]:
    """Return the function from the state of an entry to its bytes, as the reference tier has it.

    `places`: which of the results each column is.
    """
    namespace = Namespace()
    parts = [Fragment(f"row[{place}]", is_atom=True) for place in places]
    fragment = encode_fragment(namespace, "out", sink.value_format, sink.schema.value, parts)
    encode: Callable[[State], bytes] = eval(f"lambda row: {fragment.code}", dict(namespace.values))
    return lambda state: encode(results(state))
