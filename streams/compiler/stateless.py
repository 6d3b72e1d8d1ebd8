"""How nodes without state are written."""

from __future__ import annotations

from dataclasses import replace

from logflume.log import InvalidInput

from .. import graph as g
from ..expr import Side, columns_used
from .codecs import encode_fragment
from .expressions import Fragment, identifier
from .flow import Flow
from .generator import Generator
from .sources import keep_row
from .usage import calls_python, is_needed, sees_null


def emit_filter(generator: Generator, node: g.Node, flow: Flow, source: str) -> None:
    """Go on only where the predicate is True; on a TABLE edge with a tombstone where the row stops passing."""
    assert isinstance(node, g.Filter)
    if node.kind is g.EdgeKind.TABLE:
        _emit_table_filter(generator, node, flow, source)
        return
    flow = generator.with_whole(flow, source, [node.predicate])
    test = _test(generator, node, flow)
    null = flow.null if sees_null(node, node.predicate) else None
    if not test.can_fail:
        with generator.writer.block(f"if {_unwrap(test.code)}:"):
            generator.forward(node.name, replace(flow, null=null))
        return
    keep = generator.writer.local("keep")
    generator.fallible(keep, test, node.name, on_error="False", is_callable=calls_python(node.predicate))
    with generator.writer.block(f"if {keep}:"):
        generator.forward(node.name, replace(flow, null=null))


def _test(generator: Generator, node: g.Filter, flow: Flow) -> Fragment:
    test = generator.expressions.predicate(node.predicate, flow.find)
    if flow.null is None or sees_null(node, node.predicate):
        return test
    return Fragment(f"(not {flow.null} and {test.code})", is_nullable=False, can_fail=test.can_fail)


def _unwrap(code: str) -> str:
    """Take off one pair of parentheses that surround the whole code."""
    if not (code.startswith("(") and code.endswith(")")):
        return code
    depth = 0
    for position, character in enumerate(code):
        depth += (character == "(") - (character == ")")
        if depth == 0 and position < len(code) - 1:
            return code
    return code[1:-1]


def _emit_table_filter(generator: Generator, node: g.Filter, flow: Flow, source: str) -> None:
    """The new row passes, or a tombstone goes out; nothing where the old row is known not to have passed either."""
    flow = generator.with_whole(flow, source, [node.predicate])
    failed = generator.watch([node.predicate])
    after, gone = _passing(generator, node, flow)
    with generator.unless(failed):
        _forward_row(generator, node, flow, source, after, gone)


def _forward_row(generator: Generator, node: g.Filter, flow: Flow, source: str, after: Flow, gone: str) -> None:
    writer = generator.writer
    if node.store is not None:
        after = keep_row(generator, node, replace(after, old=None))
    elif flow.old is not None:
        with generator.silently():
            old, _ = _passing(generator, node, generator.with_whole(flow.old, source, [node.predicate]))
        after = replace(after, old=old)
    if after.old is None:
        generator.forward(node.name, after)
        return
    with writer.block(f"if not {gone} or not {after.old.null}:"):
        generator.forward(node.name, after)


def _passing(generator: Generator, node: g.Filter, flow: Flow) -> tuple[Flow, str]:
    """Write the test of a row; return the flow that is null where it fails, and the flag that says so."""
    gone, keep = generator.writer.local("gone"), generator.writer.local("keep")
    is_callable = calls_python(node.predicate)
    generator.fallible(keep, _test(generator, node, flow), node.name, on_error="False", is_callable=is_callable)
    generator.writer.line(f"{gone} = not {keep}")
    return _emptied(generator, flow, gone), gone


def _emptied(generator: Generator, flow: Flow, gone: str) -> Flow:
    """Write that the value columns are null where the row is gone: what follows may still read them (a change of key)."""
    columns = dict(flow.columns)
    for column, fragment in flow.columns.items():
        if column[0] is Side.VALUE:
            name = generator.writer.local(identifier(column[1].replace("*", "value")))
            generator.writer.line(f"{name} = None if {gone} else {fragment.code}")
            columns[column] = Fragment(name, is_atom=True)
    return replace(flow, columns=columns, null=gone)


def emit_project(generator: Generator, node: g.Node, flow: Flow, source: str) -> None:
    """Compute the new columns that are read further on."""
    assert isinstance(node, g.Project)
    failed = generator.watch([x for name, x in node.columns if is_needed(generator.needs(node.name), name)])
    after = replace(_projected(generator, node, flow, source), old=None)
    with generator.unless(failed):
        if node.store is not None:
            after = keep_row(generator, node, after)
        elif flow.old is not None and node.name in generator.wiring.wants_old:
            with generator.silently():
                after = replace(after, old=_projected(generator, node, flow.old, source))
        generator.forward(node.name, after)


def _projected(generator: Generator, node: g.Project, flow: Flow, source: str) -> Flow:
    needs = generator.needs(node.name)
    flow = generator.with_whole(flow, source, [x for name, x in node.columns if is_needed(needs, name)])
    found = generator.compute(node.columns, flow, node)
    null = generator.null_after(node, flow, found)
    return replace(flow, columns=_beside(flow) | found, null=null)


def _beside(flow: Flow) -> dict[tuple[Side, str], Fragment]:
    """Return the columns that a change of the value leaves as they are."""
    return {c: f for c, f in flow.columns.items() if c[0] is not Side.VALUE}


def emit_flat_map(generator: Generator, node: g.Node, flow: Flow, source: str) -> None:
    """Go on once per item of the exploded columns; of several, shorter ones are padded with null."""
    assert isinstance(node, g.FlatMap)
    writer = generator.writer
    flow = generator.with_whole(flow, source, [x for _, x, _ in node.columns])
    fixed: dict[tuple[Side, str], Fragment] = {}
    lists, targets = [], []
    failed = generator.watch([x for _, x, _ in node.columns])
    for name, expr, is_exploded in node.columns:
        value = generator.evaluate(expr, flow, node.name, f"{name}_items" if is_exploded else name)
        if is_exploded:
            target = writer.local(identifier(name))
            lists.append(f"({value.code} or ())" if value.is_nullable else value.code)
            targets.append(target)
            fixed[Side.VALUE, name] = Fragment(target, is_atom=True)
        else:
            fixed[Side.VALUE, name] = value
    if not lists:
        raise InvalidInput(f"{node.name}: a flat map needs a column that gives a list")
    if len(lists) > 1:
        from itertools import zip_longest

        generator.namespace.add("zip_longest", zip_longest)
    items = lists[0] if len(lists) == 1 else f"zip_longest({', '.join(lists)})"
    with generator.unless(failed):
        if g.is_bare(node.schema):
            with _iterating(generator, node, items, targets[0]):
                null = writer.local("null")
                writer.line(f"{null} = {targets[0]} is None")
                generator.forward(node.name, replace(flow, columns=_beside(flow) | fixed, null=null))
        else:
            with _iterating(generator, node, items, ", ".join(targets)):
                generator.forward(node.name, replace(flow, columns=_beside(flow) | fixed, null=None))


class _iterating:
    """A `for` over items that plain Python gave: all are taken before the first goes on, so that an error drops all of them."""

    def __init__(self, generator: Generator, node: g.FlatMap, items: str, targets: str) -> None:
        writer = generator.writer
        name = writer.local("items")
        is_callable = any(calls_python(x) for _, x, _ in node.columns)
        generator.fallible(name, Fragment(f"list({items})", can_fail=True), node.name, on_error="()", is_callable=is_callable)
        self._block = writer.block(f"for {targets} in {name}:")

    def __enter__(self) -> None:
        self._block.__enter__()

    def __exit__(self, *exc: object) -> None:
        self._block.__exit__(None, None, None)


def emit_rekey(generator: Generator, node: g.Node, flow: Flow, source: str) -> None:
    """Compute the new key columns; the encoded key is made where it is written."""
    assert isinstance(node, g.Rekey)
    flow = generator.with_whole(flow, source, [x for _, x in node.key])
    columns = {c: f for c, f in flow.columns.items() if c[0] is not Side.KEY and c[1] not in ("WINDOWSTART", "WINDOWEND")}
    failed = generator.watch([x for _, x in node.key])
    for name, expr in node.key:
        found = generator.evaluate(expr, flow, node.name, f"key_{name}")
        if flow.null is not None and not sees_null(node, expr) and any(side is Side.VALUE for side, _ in columns_used(expr)):
            target = generator.writer.local(identifier(f"key_{name}"))
            generator.writer.line(f"{target} = None if {flow.null} else {found.code}")
            found = Fragment(target, is_atom=True)
        columns[Side.KEY, name] = found
    with generator.unless(failed):
        generator.forward(node.name, replace(flow, columns=columns, key=None, is_loaded=False))


def emit_pass(generator: Generator, node: g.Node, flow: Flow, source: str) -> None:
    """Merge and ToStream change nothing of the record itself."""
    if isinstance(node, g.Merge) and generator.wiring.raw_keys[node.name] is None and flow.key is not None:
        flow = replace(flow, key=None, is_loaded=False)
    generator.forward(node.name, replace(flow, old=None))


def emit_to_table(generator: Generator, node: g.Node, flow: Flow, source: str) -> None:
    """Keep the row where the table is stored; records without a key are dropped."""
    assert isinstance(node, g.ToTable)
    with generator.writer.block(f"if {flow.key} is None:"):
        generator.writer.line(generator.report("null_key", node.name, "None"))
    with generator.writer.block("else:"):
        generator.forward(node.name, flow if node.store is None else keep_row(generator, node, flow))


def emit_foreach(generator: Generator, node: g.Node, flow: Flow, source: str) -> None:
    """Call the function; what it raises is reported and ends the record's way."""
    assert isinstance(node, g.Foreach)
    flow = generator.with_whole(flow, source, None, sides=(Side.KEY, Side.VALUE))
    function = generator.namespace.add(generator.label(node.name), node.function)
    key, value = (flow.columns[side, "*"].code for side in (Side.KEY, Side.VALUE))
    with generator.writer.block("try:"):
        generator.writer.line(f"{function}({key}, {value}, {flow.time})")
    with generator.writer.block("except Exception as error:"):
        generator.report_failure(node.name, is_callable=True)
    with generator.writer.block("else:"):
        generator.writer.line("pass")
        generator.forward(node.name, flow)


def emit_sink(generator: Generator, node: g.Node, flow: Flow, source: str) -> None:
    """Encode and put out; what cannot be encoded is reported and dropped."""
    assert isinstance(node, g.Sink)
    time = flow.time
    if node.timestamp is None:
        _emit_output(generator, node, flow, source, time)
        return
    found = generator.evaluate(node.timestamp, flow, node.name, "time_out")
    with generator.writer.block(f"if {found.code} is None or {found.code} < 0:"):
        generator.writer.line(generator.report("negative_time", node.name, found.code))
    with generator.writer.block("else:"):
        _emit_output(generator, node, flow, source, found.code)


def emit_repartition(generator: Generator, node: g.Node, flow: Flow, source: str) -> None:
    """Write to the internal topic."""
    assert isinstance(node, g.Repartition)
    _emit_output(generator, node, flow, source, flow.time)


def _emit_output(generator: Generator, node: g.Sink | g.Repartition, flow: Flow, source: str, time: str) -> None:
    writer = generator.writer
    schema = generator.wiring.nodes[source].schema
    label = generator.label(node.name)
    generator.outputs[node.name] = None
    values = [flow.columns[Side.VALUE, column.name] for column in node.schema.value]
    key = generator.key_bytes(flow, source, node, node.key_format, schema.key)
    value = encode_fragment(generator.namespace, label, node.value_format, node.schema.value, values)
    if flow.null is not None:
        value = Fragment(f"None if {flow.null} else {value.code}", can_fail=value.can_fail)
    bytes_name = writer.local("encoded")
    with writer.block("try:"):
        if not key.is_atom:
            key_name = writer.local("encoded_key")
            writer.line(f"{key_name} = {key.code}")
            key = Fragment(key_name, is_atom=True)
        writer.line(f"{bytes_name} = {_unwrap(value.code)}")
    with writer.block("except Exception as error:"):
        writer.line(generator.report("encode", node.name, "error"))
    with writer.block("else:"):
        if isinstance(node, g.Repartition) and not node.keeps_null_keys:
            with writer.block(f"if {key.code} is None:"):
                writer.line(generator.report("null_key", node.name, "None"))
            with writer.block("else:"):
                _append(generator, node, label, key.code, bytes_name, time)
        else:
            _append(generator, node, label, key.code, bytes_name, time)


def _append(generator: Generator, node: g.Node, label: str, key: str, value: str, time: str) -> None:
    writer = generator.writer
    writer.line(f"{label}_keys.append({key})")
    writer.line(f"{label}_values.append({value})")
    writer.line(f"{label}_times.append({time})")
    if generator.has_chunk:
        writer.line(f"{label}_causes.append(i)")
