"""The topology as data: frozen, typed, named nodes (architecture, D4).

The DSL and SQL both build this graph; the native tasks, the Spark job, `describe()`, the picture and the upgrade check read it.
A node refers to its inputs by name. Names are given by the user or derived from what the node does, never from its position.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from logflume.log.schemas import Column, DataType, FormatSpec, Kind

from .expr import Expr

if TYPE_CHECKING:
    from .describe import Description


WINDOW_START = struct.Struct(">q")
"""The window start behind the key bytes of a windowed edge or store, as Kafka's windowed serializers write it."""


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
class TimeWindow:
    """Tumbling (advance = size) or hopping windows [start, start + size), aligned to the epoch, in milliseconds.

    A record counts for a window iff window end > stream time - grace, stream time including the record itself.
    Retention of the store is max(retention, size + grace).
    """

    size_ms: int
    advance_ms: int
    grace_ms: int = 0
    retention_ms: int = 0


@dataclass(frozen=True, slots=True)
class Schema:
    """What flows on an edge: key and value columns, whether the key is windowed, and the class that value rows stand for.

    `value_class` is the user's class (msgspec.Struct, dataclass, TypedDict) that plain callables are given; None: they get the
    bare value itself (`is_bare`), or a namedtuple-like row.
    """

    key: tuple[Column, ...]
    value: tuple[Column, ...]
    window: TimeWindow | None = None
    value_class: type[Any] | None = None


BARE_COLUMN = "value"
"""Name of the only column of a bare value."""


def is_bare(schema: Schema) -> bool:
    """Return whether the value is one object of no known columns (a null object is a null value), not a row."""
    return len(schema.value) == 1 and schema.value[0].type.kind is Kind.ANY and schema.value[0].name == BARE_COLUMN


@dataclass(frozen=True, slots=True)
class Aggregator:
    """An aggregate function as the compilers see it. All callables are importable module-level functions.

    Attributes:
        state_columns: typed state per key, so that a store keeps it as columns (ANY for arbitrary objects).
        initial: the state's start values, aligned with state_columns.
        add: (state tuple, *args) -> state tuple.
        merge: (state, state) -> state; None if partial aggregates cannot be merged (Spark then folds in order).
        undo: (state, *args) -> state, for tables as input; None if not possible.
        result: state -> value of `type`.
        kernel: name of an exact numba equivalent ("count", "sum", "min", "max", "mean"), or None.
        skips_null: a null argument leaves the state unchanged.
    """

    name: str
    type: DataType
    state_columns: tuple[Column, ...]
    initial: tuple[Any, ...]
    add: Callable[..., tuple[Any, ...]]
    result: Callable[[tuple[Any, ...]], Any]
    merge: Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]] | None = None
    undo: Callable[..., tuple[Any, ...]] | None = None
    kernel: str | None = None
    skips_null: bool = True


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

    `timestamp`: an expression giving the event time in ms from the record (None: the record's own). Undecodable records are
    counted, logged and dropped, or stop the task, by the application's setting.
    """

    topic: str
    key_format: FormatSpec
    value_format: FormatSpec
    timestamp: Expr | None = None
    store: str | None = None


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

    Records with a null key are dropped and counted, unless `keeps_null_keys` (a left join follows, which joins them with null).
    """

    topic: str
    partitions: int | None
    key_format: FormatSpec
    value_format: FormatSpec
    keeps_null_keys: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate(Node):
    """Aggregates per key (and window). kind TABLE. Records with a null key are dropped and counted."""

    store: str
    aggregations: tuple[Aggregation, ...]
    window: TimeWindow | None = None
    emit: Emit = Emit.COMMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTableJoin(Node):
    """inputs = (stream, table). Each stream record looks up the table's row of its key; the table's changes put out nothing.

    `columns`: expressions over the stream's key and value columns; those of the table are ColumnRef(Side.VALUE, "TABLE:name").
    A left join has null for a missing row. Null stream values are dropped; null keys too (inner) or joined with null (left).
    """

    join: JoinKind
    columns: tuple[tuple[str, Expr], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToStream(Node):
    """A table's changes as a stream of new rows, tombstones included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToTable(Node):
    """A stream read as a table: the latest value of each key, a null value deletes it. Null keys are dropped and counted.

    Kept in `store` when something needs it.
    """

    store: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge(Node):
    """Interleaves streams of one schema, each in its own order."""


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


@dataclass(frozen=True, slots=True)
class Topology:
    """A named graph: nodes by name, in an order where inputs come first. Pickles when its callables do."""

    name: str
    nodes: Mapping[str, Node]

    def __reduce__(self) -> tuple[Callable[..., Topology], tuple[str, dict[str, Node]]]:
        return _topology, (self.name, dict(self.nodes))

    def describe(self) -> Description:
        """Return what will run, as data that prints as text, Mermaid or SVG."""
        from .describe import describe

        return describe(self)

    def _repr_svg_(self) -> str:
        return self.describe().svg()


def store_of(node: Node) -> str | None:
    """Return the name of the store that a node keeps, if any."""
    return node.store if isinstance(node, Source | Aggregate | ToTable | Filter | Project) else None


def _topology(name: str, nodes: dict[str, Node]) -> Topology:
    return Topology(name, MappingProxyType(nodes))
