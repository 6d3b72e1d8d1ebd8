"""Types as the dialect writes them: reading type names and literals, showing types in messages. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from logflume.log import near_matches
from logflume.log.schemas import (
    BIGINT,
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    INTEGER,
    STRING,
    TIME,
    TIMESTAMP,
    Column,
    DataType,
    Kind,
    array,
    decimal,
    map_of,
    struct,
)

from . import ast
from .errors import SyntaxFault

NAMED_TYPES: Mapping[str, DataType] = {
    "BOOLEAN": BOOLEAN,
    "INT": INTEGER,
    "INTEGER": INTEGER,
    "BIGINT": BIGINT,
    "DOUBLE": DOUBLE,
    "STRING": STRING,
    "VARCHAR": STRING,
    "BYTES": BYTES,
    "DATE": DATE,
    "TIME": TIME,
    "TIMESTAMP": TIMESTAMP,
}


def resolve_type(name: ast.TypeName, custom: Mapping[str, DataType]) -> DataType:
    """Return the type that a name means; `custom` are the types made by CREATE TYPE.

    Raises:
        SyntaxFault: unknown name or bad parameters, at the name's position.
    """
    match name.name:
        case "ARRAY" if name.elements:
            return array(resolve_type(name.elements[0], custom))
        case "MAP" if name.elements:
            return map_of(resolve_type(name.elements[0], custom), resolve_type(name.elements[1], custom))
        case "STRUCT":
            seen: set[str] = set()
            for field, _ in name.fields:
                if field in seen:
                    raise SyntaxFault(f"Duplicate field names found in STRUCT: '{field}'; name each field once", name.span)
                seen.add(field)
            return struct(*(Column(field, resolve_type(type, custom)) for field, type in name.fields))
        case "DECIMAL":
            return _decimal_type(name)
        case "ARRAY" | "MAP" if name.name not in custom:
            hint = "ARRAY<INT>" if name.name == "ARRAY" else "MAP<STRING, INT>"
            raise SyntaxFault(f"Cannot resolve unknown type: {name.name}; say of what, as in {hint}", name.span)
    known = {**NAMED_TYPES, **custom}
    found = known.get(name.name)
    if found is None:
        near = near_matches(name.name, [*known, "ARRAY", "MAP", "STRUCT", "DECIMAL"])
        hint = (
            f"; did you mean {' or '.join(near)}?"
            if near
            else f"; known are {', '.join(NAMED_TYPES)}, DECIMAL, ARRAY, MAP, STRUCT"
        )
        raise SyntaxFault(f"Cannot resolve unknown type: {name.name}{hint}", name.span)
    if name.parameters and found is not STRING:
        raise SyntaxFault(f"{name.name} takes no parameters", name.span)
    return found


def _decimal_type(name: ast.TypeName) -> DataType:
    if len(name.parameters) != 2 or not all(p.isdigit() for p in name.parameters):
        raise SyntaxFault("DECIMAL needs precision and scale, as in DECIMAL(10, 2)", name.span)
    precision, scale = (int(p) for p in name.parameters)
    if precision < 1:
        raise SyntaxFault(f"DECIMAL precision must be >= 1: DECIMAL({precision},{scale})", name.span)
    if scale > precision:
        raise SyntaxFault(f"DECIMAL precision must be >= scale: DECIMAL({precision},{scale})", name.span)
    return decimal(precision, scale)


def literal_decimal(text: str) -> DataType:
    """Return DECIMAL(p, s) of a literal by its digits: 1.50 is (3, 2), .005 is (4, 3)."""
    whole, _, fraction = text.lstrip("+-").partition(".")
    digits = len(whole.lstrip("0")) or 1
    return decimal(digits + len(fraction), len(fraction))


def has_map(type: DataType) -> bool:
    """Tell whether a type is or holds a MAP (which no key may)."""
    inner = [t for t in (type.key, type.element) if t is not None] + [f.type for f in type.fields]
    return type.kind is Kind.MAP or any(has_map(t) for t in inner)


def show_columns(key: Sequence[Column], value: Sequence[Column]) -> str:
    """Write the columns of a source as messages do: `K` STRING KEY, `V` INTEGER."""
    shown = [f"`{c.name}` {show_type(c.type)} KEY" for c in key] + [f"`{c.name}` {show_type(c.type)}" for c in value]
    return ", ".join(shown)


def show_type(type: DataType) -> str:
    """Write a type as messages and DESCRIBE do: struct fields in backquotes; the type of NULL as null."""
    match type.kind:
        case Kind.ANY:
            return "null"
        case Kind.ARRAY if type.element:
            return f"ARRAY<{show_type(type.element)}>"
        case Kind.MAP if type.key and type.element:
            return f"MAP<{show_type(type.key)}, {show_type(type.element)}>"
        case Kind.STRUCT:
            return f"STRUCT<{', '.join(f'`{f.name}` {show_type(f.type)}' for f in type.fields)}>"
    return str(type)
