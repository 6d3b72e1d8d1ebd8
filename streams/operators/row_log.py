"""Rows of one stream in the order in which they came: columns in memory, blocks of columns in a store.

A row has a number, and a number is never given again. At a task commit the rows that came since are written as blocks, entries
of the store by (block number, stream time): a few entries instead of one for each row, which expire as a whole. Some rows are
marked; that a written row is not marked any more is written with a later block, and a row that is still marked when its block is
about to expire is written once more.

In memory rows lie in pieces of `PIECE_ROWS` numbers. Beyond the store's memory setting the oldest pieces are let go, and read
back from their blocks where a row of theirs is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from logflume.log import CorruptLog
from logflume.log.records import I64
from logflume.log.schemas import BIGINT, BYTES, STRING, DataType, Kind
from logflume.log.schemas import Column as Field

from ..columns import Bytes, Column
from ..expr import Side
from ..seams import Entry, StateStore
from ..vectors.expressions import Mask
from ..windows import WINDOW_START
from .cells import Cells, Objects, Spans, cells_for, gathered
from .rows import Rows, put_entry

PIECE_BITS = 12
PIECE_ROWS = 1 << PIECE_BITS
_BLOCK_BYTES = 1 << 15
_LATELY_READ = 16
_ARRAY_OF_BYTES = DataType(Kind.ARRAY, element=BYTES)

BLOCKS = (Field("columns", STRING), Field("rows", _ARRAY_OF_BYTES), Field("unmarked", BYTES), Field("clock", BIGINT))
"""Of a block: names and types of the columns; numbers, times, marks, keys and columns of its rows; numbers of rows of earlier
blocks that lost their mark; a time beyond that of all rows that the operator has seen, or -1."""


class _Piece:
    """Rows of `PIECE_ROWS` numbers that follow each other. `blocks`: keys of the entries that its rows are in."""

    __slots__ = ("blocks", "cells", "keys", "newest", "times")

    def __init__(self, columns: Sequence[Field], classes: tuple[type[Any], ...]) -> None:
        self.times = np.full(PIECE_ROWS, -1, np.int64)
        self.keys = Spans(PIECE_ROWS)
        self.cells: list[Cells] = [cells_for(column, PIECE_ROWS, classes) for column in columns]
        self.blocks: list[bytes] = []
        self.newest = -1

    @property
    def size_bytes(self) -> int:
        return sum(cells.size_bytes for cells in self.cells) + self.keys.size_bytes + 8 * PIECE_ROWS


@dataclass(slots=True)
class _Let:
    """A piece that is on disk only."""

    newest: int
    blocks: list[bytes] = field(default_factory=list)


class RowLog:
    """See the module. One thread.

    Invariants: rows with numbers below `_written` are in blocks, unless nobody can ask for them any more; `marked` are the rows
    marked now.
    """

    def __init__(self, store: StateStore, columns: tuple[Field, ...]) -> None:
        self.store, self._columns = store, columns
        self._shape = ", ".join(f"{column.name} {column.type}" for column in columns)
        self._pieces: dict[int, _Piece | _Let] = {}
        self._lately_read: dict[int, _Piece] = {}
        self.next_number = 0
        self._written = 0
        self._next_block = 0
        self._unmarked: list[int] = []
        self._last_blocks: list[bytes] = []
        self._blocks_of_marked: dict[int, int] = {}
        """Of marked rows that are written: the stream time of their last block."""
        self.marked: set[int] = set()
        self.clock = -1

    def number_from(self, first: int) -> None:
        """Give numbers and blocks from here on, before the log is started: logs that become one later begin far apart."""
        self.next_number = self._written = self._next_block = first

    # -- reading ---------------------------------------------------------------------------------------------------------

    def start(self) -> Iterator[tuple[I64, Bytes, I64]]:
        """Read the blocks: the store is restored. Yields numbers, keys and times of rows, in order."""
        unmarked: set[int] = set()
        for place, entry in self.store.range(b"", None):
            assert entry.state is not None, "a store shows living entries"
            self._next_block = max(self._next_block, int.from_bytes(place[:8], "big") + 1)
            for numbers, keys, times, marks in self._read(place, entry, None):
                self.marked.update(numbers[marks].tolist())
                self._blocks_of_marked |= dict.fromkeys(numbers[marks].tolist(), _newest_of(place))
                if len(numbers):
                    yield numbers, keys, times
            self.clock = max(self.clock, entry.state[3])
            unmarked.update(np.frombuffer(entry.state[2], "<i8").tolist())
            self.store.release([place])
        self.marked -= unmarked
        self._blocks_of_marked = {number: newest for number, newest in self._blocks_of_marked.items() if number in self.marked}
        self._written = self.next_number
        self._let_go()

    def _read(self, place: bytes, entry: Entry, into: _Piece | None) -> Iterator[tuple[I64, Bytes, I64, Mask]]:
        """Take the rows of a block into its piece, and yield them. Raises CorruptLog."""
        assert entry.state is not None
        shape, written = entry.state[:2]
        if shape != self._shape:
            raise CorruptLog(f"store {self.store.spec.name} has rows of ({shape}), not of ({self._shape})")
        if not written:
            return
        try:
            parts = iter(written)
            numbers = np.frombuffer(next(parts), "<i8").astype(np.int64)
            times, marks = np.frombuffer(next(parts), "<i8").astype(np.int64), np.frombuffer(next(parts), np.bool_)
            piece = into or self._piece_of(int(numbers[0]) >> PIECE_BITS)
            at = numbers & (PIECE_ROWS - 1)
            is_new = piece.times[at] < 0
            piece.keys.read(at, parts)
            piece.times[at] = times
            piece.newest = max(piece.newest, int(times.max()))
            for c, column in enumerate(self._columns):
                letter = next(parts)
                if getattr(piece.cells[c], "letter", None) != letter:
                    self._turn(piece, c, letter, column)
                piece.cells[c].read(at, parts)
        except (StopIteration, ValueError, IndexError) as error:
            raise CorruptLog(f"a block of store {self.store.spec.name} is not whole: {error!r}") from error
        if into is None:
            piece.blocks.append(place)
            self.next_number = max(self.next_number, int(numbers[-1]) + 1)
        new = at[is_new]
        yield numbers[is_new], piece.keys.taken(new), times[is_new], marks[is_new]

    def take(self, numbers: I64) -> Rows:
        """Return rows by number, none where a number is -1."""
        there = numbers >= 0
        gone = None if there.all() else ~there
        which = numbers >> PIECE_BITS
        places = numbers & (PIECE_ROWS - 1)
        parts: list[tuple[_Piece, I64, I64]] = []
        if len(numbers) and (first := int(which[0])) >= 0 and (which == first).all():
            parts.append((self._resident(first), places, np.arange(len(numbers))))
        else:
            order = np.argsort(which, kind="stable")
            bounds = np.flatnonzero(np.diff(which[order])) + 1
            for rows in np.split(order, bounds):
                piece = int(which[rows[0]]) if len(rows) else -1
                if piece >= 0:
                    parts.append((self._resident(piece), places[rows], rows))
        columns = {
            (Side.VALUE, column.name): gathered(
                [(piece.cells[c], at, rows) for piece, at, rows in parts], len(numbers), column.type.kind, gone
            )
            for c, column in enumerate(self._columns)
        }
        return Rows(columns, gone)

    def key_and_time(self, number: int) -> tuple[bytes | None, int]:
        """Return the key and the time of a row."""
        piece, place = self._resident(number >> PIECE_BITS), number & (PIECE_ROWS - 1)
        return piece.keys.one(place), int(piece.times[place])

    def _resident(self, which: int) -> _Piece:
        piece = self._pieces[which]
        if isinstance(piece, _Piece):
            return piece
        found = self._lately_read.pop(which, None)
        if found is None:
            found = _Piece(self._columns, self.store.spec.classes)
            self.store.load(piece.blocks)
            for place in piece.blocks:
                entry = self.store.resident.get(place)
                if entry is not None and entry.state is not None:
                    for _ in self._read(place, entry, found):
                        pass
            self.store.release(piece.blocks)
        self._lately_read[which] = found
        if len(self._lately_read) > _LATELY_READ:
            del self._lately_read[next(iter(self._lately_read))]
        return found

    # -- adding ----------------------------------------------------------------------------------------------------------

    def append(self, keys: Bytes, times: I64, columns: Sequence[Column]) -> int:
        """Add rows; return the number of the first."""
        first, count, done = self.next_number, keys.count, 0
        while done < count:
            number = first + done
            place = number & (PIECE_ROWS - 1)
            more = min(count - done, PIECE_ROWS - place)
            piece = self._piece_of(number >> PIECE_BITS)
            at, rows = np.arange(place, place + more), np.arange(done, done + more)
            piece.keys.put(at, keys if more == count else keys.take(rows))
            piece.times[at] = times[done : done + more]
            piece.newest = max(piece.newest, int(times[done : done + more].max()))
            for c, column in enumerate(columns):
                part = column if more == count else column.take(rows)
                if not piece.cells[c].put(at, part):
                    self._turn(piece, c, Objects.letter, self._columns[c])
                    piece.cells[c].put(at, part)
            done += more
        self.next_number = first + count
        return first

    def mark(self, number: int) -> None:
        """Mark a row that has come since the last commit: marks are written with their rows."""
        assert number >= self._written, "a written row is not marked any more"
        self.marked.add(number)

    def unmark(self, number: int) -> None:
        """Take the mark off a row, if it has one."""
        if number in self.marked:
            self.marked.remove(number)
            self._blocks_of_marked.pop(number, None)
            if number < self._written:
                self._unmarked.append(number)

    def _piece_of(self, which: int) -> _Piece:
        piece = self._pieces.get(which)
        if piece is None:
            piece = self._pieces[which] = _Piece(self._columns, self.store.spec.classes)
        assert isinstance(piece, _Piece), "only pieces without room are let go"
        return piece

    def _turn(self, piece: _Piece, c: int, letter: bytes, column: Field) -> None:
        """Keep a column of a piece in another form from now on; what does not fit numbers or texts makes it encoded values."""
        old, rows = piece.cells[c], np.flatnonzero(piece.times >= 0)
        new = cells_for(column, PIECE_ROWS, self.store.spec.classes, letter)
        rows = rows if isinstance(new, Objects) else rows[:0]
        if len(rows):
            new.put(rows, Column.of_objects(old.objects(rows), column.type.kind))
        piece.cells[c] = new

    # -- task commit -----------------------------------------------------------------------------------------------------

    def write(self, newest: int, oldest_seen: int, *, clock: int = -1) -> None:
        """Put the rows added since the last time into the store, if they are marked or not older than what is seen.

        `newest`: the time of the log, by which its blocks expire. `clock`: see `BLOCKS`; it stays until a later one is given.
        """
        has_clock, self.clock = clock > self.clock, max(self.clock, clock)
        self.store.release(self._last_blocks)
        self._last_blocks = []
        begin, self._written = self._written, self.next_number
        unmarked, self._unmarked = np.array(self._unmarked, "<i8").tobytes(), []
        self._write_again(newest, oldest_seen)
        while begin < self.next_number:
            which = begin >> PIECE_BITS
            stop = min(self.next_number, (which + 1) << PIECE_BITS)
            numbers = np.arange(begin, stop)
            for part in self._blocks(self._piece_of(which), numbers, oldest_seen):
                self._put_block(newest, which, part, unmarked)
                unmarked, has_clock = b"", False
            begin = stop
        if unmarked or has_clock:
            self._put_block(newest, None, np.empty(0, np.int64), unmarked)
        self._let_go()

    def _write_again(self, newest: int, oldest_seen: int) -> None:
        """Write marked rows once more whose blocks are about to expire."""
        numbers = np.array(sorted(n for n, time in self._blocks_of_marked.items() if time < oldest_seen), np.int64)
        for which in np.unique(numbers >> PIECE_BITS).tolist():
            for part in self._blocks(self._resident(which), numbers[numbers >> PIECE_BITS == which], oldest_seen):
                self._put_block(newest, which, part, b"")

    def _blocks(self, piece: _Piece, numbers: I64, oldest_seen: int) -> list[I64]:
        """Return the rows of a piece to write, cut into blocks."""
        at = numbers & (PIECE_ROWS - 1)
        wanted = piece.times[at] >= oldest_seen
        if self.marked:
            wanted |= np.fromiter([number in self.marked for number in numbers.tolist()], np.bool_, len(numbers))
        wanted &= piece.keys.lengths[at] >= 0
        numbers, at = numbers[wanted], at[wanted]
        if not len(numbers):
            return []
        total = piece.keys.lengths[at] + 24
        for cells in piece.cells:
            total += cells.sizes(at)
        ends = np.cumsum(total) // _BLOCK_BYTES
        return np.split(numbers, np.flatnonzero(np.diff(ends)) + 1)

    def _put_block(self, newest: int, which: int | None, numbers: I64, unmarked: bytes) -> None:
        place = WINDOW_START.pack(self._next_block) + WINDOW_START.pack(newest)
        self._next_block += 1
        rows: list[bytes] = []
        if which is not None:
            piece = self._resident(which)
            at = numbers & (PIECE_ROWS - 1)
            marked = self.marked
            marks = [number in marked for number in numbers.tolist()] if marked else np.zeros(len(at), np.bool_)
            rows += [numbers.astype("<i8").tobytes(), piece.times[at].astype("<i8").tobytes(), np.array(marks).tobytes()]
            rows += piece.keys.write(at)
            for cells in piece.cells:
                rows += cells.write(at)
            self._pieces[which].blocks.append(place)
            self._blocks_of_marked |= dict.fromkeys(numbers[np.array(marks, np.bool_)].tolist(), newest)
        put_entry(self.store, place, (self._shape, rows, unmarked, self.clock), newest)
        self._last_blocks.append(place)

    def drop(self, oldest: int) -> None:
        """Forget the pieces whose rows are all older than a time, and not marked."""
        kept = {number >> PIECE_BITS for number in self.marked} | {self.next_number >> PIECE_BITS}
        for which in [w for w, piece in self._pieces.items() if piece.newest < oldest and w not in kept]:
            del self._pieces[which]
            self._lately_read.pop(which, None)

    def _let_go(self) -> None:
        """Let go of the oldest pieces, down to half of the memory setting, when all take more than that."""
        resident = {which: piece for which, piece in self._pieces.items() if isinstance(piece, _Piece)}
        room = self.store.memory_bytes
        if len(resident) * PIECE_ROWS * 16 < room // 8:
            return
        total = sum(piece.size_bytes for piece in resident.values())
        if total <= room:
            return
        last = self._written >> PIECE_BITS
        for which, piece in sorted(resident.items()):
            if total > room // 2 and which < last:
                total -= piece.size_bytes
                self._pieces[which] = _Let(piece.newest, piece.blocks)


def _newest_of(place: bytes) -> int:
    """Return the stream time by which a block expires."""
    return int.from_bytes(place[-8:], "big", signed=True)
