"""A run of records on its way through a chain of nodes, as columns.

First every step is prepared over the whole run: conditions, projections, lookups, encoded outputs. Nothing has an effect yet, and
each step marks the rows that it is not certain of. Then the effects are applied, between the marked rows, which go through the
reference tier in their place. So a row is the one tier's or the other's in all branches of the chain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from logflume.log.records import I32, I64, Chunk
from logflume.log.schemas import Kind

from .. import graph as g
from ..compiler.usage import Wiring, is_needed
from ..expr import Side
from ..seams import Outputs
from .vectors import (
    KINDS,
    ColumnId,
    Kinds,
    Mask,
    Rows,
    Unsupported,
    Vector,
    VectorOf,
    compile_truth,
    compile_vector,
    full,
)


class Effect(Protocol):
    """What a step does once the marked rows are known."""

    def apply(self, first: int, last: int) -> None:
        """Do it for rows first..last, none of which is marked. Called for ascending rows."""
        ...


class Tally(Protocol):
    """A store that records are counted into (`tallies.Tally`). The second is an `aggregates.Update`."""

    def load(self, keys: Keys, times: I64, alive: Mask) -> None: ...

    def update(self, rows: Any, first: int, last: int) -> None: ...


class Lookup(Protocol):
    """A table's rows as columns (`tables.TableColumns`)."""

    def find(self, keys: Keys, wanted: Mask) -> Found: ...

    def changed(self, chunk: Chunk, start: int, stop: int) -> None: ...

    def clear(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Keys:
    """Encoded keys of N rows: addresses, and sizes in bytes, -1 where null."""

    starts: I64
    sizes: I32


@dataclass(frozen=True, slots=True)
class Found:
    """N rows of a table: where there is one, where that is not certain, its columns by name, and what their texts point into."""

    present: Mask
    unsure: Mask | None
    columns: Mapping[str, Vector]
    memory: object


@dataclass(slots=True, eq=False)
class Batch:
    """Records start..stop of a chunk. `marks`: the rows that the reference tier takes."""

    chunk: Chunk
    start: int
    stop: int
    json: ModuleType
    outputs: Outputs
    lookups: Mapping[str, Lookup]
    tallies: Mapping[str, Tally]
    marks: Mask
    effects: list[Effect] = field(default_factory=list)

    def mark(self, unsure: Mask | None, alive: Mask) -> None:
        """Mark rows that are unsure where a record is on its way."""
        if unsure is not None:
            self.marks |= unsure & alive


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """What a step receives. alive: rows that have come here; times: event times; key: None after a change of key."""

    rows: Rows
    alive: Mask
    times: I64
    key: Keys | None


class Step(Protocol):
    """A node and all that follows it."""

    def prepare(self, batch: Batch, flow: Flow) -> None: ...


@dataclass(slots=True)
class Builder:
    """Makes the steps of one source.

    Attributes:
        makers: class of a stream's node -> what makes its step; `table_makers`: the same where a table's changes come in.
        outputs: sinks made so far.
        aggregates: plans made so far, by store.
    """

    wiring: Wiring
    makers: Mapping[type, Callable[[Builder, g.Node, str, Kinds], Step]]
    table_makers: Mapping[type, Callable[[Builder, g.Node, str, Kinds], Step]] = field(default_factory=dict)
    outputs: set[str] = field(default_factory=set)
    aggregates: dict[str, Any] = field(default_factory=dict)

    def after(self, name: str, kinds: Kinds) -> tuple[Step, ...]:
        """Return the steps that follow a node whose output has these columns.

        Raises:
            Unsupported: something there is not held.
        """
        steps = []
        for child in self.wiring.children[name]:
            is_stream = child.kind is g.EdgeKind.STREAM or isinstance(child, g.Aggregate)
            make = (self.makers if is_stream else self.table_makers).get(type(child))
            if make is None:
                raise Unsupported(f"{type(child).__name__} of a {child.kind}")
            steps.append(make(self, child, name, kinds))
        return tuple(steps)


def prepare_all(steps: tuple[Step, ...], batch: Batch, flow: Flow) -> None:
    """Prepare steps that follow one node."""
    if steps and flow.alive.any():
        for step in steps:
            step.prepare(batch, flow)


@dataclass(frozen=True, slots=True)
class FilterStep:
    condition: VectorOf
    then: tuple[Step, ...]

    def prepare(self, batch: Batch, flow: Flow) -> None:
        found = self.condition(flow.rows)
        batch.mark(found.unsure, flow.alive)
        prepare_all(self.then, batch, replace(flow, alive=flow.alive & found.data))


def make_filter(builder: Builder, node: g.Node, source: str, kinds: Kinds) -> Step:
    """Return the step of a Filter."""
    assert isinstance(node, g.Filter)
    return FilterStep(compile_truth(node.predicate, kinds), builder.after(node.name, kinds))


@dataclass(frozen=True, slots=True)
class ProjectStep:
    columns: tuple[tuple[str, VectorOf], ...]
    then: tuple[Step, ...]

    def prepare(self, batch: Batch, flow: Flow) -> None:
        kept = {c: v for c, v in flow.rows.columns.items() if c[0] is not Side.VALUE}
        found = evaluated(self.columns, Side.VALUE, batch, flow)
        prepare_all(self.then, batch, replace(flow, rows=flow.rows.with_columns(kept | found)))


def evaluated(columns: tuple[tuple[str, VectorOf], ...], side: Side, batch: Batch, flow: Flow) -> dict[ColumnId, Vector]:
    """Compute columns for all rows; the tier that gets them may rely on rows that are not marked."""
    found: dict[ColumnId, Vector] = {}
    for name, compute in columns:
        vector = compute(flow.rows)
        batch.mark(vector.unsure, flow.alive)
        found[side, name] = vector._replace(unsure=None)
    return found


def make_project(builder: Builder, node: g.Node, source: str, kinds: Kinds) -> Step:
    """Return the step of a Project."""
    assert isinstance(node, g.Project)
    found, columns = projected(node.name, node.schema, node.columns, builder.wiring, kinds)
    kept = {column: kind for column, kind in kinds.items() if column[0] is not Side.VALUE}
    return ProjectStep(columns, builder.after(node.name, kept | found))


def projected(
    name: str, schema: g.Schema, exprs: tuple[tuple[str, Any], ...], wiring: Wiring, kinds: Kinds
) -> tuple[dict[ColumnId, Kind], tuple[tuple[str, VectorOf], ...]]:
    """Return the kinds and the functions of the new value columns that are read further on."""
    if g.is_bare(schema):
        raise Unsupported("a bare value")
    types = {column.name: column.type.kind for column in schema.value}
    found: dict[ColumnId, Kind] = {}
    columns = []
    for label, expr in exprs:
        if not is_needed(wiring.needs[name], label):
            continue
        kind, compute = compile_vector(expr, kinds)
        if types.get(label) is not kind:
            raise Unsupported(f"column {label} of another type")
        found[Side.VALUE, label] = kind
        columns.append((label, compute))
    return found, tuple(columns)


@dataclass(frozen=True, slots=True)
class RekeyStep:
    columns: tuple[tuple[str, VectorOf], ...]
    then: tuple[Step, ...]

    def prepare(self, batch: Batch, flow: Flow) -> None:
        kept = {c: v for c, v in flow.rows.columns.items() if c[0] is not Side.KEY}
        found = evaluated(self.columns, Side.KEY, batch, flow)
        prepare_all(self.then, batch, replace(flow, rows=flow.rows.with_columns(kept | found), key=None))


def make_rekey(builder: Builder, node: g.Node, source: str, kinds: Kinds) -> Step:
    """Return the step of a Rekey."""
    assert isinstance(node, g.Rekey)
    types = {column.name: column.type.kind for column in node.schema.key}
    kept = {column: kind for column, kind in kinds.items() if column[0] is not Side.KEY}
    columns = []
    for label, expr in node.key:
        kind, compute = compile_vector(expr, kinds)
        if types.get(label) is not kind:
            raise Unsupported(f"key column {label} of another type")
        kept[Side.KEY, label] = kind
        columns.append((label, compute))
    return RekeyStep(tuple(columns), builder.after(node.name, kept))


@dataclass(frozen=True, slots=True)
class OutputStep:
    """Encodes the records for a topic, keys and values as one buffer.

    Attributes:
        key: column and kind of the key to encode; None: the key as it came, or (`has_key` False) null.
        labels, label_ends: what stands before each value in the JSON, joined.
    """

    node: str
    needs_key: bool
    has_key: bool
    key: tuple[ColumnId, Kind] | None
    timestamp: VectorOf | None
    columns: tuple[ColumnId, ...]
    kinds: npt.NDArray[np.int64]
    labels: npt.NDArray[np.uint8]
    label_ends: npt.NDArray[np.int64]

    def prepare(self, batch: Batch, flow: Flow) -> None:
        keys, times = self._keys(flow), flow.times
        if self.timestamp is not None:
            found = self.timestamp(flow.rows)
            times = full(found.data, flow.rows.count, np.int64)
            batch.mark(found.unsure, flow.alive)
            batch.mark(found.nulls, flow.alive)
            batch.mark(times < 0, flow.alive)
        if self.needs_key:
            batch.mark(keys.sizes < 0, flow.alive)
        rows = np.flatnonzero(flow.alive & ~batch.marks)
        if len(rows):
            batch.effects.append(self._encode(batch, flow, rows, keys, times))

    def _keys(self, flow: Flow) -> Keys:
        count = flow.rows.count
        if not self.has_key:
            return Keys(np.zeros(count, np.int64), np.full(count, -1, np.int32))
        if self.key is None:
            assert flow.key is not None
            return flow.key
        column, kind = self.key
        vector = flow.rows.columns[column]
        if kind is Kind.STRING:
            starts, sizes = flow.rows.spans(vector)
        else:
            width = 4 if kind is Kind.INTEGER else 8
            out, starts = np.empty(count * width + 1, np.uint8), np.empty(count, np.int64)
            flow.rows.texts.write_number_keys(full(vector.data, count, np.int64), width, out, starts)
            flow.rows.kept.append(out)
            sizes = np.full(count, width, np.int64)
        return Keys(starts, (sizes if vector.nulls is None else np.where(vector.nulls, -1, sizes)).astype(np.int32))

    def _encode(self, batch: Batch, flow: Flow, rows: I64, keys: Keys, times: I64) -> Effect:
        count, json = flow.rows.count, batch.json
        room = len(rows) * (len(self.labels) + json.NUMBER_SIZE * len(self.columns) + 1)
        room += int(np.maximum(keys.sizes[rows], 0).sum(dtype=np.int64))
        addresses = np.zeros((len(self.columns), 3), np.int64)
        kept: list[Any] = []
        for c, column in enumerate(self.columns):
            vector, kind = flow.rows.columns[column], self.kinds[c]
            dtype = {json.BOOLEAN: np.bool_, json.DOUBLE: np.float64}.get(int(kind), np.int64)
            parts = [vector.nulls, full(vector.data, count, dtype)]
            if vector.sizes is not None:
                sizes = full(vector.sizes, count, np.int64)
                room += int(sizes[rows].sum())
                parts.append(sizes)
            addresses[c, : len(parts)] = [0 if part is None else part.ctypes.data for part in parts]
            kept += parts
        out = np.empty(room + json.SPARE_BYTES, np.uint8)
        key_starts, value_starts = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        value_sizes = np.empty(len(rows), np.int32)
        end = json.write(
            rows, np.ascontiguousarray(keys.starts), np.ascontiguousarray(keys.sizes), self.labels, self.label_ends, self.kinds,
            addresses, out, key_starts, value_starts, value_sizes,
        )  # fmt: skip
        failed = value_sizes < 0
        if failed.any():
            batch.marks[rows[failed]] = True
            good = ~failed
            rows, key_starts, value_starts, value_sizes = rows[good], key_starts[good], value_starts[good], value_sizes[good]
        return Encoded(
            batch.outputs, self.node, batch.start, rows, out[:end], times[rows], key_starts, keys.sizes[rows], value_starts,
            value_sizes,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """R encoded rows on their way to a topic, in `out` one after the other."""

    outputs: Outputs
    node: str
    start: int
    rows: I64
    out: npt.NDArray[np.uint8]
    times: I64
    key_starts: I64
    key_sizes: I32
    value_starts: I64
    value_sizes: I32

    def apply(self, first: int, last: int) -> None:
        """Put out rows first..last."""
        a, b = np.searchsorted(self.rows, (first, last)).tolist()
        if a == b:
            return
        begin = int(self.key_starts[a])
        end = int(self.key_starts[b]) if b < len(self.rows) else len(self.out)
        none = np.zeros(b - a, np.int64)
        chunk = Chunk(
            "", -1, self.out[begin:end], np.arange(b - a), self.times[a:b], self.key_starts[a:b] - begin, self.key_sizes[a:b],
            self.value_starts[a:b] - begin, self.value_sizes[a:b], none, none.astype(np.int32), b - a,
        )  # fmt: skip
        self.outputs.send_columns(self.node, chunk, causes=self.rows[a:b] + self.start)


def make_output(builder: Builder, node: g.Node, source: str, kinds: Kinds) -> Step:
    """Return the step of a Sink or a Repartition that is written."""
    assert isinstance(node, g.Sink | g.Repartition)
    if node.name in builder.outputs:
        raise Unsupported("an output that several branches lead to")
    builder.outputs.add(node.name)
    schema, columns = builder.wiring.nodes[source].schema, node.schema.value
    if node.value_format.name != "JSON":
        raise Unsupported("the format of an output")
    if not columns or (not node.value_format.is_wrapped and len(columns) == 1):
        raise Unsupported("a bare value")
    for column in columns:
        if kinds.get((Side.VALUE, column.name)) is not column.type.kind:
            raise Unsupported(f"column {column.name}")
    raw = builder.wiring.raw_keys[source]
    key: tuple[ColumnId, Kind] | None = None
    if raw is None or raw[0] != node.key_format:
        if schema.window is not None:
            raise Unsupported("a windowed key in another format")
        key = _key_column(node, schema, kinds)
    labels = [f'{"," if i else "{"}"{plain_name(column.name)}":'.encode() for i, column in enumerate(columns)]
    timestamp = node.timestamp if isinstance(node, g.Sink) else None
    return OutputStep(
        node.name,
        isinstance(node, g.Repartition) and not node.keeps_null_keys,
        key is not None or not (raw is None or raw[0] != node.key_format),
        key,
        None if timestamp is None else _time_of(timestamp, kinds),
        tuple((Side.VALUE, column.name) for column in columns),
        np.array([KINDS[column.type.kind] for column in columns], np.int64),
        np.frombuffer(b"".join(labels) + bytes(8), np.uint8),
        np.cumsum([len(label) for label in labels], dtype=np.int64),
    )


def _key_column(node: g.Sink | g.Repartition, schema: g.Schema, kinds: Kinds) -> tuple[ColumnId, Kind] | None:
    if not schema.key:
        return None
    column = schema.key[0]
    if len(schema.key) != 1 or node.key_format.name != "KAFKA" or kinds.get((Side.KEY, column.name)) is not column.type.kind:
        raise Unsupported("the format of a key")
    if column.type.kind not in (Kind.STRING, Kind.INTEGER, Kind.BIGINT):
        raise Unsupported(f"a key of type {column.type}")
    return (Side.KEY, column.name), column.type.kind


def _time_of(expr: Any, kinds: Kinds) -> VectorOf:
    kind, found = compile_vector(expr, kinds)
    if kind not in (Kind.BIGINT, Kind.TIMESTAMP, Kind.INTEGER):
        raise Unsupported(f"a time of type {kind}")
    return found


def plain_name(name: str) -> str:
    """Return a name that JSON writes as it is. Raises Unsupported."""
    if not (name.isascii() and name.isprintable()) or '"' in name or "\\" in name:
        raise Unsupported(f"the name {name!r}")
    return name
