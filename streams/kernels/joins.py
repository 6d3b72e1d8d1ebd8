"""The stream-table join over columns."""

from __future__ import annotations

from dataclasses import dataclass, replace

from logflume.log.schemas import Kind

from .. import graph as g
from ..expr import TABLE_PREFIX, WHOLE, ColumnRef, Side, walk
from .flow import Batch, Builder, Flow, Step, evaluated, prepare_all, projected
from .vectors import KINDS, ColumnId, Kinds, Unsupported, Vector, VectorOf


@dataclass(frozen=True, slots=True)
class JoinStep:
    """Looks up the row of each key; an inner join drops records without one."""

    store: str
    is_left: bool
    columns: tuple[tuple[str, VectorOf], ...]
    then: tuple[Step, ...]

    def prepare(self, batch: Batch, flow: Flow) -> None:
        assert flow.key is not None
        has_key = flow.key.sizes >= 0
        if not self.is_left:
            batch.mark(~has_key, flow.alive)
        found = batch.lookups[self.store].find(flow.key, flow.alive & has_key & ~batch.marks)
        flow.rows.kept.append(found.memory)
        batch.mark(found.unsure, flow.alive)
        alive = flow.alive if self.is_left else flow.alive & found.present
        table: dict[ColumnId, Vector] = {(Side.VALUE, TABLE_PREFIX + name): v for name, v in found.columns.items()}
        both = replace(flow, alive=alive, rows=flow.rows.with_columns(flow.rows.columns | table))
        kept = {c: v for c, v in flow.rows.columns.items() if c[0] is not Side.VALUE}
        joined = evaluated(self.columns, Side.VALUE, batch, both)
        prepare_all(self.then, batch, replace(both, rows=flow.rows.with_columns(kept | joined)))


def make_join(builder: Builder, node: g.Node, source: str, kinds: Kinds) -> Step:
    """Return the step of a StreamTableJoin, whose table must be a source that is kept."""
    assert isinstance(node, g.StreamTableJoin)
    table = joined_table(builder, node)
    if source != node.inputs[0] or builder.wiring.raw_keys[source] is None:
        raise Unsupported("a join by a key that was computed")
    types = {column.name: column.type.kind for column in table.schema.value}
    read = table_columns(node)
    for name in read:
        if name == WHOLE or types.get(name) not in KINDS:
            raise Unsupported(f"the table's column {name}")
    joined: dict[ColumnId, Kind] = {(Side.VALUE, TABLE_PREFIX + name): types[name] for name in read}
    found, columns = projected(node.name, node.schema, node.columns, builder.wiring, {**kinds, **joined})
    kept = {column: kind for column, kind in kinds.items() if column[0] is not Side.VALUE}
    assert table.store is not None
    return JoinStep(table.store, node.join is g.JoinKind.LEFT, columns, builder.after(node.name, kept | found))


def joined_table(builder: Builder, node: g.StreamTableJoin) -> g.Source:
    """Return the source of the joined table. Raises Unsupported: it is something else, or windowed."""
    table = builder.wiring.nodes[node.inputs[1]]
    if not isinstance(table, g.Source) or table.store is None or table.schema.window is not None:
        raise Unsupported("a joined table that is not a source")
    return table


def table_columns(node: g.StreamTableJoin) -> tuple[str, ...]:
    """Return the names of the table's columns that a join reads."""
    refs = [x for _, expr in node.columns for x in walk(expr) if isinstance(x, ColumnRef)]
    names = [ref.name.removeprefix(TABLE_PREFIX) for ref in refs if ref.name.startswith(TABLE_PREFIX)]
    return tuple(dict.fromkeys(names))
