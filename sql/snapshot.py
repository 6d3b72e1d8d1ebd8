"""EMIT SNAPSHOT, CHANGES: a table's rows as they are, each once, then its changes.

The query runs from the beginning of its topics, as with EMIT CHANGES. Until it has read what they held when it was started, its
changes are folded into rows by key; then those are given, and after them each change as it comes. All of them go through here one
after the other, so that none is left out between the two and none is given twice.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

from logflume.streams.rows import WindowedKey

from .errors import SqlError
from .results import PushRow

ROWS_MAX = 2_000_000
"""Rows of a snapshot, which is kept in memory until it is whole."""
BYTES_MAX = 1 << 30
"""Of all snapshots of an engine together, roughly."""
_ROW_BYTES = 300
"""What a row takes beside its key and values: its place among the others, the row and its tuple."""

Watch = Callable[[Any, Any, int], None]


class SnapshotMemory:
    """What the snapshots of an engine may take together. Thread-safe."""

    def __init__(self, *, bytes_max: int = BYTES_MAX) -> None:
        self.bytes_max, self._taken = bytes_max, 0
        self._lock = threading.Lock()

    def take(self, count: int) -> bool:
        """Take so many bytes, or give them back (below 0); False: there are not as many."""
        with self._lock:
            if count > self.bytes_max - self._taken:
                return False
            self._taken += count
            return True


class Snapshot:
    """See the module. `watch` is called by who runs the query, `failed` and `end` by who reads it.

    Args:
        rows: where the rows go; the snapshot is given beyond its bound, for who takes the rows is who asks for them.
        give: puts a change there.
        memory: what it takes its own from, until its rows have been taken.
    """

    def __init__(self, rows: queue.Queue[PushRow], give: Watch, memory: SnapshotMemory, *, rows_max: int = ROWS_MAX) -> None:
        self._rows, self._give, self._rows_max = rows, give, rows_max
        self._kept: dict[Any, PushRow] | None = {}
        self._memory, self._bytes = memory, 0
        self._refusal: SqlError | None = None
        self._lock = threading.Lock()

    def watch(self, key: Any, value: Any, timestamp_ms: int) -> None:
        """Take a change: into the snapshot while there is one, else on to the reader."""
        with self._lock:
            if self._refusal is not None:
                return
            kept = self._kept
            if kept is not None:
                name = hashable(key)
                before = kept.pop(name, None)
                if before is not None:
                    self._take(-_bytes_of(name, before))
                if value is not None:
                    row = PushRow(tuple(value), timestamp_ms)
                    self._refusal = self._why_not(name, row)
                    if self._refusal is None:
                        kept[name] = row
                    else:
                        self._keep({})
                return
        self._give(key, value, timestamp_ms)

    def _why_not(self, name: Any, row: PushRow) -> SqlError | None:
        """Take the memory of one more row, or return why there is none."""
        if len(self._kept or ()) >= self._rows_max:
            bound = f"a snapshot has at most {self._rows_max:,} rows"
        elif not self._take(_bytes_of(name, row)):
            bound = f"all snapshots have at most {self._memory.bytes_max:,} bytes together"
        else:
            return None
        return SqlError(f"{bound}, and there are more: choose with WHERE, or EMIT CHANGES")

    def _take(self, count: int) -> bool:
        is_taken = self._memory.take(count)
        self._bytes += count if is_taken else 0
        return is_taken

    def _keep(self, kept: dict[Any, PushRow] | None) -> None:
        """Keep this instead, which takes nothing."""
        self._kept = kept
        self._take(-self._bytes)

    def failed(self, is_read: Callable[[], bool]) -> SqlError | None:
        """Give the snapshot if it is whole; return why it cannot be. To be called when all rows have been taken."""
        if self._kept is None:
            self.end()
            return None
        is_whole = self._refusal is None and is_read()
        with self._lock:
            if is_whole and self._refusal is None and self._kept is not None:
                bound, self._rows.maxsize = self._rows.maxsize, 0
                for row in self._kept.values():
                    self._rows.put_nowait(row)
                self._rows.maxsize = bound
                self._kept = None
            return self._refusal

    def end(self) -> None:
        """Give its memory back: its rows have been taken, or nobody wants them any more."""
        with self._lock:
            self._keep(None)


def _bytes_of(name: Any, row: PushRow) -> int:
    return _ROW_BYTES + _rough_bytes(name) + sum(map(_rough_bytes, row.values))


def _rough_bytes(value: Any) -> int:
    """Return about how much memory a value takes, all that it holds included."""
    if isinstance(value, dict):
        return sys.getsizeof(value) + sum(_rough_bytes(k) + _rough_bytes(v) for k, v in value.items())
    if isinstance(value, list | tuple):
        return sys.getsizeof(value) + sum(map(_rough_bytes, value))
    return sys.getsizeof(value)


def hashable(key: Any) -> Any:
    """Return a key as what it can be found by; arrays and structs cannot."""
    bare = key.key if isinstance(key, WindowedKey) else key
    try:
        hash(bare)
    except TypeError:
        return repr(key)
    return key
