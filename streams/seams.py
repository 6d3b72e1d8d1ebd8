"""The seams inside streams: what a compiled sub-topology asks of its task, and what a state store offers to it.

planner  -> Plan             the application as sub-topologies (nodes between topics); one task = one of them x one partition
operators -> Program         a sub-topology as operators, planned once per process, no state
task     -> Program.bind     gives it stores and outputs; then `process` per run of one input, `flush` per task commit
engine   -> task             topics, assignment, restore, transactions, from a Plan alone

A task commit is: `flush` (results due at commit leave), then one log transaction (outputs, changelog of dirty entries, input
offsets), then one write batch of each store (entries, changelog position, input offsets, stream times). Nothing of a
transaction that failed reaches a store on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from logflume.log.records import I64, Chunk
from logflume.log.schemas import Column

from .graph import TimeWindow

State = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """A named state store.

    An entry's key is bytes: the encoded record key, for windows followed by the window start (8 bytes, big-endian).
    Its state is a tuple aligned with `columns`, kept beside the timestamp (ms) of its result. `classes`: what objects in
    columns of type ANY may be of.
    """

    name: str
    key: tuple[Column, ...]
    columns: tuple[Column, ...]
    window: TimeWindow | None = None
    classes: tuple[type[Any], ...] = ()


class Entry(msgspec.Struct, gc=False):
    """An entry in memory. `state` None means deleted.

    A Struct because it is made once per new key in the hot path (five times cheaper than a dataclass), and without garbage
    collection because a large store would make each collection walk all of it.
    """

    state: State | None
    timestamp_ms: int


class StateStore(Protocol):
    """One store of one task: memory first, RocksDB behind (architecture, D6)."""

    @property
    def spec(self) -> StoreSpec: ...

    @property
    def resident(self) -> dict[bytes, Entry]:
        """Entries in memory. After `load(keys)` an absent key does not exist. Generated code reads and changes it directly."""
        ...

    @property
    def dirty(self) -> dict[bytes, State | None]:
        """Keys changed since the last task commit, in order of their first change -> the state before it.

        Generated code adds to it. The old state is what Emit.COMMIT compares with (None: there was none, or the program did
        not need it).
        """
        ...

    stream_time_ms: int
    """Largest timestamp this store has observed, -1 at first; persisted with each commit, so lateness survives restarts."""

    newest_ms: int
    """The newest time in keys of entries, noted by operators that ask for it; persisted with each commit, -1 at first."""

    expiry_time_ms: int | None
    """The time by which windows expire while the results of a commit leave: that of the commit before. None: `stream_time_ms`."""

    @property
    def oldest_alive_ms(self) -> int:
        """The smallest window start that has not expired, 0 without windows. What is older may still be in `resident`."""
        ...

    @property
    def is_resident(self) -> bool:
        """Whether all entries are in `resident`, so that `load` has nothing to do."""
        ...

    def load(self, keys: Iterable[bytes]) -> None:
        """Make `resident` complete for these keys (one multi-get for those not in memory)."""
        ...

    memory_bytes: int
    """How much memory what is kept may take, in `resident` and beside it in the operator's own form."""

    def release(self, keys: Iterable[bytes]) -> None:
        """Forget committed entries in memory that an operator keeps in a form of its own; `load` reads them back."""
        ...

    def get(self, key: bytes) -> Entry | None: ...

    def range(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, Entry]]:
        """Entries with start <= key < stop in key order, uncommitted changes included."""
        ...

    @property
    def stored_count(self) -> int:
        """About how many entries the stores of the task have on disk; 0 for one in memory."""
        ...

    def stored_keys(self) -> Iterator[bytes]:
        """Yield the keys of all committed entries, of a store in memory of all; expired ones included."""
        ...

    def segments(self) -> list[int]:
        """Return the starts of the segments of time that have entries, committed ones or changes, rising."""
        ...

    def segment_of(self, time_ms: int) -> int:
        """Return the start of the segment of a time in a key."""
        ...

    def keys_of_segment(self, segment: int) -> Iterator[bytes]:
        """Yield the keys of committed entries of a segment, of a store in memory of all; expired ones included."""
        ...

    def read_keys(self, keys: Iterable[bytes], low: int) -> Iterator[tuple[bytes, int]]:
        """Make the committed entries of record keys with a time from `low` on present in memory; yield their keys and times."""
        ...

    def expire(self) -> int:
        """Drop window entries beyond retention (by stream_time_ms); return how many."""
        ...


class Outputs(Protocol):
    """Where a program puts records for sinks and repartition topics; written by the task in its next transaction.

    `causes`: index in the chunk being processed of the record that caused each output (ascending; several may share one);
    None in `flush`. From it the task knows (running maximum of time, source partition, offset); the repartition outputs of the
    tasks of one process are merged in that order, so that a repartition topic does not depend on which task ran first.
    `topic`: of a Route, where they go.
    """

    def send(
        self,
        node: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps_ms: Sequence[int],
        *,
        headers: Sequence[Any] | None = None,
        causes: Sequence[int] | None = None,
        topic: str | None = None,
    ) -> None: ...

    def send_columns(self, node: str, records: Chunk, *, causes: I64 | None = None, topic: str | None = None) -> None:
        """Take the records of a chunk (its topic, partition and offsets mean nothing). Its buffer is not written afterwards."""
        ...


class Problems(Protocol):
    """Counts and logs what is dropped or nulled.

    Reasons: decode, encode, expression, callable, late, null_key, null_value, negative_time.
    """

    def report(self, reason: str, node: str, topic: str, partition: int, offset: int, cause: object) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """Records start..stop of a chunk for one source, and their places in a round, int64, rising."""

    source: str
    chunk: Chunk
    start: int
    stop: int
    places: I64

    def between(self, start: int, stop: int) -> Taken:
        """Return those with places from `start` to before `stop`."""
        low, high = self.places.searchsorted((start, stop)).tolist()
        return Taken(self.source, self.chunk, self.start + low, self.start + high, self.places[low:high])


class TaskFunction(Protocol):
    """A program bound to one task. Called by one thread."""

    @property
    def rows_by_node(self) -> Mapping[str, int]:
        """How many rows have left each node."""
        ...

    @property
    def follows_clock(self) -> bool:
        """Whether something in it is due by the wall clock, so that `advance` has to be called though nothing comes."""
        ...

    def process(self, source: str, chunk: Any, start: int, stop: int) -> None:
        """Take records start..stop of a `logflume.log` Chunk of this source, in order.

        Those of a global table go into its store only: no time moves by them, and nothing comes out.
        """
        ...

    def process_together(self, parts: Sequence[Taken]) -> None:
        """Take records of several sources as one round, in the order of their places: n, n + 1, n + 2 and so on over all parts.

        Outputs name the places as their causes. Sources that read one topic have its records at the same places: a record goes
        all its way from one before the next. Records of several topics only where `Program.takes_together`.
        """
        ...

    def flush(self) -> None:
        """Put out what leaves at task commit (Emit.COMMIT)."""
        ...

    def follow(self, stream_time_ms: int) -> None:
        """Note that the task has taken records up to this event time; what is scheduled by it may put out records."""
        ...

    def advance(self, now_ms: int) -> None:
        """Note that the wall clock has moved to `now_ms`; what is due by it leaves."""
        ...

    def restore(self, source: str, chunk: Any, start: int, stop: int) -> None:
        """Take records of a TABLE source into its store only, marking entries dirty: no outputs, no other stores, no reports."""
        ...


class Program(Protocol):
    """A sub-topology, planned."""

    @property
    def sources(self) -> Mapping[str, str]:
        """Source (or repartition source) node name -> topic."""
        ...

    @property
    def stores(self) -> tuple[StoreSpec, ...]: ...

    @property
    def takes_together(self) -> bool:
        """Whether records of several topics may be taken in one round."""
        ...

    def bind(self, stores: Mapping[str, StateStore], outputs: Outputs, problems: Problems) -> TaskFunction: ...


@dataclass(frozen=True, slots=True)
class OutputTopic:
    """Where a Sink, Route or Repartition node writes.

    Attributes:
        partitions: for creating it; None: as many as the largest source topic of the sub-topology that writes it.
        configs: for creating it (a repartition topic gets its own from the engine).
        is_repartition: internal; merged by time between tasks, purged after commit.
        key_suffix_bytes: how many bytes at the end of the key say which window it is of; the partitioner leaves them out.
        is_computed: a Route: each record says its topic, one of `among` if there are any (`topic` is empty).
        is_table: what is written are the rows of a table, by key.
    """

    topic: str
    partitions: int | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    is_repartition: bool = False
    key_suffix_bytes: int = 0
    is_computed: bool = False
    among: tuple[str, ...] = ()
    is_table: bool = False

    def topics(self) -> tuple[str, ...]:
        """Return the topics that are known to be written."""
        return self.among if self.is_computed else (self.topic,)


@dataclass(frozen=True, slots=True)
class SubTopology:
    """The nodes between topics that one task runs. `name` is stable and names the state directory: letters, digits, - _ .

    Attributes:
        outputs: Sink, Route and Repartition node name -> topic.
        global_sources: node names of the Sources of global tables.
        table_sources: store name -> node name of the Source whose topic is the store's changelog; all other stores get
            the compacted topic `<application>-<store>-changelog`.
        contents: store -> what its entries mean (`contents.py`), kept beside the offsets; another text later is refused.
    """

    name: str
    program: Program
    outputs: Mapping[str, OutputTopic]
    table_sources: Mapping[str, str] = field(default_factory=dict)
    contents: Mapping[str, str] = field(default_factory=dict)
    global_sources: frozenset[str] = frozenset()

    def shared_topics(self) -> frozenset[str]:
        """Return the topics of which each task reads the partition of its number: all but those of global tables."""
        return frozenset(topic for node, topic in self.program.sources.items() if node not in self.global_sources)

    @property
    def global_topics(self) -> frozenset[str]:
        """Return the topics of global tables. One of them may be read as something else too."""
        return frozenset(self.program.sources[node] for node in self.global_sources)

    def global_stores(self) -> dict[str, str]:
        """Return store -> source node of the global tables, of which each task reads all partitions."""
        return {store: node for store, node in self.table_sources.items() if node in self.global_sources}


@dataclass(frozen=True, slots=True)
class Plan:
    """An application, ready to run. `application` is its group id and the prefix of its internal topics and transactional ids."""

    application: str
    subtopologies: tuple[SubTopology, ...]


def changelog_topic(application: str, store: str) -> str:
    """Return the changelog topic of a store.

    >>> changelog_topic("delays", "counts")
    'delays-counts-changelog'
    """
    return f"{application}-{store}-changelog"
