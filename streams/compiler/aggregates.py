"""How aggregates are written: the update of an entry for each record, and the flush at a task commit."""

from __future__ import annotations

from dataclasses import replace

from .. import graph as g
from ..expr import WHOLE, Side
from .aggregating import constant, is_fold, new_state, results
from .expressions import Fragment
from .flow import ColumnId, Flow
from .generator import Generator, keyed
from .sources import decode_key, window_columns


def emit_aggregate(generator: Generator, node: g.Node, flow: Flow, source: str) -> None:
    """Update the entry of the record's key, in each of its windows that is still open."""
    assert isinstance(node, g.Aggregate)
    writer = generator.writer
    flow = generator.with_whole(flow, source, [x for a in node.aggregations for x in a.args])
    with writer.block("if key is None:" if flow.key == "key" else f"if {flow.key} is None:"):
        writer.line(generator.report("null_key", node.name, "None"))
    if node.window is None and flow.null is not None:
        with writer.block(f"elif {flow.null}:"):
            writer.line(generator.report("null_value", node.name, "None"))
    with writer.block("else:"):
        failed = generator.watch([x for a in node.aggregations for x in a.args])
        args = [[generator.evaluate(x, flow, node.name, f"{a.name}_argument") for x in a.args] for a in node.aggregations]
        with generator.unless(failed):
            if node.window is None:
                _update(generator, node, flow, args, str(flow.key))
            else:
                _update_windows(generator, node, node.window, flow, args)


def _update_windows(
    generator: Generator, node: g.Aggregate, window: g.TimeWindow, flow: Flow, args: list[list[Fragment]]
) -> None:
    writer = generator.writer
    generator.clocks[node.store] = None
    clock = generator.local("now", node.store)
    generator.entries(node.store)
    pack = generator.namespace.add("pack", g.WINDOW_START.pack)
    start = writer.local("window_start")
    with writer.block(f"if {flow.time} > {clock}:"):
        writer.line(f"{clock} = {flow.time}")
    if window.advance_ms == window.size_ms:
        writer.line(f"{start} = {flow.time} - {flow.time} % {window.size_ms}")
        depth = 0
    else:
        first = f"max(0, ({flow.time} - {window.size_ms}) // {window.advance_ms} * {window.advance_ms} + {window.advance_ms})"
        writer.line(f"for {start} in range({first}, {flow.time} + 1, {window.advance_ms}):")
        writer.depth += 1
        depth = 1
    with writer.block(f"if {start} > {clock} - {window.size_ms + window.grace_ms}:"):
        key = writer.local("window_key")
        writer.line(f"{key} = {flow.key} + {pack}({start})")
        columns = dict(flow.columns) | window_columns(Fragment(start, is_nullable=False, is_atom=True), window)
        _update(generator, node, replace(flow, columns=columns), args, key)
    with writer.block("else:"):
        writer.line(generator.report("late", node.name, f"({start}, {clock})"))
    writer.depth -= depth


def _update(generator: Generator, node: g.Aggregate, flow: Flow, args: list[list[Fragment]], key: str) -> None:
    """Write the change of one entry, and what follows at once with Emit.UPDATE."""
    writer = generator.writer
    entries, dirty = generator.entries(node.store)
    if flow.is_loaded and (node.window is None or flow.time == "time"):
        generator.loads[node.store] = node.window
    else:
        writer.line(f"{generator.local('store', node.store)}.load(({key},))")
    can_delete = g.is_bare(node.schema)
    is_update = node.emit is g.Emit.UPDATE
    entry, before = writer.local("entry"), writer.local("state")
    states = generator.state_locals(node)
    time = writer.local("result_time")
    flat = [name for names in states for name in names]
    state = f"({', '.join(flat)},)"
    if can_delete:
        state = f"None if {flat[0]} is None else {state}"
    failed = generator.watch((), always=any(is_fold(a.aggregator) for a in node.aggregations))
    writer.line(f"{entry} = {entries}.get({key})")
    with writer.block(f"if {entry} is None or ({before} := {entry}.state) is None:"):
        if is_update:
            writer.line(f"{before} = None")
            writer.line(f"{time} = {flow.time}")
        new_state(generator, node, states, args, is_first=True)
        with generator.unless(failed):
            writer.line(f"{entries}[{key}] = Entry({state}, {flow.time})")
            with writer.block(f"if {entry} is None or {key} not in {dirty}:"):
                writer.line(f"{dirty}[{key}] = None")
    with writer.block("else:"):
        writer.line(f"{', '.join(flat)}{',' if len(flat) == 1 else ''} = {before}")
        generator.failed = failed
        new_state(generator, node, states, args, is_first=False)
        with generator.unless(failed):
            with writer.block(f"if {key} not in {dirty}:"):
                writer.line(f"{dirty}[{key}] = {before}")
            writer.line(f"{entry}.state = {state}")
            if is_update:
                writer.line(f"{time} = {entry}.timestamp_ms")
                with writer.block(f"if {flow.time} > {time}:"):
                    writer.line(f"{entry}.timestamp_ms = {time} = {flow.time}")
            else:
                with writer.block(f"if {flow.time} > {entry}.timestamp_ms:"):
                    writer.line(f"{entry}.timestamp_ms = {flow.time}")
    with generator.unless(failed):
        writer.line("pass")
        _follow_update(generator, node, flow, states, (key, before, time))


def _follow_update(
    generator: Generator, node: g.Aggregate, flow: Flow, states: list[list[str]], names: tuple[str, str, str]
) -> None:
    """Write what follows the change of one entry: its window is noted as open, its result goes out at once with Emit.UPDATE."""
    writer = generator.writer
    entries, _ = generator.entries(node.store)
    key, before, time = names
    flat = [name for each in states for name in each]
    if node.emit is g.Emit.FINAL:
        generator.closing[node.store] = None
        start = flow.columns[Side.META, "WINDOWSTART"].code
        writer.line(f"{generator.local('windows', node.store)}.setdefault({start}, {{}})[{key}] = {entries}[{key}]")
    if node.emit is g.Emit.UPDATE and generator.wiring.children[node.name]:
        old = _old_results(generator, node, before, flow, key, time) if node.name in generator.wiring.wants_old else None
        null = None
        if g.is_bare(node.schema):
            null = writer.local("gone")
            writer.line(f"{null} = {flat[0]} is None")
        columns = keyed(flow) | results(generator, node, states)
        columns = {c: (Fragment(time, False, False, True) if c == (Side.META, "ROWTIME") else f) for c, f in columns.items()}
        generator.forward(node.name, Flow(columns, time, key, null, old))


def _old_results(generator: Generator, node: g.Aggregate, before: str, flow: Flow, key: str, time: str) -> Flow:
    """Write the results of the state before this change, all null where there was none."""
    writer = generator.writer
    states = generator.state_locals(node, prefix="old_")
    flat = [name for names in states for name in names]
    was_gone = writer.local("was_gone")
    initial = [constant(generator, value) for a in node.aggregations for value in a.aggregator.initial]
    writer.line(f"{was_gone} = {before} is None")
    writer.line(f"{', '.join(flat)}{',' if len(flat) == 1 else ''} = ({', '.join(initial)},) if {was_gone} else {before}")
    return Flow(keyed(flow) | results(generator, node, states), time, key, was_gone)


def emit_flush(generator: Generator, node: g.Aggregate) -> None:
    """Write the body of a flush.

    Each key changed since the last commit puts out its result once, in order of first change; with Emit.FINAL each window that
    has closed since then, in order of start and key.
    """
    writer = generator.writer
    needs = generator.needs(node.name)
    entries, dirty = generator.entries(node.store)
    can_delete = g.is_bare(node.schema)
    is_final = node.emit is g.Emit.FINAL
    changes = f"{generator.local('closing', node.store)}.take_closed()" if is_final else f"{dirty}.items()"
    with writer.block(f"for key, {'entry' if is_final else 'before'} in {changes}:"):
        if is_final:
            writer.line("before = None")
        else:
            writer.line(f"entry = {entries}.get(key)")
        writer.line("state = None if entry is None else entry.state")
        with writer.block("if state is None and before is None:"):
            writer.line("continue")
        writer.line("time = entry.timestamp_ms")
        states = generator.state_locals(node)
        flat = [name for names in states for name in names]
        initial = [constant(generator, v) for a in node.aggregations for v in a.aggregator.initial]
        unpacked = f"{', '.join(flat)}{',' if len(flat) == 1 else ''}"
        null = None
        if can_delete:
            null = writer.local("gone")
            writer.line(f"{null} = state is None")
            writer.line(f"{unpacked} = ({', '.join(initial)},) if {null} else state")
        else:
            writer.line(f"{unpacked} = state")
        columns = _flush_key(generator, node, needs)
        columns |= {c: Fragment("None", is_atom=True) for c in needs if c[1] in ("ROWPARTITION", "ROWOFFSET", "HEADERS")}
        columns[Side.META, "ROWTIME"] = Fragment("time", is_nullable=False, is_atom=True)
        flow = Flow(columns, "time", "key")
        old = _old_results(generator, node, "before", flow, "key", "time") if node.name in generator.wiring.wants_old else None
        columns |= results(generator, node, states)
        generator.forward(node.name, Flow(columns, "time", "key", null, old))


def _flush_key(generator: Generator, node: g.Aggregate, needs: frozenset[ColumnId]) -> dict[ColumnId, Fragment]:
    names = [column.name for column in node.schema.key if (Side.KEY, column.name) in needs or (Side.KEY, WHOLE) in needs]
    bounds = {(Side.META, "WINDOWSTART"), (Side.META, "WINDOWEND"), (Side.KEY, WHOLE)} & needs
    if not names and not (bounds and node.window is not None):
        return {}
    raw = generator.wiring.raw_keys[node.name]
    assert raw is not None
    return decode_key(generator, node, names, *raw)
