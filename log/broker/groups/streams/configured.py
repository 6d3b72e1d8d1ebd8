"""How many tasks a topology has, and which internal topics it still needs: what follows from it and the topics that exist.

A repartition topic has as many partitions as it says, else as many as the largest input of what writes to it; sources of a
copartition group must agree, and its repartition topics follow them; a changelog has one partition per task. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from logflume.log.broker.groups.refused import Refused
from logflume.log.broker.ports import Topics
from logflume.log.protocol.errors import ErrorCode

from .topology import InternalTopic, Subtopology, Topology

TASKS_MAX = 20_000
NAMES_SHOWN = 3


class Status(IntEnum):
    """What a member is told about its group, besides its tasks."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


Told = tuple[Status, str]


@dataclass(frozen=True, slots=True)
class Configured:
    """A topology with its topics. `task_counts`: by sub-topology id, empty while there is a `problem` that leaves it open.

    `missing`: internal topics to be made, with their numbers of partitions. `problem`: why no task can be given out.
    """

    topology: Topology
    task_counts: Mapping[str, int]
    missing: tuple[InternalTopic, ...] = ()
    problem: Told | None = None


class _Problem(Exception):
    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.told = (status, text)


def configure(topology: Topology, topics: Topics) -> Configured:
    """Return what follows from the topics that exist. Raises Refused STREAMS_INVALID_TOPOLOGY: the topology cannot work."""
    try:
        sources = {name for each in topology.subtopologies for name in each.sources}
        missing_sources = sorted(name for name in sources if not topics.partition_count(name))
        if missing_sources:
            raise _Problem(Status.MISSING_SOURCE_TOPICS, f"Source topics {_some(missing_sources)} are missing.")
        counts = _decide(topology, topics)
        task_counts = {each.subtopology_id: max(counts[name] for name in each.inputs) for each in topology.subtopologies}
        if sum(task_counts.values()) > TASKS_MAX:
            text = f"expected at most {TASKS_MAX} tasks, found {sum(task_counts.values())}"
            raise Refused(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)
        missing = tuple(_missing(topology, topics, counts, task_counts))
    except _Problem as problem:
        return Configured(topology, {}, problem=problem.told)
    if missing:
        text = f"Internal topics are missing: {_some([topic.name for topic in missing])}"
        return Configured(topology, task_counts, missing, (Status.MISSING_INTERNAL_TOPICS, text))
    return Configured(topology, task_counts)


def _decide(topology: Topology, topics: Topics) -> dict[str, int]:
    """Return the number of partitions of every input."""
    fixed = {t.name: t.partitions for each in topology.subtopologies for t in each.repartitions if t.partitions}
    counts = {name: topics.partition_count(name) for each in topology.subtopologies for name in each.sources} | fixed
    _spread(topology, counts)
    for each in topology.subtopologies:
        for name in each.inputs:
            if name not in counts:
                raise Refused(
                    ErrorCode.STREAMS_INVALID_TOPOLOGY,
                    "Failed to compute number of partitions for all repartition topics: "
                    f"nothing that has an input of its own writes to {name}.",
                )
    for each in topology.subtopologies:
        for group in each.copartition_groups:
            repartitions = [each.repartitions[i].name for i in group.repartitions]
            _copartition(counts, [each.sources[i] for i in group.sources], repartitions, fixed)
    return counts


def _spread(topology: Topology, counts: dict[str, int]) -> None:
    """Carry numbers of partitions along the repartition topics until nothing follows any more."""
    is_moving = True
    while is_moving:
        is_moving = False
        for each in topology.subtopologies:
            known = [counts[name] for name in each.inputs if name in counts]
            for sink in each.sinks:
                if known and sink not in counts:
                    counts[sink] = max(known)
                    is_moving = True


def _copartition(counts: dict[str, int], sources: list[str], repartitions: list[str], fixed: Mapping[str, int]) -> None:
    """Give the repartition topics of a group the number of partitions that the group has to have."""
    leading = {name: counts[name] for name in sources or [name for name in repartitions if name in fixed]}
    if len(set(leading.values())) > 1:
        found = ", ".join(f"{name}={count}" for name, count in sorted(leading.items()))
        text = f"Following topics do not have the same number of partitions: [{found}]"
        raise _Problem(Status.INCORRECTLY_PARTITIONED_TOPICS, text)
    needed = max((leading or {name: counts[name] for name in repartitions}).values(), default=0)
    for name in repartitions:
        if name in fixed and counts[name] != needed:
            raise _Problem(
                Status.INCORRECTLY_PARTITIONED_TOPICS,
                f"Number of partitions [{counts[name]}] of repartition topic [{name}] doesn't match number of partitions "
                f"[{needed}] of the source topic.",
            )
        counts[name] = needed


def _missing(
    topology: Topology, topics: Topics, counts: Mapping[str, int], task_counts: Mapping[str, int]
) -> Iterable[InternalTopic]:
    """Yield the internal topics that do not exist, each once, with their numbers of partitions."""
    seen: set[str] = set()
    for each in topology.subtopologies:
        for topic, count in _internal(each, counts, task_counts):
            existing = topics.partition_count(topic.name)
            if existing and existing != count:
                raise _Problem(
                    Status.INCORRECTLY_PARTITIONED_TOPICS,
                    f"Existing topic {topic.name} has different number of partitions: expected {count}, found {existing}",
                )
            if not existing and topic.name not in seen:
                seen.add(topic.name)
                yield InternalTopic(topic.name, count, topic.replication_factor, topic.configs)


def _internal(
    subtopology: Subtopology, counts: Mapping[str, int], task_counts: Mapping[str, int]
) -> Iterable[tuple[InternalTopic, int]]:
    yield from ((topic, counts[topic.name]) for topic in subtopology.repartitions)
    yield from ((topic, task_counts[subtopology.subtopology_id]) for topic in subtopology.changelogs)


def _some(names: list[str]) -> str:
    rest = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {rest} additional topics" if rest > 0 else "")
