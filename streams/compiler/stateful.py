"""How sources, aggregates and joins are written: everything that touches a state store."""

from __future__ import annotations

from dataclasses import replace

from .. import graph as g
from ..expr import TABLE_PREFIX, WHOLE, ColumnRef, Side
from ..seams import Entry
from .aggregating import constant, new_state, results
from .codecs import write_decode
from .expressions import Fragment, identifier
from .flow import Flow
from .generator import Generator


def emit_source(generator: Generator, node: g.Source | g.Repartition) -> None:
    """Write the body of the loop over a run of records: decode, take the time, keep the table, go on."""
    writer = generator.writer
    needs = generator.needs(node.name)
    is_table = isinstance(node, g.Source) and node.kind is g.EdgeKind.TABLE
    timestamp = node.timestamp if isinstance(node, g.Source) else None
    reads = _source_columns(node, needs)
    with writer.block("if time < 0:"):
        writer.line(generator.report("negative_time", node.name, "time"))
        writer.line("continue")
    columns: dict[tuple[Side, str], Fragment] = {}
    if is_table:
        with writer.block("if key is None:"):
            writer.line(generator.report("null_key", node.name, "None"))
            writer.line("continue")
    key_names = [name for side, name in reads if side is Side.KEY]
    if key_names or (Side.META, "WINDOWSTART") in needs or (Side.META, "WINDOWEND") in needs:
        columns |= decode_key(generator, node, key_names)
    null = writer.local("null")
    on_error = [generator.report("decode", node.name, "error"), "continue"]
    value_names = [name for side, name in reads if side is Side.VALUE]
    names = write_decode(
        writer, generator.namespace, generator.label(node.name), node.value_format, node.schema.value, value_names, "data", null,
        on_error, bare_class=node.schema.value_class if g.is_bare(node.schema) else None,
    )  # fmt: skip
    kept = [column for column in node.schema.value if column.name in value_names]
    columns |= {(Side.VALUE, c.name): Fragment(name, is_atom=True) for c, name in zip(kept, names, strict=True)}
    columns |= _meta(generator, needs | _timestamp_reads(timestamp))
    flow = Flow(columns, "time", "key", null, None, is_loaded=True)
    if timestamp is not None:
        flow = _take_time(generator, node, flow, timestamp)
    if is_table and isinstance(node, g.Source) and node.store is not None:
        flow = _keep_row(generator, node, flow)
    generator.forward(node.name, flow)


def _timestamp_reads(timestamp: object) -> set[tuple[Side, str]]:
    from ..expr import columns_used

    return set() if timestamp is None else columns_used(timestamp)  # type: ignore[arg-type]


def _source_columns(node: g.Source | g.Repartition, needs: frozenset[tuple[Side, str]]) -> set[tuple[Side, str]]:
    """Return the key and value columns to decode: those read further on; all of the value for a table that is kept."""
    timestamp = node.timestamp if isinstance(node, g.Source) else None
    reads = set(needs) | _timestamp_reads(timestamp)
    is_kept = isinstance(node, g.Source) and node.kind is g.EdgeKind.TABLE and node.store is not None
    found = {c for c in reads if c[0] is not Side.META and c[1] != WHOLE}
    if is_kept or (Side.VALUE, WHOLE) in reads:
        found |= {(Side.VALUE, column.name) for column in node.schema.value}
    if (Side.KEY, WHOLE) in reads:
        found |= {(Side.KEY, column.name) for column in node.schema.key}
    return found


def decode_key(
    generator: Generator, node: g.Node, names: list[str], *, raw: tuple[object, object] | None = None
) -> dict[tuple[Side, str], Fragment]:
    """Write what decodes the key in local `key`: its columns and, on a windowed edge, the window's bounds."""
    writer = generator.writer
    schema = node.schema
    found: dict[tuple[Side, str], Fragment] = {}
    data = "key"
    if schema.window is not None:
        unpack = generator.namespace.add("unpack", g.WINDOW_START.unpack)
        start = writer.local("window_start")
        writer.line(f"{start} = None if key is None else {unpack}(key[-8:])[0]")
        found |= window_columns(Fragment(start, is_atom=True), schema.window)
        data = writer.local("inner_key")
        writer.line(f"{data} = None if key is None else key[:-8]")
    if names:
        format, columns = raw or (node.key_format, schema.key)  # type: ignore[attr-defined]
        on_error = [generator.report("decode", node.name, "error"), "continue"]
        null = writer.local("no_key")
        label = f"key_{generator.label(node.name)}"
        locals_ = write_decode(writer, generator.namespace, label, format, columns, names, data, null, on_error)  # type: ignore[arg-type]
        kept = [column for column in schema.key if column.name in names]
        found |= {(Side.KEY, c.name): Fragment(name, is_atom=True) for c, name in zip(kept, locals_, strict=True)}
    return found


def window_columns(start: Fragment, window: g.TimeWindow) -> dict[tuple[Side, str], Fragment]:
    """Return the bounds of a window as META columns."""
    end = (
        f"({start.code} + {window.size_ms})"
        if not start.is_nullable
        else f"(None if {start.code} is None else {start.code} + {window.size_ms})"
    )
    return {
        (Side.META, "WINDOWSTART"): start,
        (Side.META, "WINDOWEND"): Fragment(end, is_nullable=start.is_nullable),
    }


def _meta(generator: Generator, needs: set[tuple[Side, str]] | frozenset[tuple[Side, str]]) -> dict[tuple[Side, str], Fragment]:
    generator.namespace.add("headers_of", headers_of)
    found = {
        "ROWTIME": Fragment("time", is_nullable=False, is_atom=True),
        "ROWPARTITION": Fragment("chunk.partition", is_nullable=False),
        "ROWOFFSET": Fragment("int(chunk.offsets[i])", is_nullable=False),
        "HEADERS": Fragment("headers_of(chunk, i)", is_nullable=False),
    }
    return {(Side.META, name): fragment for name, fragment in found.items() if (Side.META, name) in needs}


def headers_of(chunk: object, index: int) -> list[dict[str, object]]:
    """Return the headers of one record as ARRAY<STRUCT<KEY STRING, VALUE BYTES>>."""
    headers = chunk.slice(index, index + 1).headers()[0]  # type: ignore[attr-defined]
    return [{"KEY": key, "VALUE": value} for key, value in headers]


def _take_time(generator: Generator, node: g.Source | g.Repartition, flow: Flow, timestamp: object) -> Flow:
    """Replace the record's own time by that of an expression; without one the record is dropped."""
    writer = generator.writer
    found = generator.evaluate(timestamp, flow, node.name, "event_time")  # type: ignore[arg-type]
    with writer.block(f"if {found.code} is None:"):
        writer.line(generator.report("expression", node.name, "'the event time is null'"))
        writer.line("continue")
    with writer.block(f"if {found.code} < 0:"):
        writer.line(generator.report("negative_time", node.name, found.code))
        writer.line("continue")
    columns = dict(flow.columns)
    if (Side.META, "ROWTIME") in columns:
        columns[Side.META, "ROWTIME"] = Fragment(found.code, is_nullable=False, is_atom=True)
    return replace(flow, columns=columns, time=found.code, is_loaded=False)


def store_names(generator: Generator, store: str) -> tuple[str, str]:
    """Return the locals that hold a store's entries and its dirty keys, noting that this function uses them."""
    generator.stores[store] = None
    generator.namespace.add("Entry", Entry)
    return generator.local("entries", store), generator.local("dirty", store)


def _keep_row(generator: Generator, node: g.Source, flow: Flow) -> Flow:
    """Upsert or delete the row of a table source; later offsets overwrite whatever their time."""
    assert node.store is not None
    writer = generator.writer
    entries, dirty = store_names(generator, node.store)
    wants_old = node.name in generator.wiring.wants_old
    entry = writer.local("entry")
    values = [flow.columns[Side.VALUE, column.name].code for column in node.schema.value]
    if wants_old:
        generator.loads[node.store] = None
    writer.line(f"{entry} = {entries}.get(key)")
    before = writer.local("before")
    writer.line(f"{before} = None if {entry} is None else {entry}.state")
    with writer.block(f"if key not in {dirty}:"):
        writer.line(f"{dirty}[key] = {before}")
    state = writer.local("state")
    writer.line(f"{state} = None if {flow.null} else ({', '.join(values)},)")
    with writer.block(f"if {entry} is None:"):
        writer.line(f"{entries}[key] = Entry({state}, {flow.time})")
    with writer.block("else:"):
        writer.line(f"{entry}.state = {state}")
        writer.line(f"{entry}.timestamp_ms = {flow.time}")
    if not wants_old:
        return flow
    columns = dict(flow.columns)
    for position, column in enumerate(node.schema.value):
        old = writer.local(f"old_{identifier(column.name)}")
        writer.line(f"{old} = None if {before} is None else {before}[{position}]")
        columns[Side.VALUE, column.name] = Fragment(old, is_atom=True)
    was_gone = writer.local("was_gone")
    writer.line(f"{was_gone} = {before} is None")
    return replace(flow, old=replace(flow, columns=columns, null=was_gone))


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
        args = [[generator.evaluate(x, flow, node.name, f"{a.name}_argument") for x in a.args] for a in node.aggregations]
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
    store_names(generator, node.store)
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
    entries, dirty = store_names(generator, node.store)
    if flow.is_loaded:
        generator.loads[node.store] = node.window
    else:
        writer.line(f"{generator.local('store', node.store)}.load(({key},))")
    can_delete = g.is_bare(node.schema)
    is_update = node.emit is g.Emit.UPDATE
    entry, before = writer.local("entry"), writer.local("state")
    states = [[writer.local(identifier(f"{a.name}_{c.name}")) for c in a.aggregator.state_columns] for a in node.aggregations]
    time = writer.local("result_time")
    flat = [name for names in states for name in names]
    state = f"({', '.join(flat)},)"
    if can_delete:
        state = f"None if {flat[0]} is None else {state}"
    writer.line(f"{entry} = {entries}.get({key})")
    with writer.block(f"if {entry} is None or ({before} := {entry}.state) is None:"):
        if is_update:
            writer.line(f"{before} = None")
            writer.line(f"{time} = {flow.time}")
        new_state(generator, node, states, args, is_first=True)
        writer.line(f"{entries}[{key}] = Entry({state}, {flow.time})")
        with writer.block(f"if {key} not in {dirty}:"):
            writer.line(f"{dirty}[{key}] = None")
    with writer.block("else:"):
        writer.line(f"{', '.join(flat)}{',' if len(flat) == 1 else ''} = {before}")
        new_state(generator, node, states, args, is_first=False)
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
    if is_update and generator.wiring.children[node.name]:
        old = _old_results(generator, node, before, flow, key, time) if node.name in generator.wiring.wants_old else None
        null = None
        if can_delete:
            null = writer.local("gone")
            writer.line(f"{null} = {flat[0]} is None")
        columns = _keyed(flow) | results(generator, node, states)
        columns = {c: (Fragment(time, False, False, True) if c == (Side.META, "ROWTIME") else f) for c, f in columns.items()}
        generator.forward(node.name, Flow(columns, time, key, null, old))


def _keyed(flow: Flow) -> dict[tuple[Side, str], Fragment]:
    return {c: f for c, f in flow.columns.items() if c[0] is not Side.VALUE and c[1] != WHOLE}


def _old_results(generator: Generator, node: g.Aggregate, before: str, flow: Flow, key: str, time: str) -> Flow:
    """Write the results of the state before this change, all null where there was none."""
    writer = generator.writer
    states = [[writer.local(identifier(f"old_{a.name}_{c.name}")) for c in a.aggregator.state_columns] for a in node.aggregations]
    flat = [name for names in states for name in names]
    was_gone = writer.local("was_gone")
    initial = [constant(generator, value) for a in node.aggregations for value in a.aggregator.initial]
    writer.line(f"{was_gone} = {before} is None")
    writer.line(f"{', '.join(flat)}{',' if len(flat) == 1 else ''} = ({', '.join(initial)},) if {was_gone} else {before}")
    return Flow(_keyed(flow) | results(generator, node, states), time, key, was_gone)


def emit_flush(generator: Generator, node: g.Aggregate) -> None:
    """Write the body of a flush: each key changed since the last commit puts out its result once, in order of first change."""
    writer = generator.writer
    needs = generator.needs(node.name)
    entries, dirty = store_names(generator, node.store)
    can_delete = g.is_bare(node.schema)
    with writer.block(f"for key, before in {dirty}.items():"):
        writer.line(f"entry = {entries}.get(key)")
        writer.line("state = None if entry is None else entry.state")
        with writer.block("if state is None and before is None:"):
            writer.line("continue")
        writer.line("time = entry.timestamp_ms")
        states = [[writer.local(identifier(f"{a.name}_{c.name}")) for c in a.aggregator.state_columns] for a in node.aggregations]
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


def _flush_key(generator: Generator, node: g.Aggregate, needs: frozenset[tuple[Side, str]]) -> dict[tuple[Side, str], Fragment]:
    names = [column.name for column in node.schema.key if (Side.KEY, column.name) in needs or (Side.KEY, WHOLE) in needs]
    bounds = {(Side.META, "WINDOWSTART"), (Side.META, "WINDOWEND"), (Side.KEY, WHOLE)} & needs
    if not names and not (bounds and node.window is not None):
        return {}
    found = decode_key(generator, node, names, raw=generator.wiring.raw_keys[node.name])
    return found


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
    found = generator.compute(node.columns, joined, node)
    null = generator.null_after(node, joined, found)
    generator.forward(node.name, replace(flow, columns=_keyed(flow) | found, null=null))
    writer.depth = depth


def _look_up(generator: Generator, name: str, key: str, flow: Flow, join: g.StreamTableJoin) -> Flow:
    """Write what finds the row of a table at `key`; a table that is not kept is computed from the one that is."""
    writer = generator.writer
    node = generator.wiring.nodes[name]
    used = {x.name.removeprefix(TABLE_PREFIX) for x in _table_refs(join)}
    if isinstance(node, g.Source | g.Aggregate):
        assert node.store is not None
        entries, _ = store_names(generator, node.store)
        entry, row, gone = writer.local("entry"), writer.local("row_found"), writer.local("missing")
        if flow.is_loaded:
            generator.loads.setdefault(node.store, None)
        found = f"{entries}.get({key})"
        if not flow.is_loaded:
            found = f"None if {key} is None else {generator.local('store', node.store)}.get({key})"
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
        result = replace(result, columns=_keyed(result) | columns)
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
        result = replace(result, columns=_keyed(result) | columns, null=gone)
    else:
        raise AssertionError(f"{name} is not a table that can be looked up")
    if name == join.inputs[1] and WHOLE in used:
        whole = generator.whole_value(result, node.schema)
        result = replace(result, columns={**result.columns, (Side.VALUE, WHOLE): whole})
    return result


def _table_refs(join: g.StreamTableJoin) -> list[ColumnRef]:
    from ..expr import walk

    return [x for _, expr in join.columns for x in walk(expr) if isinstance(x, ColumnRef) and x.name.startswith(TABLE_PREFIX)]


def _stored_columns(generator: Generator, node: g.Source | g.Aggregate, row: str, gone: str) -> dict[tuple[Side, str], Fragment]:
    if isinstance(node, g.Source):
        return {(Side.VALUE, c.name): Fragment(f"(None if {gone} else {row}[{i}])") for i, c in enumerate(node.schema.value)}
    writer = generator.writer
    states = [[writer.local(identifier(f"{a.name}_{c.name}")) for c in a.aggregator.state_columns] for a in node.aggregations]
    flat = [name for names in states for name in names]
    initial = [constant(generator, v) for a in node.aggregations for v in a.aggregator.initial]
    writer.line(f"{', '.join(flat)}{',' if len(flat) == 1 else ''} = ({', '.join(initial)},) if {gone} else {row}")
    found = results(generator, node, states)
    nulled: dict[tuple[Side, str], Fragment] = {}
    for column, fragment in found.items():
        nulled[column] = Fragment(f"(None if {gone} else {fragment.code})")
    return nulled


def emit_restore(generator: Generator, node: g.Source) -> None:
    """Write the body of the loop that takes records of a table into its store only."""
    writer = generator.writer
    assert node.store is not None
    entries, _ = store_names(generator, node.store)
    null = writer.local("null")
    with writer.block("if key is None or time < 0:"):
        writer.line("continue")
    value_names = [column.name for column in node.schema.value]
    names = write_decode(
        writer, generator.namespace, f"restored_{generator.label(node.name)}", node.value_format, node.schema.value, value_names,
        "data", null, ["continue"], bare_class=node.schema.value_class if g.is_bare(node.schema) else None,
    )  # fmt: skip
    columns = {(Side.VALUE, c.name): Fragment(n, is_atom=True) for c, n in zip(node.schema.value, names, strict=True)}
    time = "time"
    if node.timestamp is not None:
        key_names = [name for side, name in _timestamp_reads(node.timestamp) if side is Side.KEY]
        if key_names:
            columns |= decode_key(generator, node, key_names)
        columns |= _meta(generator, _timestamp_reads(node.timestamp))
        found = generator.expressions.value(node.timestamp, Flow(columns, "time", "key").find)
        time = writer.local("event_time")
        with writer.block("try:"):
            writer.line(f"{time} = {found.code}")
        with writer.block("except Exception:"):
            writer.line("continue")
        with writer.block(f"if {time} is None or {time} < 0:"):
            writer.line("continue")
    values = ", ".join(columns[Side.VALUE, c.name].code for c in node.schema.value)
    writer.line(f"{entries}[key] = Entry(None if {null} else ({values},), {time})")
