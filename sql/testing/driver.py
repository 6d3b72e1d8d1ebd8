"""Feeds records to a topology one at a time and hands back what it puts out, through its repartition topics. No log, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from logflume.log import Headers
from logflume.log.records import Chunk
from logflume.streams import Topology, plan
from logflume.streams.state import Store


@dataclass(frozen=True, slots=True)
class Output:
    """A record that a topology wrote."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that was dropped or nulled."""

    reason: str
    node: str
    cause: object


class _Collector:
    """Implements `seams.Outputs` and `seams.Problems`."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes | None, bytes | None, int]] = []
        self.problems: list[Problem] = []

    def send(
        self,
        node: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps_ms: Sequence[int],
        *,
        headers: Sequence[Any] | None = None,
        causes: Sequence[int] | None = None,
    ) -> None:
        self.sent.extend((node, k, v, t) for k, v, t in zip(keys, values, timestamps_ms, strict=True))

    def report(self, reason: str, node: str, topic: str, partition: int, offset: int, cause: object) -> None:
        self.problems.append(Problem(reason, node, cause))


class Driver:
    """Runs all sub-topologies of a topology on one partition; each record is worked off to the end before the next."""

    def __init__(self, topology: Topology) -> None:
        self._plan = plan(topology)
        self._collector = _Collector()
        self._offsets: dict[str, int] = {}
        self._readers: list[tuple[str, str, Any]] = []
        self._topics: dict[str, str] = {}
        self._internal: set[str] = set()
        for sub in self._plan.subtopologies:
            stores = {spec.name: Store(spec) for spec in sub.program.stores}
            task = sub.program.bind(stores, self._collector, self._collector)
            self._readers += [(topic, node, task) for node, topic in sub.program.sources.items()]
            for node, target in sub.outputs.items():
                self._topics[node] = target.topic
                if target.is_repartition:
                    self._internal.add(target.topic)

    @property
    def problems(self) -> list[Problem]:
        return self._collector.problems

    @property
    def internal_topics(self) -> set[str]:
        """Repartition topics."""
        return self._internal

    @property
    def sources(self) -> set[str]:
        """Topics read from outside."""
        return {topic for topic, _, _ in self._readers} - self._internal

    def process(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp_ms: int, headers: Headers = ()
    ) -> list[Output]:
        """Process one record to the end; return what went to topics that are not internal, in order."""
        done: list[Output] = []
        waiting = [Output(topic, key, value, timestamp_ms, headers)]
        while waiting:
            record = waiting.pop(0)
            for sent in self._step(record):
                if sent.topic in self._internal:
                    waiting.append(sent)
                else:
                    done.append(sent)
        return done

    def _step(self, record: Output) -> list[Output]:
        offset = self._offsets.get(record.topic, 0)
        self._offsets[record.topic] = offset + 1
        chunk = Chunk.from_columns(
            record.topic, [record.key], [record.value], [record.timestamp_ms], partition=0, headers=[record.headers]
        )
        chunk.offsets[0] = offset
        for topic, node, task in self._readers:
            if topic == record.topic:
                task.process(node, chunk, 0, 1)
                task.flush()
        sent, self._collector.sent = self._collector.sent, []
        return [Output(self._topics[node], k, v, t, record.headers) for node, k, v, t in sent]
