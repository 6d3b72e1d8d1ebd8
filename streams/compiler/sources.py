"""How sources are written: decoding, event time, and the rows of tables that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from logflume.log.schemas import Column, FormatSpec

from .. import graph as g
from ..expr import WHOLE, Expr, Side, columns_used
from .codecs import write_decode
from .expressions import Fragment, identifier
from .flow import ColumnId, Flow
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
    columns: dict[ColumnId, Fragment] = {}
    if is_table:
        with writer.block("if key is None:"):
            writer.line(generator.report("null_key", node.name, "None"))
            writer.line("continue")
    key_names = [name for side, name in reads if side is Side.KEY]
    if key_names or (Side.META, "WINDOWSTART") in needs or (Side.META, "WINDOWEND") in needs:
        columns |= decode_key(generator, node, key_names, node.key_format, node.schema.key)
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
        flow = keep_row(generator, node, flow)
    generator.forward(node.name, flow)


def _timestamp_reads(timestamp: Expr | None) -> set[ColumnId]:
    return set() if timestamp is None else columns_used(timestamp)


def _source_columns(node: g.Source | g.Repartition, needs: frozenset[ColumnId]) -> set[ColumnId]:
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
    generator: Generator, node: g.Node, names: list[str], format: FormatSpec, columns: Sequence[Column]
) -> dict[ColumnId, Fragment]:
    """Write what decodes the key in local `key`: its columns and, on a windowed edge, the window's bounds."""
    writer = generator.writer
    window = node.schema.window
    found: dict[ColumnId, Fragment] = {}
    data = "key"
    if window is not None:
        unpack = generator.namespace.add("unpack", g.WINDOW_START.unpack)
        start = writer.local("window_start")
        writer.line(f"{start} = None if key is None else {unpack}(key[-8:])[0]")
        found |= window_columns(Fragment(start, is_atom=True), window)
        data = writer.local("inner_key")
        writer.line(f"{data} = None if key is None else key[:-8]")
    if names:
        on_error = [generator.report("decode", node.name, "error"), "continue"]
        null = writer.local("no_key")
        label = f"key_{generator.label(node.name)}"
        decoded = write_decode(writer, generator.namespace, label, format, columns, names, data, null, on_error)
        kept = [column for column in node.schema.key if column.name in names]
        found |= {(Side.KEY, c.name): Fragment(name, is_atom=True) for c, name in zip(kept, decoded, strict=True)}
    return found


def window_columns(start: Fragment, window: g.TimeWindow) -> dict[ColumnId, Fragment]:
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


def _meta(generator: Generator, needs: AbstractSet[ColumnId]) -> dict[ColumnId, Fragment]:
    generator.namespace.add("headers_of", headers_of)
    found = {
        "ROWTIME": Fragment("time", is_nullable=False, is_atom=True),
        "ROWPARTITION": Fragment("chunk.partition", is_nullable=False),
        "ROWOFFSET": Fragment("int(chunk.offsets[i])", is_nullable=False),
        "HEADERS": Fragment("headers_of(chunk, i)", is_nullable=False),
    }
    return {(Side.META, name): fragment for name, fragment in found.items() if (Side.META, name) in needs}


def headers_of(chunk: Any, index: int) -> list[dict[str, Any]]:
    """Return the headers of one record as ARRAY<STRUCT<KEY STRING, VALUE BYTES>>."""
    headers = chunk.slice(index, index + 1).headers()[0]
    return [{"KEY": key, "VALUE": value} for key, value in headers]


def _take_time(generator: Generator, node: g.Source | g.Repartition, flow: Flow, timestamp: Expr) -> Flow:
    """Replace the record's own time by that of an expression; without one the record is dropped."""
    writer = generator.writer
    found = generator.evaluate(timestamp, flow, node.name, "event_time")
    with writer.block(f"if {found.code} is None:"):
        writer.line(generator.report("expression", node.name, "'the event time is null'"))
        writer.line("continue")
    with writer.block(f"if {found.code} < 0:"):
        writer.line(generator.report("negative_time", node.name, found.code))
        writer.line("continue")
    columns = dict(flow.columns)
    if (Side.META, "ROWTIME") in columns:
        columns[Side.META, "ROWTIME"] = Fragment(found.code, is_nullable=False, is_atom=True)
    return replace(flow, columns=columns, time=found.code)


def keep_row(generator: Generator, node: g.Node, flow: Flow) -> Flow:
    """Write the upsert or deletion of a row in the node's store; later records overwrite whatever their time.

    The flow that is returned has the row before, where a consumer compares with it.
    """
    store = g.store_of(node)
    assert store is not None
    writer = generator.writer
    entries, dirty = generator.entries(store)
    wants_old = node.name in generator.wiring.wants_old or isinstance(node, g.Filter)
    entry, before, state = writer.local("entry"), writer.local("before"), writer.local("state")
    values = [flow.columns[Side.VALUE, column.name].code for column in node.schema.value]
    if wants_old and flow.is_loaded:
        generator.loads[store] = None
    elif wants_old:
        writer.line(f"{generator.local('store', store)}.load(({flow.key},))")
    writer.line(f"{entry} = {entries}.get({flow.key})")
    writer.line(f"{before} = None if {entry} is None else {entry}.state")
    with writer.block(f"if {flow.key} not in {dirty}:"):
        writer.line(f"{dirty}[{flow.key}] = {before}")
    row = f"({', '.join(values)},)"
    writer.line(f"{state} = {row if flow.null is None else f'None if {flow.null} else {row}'}")
    with writer.block(f"if {entry} is None:"):
        writer.line(f"{entries}[{flow.key}] = Entry({state}, {flow.time})")
    with writer.block("else:"):
        writer.line(f"{entry}.state = {state}")
        writer.line(f"{entry}.timestamp_ms = {flow.time}")
    if not wants_old:
        return replace(flow, old=None)
    columns = dict(flow.columns)
    for position, column in enumerate(node.schema.value):
        old = writer.local(f"old_{identifier(column.name)}")
        writer.line(f"{old} = None if {before} is None else {before}[{position}]")
        columns[Side.VALUE, column.name] = Fragment(old, is_atom=True)
    columns = {c: f for c, f in columns.items() if c != (Side.VALUE, WHOLE)}
    was_gone = writer.local("was_gone")
    writer.line(f"{was_gone} = {before} is None")
    return replace(flow, old=replace(flow, columns=columns, null=was_gone))


def emit_restore(generator: Generator, node: g.Source) -> None:
    """Write the body of the loop that takes records of a table into its store only."""
    writer = generator.writer
    assert node.store is not None
    entries, dirty = generator.entries(node.store)
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
            columns |= decode_key(generator, node, key_names, node.key_format, node.schema.key)
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
    writer.line(f"{dirty}[key] = None")
