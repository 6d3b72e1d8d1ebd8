"""Windows that are still open, for aggregates whose results leave once, when their window closes (Emit.FINAL).

What has closed leaves with the task commit that moves stream time past it. As stream time is kept with each commit, what has left
already is known after a restart: every window that was closed by the stream time of the last commit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from logflume.log.records import I64, Headers

from ..columns import Batch
from ..graph import TimeWindow
from ..seams import Entry, StateStore
from ..windows import WINDOW_START
from .rows import entries_of

_SEGMENTS_KNOWN = 16
"""More than these are looked through for those that have expired: two or three live."""


class OpenEntries:
    """Which entries of a store close when: those whose time, the one in their key or what `time_of` makes of it, is before
    stream time - `wait_ms`.

    Entries lie on disk in segments of time. Those of a segment are known by key from when time comes there; of what lies
    further ahead nothing is kept. `time_of` never falls and gives nothing before the time in the key.
    """

    def __init__(self, store: StateStore, wait_ms: int, *, time_of: Callable[[int], int] = int) -> None:
        self._store, self._wait_ms, self._time_of = store, wait_ms, time_of
        self._by_time: dict[int, set[bytes]] = {}
        self._known: set[int] = set()
        self._ahead: set[int] = set()
        self._closed_to = 0

    def start(self, closed_to: int | None = None) -> None:
        """Begin. What has a time before `closed_to` has left; None: the store is restored, what had closed by its last commit."""
        self._closed_to = self._store.stream_time_ms - self._wait_ms if closed_to is None else closed_to
        self._ahead = set(self._store.segments())

    def take_closed(self, stream_time_ms: int, changed: Iterable[bytes] | None = None) -> list[bytes]:
        """Return the keys of entries that have closed by now, in order of (time, key); they are not open any more.

        To be called once a task commit. `changed`: the keys of those that changed since the last one; None: the store knows.
        """
        closed_to, store = stream_time_ms - self._wait_ms, self._store
        found = _by_start(store.dirty if changed is None else changed)
        segments = {start: store.segment_of(start) for start in found}
        self._ahead.update(set(segments.values()) - self._known)
        reached = [segment for segment in self._ahead if segment < closed_to]
        self._known.update(reached)
        self._ahead.difference_update(reached)
        for segment in reached:
            self._note(_by_start(store.keys_of_segment(segment)))
        self._note({start: keys for start, keys in found.items() if segments[start] in self._known})
        if len(self._known) > _SEGMENTS_KNOWN:
            self._known = {segment for segment in self._known if segment >= store.segment_of(store.oldest_alive_ms)}
        self._closed_to = max(closed_to, self._closed_to)
        by_time = self._by_time
        return [key for time in sorted(time for time in by_time if time < closed_to) for key in sorted(by_time.pop(time))]

    def _note(self, found: Mapping[int, Sequence[bytes]]) -> None:
        by_time, time_of, closed_to = self._by_time, self._time_of, self._closed_to
        for start, keys in found.items():
            time = time_of(start)
            if time >= closed_to:
                by_time.setdefault(time, set()).update(keys)

    def take_entries(self, stream_time_ms: int) -> list[tuple[bytes, Entry]]:
        """Return the entries that have closed by now; see `take_closed`."""
        keys = self.take_closed(stream_time_ms)
        return [(key, entry) for key, entry in zip(keys, entries_of(self._store, keys), strict=True) if entry is not None]


def _by_start(keys: Iterable[bytes]) -> dict[int, list[bytes]]:
    """Return keys by the time at their end."""
    found = defaultdict[bytes, list[bytes]](list)
    for key in keys:
        found[key[-WINDOW_START.size :]].append(key)
    return {int.from_bytes(start, "big"): group for start, group in found.items()}


def closing_wait_ms(window: TimeWindow) -> int:
    """Return how far behind a window's start stream time is when its last record may still come."""
    return window.size_ms + window.grace_ms - 1


class ClosingHeaders:
    """The headers of the records that moved stream time since the last commit: what closes leaves with those of the record by
    which it did.

    `time_of`, `wait_ms`: as in `OpenEntries`; `times_at`: how far from their end keys have the time in them.
    """

    def __init__(self, wait_ms: int, *, time_of: Callable[[int], int] = int, times_at: int = WINDOW_START.size) -> None:
        self._wait_ms, self._time_of, self._times_at = wait_ms, time_of, times_at
        self._clocks: list[int] = []
        self._headers: list[Headers] = []

    def note(self, batch: Batch, clocks: Sequence[int] | I64) -> None:
        """Note rows, and stream time with each of them."""
        headers = batch.headers()
        if headers is None:
            self._note(int(clocks[-1]), ())
            return
        latest = np.array(clocks, np.int64)
        risen = np.flatnonzero(np.diff(latest, prepend=self._clocks[-1] if self._clocks else -1) > 0)
        for row, clock in zip(risen.tolist(), latest[risen].tolist(), strict=True):
            self._note(clock, headers[row])

    def _note(self, clock: int, headers: Headers) -> None:
        if self._clocks and clock <= self._clocks[-1]:
            return
        if self._headers and not headers and not self._headers[-1]:
            self._clocks[-1] = clock
        else:
            self._clocks.append(clock)
            self._headers.append(headers)

    def take(self, keys: Callable[[], Sequence[bytes | None]]) -> list[Headers] | None:
        """Return the headers of entries that have closed, None: none has any; begin anew. `keys`: theirs, if they matter."""
        clocks, headers = np.array(self._clocks, np.int64), [*self._headers, ()]
        self._clocks, self._headers = [], []
        if not any(headers):
            return None
        ends = [self._time_of(WINDOW_START.unpack_from(key, len(key) - self._times_at)[0]) for key in keys() if key is not None]
        return [headers[place] for place in np.searchsorted(clocks, np.array(ends, np.int64) + (self._wait_ms + 1)).tolist()]
