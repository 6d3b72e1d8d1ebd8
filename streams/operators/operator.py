"""What an operator is: everything about one kind of node, in one place.

An operator stands for one node of a sub-topology. It says what the node reads and keeps (the planner, `describe` and the check of
a changed topology ask it, nobody tests for its class), and plans itself once per process; what it plans is bound to each task as
a `Work`, which takes batches. To add an operator, add a module to this package with a class that names its `node_class`.

Rules of a Work:
- It is given batches of its inputs, in order of cause; it forwards batches in order of cause. It never changes a batch.
- What it keeps is in stores alone, so that a task can be opened anywhere.
- What it leaves out it reports.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from logflume.log.records import I64, Chunk
from logflume.log.schemas import Column, FormatSpec

from .. import graph as g
from ..columns import Batch
from ..columns.batch import ColumnId
from ..columns.evaluate import Evaluation
from ..expr import Side
from ..seams import StateStore, StoreSpec

N = TypeVar("N", bound=g.Node)
RawKey = tuple[FormatSpec, tuple[Column, ...]]
"""Format and columns of the encoded key at hand behind a node."""

Reporter = Callable[[int, Exception], None]


class Task(Protocol):
    """What a Work has of its task."""

    @property
    def stream_time_ms(self) -> int:
        """The largest event time that the task has taken, -1 before the first."""
        ...

    @property
    def now_ms(self) -> int:
        """The time of the wall clock when it was looked at last."""
        ...

    def stream_time_at(self, cause: int) -> int:
        """Return the largest event time that the task has taken up to and with a record of the round (`Batch.causes`)."""
        ...

    def store(self, name: str) -> StateStore: ...

    def goes_by_row(self, node: str) -> bool:
        """Return whether each row that a node puts out goes all its way before the node changes more: it is looked up behind."""
        ...

    def watch(self, store: str, watcher: Callable[[Batch | None], None]) -> None:
        """Have a function called with each batch of rows that goes into a store, or with None when it was filled otherwise."""
        ...

    def changed(self, store: str, batch: Batch | None) -> None:
        """Tell those who watch a store that rows have gone into it."""
        ...

    def forward(self, node: str, batch: Batch) -> None:
        """Give a batch to all consumers of a node."""
        ...

    def send(self, node: str, topic: str, output: Any) -> None:
        """Put out encoded records (see `operators.outputs`); those of one topic leave in order of cause."""
        ...

    def report(self, reason: str, node: str, batch: Batch | None, row: int, cause: object) -> None:
        """Report a row of a batch that is left out or nulled; no batch: what came of no record at hand."""
        ...

    def late(self, node: str, batch: Batch, row: int, cause: object, *, counts_elsewhere: bool = False) -> None:
        """Tell of a row that is too late for a window: it goes to the node's Late, else it is reported.

        `counts_elsewhere`: other windows take the row, so that it is reported only.
        """
        ...

    def reporter(self, node: str, batch: Batch, *, reason: str = "expression") -> Reporter:
        """Return what reports errors of rows of a batch."""
        ...


@dataclass(frozen=True, slots=True)
class Wiring:
    """The nodes of a sub-topology and what follows from their edges alone.

    Attributes:
        operators: by node name, inputs first. A Repartition is a source where it is read, an output where it is written; where
            one sub-topology does both, the output has a name of its own.
        children: name -> consumers inside the sub-topology, in order of creation.
        needs: name -> the columns of its output that a consumer reads.
        raw_keys: name -> format and columns of the encoded key at hand there, None after a change of key.
        wants_old: TABLE nodes whose consumers compare with the row before.
        lates: Aggregate -> its Late, which is none of its children.
    """

    operators: Mapping[str, Operator[Any]]
    sources: tuple[str, ...]
    outputs: tuple[str, ...]
    children: Mapping[str, tuple[str, ...]]
    needs: Mapping[str, frozenset[ColumnId]]
    raw_keys: Mapping[str, RawKey | None]
    wants_old: frozenset[str]
    lates: Mapping[str, str] = field(default_factory=dict)

    def following(self, name: str) -> tuple[str, ...]:
        """Return the nodes that what a node does goes to: its children, and its Late."""
        late = self.lates.get(name)
        return self.children[name] if late is None else (*self.children[name], late)

    @property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """Return topic -> its sources, in order of creation. A global table is none of them: it is read apart."""
        found: dict[str, tuple[str, ...]] = {}
        for name in self.sources:
            node = self.node(name)
            if isinstance(node, g.Source | g.Repartition) and not g.is_global(node):
                found[node.topic] = (*found.get(node.topic, ()), name)
        return found

    def node(self, name: str) -> g.Node:
        """Return a node by name."""
        return self.operators[name].node  # type: ignore[no-any-return]

    def schema(self, name: str) -> g.Schema:
        """Return what a node puts out."""
        return self.node(name).schema

    def is_needed(self, name: str, column: str) -> bool:
        """Return whether a value column of a node is read, by itself or as part of the whole."""
        needs = self.needs[name]
        return (Side.VALUE, column) in needs or (Side.VALUE, "*") in needs


class Work(ABC):
    """An operator at work in one task. One thread."""

    @abstractmethod
    def process(self, batch: Batch, source: str) -> None:
        """Take a batch of an input."""

    def process_all(self, batches: Sequence[tuple[str, Batch]]) -> None:
        """Take all batches of a round, of several inputs or branches: (input, batch) in no order between them.

        This implementation takes them in order of cause, ties in the order of inputs: what most operators need.
        """
        if len(batches) == 1:
            source, batch = batches[0]
            self.process(batch, source)
            return
        for source, batch in interleaved(batches):
            self.process(batch, source)

    def start(self) -> None:
        """Begin: the stores are restored, no record has been taken yet."""

    @property
    def due_ms(self) -> int | None:
        """The stream time from which on `follow` does something: no batch goes further at once. None: it never does."""
        return None

    def follow(self, stream_time_ms: int) -> None:
        """Note that stream time is this."""

    def advance(self, now_ms: int) -> None:
        """Note that the wall clock has moved to `now_ms`."""

    def commit(self) -> None:
        """Forward what leaves at a task commit."""

    def absorb(self, partials: Chunk) -> int:
        """Merge entries that `Operator.partial` has made of a range; return how many of their records are late.

        `partials`: keys and encoded entries as they are in the store of that form, none of them null. Stream time has taken that
        of the ranges before, and not yet that of the range itself.
        """
        raise AssertionError("what has a partial form merges what that gives")


Bind = Callable[[Task], Work]


class Cut(IntEnum):
    """What an operator needs to work on the rows of some keys alone as it would on all (`slices.py`).

    WHOLE: the rows of all keys. ROWS: nothing, it takes each row by itself. KEYS: all rows of these keys. TIMES: these, and when
    the rows of other keys have come.
    """

    WHOLE = 0
    ROWS = 1
    KEYS = 2
    TIMES = 3


class Operator(ABC, Generic[N]):
    """What a node reads, keeps and does. Stateless: one per process."""

    node_class: ClassVar[type[g.Node]]
    is_stateless: ClassVar[bool] = False
    """Whether what it puts out depends on the row at hand alone, so that any range of the input can be taken by itself."""
    keeps_windows_apart: ClassVar[bool] = False
    """Whether rows of one key and of several windows have nothing to do with each other in it, where it is cut by keys."""
    has_effects: ClassVar[bool] = False
    """Whether it runs code of the user's that is to see each row once."""

    def __init__(self, node: N) -> None:
        self.node = node

    def takes(self, source: str) -> bool:
        """Return whether batches of this input come to `process` (a joined table may only be looked up)."""
        return True

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        """Return the columns of an input that are read here or by what follows; `below`: those read of this node's output.

        Of the wiring only operators and raw keys are known yet.
        """
        return set(below)

    def stores(self) -> tuple[StoreSpec, ...]:
        """Return the stores that the node keeps."""
        return ()

    def keeps(self) -> set[ColumnId]:
        """Return the columns of its own output that it needs, whoever else reads them."""
        return set()

    def looks_up(self, source: str, wiring: Wiring) -> frozenset[str]:
        """Return the stores of other nodes that it looks rows up in for batches of an input."""
        return frozenset()

    def raw_key(self, inputs: Sequence[RawKey | None]) -> RawKey | None:
        """Return the encoded key at hand behind the node, by those of its inputs."""
        return inputs[0] if inputs and all(raw == inputs[0] for raw in inputs) else None

    def wants_old(self, *, is_asked: bool) -> bool:
        """Return whether it needs the rows before of its input; `is_asked`: a consumer needs those of this node."""
        return is_asked and self.node.kind is g.EdgeKind.TABLE

    def partial(self) -> N | None:
        """Return the node that takes a range of the input by itself, from an empty store; None where that would not be exact.

        A windowed one has one more state column, the number of an entry's records. `Work.absorb` puts together what ranges give.
        """
        return None

    def cut(self, wiring: Wiring) -> Cut:
        """Return what it needs to work on the rows of some keys alone."""
        if not self.is_stateless or any(spec.window is not None for spec in self.stores()):
            return Cut.WHOLE
        return Cut.KEYS if self.stores() else Cut.ROWS

    @abstractmethod
    def plan(self, wiring: Wiring) -> Bind:
        """Return what makes the Work of a task."""


class Errors:
    """What the expressions of one node raise over one batch: reported, and where a plain callable did, the row's way ends.

    `is_silent`: of rows as they were before a change: what fails there was reported when they came.
    """

    def __init__(self, task: Task, node: g.Node, batch: Batch, *, is_silent: bool = False) -> None:
        self._task, self._node, self._batch, self._is_silent = task, node.name, batch, is_silent
        self._failed: set[int] = set()

    @property
    def failed(self) -> Set[int]:
        """The rows whose way ends here."""
        return self._failed

    def of(self, evaluation: Evaluation) -> Reporter:
        """Return what is told of the errors of an expression."""
        return self.callable if evaluation.is_callable else self.expression

    def expression(self, row: int, error: Exception) -> None:
        """Report a row for which an expression is null now."""
        if not self._is_silent:
            self._task.report("expression", self._node, self._batch, row, error)

    def callable(self, row: int, error: Exception) -> None:
        """Report a row whose way ends here."""
        if row in self._failed:
            return
        self._failed.add(row)
        if not self._is_silent:
            self._task.report("callable", self._node, self._batch, row, error)

    def left(self, batch: Batch) -> Batch:
        """Return the rows of a batch (aligned with the one at hand) whose way goes on."""
        rows = self.rows(len(batch))
        return batch if rows is None else batch.take(rows)

    def rows(self, count: int) -> I64 | None:
        """Return which of `count` rows go on; None: all."""
        if not self._failed or self._is_silent:
            return None
        return np.array([row for row in range(count) if row not in self._failed], np.int64)


def interleaved(batches: Sequence[tuple[str, Batch]]) -> Sequence[tuple[str, Batch]]:
    """Return the batches cut into runs in order of cause; ties in the order given. Batches without causes stay as they are."""
    if any(batch.order is None for _, batch in batches):
        return batches
    places = np.concatenate([batch.order for _, batch in batches if batch.order is not None])
    which = np.repeat(np.arange(len(batches)), [len(batch) for _, batch in batches])
    order = np.argsort(places, kind="stable")
    turns = which[order]
    bounds = [0, *(np.flatnonzero(np.diff(turns)) + 1).tolist(), len(turns)]
    if len(bounds) - 2 < len(batches):
        return [batches[turn] for turn in dict.fromkeys(turns.tolist())]
    at = [0] * len(batches)
    found = []
    for start, stop in itertools.pairwise(bounds):
        turn = int(turns[start])
        source, batch = batches[turn]
        begin = at[turn]
        at[turn] = begin + stop - start
        found.append((source, batch.take(np.arange(begin, at[turn]))))
    return found
