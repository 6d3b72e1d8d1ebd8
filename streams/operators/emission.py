"""Rows that an operator makes one by one, as a batch: for operators whose results are not those of functions over columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from logflume.log.records import I64, Headers
from logflume.log.schemas import Column as Field

from .. import graph as g
from ..columns import Batch, Bytes, Column, Old
from ..columns.batch import ColumnId
from ..columns.column import emptied, spread
from ..columns.decode import KeyDecoder
from ..columns.evaluate import Evaluation
from ..expr import TABLE_PREFIX, WHOLE, Expr, Meta, Side, columns_used
from ..seams import State, StateStore
from ..vectors.expressions import Mask
from ..windows import key_suffix_bytes
from .operator import Errors, Task, Wiring
from .project import computed
from .rows import LATEST_COLUMN, Rows, keep_rows, nulls_of, state_columns

_OWN = (WHOLE, Meta.ROWTIME, Meta.WINDOWSTART, Meta.WINDOWEND, LATEST_COLUMN[1])
"""Columns beside the value that the rows behind an operator have of their own: the whole key has the window in it."""


@dataclass(slots=True)
class Emitted:
    """R result rows in order. `rows`: which row of the batch at hand caused each (not looked at without one); `values` and
    `olds`: tuples aligned with the schema's value columns, None for null."""

    rows: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    values: list[State | None] = field(default_factory=list)
    olds: list[State | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, row: int, key: bytes | None, time: int, value: State | None, old: State | None = None) -> None:
        self.rows.append(row)
        self.keys.append(key)
        self.times.append(time)
        self.values.append(value)
        self.olds.append(old)

    def add_all(
        self, row: int, keys: Sequence[bytes], times: Sequence[int], values: Sequence[State | None], olds: Sequence[State | None]
    ) -> None:
        """Add results that one row caused."""
        self.rows += [row] * len(keys)
        self.keys += keys
        self.times += times
        self.values += values
        self.olds += olds

    def without_rows(self, rows: Set[int]) -> Emitted:
        """Return the results that other rows of the batch caused."""
        kept = [place for place, row in enumerate(self.rows) if row not in rows]
        lists = (self.rows, self.keys, self.times, self.values, self.olds)
        return Emitted(*([each[place] for place in kept] for each in lists))  # type: ignore[arg-type]


class Emission:
    """Makes batches of a node's results, and forwards them.

    `keeps_keys`: a result has the key of the row that caused it; `computes`: what the node computes of a shell's columns.
    """

    def __init__(
        self, node: g.Node, wiring: Wiring, *, keeps_keys: bool, computes: Sequence[tuple[str, Expr]] = ()
    ) -> None:  # fmt: skip
        self.node, self.wants_old, self._keeps_keys = node, node.name in wiring.wants_old, keeps_keys
        self._decoder = key_decoder(node, wiring, set[ColumnId]().union(*(columns_used(x) for _, x in computes)))
        self.has_consumers = bool(wiring.children[node.name])
        self._columns = [(column.name, column.type.kind) for column in node.schema.value]

    def shell(self, emitted: Emitted, causing: Batch | None) -> Batch:
        """Return the results without their values."""
        times = np.array(emitted.times, np.int64)
        return self.shell_of(np.array(emitted.rows, np.int64), Bytes.of_objects(emitted.keys), times, causing)

    def shell_of(self, rows: I64, keys: Bytes | None, times: I64, causing: Batch | None) -> Batch:
        """Return results without their values; `keys` None: those of the rows that cause them."""
        if causing is None:
            batch = Batch(self.node.schema, times, keys, {})
        else:
            after = causing.expand(rows, places_of(rows))
            columns = {c: x for c, x in after.columns.items() if c[0] is not Side.VALUE and c[1] not in _OWN}
            batch = replace(
                after, schema=self.node.schema, times=times, keys=after.keys if keys is None else keys, columns=columns,
                nulls=None, old=None,
            )  # fmt: skip
            if self._keeps_keys:
                return _named_keys(batch, causing.schema.key)
        assert batch.keys is not None
        found, _ = self._decoder.decode(batch.keys, batch.memory, _never)
        batch.columns |= found
        return batch

    def forward(
        self,
        task: Task,
        emitted: Emitted,
        causing: Batch | None,
        *,
        errors: Errors | None = None,
        headers: Sequence[Headers] | None = None,
    ) -> None:
        """Forward results to all consumers, if there are any; those of rows that failed are left out.

        `headers`: of each result; None: those of the row that caused it.
        """
        assert errors is None or headers is None, "headers are those of all results"
        if errors is not None and errors.failed:
            emitted = emitted.without_rows(errors.failed)
        if len(emitted) and self.has_consumers:
            batch = self.filled(self.shell(emitted, causing), emitted)
            if headers is not None:
                batch.set_headers(headers)
            task.forward(self.node.name, batch)

    def forward_each(
        self, task: Task, emitted: Emitted, causing: Batch, puts: Sequence[Callable[[], None]], *, errors: Errors
    ) -> None:  # fmt: skip
        """Put the entry of each result of one row and forward that result before the next entry is put; see `forward`."""
        batch = None if errors.failed or not self.has_consumers else self.filled(self.shell(emitted, causing), emitted)
        for place, put in enumerate(puts):
            put()
            if batch is not None:
                task.forward(self.node.name, batch.take(np.array([place])))

    def put_out(self, task: Task, store: StateStore | None, rows: Batch) -> None:
        """Keep rows, where the node has a store, and forward them to all consumers."""
        if store is not None:
            rows.old = keep_rows(task, store, rows, wants_old=self.wants_old)
        if len(rows) and self.has_consumers:
            task.forward(self.node.name, rows)

    def filled(self, batch: Batch, emitted: Emitted, failed: Set[int] = frozenset()) -> Batch:
        """Return a shell with its values, without the results that failed."""
        batch.columns |= state_columns(emitted.values, self._columns)
        batch.nulls = nulls_of(emitted.values)
        if self.wants_old:
            gone = nulls_of(emitted.olds)
            batch.old = Old(state_columns(emitted.olds, self._columns), np.zeros(len(batch), np.bool_) if gone is None else gone)
        return batch.take(np.array([row for row in range(len(batch)) if row not in failed], np.int64)) if failed else batch


def key_decoder(node: g.Node, wiring: Wiring, more: Set[ColumnId] = frozenset()) -> KeyDecoder:
    """Return what decodes the keys of a node's results, as far as a consumer reads them, and what of `more` is in them."""
    raw, needs = wiring.raw_keys[node.name], wiring.needs[node.name] | more
    assert raw is not None, "a change of key is followed by a repartition"
    is_whole = (Side.KEY, WHOLE) in needs
    names = frozenset(column.name for column in raw[1] if is_whole or (Side.KEY, column.name) in needs)
    return KeyDecoder(*raw, names, suffix_bytes=key_suffix_bytes(node.schema.window))


def _named_keys(batch: Batch, names: Sequence[Field]) -> Batch:
    """Give the key columns of the record that caused a result the names they have behind the node."""
    for theirs, ours in zip(names, batch.schema.key, strict=True):
        column = batch.columns.get((Side.KEY, theirs.name))
        if theirs.name != ours.name and column is not None:
            batch.columns[Side.KEY, ours.name] = column
    return batch


def _never(row: int, error: Exception) -> None:
    raise AssertionError(f"the key of an entry was decoded before: {error}")


def places_of(rows: Any) -> Any:
    """Return the place of each of several results of one row, of rows that never fall."""
    return np.arange(len(rows)) - np.searchsorted(rows, rows)


def rows_of(batch: Batch, columns: Sequence[Field]) -> list[State | None]:
    """Return the values of a batch as tuples, None for null."""
    return Rows.of(batch).states(columns, len(batch))


def olds_of(batch: Batch, columns: Sequence[Field]) -> list[State | None]:
    """Return the rows before the changes of a batch as tuples, None where there was none or nobody asked."""
    before = Rows.before(batch)
    return [None] * len(batch) if before is None else before.states(columns, len(batch))


class Joiner:
    """The columns of a join, over pairs of a left and a right row, either of which may be missing."""

    def __init__(self, node: g.Node, columns: Sequence[tuple[str, Evaluation]], left: g.Schema, right: g.Schema) -> None:
        self._node, self._columns, self._left, self._right = node, columns, left, right
        self._used = {column for _, each in columns for column in each.used}

    def joined(
        self, task: Task, shell: Batch, left: Rows, right: Rows, *, needed: Mask | None = None, old: Old | None = None
    ) -> Batch:
        """Return the rows of a shell with the joined values, without those for which a plain callable raised.

        `needed`: which rows have a result, the others are null; None: all. `old`: what they were before, if that is known.
        """
        found, failed = self._all(task, shell, left, right, needed, is_silent=False)
        found.old = old
        return found if not len(failed) else found.take(np.delete(np.arange(len(found)), failed))

    def before(self, task: Task, shell: Batch, left: Rows, right: Rows, *, needed: Mask) -> Old:
        """Return what the joined rows were before a change."""
        found, _ = self._all(task, shell, left, right, needed, is_silent=True)
        return Old(found.values(), ~Rows.of(found).there(len(found)))

    def _all(
        self, task: Task, shell: Batch, left: Rows, right: Rows, needed: Mask | None, *, is_silent: bool
    ) -> tuple[Batch, I64]:  # fmt: skip
        """Return the rows with the joined values, and those for which a plain callable raised."""
        if needed is None or needed.all():
            return self._evaluated(task, shell, left, right, is_silent=is_silent)
        rows = np.flatnonzero(needed)
        found, failed = self._evaluated(task, shell.take(rows), left.take(rows), right.take(rows), is_silent=is_silent)
        gone = ~needed
        if found.nulls is not None:
            gone[rows] = found.nulls
        columns = {c: spread(column, rows, len(shell)) for c, column in found.values().items()}
        return shell.with_values(self._node.schema, columns, nulls=gone, old=None), rows[failed]

    def _evaluated(self, task: Task, shell: Batch, left: Rows, right: Rows, *, is_silent: bool) -> tuple[Batch, I64]:
        columns: dict[ColumnId, Column] = {c: x for c, x in shell.columns.items() if c[0] is not Side.VALUE}
        for schema, rows, prefix in ((self._left, left, ""), (self._right, right, TABLE_PREFIX)):
            # what is computed from the key has a value where the row is gone
            columns |= {(Side.VALUE, prefix + name): emptied(column, rows.gone) for (_, name), column in rows.columns.items()}
            if (Side.VALUE, prefix + WHOLE) in self._used:
                own = Batch(schema, shell.times, None, dict(rows.columns), nulls=rows.gone)
                columns[Side.VALUE, prefix + WHOLE] = own.column(Side.VALUE, WHOLE)
        both = replace(shell, schema=self._left, columns=columns, nulls=None, old=None)
        errors = Errors(task, self._node, both, is_silent=is_silent)
        values, nulls = computed(errors, self._node, self._columns, both)
        return shell.with_values(self._node.schema, values, nulls=nulls, old=None), np.array(sorted(errors.failed), np.int64)
