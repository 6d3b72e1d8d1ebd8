"""Values of one column of kept rows, at places: numbers as arrays, texts as spans of one arena, everything else encoded.

A column is typed as long as all its values fit; else it goes over to encoded values (`Objects`). All forms are written and
read as a few byte strings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from logflume.log import CorruptLog
from logflume.log.records import I64
from logflume.log.schemas import Column as Field
from logflume.log.schemas import Kind

from ..columns import Bytes, Column
from ..kernels import loaded_kernels
from ..state.codec import RowCodec
from ..vectors.expressions import KINDS, Mask, Vector, is_plain

_DTYPES = {0: np.bool_, 1: np.int64, 2: np.int64, 3: np.float64}
_FIRST_BYTES = 1 << 12


class Cells(Protocol):
    """Values at places 0 to some room."""

    def put(self, at: I64, column: Column) -> bool:
        """Set the values at places; False, and nothing is set, where they do not fit."""
        ...

    def objects(self, at: I64) -> list[Any]:
        """Return the values at places, None for null."""
        ...

    def sizes(self, at: I64) -> I64:
        """Return about how many bytes each value takes."""
        ...

    def write(self, at: I64) -> list[bytes]:
        """Return the values at places, written: a letter for the form, then its parts."""
        ...

    def read(self, at: I64, parts: Iterator[bytes]) -> None:
        """Set the values at places to what was written in this form; the letter has been read."""
        ...

    @property
    def size_bytes(self) -> int: ...


class Numbers:
    """Booleans, integers, times or doubles."""

    letter = b"n"

    def __init__(self, kind: Kind, room: int) -> None:
        self.data: Any = np.zeros(room, _DTYPES[KINDS[kind]])
        self.nulls = np.zeros(room, np.bool_)

    def put(self, at: I64, column: Column) -> bool:
        vector = column.vector()
        if vector is None:
            return False
        self.data[at] = vector.data
        if vector.nulls is not None:
            self.nulls[at] = vector.nulls
        return True

    def objects(self, at: I64) -> list[Any]:
        return _with_nulls(self.data[at].tolist(), self.nulls[at])

    def sizes(self, at: I64) -> I64:
        return np.full(len(at), self.data.itemsize, np.int64)

    def write(self, at: I64) -> list[bytes]:
        return [self.letter, self.data[at].tobytes(), _packed(self.nulls[at])]

    def read(self, at: I64, parts: Iterator[bytes]) -> None:
        self.data[at] = np.frombuffer(next(parts), self.data.dtype)
        self.nulls[at] = _unpacked(next(parts), len(at))

    @property
    def size_bytes(self) -> int:
        return int(self.data.nbytes + self.nulls.nbytes)


class Spans:
    """Byte strings, one behind the other in an arena. lengths: -1 where there is none."""

    def __init__(self, room: int) -> None:
        self.arena: Any = np.empty(_FIRST_BYTES, np.uint8)
        self.used = 0
        self.starts, self.lengths = np.zeros(room, np.int64), np.full(room, -1, np.int64)

    def put(self, at: I64, values: Bytes) -> None:
        """Set the strings at places."""
        if loaded_kernels() is not None and values.has_spans:
            self.put_spans(at, *values.addresses())
            return
        found = values.objects()
        sizes = np.array([-1 if value is None else len(value) for value in found], np.int64)
        self.put_joined(at, b"".join(filter(None, found)), sizes)

    def put_spans(self, at: I64, addresses: I64, sizes: Any) -> None:
        """Set the strings at places to those at addresses; a size of -1 is none."""
        loaded = loaded_kernels()
        assert loaded is not None, "spans by address are only there where kernels made them"
        room = self._room(at, sizes)
        lengths = np.maximum(sizes, 0).astype(np.int32)
        loaded.slots.copy_keys(np.ascontiguousarray(addresses), lengths, np.arange(len(at)), room)

    def put_joined(self, at: I64, data: bytes, sizes: I64) -> None:
        """Set the strings at places, given as one; a size of -1 is none. Raises ValueError where the sizes do not fit it."""
        self._room(at, sizes)[:] = np.frombuffer(data, np.uint8)

    def _room(self, at: I64, sizes: Any) -> Any:
        """Make room at the end of the arena, and return it."""
        lengths = np.maximum(sizes, 0).astype(np.int64)
        ends = np.cumsum(lengths)
        more = int(ends[-1]) if len(ends) else 0
        if self.used + more > len(self.arena):
            arena = np.empty(max(2 * len(self.arena), self.used + more), np.uint8)
            arena[: self.used] = self.arena[: self.used]
            self.arena = arena  # not in place: spans under way point into the old one
        self.starts[at], self.lengths[at] = self.used + ends - lengths, sizes
        begin, self.used = self.used, self.used + more
        return self.arena[begin : self.used]

    def taken(self, at: I64) -> Bytes:
        """Return the strings at places."""
        return Bytes.of_spans(self.arena, self.starts[at], self.lengths[at].astype(np.int32))

    def one(self, place: int) -> bytes | None:
        """Return the string at a place."""
        start, size = int(self.starts[place]), int(self.lengths[place])
        return None if size < 0 else self.arena[start : start + size].tobytes()

    def joined(self, at: I64) -> tuple[bytes, I64]:
        """Return the strings at places as one, and their sizes."""
        data, starts, sizes = memoryview(self.arena), self.starts[at], self.lengths[at]
        ends = starts + np.maximum(sizes, 0)
        if len(at) and bool((starts[1:] == ends[:-1]).all()):
            return bytes(data[starts[0] : ends[-1]]), sizes
        return b"".join(data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)), sizes

    def write(self, at: I64) -> list[bytes]:
        """Return the strings at places, written."""
        data, sizes = self.joined(at)
        return [sizes.astype("<i4").tobytes(), data]

    def read(self, at: I64, parts: Iterator[bytes]) -> None:
        """Set the strings at places to what was written."""
        sizes = np.frombuffer(next(parts), "<i4").astype(np.int64)
        self.put_joined(at, next(parts), sizes)

    @property
    def size_bytes(self) -> int:
        return int(len(self.arena) + self.starts.nbytes + self.lengths.nbytes)


class Texts:
    """Texts as spans. `unsure`: which are not plain (see `columns.column`)."""

    letter = b"t"

    def __init__(self, room: int) -> None:
        self.spans = Spans(room)
        self.unsure = np.zeros(room, np.bool_)

    def put(self, at: I64, column: Column) -> bool:
        if loaded_kernels() is None or not column.has_vector:
            return self._put_objects(at, column.objects())
        vector = column.vector()
        assert vector is not None
        sizes = vector.sizes if vector.nulls is None else np.where(vector.nulls, -1, vector.sizes)
        self.spans.put_spans(at, vector.data, sizes)
        if vector.unsure is not None:
            self.unsure[at] = vector.unsure
        return True

    def _put_objects(self, at: I64, values: list[Any]) -> bool:
        if not set(map(type, values)) <= {str, type(None)}:
            return False
        joined = "".join(filter(None, values))
        try:
            data = joined.encode()
        except UnicodeEncodeError:
            return False
        is_ascii = len(data) == len(joined)
        sizes = [-1 if value is None else len(value) if is_ascii else len(value.encode()) for value in values]
        self.spans.put_joined(at, data, np.array(sizes, np.int64))
        if not is_plain(joined):
            self.unsure[at] = [not is_plain(value or "") for value in values]
        return True

    def objects(self, at: I64) -> list[Any]:
        data, starts, sizes = memoryview(self.spans.arena), self.spans.starts[at].tolist(), self.spans.lengths[at].tolist()
        return [None if size < 0 else str(data[a : a + size], "utf-8") for a, size in zip(starts, sizes, strict=True)]

    def sizes(self, at: I64) -> I64:
        found: I64 = self.spans.lengths[at] + 5
        return found

    def write(self, at: I64) -> list[bytes]:
        return [self.letter, *self.spans.write(at), _packed(self.unsure[at])]

    def read(self, at: I64, parts: Iterator[bytes]) -> None:
        self.spans.read(at, parts)
        self.unsure[at] = _unpacked(next(parts), len(at))

    @property
    def size_bytes(self) -> int:
        return self.spans.size_bytes + int(self.unsure.nbytes)


class Objects:
    """Values of any type, encoded: the garbage collector does not walk bytes."""

    letter = b"o"

    def __init__(self, field: Field, room: int, classes: tuple[type[Any], ...]) -> None:
        self._codec = RowCodec((field,), classes)
        self._data: list[bytes | None] = [None] * room
        self._total = 0

    def put(self, at: I64, column: Column) -> bool:
        values = column.objects()
        encoded = self._codec.encode_all([None if value is None else (value,) for value in values])
        self._set(at, encoded)
        return True

    def _set(self, at: I64, encoded: Sequence[bytes | None]) -> None:
        kept = self._data
        for place, data in zip(at.tolist(), encoded, strict=True):
            kept[place] = data
        there = [data for data in encoded if data is not None]
        self._total += sum(map(len, there)) + 33 * len(there)

    def objects(self, at: I64) -> list[Any]:
        kept = self._data
        found = [kept[place] for place in at.tolist()]
        rows = iter(self._codec.decode_all([data for data in found if data is not None]))
        return [None if data is None else next(rows)[0] for data in found]

    def sizes(self, at: I64) -> I64:
        return np.fromiter([len(self._data[place] or b"") + 4 for place in at.tolist()], np.int64, len(at))

    def write(self, at: I64) -> list[bytes]:
        found = [self._data[place] for place in at.tolist()]
        lengths = np.fromiter([-1 if data is None else len(data) for data in found], "<i4", len(found))
        return [self.letter, lengths.tobytes(), b"".join(filter(None, found))]

    def read(self, at: I64, parts: Iterator[bytes]) -> None:
        lengths = np.frombuffer(next(parts), "<i4").tolist()
        data, begin, found = next(parts), 0, list[bytes | None]()
        for length in lengths:
            found.append(None if length < 0 else data[begin : begin + length])
            begin += max(0, length)
        self._set(at, found)

    @property
    def size_bytes(self) -> int:
        return 8 * len(self._data) + self._total


def cells_for(field: Field, room: int, classes: tuple[type[Any], ...], letter: bytes | None = None) -> Cells:
    """Return cells for a column, in the form of a letter, else in the best one for its type."""
    kind = field.type.kind
    if kind in KINDS and letter in (None, Texts.letter, Numbers.letter):
        return Texts(room) if kind is Kind.STRING else Numbers(kind, room)
    if letter in (None, Objects.letter):
        return Objects(field, room, classes)
    raise CorruptLog(f"a block of kept rows has a column {field.name} in the form {letter!r}, which {field.type} does not have")


def gathered(parts: Sequence[tuple[Cells, I64, I64]], count: int, kind: Kind, gone: Mask | None) -> Column:
    """Return values as a column of `count` rows: of each part (cells, places there, rows here); null in other rows (`gone`)."""
    if all(isinstance(cells, Numbers) for cells, _, _ in parts) and kind in KINDS and kind is not Kind.STRING:
        return _numbers(parts, count, kind, gone)
    if all(isinstance(cells, Texts) for cells, _, _ in parts) and kind is Kind.STRING and loaded_kernels() is not None:
        return _texts(parts, count, gone)
    if len(parts) == 1 and gone is None:
        cells, at, _ = parts[0]
        return Column.lazily(count, kind, lambda: cells.objects(at))
    values: list[Any] = [None] * count
    for cells, at, rows in parts:
        for row, value in zip(rows.tolist(), cells.objects(at), strict=True):
            values[row] = value
    return Column.of_objects(values, kind)


def _numbers(parts: Sequence[tuple[Any, I64, I64]], count: int, kind: Kind, gone: Mask | None) -> Column:
    data: Any = np.zeros(count, _DTYPES[KINDS[kind]])
    nulls = np.zeros(count, np.bool_) if gone is None else gone.copy()
    for cells, at, rows in parts:
        data[rows], nulls[rows] = cells.data[at], cells.nulls[at]
    return Column.of_vector(Vector(data, None, nulls if nulls.any() else None), count, kind)


def _texts(parts: Sequence[tuple[Any, I64, I64]], count: int, gone: Mask | None) -> Column:
    memory = [cells.spans.arena for cells, _, _ in parts]
    data = np.full(count, memory[0].ctypes.data if memory else 0, np.int64)
    sizes, unsure = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    nulls = np.zeros(count, np.bool_) if gone is None else gone.copy()
    for cells, at, rows in parts:
        spans, found = cells.spans, cells.spans.lengths[at]
        data[rows] = spans.starts[at] + spans.arena.ctypes.data
        sizes[rows], nulls[rows], unsure[rows] = np.maximum(found, 0), found < 0, cells.unsure[at]
    vector = Vector(data, sizes, nulls if nulls.any() else None, unsure if unsure.any() else None)
    return Column.of_vector(vector, count, Kind.STRING, memory)


def _with_nulls(values: list[Any], nulls: Mask) -> list[Any]:
    if not nulls.any():
        return values
    return [None if null else value for value, null in zip(values, nulls.tolist(), strict=True)]


def _packed(mask: Mask) -> bytes:
    """Return a mask as bits, as nothing where nothing is set."""
    return np.packbits(mask).tobytes() if mask.any() else b""


def _unpacked(data: bytes, count: int) -> Mask:
    if not data:
        return np.zeros(count, np.bool_)
    return np.unpackbits(np.frombuffer(data, np.uint8), count=count).astype(np.bool_)
