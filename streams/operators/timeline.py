"""The times at which a store has entries, key by key, for operators that look for entries of a key about a time.

A store's key is the encoded record key and 8 bytes of a time (of a window's start, a session's end, a record). The times are
read from the store once, when they are first asked for, and kept in memory from then on: 8 bytes and a little for each entry
that is alive.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from ..seams import Entry, State, StateStore
from ..windows import WINDOW_START
from .rows import drop_entry, put_entry

NEVER = -1


class Timeline:
    """The entries of one store by key and time. `keep_ms`: entries further than that behind the newest are not seen any more.

    Invariant: the times of a key are those of its entries in the store that have a state: one number, or several in order.
    Numbers and arrays because the garbage collector does not walk these; most keys have one time, and a number is made sooner.
    """

    def __init__(self, store: StateStore, keep_ms: int) -> None:
        self.store, self.keep_ms = store, keep_ms
        self._times: dict[bytes, int | array[int]] = {}
        self._swept = NEVER
        self.newest = NEVER

    def start(self) -> None:
        """Read the times: the store is restored, and no record has moved its time yet."""
        for key, _ in self.store.range(b"", None):
            self._note(key[:-8], WINDOW_START.unpack_from(key, len(key) - 8)[0])

    def _note(self, key: bytes, time: int) -> bool:
        """Note that a key has an entry at a time; return whether that is new."""
        if time > self.newest:
            self.newest = time
        times = self._times.get(key)
        if times is None:
            self._times[key] = time
        elif isinstance(times, int):
            if times == time:
                return False
            self._times[key] = array("q", (times, time) if times < time else (time, times))
        elif times[-1] < time:
            times.append(time)
        else:
            place = bisect_left(times, time)
            if times[place] == time:
                return False
            times.insert(place, time)
        return True

    def _forget(self, key: bytes, time: int) -> bool:
        """Note that a key has no entry at a time; return whether it had one."""
        times = self._times.get(key)
        if times is None or isinstance(times, int):
            if times != time:
                return False
            del self._times[key]
            return True
        place = bisect_left(times, time)
        if place == len(times) or times[place] != time:
            return False
        del times[place]
        if not times:
            del self._times[key]
        return True

    def oldest_seen(self) -> int:
        """Return the smallest time whose entries are seen."""
        return self.newest - self.keep_ms + 1

    def times(self, key: bytes, low: int, high: int) -> Sequence[int]:
        """Return the times of a key with low <= time <= high that are seen, in order."""
        found = self._times.get(key)
        if found is None:
            return ()
        if isinstance(found, int):
            return (found,) if low <= found <= high and found > self.newest - self.keep_ms else ()
        if found[-1] < low or found[0] > high:
            return ()
        return found[bisect_left(found, max(low, self.oldest_seen())) : bisect_right(found, high)]

    def load(self, keys: Iterator[tuple[bytes, int, int]]) -> None:
        """Make the entries of keys within (low, high) present in memory."""
        if self.store.is_resident:
            return
        wanted = {key + WINDOW_START.pack(time) for key, low, high in keys for time in self.times(key, low, high)}
        if wanted:
            self.store.load(wanted)

    def entry(self, key: bytes, time: int) -> Entry | None:
        """Return the entry of a key at a time, None where there is none; it has been loaded."""
        entry = self.store.resident.get(key + WINDOW_START.pack(time))
        return None if entry is None or entry.state is None else entry

    def put_new(self, key: bytes, time: int, state: State) -> bool:
        """Set the state of a key at a time unless there is one; return whether there was none."""
        if not self._note(key, time):
            return False
        store, full = self.store, key + WINDOW_START.pack(time)
        store.dirty.setdefault(full, None)
        store.resident[full] = Entry(state, time)
        return True

    def put(self, key: bytes, time: int, state: State | None, stamp: int) -> None:
        """Set the state of a key at a time; None deletes it. Also what deletes nothing moves the newest time."""
        full = key + WINDOW_START.pack(time)
        if time > self.newest:
            self.newest = time
        if state is not None:
            self._note(key, time)
            put_entry(self.store, full, state, stamp)
        elif self._forget(key, time):
            drop_entry(self.store, full, stamp)

    def sweep(self) -> None:
        """Forget what is not seen any more, each time that half of what is kept has gone by."""
        oldest = self.oldest_seen()
        if oldest <= 0 or oldest - self._swept < max(self.keep_ms // 2, 60_000):
            return
        self._swept = oldest
        self._times = {key: left for key, times in self._times.items() if (left := _since(times, oldest)) is not None}


def _since(times: int | array[int], oldest: int) -> int | array[int] | None:
    """Return what of the times of a key is not before, None for nothing."""
    if isinstance(times, int):
        return times if times >= oldest else None
    if times[0] >= oldest:
        return times
    return times[bisect_left(times, oldest) :] if times[-1] >= oldest else None
