"""Reads of committed entries from any thread, while the task goes on (interactive queries).

What is on disk is exactly what the last task commit left there, after its log transaction: a read never sees an update that could
still be undone, takes no lock of the task, and costs microseconds. What was changed since the last commit is not seen yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from logflume.streams.seams import Entry, StoreSpec

from .checkpoint import Checkpoint
from .codec import EntryCodec
from .disk import TaskDb
from .store import scan_entries
from .windows import WINDOW_START_BYTES, SegmentLayout, window_start


class StoreReader:
    """Committed entries of one store of one task. Thread-safe; raises StorageError once the task has gone."""

    def __init__(self, db: TaskDb, spec: StoreSpec) -> None:
        self._db = db
        self.spec = spec
        self.codec = EntryCodec(spec.columns, spec.classes)
        self._layout = SegmentLayout(spec.window) if spec.window else None
        self._prefix = db.prefix(spec.name)

    def get(self, key: bytes) -> Entry | None:
        """Return the entry of a key (for windows: record key + window start), None when absent or expired."""
        with self._db.reading():
            if self._layout is None:
                disk_key = self._prefix + key
            elif window_start(key) >= self._oldest_alive():
                disk_key = self._prefix + self._layout.segment(key).to_bytes(WINDOW_START_BYTES, "big") + key
            else:
                return None
            data = self._db.get_many([disk_key])[0]
        return None if data is None else self.codec.decode(data)

    def get_many(self, keys: Sequence[bytes]) -> list[Entry | None]:
        """Return the entries of keys of a store without windows, aligned; None where there is none."""
        with self._db.reading():
            found = self._db.get_many([self._prefix + key for key in keys])
        return [None if data is None else self.codec.decode(data) for data in found]

    def checkpoint(self) -> Checkpoint:
        """Return how far the store has come."""
        with self._db.reading():
            return self._db.checkpoint() or Checkpoint()

    def page(self, start: bytes, stop: bytes | None, *, limit: int) -> list[tuple[bytes, Entry]]:
        """Return up to `limit` entries with start <= key < stop in key order; go on from the last key + b"\\0"."""
        rows: list[tuple[bytes, Entry]] = []
        with self._db.reading():
            alive = self._oldest_alive()
            for key, entry in scan_entries(self._db, self._prefix, self._layout, self.codec, start, stop):
                if self._layout is None or window_start(key) >= alive:
                    rows.append((key, entry))
                    if len(rows) == limit:
                        break
        return rows

    def windows(self, key: bytes) -> list[tuple[int, Entry]]:
        """Return (window start in ms, entry) of all living windows of a record key, oldest first."""
        rows, start, stop = [], key, key + b"\xff" * (WINDOW_START_BYTES + 1)
        while page := self.page(start, stop, limit=1000):
            rows += [(window_start(k), entry) for k, entry in page if len(k) == len(key) + WINDOW_START_BYTES]
            start = page[-1][0] + b"\0"
        return rows

    def _oldest_alive(self) -> int:
        if self._layout is None:
            return 0
        checkpoint = self._db.checkpoint()
        return self._layout.oldest_alive(checkpoint.store_times_ms.get(self.spec.name, -1)) if checkpoint else 0
