"""Avro schemas as steps. Reading goes through them one by one; a step is (operation, leaf or -1, a, b, 0).

| operation | a, b |
|---|---|
| END | the record is complete |
| NULL, BOOLEAN, FLOAT, DOUBLE, STRING, BYTES, INT, LONG | |
| FIXED | size |
| ENUM | first symbol, how many |
| NULLABLE | which of the two branches is null, the step to go on with then |
| UNION | how many branches; the steps behind are a JUMP each |
| JUMP | the step to go on with |
| BLOCKS | an array or map begins; the next step is its NEXT |
| NEXT | the step behind the array; else the item's steps follow and jump back here |
| BEGIN, DONE | what lies between the two is the leaf, or its fields are leaves |

Writing has one step a field, in their order: BOOLEAN, INT, LONG, DOUBLE, STRING (also of bytes) or FIXED (as the column's writer
made it), with a the branch of the value and b that of null as they are written (zigzag), -1 where the field is no union.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from logflume.log.errors import DecodeError

from .avro_schema import Named, parse_avro
from .avro_values import from_avro, to_avro, without_logical_types
from .frames import frame
from .layouts import MAX_STEPS, PLAIN_KINDS, Found, Layout, Leaf, Read, Unheld, Wire, Write, as_they_lie
from .registries import RegisteredSchema
from .types import Column, DataType, Kind

(
    END, NULL, BOOLEAN, INT, LONG, FLOAT, DOUBLE, STRING, BYTES, FIXED, ENUM, NULLABLE, UNION, JUMP, BLOCKS, NEXT, BEGIN, DONE,
) = range(18)  # fmt: skip

_PRIMITIVES = {
    "null": NULL, "boolean": BOOLEAN, "int": INT, "long": LONG, "float": FLOAT, "double": DOUBLE, "string": STRING,
    "bytes": BYTES,
}  # fmt: skip
_READ_AS = {
    Kind.BOOLEAN: {BOOLEAN},
    Kind.INTEGER: {INT},
    Kind.DATE: {INT},
    Kind.BIGINT: {INT, LONG},
    Kind.TIMESTAMP: {LONG},
    Kind.DOUBLE: {INT, LONG, FLOAT, DOUBLE},
    Kind.STRING: {STRING, ENUM},
    Kind.BYTES: {BYTES, FIXED},
    Kind.DECIMAL: {BYTES, FIXED},
}
_WRITTEN_AS = {
    Kind.BOOLEAN: {BOOLEAN},
    Kind.INTEGER: {INT, LONG},
    Kind.DATE: {INT},
    Kind.BIGINT: {LONG},
    Kind.TIMESTAMP: {LONG},
    Kind.DOUBLE: {DOUBLE},
    Kind.STRING: {STRING},
    Kind.BYTES: {BYTES},
    Kind.DECIMAL: {BYTES},
}
_UNREADABLE = (EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError, AssertionError)
_UNWRITABLE = (ValueError, TypeError, OverflowError, AttributeError, KeyError)


def read_layout(registered: RegisteredSchema, columns: tuple[Column, ...]) -> Layout:
    """Return how records of a schema are read into columns.

    Raises:
        Unheld. DecodeError: the schema is none, or its values cannot be those of the columns.
    """
    schema = parse_avro(registered.text, registered.texts)
    if not isinstance(schema, dict) or schema.get("type") not in ("record", "error"):
        raise Unheld("the schema is no record")
    maker = _ReadSteps(columns)
    maker.record(schema, columns, tuple(range(len(columns))))
    maker.add(END)
    return Layout(
        Wire.AVRO,
        frame(registered.id),
        tuple(maker.steps),
        tuple(maker.symbols),
        tuple(range(len(maker.symbols))),
        tuple(maker.leaves),
        (-1,) * len(maker.leaves),
    )


class _ReadSteps:
    """The steps and leaves so far. Invariant: what a JUMP goes to is filled in before the end."""

    def __init__(self, columns: tuple[Column, ...]) -> None:
        self.steps: list[tuple[int, int, int, int, int]] = []
        self.symbols: list[bytes] = []
        self.leaves = [Leaf(Found.VALUE, column.type.kind) for column in columns]
        self._named = Named()

    def add(self, operation: int, leaf: int = -1, a: int = 0, b: int = 0) -> int:
        """Add a step; return its place."""
        if len(self.steps) >= MAX_STEPS:
            raise Unheld(f"more than {MAX_STEPS} steps")
        self.steps.append((operation, leaf, a, b, 0))
        return len(self.steps) - 1

    def _set(self, place: int, *, a: int | None = None, b: int | None = None) -> None:
        operation, leaf, old_a, old_b, _ = self.steps[place]
        self.steps[place] = (operation, leaf, old_a if a is None else a, old_b if b is None else b, 0)

    def record(self, schema: Any, columns: tuple[Column, ...], leaves: tuple[int, ...]) -> None:
        """Add a record's steps; columns are leaves. They take the field of the very name, else of that name in upper case."""
        self._named.add(schema, "")
        names = {field["name"] for field in schema["fields"]}
        upper = {field["name"].upper(): field["name"] for field in schema["fields"]}
        wanted: dict[str, int] = {}
        for place, column in enumerate(columns):
            name = column.name if column.name in names else upper.get(column.name.upper())
            if name in wanted:
                raise Unheld(f"two columns of the field {name}")
            if name is not None:
                wanted[name] = place
        for field in schema["fields"]:
            place = wanted.get(field["name"], -1)
            self.value(field["type"], leaves[place] if place >= 0 else -1, columns[place].type if place >= 0 else None)

    def value(self, schema: Any, leaf: int, type: DataType | None) -> None:
        """Add the steps of a value."""
        if isinstance(schema, list):
            self._union(schema, leaf, type)
            return
        if isinstance(schema, str) and schema not in _PRIMITIVES:
            schema = self._named.get(schema, "")
        kind = schema if isinstance(schema, str) else schema["type"]
        if not isinstance(kind, str):
            self.value(kind, leaf, type)
        elif kind in ("record", "error"):
            if type is None:
                self.record(schema, (), ())
            elif type.kind is Kind.STRUCT:
                self._fields(schema, leaf, type)
            else:
                self._whole(schema, leaf, type)
        elif kind in ("array", "map"):
            if type is None:
                self._blocks(schema, kind)
            else:
                self._whole(schema, leaf, type)
        elif kind == "enum":
            self._named.add(schema, "")
            self._scalar(schema, ENUM, leaf, type, len(self.symbols), len(schema["symbols"]))
            self.symbols += [symbol.encode() for symbol in schema["symbols"]]
        elif kind == "fixed":
            self._named.add(schema, "")
            self._scalar(schema, FIXED, leaf, type, int(schema["size"]))
        elif kind in _PRIMITIVES:
            self._scalar(schema, _PRIMITIVES[kind], leaf, type)
        else:
            self.value(self._named.get(kind, ""), leaf, type)

    def _fields(self, schema: Any, leaf: int, type: DataType) -> None:
        """Add the steps of a record whose fields are wanted."""
        places = tuple(range(len(self.leaves), len(self.leaves) + len(type.fields)))
        self.leaves += [Leaf(Found.VALUE, column.type.kind) for column in type.fields]
        names = tuple(column.name for column in type.fields)
        self.leaves[leaf] = Leaf(Found.PRESENCE, type.kind, names=names, fields=places)
        self.add(BEGIN, leaf)
        self.record(schema, type.fields, places)
        self.add(DONE, leaf)

    def _whole(self, schema: Any, leaf: int, type: DataType) -> None:
        """Add the steps of a value that is read by the serde's library, many at once."""
        self.leaves[leaf] = Leaf(Found.WHOLE, type.kind, _reader(schema, type, self._named))
        self.add(BEGIN, leaf)
        self.value(schema, -1, None)
        self.add(DONE, leaf)

    def _scalar(self, schema: Any, operation: int, leaf: int, type: DataType | None, a: int = 0, b: int = 0) -> None:
        if type is not None and operation not in _READ_AS.get(type.kind, ()):
            self._whole(schema, leaf, type)
            return
        if type is not None and type.kind not in PLAIN_KINDS:
            convert = from_avro(schema, type, "$", self._named, "")
            read = as_they_lie if type.kind is Kind.BYTES else lambda values: [convert(value) for value in values]
            self.leaves[leaf] = Leaf(Found.CONTENT, type.kind, read)
        self.add(operation, leaf, a, b)

    def _union(self, branches: list[Any], leaf: int, type: DataType | None) -> None:
        if len(branches) == 2 and "null" in branches:
            null = branches.index("null")
            place = self.add(NULLABLE, -1, null)
            self.value(branches[1 - null], leaf, type)
            self._set(place, b=len(self.steps))
            return
        if type is not None:
            self._whole(branches, leaf, type)
            return
        self.add(UNION, -1, len(branches))
        jumps = [self.add(JUMP) for _ in branches]
        ends = []
        for jump, branch in zip(jumps, branches, strict=True):
            self._set(jump, a=len(self.steps))
            self.value(branch, -1, None)
            ends.append(self.add(JUMP))
        for end in ends:
            self._set(end, a=len(self.steps))

    def _blocks(self, schema: Any, kind: str) -> None:
        self.add(BLOCKS)
        begin = self.add(NEXT)
        if kind == "map":
            self.add(STRING)
        self.value(schema["values" if kind == "map" else "items"], -1, None)
        self.add(JUMP, -1, begin)
        self._set(begin, a=len(self.steps))


def _reader(schema: Any, type: DataType, named: Named) -> Read:
    """Return what reads values of a schema: all of them as one Avro array. Raises DecodeError: they cannot be of that type."""
    import fastavro

    convert = from_avro(schema, type, "$", named, "")
    alone = _alone(schema, named, set())
    parsed = fastavro.parse_schema({"type": "array", "items": without_logical_types(alone)})

    def read(parts: Sequence[bytes]) -> list[Any]:
        if not parts:
            return []
        data = b"".join([_long(len(parts)), *parts, b"\0"])
        source = io.BytesIO(data)
        try:
            found: Any = fastavro.schemaless_reader(source, parsed, None)
        except _UNREADABLE as error:
            raise DecodeError(f"not values of Avro: {error}") from None
        if source.tell() != len(data) or len(found) != len(parts):
            raise DecodeError("not values of Avro: they end elsewhere")
        return [convert(value) for value in found]

    return read


def _long(value: int) -> bytes:
    """Return a number that is not negative as Avro writes it."""
    value, out = value << 1, bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _alone(schema: Any, named: Named, done: set[str]) -> Any:
    """Return a schema with the definitions of all that it names."""
    if isinstance(schema, list):
        return [_alone(each, named, done) for each in schema]
    if isinstance(schema, str):
        return schema if schema in _PRIMITIVES or schema in done else _alone(named.get(schema, ""), named, done)
    out = dict(schema)
    if "name" in schema:
        if schema["name"] in done:
            return schema["name"]
        done.add(schema["name"])
    if "fields" in schema:
        out["fields"] = [{**field, "type": _alone(field["type"], named, done)} for field in schema["fields"]]
    for part in ("items", "values"):
        if part in schema:
            out[part] = _alone(schema[part], named, done)
    if schema["type"] not in ("record", "error", "enum", "fixed", "array", "map"):
        out["type"] = _alone(schema["type"], named, done)
    return out


# ------------------------------------------------------------------------------------------------ writing


def write_layout(schema_id: int, schema: Any, columns: tuple[Column, ...]) -> Layout:
    """Return how rows of columns are written with a schema.

    Raises:
        Unheld.
    """
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise Unheld("the schema is no record")
    by_name = {column.name: place for place, column in enumerate(columns)}
    by_upper = {column.name.upper(): place for place, column in enumerate(columns)}
    steps, named, used = [], Named(), set()
    writers: list[Write | None] = [None] * len(columns)
    for field in schema["fields"]:
        place = by_name.get(field["name"], by_upper.get(field["name"].upper(), -1))
        if place < 0:
            raise Unheld(f"no column for the field {field['name']}")
        if place in used:
            raise Unheld(f"two fields of the column {columns[place].name}")
        used.add(place)
        step, writers[place] = _write_step(field["type"], place, columns[place].type, named)
        steps.append(step)
    return Layout(Wire.AVRO, frame(schema_id), tuple(steps), writers=tuple(writers))


def _write_step(schema: Any, place: int, type: DataType, named: Named) -> tuple[tuple[int, int, int, int, int], Write | None]:
    """Return how a field is written, and what makes its bytes."""
    branch = null = -1
    if isinstance(schema, list):
        if len(schema) != 2 or "null" not in schema:
            raise Unheld("a union of more than null and a type")
        where = schema.index("null")
        branch, null, schema = 2 * (1 - where), 2 * where, schema[1 - where]
    inner = schema
    while isinstance(inner, dict):
        inner = inner["type"]
    operation = _PRIMITIVES.get(inner) if isinstance(inner, str) else None
    write: Write | None = None
    if operation is None or operation not in _WRITTEN_AS.get(type.kind, ()):
        operation, write = FIXED, _writer(schema, type, named)
    elif operation == BYTES:
        operation, write = STRING, as_they_lie if type.kind is Kind.BYTES else _decimals(schema, type, named)
    _define(schema, named)
    return (operation, place, branch, null, 0), write


def _define(schema: Any, named: Named) -> None:
    """Take in what a schema defines."""
    if isinstance(schema, list):
        for each in schema:
            _define(each, named)
    elif isinstance(schema, dict):
        if "name" in schema:
            named.add(schema, "")
        for field in schema.get("fields", ()):
            _define(field["type"], named)
        for part in ("type", "items", "values"):
            _define(schema.get(part), named)


def _decimals(schema: Any, type: DataType, named: Named) -> Write:
    convert = to_avro(type, schema, named, "")

    def content(value: Decimal) -> bytes | None:
        try:
            data: bytes = convert(value)
        except _UNWRITABLE:
            return None
        return data if isinstance(data, bytes) else None

    return lambda values: [content(value) for value in values]


def _writer(schema: Any, type: DataType, named: Named) -> Write:
    """Return what writes values with the serde's library."""
    import fastavro

    convert = to_avro(type, schema, named, "")
    parsed = fastavro.parse_schema(without_logical_types(_alone(schema, named, set())))

    def write(values: Sequence[Any]) -> list[bytes | None]:
        out, ends = io.BytesIO(), []
        for value in values:
            before = out.tell()
            try:
                fastavro.schemaless_writer(out, parsed, convert(value))
                ends.append(out.tell())
            except _UNWRITABLE:
                out.seek(before)
                ends.append(-1)
        data, begin, parts = out.getvalue(), 0, []
        for end in ends:
            parts.append(None if end < 0 else data[begin:end])
            begin = begin if end < 0 else end
        return parts

    return write
