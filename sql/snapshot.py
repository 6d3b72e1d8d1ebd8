"""EMIT SNAPSHOT, CHANGES: a table's rows as they are, each once, then its changes.

The query runs from the beginning of its topics, as with EMIT CHANGES. Until it has read what they held when it was started, its
changes are folded into rows by key; then those are given, and after them each change as it comes. All of them go through here one
after the other, so that none is left out between the two and none is given twice.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from logflume.streams.rows import WindowedKey

from .errors import SqlError
from .results import PushRow

ROWS_MAX = 2_000_000
"""Rows of a snapshot, which is kept in memory until it is whole."""

Watch = Callable[[Any, Any, int], None]


class Snapshot:
    """See the module. `watch` is called by who runs the query, `failed` by who reads it.

    Args:
        rows: where the rows go; the snapshot is given beyond its bound, for who takes the rows is who asks for them.
        give: puts a change there.
    """

    def __init__(self, rows: queue.Queue[PushRow], give: Watch, *, rows_max: int = ROWS_MAX) -> None:
        self._rows, self._give, self._rows_max = rows, give, rows_max
        self._kept: dict[Any, PushRow] | None = {}
        self._lock = threading.Lock()

    def watch(self, key: Any, value: Any, timestamp_ms: int) -> None:
        """Take a change: into the snapshot while there is one, else on to the reader."""
        with self._lock:
            kept = self._kept
            if kept is not None:
                name = hashable(key)
                kept.pop(name, None)
                if value is not None and len(kept) <= self._rows_max:  # one more than may be, by which it is known
                    kept[name] = PushRow(tuple(value), timestamp_ms)
                return
        self._give(key, value, timestamp_ms)

    def failed(self, is_read: Callable[[], bool]) -> SqlError | None:
        """Give the snapshot if it is whole; return why it cannot be."""
        kept = self._kept
        if kept is not None and len(kept) > self._rows_max:
            return SqlError(
                f"a snapshot has at most {self._rows_max:,} rows, and there are more: choose with WHERE, or EMIT CHANGES"
            )
        if kept is not None and is_read():
            with self._lock:
                bound, self._rows.maxsize = self._rows.maxsize, 0
                for row in kept.values():
                    self._rows.put_nowait(row)
                self._rows.maxsize = bound
                self._kept = None
        return None


def hashable(key: Any) -> Any:
    """Return a key as what it can be found by; arrays and structs cannot."""
    bare = key.key if isinstance(key, WindowedKey) else key
    try:
        hash(bare)
    except TypeError:
        return repr(key)
    return key
