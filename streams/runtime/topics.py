"""The topics of an application: which exist, which are created with what, and how many tasks follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from logflume.log import ErrorCode, InvalidInput, KafkaError, TopicDescription
from logflume.log.interfaces import Admin
from logflume.streams.graph import TimeWindow
from logflume.streams.seams import OutputTopic, Plan, SubTopology, changelog_topic


@dataclass(frozen=True, slots=True)
class TopicMap:
    """The topics as they are now. `partitions`: topic -> number; `changelogs`: (sub-topology, store) -> topic."""

    partitions: Mapping[str, int]
    changelogs: Mapping[tuple[str, str], str]
    repartition_topics: frozenset[str]

    def task_count(self, subtopology: SubTopology) -> int:
        """Return the number of tasks: partitions of the largest source topic."""
        return max(self.partitions[topic] for topic in subtopology.shared_topics())


def prepare_topics(plan: Plan, admin: Admin) -> TopicMap:
    """Check the sources, create what is missing of outputs, repartition topics and changelogs.

    Raises:
        UnknownName: a source topic does not exist (near matches listed).
        InvalidInput: inputs that are joined differ in their number of partitions, or an internal topic has the wrong number.
    """
    _check_one_reader(plan)
    outputs = _outputs(plan)
    internal = {topic for topic, out in outputs.items() if out.is_repartition}
    existing = admin.find_topics(sorted({*_sources(plan), *outputs, *_changelogs(plan).values()}))
    partitions = _known_partitions(plan, outputs, existing, admin)
    for topic, out in sorted(outputs.items()):
        count = partitions.get(topic) or _count(topic, plan, outputs, partitions, ())
        partitions[topic] = _ensure_output(topic, out, count, existing, admin)
    _check_copartitioned(plan, partitions)
    changelogs = _ensure_changelogs(plan, partitions, existing, admin)
    return TopicMap(partitions, changelogs, frozenset(internal))


def create_results(plan: Plan, admin: Admin) -> None:
    """Create what is missing of the topics that others may read, before anybody runs the plan. Raises as `prepare_topics`."""
    outputs = _outputs(plan)
    existing = admin.find_topics(sorted({*_sources(plan), *outputs}))
    partitions = _known_partitions(plan, outputs, existing, admin)
    for topic, out in sorted(outputs.items()):
        if not out.is_repartition:
            count = partitions.get(topic) or _count(topic, plan, outputs, partitions, ())
            _ensure_output(topic, out, count, existing, admin)


def count_partitions(plan: Plan, admin: Admin) -> dict[str, int]:
    """Return how many partitions each topic has, or would be created with. Changes nothing. Raises as `prepare_topics`."""
    _check_one_reader(plan)
    outputs = _outputs(plan)
    existing = admin.find_topics(sorted({*_sources(plan), *outputs}))
    partitions = _known_partitions(plan, outputs, existing, admin)
    for topic in sorted(outputs):
        if topic in existing:
            partitions[topic] = existing[topic].partitions
        elif topic not in partitions:
            partitions[topic] = _count(topic, plan, outputs, partitions, ())
    _check_copartitioned(plan, partitions)
    return partitions


def _outputs(plan: Plan) -> dict[str, OutputTopic]:
    return {topic: out for sub in plan.subtopologies for out in sub.outputs.values() for topic in out.topics()}


def _sources(plan: Plan) -> set[str]:
    return {topic for sub in plan.subtopologies for topic in sub.program.sources.values()}


def _known_partitions(
    plan: Plan, outputs: Mapping[str, OutputTopic], existing: Mapping[str, TopicDescription], admin: Admin
) -> dict[str, int]:
    """Return how many partitions the sources have, those that are yet to be created included."""
    internal = {topic for topic, out in outputs.items() if out.is_repartition}
    wanted = _sources(plan)
    own = {topic for topic, out in outputs.items() if not out.is_repartition}
    external = wanted - internal - (own - existing.keys())
    found = {**existing, **admin.describe_topics(sorted(external - existing.keys()))}  # raises for what is not there
    partitions = {topic: found[topic].partitions for topic in sorted(external)}
    for topic in sorted(internal | (own & wanted - existing.keys())):
        partitions[topic] = _count(topic, plan, outputs, partitions, ())
    return partitions


def _ensure_output(topic: str, out: OutputTopic, count: int, existing: Mapping[str, TopicDescription], admin: Admin) -> int:
    """Create an output topic if it does not exist; return how many partitions it has."""
    configs = _REPARTITION_CONFIGS if out.is_repartition else {**_OUTPUT_CONFIGS, **out.configs}
    found = existing.get(topic) or ensure_topic(admin, topic, count, configs)
    if out.is_repartition and found.partitions != count:
        raise InvalidInput(
            f"repartition topic {topic!r} has {found.partitions} partitions, the topology needs {count}; reset the "
            "application (delete its internal topics and state) or restore the partition count of its sources"
        )
    return found.partitions


_SEGMENT_BYTES = str(50 * 1024**2)
_OUTPUT_CONFIGS = {"retention.ms": "-1"}
"""Retention goes by the records' own time: results for last year's records would be deleted minutes after they are written."""
_KEEP_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}
_TIME_LIMIT = "message.timestamp.after.max.ms"
"""Unknown to Kafka before 3.6, which takes any time."""
_TAKE_ALL = {"max.message.bytes": str(16 * 1024**2), _TIME_LIMIT: str((1 << 63) - 1)}
"""Event times may lie ahead, and what the engine makes of a record may be larger than it was."""
_REPARTITION_CONFIGS = {"cleanup.policy": "delete", "message.timestamp.type": "CreateTime", **_KEEP_ALL, **_TAKE_ALL}
DEAD_LETTER_CONFIGS = {"cleanup.policy": "delete", **_KEEP_ALL, **_TAKE_ALL}
"""A dead letter keeps the time of its record, by which retention would take it for old."""


def ensure_topic(admin: Admin, topic: str, partitions: int, configs: Mapping[str, str]) -> TopicDescription:
    """Create a topic if it does not exist; return it as it is."""
    try:
        return admin.ensure_topic(topic, partitions=partitions, configs=configs)
    except KafkaError as error:
        if error.error is not ErrorCode.INVALID_CONFIG or _TIME_LIMIT not in configs:
            raise
    known = {name: value for name, value in configs.items() if name != _TIME_LIMIT}
    return admin.ensure_topic(topic, partitions=partitions, configs=known)


def changelog_configs(window: TimeWindow | None) -> dict[str, str]:
    """Return a changelog's configs: compacted; for windows its task also has deleted what has expired (`state/trimming.py`).

    Segments are small, for the one that is written to is never compacted.
    """
    common = {"segment.bytes": _SEGMENT_BYTES, **_TAKE_ALL}
    if window is None:
        return {"cleanup.policy": "compact", **common}
    return {"cleanup.policy": "compact,delete", **common, **_KEEP_ALL}


def _count(
    topic: str, plan: Plan, outputs: Mapping[str, OutputTopic], known: Mapping[str, int], visiting: tuple[str, ...]
) -> int:
    """Return how many partitions a topic to be created gets.

    A repartition topic follows the topics it is read together with; any other output, and a repartition topic read alone, the
    largest source of the sub-topology that writes it.
    """
    if topic in known:
        return known[topic]
    out = outputs[topic]
    if out.partitions is not None:
        return out.partitions
    if topic in visiting:
        raise InvalidInput(f"topic {topic!r} feeds itself, so its number of partitions must be given")
    if out.is_repartition:
        for sub in plan.subtopologies:
            sources = sub.shared_topics()
            beside = [known[other] for other in sources - {topic} if other in known and other not in outputs]
            if topic in sources and beside:
                return max(beside)
    writers = [sub for sub in plan.subtopologies if any(topic in o.topics() for o in sub.outputs.values())]
    inputs = sorted({source for sub in writers for source in sub.shared_topics()})
    return max(_count(source, plan, outputs, known, (*visiting, topic)) for source in inputs)


def _check_one_reader(plan: Plan) -> None:
    readers: dict[str, str] = {}
    for sub in plan.subtopologies:
        for topic in set(sub.program.sources.values()):
            if topic in readers:
                raise InvalidInput(
                    f"topic {topic!r} is read by two sub-topologies, {readers[topic]!r} and {sub.name!r}; make it one"
                )
            readers[topic] = sub.name


def _check_copartitioned(plan: Plan, partitions: Mapping[str, int]) -> None:
    for sub in plan.subtopologies:
        counts = {topic: partitions[topic] for topic in sub.shared_topics()}
        if sub.program.stores and len(set(counts.values())) > 1:
            raise InvalidInput(
                f"sub-topology {sub.name!r} joins topics with different numbers of partitions, so equal keys would not meet: "
                + ", ".join(f"{topic} has {count}" for topic, count in sorted(counts.items()))
                + "; repartition one of them to the other's number"
            )


def _changelogs(plan: Plan) -> dict[tuple[str, str], str]:
    """Return the topic of each store's changes: its own, or the one that it is read from."""
    return {
        (sub.name, spec.name): sub.program.sources[sub.table_sources[spec.name]]
        if spec.name in sub.table_sources
        else changelog_topic(plan.application, spec.name)
        for sub in plan.subtopologies
        for spec in sub.program.stores
    }


def _ensure_changelogs(
    plan: Plan, partitions: Mapping[str, int], existing: Mapping[str, TopicDescription], admin: Admin
) -> dict[tuple[str, str], str]:
    changelogs = _changelogs(plan)
    for sub in plan.subtopologies:
        count = max(partitions[topic] for topic in sub.shared_topics())
        for spec in sub.program.stores:
            if spec.name in sub.table_sources:
                continue
            topic = changelogs[sub.name, spec.name]
            found = existing.get(topic) or ensure_topic(admin, topic, count, changelog_configs(spec.window))
            if found.partitions != count:
                raise InvalidInput(
                    f"changelog {topic!r} has {found.partitions} partitions, the topology needs {count}: the number of "
                    "partitions of a source has changed; reset the application to compute its state again"
                )
    return changelogs
