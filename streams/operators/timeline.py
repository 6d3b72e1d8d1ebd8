"""The times at which a store has entries, key by key, for operators that look for entries of a key about a time.

A store's key is the encoded record key and 8 bytes of a time (of a window's start, a session's end, a record). The times are kept
in memory: 8 bytes and a little for each entry that is alive. Where a store on disk has few entries they are read as the task
begins, else those of a key when it comes; and when they take too much, those that are written are forgotten and read again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from ..seams import Entry, State, StateStore
from ..windows import WINDOW_START
from .rows import drop_entry, put_entry

NEVER = -1
_READ_AT_START = 100_000
"""How many entries are read as a task begins: a thirtieth of a second."""
_KEY_BYTES = 250
"""About what a key with one time takes."""


class Timeline:
    """The entries of one store by key and time. `keep_ms`: entries further than that behind the newest are not seen any more.

    Invariant: the times of a key are those of its entries in the store that have a state: one number, or several in order; of a
    key that is not in `_read`, only of those from `_known_from` on.
    Numbers and arrays because the garbage collector does not walk these; most keys have one time, and a number is made sooner.
    """

    def __init__(self, store: StateStore, keep_ms: int) -> None:
        self.store, self.keep_ms = store, keep_ms
        self._times: dict[bytes, int | array[int]] = {}
        self._read: set[bytes] = set()
        self._known_from = 0
        self._swept = NEVER

    def start(self) -> None:
        """Begin: the store is restored, no record has moved its time yet, and all that it has is written."""
        if self.store.stored_count > _READ_AT_START:
            self._forget_all()
            return
        for key in self.store.stored_keys():
            self._note(key[:-8], WINDOW_START.unpack_from(key, len(key) - 8)[0])

    def _forget_all(self) -> None:
        """Know nothing of what is written, which is all that there is."""
        self._times, self._read, self._known_from = {}, set(), self.store.newest_ms + 1

    def _note(self, key: bytes, time: int) -> bool:
        """Note that a key has an entry at a time; return whether that is new."""
        if time > self.store.newest_ms:
            self.store.newest_ms = time
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
        return self.store.newest_ms - self.keep_ms + 1

    def times(self, key: bytes, low: int, high: int) -> Sequence[int]:
        """Return the times of a key with low <= time <= high that are seen, in order."""
        found = self._times.get(key)
        if found is None:
            return ()
        if isinstance(found, int):
            return (found,) if low <= found <= high and found > self.store.newest_ms - self.keep_ms else ()
        if found[-1] < low or found[0] > high:
            return ()
        return found[bisect_left(found, max(low, self.oldest_seen())) : bisect_right(found, high)]

    def know(self, keys: Sequence[bytes], low: int) -> None:
        """Make what `times` says of these keys from `low` on known."""
        store = self.store
        is_large = (len(self._times) + len(self._read)) * _KEY_BYTES > store.memory_bytes // 4
        if is_large and not store.dirty and not store.is_resident:
            self._forget_all()
        if low >= self._known_from:
            return
        unread = [key for key in keys if key not in self._read]
        self._read.update(unread)
        for key, time in store.read_keys(unread, self.oldest_seen()):
            if time < self._known_from:
                self._note(key, time)

    def load(self, keys: Sequence[bytes], low: int, high: int) -> None:
        """Make what `times` says of these keys from `low` to `high` known, and their entries there present in memory."""
        self.know(keys, low)
        if not self.store.is_resident:
            self.store.load({key + WINDOW_START.pack(time) for key in keys for time in self.times(key, low, high)})

    def entry(self, key: bytes, time: int) -> Entry | None:
        """Return the entry of a key at a time, None where there is none; it has been loaded."""
        entry = self.store.resident.get(key + WINDOW_START.pack(time))
        return None if entry is None or entry.state is None else entry

    def put(self, key: bytes, time: int, state: State | None, stamp: int) -> None:
        """Set the state of a key at a time; None deletes it. Also what deletes nothing moves the newest time."""
        full = key + WINDOW_START.pack(time)
        if time > self.store.newest_ms:
            self.store.newest_ms = time
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
        if oldest >= self._known_from:
            self._read, self._known_from = set(), 0
        self._times = {key: left for key, times in self._times.items() if (left := _since(times, oldest)) is not None}


def _since(times: int | array[int], oldest: int) -> int | array[int] | None:
    """Return what of the times of a key is not before, None for nothing."""
    if isinstance(times, int):
        return times if times >= oldest else None
    if times[0] >= oldest:
        return times
    return times[bisect_left(times, oldest) :] if times[-1] >= oldest else None
