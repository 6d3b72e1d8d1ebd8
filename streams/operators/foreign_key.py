"""Foreign-key joins of tables: the left side asks for the row that it names, the right side answers, at each change again.

Questions go through a topic by foreign key, answers through one by left key. A left row may have changed while its answer was on
the way: an answer carries a hash of the row that asked, and one to another row is forgotten (KIP-213).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np

from logflume.log.schemas import BYTES, Kind
from logflume.log.schemas import Column as Field

from .. import graph as g
from ..columns import Batch, Column
from ..columns.batch import ColumnId
from ..columns.evaluate import evaluations
from ..expr import Side, columns_used
from ..seams import State, StateStore, StoreSpec
from ..state.values import to_wire
from ..windows import store_window
from .emission import Emission, Emitted, Joiner, places_of, rows_of
from .lookups import lookup_of, stores_behind
from .operator import Bind, Operator, RawKey, Task, Wiring, Work
from .rows import put_entry, state_columns
from .to_table import keyed_rows
from .versions import without_earlier

FORGET, DROP, ANSWER, ANSWER_IF_THERE = 1, 2, 3, 4
_LENGTH_BYTES = 4


_PLAIN_KINDS = frozenset((Kind.BOOLEAN, Kind.INTEGER, Kind.BIGINT, Kind.STRING, Kind.BYTES))
_encode = msgspec.msgpack.Encoder().encode


def hasher(columns: Sequence[Field]) -> Callable[[State | None], bytes | None]:
    """Return the function from a row to what stands for it, None for none: equal for rows of equal values."""
    kinds = [column.type.kind for column in columns]
    is_plain = _PLAIN_KINDS.issuperset(kinds)

    def row_hash(row: State | None) -> bytes | None:
        if row is None:
            return None
        if is_plain:
            try:
                return blake2b(_encode(row), digest_size=16).digest()
            except OverflowError:  # a callable's number of more than 64 bits
                pass
        values = [float(v) if kind is Kind.DOUBLE and v is not None else v for v, kind in zip(row, kinds, strict=True)]
        return blake2b(_encode([to_wire(value) for value in values]), digest_size=16).digest()

    return row_hash


class SubscribeOperator(Operator[g.Subscribe]):
    """A Subscribe: what a change of the left table asks of the right one."""

    node_class = g.Subscribe

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        used = set[ColumnId]().union(*(columns_used(x) for _, x in self.node.key))
        return used | {(Side.VALUE, column.name) for column in source.schema.value}

    def raw_key(self, inputs: Sequence[RawKey | None]) -> RawKey | None:
        return None

    def wants_old(self, *, is_asked: bool) -> bool:
        return True

    def plan(self, wiring: Wiring) -> Bind:
        return lambda task: SubscribeWork(self.node, wiring.schema(self.node.inputs[0]), task)


class SubscribeWork(Work):
    """See `SubscribeOperator`."""

    def __init__(self, node: g.Subscribe, left: g.Schema, task: Task) -> None:
        self._node, self._left, self._task = node, left, task
        self._key = evaluations(node.key, is_on_table=True)
        self._hash = hasher(left.value)

    def process(self, batch: Batch, source: str) -> None:
        batch = without_earlier(keyed_rows(self._task, self._node.name, batch))
        if not len(batch):
            return
        assert batch.keys is not None
        assert batch.old is not None, "the left table of a foreign-key join knows its rows before"
        news = self._foreign(batch)
        olds = self._foreign(batch.before())
        rows: list[int] = []
        foreign: list[State | None] = []
        values: list[State] = []
        lefts = rows_of(batch, self._left.value)
        was_there = (~batch.old.nulls).tolist()
        for row, (key, left, new, old, was) in enumerate(zip(batch.keys.objects(), lefts, news, olds, was_there, strict=True)):
            mark = self._hash(left)
            for what, to in self._questions(new, old, is_any=left is not None or was):
                rows.append(row)
                foreign.append(to)
                values.append((what, key, mark))
        if rows:
            self._forward(batch, np.array(rows, np.int64), foreign, values)

    def _foreign(self, batch: Batch) -> list[State | None]:
        """Return the foreign key of each row, None where it, or the row, is null."""
        report = self._task.reporter(self._node.name, batch)
        found = list(zip(*(each.column(batch, report).objects() for _, each in self._key), strict=True))
        gone = [False] * len(batch) if batch.nulls is None else batch.nulls.tolist()
        return [None if null or None in key else key for key, null in zip(found, gone, strict=True)]

    def _questions(self, new: State | None, old: State | None, *, is_any: bool) -> list[tuple[int, State | None]]:
        if self._node.join is g.JoinKind.LEFT:
            if not is_any:
                return []
            return [(FORGET, old)] * (old is not None and old != new) + [(ANSWER, new)]
        if new is None:
            return [] if old is None else [(DROP, old)]
        if old is None or old == new:
            return [(ANSWER_IF_THERE, new)]
        return [(FORGET, old), (ANSWER, new)]

    def _forward(self, batch: Batch, rows: Any, foreign: list[State | None], values: list[State]) -> None:
        schema = self._node.schema
        after = batch.expand(rows, places_of(rows))
        keys = state_columns(list(foreign), [(c.name, c.type.kind) for c in schema.key])
        columns: dict[ColumnId, Column] = {(Side.KEY, name): column for (_, name), column in keys.items()}
        columns |= state_columns(list(values), [(c.name, c.type.kind) for c in schema.value])
        self._task.forward(self._node.name, replace(after, schema=schema, keys=None, columns=columns, nulls=None, old=None))


class AnswerOperator(Operator[g.Answer]):
    """An Answer: keeps who asked, and answers with the right row."""

    node_class = g.Answer

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        return {(Side.VALUE, c.name) for c in source.schema.value} | {(Side.KEY, c.name) for c in source.schema.key}

    def stores(self) -> tuple[StoreSpec, ...]:
        return (StoreSpec(self.node.store, (Field("key", BYTES),), (Field("row", BYTES),)),)

    def looks_up(self, source: str, wiring: Wiring) -> frozenset[str]:
        questions, right = self.node.inputs
        return stores_behind(wiring, right) if source == questions else frozenset()

    def raw_key(self, inputs: Sequence[RawKey | None]) -> RawKey | None:
        return self.node.key_format, self.node.schema.key

    def wants_old(self, *, is_asked: bool) -> bool:
        return True

    def plan(self, wiring: Wiring) -> Bind:
        return lambda task: AnswerWork(self.node, wiring, task)


class AnswerWork(Work):
    """See `AnswerOperator`."""

    def __init__(self, node: g.Answer, wiring: Wiring, task: Task) -> None:
        self._node, self._task = node, task
        self._right = wiring.schema(node.inputs[1])
        self._lookup = lookup_of(wiring, node.inputs[1])
        self._emission = Emission(node, wiring, keeps_keys=False)
        self._subscribers = Subscribers(task.store(node.store))
        self._nothing = (None,) * len(self._right.value)

    def process(self, batch: Batch, source: str) -> None:
        if source == self._node.inputs[0]:
            self._take_questions(batch)
        else:
            self._take_changes(without_earlier(keyed_rows(self._task, self._node.name, batch)))

    def _take_questions(self, batch: Batch) -> None:
        assert batch.keys is not None
        keys = batch.keys.objects()
        rights, right_times = self._lookup.find(self._task, keys, batch)
        emitted = Emitted()
        questions = rows_of(batch, g.SUBSCRIPTION)
        for row, (foreign, question, right, right_time, time) in enumerate(
            zip(keys, questions, rights, right_times, batch.times.tolist(), strict=True)
        ):
            if question is None:
                continue
            what, left, mark = question
            if foreign is not None:
                self._subscribers.put(foreign, left, None if what in (FORGET, DROP) else (mark,), time)
            if what == FORGET or (what == ANSWER_IF_THERE and right is None):
                continue
            at = time if right is None else max(time, right_time)
            self._answer(emitted, row, left, at, mark, None if what == DROP else right)
        self._emission.forward(self._task, emitted, batch)

    def _take_changes(self, batch: Batch) -> None:
        assert batch.keys is not None
        emitted = Emitted()
        rights = rows_of(batch, self._right.value)
        keys: list[Any] = batch.keys.objects()
        for row, (foreign, right, time) in enumerate(zip(keys, rights, batch.times.tolist(), strict=True)):
            for left, state in self._subscribers.of(foreign):
                self._answer(emitted, row, left, time, state[0], right)
        self._emission.forward(self._task, emitted, batch)

    def _answer(self, emitted: Emitted, row: int, left: bytes, time: int, mark: bytes | None, right: State | None) -> None:
        emitted.add(row, left, time, (mark, right is not None, *(self._nothing if right is None else right)))


class Subscribers:
    """Who asked for the row of a key: entries by (foreign key with its length, left key), found through an index in memory.

    The index of a foreign key is read from the store when it is first asked for.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._of: dict[bytes, list[bytes]] = {}
        self._is_fresh = next(iter(store.range(b"", None)), None) is None

    def _keys(self, foreign: bytes) -> list[bytes]:
        found = self._of.get(foreign)
        if found is None:
            prefix = _prefix(foreign)
            stored = () if self._is_fresh else self._store.range(prefix, _after(prefix))
            found = self._of[foreign] = [key[len(prefix) :] for key, _ in stored]
        return found

    def put(self, foreign: bytes, left: bytes, state: State | None, time: int) -> None:
        """Set or (None) delete a subscription."""
        keys, place = self._keys(foreign), _prefix(foreign) + left
        at = bisect_left(keys, left)
        is_there = at < len(keys) and keys[at] == left
        if state is None and not is_there:
            return
        if state is None:
            del keys[at]
        elif not is_there:
            keys.insert(at, left)
        if not self._store.is_resident:
            self._store.load([place])
        put_entry(self._store, place, state, time)

    def of(self, foreign: bytes) -> list[tuple[bytes, State]]:
        """Return the subscriptions of a foreign key, in order of their left keys."""
        keys, prefix = self._keys(foreign), _prefix(foreign)
        if not keys:
            return []
        self._store.load([prefix + key for key in keys])
        found = []
        for key in keys:
            entry = self._store.resident[prefix + key]
            assert entry.state is not None, "the index shows what is in the store"
            found.append((key, entry.state))
        return found


def _prefix(foreign: bytes) -> bytes:
    return len(foreign).to_bytes(_LENGTH_BYTES, "big") + foreign


def _after(prefix: bytes) -> bytes | None:
    """Return the first key behind all those with a prefix."""
    number = int.from_bytes(prefix, "big") + 1
    return None if number >> (8 * len(prefix)) else number.to_bytes(len(prefix), "big")


class ResolveOperator(Operator[g.Resolve]):
    """A Resolve: answers become rows, if the left row is still the one that asked."""

    node_class = g.Resolve

    def takes(self, source: str) -> bool:
        return source == self.node.inputs[0]

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        return {(Side.VALUE, c.name) for c in source.schema.value} | {(Side.KEY, c.name) for c in source.schema.key}

    def keeps(self) -> set[ColumnId]:
        return set() if self.node.store is None else {(Side.VALUE, column.name) for column in self.node.schema.value}

    def stores(self) -> tuple[StoreSpec, ...]:
        node = self.node
        return (
            ()
            if node.store is None
            else (StoreSpec(node.store, node.schema.key, node.schema.value, store_window(node.schema.window)),)
        )

    def looks_up(self, source: str, wiring: Wiring) -> frozenset[str]:
        return stores_behind(wiring, self.node.inputs[1])

    def raw_key(self, inputs: Sequence[RawKey | None]) -> RawKey | None:
        return inputs[0]

    def wants_old(self, *, is_asked: bool) -> bool:
        return False

    def plan(self, wiring: Wiring) -> Bind:
        return lambda task: ResolveWork(self.node, wiring, task)


class ResolveWork(Work):
    """See `ResolveOperator`."""

    def __init__(self, node: g.Resolve, wiring: Wiring, task: Task) -> None:
        self._node, self._task = node, task
        answers, left = node.inputs
        self._left, self._answers = wiring.schema(left), wiring.schema(answers)
        self._lookup = lookup_of(wiring, left)
        self._joiner = Joiner(node, evaluations(node.columns, is_on_table=False), self._left, right_schema(node, self._answers))
        self._emission = Emission(node, wiring, keeps_keys=True, computes=node.columns)
        self._store = None if node.store is None else task.store(node.store)
        self._columns = tuple(Field(c.name, c.type) for c in self._answers.value)
        self._hash = hasher(self._left.value)

    def process(self, batch: Batch, source: str) -> None:
        assert batch.keys is not None
        keys: list[Any] = batch.keys.objects()
        lefts, _ = self._lookup.find(self._task, keys, batch)
        emitted = Emitted()
        rights: list[State | None] = []
        kept: list[State | None] = []
        for row, (key, left, answer, time) in enumerate(
            zip(keys, lefts, rows_of(batch, self._columns), batch.times.tolist(), strict=True)
        ):
            assert answer is not None
            mark, is_found, *right = answer
            if self._hash(left) != mark:
                continue
            emitted.add(row, key, time, None)
            kept.append(left)
            rights.append(tuple(right) if is_found else None)
        if not len(emitted):
            return
        is_inner = self._node.join is g.JoinKind.INNER
        needed = [left is not None and (right is not None or not is_inner) for left, right in zip(kept, rights, strict=True)]
        shell = self._emission.shell(emitted, batch)
        emitted.values = self._joiner.values(self._task, shell, kept, rights, is_needed=needed)
        failed = self._joiner.failed
        if self._store is not None:
            self._keep(self._store, emitted, failed)
        if self._emission.has_consumers:
            self._task.forward(self._node.name, self._emission.filled(shell, emitted, failed))

    def _keep(self, store: StateStore, emitted: Emitted, failed: Set[int]) -> None:
        keys: list[Any] = emitted.keys
        store.load(keys)
        emitted.olds = []
        for place, (key, value, time) in enumerate(zip(keys, emitted.values, emitted.times, strict=True)):
            entry = store.resident.get(key)
            emitted.olds.append(None if entry is None else entry.state)
            if place not in failed:
                put_entry(store, key, value, time)


def right_schema(node: g.Resolve, answers: g.Schema) -> g.Schema:
    """Return the schema of the right rows that answers carry."""
    columns = answers.value[len(g.ANSWER) :]
    return g.Schema((), tuple(Field(c.name.removeprefix("right:"), c.type) for c in columns), value_class=node.right_class)
