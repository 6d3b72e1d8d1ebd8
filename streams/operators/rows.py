"""Rows of tables in stores: what operators that keep rows share."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from ..columns import Batch, Column, Old
from ..columns.batch import ColumnId
from ..expr import Side
from ..seams import Entry, State, StateStore
from ..vectors.expressions import Mask
from .operator import Task


@dataclass(slots=True)
class Rows:
    """N rows as value columns. `gone`: where there is none, None: nowhere."""

    columns: dict[ColumnId, Column]
    gone: Mask | None


def keep_rows(task: Task, store: StateStore, batch: Batch, *, wants_old: bool) -> Old | None:
    """Put the rows of a batch into a store, later ones over earlier ones whatever their time; a null value deletes.

    Returns the rows before, where they are wanted.
    """
    assert batch.keys is not None
    fields = store.spec.columns
    keys: list[Any] = batch.keys.objects()
    lists = [batch.column(Side.VALUE, column.name).objects() for column in fields]
    states: list[Any] = list(zip(*lists, strict=True)) if lists else [()] * len(keys)
    if batch.nulls is not None:
        states = [None if null else state for state, null in zip(states, batch.nulls.tolist(), strict=True)]
    store.load(keys)
    entries, dirty = store.resident, store.dirty
    before: list[Any] = []
    for key, state, time in zip(keys, states, batch.times.tolist(), strict=True):
        entry = entries.get(key)
        old = None if entry is None else entry.state
        if wants_old:
            before.append(old)
        if key not in dirty:
            dirty[key] = old
        if entry is None:
            entries[key] = Entry(state, time)
        else:
            entry.state = state
            entry.timestamp_ms = time
    task.changed(store.spec.name, batch)
    return old_rows(before, [(column.name, column.type.kind) for column in fields]) if wants_old else None


def old_rows(states: list[Any], columns: list[tuple[str, Any]]) -> Old:
    """Return states, None where there was none, as the rows before."""
    nulls = np.fromiter([state is None for state in states], np.bool_, len(states))
    return Old(state_columns(states, columns), nulls)


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
    if key not in store.dirty:
        store.dirty[key] = None if entry is None else entry.state
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
