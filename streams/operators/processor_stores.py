"""What a processor reads and writes: its stores, by kind, over the stores of its task.

What is put is there at once, and durable with the task commit. Windows, sessions and versions live for a time behind stream time;
a put of what is older than that is refused, and says so by its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from logflume.log import InvalidInput
from logflume.log.schemas import ANY, BIGINT, serde
from logflume.log.schemas import Column as Field

from .. import graph as g
from ..seams import Entry, State, StateStore, StoreSpec
from ..windows import FOREVER_MS, WINDOW_START, TimeWindow
from .rows import prefix_bounds, put_entry
from .versions import VERSIONS, version_at, with_version

_VALUE = (Field("value", ANY),)
_SESSION = (Field("start", BIGINT), Field("value", ANY))


def spec_of(store: g.ProcessorStore) -> StoreSpec:
    """Return the store of a task that a processor's store needs."""
    match store:
        case g.VersionedStore():
            return StoreSpec(store.name, (store.key,), VERSIONS)
        case g.WindowStore():
            return StoreSpec(store.name, (store.key,), _VALUE, TimeWindow(1, 1, 0, store.retention_ms))
        case g.SessionStore():
            return StoreSpec(store.name, (store.key,), _SESSION, TimeWindow(1, 1, 0, store.retention_ms))
    return StoreSpec(store.name, (store.key,), _VALUE)


def opened(node: g.ProcessorStore, store: StateStore, now: Callable[[], int]) -> ProcessorRows:
    """Return a processor's store over the task's; `now`: the stream time."""
    return _KINDS[type(node)](node, store, now)


class ProcessorRows:
    """What the kinds have in common."""

    _place_bytes = WINDOW_START.size
    """Behind the key: the time by which entries expire, and what precedes it."""

    def __init__(self, node: g.ProcessorStore, store: StateStore, now: Callable[[], int]) -> None:
        from ..planner import default_key_format

        self._node, self._store, self._now = node, store, now
        self._serde = serde(default_key_format((node.key,)), (node.key,))

    def note_time(self, stream_time_ms: int) -> None:
        """Keep the task's stream time with the entries: schedules and expiry go on by it after a restart."""
        self._store.stream_time_ms = max(self._store.stream_time_ms, stream_time_ms)

    def _encoded(self, key: Any) -> bytes:
        found = self._serde.encode((key,))
        if found is None:
            raise InvalidInput("a store has no null keys")
        return found

    def _key(self, data: bytes) -> Any:
        row = self._serde.decode(data)
        return None if row is None else row[0]

    def _state(self, place: bytes) -> State | None:
        self.note_time(self._now())
        entry = self._store.get(place)
        return None if entry is None else entry.state

    def _put(self, place: bytes, state: State | None, time_ms: int) -> None:
        self._store.load([place])
        put_entry(self._store, place, state, max(0, time_ms))

    def _is_alive(self, at_ms: int, kept_ms: int) -> bool:
        self.note_time(self._now())
        if at_ms < 0:
            raise InvalidInput(f"store {self._node.name!r} needs times of 0 or more, found {at_ms}")
        return at_ms > self._store.stream_time_ms - kept_ms

    def _timed(self, key: Any, low_ms: int, high_ms: int) -> Iterator[tuple[bytes, int, Entry]]:
        """Yield encoded key, time and entry of what lies from `low_ms` to `high_ms`, of a key or (None) of all."""
        self.note_time(self._now())
        plain = b"" if key is None else self._encoded(key)
        stop = None if key is None else plain + b"\xff" * (self._place_bytes + 1)
        for place, entry in list(self._store.range(plain, stop)):
            at_ms = WINDOW_START.unpack_from(place, len(place) - WINDOW_START.size)[0]
            if low_ms <= at_ms <= high_ms and (key is None or len(place) == len(plain) + self._place_bytes):
                yield place[: -self._place_bytes], at_ms, entry


class KeyValueRows(ProcessorRows):
    """Implements `processors.Store`."""

    def get(self, key: Any) -> Any:
        """Return the value of a key, None when there is none."""
        state = self._state(self._encoded(key))
        return None if state is None else state[0]

    def time_of(self, key: Any) -> int | None:
        """Return the time that the value of a key was put with, None when there is none."""
        entry = self._store.get(self._encoded(key))
        return None if entry is None or entry.state is None else entry.timestamp_ms

    def put(self, key: Any, value: Any, *, timestamp_ms: int | None = None) -> None:
        """Set the value of a key, with a time (else the stream time); None deletes it."""
        time_ms = self._now() if timestamp_ms is None else timestamp_ms
        self._put(self._encoded(key), None if value is None else (value,), time_ms)

    def delete(self, key: Any) -> Any:
        """Delete a key and return the value it had."""
        found = self.get(key)
        if found is not None:
            self.put(key, None)
        return found

    def items(self, start: Any = None, stop: Any = None, *, prefix: str | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield keys and values with start <= key < stop, or whose text begins so, in the order of the encoded keys."""
        low = b"" if start is None else self._encoded(start)
        high = None if stop is None else self._encoded(stop)
        if prefix is not None:
            if start is not None or stop is not None:
                raise InvalidInput("items() takes a prefix, or start and stop")
            low, high = prefix_bounds(prefix, (self._node.key,), self._encoded)
        for key, entry in list(self._store.range(low, high)):
            assert entry.state is not None
            yield self._key(key), entry.state[0]


class WindowRows(ProcessorRows):
    """Values by key and a window's start."""

    _node: g.WindowStore

    def get(self, key: Any, start_ms: int) -> Any:
        """Return the value of a key's window, None when there is none."""
        state = self._state(self._encoded(key) + WINDOW_START.pack(start_ms))
        return None if state is None else state[0]

    def put(self, key: Any, value: Any, start_ms: int) -> bool:
        """Set the value of a key's window, None deletes it; return False where the window is too old to be kept."""
        if not self._is_alive(start_ms, self._node.retention_ms):
            return False
        self._put(self._encoded(key) + WINDOW_START.pack(start_ms), None if value is None else (value,), start_ms)
        return True

    def windows(self, key: Any, from_ms: int = 0, to_ms: int = FOREVER_MS) -> Iterator[tuple[int, Any]]:
        """Yield start and value of a key's windows that start from `from_ms` to `to_ms`, both inclusive, in order of time."""
        yield from ((start_ms, entry.state[0]) for _, start_ms, entry in self._timed(key, from_ms, to_ms) if entry.state)

    def items(self, from_ms: int = 0, to_ms: int = FOREVER_MS) -> Iterator[tuple[tuple[Any, int], Any]]:
        """Yield (key, start) and value of all windows that start in that time."""
        for key, start_ms, entry in self._timed(None, from_ms, to_ms):
            assert entry.state is not None
            yield (self._key(key), start_ms), entry.state[0]


class SessionRows(ProcessorRows):
    """Values by key and session, which lie in the order of their starts."""

    _node: g.SessionStore
    _place_bytes = 2 * WINDOW_START.size

    def get(self, key: Any, start_ms: int, end_ms: int) -> Any:
        """Return the value of a key's session, None when there is none."""
        state = self._state(self._place(key, start_ms, end_ms))
        return None if state is None else state[1]

    def put(self, key: Any, value: Any, start_ms: int, end_ms: int) -> bool:
        """Set the value of a key's session, None deletes it; return False where the session is too old to be kept."""
        if not 0 <= start_ms <= end_ms:
            raise InvalidInput(f"a session has 0 <= start <= end, found {start_ms} and {end_ms}")
        if not self._is_alive(end_ms, self._node.retention_ms):
            return False
        self._put(self._place(key, start_ms, end_ms), None if value is None else (start_ms, value), end_ms)
        return True

    def _place(self, key: Any, start_ms: int, end_ms: int) -> bytes:
        return self._encoded(key) + WINDOW_START.pack(start_ms) + WINDOW_START.pack(end_ms)

    def sessions(self, key: Any, from_ms: int = 0, to_ms: int = FOREVER_MS) -> Iterator[tuple[int, int, Any]]:
        """Yield start, end and value of a key's sessions that end at `from_ms` or later and start at `to_ms` or earlier."""
        for _, end_ms, entry in self._timed(key, from_ms, FOREVER_MS):
            if entry.state is not None and entry.state[0] <= to_ms:
                yield entry.state[0], end_ms, entry.state[1]

    def items(self) -> Iterator[tuple[tuple[Any, int, int], Any]]:
        """Yield (key, start, end) and value of all sessions."""
        for key, end_ms, entry in self._timed(None, 0, FOREVER_MS):
            assert entry.state is not None
            yield (self._key(key), entry.state[0], end_ms), entry.state[1]


class VersionedRows(ProcessorRows):
    """Values by key, as of any time of the store's history."""

    _node: g.VersionedStore

    def get(self, key: Any, *, as_of: int | None = None) -> Any:
        """Return the value of a key, the latest or as of a time; None when there was none, or that is too long ago to know."""
        state = self._state(self._encoded(key))
        found = version_at(state, as_of, self._store.stream_time_ms - self._node.history_ms)
        return None if found is None else found[1][0]

    def put(self, key: Any, value: Any, timestamp_ms: int) -> bool:
        """Set the value of a key from a time on, None for none; return False where that is older than the history."""
        if not self._is_alive(timestamp_ms, self._node.history_ms + 1):
            return False
        place, oldest_ms = self._encoded(key), self._store.stream_time_ms - self._node.history_ms
        state = self._state(place)
        versions = [] if state is None else list(state[0])
        self._put(place, (with_version(versions, timestamp_ms, None if value is None else (value,), oldest_ms),), timestamp_ms)
        return True

    def versions(self, key: Any) -> Iterator[tuple[int, Any]]:
        """Yield since when, and the value, of all that is known of a key, the oldest first; None from when on there was none."""
        state = self._state(self._encoded(key))
        yield from ((at_ms, None if row is None else row[0]) for at_ms, row in ([] if state is None else state[0]))

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield keys and their latest values."""
        for key, entry in list(self._store.range(b"", None)):
            found = version_at(entry.state, None, 0)
            if found is not None:
                yield self._key(key), found[1][0]


_KINDS: dict[type[g.ProcessorStore], type[ProcessorRows]] = {
    g.KeyValueStore: KeyValueRows,
    g.WindowStore: WindowRows,
    g.SessionStore: SessionRows,
    g.VersionedStore: VersionedRows,
}
