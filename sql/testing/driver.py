"""One query of a case on the topology test driver: bytes in, what came out of it in order."""

from __future__ import annotations

from dataclasses import dataclass

from logflume.log.records import Headers
from logflume.streams import Topology
from logflume.streams.graph import Repartition, Sink, Source
from logflume.streams.planner import rewrite
from logflume.streams.testing import TopologyTestDriver


@dataclass(frozen=True, slots=True)
class Output:
    """A record of a topic."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers = ()


class Driver:
    """Runs a topology on one partition; each record is worked off to the end before the next."""

    def __init__(self, topology: Topology) -> None:
        nodes = rewrite(topology).nodes.values()
        self.internal_topics = {n.topic for n in nodes if isinstance(n, Repartition)}
        self.sources = {n.topic for n in nodes if isinstance(n, Source)}
        self._sinks = [n.topic for n in nodes if isinstance(n, Sink)]
        self._driver = TopologyTestDriver(topology, on_problem="skip")

    def process(self, record: Output) -> list[Output]:
        """Process one record to the end; return what went to sinks, in order."""
        self._driver.process(record.topic, record.key, record.value, record.timestamp_ms, headers=record.headers)
        found: list[Output] = []
        for topic in self._sinks:
            written = self._driver.output(topic).raw
            found += [Output(topic, key, value, time, headers) for key, value, time, headers in written]
            written.clear()
        return found
