"""Versioned tables: the rows of a key over time, in one entry of the store, as far back as the table's history.

State of an entry: a list of [time, row or None] in order of time. A version older than the history goes once a later one covers
the oldest time that can be asked for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import replace
from typing import Any

import numpy as np

from logflume.log.schemas import ANY, Kind
from logflume.log.schemas import Column as Field

from .. import graph as g
from ..columns import Batch, Column
from ..seams import State, StateStore, StoreSpec
from .emission import rows_of
from .rows import LATEST_COLUMN, old_rows, put_entry

VERSIONS = (Field("versions", ANY),)


def is_versioned(node: g.Node) -> bool:
    """Return whether a node keeps the rows of earlier times."""
    return isinstance(node, g.Source | g.ToTable) and node.history_ms is not None


def is_view_of_versions(wiring: Any, name: str) -> bool:
    """Return whether rows of a table can be looked up as of a time: a versioned one, or a view of one that is not kept."""
    node = wiring.node(name)
    if isinstance(node, g.Filter | g.Project) and node.store is None and node.kind is g.EdgeKind.TABLE:
        return is_view_of_versions(wiring, node.inputs[0])
    return is_versioned(node)


def version_at(state: State | None, at: int | None, oldest: int) -> tuple[int, State] | None:
    """Return time and row of a key as of a time (None: the latest); of times before the history only the latest is known."""
    if state is None:
        return None
    versions = state[0]
    place = len(versions) - 1 if at is None else bisect_right(versions, at, key=_time) - 1
    if place < 0 or (at is not None and at < oldest and place != len(versions) - 1):
        return None
    time, row = versions[place]
    return None if row is None else (time, tuple(row))


def _time(version: Any) -> int:
    return int(version[0])


def keep_versions(store: StateStore, batch: Batch, history_ms: int, *, wants_old: bool) -> tuple[Batch, list[int]]:
    """Put the rows of a batch into a store as versions; return those that were kept, and which were too old.

    The rows kept say whether they are the latest of their key (LATEST), the rows before are the latest there were.
    """
    assert batch.keys is not None
    fields = batch.schema.value
    keys: list[Any] = batch.keys.objects()
    store.load(keys)
    kept: list[int] = []
    late: list[int] = []
    latest: list[bool] = []
    before: list[State | None] = []
    for row, (key, value, time) in enumerate(zip(keys, rows_of(batch, fields), batch.times.tolist(), strict=True)):
        store.stream_time_ms = max(store.stream_time_ms, time)
        oldest = store.stream_time_ms - history_ms
        if time < oldest:
            late.append(row)
            continue
        entry = store.resident.get(key)
        state = None if entry is None else entry.state
        current = version_at(state, None, oldest)
        kept.append(row)
        before.append(None if current is None else current[1])
        versions = [] if state is None else list(state[0])
        latest.append(not versions or time >= versions[-1][0])
        put_entry(store, key, (with_version(versions, time, value, oldest),), versions[-1][0] if versions else time)
    rows = batch if not late else batch.take(np.array(kept, np.int64))
    columns = rows.columns | {LATEST_COLUMN: Column.of_objects(list(latest), Kind.BOOLEAN)}
    return replace(rows, columns=columns, old=old_rows(before, fields) if wants_old else None), late


def with_version(versions: list[Any], time: int, value: State | None, oldest: int) -> list[Any]:
    """Add or replace a version, and leave out those that a later one covers for every time since `oldest`."""
    place = bisect_left(versions, time, key=_time)
    version = [time, None if value is None else list(value)]
    if place < len(versions) and versions[place][0] == time:
        versions[place] = version
    else:
        versions.insert(place, version)
    return versions[max(0, bisect_right(versions, oldest, key=_time) - 1) :]


def without_earlier(batch: Batch) -> Batch:
    """Return the changes that are of the latest version of their key."""
    found = batch.columns.get(LATEST_COLUMN)
    return batch if found is None else batch.where(np.fromiter(found.objects(), np.bool_, len(batch)))


def versions_spec(node: g.Source | g.ToTable) -> StoreSpec:
    """Return the store of a versioned table."""
    assert node.store is not None
    return StoreSpec(node.store, node.schema.key, VERSIONS)
