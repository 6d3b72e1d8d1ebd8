"""How stream-table joins are written: finding the row, through views of the table that is kept, and joining it."""

from __future__ import annotations

from dataclasses import replace

from .. import graph as g
from ..expr import TABLE_PREFIX, WHOLE, ColumnRef, Side, walk
from .aggregating import constant, results
from .expressions import Fragment, identifier
from .flow import ColumnId, Flow
from .generator import Generator, keyed


def emit_join(generator: Generator, node: g.Node, flow: Flow, source: str) -> None:
    """Look the table's row up and join; a missing row ends an inner join and is null in a left one."""
    assert isinstance(node, g.StreamTableJoin)
    if source != node.inputs[0]:
        return
    writer = generator.writer
    is_left = node.join is g.JoinKind.LEFT
    if flow.null is not None:
        with writer.block(f"if {flow.null}:"):
            writer.line(generator.report("null_value", node.name, "None"))
        writer.line("else:")
        writer.depth += 1
    depth = writer.depth - (1 if flow.null is not None else 0)
    if not is_left:
        with writer.block(f"if {flow.key} is None:"):
            writer.line(generator.report("null_key", node.name, "None"))
        writer.line("else:")
        writer.depth += 1
    table = _look_up(generator, node.inputs[1], str(flow.key), flow, node)
    if not is_left:
        writer.line(f"if not {table.null}:")
        writer.depth += 1
    flow = generator.with_whole(replace(flow, null=None), source, [x for _, x in node.columns])
    both = dict(flow.columns)
    both |= {(side, TABLE_PREFIX + name): f for (side, name), f in table.columns.items() if side is Side.VALUE}
    joined = replace(flow, columns=both)
    failed = generator.watch([x for _, x in node.columns])
    found = generator.compute(node.columns, joined, node)
    null = generator.null_after(node, joined, found)
    with generator.unless(failed):
        generator.forward(node.name, replace(flow, columns=keyed(flow) | found, null=null))
    writer.depth = depth


def _look_up(generator: Generator, name: str, key: str, flow: Flow, join: g.StreamTableJoin) -> Flow:
    """Write what finds the row of a table at `key`; a table that is not kept is computed from the one that is."""
    writer = generator.writer
    node = generator.wiring.nodes[name]
    used = {x.name.removeprefix(TABLE_PREFIX) for x in _table_refs(join)}
    store = g.store_of(node)
    if store is not None:
        entries, _ = generator.entries(store)
        entry, row, gone = writer.local("entry"), writer.local("row_found"), writer.local("missing")
        if flow.is_loaded:
            generator.loads.setdefault(store, None)
        found = f"{entries}.get({key})"
        if not flow.is_loaded:
            found = f"None if {key} is None else {generator.local('store', store)}.get({key})"
        writer.line(f"{entry} = {found}")
        writer.line(f"{row} = None if {entry} is None else {entry}.state")
        writer.line(f"{gone} = {row} is None")
        columns = _stored_columns(generator, node, row, gone)
        stream_key = generator.wiring.nodes[join.inputs[0]].schema.key
        for ours, theirs in zip(stream_key, node.schema.key, strict=True):
            if (Side.KEY, ours.name) in flow.columns:
                columns[Side.KEY, theirs.name] = flow.columns[Side.KEY, ours.name]
        columns[Side.META, "ROWTIME"] = Fragment(f"(None if {gone} else {entry}.timestamp_ms)")
        result = Flow(columns, f"{entry}.timestamp_ms", key, gone)
    elif isinstance(node, g.Project):
        result = _look_up(generator, node.inputs[0], key, flow, join)
        result = generator.with_whole(result, node.inputs[0], [x for _, x in node.columns])
        columns = {}
        for label, expr in node.columns:
            fragment = generator.expressions.value(expr, result.find)
            target = writer.local(identifier(label))
            with writer.block(f"if {result.null}:"):
                writer.line(f"{target} = None")
            with writer.block("else:"):
                generator.fallible(target, fragment, node.name)
            columns[Side.VALUE, label] = Fragment(target, is_atom=True)
        result = replace(result, columns=keyed(result) | columns)
    elif isinstance(node, g.Filter):
        result = _look_up(generator, node.inputs[0], key, flow, join)
        result = generator.with_whole(result, node.inputs[0], [node.predicate])
        gone = writer.local("missing")
        test = generator.expressions.predicate(node.predicate, result.find)
        generator.fallible(gone, Fragment(f"{result.null} or not {test.code}", False, test.can_fail), node.name, on_error="True")
        columns = {}
        for column in node.schema.value:
            target = writer.local(identifier(column.name))
            writer.line(f"{target} = None if {gone} else {result.columns[Side.VALUE, column.name].code}")
            columns[Side.VALUE, column.name] = Fragment(target, is_atom=True)
        result = replace(result, columns=keyed(result) | columns, null=gone)
    else:
        raise AssertionError(f"{name} is not a table that can be looked up")
    if name == join.inputs[1] and WHOLE in used:
        whole = generator.whole_value(result, node.schema)
        result = replace(result, columns={**result.columns, (Side.VALUE, WHOLE): whole})
    return result


def _table_refs(join: g.StreamTableJoin) -> list[ColumnRef]:
    return [x for _, expr in join.columns for x in walk(expr) if isinstance(x, ColumnRef) and x.name.startswith(TABLE_PREFIX)]


def _stored_columns(generator: Generator, node: g.Node, row: str, gone: str) -> dict[ColumnId, Fragment]:
    if not isinstance(node, g.Aggregate):
        return {(Side.VALUE, c.name): Fragment(f"(None if {gone} else {row}[{i}])") for i, c in enumerate(node.schema.value)}
    writer = generator.writer
    states = generator.state_locals(node)
    flat = [name for names in states for name in names]
    initial = [constant(generator, v) for a in node.aggregations for v in a.aggregator.initial]
    writer.line(f"{', '.join(flat)}{',' if len(flat) == 1 else ''} = ({', '.join(initial)},) if {gone} else {row}")
    found = results(generator, node, states)
    nulled: dict[ColumnId, Fragment] = {}
    for column, fragment in found.items():
        nulled[column] = Fragment(f"(None if {gone} else {fragment.code})")
    return nulled
