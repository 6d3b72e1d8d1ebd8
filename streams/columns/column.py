"""Columns of a batch, in whichever of their forms somebody has asked for; a form is made of another one once.

A `Column` is objects (a list, None for null) or a vector (typed numbers, or texts as spans of memory). `Bytes` are encoded keys
or values, as spans of one buffer or as objects. Taking rows of either costs nothing until one of them is looked at.

In the vector of a column `unsure` says which texts are not plain (ASCII that JSON writes as it is): no kernel may look into them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from logflume.log import span_objects
from logflume.log.records import I32, I64
from logflume.log.schemas import Kind

from ..kernels import loaded_kernels
from ..vectors.expressions import KINDS, Mask, Vector, full, is_plain

_CLASSES = {0: bool, 1: int, 2: int, 3: float, 4: str}
_DTYPES = {0: np.bool_, 1: np.int64, 2: np.int64, 3: np.float64, 4: np.int64}


class Column:
    """N values of one kind. Never changed once made; `memory` is what spans point into."""

    __slots__ = ("_make", "_memory", "_objects", "_parent", "_rows", "_vector", "count", "kind")

    def __init__(self, count: int, kind: Kind) -> None:
        self.count = count
        self.kind = kind
        self._objects: list[Any] | None = None
        self._vector: Vector | None = None
        self._memory: object = None
        self._parent: Column | None = None
        self._rows: I64 | None = None
        self._make: Callable[[], list[Any]] | None = None

    @classmethod
    def of_objects(cls, values: list[Any], kind: Kind) -> Column:
        """Make it of Python values, None for null."""
        made = cls(len(values), kind)
        made._objects = values
        return made

    @classmethod
    def of_vector(cls, vector: Vector, count: int, kind: Kind, memory: object = None) -> Column:
        """Make it of a vector of which every row is certain. `memory`: what its texts point into."""
        made = cls(count, kind)
        dtype = _DTYPES[KINDS[kind]]
        sizes = None if vector.sizes is None else full(vector.sizes, count, np.int64)
        nulls = None if vector.nulls is None else full(vector.nulls, count, np.bool_)
        unsure = vector.unsure if kind is Kind.STRING else None
        made._vector = Vector(full(vector.data, count, dtype), sizes, nulls, unsure)
        made._memory = memory
        return made

    @classmethod
    def lazily(cls, count: int, kind: Kind, make: Callable[[], list[Any]]) -> Column:
        """Make it of objects that are only made when they are asked for."""
        made = cls(count, kind)
        made._make = make
        return made

    @classmethod
    def of_nulls(cls, count: int, kind: Kind) -> Column:
        """Make it of nothing but nulls."""
        return cls.of_objects([None] * count, kind)

    @property
    def memory(self) -> object:
        return self._memory

    @property
    def has_vector(self) -> bool:
        """Whether the vector is there already, or can be taken from one that is."""
        return self._vector is not None or (self._parent is not None and self._objects is None and self._parent.has_vector)

    def take(self, rows: I64) -> Column:
        """Return the values of some rows, in that order."""
        made = Column(len(rows), self.kind)
        made._parent, made._rows = self, rows
        return made

    def objects(self) -> list[Any]:
        """Return the values as Python objects, None for null. Not to be changed."""
        if self._objects is None:
            if self._make is not None:
                self._objects, self._make = self._make(), None
            elif self._vector is None and self._parent is not None and not self._parent.has_vector:
                values = self._parent.objects()
                assert self._rows is not None
                self._objects = [values[row] for row in self._rows.tolist()]
            else:
                vector = self.vector()
                assert vector is not None, "a column has a form"
                self._objects = vector_objects(vector, self.kind)
        return self._objects

    def vector(self) -> Vector | None:
        """Return the values as a vector, all rows certain; None where they do not fit one."""
        if self._vector is None:
            if self._objects is None and self._parent is not None and self._parent.has_vector:
                whole = self._parent.vector()
                assert whole is not None
                assert self._rows is not None
                self._vector = taken(whole, self._rows)
                self._memory = self._parent.memory
            else:
                made = typed(self.objects(), self.kind)
                if made is None:
                    return None
                self._vector, self._memory = made
        return self._vector

    def nulls(self) -> Mask:
        """Return which values are null."""
        if self._vector is None and not self.has_vector:
            return np.fromiter([value is None for value in self.objects()], np.bool_, self.count)
        vector = self.vector()
        assert vector is not None
        return np.zeros(self.count, np.bool_) if vector.nulls is None else vector.nulls


def taken(vector: Vector, rows: I64) -> Vector:
    """Return some rows of a vector whose parts are arrays."""
    nulls = None if vector.nulls is None else vector.nulls[rows]
    if nulls is not None and not nulls.any():
        nulls = None
    unsure = None if vector.unsure is None else vector.unsure[rows]
    if unsure is not None and not unsure.any():
        unsure = None
    return Vector(vector.data[rows], None if vector.sizes is None else vector.sizes[rows], nulls, unsure)


def vector_objects(vector: Vector, kind: Kind) -> list[Any]:
    """Return the values of a vector whose parts are arrays."""
    if kind is not Kind.STRING:
        values: list[Any] = vector.data.tolist()
    else:
        values = _texts(vector.data, vector.sizes)
    if vector.nulls is None:
        return values
    return [None if null else value for value, null in zip(values, vector.nulls.tolist(), strict=True)]


def _texts(addresses: I64, sizes: I64) -> list[Any]:
    """Return the texts at addresses."""
    loaded, count = loaded_kernels(), len(addresses)
    assert loaded is not None, "texts are spans only where kernels made them"
    if not count:
        return []
    between, rows = np.zeros(1, np.uint8), np.full(2 * count, count)
    rows[::2] = np.arange(count)
    out = np.empty(int(sizes.sum()) + count, np.uint8)
    loaded.slots.copy_keys(np.append(addresses, between.ctypes.data), np.append(sizes, len(between)).astype(np.int32), rows, out)
    data = out.tobytes()
    texts: list[Any] = data[:-1].decode().split("\0")  # a fifth of what slicing them one by one costs
    if len(texts) == count:
        return texts
    ends = np.cumsum(sizes + 1) - 1
    return [data[a:b].decode() for a, b in zip((ends - sizes).tolist(), ends.tolist(), strict=True)]


def typed(values: list[Any], kind: Kind) -> tuple[Vector, object] | None:
    """Return values as a vector, and the memory of its texts; None where one does not fit."""
    number = KINDS.get(kind)
    if number is None:
        return None
    classes = set(map(type, values))
    has_nulls = type(None) in classes
    if not classes <= {_CLASSES[number], type(None)}:
        return None
    nulls = np.fromiter([value is None for value in values], np.bool_, len(values)) if has_nulls else None
    if kind is Kind.STRING:
        made = _spans([value or "" for value in values] if has_nulls else values)
        return None if made is None else (Vector(made[0], made[1], nulls, made[3]), made[2])
    filled = [0 if value is None else value for value in values] if has_nulls else values
    try:
        return Vector(np.array(filled, _DTYPES[number]), None, nulls), None
    except OverflowError:
        return None


def _spans(texts: list[str]) -> tuple[I64, I64, object, Mask | None] | None:
    joined = "".join(texts)
    try:
        data = np.frombuffer(joined.encode() or b" ", np.uint8)
    except UnicodeEncodeError:
        return None
    lengths = map(len, texts) if joined.isascii() else (len(text.encode()) for text in texts)
    sizes = np.fromiter(lengths, np.int64, len(texts))
    special = None if is_plain(joined) else np.fromiter([not is_plain(text) for text in texts], np.bool_, len(texts))
    return data.ctypes.data + np.cumsum(sizes) - sizes, sizes, data, special


def spread(column: Column, rows: I64, count: int) -> Column:
    """Return `count` values: those of a column at some rows, null elsewhere."""
    vector = column.vector() if column.has_vector else None
    if vector is None:
        values: list[Any] = [None] * count
        for row, value in zip(rows.tolist(), column.objects(), strict=True):
            values[row] = value
        return Column.of_objects(values, column.kind)
    nulls = np.ones(count, np.bool_)
    nulls[rows] = False if vector.nulls is None else vector.nulls
    data, sizes, unsure = (
        None if part is None else _spread(part, rows, count) for part in (vector.data, vector.sizes, vector.unsure)
    )
    return Column.of_vector(Vector(data, sizes, nulls, unsure), count, column.kind, column.memory)


def _spread(part: Any, rows: I64, count: int) -> Any:
    made = np.zeros(count, part.dtype)
    made[rows] = part
    return made


def emptied(column: Column, gone: Mask | None) -> Column:
    """Return a column that is null where its row is gone."""
    if gone is None:
        return column
    vector = column.vector() if column.has_vector else None
    if vector is not None:
        both = gone if vector.nulls is None else vector.nulls | gone
        return Column.of_vector(Vector(vector.data, vector.sizes, both, vector.unsure), column.count, column.kind, column.memory)
    values = column.objects()
    return Column.of_objects([None if null else v for v, null in zip(values, gone.tolist(), strict=True)], column.kind)


def patched(vector: Vector, count: int, kind: Kind, rows: I64, values: list[Any], memory: list[Any]) -> Column:
    """Return the column of a vector with the values of some rows given as objects instead."""
    made = typed(values, kind)
    data = full(vector.data, count, _DTYPES[KINDS[kind]]).copy()
    sizes = None if vector.sizes is None else full(vector.sizes, count, np.int64).copy()
    nulls = np.zeros(count, np.bool_) if vector.nulls is None else full(vector.nulls, count, np.bool_).copy()
    if made is None:
        if sizes is not None:
            sizes[rows] = 0
        nulls[rows] = True
        objects = vector_objects(Vector(data, sizes, nulls), kind)
        for row, value in zip(rows.tolist(), values, strict=True):
            objects[row] = value
        return Column.of_objects(objects, kind)
    part, own = made
    data[rows] = part.data
    special = vector.unsure
    if sizes is not None:
        sizes[rows] = part.sizes
        if part.unsure is not None or special is not None:
            special = np.zeros(count, np.bool_) if special is None else full(special, count, np.bool_).copy()
            special[rows] = False if part.unsure is None else part.unsure
    nulls[rows] = False if part.nulls is None else part.nulls
    memory.append(own)
    return Column.of_vector(Vector(data, sizes, nulls if nulls.any() else None, special), count, kind, memory)


class Bytes:
    """N byte strings or nulls, as spans of one buffer or as objects. Never changed once made."""

    __slots__ = ("_buffer", "_objects", "_parent", "_rows", "_sizes", "_starts", "count")

    def __init__(self, count: int) -> None:
        self.count = count
        self._objects: list[bytes | None] | None = None
        self._buffer: npt.NDArray[np.uint8] | None = None
        self._starts: I64 | None = None
        self._sizes: I32 | None = None
        self._parent: Bytes | None = None
        self._rows: I64 | None = None

    @classmethod
    def of_objects(cls, values: list[bytes | None]) -> Bytes:
        """Make it of objects."""
        made = cls(len(values))
        made._objects = values
        return made

    @classmethod
    def of_spans(cls, buffer: npt.NDArray[np.uint8], starts: I64, sizes: I32) -> Bytes:
        """Make it of spans; a size of -1 is null."""
        made = cls(len(starts))
        made._buffer, made._starts, made._sizes = buffer, starts, sizes
        return made

    @property
    def has_spans(self) -> bool:
        return self._starts is not None or (self._parent is not None and self._objects is None and self._parent.has_spans)

    def take(self, rows: I64) -> Bytes:
        """Return those of some rows, in that order."""
        made = Bytes(len(rows))
        made._parent, made._rows = self, rows
        return made

    def objects(self) -> list[bytes | None]:
        """Return them as objects. Not to be changed."""
        if self._objects is None:
            if self._starts is None and self._parent is not None and self._parent._objects is not None:
                values = self._parent._objects
                assert self._rows is not None
                self._objects = [values[row] for row in self._rows.tolist()]
            else:
                self._objects = span_objects(*self.spans())
        return self._objects

    def spans(self) -> tuple[npt.NDArray[np.uint8], I64, I32]:
        """Return the buffer, and starts and sizes in it, -1 for null."""
        if self._starts is None or self._buffer is None or self._sizes is None:
            if self._objects is None and self._parent is not None:
                buffer, starts, sizes = self._parent.spans()
                self._buffer, self._starts, self._sizes = buffer, starts[self._rows], sizes[self._rows]
            else:
                self._buffer, self._starts, self._sizes = joined(self.objects())
        return self._buffer, self._starts, self._sizes

    def addresses(self) -> tuple[I64, I32]:
        """Return where in memory they are, and their sizes; the memory lives as long as this."""
        buffer, starts, sizes = self.spans()
        return np.ascontiguousarray(starts + buffer.ctypes.data), np.ascontiguousarray(sizes)

    def nulls(self) -> Mask | None:
        """Return which are null; None: none."""
        if self.has_spans:
            found: Mask = self.spans()[2] < 0
            return found if found.any() else None
        if None not in self.objects():
            return None
        return np.fromiter([value is None for value in self.objects()], np.bool_, self.count)


def joined(values: list[bytes | None]) -> tuple[npt.NDArray[np.uint8], I64, I32]:
    """Return objects as spans of one new buffer."""
    sizes = np.fromiter([-1 if value is None else len(value) for value in values], np.int32, len(values))
    lengths = np.maximum(sizes, 0).astype(np.int64)
    data = b"".join(filter(None, values))
    return np.frombuffer(data or b"\0", np.uint8), np.cumsum(lengths) - lengths, sizes


def compressed(values: list[Any], mask: Mask) -> list[Any]:
    """Return the values where a mask is set."""
    return list(itertools.compress(values, mask.tolist()))
