"""The topology as data: frozen, typed, named nodes (architecture, D4).

The DSL and SQL both build this graph; the native tasks, the Spark job, `describe()`, the picture and the upgrade check read it.
A node refers to its inputs by name. Names are given by the user or derived from what the node does, never from its position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from logflume.log.schemas import BOOLEAN, BYTES, INTEGER, Column, DataType, FormatSpec, Kind

from .expr import Expr
from .windows import WINDOW_START as WINDOW_START
from .windows import CalendarWindow as CalendarWindow
from .windows import SessionWindow as SessionWindow
from .windows import SlidingWindow as SlidingWindow
from .windows import TimeWindow as TimeWindow
from .windows import UnlimitedWindow as UnlimitedWindow
from .windows import Window as Window

if TYPE_CHECKING:
    from .describe import Description


class EdgeKind(StrEnum):
    """STREAM: independent records. TABLE: changes (old row, new row) of the row of a key."""

    STREAM = "stream"
    TABLE = "table"


class Emit(StrEnum):
    """When an aggregate's result leaves: at each update, once per task commit (latest per key), or when its window closes."""

    UPDATE = "update"
    COMMIT = "commit"
    FINAL = "final"


class JoinKind(StrEnum):
    INNER = "inner"
    LEFT = "left"
    OUTER = "outer"


@dataclass(frozen=True, slots=True)
class Schema:
    """What flows on an edge: key and value columns, whether the key is windowed, and the class that value rows stand for.

    `value_class` is the user's class (msgspec.Struct, dataclass, TypedDict) that plain callables are given; None: they get the
    bare value itself (`is_bare`), or a namedtuple-like row.
    """

    key: tuple[Column, ...]
    value: tuple[Column, ...]
    window: Window | None = None
    value_class: type[Any] | None = None


BARE_COLUMN = "value"
"""Name of the only column of a bare value."""


def is_bare(schema: Schema) -> bool:
    """Return whether the value is one object of no known columns (a null object is a null value), not a row."""
    return len(schema.value) == 1 and schema.value[0].type.kind is Kind.ANY and schema.value[0].name == BARE_COLUMN


@dataclass(frozen=True, slots=True)
class Aggregator:
    """An aggregate function as operators see it. All callables are importable module-level functions.

    Attributes:
        state_columns: typed state per key, so that a store keeps it as columns (ANY for arbitrary objects).
        initial: the state's start values, aligned with state_columns.
        add: (state tuple, *args) -> state tuple.
        merge: (state, state) -> state; None if partial aggregates cannot be merged (Spark then folds in order).
        undo: (state, *args) -> state, for tables as input; None if not possible.
        result: state -> value of `type`.
        start: the state of nothing as `merge` takes it, where that is not `initial` (an object that `initial` only stands for).
        kernel: name of an exact numba equivalent ("count", "sum", "min", "max", "mean"), or None.
        skips_null: a null argument leaves the state unchanged.
        is_ordered: `merge` needs the states in the order of their records, or, of sessions, of their times.
        classes: of objects in its state, as far as they are known.
    """

    name: str
    type: DataType
    state_columns: tuple[Column, ...]
    initial: tuple[Any, ...]
    add: Callable[..., tuple[Any, ...]]
    result: Callable[[tuple[Any, ...]], Any]
    merge: Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]] | None = None
    undo: Callable[..., tuple[Any, ...]] | None = None
    start: Callable[[], tuple[Any, ...]] | None = None
    kernel: str | None = None
    skips_null: bool = True
    is_ordered: bool = False
    classes: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Aggregation:
    """One output column of an aggregate: `name` = aggregator(args)."""

    name: str
    aggregator: Aggregator
    args: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Common to all nodes: a stable name, the schema and kind of what it puts out, and its inputs by name."""

    name: str
    schema: Schema
    kind: EdgeKind
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Node):
    """Reads a topic. kind TABLE: the topic is a changelog by key, kept in `store` when something needs it.

    `timestamp`: an expression giving the event time in ms from the record (None: the record's own); a record that it gives none
    is left out, or, `needs_time`, stops the task. Undecodable records are counted, logged and dropped, or stop the task, by the
    application's setting.
    TABLE only: `history_ms` keeps the rows of that long ago, to be looked up as of a time (a versioned table); `is_global`: each
    task has the rows of all partitions, taken as they come.
    """

    topic: str
    key_format: FormatSpec
    value_format: FormatSpec
    timestamp: Expr | None = None
    needs_time: bool = False
    store: str | None = None
    history_ms: int | None = None
    is_global: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter(Node):
    """Keeps records whose predicate is True. On a TABLE a row that stops passing goes out as a tombstone.

    Where the table (or the filter) is stored, a row that did not pass before and does not now puts out nothing.

    A null value passes no predicate, but one with a plain callable over the whole value, which is called with None.
    `store` (TABLE only) keeps the rows that pass.
    """

    predicate: Expr
    store: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Split(Node):
    """Gives each record of a stream to the first of its branches whose predicate is True, else to the rest.

    Each branch is a Branch behind it. A function is asked once, about records that no earlier predicate has taken; a record for
    which a predicate fails is in no branch. A null value meets predicates as in a Filter.
    """

    predicates: tuple[Expr, ...]


REST = -1
"""Number of the branch of the records that no predicate has taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch(Node):
    """What a Split gave to one of its branches: the place of its predicate, or REST."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Project(Node):
    """New value columns from expressions over key, value and META columns; the key stays. Column types = expression types.

    A null value stays null, unless a plain callable takes the whole value: it is called with None. `store` (TABLE only) keeps
    the rows.
    """

    columns: tuple[tuple[str, Expr], ...]
    store: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatMap(Node):
    """Each record becomes zero or more. `function(value object) -> iterable of rows`, or zipped table functions over `columns`.

    `columns`: (name, expression, is_exploded); exploded ones give lists, shorter ones padded with null.
    """

    columns: tuple[tuple[str, Expr, bool], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rekey(Node):
    """New key columns from expressions (the value may be kept or extended by a Project before). Marks the key as changed.

    A null value gives null for what is computed from it, unless a plain callable takes the whole value: it is called with None.
    """

    key: tuple[tuple[str, Expr], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartition(Node):
    """Writes to an internal topic by key and reads it back. The planner puts it where a changed key meets a keyed operator.

    Records with a null key are dropped and counted, unless `keeps_null_keys` (a left or outer join follows, which takes them).
    """

    topic: str
    partitions: int | None
    key_format: FormatSpec
    value_format: FormatSpec
    keeps_null_keys: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate(Node):
    """Aggregates per key (and window). kind TABLE. Records with a null key are dropped and counted.

    Of several inputs (a cogroup) each has its own aggregations into the same state: `others` are those of the inputs after the
    first. `ttl_ms` (without a window): a key is deleted once stream time is that far beyond its newest record.
    """

    store: str
    aggregations: tuple[Aggregation, ...]
    window: Window | None = None
    emit: Emit = Emit.COMMIT
    others: tuple[tuple[Aggregation, ...], ...] = ()
    ttl_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Late(Node):
    """The records that a windowed Aggregate, its input, did not count because their windows were closed. kind STREAM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduplicate(Node):
    """The first record of each key; with `within_ms` those of which no record has passed less than that before or after.

    Records that come up to `grace_ms` late are compared exactly; later ones are late. Without `within_ms` keys stay for ever.
    """

    store: str
    within_ms: int | None = None
    grace_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Regroup(Node):
    """A table by another key: each change becomes what to take out of the group of the old row and to add to that of the new.

    Puts out a STREAM with the columns of `columns` twice, as "-name" (taken out) and "+name" (added), and REGROUPED, which says
    which of both are there. Both in one record where the group is the same. Rows with a null key or value are left out.
    """

    key: tuple[tuple[str, Expr], ...]
    columns: tuple[tuple[str, Expr], ...]


REGROUPED = "regrouped"
"""Of what a Regroup puts out: 1: taken out, 2: added, 3: both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAggregate(Node):
    """Aggregates the rows of a regrouped table. kind TABLE. What is taken out goes first (`Aggregator.undo`).

    `row`: the schema of the rows, in which the aggregations are written. A group that has become empty stays.
    """

    store: str
    row: Schema
    aggregations: tuple[Aggregation, ...]
    emit: Emit = Emit.COMMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTableJoin(Node):
    """inputs = (stream, table). Each stream record looks up the table's row of its key; the table's changes put out nothing.

    `columns`: expressions over the stream's key and value columns; those of the table are ColumnRef(Side.VALUE, "TABLE:name").
    A left join has null for a missing row. Null stream values are dropped; null keys too (inner) or joined with null (left).
    A versioned table is looked up as of the record's time; with `grace_ms` records wait in `store` until stream time is that far
    beyond theirs. `key`: of a global table, the key of the row as expressions over the stream's columns.
    """

    join: JoinKind
    columns: tuple[tuple[str, Expr], ...]
    key: tuple[tuple[str, Expr], ...] = ()
    grace_ms: int | None = None
    store: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJoin(Node):
    """inputs = (left, right), perhaps the same. Pairs records of one key with right time in [left - before, left + after].

    `columns` as in StreamTableJoin, those of the right with TABLE_PREFIX. Left and outer joins put a record without a partner out
    with nulls once its window has closed (stream time beyond it by `grace_ms`); or, `is_eager`, at once, even if a partner comes
    later. Stores: `store` with "-left" and "-right".
    """

    join: JoinKind
    columns: tuple[tuple[str, Expr], ...]
    before_ms: int
    after_ms: int
    grace_ms: int
    store: str
    is_eager: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJoin(Node):
    """inputs = (left, right). The rows of two tables by key; a change of either side is a change of the result. kind TABLE.

    `columns` as in StreamTableJoin, those of the right with TABLE_PREFIX. `store` keeps the result. `takes_back`: whether a row
    that goes takes the kept result back though the other row is gone already; planning says it.
    """

    join: JoinKind
    columns: tuple[tuple[str, Expr], ...]
    store: str | None = None
    takes_back: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe(Node):
    """The left side of a foreign-key join: its changes as messages to the keys of the right side (a STREAM by foreign key).

    `key`: the foreign key by expressions over the left row. Values are the columns SUBSCRIPTION.
    """

    join: JoinKind
    key: tuple[tuple[str, Expr], ...]


SUBSCRIPTION = (Column("instruction", INTEGER), Column("key", BYTES), Column("row", BYTES))
"""What to do (1 forget, 2 forget and answer nothing, 3 keep and answer, 4 keep and answer, quietly if there is none: see
ANSWER), the encoded left key, and a hash of the left row (null: deleted), by which an answer that comes too late is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Node):
    """inputs = (subscriptions, right table). Keeps who asked for which row in `store`, and answers each change (by left key).

    Puts out a STREAM by left key, written in `key_format`: ANSWER, then the columns of the right row.
    """

    join: JoinKind
    store: str
    key_format: FormatSpec


ANSWER = (Column("row", BYTES), Column("is_found", BOOLEAN))
"""The hash of the left row that asked, and whether there is a right row; null: there is none, and only a result is taken back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolve(Node):
    """inputs = (answers, left table). Answers to what the left row still is are the result of a foreign-key join. kind TABLE.

    `columns` as in StreamTableJoin: over the left row, the right's with TABLE_PREFIX. `right_class`: what right rows stand for.
    `key`: the foreign key of a left row, as in Subscribe.
    """

    join: JoinKind
    key: tuple[tuple[str, Expr], ...]
    columns: tuple[tuple[str, Expr], ...]
    right_class: type[Any] | None = None
    store: str | None = None


class WhenFull(StrEnum):
    """What a bounded buffer does beyond its bound: let out the oldest early, or stop the application."""

    EMIT_EARLY = "emit_early"
    SHUT_DOWN = "shut_down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppress(Node):
    """Holds changes of a table back, the latest of each key, in `store`. kind TABLE.

    `wait_ms` None: until the window of the key has closed, and then never a deletion; else that long after the key's first
    change. By stream time.
    """

    store: str
    wait_ms: int | None = None
    max_records: int | None = None
    max_bytes: int | None = None
    when_full: WhenFull = WhenFull.EMIT_EARLY


@dataclass(frozen=True, slots=True)
class ProcessorStore:
    """A store of a processor: values of any kind by key; `classes`: what objects among them may be of."""

    name: str
    key: Column
    classes: tuple[Any, ...] = ()


class KeyValueStore(ProcessorStore):
    """One value by key."""


@dataclass(frozen=True, slots=True)
class WindowStore(ProcessorStore):
    """Values by key and a window's start, for as long."""

    retention_ms: int = 0


@dataclass(frozen=True, slots=True)
class SessionStore(ProcessorStore):
    """Values by key and session, for as long behind its end."""

    retention_ms: int = 0


@dataclass(frozen=True, slots=True)
class VersionedStore(ProcessorStore):
    """Values by key as of any time, back to so long ago."""

    history_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Process(Node):
    """A processor of the user: `make()` gives one per task. `is_keyed`: it keeps the keys (a processor of values).

    `children`: to whom it may forward by name, each a `Child` behind it.
    """

    make: Callable[[], Any]
    stores: tuple[ProcessorStore, ...] = ()
    is_keyed: bool = False
    children: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Child(Node):
    """What a Process forwarded to the child of this name, and what it forwarded to all."""

    child: str


class BatchForm(StrEnum):
    """What a function over batches is given, and gives."""

    ARROW = "arrow"
    POLARS = "polars"
    PANDAS = "pandas"
    NUMPY = "numpy"


@dataclass(frozen=True, slots=True, kw_only=True)
class MapBatches(Node):
    """New value columns from a function over the value columns of many rows at once, at most `rows_max`. The key stays.

    A null value stays null. Which rows come together is chance; the results may not depend on it.
    """

    function: Callable[[Any], Any]
    form: BatchForm
    rows_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MapAsync(Node):
    """The value that a coroutine function gives for each record, of which up to `limit` are under way at a time.

    `rows_max` 1: `function(value)` or (`takes_key`) `function(key, value)`; above, of lists of them, giving a list.
    Not `is_ordered`: results leave as they come, at the latest with the task commit.
    """

    function: Callable[..., Any]
    takes_key: bool
    rows_max: int
    limit: int
    is_ordered: bool
    retries: int
    pause_ms: int
    timeout_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToStream(Node):
    """A table's changes as a stream of new rows, tombstones included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToTable(Node):
    """A stream read as a table: the latest value of each key, a null value deletes it. Null keys are dropped and counted.

    Kept in `store` when something needs it; `history_ms`: see Source.
    """

    store: str | None = None
    history_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge(Node):
    """Interleaves streams, each in its own order: of the columns of the schema, or, where that is bare, of any whole values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreach(Node):
    """Calls a plain function for each record (peek when something follows)."""

    function: Callable[[Any, Any, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink(Node):
    """Writes to a topic, created with `topic_configs` and `partitions` (None: those of the first source) if missing."""

    topic: str
    key_format: FormatSpec
    value_format: FormatSpec
    timestamp: Expr | None = None
    partitions: int | None = None
    topic_configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route(Node):
    """Writes each record to the topic that `topic_of` gives for it.

    With `topics` only to those, created as a Sink's is; else to any that exists. A record without such a topic is refused.
    `barred`: the application's own inputs and internal topics, filled in by the planner.
    """

    topic_of: Expr
    key_format: FormatSpec
    value_format: FormatSpec
    topics: tuple[str, ...] = ()
    partitions: int | None = None
    topic_configs: Mapping[str, str] = field(default_factory=dict)
    barred: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Topology:
    """A named graph: nodes by name, in an order where inputs come first. Pickles when its callables do."""

    name: str
    nodes: Mapping[str, Node]

    def __reduce__(self) -> tuple[Callable[..., Topology], tuple[str, dict[str, Node]]]:
        return _topology, (self.name, dict(self.nodes))

    def __repr__(self) -> str:
        return f"Topology({self.name!r}: {', '.join(self.nodes)})"

    def describe(self) -> Description:
        """Return what will run, as data that prints as text, Mermaid or SVG."""
        from .describe import describe

        return describe(self)

    def _repr_svg_(self) -> str:
        return self.describe().svg()


def is_global(node: Node) -> bool:
    """Return whether a node is a global table: read whole by each task, and apart from its other inputs."""
    return isinstance(node, Source) and node.is_global


def store_of(node: Node) -> str | None:
    """Return the name of the store of a node's rows, if it keeps them."""
    has_rows = isinstance(node, Source | Aggregate | TableAggregate | ToTable | Filter | Project | TableJoin | Resolve)
    return node.store if has_rows else None  # type: ignore[attr-defined]


def _topology(name: str, nodes: dict[str, Node]) -> Topology:
    return Topology(name, MappingProxyType(nodes))


def loose_ends(topology: Topology) -> tuple[str, ...]:
    """Return the nodes of a stream that nothing reads and that do nothing themselves: somebody forgot `.to(topic)`.

    Not the branch of a `split`, or the child of a processor, of which another one is used.
    """
    nodes = topology.nodes
    read = {source for node in nodes.values() for source in node.inputs}
    has_effect = (Sink, Route, Foreach, Process, MapBatches, MapAsync)
    split_from = {node.inputs for name, node in nodes.items() if isinstance(node, Branch | Child) and name in read}
    return tuple(
        name
        for name, node in nodes.items()
        if name not in read
        and node.kind is EdgeKind.STREAM
        and not isinstance(node, has_effect)
        and not (isinstance(node, Branch | Child) and node.inputs in split_from)
    )
