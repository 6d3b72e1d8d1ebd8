"""Avro types back to text: the canonical form that is stored and hashed, and the normalised one.

Canonical: keys in the order of Apache Avro's own writer, names relative to the namespace around them, types of references by name
only. Normalised: full names, keys in one fixed order, other properties sorted.
"""

from __future__ import annotations

from typing import Any

from .avro import AvroField, AvroSchema, AvroType
from .json_text import dump

_NO_NAMESPACE = None


def canonical(schema: AvroSchema, *, normalize: bool) -> str:
    """Return the text of a schema."""
    if normalize:
        return dump(_normal(schema.root, set(schema.referenced)))
    return dump(_plain(schema.root, _NO_NAMESPACE, set(schema.referenced)))


def formatted(schema: AvroSchema, form: str) -> str:
    """Return the text in a form: `resolved` has the types of references inlined."""
    return dump(_plain(schema.root, _NO_NAMESPACE, set())) if form == "resolved" else canonical(schema, normalize=False)


def _plain(type_: AvroType, namespace: str | None, seen: set[str]) -> Any:
    match type_.kind:
        case "union":
            return [_plain(branch, namespace, seen) for branch in type_.branches]
        case "array" | "map":
            assert type_.items is not None
            part = "items" if type_.kind == "array" else "values"
            return {"type": type_.kind, part: _plain(type_.items, namespace, seen), **type_.props}
        case "record" | "error" | "enum" | "fixed":
            if type_.name in seen:
                return type_.short_name if type_.namespace == (namespace or "") else type_.name
            seen.add(type_.name)
            return _plain_named(type_, namespace, seen)
    return {"type": type_.kind, **type_.props} if type_.props else type_.kind


def _plain_named(type_: AvroType, namespace: str | None, seen: set[str]) -> dict[str, Any]:
    own = type_.namespace
    made: dict[str, Any] = {"type": type_.kind, "name": type_.short_name}
    if own != (namespace or ""):
        made["namespace"] = own
    if type_.doc is not None:
        made["doc"] = type_.doc
    if type_.kind == "enum":
        made["symbols"] = list(type_.symbols)
        if type_.enum_default is not None:
            made["default"] = type_.enum_default
    elif type_.kind == "fixed":
        made["size"] = type_.size
    else:
        made["fields"] = [_plain_field(each, own, seen) for each in type_.fields]
    made.update(type_.props)
    if type_.aliases:
        made["aliases"] = [a.removeprefix(f"{own}.") if a.rpartition(".")[0] == own else a for a in type_.aliases]
    return made


def _plain_field(field: AvroField, namespace: str, seen: set[str]) -> dict[str, Any]:
    made: dict[str, Any] = {"name": field.name, "type": _plain(field.type, namespace, seen)}
    if field.doc is not None:
        made["doc"] = field.doc
    if field.has_default:
        made["default"] = field.default
    if field.order != "ascending":
        made["order"] = field.order
    if field.aliases:
        made["aliases"] = list(field.aliases)
    return {**made, **field.props}


def _normal(type_: AvroType, seen: set[str]) -> Any:
    match type_.kind:
        case "union":
            return [_normal(branch, seen) for branch in type_.branches]
        case "array" | "map":
            assert type_.items is not None
            part = "items" if type_.kind == "array" else "values"
            return {"type": type_.kind, part: _normal(type_.items, seen), **_sorted(type_.props)}
        case "record" | "error" | "enum" | "fixed":
            if type_.name in seen:
                return type_.name
            seen.add(type_.name)
            made: dict[str, Any] = {"name": type_.name, "type": type_.kind}
            if type_.kind == "enum":
                made["symbols"] = list(type_.symbols)
            elif type_.kind == "fixed":
                made["size"] = type_.size
            else:
                made["fields"] = [_normal_field(each, seen) for each in type_.fields]
            return {**made, **_normal_extras(type_), **_sorted(type_.props)}
    return {"type": type_.kind, **_sorted(type_.props)} if type_.props else type_.kind


def _normal_extras(type_: AvroType) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if type_.doc is not None:
        made["doc"] = type_.doc
    if type_.aliases:
        made["aliases"] = sorted(type_.aliases)
    if type_.enum_default is not None:
        made["default"] = type_.enum_default
    return made


def _normal_field(field: AvroField, seen: set[str]) -> dict[str, Any]:
    made: dict[str, Any] = {"name": field.name, "type": _normal(field.type, seen)}
    if field.order != "ascending":
        made["order"] = field.order
    if field.doc is not None:
        made["doc"] = field.doc
    if field.has_default:
        made["default"] = field.default
    if field.aliases:
        made["aliases"] = sorted(field.aliases)
    return {**made, **_sorted(field.props)}


def _sorted(props: dict[str, Any]) -> dict[str, Any]:
    """Return properties in order, what says the logical type first."""
    first = [name for name in ("logicalType", "precision", "scale") if name in props]
    return {name: props[name] for name in [*first, *sorted(set(props) - set(first))]}
