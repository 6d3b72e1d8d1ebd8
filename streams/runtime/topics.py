"""The topics of an application: which exist, which are created with what, and how many tasks follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from logflume.log import ErrorCode, InvalidInput, KafkaError, LogflumeError, TopicDescription
from logflume.log.interfaces import Admin, NewTopic
from logflume.streams.graph import TimeWindow
from logflume.streams.seams import OutputTopic, Plan, SubTopology, changelog_topic

from .rules import rules_of


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
    outputs, changelogs = _outputs(plan), _changelogs(plan)
    existing = admin.find_topics(sorted({*_sources(plan), *outputs, *changelogs.values()}))
    partitions = _known_partitions(plan, outputs, existing, admin)
    wanted = _new_outputs(plan, outputs, partitions)
    counts = {topic: existing[topic].partitions if topic in existing else new.partitions for topic, new in wanted.items()}
    partitions |= counts
    wanted |= _new_changelogs(plan, partitions)
    own = wanted.keys() - {topic for topic, out in outputs.items() if not out.is_repartition}
    _check_own(own, wanted, existing)
    made = existing | _create(admin, {topic: new for topic, new in wanted.items() if topic not in existing})
    _check_own(own, wanted, made)
    partitions |= {topic: made[topic].partitions for topic in outputs}
    _check_copartitioned(plan, partitions)
    return TopicMap(partitions, changelogs, frozenset(topic for topic, out in outputs.items() if out.is_repartition))


def create_results(plan: Plan, admin: Admin) -> None:
    """Create what is missing of the topics that others may read, before anybody runs the plan. Raises as `prepare_topics`."""
    outputs = _outputs(plan)
    existing = admin.find_topics(sorted({*_sources(plan), *outputs}))
    wanted = _new_outputs(plan, outputs, _known_partitions(plan, outputs, existing, admin))
    _create(admin, {t: new for t, new in wanted.items() if t not in existing and not outputs[t].is_repartition})


def count_partitions(plan: Plan, admin: Admin) -> dict[str, int]:
    """Return how many partitions each topic has, or would be created with. Changes nothing. Raises as `prepare_topics`."""
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
    missing = sorted(external - existing.keys())
    found = {**existing, **(admin.describe_topics(missing) if missing else {})}  # raises for what is not there
    partitions = {topic: found[topic].partitions for topic in sorted(external)}
    for topic in sorted(internal | (own & wanted - existing.keys())):
        partitions[topic] = _count(topic, plan, outputs, partitions, ())
    return partitions


def _check_own(own: Set[str], wanted: Mapping[str, NewTopic], found: Mapping[str, TopicDescription]) -> None:
    """Raise InvalidInput when a topic of the application itself has another number of partitions than it would be made with."""
    for topic in sorted(own & found.keys()):
        if found[topic].partitions != wanted[topic].partitions:
            raise InvalidInput(
                f"the application's own topic {topic!r} has {found[topic].partitions} partitions, the topology needs "
                f"{wanted[topic].partitions}: the number of partitions of a source has changed; restore it, or reset the "
                "application (delete its internal topics and state) to compute its state again"
            )


def _new_outputs(plan: Plan, outputs: Mapping[str, OutputTopic], partitions: Mapping[str, int]) -> dict[str, NewTopic]:
    """Return how each output topic is made, where it has to be."""
    found = {}
    for topic, out in sorted(outputs.items()):
        configs = _REPARTITION_CONFIGS if out.is_repartition else {**_OUTPUT_CONFIGS, **out.configs}
        found[topic] = NewTopic(partitions.get(topic) or _count(topic, plan, outputs, partitions, ()), configs)
    return found


def _new_changelogs(plan: Plan, partitions: Mapping[str, int]) -> dict[str, NewTopic]:
    """Return how each changelog is made, where it has to be."""
    return {
        changelog_topic(plan.application, spec.name): NewTopic(
            max(partitions[topic] for topic in sub.shared_topics()), changelog_configs(spec.window)
        )
        for sub in plan.subtopologies
        for spec in sub.program.stores
        if spec.name not in sub.table_sources
    }


_SEGMENT_BYTES = str(50 * 1024**2)
_OUTPUT_CONFIGS = {"retention.ms": "-1"}
"""Retention goes by the records' own time: results for last year's records would be deleted minutes after they are written."""
_KEEP_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}
_TIME_LIMIT = "message.timestamp.after.max.ms"
"""Unknown to Kafka before 3.6, which takes any time."""
_TAKE_ALL = {"max.message.bytes": str(16 * 1024**2), _TIME_LIMIT: str((1 << 63) - 1)}
"""Event times may lie ahead, and what the engine makes of a record may be larger than it was."""
_REPARTITION_CONFIGS = {"cleanup.policy": "delete", "message.timestamp.type": "CreateTime", **_KEEP_ALL, **_TAKE_ALL}
DEAD_LETTER_PARTITIONS = 1
_DEAD_LETTER_CONFIGS = {"cleanup.policy": "delete", **_KEEP_ALL, **_TAKE_ALL}
"""A dead letter keeps the time of its record, by which retention would take it for old."""


def ensure_dead_letter_topic(admin: Admin, topic: str) -> None:
    """Create a dead letter topic if it does not exist. Raises as `check_dead_letter_topic`."""
    _create(admin, {topic: NewTopic(DEAD_LETTER_PARTITIONS, _DEAD_LETTER_CONFIGS)})
    check_dead_letter_topic(admin, topic)


def check_dead_letter_topic(admin: Admin, topic: str) -> None:
    """Raise InvalidInput where a dead letter topic exists in which letters would replace each other."""
    try:
        rules = rules_of(admin.topic_configs(topic))
    except LogflumeError:
        return  # not there, or not allowed to ask
    if rules.needs_key:
        raise InvalidInput(
            f"the dead letter topic {topic!r} is compacted, so of the letters of one key the last alone would be kept; choose "
            "another topic, or set its cleanup.policy to delete"
        )


def _create(admin: Admin, wanted: Mapping[str, NewTopic]) -> dict[str, TopicDescription]:
    """Create those of these topics that do not exist; return all as they are."""
    try:
        return admin.ensure_topics(wanted)
    except KafkaError as error:
        if error.error is not ErrorCode.INVALID_CONFIG or not any(_TIME_LIMIT in new.configs for new in wanted.values()):
            raise
    known = {t: replace(new, configs={k: v for k, v in new.configs.items() if k != _TIME_LIMIT}) for t, new in wanted.items()}
    return admin.ensure_topics(known)


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
