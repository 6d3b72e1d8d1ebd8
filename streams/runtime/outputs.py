"""What the tasks of one sub-topology put out in one slice of time, and in which order it goes to its topics. (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from logflume.log import InvalidInput
from logflume.log.records import I64, Chunk, Headers
from logflume.streams.seams import OutputTopic

from .merge import Round, Run


class Columns:
    """Records for one topic, in order: chunks, and objects that wait in lists until a chunk is made of them.

    `times_ms`: for each block of records of a repartition topic, the task's running maximum of time at each record's cause.
    `causes`: for each block of records of a topic that several nodes may write, or of any where the task is asked to keep them,
    twice the place of their cause in the order of the task and one more; of those put out at a task commit twice its place.
    """

    __slots__ = ("_chunks", "_headers", "_keys", "_timestamps_ms", "_values", "causes", "count", "node", "times_ms", "topic")

    def __init__(self, node: str, topic: str) -> None:
        self.node, self.topic = node, topic
        self._chunks: list[Chunk] = []
        self.count = 0
        self.times_ms: list[I64] = []
        self.causes: list[I64] = []
        self._clear()

    def __len__(self) -> int:
        return self.count

    def _clear(self) -> None:
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._timestamps_ms: list[int] = []
        self._headers: list[Headers] | None = None

    def add_objects(
        self,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps_ms: Sequence[int],
        headers: Sequence[Headers] | None,
    ) -> None:
        """Add N aligned keys, values and timestamps; `headers` None: they have none."""
        before = len(self._values)
        self._keys += keys
        self._values += values
        self._timestamps_ms += timestamps_ms
        if headers is not None or self._headers is not None:
            self._headers = (self._headers or [()] * before) + list(headers or [()] * len(values))
        self.count += len(values)

    def add_chunk(self, records: Chunk) -> None:
        """Add the records of a chunk, without copying them."""
        self._close()
        self._chunks.append(records)
        self.count += len(records)

    def _close(self) -> None:
        if self._values:
            self._chunks.append(
                Chunk.from_columns(self.topic, self._keys, self._values, self._timestamps_ms, headers=self._headers)
            )
            self._clear()

    def chunk(self) -> Chunk:
        """Return all records as one chunk, at least one."""
        self._close()
        self._chunks = [Chunk.concat(self._chunks)]
        return self._chunks[0]


class TaskOutputs:
    """The `Outputs` of one task: collects columns per output node and topic until the engine takes them.

    What several sinks write to one topic leaves as one, in the order of the causing records (ties: of the nodes), as if each
    record had gone through all of them before the next.
    """

    def __init__(self, topics: Mapping[str, OutputTopic]) -> None:
        self._topics = topics
        self._columns: dict[tuple[str, str], Columns] = {}
        self._shared = _sharing(topics)
        self._done_records = 0
        self.keeps_causes = False
        self.run: Run | Round | None = None
        self.time_ms = -1

    def begin(self, run: Run | Round) -> None:
        """What is put out from now on is caused by records of this run."""
        self.run = run

    def end(self, run: Run | Round) -> None:
        """The run is processed: what is put out from now on comes after it."""
        self.run = None
        self.time_ms = int(run.times_ms[-1])
        self._done_records += len(run)

    def send(
        self,
        node: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps_ms: Sequence[int],
        *,
        headers: Sequence[Headers] | None = None,
        causes: Sequence[int] | None = None,
        topic: str | None = None,
    ) -> None:
        """Take records of an output node (see `streams.seams.Outputs`)."""
        if not values:
            return
        columns = self._columns_of(node, topic)
        columns.add_objects(keys, values, timestamps_ms, headers)
        self._note_causes(node, columns, None if causes is None else np.asarray(causes, np.int64), len(values))

    def send_columns(self, node: str, records: Chunk, *, causes: I64 | None = None, topic: str | None = None) -> None:
        """Take the records of a chunk (see `streams.seams.Outputs`)."""
        if len(records) == 0:
            return
        columns = self._columns_of(node, topic)
        columns.add_chunk(records)
        self._note_causes(node, columns, causes, len(records))

    @property
    def has_any(self) -> bool:
        """Whether something has been put out that has not been taken."""
        return bool(self._columns)

    def _columns_of(self, node: str, topic: str | None) -> Columns:
        if node not in self._topics:
            raise InvalidInput(f"the program put out records for node {node!r}, which has no topic in the plan")
        where = self._topics[node].topic or topic
        assert where is not None, "a Route says where its records go"
        columns = self._columns.get((node, where))
        if columns is None:
            columns = self._columns[node, where] = Columns(node, where)
        return columns

    def _note_causes(self, node: str, columns: Columns, causes: I64 | None, count: int) -> None:
        if self._topics[node].is_repartition:
            columns.times_ms.append(self._times(causes, count))
        if self.keeps_causes or node in self._shared:
            if causes is None:
                columns.causes.append(np.full(count, 2 * self._done_records))
            else:
                first = 0 if self.run is None else self.run.start
                columns.causes.append(2 * (causes - first + self._done_records) + 1)

    def _times(self, causes: I64 | None, count: int) -> I64:
        """Return the running maximum of time at each cause; at flush, as of now."""
        if causes is None or self.run is None:
            return np.full(count, self.time_ms, np.int64)
        return self.run.times_ms[causes - self.run.start]

    def take(self) -> list[Columns]:
        """Return what has been collected per node and topic, and start anew; of a topic that several nodes wrote as one."""
        taken, self._columns = self._columns, {}
        if not self._shared or len(taken) < 2:
            return list(taken.values())
        groups: dict[tuple[str, object], list[Columns]] = {}
        for (node, topic), columns in taken.items():
            groups.setdefault((topic, self._topics[node].key_suffix_bytes if node in self._shared else node), []).append(columns)
        return [group[0] if len(group) == 1 else _merge_by_cause(group) for group in groups.values()]


def _sharing(topics: Mapping[str, OutputTopic]) -> frozenset[str]:
    """Return the nodes that may write to a topic of another one by the same rule of partitioning."""
    groups: dict[int, list[str]] = {}
    for node, output in topics.items():
        if not output.is_repartition:
            groups.setdefault(output.key_suffix_bytes, []).append(node)
    found: set[str] = set()
    for group in groups.values():
        named = [topics[node].topic for node in group]
        has_computed = any(topics[node].is_computed for node in group) and len(group) > 1
        found |= {node for node, topic in zip(group, named, strict=True) if has_computed or named.count(topic) > 1}
    return frozenset(found)


def _merge_by_cause(parts: Sequence[Columns]) -> Columns:
    chunks = [part.chunk() for part in parts]
    places = np.concatenate([block for part in parts for block in part.causes])
    merged = Columns(parts[0].node, parts[0].topic)
    order = np.argsort(places, kind="stable")
    merged.add_chunk(Chunk.concat(chunks).take(order))
    merged.causes.append(places[order])
    return merged


def merge_by_time(parts: Sequence[Columns]) -> Chunk:
    """Merge the outputs of tasks, given in order of partition, by the time of what caused them.

    Inside one task the order stays (times never fall); between tasks ties go to the lower partition. So a repartition topic
    gets the same order whichever task ran first.
    """
    if len(parts) == 1:
        return parts[0].chunk()
    times = np.concatenate([block for part in parts for block in part.times_ms])
    return Chunk.concat([part.chunk() for part in parts]).take(np.argsort(times, kind="stable"))
