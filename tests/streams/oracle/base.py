"""Records, keys, nodes and the tables' rows that can be looked up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

Json = Any
NEVER = -1 << 63


class WindowedKey(NamedTuple):
    """A key of a window; `is_session` says how its bytes sort."""

    key: str
    window_start: int
    window_end: int
    is_session: bool = False


def key_bytes(key: Any) -> bytes:
    """Return what stores sort by."""
    if not isinstance(key, WindowedKey):
        return str(key).encode()
    times = (key.window_end, key.window_start) if key.is_session else (key.window_start,)
    return key.key.encode() + b"".join(t.to_bytes(8, "big") for t in times)


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a stream, or a change of a table: its new value, the old one where asked for, and whether it is the latest."""

    key: Any
    value: Json
    ts: int
    old: Json = None
    is_latest: bool = True

    def but(self, **changed: Any) -> Record:
        return replace(self, **changed)


@dataclass(frozen=True, slots=True)
class Rules:
    """Where a principled result differs from what Kafka Streams does; all False: as Kafka Streams does.

    Attributes:
        knows_old_rows: a filter of a table knows the rows before wherever the table is kept, and then sends no tombstone for a
            row that did not pass before either (Kafka: as far as it was known when the filter was created).
        has_no_first_row: the first change of an aggregate has no row before (Kafka: the initial value, which a grouped table
            takes back though it was never there), and where one record makes a sliding window twice, the second change has the
            first one's row (Kafka: the initial value again, so that a group counts it twice).
        sessions_take_back: a second record at a session's only instant takes the row before back (Kafka: does not).
        suppress_takes_back: what leaves a suppress takes back what left it before (Kafka: the row before the latest one held
            back), and is its row for whatever follows from it (Kafka: only once all of that is done).
        joins_know_their_rows: what a kept join takes back is the row that it kept (Kafka: one computed anew, of the other side as
            it is now; another one where both sides change with one record).
        loses_no_windows: a window that closes gives its result, however far time has jumped (Kafka: may have dropped it), and
            its row is seen as long as with other emission (Kafka: 1 ms longer), a session's until it has left (Kafka: 1 ms less);
            as it leaves it meets what was there before the record that closed it (Kafka: what that has not made expire).
        holds_nothing_back: a record of a join without a partner leaves with the first record that is late enough (Kafka: by a
            hint, and at most once per interval), as do windows that close.
        drops_null_keys_early: a repartition passes records without a key on only for a join that they reach and that takes them
            (Kafka: also for one that is anywhere behind it, or whose other side takes them).
    """

    knows_old_rows: bool = False
    has_no_first_row: bool = False
    sessions_take_back: bool = False
    suppress_takes_back: bool = False
    joins_know_their_rows: bool = False
    loses_no_windows: bool = False
    holds_nothing_back: bool = False
    drops_null_keys_early: bool = False


KAFKA = Rules()

Port = Callable[[Record], None]


@dataclass(eq=False, slots=True)
class Node:
    """Something that takes records and forwards to its children, depth first in the order in which they were added."""

    children: list[Port] = field(default_factory=list)
    queue: Node | None = None  # the queue that all joins of this marked stream share

    def forward(self, record: Record) -> None:
        for child in self.children:
            child(record)


class Row(NamedTuple):
    value: Json
    ts: int


class Table(Node):
    """A table: changes go out, rows are looked up.

    `demand_old` makes the old value part of the changes, whatever it takes; `ask_old` only if that costs no store.
    """

    is_versioned = False

    def get(self, key: Any) -> Row | None:
        raise NotImplementedError

    def get_as_of(self, key: Any, ts: int) -> Row | None:
        raise NotImplementedError

    def demand_old(self) -> None:
        raise NotImplementedError

    def ask_old(self) -> bool:
        raise NotImplementedError

    def need_rows(self) -> None:
        """Make `get` possible."""
        raise NotImplementedError


class StoredTable(Table):
    """A table whose rows are kept once somebody needs them: a topic, a stream read as a table, a result of a foreign-key join."""

    def __init__(self, *, is_stored: bool = False, history_ms: int | None = None) -> None:
        super().__init__()
        self.is_stored = is_stored or history_ms is not None
        self.is_versioned = history_ms is not None
        self.sends_old = False
        self.rows: dict[Any, Row] = {}
        self.versions = Versions(history_ms) if history_ms is not None else None

    def receive(self, record: Record) -> None:
        if record.key is None:
            return
        if not self.is_stored:
            self.forward(record.but(old=None))
            return
        before = self.get(record.key)
        old = before.value if before and self.sends_old else None
        if self.versions is not None:
            is_latest = self.versions.put(record.key, record.value, record.ts)
            if is_latest is not None:
                self.forward(record.but(old=old, is_latest=is_latest))
            return
        put(self.rows, record)
        self.forward(record.but(old=old, is_latest=True))

    def get(self, key: Any) -> Row | None:
        return self.versions.latest(key) if self.versions is not None else self.rows.get(key)

    def get_as_of(self, key: Any, ts: int) -> Row | None:
        assert self.versions is not None
        return self.versions.as_of(key, ts)

    def demand_old(self) -> None:
        self.is_stored = self.sends_old = True

    def ask_old(self) -> bool:
        self.sends_old = self.sends_old or self.is_stored
        return self.is_stored

    def need_rows(self) -> None:
        self.is_stored = True


def put(rows: dict[Any, Row], record: Record) -> None:
    if record.value is None:
        rows.pop(record.key, None)
    else:
        rows[record.key] = Row(record.value, record.ts)


class Versions:
    """The history of each key: (time, value) in order of time, deletions among them."""

    def __init__(self, history_ms: int) -> None:
        self.history_ms = history_ms
        self.store_time = NEVER
        self.of: dict[Any, dict[int, Json]] = {}

    def put(self, key: Any, value: Json, ts: int) -> bool | None:
        """Keep a version; return whether it is the key's latest, None if it is too old to be kept."""
        self.store_time = max(self.store_time, ts)
        if ts < self.store_time - self.history_ms:
            return None
        versions = self.of.setdefault(key, {})
        is_latest = ts >= max(versions, default=NEVER)
        versions[ts] = value
        return is_latest

    def latest(self, key: Any) -> Row | None:
        versions = self.of.get(key)
        if not versions:
            return None
        ts = max(versions)
        return None if versions[ts] is None else Row(versions[ts], ts)

    def as_of(self, key: Any, ts: int) -> Row | None:
        versions = self.of.get(key, {})
        found = max((at for at in versions if at <= ts), default=None)
        if found is None or (ts < self.store_time - self.history_ms and found != max(versions)):
            return None
        return None if versions[found] is None else Row(versions[found], found)
