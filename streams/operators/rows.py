"""Rows of tables in stores: what operators that keep rows share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from logflume.log import InvalidInput
from logflume.log.records import I64
from logflume.log.schemas import Column as Field
from logflume.log.schemas import Kind

from ..columns import Batch, Column, Old
from ..columns.batch import ColumnId
from ..expr import Side
from ..seams import Entry, State, StateStore
from ..state import window_start
from ..vectors.expressions import Mask
from .operator import Task

LATEST_COLUMN: ColumnId = (Side.META, "LATEST")
"""Behind a versioned table: whether a change is of the latest version of its key. Absent: all are."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """N rows as value columns. `gone`: where there is none, whatever the columns have there; None: nowhere."""

    columns: Mapping[ColumnId, Column]
    gone: Mask | None

    @classmethod
    def of(cls, batch: Batch) -> Rows:
        """Return the rows of a batch as they are now."""
        return cls(batch.values(), batch.nulls)

    @classmethod
    def before(cls, batch: Batch) -> Rows | None:
        """Return the rows of a batch as they were before it; None where nobody asked for them."""
        return None if batch.old is None else cls(batch.old.columns, batch.old.nulls)

    @classmethod
    def of_states(cls, states: list[State | None], fields: Sequence[Field]) -> Rows:
        """Make them of states, None where there is none."""
        return cls(state_columns(states, [(field.name, field.type.kind) for field in fields]), nulls_of(states))

    def states(self, fields: Sequence[Field], count: int) -> list[State | None]:
        """Return them as states, None where there is none."""
        lists = [self.columns[Side.VALUE, field.name].objects() for field in fields]
        states: list[State | None] = list(zip(*lists, strict=True)) if lists else [()] * count
        if self.gone is not None:
            states = [None if gone else state for state, gone in zip(states, self.gone.tolist(), strict=True)]
        return states

    def there(self, count: int) -> Mask:
        """Return which of them there are."""
        return np.ones(count, np.bool_) if self.gone is None else ~self.gone

    def take(self, rows: I64) -> Rows:
        """Return some of them, in that order."""
        gone = None if self.gone is None else self.gone[rows]
        return Rows(
            {c: column.take(rows) for c, column in self.columns.items()}, None if gone is None or not gone.any() else gone
        )


def nulls_of(values: Sequence[State | None]) -> Mask | None:
    """Return where values are None; None: nowhere."""
    gone = [value is None for value in values]
    return np.array(gone) if True in gone else None


def entries_of(store: StateStore, keys: Sequence[bytes | None]) -> list[Entry | None]:
    """Return the entries of keys, None for those without one (or deleted, or expired), as they are now."""
    known: Sequence[bytes] = [key for key in keys if key is not None] if None in keys else keys  # type: ignore[assignment]
    store.load(known)
    entries: Any = map(store.resident.get, keys)  # type: ignore[arg-type]
    alive = store.oldest_alive_ms
    expired = {key for key in known if window_start(key) < alive} if alive else ()
    if expired:
        entries = (None if key in expired else entry for key, entry in zip(keys, entries, strict=True))
    return [None if entry is None or entry.state is None else entry for entry in entries]


def states_and_times(entries: Sequence[Entry | None]) -> tuple[list[State | None], I64]:
    """Return the states of entries, None for none, and their times, -1 for none."""
    if True in [entry is None for entry in entries]:
        entries = [_NOTHING if entry is None else entry for entry in entries]
    return list(map(_STATE, entries)), np.fromiter(map(_TIME, entries), np.int64, len(entries))


_NOTHING = Entry(None, -1)
_STATE, _TIME = attrgetter("state"), attrgetter("timestamp_ms")


def put_entries(
    store: StateStore, keys: Sequence[bytes], states: Sequence[State | None], times: Sequence[int]
) -> list[State | None]:
    """Put states into a store, later ones over earlier ones whatever their time; None deletes. Returns the state before each."""
    store.load(keys)
    entries, before = store.resident, list[State | None]()
    find, add = entries.get, before.append
    for key, made in zip(keys, map(Entry, states, times), strict=True):
        entry = find(key)
        add(None if entry is None else entry.state)
        entries[key] = made
    deque(map(store.dirty.setdefault, keys, before), maxlen=0)
    return before


def keep_rows(task: Task, store: StateStore, batch: Batch, *, wants_old: bool) -> Old | None:
    """Put the rows of a batch into a store; a null value deletes. Returns the rows before, where they are wanted."""
    assert batch.keys is not None
    fields = store.spec.columns
    keys: list[Any] = batch.keys.objects()
    before = put_entries(store, keys, Rows.of(batch).states(fields, len(batch)), batch.times.tolist())
    task.changed(store.spec.name, batch)
    return old_rows(before, fields) if wants_old else None


def as_latest(batch: Batch) -> Batch:
    """Return changes as those of a table that knows one row of a key: whatever comes is the latest."""
    if LATEST_COLUMN not in batch.columns:
        return batch
    return replace(batch, columns={c: x for c, x in batch.columns.items() if c != LATEST_COLUMN})


def old_rows(states: list[State | None], fields: Sequence[Field]) -> Old:
    """Return states, None where there was none, as the rows before."""
    rows = Rows.of_states(states, fields)
    return Old(rows.columns, ~rows.there(len(states)))


def state_columns(states: list[Any], columns: list[tuple[str, Any]]) -> dict[Any, Column]:
    """Return states as value columns, null where there is none."""
    if None in states:
        nothing = (None,) * len(columns)
        states = [nothing if state is None else state for state in states]
    return {
        (Side.VALUE, name): Column.of_objects(list(map(itemgetter(place), states)), kind)
        for place, (name, kind) in enumerate(columns)
    }


def put_entry(store: StateStore, key: bytes, state: State | None, time: int) -> None:
    """Set the state of a key that has been loaded."""
    entry = store.resident.get(key)
    store.dirty.setdefault(key, None if entry is None else entry.state)
    if entry is None:
        store.resident[key] = Entry(state, time)
    else:
        entry.state, entry.timestamp_ms = state, time


def drop_entry(store: StateStore, key: bytes, time: int) -> None:
    """Delete the entry of a key that has been loaded; one that came after the last commit is as if it had never been."""
    if store.dirty.get(key, ()) is None:
        del store.dirty[key]
        store.resident.pop(key).state = None
    else:
        put_entry(store, key, None, time)


def prefix_bounds(prefix: Any, columns: tuple[Field, ...], encode: Callable[[Any], bytes | None]) -> tuple[bytes, bytes]:
    """Return the encoded keys from and to which the keys lie whose text begins so.

    Raises:
        InvalidInput: it is no text, or the keys are not kept as texts: one as JSON has quotes.
    """
    is_text = len(columns) == 1 and columns[0].type.kind in (Kind.STRING, Kind.ANY) and isinstance(prefix, str)
    low = encode(prefix) if is_text else None
    if low is None or low != prefix.encode():
        raise InvalidInput(f"a prefix is a text, of keys that are kept as texts, found {prefix!r:.100}")
    return low, low + b"\xff"  # no text goes on with this byte
