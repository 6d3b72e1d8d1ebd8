"""How an entry is written, the same on disk and in the changelog: MessagePack [version, timestamp ms, *state].

A changelog can be read by a later version: the version names the encoding, and unknown ones are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from types import GenericAlias
from typing import Any

import msgspec

from logflume.log import CorruptLog, InvalidInput
from logflume.log.schemas import Column, Kind, holds, python_type
from logflume.streams.seams import Entry, State

from .values import class_name, column_to_wire, reader_of, to_wire

ENTRY_VERSION = 1
_TOGETHER = 256
"""Entries encoded column by column at a time: objects that stay in the processor's cache. Twice as fast as all at once."""


class EntryCodec:
    """Encodes and decodes the entries of one store. Stateless after construction, thread-safe."""

    __slots__ = ("_any_positions", "_classes", "_decoder", "_encode", "columns", "decode", "encode")

    def __init__(self, columns: tuple[Column, ...], classes: Iterable[type[Any]] = ()) -> None:
        self.columns = columns
        self._classes = {class_name(cls): cls for cls in classes}
        fields = (int, int, *(python_type(column.type) | None for column in columns))
        self._decoder: Any = msgspec.msgpack.Decoder(GenericAlias(tuple, fields), ext_hook=reader_of(self._classes))
        self._encode = msgspec.msgpack.Encoder().encode
        self._any_positions = tuple(i for i, column in enumerate(columns, 2) if holds(column.type, Kind.ANY))
        self.encode: Callable[[Entry], bytes | None] = self._encode_any if self._any_positions else self._encode_plain
        self.decode: Callable[[bytes], Entry] = self._decode

    @property
    def holds_objects(self) -> bool:
        """Whether entries hold values of any class."""
        return bool(self._any_positions)

    def _encode_plain(self, entry: Entry) -> bytes | None:
        """Return the bytes of an entry, None for a deleted one (a tombstone in the changelog)."""
        state = entry.state
        return None if state is None else self._encode((ENTRY_VERSION, entry.timestamp_ms, *state))

    def _encode_any(self, entry: Entry) -> bytes | None:
        if entry.state is None:
            return None
        fields: list[Any] = [ENTRY_VERSION, entry.timestamp_ms, *entry.state]
        try:
            return self._encode(self._wired(entry, fields, has_big_ints=False))
        except OverflowError:
            return self._encode(self._wired(entry, fields, has_big_ints=True))
        except RecursionError:
            raise InvalidInput("a state nested this deeply (or that holds itself) cannot be stored: keep it flatter") from None

    def _wired(self, entry: Entry, fields: list[Any], *, has_big_ints: bool) -> list[Any]:
        assert entry.state is not None
        for position in self._any_positions:
            fields[position] = to_wire(entry.state[position - 2], self._classes, has_big_ints=has_big_ints)
        return fields

    def encode_all(self, entries: Sequence[Entry]) -> list[bytes | None]:
        """Return the bytes of many entries, None for deleted ones."""
        if self._any_positions:
            return self.encode_states([entry.state for entry in entries], [entry.timestamp_ms for entry in entries])
        encode = self._encode
        return [
            None if (state := entry.state) is None else encode((ENTRY_VERSION, entry.timestamp_ms, *state)) for entry in entries
        ]

    def encode_states(self, states: Sequence[State | None], times: Sequence[int]) -> list[bytes | None]:
        """Return the bytes of entries with these states and timestamps, None for no state."""
        found: list[bytes | None] = []
        for at in range(0, len(states), _TOGETHER):
            found += self._encode_together(states[at : at + _TOGETHER], times[at : at + _TOGETHER])
        return found

    def _encode_together(self, states: Sequence[State | None], times: Sequence[int]) -> list[bytes | None]:
        """Return the bytes of states that may hold objects, made column by column where no int is big."""
        try:
            return self._encode_columns(states, times)
        except (OverflowError, RecursionError):
            return [self.encode(Entry(state, time)) for state, time in zip(states, times, strict=True)]

    def _encode_columns(self, states: Sequence[State | None], times: Sequence[int]) -> list[bytes | None]:
        """Return the bytes of states, made column by column. Raises OverflowError for a big int, RecursionError."""
        gone = [state is None for state in states]
        living: Any = states
        if True in gone:
            living = [state for state in states if state is not None]
            times = [time for time, is_gone in zip(times, gone, strict=True) if not is_gone]
        columns: list[Sequence[Any]] = list(zip(*living, strict=True))
        for position in self._any_positions if columns else ():
            columns[position - 2] = column_to_wire(columns[position - 2], self._classes)
        found = map(self._encode, zip(repeat(ENTRY_VERSION, len(living)), times, *columns, strict=True))
        return list(found) if living is states else [None if is_gone else next(found) for is_gone in gone]

    def _decode(self, data: bytes) -> Entry:
        """Return the entry. Raises CorruptLog when the bytes do not fit the store's columns, InvalidInput for a newer version."""
        fields = self._fields(data)
        return Entry(fields[2:], fields[1])

    def decode_row(self, data: bytes) -> State:
        """Return the state of an entry alone. Raises as `decode` does."""
        return self._fields(data)[2:]

    def decode_rows(self, data: Sequence[bytes]) -> list[State]:
        """Return the states of many entries. Raises as `decode` does."""
        try:
            found: list[tuple[Any, ...]] = list(map(self._decoder.decode, data))
            if all(fields[0] == ENTRY_VERSION for fields in found):
                return [fields[2:] for fields in found]
        except (msgspec.MsgspecError, ValueError):
            pass
        return list(map(self.decode_row, data))

    def _fields(self, data: bytes) -> tuple[Any, ...]:
        try:
            fields: tuple[Any, ...] = self._decoder.decode(data)
        except (msgspec.MsgspecError, ValueError) as error:
            _check_version(data)
            raise CorruptLog(f"a store entry does not fit its columns {[str(c.type) for c in self.columns]}: {error}") from error
        if fields[0] != ENTRY_VERSION:
            _check_version(data)
        return fields


class RowCodec:
    """Encodes and decodes rows of some columns that are kept inside of an entry. Stateless after construction, thread-safe."""

    __slots__ = ("_codec",)

    def __init__(self, columns: tuple[Column, ...], classes: Iterable[type[Any]] = ()) -> None:
        self._codec = EntryCodec(columns, classes)

    def encode(self, row: Sequence[Any]) -> bytes:
        """Return the bytes of a row."""
        found = self._codec.encode(Entry(tuple(row), 0))
        assert found is not None
        return found

    def encode_all(self, rows: Sequence[Sequence[Any] | None]) -> list[bytes | None]:
        """Return the bytes of many rows, None for None."""
        return self._codec.encode_states(rows, [0] * len(rows))  # type: ignore[arg-type]

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """Return the row. Raises CorruptLog, InvalidInput."""
        return self._codec.decode_row(data)

    def decode_all(self, data: Sequence[bytes]) -> list[tuple[Any, ...]]:
        """Return many rows. Raises CorruptLog, InvalidInput."""
        return self._codec.decode_rows(data)


def _check_version(data: bytes) -> None:
    """Raise InvalidInput when this is an entry of another version (its second byte: a small int after the array's head)."""
    is_array = len(data) > 1 and data[0] & 0xF0 == 0x90
    if is_array and data[1] != ENTRY_VERSION:
        raise InvalidInput(
            f"a store entry has format {data[1]}, this logflume reads {ENTRY_VERSION}: use the version that wrote it"
        )
