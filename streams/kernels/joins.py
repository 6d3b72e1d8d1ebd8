"""The stream-table join over columns. The table is a source that is kept, or projections of one, computed for the rows found."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from logflume.log.schemas import Kind

from .. import graph as g
from ..expr import TABLE_PREFIX, ColumnRef, Side, columns_used, walk
from .flow import Batch, Builder, Flow, Found, Step, evaluated, prepare_all, projected
from .vectors import KINDS, ColumnId, Kinds, Mask, Rows, Unsupported, Vector, VectorOf, compile_vector, either


@dataclass(frozen=True, slots=True)
class View:
    """What lies between the table that is kept and the join: per projection its columns; and the key columns, theirs -> ours."""

    keys: tuple[tuple[str, str], ...]
    projections: tuple[tuple[tuple[str, VectorOf], ...], ...]

    def columns(self, batch: Batch, flow: Flow, found: Found, wanted: Mask) -> dict[str, Vector]:
        """Return the columns of the view for the rows found; they are null where there is no row."""
        columns = dict(found.columns)
        keys: dict[ColumnId, Vector] = {
            (Side.KEY, theirs): flow.rows.columns[Side.KEY, ours]
            for theirs, ours in self.keys
            if (Side.KEY, ours) in flow.rows.columns
        }
        here = wanted & found.present
        missing = None if found.present.all() else ~found.present
        for projection in self.projections:
            rows = flow.rows.with_columns(keys | {(Side.VALUE, name): vector for name, vector in columns.items()})
            columns = {name: _computed(batch, compute, rows, here, missing) for name, compute in projection}
        return columns


def _computed(batch: Batch, compute: VectorOf, rows: Rows, here: Mask, missing: Mask | None) -> Vector:
    vector = compute(rows)
    batch.mark(vector.unsure, here)
    nulls = either(vector.nulls, missing)
    sizes = vector.sizes if vector.sizes is None or nulls is None else np.where(nulls, 0, vector.sizes)
    return Vector(vector.data, sizes, nulls)


@dataclass(frozen=True, slots=True)
class JoinStep:
    """Looks up the row of each key; an inner join drops records without one."""

    store: str
    is_left: bool
    view: View
    columns: tuple[tuple[str, VectorOf], ...]
    then: tuple[Step, ...]

    def prepare(self, batch: Batch, flow: Flow) -> None:
        assert flow.key is not None
        has_key = flow.key.sizes >= 0
        if not self.is_left:
            batch.mark(~has_key, flow.alive)
        wanted = flow.alive & has_key & ~batch.marks
        found = batch.lookups[self.store].find(flow.key, wanted)
        flow.rows.kept.append(found.memory)
        batch.mark(found.unsure, flow.alive)
        alive = flow.alive if self.is_left else flow.alive & found.present
        seen = self.view.columns(batch, flow, found, wanted)
        table: dict[ColumnId, Vector] = {(Side.VALUE, TABLE_PREFIX + name): vector for name, vector in seen.items()}
        both = replace(flow, alive=alive, rows=flow.rows.with_columns(flow.rows.columns | table))
        kept = {c: v for c, v in flow.rows.columns.items() if c[0] is not Side.VALUE}
        joined = evaluated(self.columns, Side.VALUE, batch, both)
        prepare_all(self.then, batch, replace(both, rows=flow.rows.with_columns(kept | joined)))


def make_join(builder: Builder, node: g.Node, source: str, kinds: Kinds) -> Step:
    """Return the step of a StreamTableJoin."""
    assert isinstance(node, g.StreamTableJoin)
    if source != node.inputs[0] or builder.wiring.raw_keys[source] is None:
        raise Unsupported("a join by a key that was computed")
    table = joined_table(builder, node)
    ours = builder.wiring.nodes[source].schema.key
    keys = tuple((theirs.name, our.name) for our, theirs in zip(ours, table.schema.key, strict=True))
    key_kinds = {(Side.KEY, theirs): kinds[Side.KEY, our] for theirs, our in keys if (Side.KEY, our) in kinds}
    seen, projections = _projections(builder, node.inputs[1], key_kinds)
    for name in base_columns(builder, node):
        if (Side.VALUE, name) not in _kept_kinds(table):
            raise Unsupported(f"the table's column {name}")
    joined = {(Side.VALUE, TABLE_PREFIX + name): kind for (side, name), kind in seen.items() if side is Side.VALUE}
    found, columns = projected(node.name, node.schema, node.columns, builder.wiring, {**kinds, **joined})
    kept = {column: kind for column, kind in kinds.items() if column[0] is not Side.VALUE}
    assert table.store is not None
    is_left = node.join is g.JoinKind.LEFT
    return JoinStep(table.store, is_left, View(keys, projections), columns, builder.after(node.name, kept | found))


def _kept_kinds(table: g.Source) -> dict[ColumnId, Kind]:
    return {(Side.VALUE, c.name): c.type.kind for c in table.schema.value if c.type.kind in KINDS}


def _projections(
    builder: Builder, name: str, keys: Kinds
) -> tuple[dict[ColumnId, Kind], tuple[tuple[tuple[str, VectorOf], ...], ...]]:
    """Return the columns of a joined table or view, and the projections that lead to it, in order."""
    node = builder.wiring.nodes[name]
    if isinstance(node, g.Source):
        return _kept_kinds(node) | dict(keys), ()
    assert isinstance(node, g.Project)
    kinds, before = _projections(builder, node.inputs[0], keys)
    found = {label: compile_vector(expr, kinds) for label, expr in node.columns}
    columns: dict[ColumnId, Kind] = {(Side.VALUE, label): kind for label, (kind, _) in found.items()}
    return columns | dict(keys), (*before, tuple((label, compute) for label, (_, compute) in found.items()))


def joined_table(builder: Builder, node: g.StreamTableJoin) -> g.Source:
    """Return the source of the joined table, seen through projections. Raises Unsupported: it is something else, or windowed."""
    table = builder.wiring.nodes[node.inputs[1]]
    while isinstance(table, g.Project) and table.store is None and not g.is_bare(table.schema):
        table = builder.wiring.nodes[table.inputs[0]]
    if not isinstance(table, g.Source) or table.store is None or table.schema.window is not None:
        raise Unsupported("a joined table that is not a source")
    return table


def base_columns(builder: Builder, node: g.StreamTableJoin) -> tuple[str, ...]:
    """Return the names of the columns that a join reads of the table that is kept."""
    view = builder.wiring.nodes[node.inputs[1]]
    if isinstance(view, g.Source):
        refs = [x for _, expr in node.columns for x in walk(expr) if isinstance(x, ColumnRef)]
        names = [ref.name.removeprefix(TABLE_PREFIX) for ref in refs if ref.name.startswith(TABLE_PREFIX)]
        return tuple(dict.fromkeys(names))
    while isinstance(builder.wiring.nodes[view.inputs[0]], g.Project):
        view = builder.wiring.nodes[view.inputs[0]]
    assert isinstance(view, g.Project)
    used = sorted(name for _, expr in view.columns for side, name in columns_used(expr) if side is Side.VALUE)
    return tuple(dict.fromkeys(used))
