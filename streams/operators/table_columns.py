"""What a join needs of a table, as columns beside the table's store, which stays what counts.

A slot per key: its row's columns, or that there is no row, or that nothing is known, which is asked of the store. Changes of the
table go into the store and, where they are certain, into the slots too; else the slot is stale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from logflume.log.records import I32, I64
from logflume.log.schemas import Column, Kind

from ..columns import Batch
from ..columns.evaluate import FEW_ROWS
from ..expr import Side
from ..seams import State, StateStore
from ..vectors.expressions import KINDS, Mask, Vector, is_plain

_FIRST_SLOTS = 1024
_FIRST_BYTES = 1 << 16
MAX_SLOTS = 1_000_000
MAX_ARENA_BYTES = 64 << 20
"""Beyond either the slots are forgotten and filled anew."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """N rows of a table: where there is one, where that is not certain, its columns by name, and what their texts point into."""

    present: Mask
    unsure: Mask | None
    columns: dict[str, Vector]
    memory: object


class TableColumns:
    """See the module. One thread. `columns`: those that are kept, by name; `kernels`: `Kernels.tables`."""

    def __init__(self, store: StateStore, columns: tuple[Column, ...], kernels: Any) -> None:
        self._store = store
        self._columns = columns
        self._kernels = kernels
        names = [column.name for column in store.spec.columns]
        self._places = [names.index(column.name) for column in columns]
        self._is_text = [column.type.kind is Kind.STRING for column in columns]
        self._kept = np.array([-1 - i if text else i for i, text in enumerate(self._is_text)], np.int64)
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        k = self._kernels
        width = k.FIRST_COLUMN + 2 * len(self._columns)
        self._slots = k.Slots(
            np.full(2 * _FIRST_SLOTS, -1, np.int32),
            np.empty((_FIRST_SLOTS, width), np.int64),
            np.empty(_FIRST_BYTES, np.uint8),
            np.zeros(2, np.int64),
        )

    def changed(self, batch: Batch) -> None:
        """Take changes that the store has taken."""
        assert batch.keys is not None
        starts, sizes = batch.keys.addresses()
        count, shape = len(batch), (len(self._columns), len(batch))
        is_few = count < FEW_ROWS  # not worth arrays of them: who looks them up by the thousand asks the store once
        certain = np.zeros(count, np.bool_) if is_few else np.ones(count, np.bool_)
        gone = np.zeros(count, np.bool_) if batch.nulls is None else batch.nulls
        nulls, values, lengths = np.zeros(shape, np.bool_), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for i, column in enumerate(() if is_few else self._columns):
            vector = batch.column(Side.VALUE, column.name).vector()
            if vector is None:
                certain[:] = False
                continue
            values[i] = vector.data.view(np.int64) if vector.data.dtype == np.float64 else vector.data
            if vector.sizes is not None:
                lengths[i] = vector.sizes
            if vector.nulls is not None:
                nulls[i] = vector.nulls
            if vector.unsure is not None:
                certain &= ~vector.unsure
        room = int(np.maximum(sizes, 0).sum(dtype=np.int64)) + int(lengths.sum())
        self._make_room(count, room)
        self._kernels.put(self._slots, starts, sizes, certain, gone, self._kept, nulls, values, lengths)

    def find(self, starts: I64, sizes: I32) -> Found:
        """Return the rows of keys, given by address and size; none for a null key."""
        k, count, wanted = self._kernels, len(starts), sizes >= 0
        self._make_room(count, int(np.maximum(sizes, 0).sum(dtype=np.int64)))
        found, unknown = np.empty(count, np.int64), np.empty(count, np.int64)
        asked = k.find(self._slots, starts, sizes, wanted, found, unknown)
        if asked:
            self._fill(unknown[:asked])
        shape = (len(self._columns), count)
        states, data = np.empty(count, np.int8), np.empty(shape, np.int64)
        lengths, nulls = np.empty(shape, np.int64), np.empty(shape, np.bool_)
        k.gather(self._slots, found, np.array(self._is_text, np.bool_), states, data, lengths, nulls)
        unsure = states == k.UNSURE
        columns = {c.name: self._vector(i, data[i], lengths[i], nulls[i]) for i, c in enumerate(self._columns)}
        return Found(states == k.PRESENT, unsure if unsure.any() else None, columns, self._slots.arena)

    def _vector(self, column: int, data: I64, sizes: I64, nulls: Mask) -> Vector:
        kind = self._columns[column].type.kind
        values: Any = data.view(np.float64) if kind is Kind.DOUBLE else data == 1 if kind is Kind.BOOLEAN else data
        return Vector(values, sizes if self._is_text[column] else None, nulls if nulls.any() else None)

    # -- filling ---------------------------------------------------------------------------------------------------------

    def _fill(self, slots: I64) -> None:
        """Ask the store for the rows of slots of which nothing is known."""
        k = self._kernels
        records, arena = self._slots.records, self._slots.arena
        found = zip(records[slots, k.KEY].tolist(), records[slots, k.KEY_SIZE].tolist(), strict=True)
        short = k.SHORT_KEY_BYTES
        keys = [
            (key & (1 << 64) - 1).to_bytes(short, "big")[short - size :] if size <= short else arena[key : key + size].tobytes()
            for key, size in found
        ]
        self._store.load(keys)
        entries = list(map(self._store.resident.get, keys))
        states = [None if entry is None else entry.state for entry in entries]
        known = [(slot, state) for slot, state in zip(slots.tolist(), states, strict=True) if state is not None]
        records[slots, k.STATE] = k.MISSING
        if known and not self._put_all([slot for slot, _ in known], [state for _, state in known]):
            for slot, state in known:
                self._slots.records[slot, k.STATE] = self._put(slot, state)

    def _put_all(self, slots: list[int], states: list[State]) -> bool:
        """Write the columns of many rows at once; False, and nothing is written, if one of them does not fit."""
        parts = []
        for column, place in zip(self._columns, self._places, strict=True):
            values = [state[place] for state in states]
            part = _column_of(values, column)
            if part is None:
                return False
            parts.append(part)
        self._make_room(0, sum(len(text) for _, text, _ in parts))
        k, kept, at = self._kernels, self._slots, np.array(slots, np.int64)
        for c, (data, text, nulls) in enumerate(parts):
            place = k.FIRST_COLUMN + 2 * c
            if not self._is_text[c]:
                kept.records[at, place] = data
                kept.records[at, place + 1] = np.where(nulls, -1, 0)
                continue
            begin = int(kept.counters[k.BYTES])
            kept.arena[begin : begin + len(text)] = np.frombuffer(text, np.uint8)
            kept.counters[k.BYTES] = begin + len(text)
            kept.records[at, place] = begin + np.cumsum(data) - data
            kept.records[at, place + 1] = np.where(nulls, -1, data)
        kept.records[at, k.STATE] = k.PRESENT
        return True

    def _put(self, slot: int, state: State) -> int:
        """Write a row's columns into a slot; return what is known of it then."""
        k = self._kernels
        row = [state[place] for place in self._places]
        if not all(_fits(value, column) for value, column in zip(row, self._columns, strict=True)):
            unsure: int = k.UNSURE
            return unsure
        texts = [value.encode() if text and value is not None else b"" for value, text in zip(row, self._is_text, strict=True)]
        self._make_room(0, sum(map(len, texts)))
        slots = self._slots
        for c, (value, text) in enumerate(zip(row, texts, strict=True)):
            place = k.FIRST_COLUMN + 2 * c
            slots.records[slot, place + 1] = -1 if value is None else len(text)
            if value is None:
                continue
            if self._is_text[c]:
                begin = int(slots.counters[k.BYTES])
                slots.arena[begin : begin + len(text)] = np.frombuffer(text, np.uint8)
                slots.counters[k.BYTES] = begin + len(text)
                value = begin
            elif self._columns[c].type.kind is Kind.DOUBLE:
                value = int(np.float64(value).view(np.int64))
            slots.records[slot, place] = value
        found: int = k.PRESENT
        return found

    def _make_room(self, slots: int, size_bytes: int) -> None:
        """Make room for more slots and bytes; forget everything first where that would be too much."""
        used, filled = self._slots.counters.tolist()
        if slots and (used + slots > MAX_SLOTS or filled + size_bytes > MAX_ARENA_BYTES) and used:
            self.clear()
            used = filled = 0
        if used + slots > len(self._slots.records):
            self._grow(max(2 * len(self._slots.records), used + slots))
        if filled + size_bytes > len(self._slots.arena):
            arena = np.empty(max(2 * len(self._slots.arena), filled + size_bytes), np.uint8)
            arena[:filled] = self._slots.arena[:filled]
            self._slots = self._slots._replace(arena=arena)

    def _grow(self, room: int) -> None:
        records = np.empty((room, self._slots.records.shape[1]), np.int64)
        records[: len(self._slots.records)] = self._slots.records
        self._slots = self._slots._replace(records=records)
        if 2 * room > len(self._slots.table):
            table = np.empty(1 << (2 * room - 1).bit_length(), np.int32)
            self._kernels.rehash(self._slots, table)
            self._slots = self._slots._replace(table=table)


def _column_of(values: list[Any], column: Column) -> tuple[I64, bytes, list[bool]] | None:
    """Return values as int64 (doubles by their bits, of texts the sizes), texts joined, nulls; None if one does not fit."""
    kind = column.type.kind
    nulls = [value is None for value in values]
    if not set(map(type, values)) <= {_CLASSES[KINDS[kind]], type(None)}:
        return None
    if kind is Kind.STRING:
        texts = [value or "" for value in values]
        joined = "".join(texts)
        return (np.fromiter(map(len, texts), np.int64, len(texts)), joined.encode(), nulls) if is_plain(joined) else None
    filled = [value or 0 for value in values]
    if kind is Kind.DOUBLE:
        return np.array(filled, np.float64).view(np.int64), b"", nulls
    if max(filled) >= 2**63 or min(filled) < -(2**63):
        return None
    return np.array(filled, np.int64), b"", nulls


_CLASSES = {0: bool, 1: int, 2: int, 3: float, 4: str}


def _fits(value: Any, column: Column) -> bool:
    """Return whether a column holds a value exactly."""
    if value is None:
        return True
    if type(value) is not _CLASSES[KINDS[column.type.kind]]:
        return False
    return not (isinstance(value, str) and not is_plain(value)) and not (type(value) is int and not -(2**63) <= value < 2**63)
