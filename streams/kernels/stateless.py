"""Filters and projections from one JSON source to one JSON sink, over columns.

A run of records is decoded, filtered, projected and encoded in columns. A row that any step is not certain of is marked; marked
rows go through the reference tier in their place, so that outputs and reports come in the same order as without this tier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from logflume.log.records import Chunk
from logflume.log.schemas import Column as SchemaColumn
from logflume.log.schemas import Kind

from .. import graph as g
from ..compiler import CompiledProgram
from ..expr import Side
from ..seams import Outputs, Problems, StateStore, StoreSpec, TaskFunction
from .columns import KINDS, Column, Environment, Rows, Unsupported, Values, compile_column, truth
from .tier import compiled_tier

_FEW_RECORDS = 64
_MAX_MARKED_SHARE = 4
"""Where more than one row in this many is marked, the run is the reference tier's."""
_MAX_FIELDS = 60


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """What a sub-topology does, over columns. F fields are read, C columns written.

    Attributes:
        fields, kinds: names and kind numbers of the fields that the reference tier decodes too.
        conditions: in their order.
        outputs: kind number and function of each column written.
        labels, label_ends: what stands before each value in the JSON, joined.
    """

    sink: str
    fields: tuple[str, ...]
    kinds: npt.NDArray[np.int64]
    field_kinds: tuple[Kind, ...]
    conditions: tuple[Callable[[Rows], npt.NDArray[np.bool_]], ...]
    outputs: tuple[tuple[int, Column], ...]
    labels: npt.NDArray[np.uint8]
    label_ends: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """N rows after the chain. status: int64[N]; the values are spans of `data`, set where the status is CERTAIN."""

    status: npt.NDArray[np.int64]
    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class TieredProgram:
    """Implements `seams.Program`: the reference tier, and the compiled tier where it is ready."""

    reference: CompiledProgram
    source: str
    chain: Chain

    @property
    def sources(self) -> Mapping[str, str]:
        return self.reference.sources

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return self.reference.stores

    @property
    def source_code(self) -> str:
        return self.reference.source_code

    def bind(self, stores: Mapping[str, StateStore], outputs: Outputs, problems: Problems) -> TaskFunction:
        """Return the functions of one task."""
        return TieredFunction(self.reference.bind(stores, outputs, problems), self.chain, outputs)


@dataclass(frozen=True, slots=True, eq=False)
class TieredFunction:
    """Implements `seams.TaskFunction`. Without state, so the tiers take turns at any record."""

    reference: TaskFunction
    chain: Chain
    outputs: Outputs

    def flush(self) -> None:
        self.reference.flush()

    def restore(self, source: str, chunk: Any, start: int, stop: int) -> None:
        self.reference.restore(source, chunk, start, stop)

    def process(self, source: str, chunk: Any, start: int, stop: int) -> None:
        kernels = compiled_tier().kernels(stop - start)
        if kernels is None or stop - start < _FEW_RECORDS or chunk.header_counts[start:stop].any():
            self.reference.process(source, chunk, start, stop)
            return
        encoded = run_chain(self.chain, chunk, start, stop, kernels)
        marked = np.flatnonzero(encoded.status == kernels.MARKED)
        if len(marked) * _MAX_MARKED_SHARE > stop - start:
            self.reference.process(source, chunk, start, stop)
            return
        at = 0
        for block in np.split(marked, np.flatnonzero(np.diff(marked) > 1) + 1) if len(marked) else ():
            first, last = int(block[0]), int(block[-1]) + 1
            self._send(encoded, chunk, start, at, first, kernels)
            self.reference.process(source, chunk, start + first, start + last)
            at = last
        self._send(encoded, chunk, start, at, stop - start, kernels)

    def _send(self, encoded: Encoded, chunk: Chunk, start: int, first: int, last: int, kernels: ModuleType) -> None:
        rows = np.flatnonzero(encoded.status[first:last] == kernels.CERTAIN) + first
        if len(rows) == 0:
            return
        data = np.concatenate([chunk.buffer, encoded.data])
        taken = replace(
            chunk.take(rows + start),
            buffer=data,
            value_starts=encoded.starts[rows] + len(chunk.buffer),
            value_sizes=encoded.sizes[rows],
        )
        self.outputs.send_columns(self.chain.sink, taken, causes=rows + start)


def run_chain(chain: Chain, chunk: Chunk, start: int, stop: int, kernels: ModuleType) -> Encoded:
    """Decode, filter, project and encode records start..stop; releases the lock for most of it."""
    status, rows = _decode(chain, chunk, start, stop, kernels)
    with np.errstate(all="ignore"):
        keep = status == kernels.CERTAIN
        for condition in chain.conditions:
            keep &= condition(rows)
        columns = [column(rows) for _, column in chain.outputs]
    status[(status == kernels.CERTAIN) & ~keep] = kernels.DROPPED
    status[rows.marks] = kernels.MARKED
    return _encode(chain, rows, columns, status, kernels)


def _decode(chain: Chain, chunk: Chunk, start: int, stop: int, kernels: ModuleType) -> tuple[npt.NDArray[np.int64], Rows]:
    count, shape = stop - start, (len(chain.fields), stop - start)
    status = np.empty(count, np.int64)
    nulls, floats = np.empty(shape, np.bool_), np.zeros(shape, np.float64)
    ints, begins, lengths = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    names = [name.encode() for name in chain.fields]
    kernels.extract(
        np.ascontiguousarray(chunk.buffer),
        np.ascontiguousarray(chunk.value_starts[start:stop]),
        np.ascontiguousarray(chunk.value_sizes[start:stop]),
        np.ascontiguousarray(chunk.timestamps_ms[start:stop]),
        np.frombuffer(b"".join(names) or b" ", np.uint8),
        np.cumsum([len(name) for name in names], dtype=np.int64),
        chain.kinds,
        np.array([name == name.upper() for name in chain.fields], np.int64),
        status, nulls, ints, floats, begins, lengths,
    )  # fmt: skip
    columns: dict[tuple[Side, str], Values] = {}
    for f, (name, kind) in enumerate(zip(chain.fields, chain.field_kinds, strict=True)):
        if kind is Kind.STRING:
            columns[Side.VALUE, name] = Values(nulls[f], begins[f], lengths[f])
        elif kind is Kind.DOUBLE:
            columns[Side.VALUE, name] = Values(nulls[f], floats[f])
        else:
            columns[Side.VALUE, name] = Values(nulls[f], ints[f] == 1 if kind is Kind.BOOLEAN else ints[f])
    return status, Rows(chunk.buffer, columns, np.zeros(count, np.bool_), kernels)


def _encode(chain: Chain, rows: Rows, columns: Sequence[Values], status: npt.NDArray[np.int64], kernels: ModuleType) -> Encoded:
    count, shape = len(status), (len(columns), len(status))
    nulls, floats = np.empty(shape, np.bool_), np.empty(shape, np.float64)
    ints, begins, lengths = np.empty(shape, np.int64), np.empty(shape, np.int64), np.empty(shape, np.int64)
    chosen = np.flatnonzero(status == kernels.CERTAIN)
    room = len(chosen) * (len(chain.labels) + kernels.NUMBER_SIZE * len(columns) + 1)
    for c, ((kind, _), values) in enumerate(zip(chain.outputs, columns, strict=True)):
        nulls[c] = values.nulls
        if values.sizes is not None:
            begins[c], lengths[c] = values.data, values.sizes
            room += int(values.sizes[chosen].sum())
        else:
            (floats if kind == kernels.DOUBLE else ints)[c] = values.data
    data = np.empty(room + 1, np.uint8)
    starts, sizes = np.zeros(count, np.int64), np.zeros(count, np.int32)
    buffer, kinds = np.ascontiguousarray(rows.buffer), np.array([kind for kind, _ in chain.outputs], np.int64)
    kernels.write(
        buffer, chosen, chain.labels, chain.label_ends, kinds, nulls, ints, floats, begins, lengths, status, data, starts, sizes,
    )  # fmt: skip
    return Encoded(status, data, starts, sizes)


def tiered(program: CompiledProgram) -> CompiledProgram | TieredProgram:
    """Return the program with the compiled tier beside it, or as it is where that tier does not hold it."""
    if len(program.sources) != 1 or program.stores:
        return program
    try:
        return TieredProgram(program, next(iter(program.sources)), _chain(program))
    except Unsupported:
        return program


def _chain(program: CompiledProgram) -> Chain:
    wiring = program.wiring
    node = wiring.nodes[next(iter(program.sources))]
    if not isinstance(node, g.Source) or node.kind is not g.EdgeKind.STREAM or node.timestamp is not None:
        raise Unsupported("the source")
    if node.schema.window is not None or node.value_format.name != "JSON" or len(wiring.outputs) != 1:
        raise Unsupported("the source's format")
    if not node.value_format.is_wrapped and len(node.schema.value) == 1:
        raise Unsupported("a bare value")
    fields = _fields(node, wiring.needs[node.name])
    environment: Environment = {(Side.VALUE, c.name): (c.type.kind, _reader(c.name)) for c in fields}
    conditions = []
    while not isinstance(node, g.Sink):
        children = wiring.children[node.name]
        if len(children) != 1:
            raise Unsupported("several consumers")
        node = children[0]
        if node.kind is not g.EdgeKind.STREAM:
            raise Unsupported("a table")
        if isinstance(node, g.Filter):
            conditions.append(truth(node.predicate, environment))
        elif isinstance(node, g.Project):
            environment = _project(node, environment, wiring.needs[node.name])
        elif not isinstance(node, g.Sink):
            raise Unsupported(type(node).__name__)
    raw = wiring.raw_keys[node.inputs[0]]
    if raw is None or raw[0] != node.key_format or node.timestamp is not None or node.value_format.name != "JSON":
        raise Unsupported("the sink's formats")
    columns = node.schema.value
    if not columns or (not node.value_format.is_wrapped and len(columns) == 1):
        raise Unsupported("a bare value")
    labels = [f'{"," if i else "{"}"{_plain(column.name)}":'.encode() for i, column in enumerate(columns)]
    return Chain(
        node.name,
        tuple(c.name for c in fields),
        np.array([KINDS[c.type.kind] for c in fields], np.int64),
        tuple(c.type.kind for c in fields),
        tuple(conditions),
        tuple(_output(column, environment) for column in columns),
        np.frombuffer(b"".join(labels), np.uint8),
        np.cumsum([len(label) for label in labels], dtype=np.int64),
    )


def _fields(node: g.Source, needs: frozenset[tuple[Side, str]]) -> tuple[SchemaColumn, ...]:
    """Return the fields that the reference tier decodes, so that both tiers refuse the same rows."""
    used = {name for side, name in needs if side is Side.VALUE}
    fields = tuple(c for c in node.schema.value if c.name in used)
    if len(fields) != len(needs) or len(fields) > _MAX_FIELDS:
        raise Unsupported("columns that are not fields of the value")
    for field in fields:
        if field.type.kind not in KINDS:
            raise Unsupported(f"a field of type {field.type}")
        _plain(field.name)
    return fields


def _plain(name: str) -> str:
    """Return a name that JSON writes as it is."""
    if not (name.isascii() and name.isprintable()) or '"' in name or "\\" in name:
        raise Unsupported(f"the name {name!r}")
    return name


def _reader(name: str) -> Column:
    return lambda rows: rows.columns[Side.VALUE, name]


def _project(node: g.Project, environment: Environment, needs: frozenset[tuple[Side, str]]) -> Environment:
    if g.is_bare(node.schema):
        raise Unsupported("a bare value")
    kinds = {column.name: column.type.kind for column in node.schema.value}
    found = {}
    for name, expr in node.columns:
        if (Side.VALUE, name) not in needs:
            continue
        kind, column = compile_column(expr, environment)
        if kinds.get(name) is not kind:
            raise Unsupported(f"column {name} of another type")
        found[Side.VALUE, name] = (kind, column)
    return found


def _output(column: SchemaColumn, environment: Environment) -> tuple[int, Column]:
    kind, found = environment.get((Side.VALUE, column.name), (None, None))
    if found is None or kind is not column.type.kind:
        raise Unsupported(f"column {column.name}")
    return KINDS[column.type.kind], found
