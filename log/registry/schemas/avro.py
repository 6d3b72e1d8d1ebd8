"""Avro schemas: text to types (Avro specification 1.12).

Named types that are used again are the same object, so a recursive schema is a graph; whoever walks it remembers where he was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import json_text
from .parsed import InvalidSchema, Limits, Resolved

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NAMED = ("record", "error", "enum", "fixed")
_RESERVED = {
    "record": {"type", "name", "namespace", "doc", "fields", "aliases"},
    "enum": {"type", "name", "namespace", "doc", "symbols", "default", "aliases"},
    "fixed": {"type", "name", "namespace", "doc", "size", "aliases"},
    "array": {"type", "items"},
    "map": {"type", "values"},
}
_RESERVED["error"] = _RESERVED["record"]
_FIELD_RESERVED = {"name", "type", "doc", "default", "order", "aliases"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_MISSING: Any = object()


@dataclass(slots=True, eq=False)
class AvroField:
    """A field of a record. `default` counts only with `has_default`."""

    name: str
    type: AvroType
    doc: str | None = None
    has_default: bool = False
    default: Any = None
    order: str = "ascending"
    aliases: tuple[str, ...] = ()
    props: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class AvroType:
    """One type. Which attributes count depends on `kind`: a primitive, record, error, enum, fixed, array, map or union."""

    kind: str
    name: str = ""
    doc: str | None = None
    aliases: tuple[str, ...] = ()
    fields: list[AvroField] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    enum_default: str | None = None
    size: int = 0
    items: AvroType | None = None
    branches: tuple[AvroType, ...] = ()
    props: dict[str, Any] = field(default_factory=dict)

    @property
    def is_named(self) -> bool:
        return self.kind in _NAMED

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def namespace(self) -> str:
        return self.name.rpartition(".")[0]


@dataclass(frozen=True, slots=True, eq=False)
class AvroSchema:
    """The outermost type, and the full names of the types that its references define."""

    root: AvroType
    referenced: frozenset[str]

    def field_names(self) -> Iterable[str]:
        return (each.name for each in self.root.fields)


def parse(text: str, resolved: Sequence[Resolved], *, is_new: bool, limits: Limits) -> AvroSchema:
    """Return the types of a schema; `resolved` are read first, in order. Raises InvalidSchema."""
    reader = _Reader(limits, is_new=False)
    for each in resolved:
        reader.read(json_text.load(each.text, what=f"the Avro schema referred to as {each.name!r}"), "", "")
    referenced = frozenset(reader.names)
    reader.is_new = is_new
    root = reader.read(json_text.load(text, what="an Avro schema"), "", "")
    if is_new:
        for where, type_, default in reader.defaults:
            if not is_valid_default(type_, default, limits.depth):
                raise InvalidSchema(f"Invalid default for field {where}: {json_text.dump(default)} not a {_show(type_)}")
    return AvroSchema(root, referenced)


class _Reader:
    """Reads JSON values as types; remembers the names that were defined and the defaults to be checked at the end."""

    def __init__(self, limits: Limits, *, is_new: bool) -> None:
        self.names: dict[str, AvroType] = {}
        self.defaults: list[tuple[str, AvroType, Any]] = []
        self.is_new = is_new
        self._limits = limits
        self._depth = 0
        self._nodes = 0

    def read(self, value: Any, namespace: str, where: str) -> AvroType:
        self._nodes += 1
        if self._depth >= self._limits.depth:
            raise InvalidSchema(f"an Avro schema is nested at most {self._limits.depth} deep, more at {where or '/'}")
        if self._nodes > self._limits.nodes:
            raise InvalidSchema(f"an Avro schema has at most {self._limits.nodes} types")
        self._depth += 1
        try:
            return self._read(value, namespace, where)
        finally:
            self._depth -= 1

    def _read(self, value: Any, namespace: str, where: str) -> AvroType:
        if isinstance(value, str):
            return AvroType(value) if value in PRIMITIVES else self._lookup(value, namespace, where)
        if isinstance(value, list):
            return self._union(value, namespace, where)
        if not isinstance(value, dict):
            raise InvalidSchema(f"expected a type at {where or '/'}, found {json_text.dump(value)[:100]}")
        kind = value.get("type", _MISSING)
        if kind is _MISSING:
            raise InvalidSchema(f"No type: {json_text.dump(value)[:200]} at {where or '/'}")
        if isinstance(kind, dict | list):
            return self.read(kind, namespace, f"{where}/type")
        if not isinstance(kind, str):
            raise InvalidSchema(f"expected a type at {where}/type, found {json_text.dump(kind)[:100]}")
        if kind in PRIMITIVES:
            return AvroType(kind, props=_props(value, {"type"}))
        if kind in ("record", "error"):
            return self._record(kind, value, namespace, where)
        if kind == "enum":
            return self._enum(value, namespace, where)
        if kind == "fixed":
            return self._fixed(value, namespace, where)
        if kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            if part not in value:
                raise InvalidSchema(f"{kind} has no {part} type at {where or '/'}")
            inner = self.read(value[part], namespace, f"{where}/{part}")
            return AvroType(kind, items=inner, props=_props(value, _RESERVED[kind]))
        return self._lookup(kind, namespace, where)

    def _union(self, value: list[Any], namespace: str, where: str) -> AvroType:
        branches = tuple(self.read(each, namespace, f"{where}/{n}") for n, each in enumerate(value))
        seen = set()
        for branch in branches:
            if branch.kind == "union":
                raise InvalidSchema(f"Nested union at {where or '/'}")
            name = branch.name or branch.kind
            if name in seen:
                raise InvalidSchema(f"Duplicate in union: {name} at {where or '/'}")
            seen.add(name)
        return AvroType("union", branches=branches)

    def _record(self, kind: str, value: Mapping[str, Any], namespace: str, where: str) -> AvroType:
        found = self._define(kind, value, namespace, where)
        fields = value.get("fields")
        if not isinstance(fields, list):
            raise InvalidSchema(f"Record has no fields: {found.name} at {where or '/'}")
        seen: set[str] = set()
        for n, each in enumerate(fields):
            made = self._field(each, found.namespace, f"{where}/fields/{n}")
            if made.name in seen:
                raise InvalidSchema(f"Duplicate field {made.name} in record {found.name}: {where}/fields/{n}")
            seen.add(made.name)
            found.fields.append(made)
        return found

    def _field(self, value: Any, namespace: str, where: str) -> AvroField:
        if not isinstance(value, dict):
            raise InvalidSchema(f"Field is not an object at {where}: {json_text.dump(value)[:100]}")
        name = value.get("name")
        if not isinstance(name, str) or not name:
            raise InvalidSchema(f"No field name at {where}")
        self._check_name(name, where)
        if "type" not in value:
            raise InvalidSchema(f"No field type: {name} at {where}")
        order = value.get("order", "ascending")
        if not isinstance(order, str) or order.lower() not in ("ascending", "descending", "ignore"):
            raise InvalidSchema(f"expected ascending, descending or ignore as order of {name} at {where}, found {order!r}")
        made = AvroField(
            name,
            self.read(value["type"], namespace, f"{where}/type"),
            doc=_text(value, "doc"),
            has_default="default" in value,
            default=value.get("default"),
            order=order.lower(),
            aliases=_texts(value.get("aliases"), f"{where}/aliases"),
            props=_props(value, _FIELD_RESERVED),
        )
        if made.has_default:
            self.defaults.append((name, made.type, made.default))
        return made

    def _enum(self, value: Mapping[str, Any], namespace: str, where: str) -> AvroType:
        found = self._define("enum", value, namespace, where)
        symbols = value.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(each, str) for each in symbols):
            raise InvalidSchema(f"Enum has no symbols: {found.name} at {where or '/'}")
        if len(set(symbols)) != len(symbols):
            raise InvalidSchema(f"Duplicate enum symbol in {found.name} at {where or '/'}")
        for each in symbols:
            self._check_name(each, where)
        found.symbols = tuple(symbols)
        default = value.get("default")
        if default is not None and default not in symbols:
            raise InvalidSchema(f"The Enum Default: {default} is not in the enum symbol set of {found.name}")
        found.enum_default = default
        return found

    def _fixed(self, value: Mapping[str, Any], namespace: str, where: str) -> AvroType:
        found = self._define("fixed", value, namespace, where)
        size = value.get("size")
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 2**31:
            raise InvalidSchema(f"Invalid or no size: {found.name} at {where or '/'}")
        found.size = size
        return found

    def _define(self, kind: str, value: Mapping[str, Any], namespace: str, where: str) -> AvroType:
        name, space = value.get("name"), value.get("namespace")
        if not isinstance(name, str) or not name:
            raise InvalidSchema(f"No name in schema: a {kind} at {where or '/'}")
        if "." not in name:
            own = space if isinstance(space, str) else namespace
            name = f"{own}.{name}" if own else name
        for part in name.split("."):
            self._check_name(part, where)
        if name in PRIMITIVES:
            raise InvalidSchema(f"Schemas may not be named after primitives: {name}")
        if name in self.names:
            raise InvalidSchema(f"Can't redefine: {name} at {where or '/'}")
        aliases = _texts(value.get("aliases"), f"{where}/aliases")
        made = AvroType(kind, name=name, doc=_text(value, "doc"), props=_props(value, _RESERVED[kind]))
        made.aliases = tuple(each if "." in each or not made.namespace else f"{made.namespace}.{each}" for each in aliases)
        self.names[name] = made
        return made

    def _lookup(self, name: str, namespace: str, where: str) -> AvroType:
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        found = self.names.get(full) or self.names.get(name)
        if found is None:
            raise InvalidSchema(f'Undefined name: "{name}" at {where or "/"}')
        return found

    def _check_name(self, name: str, where: str) -> None:
        if self.is_new and not _NAME.match(name):
            raise InvalidSchema(
                f"Illegal name: {name!r} at {where or '/'}; expected letters, digits and _, not starting with a digit"
            )


def is_valid_default(type_: AvroType, value: Any, depth: int) -> bool:
    """Return whether a JSON value can be the default of a field of this type."""
    if depth <= 0:
        return False
    match type_.kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int":
            return _is_whole(value, 31)
        case "long":
            return _is_whole(value, 63)
        case "float" | "double":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "string" | "bytes" | "fixed" | "enum":
            return isinstance(value, str)
        case "array":
            assert type_.items is not None
            return isinstance(value, list) and all(is_valid_default(type_.items, each, depth - 1) for each in value)
        case "map":
            assert type_.items is not None
            return isinstance(value, dict) and all(is_valid_default(type_.items, each, depth - 1) for each in value.values())
        case "union":
            return any(is_valid_default(branch, value, depth - 1) for branch in type_.branches)
    return isinstance(value, dict) and all(
        is_valid_default(each.type, value[each.name], depth - 1) if each.name in value else each.has_default
        for each in type_.fields
    )


def _is_whole(value: Any, bits: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**bits) <= value < 2**bits


def _show(type_: AvroType) -> str:
    return f"union of {', '.join(b.name or b.kind for b in type_.branches)}" if type_.branches else type_.name or type_.kind


def _props(value: Mapping[str, Any], reserved: set[str]) -> dict[str, Any]:
    return {name: each for name, each in value.items() if name not in reserved}


def _text(value: Mapping[str, Any], name: str) -> str | None:
    found = value.get(name)
    return found if isinstance(found, str) else None


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidSchema(f"expected a list of names at {where}")
    return tuple(value)
