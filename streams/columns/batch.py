"""A batch: N rows of one edge of the topology, as columns.

Rows come in the order of the records that caused them: `order` says which record of the round each came of (several rows may
share one), `rows` where that record is in its chunk. A round is what a task takes at once, of one or several inputs. Batches of a
task commit have no cause.

Where ways part and meet again, rows of one record come in the order in which single records would have come: depth first, all
that follows from a node's first consumer before the second one. So the place of a row on its way stands in the lower bits of its
order: which consumer at each fork, which item of a list. Should the bits not suffice, such rows come one way after the other. On
a TABLE edge a row is a change: the columns hold the new row (`nulls`: there is none any more), and `old` the row before where a
consumer compares with it.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from logflume.log.records import I64, Chunk, Headers
from logflume.log.schemas import BIGINT, Kind, is_object_class, object_codec

from .. import graph as g
from ..exact.expressions import identifier
from ..expr import Meta, Side
from ..vectors.expressions import Mask, Vector
from ..windows import bounds_of_key
from .column import Bytes, Column

MakeAll = Callable[[list[list[Any]]], list[Any]]
ColumnId = tuple[Side, str]
OWN_HEADERS: ColumnId = (Side.META, "own headers")
"""Headers of rows that have others than the records that caused them, as objects: pairs of name and bytes (`Batch.headers`)."""
PATH_BITS = 39
"""Leaves 24 bits for the records of a round."""


@dataclass(slots=True, eq=False)
class Old:
    """The rows before the changes of a batch: their value columns, and where there was none."""

    columns: Mapping[ColumnId, Column]
    nulls: Mask


@dataclass(slots=True, eq=False)
class Batch:
    """See the module.

    Attributes:
        schema: of the edge; what a whole row, as an object, is.
        times: event times in ms, int64[N].
        keys: encoded keys, on a windowed edge with the window's start behind; None after a change of key.
        columns: what has been decoded or computed; META columns are made when asked for.
        nulls: where the value is null; None: nowhere.
        chunk: the records at hand; None at a task commit.
        rows: indices in the chunk, int64[N]; None at a task commit.
        order: int64[N], never falling: the position in the round, then PATH_BITS for the way. Less than 0: of no record, in the
            order in which they were made. None: before the task has numbered them, and where any order will do.
        path_bits: how many bits are left for the way from here.
        memory: what spans of texts made on the way point into.
    """

    schema: g.Schema
    times: I64
    keys: Bytes | None
    columns: dict[ColumnId, Column]
    nulls: Mask | None = None
    chunk: Chunk | None = None
    rows: I64 | None = None
    order: I64 | None = None
    path_bits: int = 0
    old: Old | None = None
    memory: list[Any] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.times)

    # -- columns ---------------------------------------------------------------------------------------------------------

    def column(self, side: Side, name: str) -> Column:
        """Return a column; a whole row and what lies beside the record are made when first asked for."""
        found = self.columns.get((side, name))
        if found is None:
            found = self._meta(name) if side is Side.META else self._whole(side)
            self.columns[side, name] = found
        return found

    def _whole(self, side: Side) -> Column:
        schema = self.schema
        if side is Side.VALUE:
            parts = [self.columns[side, column.name] for column in schema.value]
            only = parts[0] if len(parts) == 1 else None
            if only is not None and (
                g.is_bare(schema) or (schema.value_class is not None and not is_object_class(schema.value_class))
            ):
                return only
            return Column.lazily(len(self), Kind.ANY, lambda: _rows(row_maker(schema), parts, self.nulls, _all_maker(schema)))
        parts = [self.columns[side, column.name] for column in schema.key]
        if not parts:
            return Column.of_nulls(len(self), Kind.ANY)
        if len(parts) == 1 and schema.window is None:
            return parts[0]
        names = [column.name for column in schema.key]
        if schema.window is not None:
            parts = [*parts, self.column(Side.META, Meta.WINDOWSTART)]
            names.append("window_start")
        gone = self.keys.nulls() if self.keys is not None else None
        return Column.lazily(len(self), Kind.ANY, lambda: _rows(row_class(tuple(names))._make, parts, gone))

    def _meta(self, name: str) -> Column:
        count, chunk, rows = len(self), self.chunk, self.rows
        if name == Meta.ROWTIME:
            return Column.of_vector(Vector(self.times), count, Kind.BIGINT)
        if name in (Meta.WINDOWSTART, Meta.WINDOWEND):
            return self._window_bound(name)
        if name == Meta.HEADERS and OWN_HEADERS in self.columns:
            return Column.of_objects(headers_of(self.columns[OWN_HEADERS].objects()), Kind.ANY)
        if chunk is None or rows is None:
            return Column.of_nulls(count, Kind.ANY if name == Meta.HEADERS else Kind.BIGINT)
        if name == Meta.ROWPARTITION:
            return Column.of_vector(Vector(np.int64(chunk.partition)), count, Kind.INTEGER)
        if name == Meta.ROWOFFSET:
            return Column.of_vector(Vector(chunk.offsets[rows]), count, Kind.BIGINT)
        assert name == Meta.HEADERS, name
        return Column.lazily(count, Kind.ANY, lambda: headers_of(chunk.take(rows).headers()))

    def _window_bound(self, name: str) -> Column:
        """Return the start or the end of the window that stands behind the encoded key."""
        window = self.schema.window
        assert self.keys is not None
        assert window is not None, f"{name} is only there on windowed edges"
        which = 1 if name == Meta.WINDOWEND else 0
        bounds = [None if key is None else bounds_of_key(window, key)[which] for key in self.keys.objects()]
        return Column.of_objects(bounds, BIGINT.kind)

    def headers(self) -> Sequence[Headers] | None:
        """Return the headers of the rows, those of what caused them unless they have their own; None: no row has any."""
        own = self.columns.get(OWN_HEADERS)
        if own is not None:
            return own.objects()
        if self.chunk is None or self.rows is None or not self.chunk.header_counts[self.rows].any():
            return None
        return self.chunk.take(self.rows).headers()

    def set_headers(self, headers: Sequence[Headers]) -> None:
        """Give the rows headers of their own."""
        if any(headers) or self.headers() is not None:
            self.columns.pop((Side.META, Meta.HEADERS), None)
            self.columns[OWN_HEADERS] = Column.of_objects(list(headers), Kind.ANY)

    def without_headers(self) -> Batch:
        """Return the rows without headers."""
        bare = replace(self, columns=dict(self.columns))
        bare.set_headers([()] * len(self))
        return bare

    # -- order -----------------------------------------------------------------------------------------------------------

    @property
    def causes(self) -> I64 | None:
        """Positions in the round, int64[N]; None: no records of the round caused these rows."""
        return causes_of(self.order)

    def numbered(self, first: int) -> Batch:
        """Return the rows in an order of their own: the `first`, which is less than 0, and those that follow; it ends at -1."""
        return replace(self, order=np.minimum(first + np.arange(len(self)), -1) << PATH_BITS, path_bits=PATH_BITS)

    def branch(self, place: int, count: int) -> Batch:
        """Return the rows on their way to one of several consumers."""
        bits = (count - 1).bit_length()
        if self.order is None or bits > self.path_bits:
            return self
        left = self.path_bits - bits
        return replace(self, order=self.order + (place << left) if place else self.order, path_bits=left)

    def expand(self, rows: I64, places: I64) -> Batch:
        """Return rows, each as often as it has items; `places`: which item each is."""
        made = self.take(rows)
        bits = int(places.max()).bit_length() if len(places) else 0
        if made.order is not None and bits <= made.path_bits:
            made.path_bits -= bits
            made.order = made.order + (places << made.path_bits)
        return made

    # -- rows ------------------------------------------------------------------------------------------------------------

    def take(self, rows: I64) -> Batch:
        """Return some rows, in that order."""
        return replace(
            self,
            times=self.times[rows],
            keys=None if self.keys is None else self.keys.take(rows),
            columns={c: column.take(rows) for c, column in self.columns.items()},
            nulls=_rows_of(self.nulls, rows),
            rows=None if self.rows is None else self.rows[rows],
            order=None if self.order is None else self.order[rows],
            old=None
            if self.old is None
            else Old({c: column.take(rows) for c, column in self.old.columns.items()}, self.old.nulls[rows]),
        )

    def where(self, mask: Mask | None) -> Batch:
        """Return the rows where a mask is set; None: all."""
        return self if mask is None or mask.all() else self.take(np.flatnonzero(mask))

    def without(self, mask: Mask | None) -> Batch:
        """Return the rows where a mask is not set; None: all."""
        return self if mask is None else self.where(~mask)

    def with_values(self, schema: g.Schema, columns: Mapping[ColumnId, Column], *, nulls: Mask | None, old: Old | None) -> Batch:
        """Return the rows with other value columns."""
        kept = {c: column for c, column in self.columns.items() if c[0] is not Side.VALUE}
        return replace(self, schema=schema, columns={**kept, **columns}, nulls=nulls, old=old)

    def before(self) -> Batch:
        """Return the rows before the changes, as a batch of their own."""
        assert self.old is not None
        kept = {c: column for c, column in self.columns.items() if c[0] is not Side.VALUE}
        return replace(self, columns={**kept, **self.old.columns}, nulls=self.old.nulls, old=None)

    def values(self) -> dict[ColumnId, Column]:
        """Return the value columns."""
        return {c: column for c, column in self.columns.items() if c[0] is Side.VALUE}


def causes_of(order: I64 | None) -> I64 | None:
    """Return the positions in the round that an order (see `Batch`) says; None: no records of the round."""
    return None if order is None or (len(order) and order[0] < 0) else order >> PATH_BITS


def _rows_of(mask: Mask | None, rows: I64) -> Mask | None:
    if mask is None:
        return None
    found = mask[rows]
    return found if found.any() else None


def _rows(
    make: Callable[[tuple[Any, ...]], Any], parts: list[Column], nulls: Mask | None, make_all: MakeAll | None = None
) -> list[Any]:
    """Return one object a row, None where it is null. `make_all`: the same as `make`, of whole columns."""
    columns = [part.objects() for part in parts]
    if make_all is not None and nulls is None and columns:
        return make_all(columns)
    rows: Any = zip(*columns, strict=True) if columns else [()] * (0 if nulls is None else len(nulls))
    if nulls is None:
        return list(map(make, rows))
    return [None if null else make(row) for row, null in zip(rows, nulls.tolist(), strict=True)]


def objects_of(batch: Batch) -> tuple[list[Any], dict[int, Exception]]:
    """Return the value rows as objects of their class, and what making them raised by row: a class may refuse a row."""
    parts = [batch.columns[Side.VALUE, column.name] for column in batch.schema.value]
    make = row_maker(batch.schema)
    try:
        return _rows(make, parts, batch.nulls, _all_maker(batch.schema)), {}
    except Exception:  # noqa: BLE001
        failed: dict[int, Exception] = {}

    def make_one(row: int, values: tuple[Any, ...]) -> Any:
        if batch.nulls is not None and batch.nulls[row]:
            return None
        try:
            return make(values)
        except Exception as error:  # noqa: BLE001
            failed[row] = error
            return None

    rows = zip(*[part.objects() for part in parts], strict=True)
    return [make_one(row, values) for row, values in enumerate(rows)], failed


@lru_cache(maxsize=1024)
def row_class(names: tuple[str, ...]) -> Any:
    """Return a named tuple class for rows without a class of their own."""
    return namedtuple("Row", [identifier(name) for name in names], rename=True)


def row_maker(schema: g.Schema) -> Callable[[tuple[Any, ...]], Any]:
    """Return what makes the object of a value row."""
    if schema.value_class is not None and is_object_class(schema.value_class):
        return object_codec(schema.value_class).from_row
    make: Callable[[tuple[Any, ...]], Any] = row_class(tuple(column.name for column in schema.value))._make
    return make


def _all_maker(schema: g.Schema) -> MakeAll | None:
    """Return what makes the objects of whole columns, where the rows have a class that can."""
    if schema.value_class is not None and is_object_class(schema.value_class):
        return object_codec(schema.value_class).from_columns
    return None


def headers_of(found: Sequence[Headers]) -> list[Any]:
    """Return the headers of records as ARRAY<STRUCT<KEY STRING, VALUE BYTES>>."""
    return [[{"KEY": key, "VALUE": value} for key, value in headers] for headers in found]
