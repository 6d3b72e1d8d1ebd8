"""Rows that an operator makes one by one, as a batch: for operators whose results are not those of functions over columns."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from logflume.log.records import I64
from logflume.log.schemas import Column as Field

from .. import graph as g
from ..columns import Batch, Bytes, Column, Old
from ..columns.batch import ColumnId
from ..columns.decode import KeyDecoder
from ..columns.evaluate import Evaluation
from ..expr import TABLE_PREFIX, WHOLE, Expr, Meta, Side, columns_used
from ..seams import State
from ..windows import key_suffix_bytes
from .operator import Errors, Task, Wiring
from .project import computed
from .rows import Rows, state_columns

LATEST = "LATEST"
"""META column behind a versioned table: whether a change is of the latest version of its key. Absent: all are."""

_OWN = (WHOLE, Meta.ROWTIME, Meta.WINDOWSTART, Meta.WINDOWEND, LATEST)
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

    def forward(self, task: Task, emitted: Emitted, causing: Batch | None, *, errors: Errors | None = None) -> None:
        """Forward results to all consumers, if there are any; those of rows that failed are left out."""
        if errors is not None and errors.failed:
            emitted = emitted.without_rows(errors.failed)
        if len(emitted) and self.has_consumers:
            task.forward(self.node.name, self.filled(self.shell(emitted, causing), emitted))

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


def nulls_of(values: Sequence[State | None]) -> Any:
    """Return where values are None; None: nowhere."""
    return np.fromiter([value is None for value in values], np.bool_, len(values)) if None in values else None


def rows_of(batch: Batch, columns: Sequence[Field]) -> list[State | None]:
    """Return the values of a batch as tuples, None for null."""
    lists = [batch.column(Side.VALUE, column.name).objects() for column in columns]
    states: list[State | None] = list(zip(*lists, strict=True)) if lists else [()] * len(batch)
    if batch.nulls is not None:
        states = [None if null else state for state, null in zip(states, batch.nulls.tolist(), strict=True)]
    return states


def olds_of(batch: Batch, columns: Sequence[Field]) -> list[State | None]:
    """Return the rows before the changes of a batch as tuples, None where there was none or nobody asked."""
    return [None] * len(batch) if batch.old is None else rows_of(batch.before(), columns)


class Joiner:
    """The columns of a join, over pairs of a left and a right row, either of which may be missing."""

    def __init__(self, node: g.Node, columns: Sequence[tuple[str, Evaluation]], left: g.Schema, right: g.Schema) -> None:
        self._node, self._columns, self._left, self._right = node, columns, left, right
        self._used = {column for _, each in columns for column in each.used}
        self.failed: set[int] = set()
        """The rows of the last call for which a plain callable raised: they go no further."""

    def values(
        self,
        task: Task,
        shell: Batch,
        lefts: Sequence[State | None],
        rights: Sequence[State | None],
        *,
        is_needed: Sequence[bool],
    ) -> list[State | None]:
        """Return the joined values of the rows of a shell, None where they are not needed (and where a bare one is null)."""
        self.failed = set()
        if not all(is_needed):
            rows = [row for row, needed in enumerate(is_needed) if needed]
            part = shell.take(np.array(rows, np.int64))
            found = self.values(
                task, part, [lefts[r] for r in rows], [rights[r] for r in rows], is_needed=[True] * len(rows)
            )  # fmt: skip
            self.failed = {rows[place] for place in self.failed}
            made: list[State | None] = [None] * len(shell)
            for row, value in zip(rows, found, strict=True):
                made[row] = value
            return made
        batch, errors = self._evaluated(task, shell, _as_rows(self._left, lefts), _as_rows(self._right, rights))
        self.failed = set(errors.failed)
        return rows_of(batch, self._node.schema.value)

    def joined(self, task: Task, shell: Batch, left: Rows, right: Rows) -> Batch:
        """Return the rows of a shell with the joined values, without those for which a plain callable raised."""
        batch, errors = self._evaluated(task, shell, left, right)
        return errors.left(batch)

    def _evaluated(self, task: Task, shell: Batch, left: Rows, right: Rows) -> tuple[Batch, Errors]:
        columns: dict[ColumnId, Column] = {c: x for c, x in shell.columns.items() if c[0] is not Side.VALUE}
        for schema, rows, prefix in ((self._left, left, ""), (self._right, right, TABLE_PREFIX)):
            columns |= {(Side.VALUE, prefix + name): column for (_, name), column in rows.columns.items()}
            if (Side.VALUE, prefix + WHOLE) in self._used:
                own = Batch(schema, shell.times, None, rows.columns, nulls=rows.gone)
                columns[Side.VALUE, prefix + WHOLE] = own.column(Side.VALUE, WHOLE)
        both = replace(shell, schema=self._left, columns=columns, nulls=None, old=None)
        errors = Errors(task, self._node, both)
        values, nulls = computed(errors, self._node, self._columns, both)
        return shell.with_values(self._node.schema, values, nulls=nulls, old=None), errors


def _as_rows(schema: g.Schema, states: Sequence[State | None]) -> Rows:
    """Return rows given as tuples, None where there is none."""
    return Rows(state_columns(list(states), [(column.name, column.type.kind) for column in schema.value]), nulls_of(states))
