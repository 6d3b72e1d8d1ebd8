"""A driver that runs a topology without a broker: records in, records out, one thread, no waiting.

It runs the same plan and the same generated code as the engine, on one partition, with stores in memory. Each input is processed
to the end, through all sub-topologies, before the next; of several internal topics with waiting records the one whose first
record is oldest goes on. What it cannot show: several partitions, rebalancing, restore, transactions.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from logflume.log import Chunk, Headers, InvalidInput, UnknownName
from logflume.log.records import I64

from . import graph as g
from .dsl.app import App
from .operators.processor_stores import opened
from .planner import plan, rewrite
from .rows import StoreRows, WindowedKey, key_format_of, key_side, stored_nodes, value_side
from .runtime.handlers import OnProblem, StreamsError
from .seams import SubTopology, Taken, TaskFunction
from .state.store import Store

__all__ = ["TestInput", "TestOutput", "TestProcessorStore", "TestRecord", "TopologyTestDriver", "WindowedKey"]

_log = logging.getLogger("logflume.streams")


@dataclass(frozen=True, slots=True)
class TestRecord:
    """A record as the driver gives it: key and value as objects."""

    __test__ = False

    key: Any
    value: Any
    timestamp_ms: int
    headers: Headers = field(default=(), repr=False)


RawRecord = tuple[bytes | None, bytes | None, int, Headers]


class TestInput:
    """An input topic."""

    __test__ = False

    def __init__(self, driver: TopologyTestDriver, node: g.Source) -> None:
        self._driver, self._topic = driver, node.topic
        self._key = key_side(node.schema, node.key_format)
        self._value = value_side(node.schema, node.value_format)

    def send(self, value: Any, *, key: Any = None, timestamp_ms: int | None = None, headers: Headers = ()) -> None:
        """Process one record completely.

        Key and value are objects, dicts or bytes; `timestamp_ms` None: the driver's time; `headers`: (name, bytes or None) pairs.
        """
        time = self._driver.now_ms if timestamp_ms is None else timestamp_ms
        self._driver.takes_objects = not isinstance(value, bytes)
        self._driver.process(self._topic, self._key.encode(key), self._value.encode(value), time, headers=headers)

    def send_together(self, records: Sequence[tuple[Any, Any, int]]) -> None:
        """Process (key, value, timestamp in ms) records as one batch, as the engine takes what has been fetched together."""
        keys = [self._key.encode(key) for key, _, _ in records]
        values = [self._value.encode(value) for _, value, _ in records]
        self._driver.process_together(self._topic, keys, values, [time for _, _, time in records])


class TestOutput:
    """An output topic: what was written since the last read."""

    __test__ = False

    def __init__(self, node: g.Sink | g.Route) -> None:
        self._key = key_side(node.schema, node.key_format)
        self._value = value_side(node.schema, node.value_format)
        self.raw: deque[RawRecord] = deque()

    def read(self) -> list[TestRecord]:
        """Return the records written since the last read, in order."""
        found = [TestRecord(self._key.decode(k), self._value.decode(v), t, h) for k, v, t, h in self.raw]
        self.raw.clear()
        return found

    def __len__(self) -> int:
        return len(self.raw)


class TestProcessorStore:
    """The rows of a processor's store."""

    __test__ = False

    def __init__(self, store: Any) -> None:
        self._store = store

    def get(self, key: Any, *place: int, **where: int) -> Any:
        """Return the value of a key (of its window or session, or as of a time), None when there is none."""
        return self._store.get(key, *place, **where)

    def rows(self) -> list[tuple[Any, Any]]:
        """Return all keys (with the start of the window, or start and end of the session) and values, in order of the
        encoded keys; of versions the latest."""
        return list(self._store.items())


@dataclass(slots=True)
class _Queue:
    """Records of an internal topic on their way."""

    topic: str
    records: deque[RawRecord] = field(default_factory=deque)


class _Waiting:
    """Internal topics with records on their way, as a binary heap by the time of their first record.

    Of topics with equal times it goes on with the one with which Kafka Streams does, whose heap is no stable order.
    """

    def __init__(self) -> None:
        self._heap: list[_Queue] = []

    def __bool__(self) -> bool:
        return bool(self._heap)

    def offer(self, queue: _Queue) -> None:
        """Add a topic whose first record is new."""
        heap, at = self._heap, len(self._heap)
        heap.append(queue)
        while at > 0 and _oldest(queue) < _oldest(heap[(at - 1) // 2]):
            heap[at] = heap[(at - 1) // 2]
            at = (at - 1) // 2
        heap[at] = queue

    def poll(self) -> _Queue:
        """Take out the topic with the oldest record."""
        heap = self._heap
        first, last = heap[0], heap.pop()
        if heap:
            at = 0
            while (child := 2 * at + 1) < len(heap):
                if child + 1 < len(heap) and _oldest(heap[child + 1]) < _oldest(heap[child]):
                    child += 1
                if _oldest(last) <= _oldest(heap[child]):
                    break
                heap[at] = heap[child]
                at = child
            heap[at] = last
        return first


def _oldest(queue: _Queue) -> int:
    return queue.records[0][2]


class TopologyTestDriver:
    """Runs a topology in this thread. See the module.

    Args:
        app: an application or a topology.
        now_ms: the driver's time at first: timestamp of inputs that are sent without one.
        on_problem: what a record does whose callable raises or breaks its contract, or that a test sent as an object
            which does not fit the topic's columns, "stop": raise (the callable's line is in the
            traceback); "skip": counted in `problems`, as an engine does by default.
        goes_together: what waits in an internal topic is processed as one batch, as an engine does, not record by record.
        commits_each_record: results of `emit="commit"` leave after each record; False: when `commit()` is called.

    >>> import logflume.streams as lf
    >>> from logflume.streams.testing import TopologyTestDriver
    >>> app = lf.App("words")
    >>> app.stream("lines", str).group_by(lf.col.value).count().to("counts")
    >>> driver = TopologyTestDriver(app)
    >>> for word in ("to", "be", "to"):
    ...     driver.input("lines").send(word)
    >>> [(record.key, record.value["count"]) for record in driver.output("counts").read()]
    [('to', 1), ('be', 1), ('to', 2)]
    """

    def __init__(
        self,
        app: App | g.Topology,
        *,
        now_ms: int = 0,
        commits_each_record: bool = True,
        on_problem: str = "stop",
        goes_together: bool = False,
    ) -> None:
        topology = app.topology() if isinstance(app, App) else app
        self.now_ms = now_ms
        self.problems: Counter[str] = Counter()
        self.takes_objects = False
        """Whether what is processed came as an object: then it is the test that is wrong when it does not fit the columns."""
        self._commits_each_record, self._goes_together = commits_each_record, goes_together
        self._on_problem = OnProblem(on_problem)
        self._nodes = rewrite(topology).nodes
        self._readers: dict[str, list[tuple[TaskFunction, tuple[str, ...]]]] = {}
        """Topic -> who takes its records: a task, and its sources."""
        self._tasks: list[TaskFunction] = []
        self._stores: dict[str, Store] = {}
        self._topics: dict[str, str] = {}
        self._outputs = {n.topic: TestOutput(n) for n in self._nodes.values() if isinstance(n, g.Sink)}
        self._routes = {n.name: n for n in self._nodes.values() if isinstance(n, g.Route)}
        self._outputs |= {topic: TestOutput(n) for n in self._routes.values() for topic in n.topics if topic not in self._outputs}
        self._queues: dict[str, _Queue] = {}
        self._offsets: Counter[str] = Counter()
        self._waiting = _Waiting()
        self._stream_time_ms = -1
        parts = plan(topology).subtopologies
        for part in parts:
            self._start(part)
        shared = set().union(*(part.shared_topics() for part in parts))
        self._global_topics = set().union(*(part.global_topics for part in parts)) - shared

    def _start(self, part: SubTopology) -> None:
        stores = {spec.name: Store(spec) for spec in part.program.stores}
        task = part.program.bind(stores, self, self)
        self._stores |= stores
        self._tasks.append(task)
        for node in part.global_sources:
            self._readers.setdefault(part.program.sources[node], []).append((task, (node,)))
        for topic in part.shared_topics():
            nodes = tuple(
                node for node, read in part.program.sources.items() if read == topic and node not in part.global_sources
            )
            self._readers.setdefault(topic, []).append((task, nodes))
        self._topics |= {node: output.topic for node, output in part.outputs.items()}

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the input topics."""
        return tuple(dict.fromkeys(n.topic for n in self._nodes.values() if isinstance(n, g.Source)))

    def input(self, topic: str) -> TestInput:
        """Return an input topic. One that is read in several ways takes what the first of them reads."""
        sources = {n.topic: n for n in reversed(tuple(self._nodes.values())) if isinstance(n, g.Source)}
        if topic not in sources:
            raise UnknownName("input topic", topic, sources)
        return TestInput(self, sources[topic])

    def output(self, topic: str) -> TestOutput:
        """Return an output topic; a computed one is there once a record has named it."""
        if topic not in self._outputs:
            raise UnknownName("output topic", topic, self._outputs)
        return self._outputs[topic]

    def store(self, name: str) -> StoreRows:
        """Return the store of an aggregate or a table by name."""
        kept = stored_nodes(self._nodes)
        if name not in kept:
            raise UnknownName("store", name, kept)
        return StoreRows(kept[name], self._stores[name], key_format_of(self._nodes, kept[name]))

    def processor_store(self, name: str) -> TestProcessorStore:
        """Return a store of a processor by name."""
        kept = {store.name: store for n in self._nodes.values() if isinstance(n, g.Process) for store in n.stores}
        if name not in kept:
            raise UnknownName("store of a processor", name, kept)
        store = self._stores[name]
        return TestProcessorStore(opened(kept[name], store, lambda: store.stream_time_ms))

    def advance(self, duration_ms: int) -> None:
        """Move the driver's time on."""
        if duration_ms < 0:
            raise InvalidInput(f"time only goes on, found {duration_ms} ms")
        self.now_ms += duration_ms
        for task in self._tasks:
            task.advance(self.now_ms)
        self._settle()

    def process(self, topic: str, key: bytes | None, value: bytes | None, timestamp_ms: int, *, headers: Headers = ()) -> None:
        """Process one record of an input topic, and all that follows from it. Its offset is the next one of the topic."""
        self._run(topic, key, value, timestamp_ms, headers)
        self._settle()

    def process_together(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps_ms: Sequence[int],
        headers: Sequence[Headers] | None = None,
    ) -> None:
        """Process records of one input topic as one batch, and all that follows from it."""
        self._take(topic, keys, values, timestamps_ms, headers)
        self._settle()

    def commit(self) -> None:
        """Let out what leaves at a task commit, and process what follows from it."""
        self._flush()
        self._settle()

    def _settle(self) -> None:
        """Process what waits in internal topics: always the one whose first record is oldest goes on."""
        while self._waiting:
            queue = self._waiting.poll()
            if self._goes_together:
                keys, values, times, headers = (list(column) for column in zip(*queue.records, strict=True))
                queue.records.clear()
                self._take(queue.topic, keys, values, times, headers)
                continue
            record = queue.records.popleft()
            if queue.records:
                self._waiting.offer(queue)
            self._run(queue.topic, *record)

    def _run(self, topic: str, key: bytes | None, value: bytes | None, timestamp_ms: int, headers: Headers = ()) -> None:
        self._take(topic, [key], [value], [timestamp_ms], [headers] if headers else None)

    def _take(
        self, topic: str, keys: Sequence[bytes | None], values: Sequence[bytes | None], timestamps_ms: Sequence[int],
        headers: Sequence[Headers] | None,
    ) -> None:  # fmt: skip
        times, count = np.array(timestamps_ms, dtype=np.int64), len(keys)
        chunk = Chunk.from_columns(topic, keys, values, times, partition=0, headers=headers)
        chunk.offsets[:] = np.arange(self._offsets[topic], self._offsets[topic] + count)
        self._offsets[topic] += count
        for task, sources in self._readers[topic]:
            if len(sources) == 1:
                task.process(sources[0], chunk, 0, count)
            else:
                task.process_together([Taken(source, chunk, 0, count, np.arange(count)) for source in sources])
        if topic not in self._global_topics:
            self._stream_time_ms = max(self._stream_time_ms, *timestamps_ms)
        for each in self._tasks:
            each.follow(self._stream_time_ms)
        if self._commits_each_record:
            self._flush()

    def _flush(self) -> None:
        for task in self._tasks:
            task.flush()
        for store in self._stores.values():
            self._keep(store)
            store.expire()
            store.committed()

    def _keep(self, store: Store) -> None:
        """Make what has changed what an engine would read back."""
        if not store.codec.holds_objects:
            return
        entries = [entry for key in store.dirty if (entry := store.resident.get(key)) is not None]
        for entry, written in zip(entries, store.encoded(entries), strict=True):
            if written is not None:
                entry.state = store.codec.decode(written).state

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
    ) -> None:
        """Take outputs of a task (the driver is its own `Outputs`)."""
        topic = self._topics[node] or topic
        assert topic is not None, "a Route says where its records go"
        if node in self._routes and topic not in self._outputs:
            self._outputs[topic] = TestOutput(self._routes[node])
        records = list(zip(keys, values, timestamps_ms, headers or [()] * len(keys), strict=True))
        if topic in self._outputs:
            self._outputs[topic].raw.extend(records)
        if topic in self._readers:
            queue = self._queues.setdefault(topic, _Queue(topic))
            is_new = not queue.records
            queue.records.extend(records)
            if is_new and queue.records:
                self._waiting.offer(queue)

    def send_columns(self, node: str, records: Chunk, *, causes: I64 | None = None, topic: str | None = None) -> None:
        """Take outputs of a task as columns."""
        times = records.timestamps_ms.tolist()
        self.send(node, records.keys(), records.values(), times, headers=records.headers(), topic=topic)

    def report(self, reason: str, node: str, topic: str, partition: int, offset: int, cause: object) -> None:
        """Count a problem (the driver is its own `Problems`)."""
        self.problems[reason] += 1
        is_wrong = reason in ("callable", "refused") or (reason == "decode" and self.takes_objects)
        if is_wrong and self._on_problem is OnProblem.STOP:
            where = f"node {node}, {topic} offset {offset}" if topic else f"node {node}"
            raise StreamsError(
                f"{where}: {type(cause).__name__}: {cause}; with on_problem='skip' such records are "
                "counted and left out, as by an engine"
            ) from (cause if isinstance(cause, BaseException) else None)
        _log.debug("%s in %s: %s", reason, node, cause)

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)
