"""Avro schemas as steps. Reading goes through them one by one; a step is (operation, column or -1, a, b, 0).

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

Writing has one step a field, in their order: BOOLEAN, INT, LONG, DOUBLE or STRING, with a the branch of the value and b that of
null as they are written (zigzag), -1 where the field is no union.
"""

from __future__ import annotations

from typing import Any

from .avro_schema import Named, parse_avro
from .frames import frame
from .layouts import MAX_STEPS, PLAIN_KINDS, Layout, Unheld, Wire
from .registries import RegisteredSchema
from .types import Column, DataType, Kind

END, NULL, BOOLEAN, INT, LONG, FLOAT, DOUBLE, STRING, BYTES, FIXED, ENUM, NULLABLE, UNION, JUMP, BLOCKS, NEXT = range(16)

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
}
_WRITTEN_AS = {
    Kind.BOOLEAN: {BOOLEAN},
    Kind.INTEGER: {INT, LONG},
    Kind.DATE: {INT},
    Kind.BIGINT: {LONG},
    Kind.TIMESTAMP: {LONG},
    Kind.DOUBLE: {DOUBLE},
    Kind.STRING: {STRING},
}


def read_layout(registered: RegisteredSchema, columns: tuple[Column, ...]) -> Layout:
    """Return how records of a schema are read into columns.

    Raises:
        Unheld. DecodeError: the schema is none.
    """
    schema = parse_avro(registered.text, registered.texts)
    named = Named()
    for _, text in registered.texts:
        _name_all(parse_avro(text, registered.texts), named, "")
    if not isinstance(schema, dict) or schema.get("type") not in ("record", "error"):
        raise Unheld("the schema is no record")
    maker = _ReadSteps(named)
    maker.record(schema, columns, "")
    maker.add(END)
    return Layout(
        Wire.AVRO,
        frame(registered.id),
        tuple(maker.steps),
        tuple(maker.symbols),
        tuple(range(len(maker.symbols))),
        (-1,) * len(columns),
    )


def _name_all(schema: Any, named: Named, namespace: str) -> None:
    """Take in every type that a schema defines."""
    if isinstance(schema, list):
        for each in schema:
            _name_all(each, named, namespace)
    elif isinstance(schema, dict):
        kind = schema["type"]
        if kind in ("record", "error", "enum", "fixed"):
            _, namespace = named.add(schema, namespace)
        for field in schema.get("fields", ()):
            _name_all(field["type"], named, namespace)
        for part in ("items", "values"):
            if part in schema:
                _name_all(schema[part], named, namespace)
        if not isinstance(kind, str):
            _name_all(kind, named, namespace)


class _ReadSteps:
    """The steps so far. Invariant: what a JUMP goes to is filled in before the end."""

    def __init__(self, named: Named) -> None:
        self.steps: list[tuple[int, int, int, int, int]] = []
        self.symbols: list[bytes] = []
        self._named = named

    def add(self, operation: int, field: int = -1, a: int = 0, b: int = 0) -> int:
        """Add a step; return its place."""
        if len(self.steps) >= MAX_STEPS:
            raise Unheld(f"more than {MAX_STEPS} steps")
        self.steps.append((operation, field, a, b, 0))
        return len(self.steps) - 1

    def _set(self, place: int, *, a: int | None = None, b: int | None = None) -> None:
        operation, field, old_a, old_b, _ = self.steps[place]
        self.steps[place] = (operation, field, old_a if a is None else a, old_b if b is None else b, 0)

    def record(self, schema: Any, columns: tuple[Column, ...], namespace: str) -> None:
        """Add a record's steps. Columns take the field of the very name, else of that name in upper case."""
        _, inside = self._named.add(schema, namespace)
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
            self.value(field["type"], place, columns[place].type if place >= 0 else None, inside)

    def value(self, schema: Any, field: int, type: DataType | None, namespace: str) -> None:
        """Add the steps of a value."""
        if isinstance(schema, list):
            self._union(schema, field, type, namespace)
            return
        if isinstance(schema, str) and schema not in _PRIMITIVES:
            schema = self._named.get(schema, namespace)
        kind = schema if isinstance(schema, str) else schema["type"]
        if not isinstance(kind, str):
            self.value(kind, field, type, namespace)
        elif kind in ("record", "error"):
            if type is not None:
                raise Unheld(f"a record as {type}")
            self.record(schema, (), namespace)
        elif kind in ("array", "map"):
            if type is not None:
                raise Unheld(f"{kind} as {type}")
            self._blocks(schema, kind, namespace)
        elif kind == "enum":
            self._named.add(schema, namespace)
            self._scalar(ENUM, field, type, len(self.symbols), len(schema["symbols"]))
            self.symbols += [symbol.encode() for symbol in schema["symbols"]]
        elif kind == "fixed":
            self._named.add(schema, namespace)
            self._scalar(FIXED, field, type, int(schema["size"]))
        elif kind in _PRIMITIVES:
            self._scalar(_PRIMITIVES[kind], field, type)
        else:
            self.value(self._named.get(kind, namespace), field, type, namespace)

    def _scalar(self, operation: int, field: int, type: DataType | None, a: int = 0, b: int = 0) -> None:
        if type is not None and (type.kind not in PLAIN_KINDS or operation not in _READ_AS[type.kind]):
            raise Unheld(f"Avro's type number {operation} as {type}")
        self.add(operation, field, a, b)

    def _union(self, branches: list[Any], field: int, type: DataType | None, namespace: str) -> None:
        if len(branches) == 2 and "null" in branches:
            null = branches.index("null")
            place = self.add(NULLABLE, -1, null)
            self.value(branches[1 - null], field, type, namespace)
            self._set(place, b=len(self.steps))
            return
        if type is not None:
            raise Unheld(f"a union of {len(branches)} types as {type}")
        self.add(UNION, -1, len(branches))
        jumps = [self.add(JUMP) for _ in branches]
        ends = []
        for jump, branch in zip(jumps, branches, strict=True):
            self._set(jump, a=len(self.steps))
            self.value(branch, -1, None, namespace)
            ends.append(self.add(JUMP))
        for end in ends:
            self._set(end, a=len(self.steps))

    def _blocks(self, schema: Any, kind: str, namespace: str) -> None:
        self.add(BLOCKS)
        begin = self.add(NEXT)
        if kind == "map":
            self.add(STRING)
        self.value(schema["values" if kind == "map" else "items"], -1, None, namespace)
        self.add(JUMP, -1, begin)
        self._set(begin, a=len(self.steps))


def write_layout(schema_id: int, schema: Any, columns: tuple[Column, ...]) -> Layout:
    """Return how rows of columns are written with a schema.

    Raises:
        Unheld.
    """
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise Unheld("the schema is no record")
    by_name = {column.name: place for place, column in enumerate(columns)}
    by_upper = {column.name.upper(): place for place, column in enumerate(columns)}
    steps = []
    for field in schema["fields"]:
        place = by_name.get(field["name"], by_upper.get(field["name"].upper(), -1))
        if place < 0:
            raise Unheld(f"no column for the field {field['name']}")
        steps.append(_write_step(field["type"], place, columns[place].type))
    return Layout(Wire.AVRO, frame(schema_id), tuple(steps))


def _write_step(schema: Any, place: int, type: DataType) -> tuple[int, int, int, int, int]:
    branch = null = -1
    if isinstance(schema, list):
        if len(schema) != 2 or "null" not in schema:
            raise Unheld("a union of more than null and a type")
        where = schema.index("null")
        branch, null, schema = 2 * (1 - where), 2 * where, schema[1 - where]
    while isinstance(schema, dict):
        schema = schema["type"]
    operation = _PRIMITIVES.get(schema) if isinstance(schema, str) else None
    if operation is None or operation not in _WRITTEN_AS.get(type.kind, ()):
        raise Unheld(f"{type} as {schema}")
    return operation, place, branch, null, 0
