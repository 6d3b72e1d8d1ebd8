"""Rows of tables that other operators look up by key: kept ones, views of them, joins, versions of an earlier time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from logflume.log.records import I64

from .. import graph as g
from ..columns import Batch
from ..columns.column import emptied
from ..columns.evaluate import Evaluation, evaluations
from ..expr import Side, columns_used
from ..functions import results_of
from ..vectors.expressions import Mask
from ..windows import SESSION_BOUNDS, WINDOW_START
from .emission import Joiner
from .operator import Errors, Task, Wiring
from .project import computed
from .rows import Rows, entries_of, states_and_times
from .suppress import before_of
from .versions import is_versioned, version_at


class Lookup(Protocol):
    """A table that rows are looked up in."""

    schema: g.Schema

    def find(
        self, task: Task, keys: Sequence[bytes | None], batch: Batch, *, as_of: Sequence[int] | None = None
    ) -> tuple[Rows, I64]:
        """Return the rows of keys, now or (of versioned tables) as of times, and their own times, -1 where there is none.

        `batch`: has the key columns, row by row.
        """
        ...


def lookup_of(wiring: Wiring, name: str) -> Lookup:
    """Return how rows of a table are looked up."""
    node = wiring.node(name)
    if isinstance(node, g.Suppress):
        return HeldRows(node, lookup_of(wiring, node.inputs[0]))
    if g.store_of(node) is not None:
        return KeptRows(node)
    if isinstance(node, g.Filter | g.Project):
        return ViewRows(node, lookup_of(wiring, node.inputs[0]))
    assert isinstance(node, g.TableJoin), f"{name} is not a table that can be looked up"
    return JoinedRows(node, *(lookup_of(wiring, source) for source in node.inputs))


def stores_behind(wiring: Wiring, name: str) -> frozenset[str]:
    """Return the stores that a lookup of a table reads."""
    node = wiring.node(name)
    own = g.store_of(node)
    if own is not None:
        return frozenset({own})
    below = frozenset[str]().union(*(stores_behind(wiring, source) for source in node.inputs))
    return below | {node.store} if isinstance(node, g.Suppress) else below


def reads_key(wiring: Wiring, name: str) -> bool:
    """Return whether a lookup of a table computes with key columns."""
    node = wiring.node(name)
    if g.store_of(node) is not None:
        return False
    exprs = [node.predicate] if isinstance(node, g.Filter) else [x for _, x in getattr(node, "columns", ())]
    return any(side is Side.KEY for x in exprs for side, _ in columns_used(x)) or any(
        reads_key(wiring, source) for source in node.inputs
    )


class KeptRows:
    """Of a table that is kept in a store."""

    def __init__(self, node: g.Node) -> None:
        self.schema, self._store = node.schema, g.store_of(node) or ""
        self._is_versioned = is_versioned(node)
        self._history_ms = getattr(node, "history_ms", None) or 0
        has_states = isinstance(node, g.Aggregate | g.TableAggregate)
        self._result = results_of(node.aggregations) if has_states else None  # type: ignore[attr-defined]
        self._is_session = isinstance(node, g.Aggregate) and isinstance(node.window, g.SessionWindow)

    def find(
        self, task: Task, keys: Sequence[bytes | None], batch: Batch, *, as_of: Sequence[int] | None = None
    ) -> tuple[Rows, I64]:
        store, fields = task.store(self._store), self.schema.value
        places = [None if key is None else session_place(key) for key in keys] if self._is_session else keys
        states, times = states_and_times(entries_of(store, places))
        if self._is_session:
            starts = [None if key is None else WINDOW_START.unpack_from(key, len(key) - 8)[0] for key in keys]
            pairs = zip(states, starts, strict=True)
            states = [None if state is None or state[0] != start else state[1:] for state, start in pairs]
        if self._is_versioned:
            oldest = store.stream_time_ms - self._history_ms
            wanted: Sequence[int | None] = [None] * len(keys) if as_of is None else as_of
            found = [version_at(state, at, oldest) for state, at in zip(states, wanted, strict=True)]
            states = [None if v is None else v[1] for v in found]
            times = np.fromiter([-1 if v is None else v[0] for v in found], np.int64, len(found))
        elif self._result is not None:
            states = [None if state is None else self._result(state) for state in states]
        return Rows.of_states(states, fields), times


def session_place(key: bytes) -> bytes:
    """Return the key in its store of the session that an edge's key names: the record key and the session's end."""
    return key[: -SESSION_BOUNDS.size] + key[-SESSION_BOUNDS.size : -WINDOW_START.size]


class ViewRows:
    """Of a filtered or mapped table that is not kept: computed when they are looked up."""

    def __init__(self, node: g.Filter | g.Project, parent: Lookup) -> None:
        self.schema, self._node, self._parent = node.schema, node, parent
        if isinstance(node, g.Filter):
            self._test: Evaluation | None = Evaluation(node.predicate, is_truth=True)
        else:
            self._test, self._columns = None, evaluations(node.columns, is_on_table=True)

    def find(
        self, task: Task, keys: Sequence[bytes | None], batch: Batch, *, as_of: Sequence[int] | None = None
    ) -> tuple[Rows, I64]:
        found, times = self._parent.find(task, keys, batch, as_of=as_of)
        rows = replace(as_rows_of(self._parent.schema, batch, found), times=times)
        errors = Errors(task, self._node, rows)
        if self._test is not None:
            gone = ~self._test.truth(rows, errors.of(self._test))
            return (found if not gone.any() else Rows({c: emptied(x, gone) for c, x in found.columns.items()}, gone)), times
        values, nulls = computed(errors, self._node, self._columns, rows)
        if nulls is not None and found.gone is not None:
            nulls = nulls | found.gone
        return Rows(values, found.gone if nulls is None else nulls), times


class JoinedRows:
    """Of a join of tables that is not kept."""

    def __init__(self, node: g.TableJoin, left: Lookup, right: Lookup) -> None:
        self.schema, self._node, self._left, self._right = node.schema, node, left, right
        self._joiner = Joiner(node, evaluations(node.columns, is_on_table=False), left.schema, right.schema)

    def find(
        self, task: Task, keys: Sequence[bytes | None], batch: Batch, *, as_of: Sequence[int] | None = None
    ) -> tuple[Rows, I64]:
        left, left_times = self._left.find(task, keys, batch)
        right, right_times = self._right.find(task, keys, batch)
        needed = has_result(self._node.join, left.there(len(batch)), right.there(len(batch)))
        found = self._joiner.before(task, batch, left, right, needed=needed)
        return Rows(found.columns, found.nulls), np.maximum(left_times, right_times)


def as_rows_of(schema: g.Schema, batch: Batch, found: Rows) -> Batch:
    """Return rows that were found for a batch as those of their table, with its names for the keys."""
    columns = {c: x for c, x in batch.columns.items() if c[0] is Side.KEY}
    for ours, theirs in zip(batch.schema.key, schema.key, strict=True):
        if (Side.KEY, ours.name) in batch.columns:
            columns[Side.KEY, theirs.name] = batch.columns[Side.KEY, ours.name]
    return replace(batch, schema=schema, columns=columns | dict(found.columns), nulls=found.gone, old=None)


def has_result(kind: g.JoinKind, left: Mask, right: Mask) -> Mask:
    """Return whether a join of two rows has a result, by whether there is a left one and a right one."""
    if kind is g.JoinKind.INNER:
        return left & right
    return left | right if kind is g.JoinKind.OUTER else left


class HeldRows:
    """Behind a suppress: the row before the change that is held back, else the table's."""

    def __init__(self, node: g.Suppress, parent: Lookup) -> None:
        self.schema, self._store, self._parent = node.schema, node.store, parent

    def find(
        self, task: Task, keys: Sequence[bytes | None], batch: Batch, *, as_of: Sequence[int] | None = None
    ) -> tuple[Rows, I64]:
        rows, times = self._parent.find(task, keys, batch)
        held = entries_of(task.store(self._store), keys)
        if not any(held):
            return rows, times
        states, times = rows.states(self.schema.value, len(keys)), times.copy()
        for row, entry in enumerate(held):
            if entry is not None and entry.state is not None:
                states[row], times[row] = before_of(entry.state), -1
        return Rows.of_states(states, self.schema.value), times
