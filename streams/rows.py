"""Keys, values and stored entries as the objects that a user writes and reads: the same in the test driver and in queries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol

from logflume.log import InvalidInput, UnknownName
from logflume.log.schemas import ANY, Column, FormatSpec, Row, filler_of, is_object_class, object_codec, serde

from . import graph as g
from .dsl.schemas import is_single
from .functions import results_of
from .operators.rows import prefix_bounds
from .operators.sliding import sliding_keep_ms
from .operators.versions import version_at
from .planner import default_key_format
from .seams import Entry
from .state.windows import window_start
from .windows import FOREVER_MS, bounds_of_key, key_of_bounds, key_suffix_bytes

WINDOW_START_BYTES = g.WINDOW_START.size


class WindowedKey(NamedTuple):
    """The key of a windowed result: the grouping key and the window's bounds in ms.

    The end is exclusive; of sliding windows and sessions it is inclusive.
    """

    key: Any
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row of a store: key and value as objects."""

    key: Any
    value: Any
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Within:
    """Which rows of a store are asked for: start <= key < stop, or keys whose text begins with `prefix`, by encoded keys.

    Of windows those that start from `from_ms` to `to_ms`, both inclusive; of sessions those that are open at any time of it.
    `limit`: no more than the first of these rows.
    """

    start: Any = None
    stop: Any = None
    prefix: str | None = None
    from_ms: int = 0
    to_ms: int = FOREVER_MS
    limit: int | None = None

    @property
    def is_timed(self) -> bool:
        return self.from_ms != 0 or self.to_ms != FOREVER_MS


@dataclass(frozen=True, slots=True)
class Side:
    """How one side of a topic becomes objects and back: columns, format, class."""

    columns: tuple[Column, ...]
    format: FormatSpec
    is_single: bool
    value_class: type[Any] | None = None
    window: g.Window | None = None

    def encode(self, value: Any) -> bytes | None:
        """Return the bytes of an object; bytes go as they are."""
        if value is None or isinstance(value, bytes | bytearray):
            return None if value is None else bytes(value)
        if isinstance(value, WindowedKey):
            if self.window is None:
                raise InvalidInput(f"the keys have no windows, found {value!r}")
            return key_of_bounds(self.window, self.encode_plain(value.key) or b"", value.start_ms, value.end_ms)
        return self.encode_plain(value)

    def encode_plain(self, value: Any) -> bytes | None:
        """Return the bytes of an object without a window."""
        return serde(self.format, self.columns).encode(self._row(value))

    def _row(self, value: Any) -> Row | None:
        if self.is_single:
            return (value,)
        if isinstance(value, Mapping):
            unknown = [name for name in value if name not in {c.name for c in self.columns}]
            if unknown:
                raise UnknownName("column", unknown[0], [c.name for c in self.columns])
            row = {column.name: value.get(column.name) for column in self.columns}
            fill = filler_of(self.value_class)
            return tuple((row if fill is None else fill(row, value)).values())
        wanted = [c.name for c in self.columns]
        if is_object_class(type(value)):
            codec = object_codec(type(value))
            if [c.name for c in codec.columns] == wanted:
                return codec.to_row(value)
        elif isinstance(value, tuple) and len(value) == len(wanted):
            return value
        of = "an object" if self.value_class is None else self.value_class.__name__
        raise InvalidInput(f"expected {of} or a dict with {wanted}, found {value!r:.200}")

    def decode(self, data: bytes | None) -> Any:
        """Return the object of some bytes."""
        if data is None:
            return None
        if self.window is not None:
            return WindowedKey(self._object(data[: -key_suffix_bytes(self.window)]), *bounds_of_key(self.window, data))
        return self._object(data)

    def _object(self, data: bytes) -> Any:
        return self.of_row(serde(self.format, self.columns).decode(data))

    def of_row(self, row: Row | None) -> Any:
        """Return the object of a row."""
        if row is None:
            return None
        if self.is_single:
            return row[0]
        if self.value_class is not None and is_object_class(self.value_class):
            return object_codec(self.value_class).from_row(row)
        return {column.name: value for column, value in zip(self.columns, row, strict=True)}


def key_side(schema: g.Schema, format: FormatSpec) -> Side:
    """Return how keys of an edge become objects."""
    return Side(schema.key, format, len(schema.key) == 1, window=schema.window)


def value_side(schema: g.Schema, format: FormatSpec) -> Side:
    """Return how values of an edge become objects."""
    return Side(schema.value, format, is_single(schema), schema.value_class)


class Entries(Protocol):
    """Where entries are read: a store, or what instances answer."""

    @property
    def stream_time_ms(self) -> int: ...

    def get(self, key: bytes) -> Entry | None: ...

    def range(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, Entry]]: ...


class Reads(ABC):
    """How the rows of a store are asked for, wherever it is."""

    def rows(
        self,
        start: Any = None,
        stop: Any = None,
        *,
        prefix: str | None = None,
        from_ms: int = 0,
        to_ms: int = FOREVER_MS,
    ) -> list[StoredRow]:
        """Return all rows, in order of their encoded keys, or some: start <= key < stop, or keys whose text begins with `prefix`.

        Of windows those that start from `from_ms` to `to_ms`, both inclusive; of sessions those that are open at any time of it.
        Of a versioned table these are the latest rows.
        """
        return self.within(Within(start, stop, prefix, from_ms, to_ms))

    def windows(self, key: Any, *, from_ms: int = 0, to_ms: int = FOREVER_MS) -> list[StoredRow]:
        """Return the rows of the windows of a key that are kept, oldest first, sessions by their end: all, or those of a time."""
        return self.windows_within(key, Within(from_ms=from_ms, to_ms=to_ms))

    @abstractmethod
    def within(self, within: Within) -> list[StoredRow]:
        """Return the rows that are asked for; see `rows`."""

    @abstractmethod
    def windows_within(self, key: Any, within: Within) -> list[StoredRow]:
        """Return the rows of a key's windows; see `windows`."""


class StoreRows(Reads):
    """The rows of a store, by node."""

    def __init__(self, node: g.Node, store: Entries, key_format: FormatSpec) -> None:
        self._node, self._store = node, store
        self._key = key_side(node.schema, key_format)
        self._value = value_side(node.schema, FormatSpec("JSON"))
        has_states = isinstance(node, g.Aggregate | g.TableAggregate)
        self._result = results_of(node.aggregations) if has_states else tuple  # type: ignore[attr-defined]
        self._has_sessions = isinstance(node.schema.window, g.SessionWindow)
        self._has_starts = self._has_sessions and isinstance(node, g.Aggregate | ProcessorTable)
        """Whether keys end with the ends of their sessions, whose starts come first in the states."""
        is_by_ends = self._has_starts and isinstance(node, g.Aggregate)
        self._suffix_bytes = WINDOW_START_BYTES if is_by_ends else key_suffix_bytes(node.schema.window)
        self._history_ms = getattr(node, "history_ms", None)
        window = node.window if isinstance(node, g.Aggregate) else None
        self._seen_ms = sliding_keep_ms(window) if isinstance(window, g.SlidingWindow) else None

    def get(self, key: Any, *, as_of: int | None = None) -> Any:
        """Return the row of a key (a `WindowedKey` for windows), None when there is none; of a versioned table also as of a
        time."""
        found = self.record(key, as_of=as_of)
        return None if found is None else found.value

    def record(self, key: Any, *, as_of: int | None = None) -> StoredRow | None:
        """Return the row of a key with its time."""
        if self._key.window is not None and not isinstance(key, WindowedKey):
            raise InvalidInput(
                "the store has windows, and a row for each of a key's: windows(key) gives them, "
                f"get(lf.WindowedKey(key, start_ms, end_ms)) one of them; found {key!r:.100}"
            )
        if as_of is not None and self._history_ms is None:
            raise InvalidInput("the store has no rows of earlier times: as_of is for tables with history=lf.hours(1)")
        encoded = self._session_place(key) if self._has_starts else self._key.encode(key) or b""
        entry = self._store.get(encoded)
        if entry is None or entry.state is None or (self._has_starts and entry.state[0] != key.start_ms):
            return None
        return self._record(encoded, entry, as_of)

    def _session_place(self, key: WindowedKey) -> bytes:
        """Return where the row of a session lies."""
        start = b"" if self._suffix_bytes == WINDOW_START_BYTES else g.WINDOW_START.pack(key.start_ms)
        return (self._key.encode_plain(key.key) or b"") + start + g.WINDOW_START.pack(key.end_ms)

    def within(self, within: Within) -> list[StoredRow]:
        """Return the rows that are asked for; see `rows`."""
        suffix_bytes = self._suffix_bytes
        low, high = self._bounds(within)
        entries = (
            (key, entry)
            for key, entry in self._store.range(low, high)
            if low <= key[: len(key) - suffix_bytes] and (high is None or key[: len(key) - suffix_bytes] < high)
        )
        found = (self._record(key, entry, None) for key, entry in self._seen(entries))
        rows = (row for row in found if row is not None and self._is_in(within, row.key))
        return list(islice(rows, within.limit))

    def _seen(self, entries: Iterable[tuple[bytes, Entry]]) -> Iterable[tuple[bytes, Entry]]:
        """Return the entries that count as there: those of sliding windows are kept a while longer, behind the newest of all."""
        if self._seen_ms is None:
            return entries
        newest = max((window_start(key) for key, _ in self._store.range(b"", None)), default=0)
        oldest = newest - self._seen_ms + 1
        return ((key, entry) for key, entry in entries if window_start(key) >= oldest)

    def _bounds(self, within: Within) -> tuple[bytes, bytes | None]:
        """Return the encoded keys from and to which rows are asked for."""
        if within.is_timed and self._key.window is None:
            raise InvalidInput("the store has no windows: from_ms and to_ms are for those that have")
        if within.prefix is None:
            start, stop = (None if key is None else self._key.encode_plain(key) for key in (within.start, within.stop))
            return start or b"", stop
        if within.start is not None or within.stop is not None:
            raise InvalidInput("rows are asked for by a prefix, or by start and stop")
        return prefix_bounds(within.prefix, self._key.columns, self._key.encode_plain)

    def _is_in(self, within: Within, key: Any) -> bool:
        """Return whether the window of a key, if it has one, is in the time that is asked for."""
        if not within.is_timed:
            return True
        return bool(key.start_ms <= within.to_ms and (key.end_ms if self._has_sessions else key.start_ms) >= within.from_ms)

    def windows_within(self, key: Any, within: Within) -> list[StoredRow]:
        """Return the rows of a key's windows; see `windows`."""
        if self._key.window is None:
            raise InvalidInput("the store has no windows: get(key) gives its row")
        plain = self._key.encode_plain(key) or b""
        found = self._store.range(plain, plain + b"\xff" * (self._suffix_bytes + 1))
        entries = self._seen((full, entry) for full, entry in found if len(full) == len(plain) + self._suffix_bytes)
        rows = (self._record(full, entry, None) for full, entry in entries)
        return [row for row in rows if row is not None and self._is_in(within, row.key)]

    def key_of(self, key: bytes) -> Any:
        """Return the object of a key as it lies in the store; the start of a session may not be known."""
        if not self._has_starts:
            return self._key.decode(key)
        has_start = self._suffix_bytes > WINDOW_START_BYTES
        start_ms = g.WINDOW_START.unpack_from(key, len(key) - self._suffix_bytes)[0] if has_start else 0
        return self._key.decode(self._with_bounds(key, start_ms))

    def _with_bounds(self, key: bytes, start_ms: int) -> bytes:
        """Return the key of a session's row, of that in the store."""
        assert self._key.window is not None
        end_ms = g.WINDOW_START.unpack_from(key, len(key) - WINDOW_START_BYTES)[0]
        return key_of_bounds(self._key.window, key[: -self._suffix_bytes], start_ms, end_ms)

    def of_entry(self, key: bytes, entry: Entry) -> StoredRow | None:
        """Return the row of an entry as it lies in the store."""
        return None if entry.state is None else self._record(key, entry, None)

    def _record(self, key: bytes, entry: Entry, as_of: int | None) -> StoredRow | None:
        state, time = entry.state, entry.timestamp_ms
        assert state is not None
        if self._history_ms is not None:
            found = version_at(state, as_of, self._store.stream_time_ms - self._history_ms)
            if found is None:
                return None
            time, state = found
        elif self._has_starts:
            key, state = self._with_bounds(key, state[0]), state[1:]
        return StoredRow(self._key.decode(key), self._value.of_row(tuple(self._result(state))), time)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorTable(g.ToTable):
    """A store of a processor, as the table that it is to who reads it."""


def _table_of(node: g.Process, store: g.ProcessorStore) -> ProcessorTable:
    window: g.Window | None = None
    if isinstance(store, g.WindowStore):
        window = g.TimeWindow(1, 1, 0, store.retention_ms)
    elif isinstance(store, g.SessionStore):
        window = g.SessionWindow(0, 0, store.retention_ms)
    return ProcessorTable(
        name=store.name, schema=g.Schema((store.key,), (Column("value", ANY),), window), kind=g.EdgeKind.TABLE,
        inputs=(node.name,), store=store.name, history_ms=getattr(store, "history_ms", None),
    )  # fmt: skip


def stored_nodes(nodes: Mapping[str, g.Node]) -> dict[str, g.Node]:
    """Return the nodes whose rows are kept, by the name of their store; processors' stores as tables."""
    found = {store: node for node in nodes.values() if (store := g.store_of(node)) is not None}
    return found | {
        store.name: _table_of(node, store) for node in nodes.values() if isinstance(node, g.Process) for store in node.stores
    }


def key_format_of(nodes: Mapping[str, g.Node], node: g.Node) -> FormatSpec:
    """Return the format of a store's keys: that of the source or internal topic before it, unless it is a processor's."""
    if isinstance(node, ProcessorTable):
        return default_key_format(node.schema.key)
    while not isinstance(node, g.Source | g.Repartition | g.Answer):
        node = nodes[node.inputs[0]]
    return node.key_format
