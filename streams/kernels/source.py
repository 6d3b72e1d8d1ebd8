"""From records to columns: the fields, keys and times of one JSON source."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from logflume.log.records import I64, Chunk
from logflume.log.schemas import Column, FormatSpec, Kind

from .. import graph as g
from ..compiler.codecs import other_spellings
from ..compiler.usage import Wiring
from ..expr import WHOLE, Meta, Side, columns_used
from .flow import Batch, Builder, Flow, Keys, Step, plain_name, prepare_all
from .vectors import KINDS, ColumnId, Kinds, Mask, Rows, Unsupported, Vector, VectorOf, compile_vector, full

_MAX_FIELDS = 60
_META = {Meta.ROWTIME: Kind.BIGINT, Meta.ROWPARTITION: Kind.INTEGER, Meta.ROWOFFSET: Kind.BIGINT}
_KEY_WIDTHS = {Kind.INTEGER: 4, Kind.BIGINT: 8}


@dataclass(frozen=True, slots=True, eq=False)
class Fields:
    """The fields of JSON values that are decoded, F.

    Attributes:
        text, ends, fields: their spellings joined, where each ends, and whose it is: an upper-case name may be in lower case.
        numbers: of their kinds.
        any_case: 1 for those that the reference tier looks for in any spelling.
    """

    names: tuple[str, ...]
    kinds: tuple[Kind, ...]
    text: npt.NDArray[np.uint8]
    ends: I64
    fields: I64
    numbers: I64
    any_case: I64

    @classmethod
    def of(cls, columns: tuple[Column, ...], declared: tuple[Column, ...]) -> Fields:
        """Make it of those of the declared columns that are decoded.

        Raises Unsupported: too many, or one of a type that is not held.
        """
        if len(columns) > _MAX_FIELDS:
            raise Unsupported(f"{len(columns)} fields")
        for column in columns:
            if column.type.kind not in KINDS:
                raise Unsupported(f"a field of type {column.type}")
        spellings = [(plain_name(column.name).encode(), f) for f, column in enumerate(columns)]
        other = other_spellings(declared, columns)
        spellings += [(other[column.name].encode(), f) for f, column in enumerate(columns) if column.name in other]
        names = [name for name, _ in spellings]
        return cls(
            tuple(column.name for column in columns),
            tuple(column.type.kind for column in columns),
            np.frombuffer(b"".join(names) or b" ", np.uint8),
            np.cumsum([len(name) for name in names], dtype=np.int64),
            np.array([field for _, field in spellings], np.int64),
            np.array([KINDS[column.type.kind] for column in columns], np.int64),
            np.array([column.name == column.name.upper() for column in columns], np.int64),
        )

    def extract(self, chunk: Chunk, start: int, stop: int, json: ModuleType) -> tuple[Mask, Mask, I64, I64]:
        """Return which of the N rows start..stop are certain, and [F, N]: nulls, values (doubles by their bits), sizes."""
        count = stop - start
        shape = (len(self.names), count)
        certain, nulls = np.empty(count, np.bool_), np.empty(shape, np.bool_)
        values, sizes = (
            np.empty(shape, np.int64),
            np.empty(shape if Kind.STRING in self.kinds else (len(self.names), 0), np.int64),
        )
        json.extract(
            np.ascontiguousarray(chunk.buffer),
            np.ascontiguousarray(chunk.value_starts[start:stop]),
            np.ascontiguousarray(chunk.value_sizes[start:stop]),
            np.ascontiguousarray(chunk.timestamps_ms[start:stop]),
            self.text, self.ends, self.fields, self.numbers, self.any_case,
            certain, nulls, values, values.view(np.float64), sizes,
        )  # fmt: skip
        return certain, nulls, values, sizes

    def vectors(self, nulls: Mask, values: I64, sizes: I64) -> dict[ColumnId, Vector]:
        """Return the columns of what `extract` gave."""
        found: dict[ColumnId, Vector] = {}
        for f, (name, kind) in enumerate(zip(self.names, self.kinds, strict=True)):
            mask = nulls[f] if nulls[f].any() else None
            data: Any = values[f]
            if kind is Kind.DOUBLE:
                data = data.view(np.float64)
            elif kind is Kind.BOOLEAN:
                data = data == 1
            found[Side.VALUE, name] = Vector(data, sizes[f] if kind is Kind.STRING else None, mask)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class SourcePlan:
    """What a source and all that follows it do, over columns."""

    fields: Fields
    key: tuple[str, Kind] | None
    meta: tuple[Meta, ...]
    time: VectorOf | None
    has_row_time: bool
    steps: tuple[Step, ...]

    def prepare(self, batch: Batch, texts: ModuleType) -> None:
        """Prepare all steps over the records of a batch."""
        chunk, start, stop = batch.chunk, batch.start, batch.stop
        certain, nulls, values, sizes = self.fields.extract(chunk, start, stop, batch.json)
        np.logical_not(certain, out=batch.marks)
        rows = Rows(stop - start, self.fields.vectors(nulls, values, sizes), texts)
        times = np.ascontiguousarray(chunk.timestamps_ms[start:stop])
        for name in self.meta:
            rows.columns[Side.META, name] = _meta(name, chunk, start, stop)
        if self.key is not None:
            self._read_key(batch, rows)
        with np.errstate(all="ignore"):
            if self.time is not None:
                times = self._event_time(batch, rows)
            base = batch.chunk.buffer.ctypes.data
            keys = Keys(chunk.key_starts[start:stop] + base, np.ascontiguousarray(chunk.key_sizes[start:stop]))
            prepare_all(self.steps, batch, Flow(rows, ~batch.marks, times, keys))

    def _read_key(self, batch: Batch, rows: Rows) -> None:
        assert self.key is not None
        name, kind = self.key
        chunk, start, stop, count = batch.chunk, batch.start, batch.stop, rows.count
        starts, sizes = np.ascontiguousarray(chunk.key_starts[start:stop]), np.ascontiguousarray(chunk.key_sizes[start:stop])
        buffer = np.ascontiguousarray(chunk.buffer)
        data, nulls, unsure = np.empty(count, np.int64), np.empty(count, np.bool_), np.empty(count, np.bool_)
        text_sizes = np.empty(count, np.int64) if kind is Kind.STRING else None
        if text_sizes is not None:
            rows.texts.text_keys(buffer, starts, sizes, count, data, text_sizes, nulls, unsure)
        else:
            rows.texts.number_keys(buffer, starts, sizes, _KEY_WIDTHS[kind], data, nulls, unsure)
        batch.marks |= unsure
        rows.columns[Side.KEY, name] = Vector(data, text_sizes, nulls if nulls.any() else None)

    def _event_time(self, batch: Batch, rows: Rows) -> I64:
        """Return the times that the source extracts; where there is none that fits the row is marked."""
        assert self.time is not None
        found = self.time(rows)
        times = full(found.data, rows.count, np.int64)
        batch.marks |= times < 0
        for mask in (found.nulls, found.unsure):
            if mask is not None:
                batch.marks |= mask
        if self.has_row_time:
            rows.columns[Side.META, Meta.ROWTIME] = Vector(times)
        return times


def _meta(name: Meta, chunk: Chunk, start: int, stop: int) -> Vector:
    """Return a column that lies beside the records start..stop."""
    if name is Meta.ROWPARTITION:
        return Vector(np.int64(chunk.partition))
    return Vector(np.ascontiguousarray((chunk.timestamps_ms if name is Meta.ROWTIME else chunk.offsets)[start:stop]))


def plan_source(builder: Builder, name: str) -> SourcePlan:
    """Return what a source does over columns.

    Raises:
        Unsupported: something of it only the reference tier holds.
    """
    node = builder.wiring.nodes[name]
    assert isinstance(node, g.Source | g.Repartition)
    if node.kind is not g.EdgeKind.STREAM or node.schema.window is not None:
        raise Unsupported("a table, or a windowed key")
    if node.value_format.name != "JSON" or (not node.value_format.is_wrapped and len(node.schema.value) == 1):
        raise Unsupported("the source's format")
    timestamp = node.timestamp if isinstance(node, g.Source) else None
    reads = set(builder.wiring.needs[name]) | (set() if timestamp is None else columns_used(timestamp))
    if any(column == WHOLE for _, column in reads):
        raise Unsupported("a whole row")
    fields = Fields.of(tuple(c for c in node.schema.value if (Side.VALUE, c.name) in reads), node.schema.value)
    kinds: dict[ColumnId, Kind] = {(Side.VALUE, column): kind for column, kind in zip(fields.names, fields.kinds, strict=True)}
    key = _key_of(node, {column for side, column in reads if side is Side.KEY})
    if key is not None:
        kinds[Side.KEY, key[0]] = key[1]
    meta = tuple(Meta(column) for side, column in sorted(reads) if side is Side.META)
    for column in meta:
        if column not in _META:
            raise Unsupported(f"column {column}")
        kinds[Side.META, column] = _META[column]
    time = None if timestamp is None else _time(timestamp, kinds)
    has_row_time = (Side.META, Meta.ROWTIME) in builder.wiring.needs[name]
    return SourcePlan(fields, key, meta, time, has_row_time, builder.after(name, kinds))


def _key_of(node: g.Source | g.Repartition, names: set[str]) -> tuple[str, Kind] | None:
    if not names:
        return None
    column = node.schema.key[0]
    if len(node.schema.key) != 1 or node.key_format.name != "KAFKA" or column.type.kind not in (*_KEY_WIDTHS, Kind.STRING):
        raise Unsupported("the format of a key")
    return column.name, column.type.kind


def _time(expr: Any, kinds: Kinds) -> VectorOf:
    kind, found = compile_vector(expr, kinds)
    if kind not in (Kind.BIGINT, Kind.TIMESTAMP, Kind.INTEGER):
        raise Unsupported(f"a time of type {kind}")
    return found


def table_fields(wiring: Wiring, node: g.Source) -> Fields | None:
    """Return the fields of a table's values, all of which the reference tier decodes; None where they are not held."""
    format: FormatSpec = node.value_format
    if format.name != "JSON" or (not format.is_wrapped and len(node.schema.value) == 1) or node.timestamp is not None:
        return None
    try:
        return Fields.of(node.schema.value, node.schema.value)
    except Unsupported:
        return None
