"""Foreign-key joins of tables: the left side asks for the row that it names, the right side answers, at each change again.

Questions go through a topic by foreign key, answers through one by left key. A left row may have changed while its answer was on
the way: an answer carries a hash of the row that asked, and one to another row is forgotten (KIP-213). In an inner join all left
rows that name nobody stand for the same: from one to the next of them nothing is asked, which could take back a result.

Any other question of an inner join is answered too, with nothing where there is no row: what came before it may be answered too
late to count. Which left rows have a result is known, so that where none is to be taken back nothing is put out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from operator import eq
from typing import Any

import msgspec
import numpy as np

from logflume.log.records import I64
from logflume.log.schemas import BYTES, Kind
from logflume.log.schemas import Column as Field

from .. import graph as g
from ..columns import Batch, Bytes, Column
from ..columns.batch import ColumnId
from ..columns.column import emptied
from ..columns.evaluate import evaluations
from ..expr import Side, columns_used
from ..seams import State, StateStore, StoreSpec
from ..state.values import is_plain, to_wire
from ..vectors.expressions import Mask, Vector
from ..windows import store_window
from .emission import Emission, Joiner, places_of, rows_of
from .lookups import as_rows_of, lookup_of, stores_behind
from .operator import Bind, Cut, Errors, Operator, RawKey, Task, Wiring, Work
from .rekey import NewKeys, in_turn
from .rows import Rows, drop_entry, entries_of, put_entries, put_entry
from .to_table import keyed_rows
from .versions import without_earlier

FORGET, DROP, ANSWER, ANSWER_QUIETLY = 1, 2, 3, 4
_LENGTH_BYTES = 4


_PLAIN_KINDS = frozenset((Kind.BOOLEAN, Kind.INTEGER, Kind.BIGINT, Kind.STRING, Kind.BYTES))
_FLOATS = frozenset((float, type(None)))
_encode = msgspec.msgpack.Encoder().encode


def hasher(columns: Sequence[Field]) -> Callable[[Sequence[State | None]], list[bytes | None]]:
    """Return the function from rows to what stands for each, None for none: equal for rows of equal values."""
    kinds = [column.type.kind for column in columns]

    def digest(row: Sequence[Any]) -> bytes:
        return blake2b(_encode(row), digest_size=16).digest()

    def exact(row: State) -> bytes:
        values = [float(v) if kind is Kind.DOUBLE and v is not None else v for v, kind in zip(row, kinds, strict=True)]
        return digest([to_wire(value) for value in values])

    def is_written_as_is(rows: Sequence[State | None]) -> bool:
        living = [row for row in rows if row is not None]
        return all(
            kind in _PLAIN_KINDS or (_FLOATS.issuperset(map(type, values)) if kind is Kind.DOUBLE else is_plain(values))
            for kind, values in zip(kinds, zip(*living, strict=True), strict=False)
        )

    def row_hashes(rows: Sequence[State | None]) -> list[bytes | None]:
        if is_written_as_is(rows):
            try:
                return [None if row is None else digest(row) for row in rows]
            except OverflowError:  # a callable's number of more than 64 bits
                pass
        return [None if row is None else exact(row) for row in rows]

    return row_hashes


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

    def cut(self, wiring: Wiring) -> Cut:
        return Cut.KEYS  # the row before is of the same key

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
        before = batch.before()
        new = NewKeys.of(self._key, batch, Errors(self._task, self._node, batch))
        old = NewKeys.of(self._key, before, Errors(self._task, self._node, before, is_silent=True))
        if self._node.join is g.JoinKind.LEFT:
            forgets = old.there & ~new.stay(old)
            asks = np.where(Rows.of(batch).there(len(batch)) | ~batch.old.nulls, ANSWER, 0)
        else:
            forgets = old.there & new.there & ~new.stay(old)
            asks = np.where(new.there, np.where(forgets, ANSWER, ANSWER_QUIETLY), np.where(old.there, DROP, 0))
        rows, is_forgotten = in_turn(forgets, asks > 0)
        if len(rows):
            what = np.where(is_forgotten, FORGET, asks[rows])
            keys = new.columns(old, self._node.schema.key, rows, is_forgotten | (what == DROP))
            marks = self._hash(rows_of(batch, self._left.value))
            if self._node.join is g.JoinKind.INNER and not new.there.all():
                marks = [mark if there else None for mark, there in zip(marks, new.there.tolist(), strict=True)]
            self._forward(batch, rows, what, keys, marks)

    def _forward(
        self, batch: Batch, rows: I64, what: I64, columns: dict[ColumnId, Column], marks: list[bytes | None]
    ) -> None:  # fmt: skip
        """Forward questions: of which rows, what they ask, the foreign keys they go to, and what stands for each row."""
        assert batch.keys is not None
        schema = self._node.schema
        instruction, key, mark = ((Side.VALUE, column.name) for column in schema.value)
        columns[instruction] = Column.of_vector(Vector(what), len(rows), Kind.INTEGER)
        for column, values in ((key, list(batch.keys.objects())), (mark, marks)):
            columns[column] = Column.of_objects(values, Kind.BYTES).take(rows)
        after = batch.expand(rows, places_of(rows))
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

    def cut(self, wiring: Wiring) -> Cut:
        return Cut.KEYS

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

    def start(self) -> None:
        self._subscribers.start()

    def process(self, batch: Batch, source: str) -> None:
        if source == self._node.inputs[0]:
            self._take_questions(batch)
        else:
            self._take_changes(without_earlier(keyed_rows(self._task, self._node.name, batch)))

    def _take_questions(self, batch: Batch) -> None:
        assert batch.keys is not None
        batch = batch.without(batch.nulls)
        assert batch.keys is not None
        keys = batch.keys.objects()
        rights, right_times = self._lookup.find(self._task, keys, batch)
        what, lefts, marks = (batch.column(Side.VALUE, column.name).objects() for column in g.SUBSCRIPTION)
        has_right, asked = rights.there(len(batch)), np.fromiter(what, np.int64, len(batch))
        stays = ((asked != FORGET) & (asked != DROP)).tolist()
        self._subscribers.put_all(keys, lefts, stays, marks, batch.times.tolist())
        rows = np.flatnonzero(asked != FORGET)
        rights, gets = rights.take(rows), (has_right & (asked != DROP))[rows]
        times = np.where(has_right[rows], np.maximum(batch.times, right_times)[rows], batch.times[rows])
        found = [lefts[row] for row in rows.tolist()], [marks[row] for row in rows.tolist()]
        self._answer(batch, rows, found, times, rights, gets, is_quiet=~gets & (asked[rows] == ANSWER_QUIETLY))

    def _take_changes(self, batch: Batch) -> None:
        assert batch.keys is not None
        rows: list[int] = []
        lefts: list[bytes | None] = []
        marks: list[bytes | None] = []
        keys: list[Any] = batch.keys.objects()
        for row, foreign in enumerate(keys):
            for left, state in self._subscribers.of(foreign):
                rows.append(row)
                lefts.append(left)
                marks.append(state[0])
        which = np.array(rows, np.int64)
        rights = Rows.of(batch).take(which)
        self._answer(batch, which, (lefts, marks), batch.times[which], rights, rights.there(len(which)))

    def _answer(
        self,
        batch: Batch,
        rows: I64,
        asked: tuple[list[bytes | None], list[bytes | None]],
        times: I64,
        rights: Rows,
        gets: Mask,
        *,
        is_quiet: Mask | None = None,
    ) -> None:
        """Send answers: to which left rows and their marks, at which times, the right rows, and who gets them.

        `is_quiet`: which of the others only take back what there is.
        """
        if not len(rows) or not self._emission.has_consumers:
            return
        after = self._emission.shell_of(rows, Bytes.of_objects(asked[0]), times, batch)
        mark, is_found, *carried = self._node.schema.value
        after.columns[Side.VALUE, mark.name] = Column.of_objects(asked[1], Kind.BYTES)
        after.columns[Side.VALUE, is_found.name] = Column.of_vector(Vector(gets, nulls=is_quiet), len(rows), Kind.BOOLEAN)
        gone = None if gets.all() else ~gets
        for column, theirs in zip(carried, self._right.value, strict=True):
            after.columns[Side.VALUE, column.name] = emptied(rights.columns[Side.VALUE, theirs.name], gone)
        self._task.forward(self._node.name, after)


class Subscribers:
    """Who asked for the row of a key: entries by (foreign key with its length, left key), found through an index in memory.

    The index of a foreign key is read from the store when it is first asked for.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._of: dict[bytes, _Askers] = {}
        self._is_fresh = False
        """Whether the store was empty when the task began: then the index has all of it."""

    def start(self) -> None:
        """Begin: the store is restored."""
        self._is_fresh = next(iter(self._store.range(b"", None)), None) is None

    def _askers(self, foreign: bytes) -> _Askers:
        found = self._of.get(foreign)
        if found is None:
            prefix = _prefix(foreign)
            stored = () if self._is_fresh else self._store.range(prefix, _after(prefix))
            found = self._of[foreign] = _Askers(prefix, {key[len(prefix) :] for key, _ in stored})
        return found

    def put_all(
        self,
        foreigns: Sequence[bytes | None],
        lefts: Sequence[bytes],
        stays: Sequence[bool],
        marks: Sequence[bytes | None],
        times: Sequence[int],
    ) -> None:
        """Set or (`stays` False) delete subscriptions: foreign key (None: of nothing), left key, mark of the left row, time."""
        places: list[bytes] = []
        states: list[State | None] = []
        stamps: list[int] = []
        known = self._of
        for foreign, left, stay, mark, time in zip(foreigns, lefts, stays, marks, times, strict=True):
            if foreign is None:
                continue
            askers = known.get(foreign) or self._askers(foreign)
            if stay:
                askers.keys.add(left)
                states.append((mark,))
            elif left in askers.keys:
                askers.keys.remove(left)
                states.append(None)
            else:
                continue
            places.append(askers.prefix + left)
            stamps.append(time)
        put_entries(self._store, places, states, stamps)

    def of(self, foreign: bytes) -> list[tuple[bytes, State]]:
        """Return the subscriptions of a foreign key, in order of their left keys."""
        if self._is_fresh and foreign not in self._of:  # nothing is kept of keys that nobody has asked for
            return []
        askers = self._askers(foreign)
        if not askers.keys:
            return []
        keys = sorted(askers.keys)
        entries = entries_of(self._store, [askers.prefix + key for key in keys])
        found = [(key, entry.state) for key, entry in zip(keys, entries, strict=True) if entry is not None]
        assert len(found) == len(keys), "the index shows what is in the store"
        return found  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class _Askers:
    """The left keys that have asked for a row, and what stands before them in the store."""

    prefix: bytes
    keys: set[bytes]


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
        if node.store is None and node.join is not g.JoinKind.INNER:
            return ()
        fields = () if node.store is None else node.schema.value
        return (StoreSpec(results_store(node), node.schema.key, fields, store_window(node.schema.window)),)

    def looks_up(self, source: str, wiring: Wiring) -> frozenset[str]:
        return stores_behind(wiring, self.node.inputs[1])

    def raw_key(self, inputs: Sequence[RawKey | None]) -> RawKey | None:
        return inputs[0]

    def wants_old(self, *, is_asked: bool) -> bool:
        return False

    def cut(self, wiring: Wiring) -> Cut:
        """Not with windows, whose rows expire."""
        return Cut.KEYS if self.node.schema.window is None else Cut.WHOLE

    def plan(self, wiring: Wiring) -> Bind:
        return lambda task: ResolveWork(self.node, wiring, task)


def results_store(node: g.Resolve) -> str:
    """Return where the results are kept, or, of an inner join without a store, which left rows have one."""
    return node.store or f"{node.name}-results"


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
        self._results = task.store(results_store(node)) if node.join is g.JoinKind.INNER else None
        self._carried = self._answers.value[len(g.ANSWER) :]
        self._hash = hasher(self._left.value)
        self._key = evaluations(node.key, is_on_table=True)

    def process(self, batch: Batch, source: str) -> None:
        assert batch.keys is not None
        keys: list[Any] = batch.keys.objects()
        found, _ = self._lookup.find(self._task, keys, batch)
        marks, has_answer = (batch.column(Side.VALUE, column.name).objects() for column in self._answers.value[: len(g.ANSWER)])
        hashes = self._hash(found.states(self._left.value, len(batch)))
        is_asked = np.fromiter(map(eq, hashes, marks), np.bool_, len(batch))
        if self._node.join is g.JoinKind.INNER and None in marks:
            is_asked |= np.fromiter([mark is None for mark in marks], np.bool_, len(batch)) & ~self._asks(batch, found)
        rows, has_right = np.flatnonzero(is_asked), np.fromiter(map(bool, has_answer), np.bool_, len(batch))
        needed = found.there(len(batch)) & (has_right if self._node.join is g.JoinKind.INNER else True)
        if self._results is not None:
            is_quiet = [has is None for has in has_answer]
            rows = np.array(self._told(self._results, batch, rows.tolist(), needed.tolist(), is_quiet), np.int64)
        if not len(rows):
            return
        shell = self._emission.shell_of(rows, None, batch.times[rows], batch)
        answers, is_found = batch.take(rows), has_right[rows]
        columns = {(Side.VALUE, c.name.removeprefix("right:")): answers.columns[Side.VALUE, c.name] for c in self._carried}
        right = Rows(columns, None if is_found.all() else ~is_found)
        after = self._joiner.joined(self._task, shell, found.take(rows), right, needed=needed[rows])
        self._emission.put_out(self._task, self._store, after)

    def _told(
        self, results: StateStore, batch: Batch, rows: list[int], has_result: Sequence[bool], is_quiet: Sequence[bool]
    ) -> list[int]:
        """Return the answers that are put out: all but the quiet ones that take nothing back. Keeps who has a result then."""
        assert batch.keys is not None
        objects: list[Any] = batch.keys.objects()
        keys, told = [objects[row] for row in rows], list[int]()
        had = {key: entry is not None for key, entry in zip(keys, entries_of(results, keys), strict=True)}
        for row, key, time in zip(rows, keys, batch.times[rows].tolist(), strict=True):
            before, has = had[key], has_result[row]
            if before or has or not is_quiet[row]:
                told.append(row)
            if self._store is None and has and not before:
                put_entry(results, key, (), time)
            elif self._store is None and before and not has:
                drop_entry(results, key, time)
            had[key] = has
        return told

    def _asks(self, batch: Batch, left: Rows) -> Mask:
        """Return which left rows name a right one as they are now."""
        rows = as_rows_of(self._left, batch, left)
        return NewKeys.of(self._key, rows, Errors(self._task, self._node, rows, is_silent=True)).there


def right_schema(node: g.Resolve, answers: g.Schema) -> g.Schema:
    """Return the schema of the right rows that answers carry."""
    columns = answers.value[len(g.ANSWER) :]
    return g.Schema((), tuple(Field(c.name.removeprefix("right:"), c.type) for c in columns), value_class=node.right_class)
