"""Columns of records whose schemas are in a registry: each begins with the head of its schema, and a layout says how it goes on.
What kernels only find the place of is made into values by the layout's readers, all rows of a run at once.

A run mostly has one head, at most a few. What has none, or a schema without a layout, and all behind `_MAX_HEADS` of them is left
to the serde.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from logflume.log import DecodeError, span_objects
from logflume.log.records import I64, Chunk
from logflume.log.schemas import Column as Field
from logflume.log.schemas import FormatSpec, Found, Kind, Layout, Leaf, Wire, has_layouts, read_layout

from ..kernels import more_kernels
from ..vectors.expressions import KINDS, Mask, Unsupported
from .column import taken, vector_objects
from .fields import Extracted, Fields, vector_of

_MAX_HEADS = 16
"""Heads that are looked for in a run."""
_KEPT_LAYOUTS = 256
KERNELS = {Wire.AVRO: "avro_rows", Wire.PROTOBUF: "proto_rows", Wire.ROW: "message_rows"}
"""The kernels of forms that are read and written by steps."""
_PART = 5
"""In the place of a kind's number: what is only to be found."""


@dataclass(frozen=True, slots=True, eq=False)
class _Steps:
    """A layout as arrays. Names of enums are addresses in `text`."""

    wire: Wire
    head: Any
    steps: Any
    symbols: I64
    symbol_sizes: I64
    numbers: I64
    absent: I64
    text: Any
    leaves: tuple[Leaf, ...]
    kinds: I64

    @classmethod
    def of(cls, layout: Layout) -> _Steps:
        text = np.frombuffer(b"".join(layout.symbols) + b"\0", np.uint8)
        sizes = np.array([len(symbol) for symbol in layout.symbols], np.int64)
        steps = np.array(layout.steps, np.int64).reshape(-1, 5)
        numbers, absent = np.array(layout.numbers, np.int64), np.array(layout.absent, np.int64)
        addresses = text.ctypes.data + np.cumsum(sizes) - sizes
        head, kinds = np.frombuffer(layout.head, np.uint8), np.array([_kind_number(leaf) for leaf in layout.leaves], np.int64)
        return cls(layout.wire, head, steps, addresses, sizes, numbers, absent, text, layout.leaves, kinds)


def _kind_number(leaf: Leaf) -> int:
    if leaf.found is Found.CONTENT:
        return KINDS[Kind.STRING]
    if leaf.found is Found.WHOLE:
        return _PART
    return KINDS.get(leaf.kind, 0)


class FramedFields:
    """Decodes some of the columns of one source. Keeps the layouts of heads met lately."""

    def __init__(self, format: FormatSpec, columns: tuple[Field, ...], kept: tuple[Field, ...]) -> None:
        """Raises Unsupported: the format, or columns that kernels do not read."""
        if not has_layouts(format, columns, kept):
            raise Unsupported(f"{format.name} of these columns")
        self.names = tuple(column.name for column in kept)
        self.kinds = tuple(column.type.kind for column in kept)
        self._format, self._columns, self._kept = format, columns, kept
        self._json = Fields.of(kept, columns) if format.name == "JSON_SR" else None
        self._layouts: OrderedDict[bytes, _Steps] = OrderedDict()

    def extract(self, chunk: Chunk, start: int, stop: int, json: ModuleType) -> Extracted | None:
        """Decode N records; None: not yet, the kernels of this form are still being loaded."""
        heads = _Heads(self, chunk, start, stop)
        if self._json is not None:
            return heads.json(self._json, json)
        kernels = more_kernels(KERNELS[Wire(self._format.name.removesuffix("_NOSR"))])
        return None if kernels is None else heads.binary(kernels)

    def layout(self, record: bytes) -> _Steps | None:
        """Return how records that begin as this one are read; None: not by a layout. Raises RegistryUnavailable."""
        for head, found in self._layouts.items():
            if record.startswith(head):
                return found
        layout = read_layout(self._format, self._columns, self._kept, record)
        if layout is None:
            return None
        made = self._layouts[layout.head] = _Steps.of(layout)
        if len(self._layouts) > _KEPT_LAYOUTS:
            self._layouts.popitem(last=False)
        return made


class _Heads:
    """One run: which of its records have been looked at, and what was found."""

    def __init__(self, fields: FramedFields, chunk: Chunk, start: int, stop: int) -> None:
        self._fields = fields
        self._chunk = chunk
        self._starts = np.ascontiguousarray(chunk.value_starts[start:stop])
        self._sizes = np.ascontiguousarray(chunk.value_sizes[start:stop])
        self._place = start
        self._taken: Mask = self._sizes < 0
        self._passed = 0

    def _next(self) -> _Steps | None:
        """Return how the first record is read that was not looked at yet; records that cannot be are passed over."""
        while not self._taken.all():
            first = int(np.argmin(self._taken))
            begin = int(self._starts[first])
            found = self._fields.layout(self._chunk.buffer[begin : begin + int(self._sizes[first])].tobytes())
            if found is not None:
                return found
            self._taken[first] = True
            self._passed += 1
            if self._passed >= _MAX_HEADS:
                break
        return None

    def binary(self, kernels: Any) -> Extracted:
        """Decode what is read by steps."""
        columns, count = len(self._fields.names), len(self._starts)
        result = _room(columns, count)
        buffer = np.ascontiguousarray(self._chunk.buffer)
        objects: list[tuple[int, I64, list[Any]]] = []
        for _ in range(_MAX_HEADS):
            layout = self._next()
            if layout is None:
                break
            result.memory.append(layout.text)
            before = self._taken.copy()
            found = result if len(layout.leaves) == columns else _room(len(layout.leaves), count)._replace(certain=result.certain)
            parts: Sequence[Any] = (layout.head, layout.steps, layout.symbols, layout.symbol_sizes, layout.numbers, layout.kinds)
            absent = (layout.absent,) if layout.wire is Wire.PROTOBUF else ()
            kernels.extract(
                buffer, self._starts, self._sizes, *parts, *absent, self._taken, found.certain, found.nulls, found.values,
                found.values.view(np.float64), found.sizes,
            )  # fmt: skip
            rows = np.flatnonzero(self._taken & ~before & found.certain)
            if found is not result:
                for whole, part in ((result.nulls, found.nulls), (result.values, found.values), (result.sizes, found.sizes)):
                    whole[:, rows] = part[:columns, rows]
            made = _Values(layout, found, buffer)
            objects += [(f, rows, made.of(f, rows)) for f in range(columns) if layout.leaves[f].found is not Found.VALUE]
            result.certain[made.wrong] = False
        return result._replace(objects=[_certain(each, result.certain) for each in objects])

    def json(self, fields: Fields, json: ModuleType) -> Extracted:
        """Decode JSON that stands behind heads of one size."""
        size, is_known = 0, np.zeros(len(self._starts), np.bool_)
        for _ in range(_MAX_HEADS):
            layout = self._next()
            if layout is None:
                break
            size = len(layout.head)
            fits = ~self._taken & (self._sizes >= size)
            rows = np.flatnonzero(fits)
            heads = self._chunk.buffer[self._starts[rows][:, None] + np.arange(size)]
            same = rows[(heads == layout.head).all(axis=1)]
            is_known[same] = self._taken[same] = True
        count = len(self._starts)
        starts, sizes = np.where(is_known, self._starts + size, 0), np.where(is_known, self._sizes - size, 0)
        part = replace(
            self._chunk.slice(self._place, self._place + count), value_starts=starts, value_sizes=sizes.astype(np.int32)
        )
        found = fields.extract(part, 0, count, json)
        return found._replace(certain=found.certain & is_known)


def _room(leaves: int, count: int) -> Extracted:
    shape = (leaves, count)
    return Extracted(
        np.zeros(count, np.bool_), np.ones(shape, np.bool_), np.zeros(shape, np.int64), np.zeros(shape, np.int64), []
    )


def _certain(part: tuple[int, I64, list[Any]], certain: Mask) -> tuple[int, I64, list[Any]]:
    """Leave out rows that turned out to be wrong."""
    f, rows, values = part
    good = certain[rows]
    return (
        part if good.all() else (f, rows[good], [value for value, is_good in zip(values, good.tolist(), strict=True) if is_good])
    )


class _Values:
    """What a kernel found of the leaves of a layout, as objects. `wrong`: rows of which something could not be read."""

    def __init__(self, layout: _Steps, found: Extracted, buffer: Any) -> None:
        self.wrong: list[int] = []
        self._leaves = layout.leaves
        self._found = found
        self._buffer = buffer

    def of(self, leaf: int, rows: I64) -> list[Any]:
        """Return the values of a leaf in some rows."""
        its = self._leaves[leaf]
        if its.found is Found.VALUE:
            if its.kind not in KINDS:
                return [None] * len(rows)
            return vector_objects(taken(vector_of(self._found, leaf, its.kind), rows), its.kind)
        nulls = self._found.nulls[leaf, rows]
        present = rows[~nulls]
        values = self._records(its, present) if its.found is Found.PRESENCE else self._read(its, leaf, present)
        if len(present) == len(rows):
            return values
        rest = iter(values)
        return [None if is_null else next(rest) for is_null in nulls.tolist()]

    def _records(self, leaf: Leaf, rows: I64) -> list[Any]:
        names, fields = leaf.names, [self.of(field, rows) for field in leaf.fields]
        return [dict(zip(names, values, strict=True)) for values in zip(*fields, strict=True)] if fields else [{} for _ in rows]

    def _read(self, leaf: Leaf, place: int, rows: I64) -> list[Any]:
        assert leaf.read is not None
        sizes = self._found.sizes[place, rows]
        starts = np.where(sizes == 0, 0, self._found.values[place, rows] - self._buffer.ctypes.data)
        parts: Any = span_objects(self._buffer, starts, sizes.astype(np.int32))
        try:
            return leaf.read(parts)
        except DecodeError:
            values: list[Any] = []
            for row, part in zip(rows.tolist(), parts, strict=True):
                try:
                    values += leaf.read([part])
                except DecodeError:
                    self.wrong.append(row)
                    values.append(None)
            return values
