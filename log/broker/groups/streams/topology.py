"""The topology of a streams application as its members tell it: sub-topologies, their topics, which of those go together.

Frozen data, compared by value: all members of a group have to tell the same. Messages come from clients, so what they point to
is checked here, and their size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from logflume.log.broker.groups.refused import Refused
from logflume.log.protocol import codec, messages
from logflume.log.protocol.errors import ErrorCode

SUBTOPOLOGIES_MAX = 1_000
SIZE_MAX_BYTES = 512 * 1024
"""It has to fit into one record of `__consumer_offsets`, with room for the rest of the batch."""


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A repartition or changelog topic.

    `partitions` 0: as many as follow from the sources; `replication_factor` 0 or -1: the broker's default.
    """

    name: str
    partitions: int
    replication_factor: int
    configs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CopartitionGroup:
    """Sources that must have as many partitions as each other: indexes into those of the sub-topology."""

    sources: tuple[int, ...]
    repartitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Subtopology:
    """A part of a topology whose partitions are tasks. `sinks`: repartition topics that it writes to."""

    subtopology_id: str
    sources: tuple[str, ...]
    changelogs: tuple[InternalTopic, ...]
    sinks: tuple[str, ...]
    repartitions: tuple[InternalTopic, ...]
    copartition_groups: tuple[CopartitionGroup, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """All topics that it reads."""
        return (*self.sources, *(topic.name for topic in self.repartitions))


@dataclass(frozen=True, slots=True)
class Topology:
    """All sub-topologies, in the order of their ids."""

    epoch: int
    subtopologies: tuple[Subtopology, ...]

    def topics(self) -> frozenset[str]:
        """Return every topic that has to exist."""
        return frozenset(
            name for each in self.subtopologies for name in (*each.inputs, *(topic.name for topic in each.changelogs))
        )

    def reader_of(self, topic: str) -> str | None:
        """Return the id of the sub-topology that reads a topic."""
        return next((each.subtopology_id for each in self.subtopologies if topic in each.inputs), None)


def read_topology(message: messages.StreamsGroupHeartbeatRequest.Topology | messages.StreamsGroupTopologyValue) -> Topology:
    """Read a topology from a heartbeat or a record (their fields have the same names)."""
    subtopologies = [
        Subtopology(
            subtopology_id=each.subtopology_id,
            sources=tuple(each.source_topics),
            changelogs=_internal_topics(each.state_changelog_topics),
            sinks=tuple(each.repartition_sink_topics),
            repartitions=_internal_topics(each.repartition_source_topics),
            copartition_groups=tuple(
                CopartitionGroup(tuple(group.source_topics), tuple(group.repartition_source_topics))
                for group in each.copartition_groups
            ),
        )
        for each in message.subtopologies
    ]
    return Topology(message.epoch, tuple(sorted(subtopologies, key=lambda each: each.subtopology_id)))


def _internal_topics(
    topics: Iterable[messages.StreamsGroupHeartbeatRequest.TopicInfo | messages.StreamsGroupTopologyValue.TopicInfo],
) -> tuple[InternalTopic, ...]:
    return tuple(
        InternalTopic(each.name, each.partitions, each.replication_factor, tuple((c.key, c.value) for c in each.topic_configs))
        for each in topics
    )


def check_topology(topology: Topology) -> None:
    """Raise Refused STREAMS_INVALID_TOPOLOGY for one that cannot be, or is too large."""

    def require(is_true: bool, text: str) -> None:
        if not is_true:
            raise Refused(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)

    count = len(topology.subtopologies)
    require(count <= SUBTOPOLOGIES_MAX, f"expected at most {SUBTOPOLOGIES_MAX} sub-topologies, found {count}")
    require(topology.epoch >= 0, f"expected an epoch of 0 or more, found {topology.epoch}")
    require(len({each.subtopology_id for each in topology.subtopologies}) == count, "two sub-topologies have one id")
    for each in topology.subtopologies:
        require(bool(each.inputs), f"No source topics found for subtopology {each.subtopology_id}")
        for topic in each.changelogs:
            require(
                topic.partitions == 0,
                f"Changelog topic {topic.name} must have an undefined partition count, but it is set to {topic.partitions}.",
            )
        require(all(topic.partitions >= 0 for topic in each.repartitions), "a repartition topic has less than 0 partitions")
        for group in each.copartition_groups:
            is_inside = all(0 <= i < len(each.sources) for i in group.sources)
            is_inside = is_inside and all(0 <= i < len(each.repartitions) for i in group.repartitions)
            require(is_inside, f"a copartition group of subtopology {each.subtopology_id} names a topic that is not there")
    size_bytes = len(write_topology(topology))
    require(size_bytes <= SIZE_MAX_BYTES, f"expected a topology of at most {SIZE_MAX_BYTES} bytes, found {size_bytes}")


def write_topology(topology: Topology) -> bytes:
    """Return the body of its record."""
    value = messages.StreamsGroupTopologyValue

    def infos(topics: tuple[InternalTopic, ...]) -> list[messages.StreamsGroupTopologyValue.TopicInfo]:
        return [
            value.TopicInfo(
                name=topic.name,
                partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                topic_configs=[value.TopicConfig(key=key, value=text) for key, text in topic.configs],
            )
            for topic in topics
        ]

    subtopologies = [
        value.Subtopology(
            subtopology_id=each.subtopology_id,
            source_topics=list(each.sources),
            state_changelog_topics=infos(each.changelogs),
            repartition_sink_topics=list(each.sinks),
            repartition_source_topics=infos(each.repartitions),
            copartition_groups=[
                value.CopartitionGroup(source_topics=list(group.sources), repartition_source_topics=list(group.repartitions))
                for group in each.copartition_groups
            ],
        )
        for each in topology.subtopologies
    ]
    return codec.encode_data(value(epoch=topology.epoch, subtopologies=subtopologies), 0)
