"""The text of one sub-topology, being written: what the emitters of the single nodes share."""

from __future__ import annotations

import builtins
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from logflume.log.schemas import Column, is_object_class, object_codec

from .. import graph as g
from ..expr import WHOLE, Expr, Side, columns_used
from ..seams import Entry
from .expressions import Compiler, Fragment, Namespace, identifier
from .flow import ColumnId, Flow, Writer
from .usage import Wiring, calls_python, is_needed, sees_null

Emit = Callable[["Generator", g.Node, Flow, str], None]


@dataclass(slots=True)
class Generator:
    """State of writing one function: the text so far, the sub-topology, and what the function turned out to use.

    Attributes:
        emitters: how each kind of node is written.
        has_chunk: whether the function works on a chunk (`chunk` and index `i` exist); False in a flush.
        outputs: outputs written by the current function.
        clocks: stores whose stream time the current function moves.
        stores: stores it touches.
        closing: stores whose open windows it adds to.
        loads: stores whose entries can be loaded for a whole run -> the windows whose starts follow the record's key.
    """

    wiring: Wiring
    emitters: Mapping[type, Emit]
    namespace: Namespace
    writer: Writer
    expressions: Compiler
    has_chunk: bool = True
    outputs: dict[str, None] = field(default_factory=dict)
    clocks: dict[str, None] = field(default_factory=dict)
    stores: dict[str, None] = field(default_factory=dict)
    loads: dict[str, g.TimeWindow | None] = field(default_factory=dict)
    closing: dict[str, None] = field(default_factory=dict)
    failed: str | None = None
    is_silent: bool = False

    def start(self, *, has_chunk: bool) -> None:
        """Begin another function."""
        self.has_chunk = has_chunk
        self.writer.names = set(_RESERVED) if has_chunk else set(_RESERVED | _FLUSH)
        labels = self.wiring.labels
        for store in labels.stores:
            self.writer.names |= {labels.local(part, store) for part in _STORE_PARTS}
        for name in self.wiring.outputs:
            self.writer.names |= {f"{labels.nodes[name]}_{part}" for part in ("keys", "values", "times", "causes")}
        self.namespace.is_taken = lambda name: name in self.writer.names and name not in _FIXED_GLOBALS
        self.outputs, self.clocks, self.stores, self.loads, self.closing = {}, {}, {}, {}, {}

    def label(self, name: str) -> str:
        """Return what a node is called in the text."""
        return self.wiring.labels.nodes[name]

    def local(self, part: str, store: str) -> str:
        """Return the local that holds a part of a store: store, entries, dirty or now."""
        return self.wiring.labels.local(part, store)

    def entries(self, store: str) -> tuple[str, str]:
        """Return the locals that hold a store's entries and its dirty keys, noting that this function uses them."""
        self.stores[store] = None
        self.namespace.add("Entry", Entry)
        return self.local("entries", store), self.local("dirty", store)

    def state_locals(self, node: g.Aggregate, *, prefix: str = "") -> list[list[str]]:
        """Return new locals for the state of each aggregation."""
        return [
            [self.writer.local(identifier(f"{prefix}{a.name}_{c.name}")) for c in a.aggregator.state_columns]
            for a in node.aggregations
        ]

    def forward(self, name: str, flow: Flow) -> None:
        """Write what the consumers of a node do with its record, in order of their creation."""
        for child in self.wiring.children[name]:
            self.writer.line(f"# {type(child).__name__} {child.name!r}")
            self.emitters[type(child)](self, child, flow, name)

    def report(self, reason: str, node: str, cause: str) -> str:
        """Return a line that reports a problem with the record at hand."""
        return f"report({reason!r}, {node!r}, {'chunk, i' if self.has_chunk else 'None, -1'}, {cause})"

    def needs(self, name: str) -> frozenset[ColumnId]:
        return self.wiring.needs[name]

    def watch(self, exprs: Iterable[Expr], *, always: bool = False) -> str | None:
        """Note in a local, which is returned, whether a plain callable in these expressions fails; None where there is none."""
        self.failed = None
        if always or any(calls_python(x) for x in exprs):
            self.failed = self.writer.local("failed")
            self.writer.line(f"{self.failed} = False")
        return self.failed

    def unless(self, failed: str | None) -> AbstractContextManager[None]:
        """Write what is done only if nothing that was watched has failed: else the record ends here."""
        self.failed = None
        return nullcontext() if failed is None else self.writer.block(f"if not {failed}:")

    @contextmanager
    def silently(self) -> Iterator[None]:
        """Write what is computed of a row as it was before: what fails there was reported when it came."""
        self.is_silent = True
        yield
        self.is_silent = False

    def report_failure(self, node: str, *, is_callable: bool) -> None:
        """Write, inside an `except ... as error`, the report; and that the record ends here, if a watched callable failed."""
        if self.is_silent:
            self.writer.line("pass")
            return
        if is_callable and self.failed is not None:
            self.writer.line(f"{self.failed} = True")
        self.writer.line(self.report("callable" if is_callable else "expression", node, "error"))

    def fallible(self, name: str, fragment: Fragment, node: str, *, on_error: str = "None", is_callable: bool = False) -> None:
        """Write `name = fragment`; an error gives `on_error` and is reported."""
        if not fragment.can_fail:
            self.writer.line(f"{name} = {fragment.code}")
            return
        with self.writer.block("try:"):
            self.writer.line(f"{name} = {fragment.code}")
        with self.writer.block("except Exception as error:"):
            self.writer.line(f"{name} = {on_error}")
            self.report_failure(node, is_callable=is_callable)

    def evaluate(self, expr: Expr, flow: Flow, node: str, hint: str) -> Fragment:
        """Write what computes an expression into a local and return it; a column or constant stays where it is."""
        fragment = self.expressions.value(expr, flow.find)
        if fragment.is_atom:
            return fragment
        name = self.writer.local(identifier(hint))
        self.fallible(name, fragment, node, is_callable=calls_python(expr))
        return Fragment(name, is_nullable=fragment.is_nullable or fragment.can_fail, is_atom=True)

    def compute(self, columns: Sequence[tuple[str, Expr]], flow: Flow, node: g.Node) -> dict[ColumnId, Fragment]:
        """Write the needed ones of new value columns. Those of a null value are null, unless a callable takes the whole value."""
        wanted = [(name, expr) for name, expr in columns if is_needed(self.needs(node.name), name)]
        fragments = [(name, expr, self.expressions.value(expr, flow.find)) for name, expr in wanted]
        guarded = flow.null is not None and any(f.can_fail and not sees_null(node, x) for _, x, f in fragments)
        found: dict[ColumnId, Fragment] = {}
        plain: list[tuple[str, Expr, Fragment, str]] = []
        for name, expr, fragment in fragments:
            if fragment.is_atom:
                found[Side.VALUE, name] = fragment
                continue
            target = self.writer.local(identifier(name))
            found[Side.VALUE, name] = Fragment(target, fragment.is_nullable or fragment.can_fail or guarded, is_atom=True)
            plain.append((name, expr, fragment, target))
        if guarded and plain:
            with self.writer.block(f"if {flow.null}:"):
                self.writer.line(" = ".join(target for _, _, _, target in plain) + " = None")
            with self.writer.block("else:"):
                for _, expr, fragment, target in plain:
                    self.fallible(target, fragment, node.name, is_callable=calls_python(expr))
        else:
            for _, expr, fragment, target in plain:
                self.fallible(target, fragment, node.name, is_callable=calls_python(expr))
        return found

    def null_after(self, node: g.Node, flow: Flow, found: Mapping[ColumnId, Fragment]) -> str | None:
        """Return the flag for a null value after a projection: a bare result decides by itself, else null stays null."""
        if not g.is_bare(node.schema):
            return flow.null
        value = found.get((Side.VALUE, node.schema.value[0].name))
        if value is None:
            return flow.null
        if not value.is_nullable:
            return None
        flag = self.writer.local("null")
        self.writer.line(f"{flag} = {value.code} is None")
        return flag

    def with_whole(self, flow: Flow, source: str, exprs: Sequence[Expr] | None, *, sides: Sequence[Side] = ()) -> Flow:
        """Return the flow with the key and the value as objects, where `exprs` (or `sides`) want them."""
        wanted = {(side, WHOLE) for side in sides}
        for expr in exprs or ():
            wanted |= {c for c in columns_used(expr) if c[1] == WHOLE}
        missing = [c for c in sorted(wanted) if c not in flow.columns]
        if not missing:
            return flow
        columns = dict(flow.columns)
        schema = self.wiring.nodes[source].schema
        for side, _ in missing:
            columns[side, WHOLE] = self._whole_key(flow, schema) if side is Side.KEY else self.whole_value(flow, schema)
        return replace(flow, columns=columns)

    def whole_value(self, flow: Flow, schema: g.Schema, *, prefix: str = "") -> Fragment:
        """Write the value as one object: the bare value, an object of its class, or a named row."""
        parts = [flow.columns[Side.VALUE, prefix + column.name] for column in schema.value]
        if len(parts) == 1 and (
            g.is_bare(schema) or (schema.value_class is not None and not is_object_class(schema.value_class))
        ):
            return parts[0]
        make = self.namespace.add(f"object_{schema.value_class.__name__ if schema.value_class else 'row'}", _object_maker(schema))
        name = self.writer.local("value")
        code = f"{make}(({''.join(p.code + ', ' for p in parts)}))"
        self.writer.line(f"{name} = {code if flow.null is None else f'None if {flow.null} else {code}'}")
        return Fragment(name, is_nullable=flow.null is not None, is_atom=True)

    def _whole_key(self, flow: Flow, schema: g.Schema) -> Fragment:
        parts = [flow.columns[Side.KEY, column.name] for column in schema.key]
        if not parts:
            return Fragment("None", is_atom=True)
        if len(parts) == 1 and schema.window is None:
            return parts[0]
        names = [column.name for column in schema.key]
        if schema.window is not None:
            parts.append(flow.columns[Side.META, "WINDOWSTART"])
            names.append("window_start")
        make = self.namespace.add("key_row", row_class(tuple(names)))
        name = self.writer.local("key_object")
        code = f"{make}({', '.join(p.code for p in parts)})"
        self.writer.line(f"{name} = {code if flow.key is None else f'None if {flow.key} is None else {code}'}")
        return Fragment(name, is_atom=True)

    def key_bytes(self, flow: Flow, source: str, node: g.Node, format: Any, columns: Sequence[Column]) -> Fragment:
        """Return the encoded key for an output: as it came where nothing changed it, else encoded (with the window start)."""
        from .codecs import encode_fragment

        raw = self.wiring.raw_keys[source]
        if raw is not None and raw[0] == format and flow.key is not None:
            return Fragment(flow.key, is_atom=True)
        parts = [flow.columns[Side.KEY, column.name] for column in columns]
        if not parts:
            return Fragment("None", is_atom=True)
        found = encode_fragment(self.namespace, f"key_{node.name}", format, columns, parts)
        if flow.key is not None:
            found = Fragment(f"(None if {flow.key} is None else {found.code})", can_fail=True)
        elif len(parts) == 1 and parts[0].is_nullable:
            found = Fragment(f"(None if {parts[0].code} is None else {found.code})", can_fail=True)
        if self.wiring.nodes[source].schema.window is not None:
            start = flow.columns[Side.META, "WINDOWSTART"]
            pack = self.namespace.add("pack", g.WINDOW_START.pack)
            found = Fragment(f"({found.code} + {pack}({start.code}))", can_fail=True)
        return found


_FIXED_GLOBALS = frozenset(
    (
        "FAST_ERRORS",
        "DecodeError",
        "UNSET",
        "OtherSpelling",
        "Entry",
        "window_keys",
        "zip_longest",
        "headers_of",
        "headers_at",
        "OpenWindows",
    )
)
_STORE_PARTS = ("store", "entries", "dirty", "now", "closing", "windows")
_LOOP = frozenset(
    ("chunk", "start", "stop", "i", "key", "data", "time", "keys", "values", "times", "error", "report", "send", "view")
)
_FLUSH = frozenset(("entry", "state", "before"))
_RESERVED = frozenset(dir(builtins)) | _FIXED_GLOBALS | _LOOP


def keyed(flow: Flow) -> dict[ColumnId, Fragment]:
    """Return the columns that a change of the value leaves as they are, without the key as an object."""
    return {c: f for c, f in flow.columns.items() if c[0] is not Side.VALUE and c[1] != WHOLE}


def row_class(names: tuple[str, ...]) -> Any:
    """Return a named tuple class for rows without a class of their own."""
    return namedtuple("Row", [identifier(name) for name in names], rename=True)


def _object_maker(schema: g.Schema) -> Callable[[tuple[Any, ...]], Any]:
    if schema.value_class is not None and is_object_class(schema.value_class):
        return object_codec(schema.value_class).from_row
    make: Callable[[tuple[Any, ...]], Any] = row_class(tuple(column.name for column in schema.value))._make
    return make
