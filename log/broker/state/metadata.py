"""The metadata of a cluster as data, the records that change them, and `applied`, the one function that makes a change. Pure.

Whoever changes something of the metadata writes one of these records (`ClusterState.now`, `later`); there is no other way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from logflume.log.internal_topics import BROKER_TOPICS

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, eq=False)
class Topic:
    """A topic: 16 bytes of id, number of partitions, its own configs (those that differ from the broker's)."""

    name: str
    topic_id: bytes
    partition_count: int
    configs: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        return self.name in BROKER_TOPICS


@dataclass(frozen=True, slots=True)
class Metadata:
    """What is known of a cluster. `deleting`: topics that are gone, but perhaps not their files; `documents`: what other parts
    of the broker keep, as JSON by name; `producer_id_limit`: every id below may have been given out."""

    topics: Mapping[str, Topic] = field(default_factory=dict)
    deleting: tuple[Topic, ...] = ()
    broker_configs: Mapping[str, str] = field(default_factory=dict)
    cluster_configs: Mapping[str, str] = field(default_factory=dict)
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    documents: Mapping[str, Any] = field(default_factory=dict)
    producer_id_limit: int = 0


@dataclass(frozen=True, slots=True)
class TopicsAdded:
    """Topics of new names, whose partitions were made."""

    topics: tuple[Topic, ...]


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    """Topic -> its new, larger number of partitions."""

    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TopicConfigsSet:
    """All configs that a topic has of its own; one that was deleted meanwhile has none."""

    topic_id: bytes
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DeletionBegun:
    """Topics that are no more; their files are to be deleted, then it is over."""

    topic_ids: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class DeletionFinished:
    topic_ids: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class BrokerConfigsSet:
    """All dynamic configs of this broker."""

    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ClusterConfigsSet:
    """All dynamic configs that are defaults of every broker."""

    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class GroupConfigsSet:
    """All configs that a group has of its own; a group without any is forgotten."""

    group_id: str
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DocumentSet:
    """What another part of the broker keeps under a name, as JSON: ACLs, quotas, credentials and the like."""

    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class ProducerIdsReserved:
    """Ids up to here, this one not included, may be given out."""

    limit: int


Record = (
    TopicsAdded
    | PartitionsAdded
    | TopicConfigsSet
    | DeletionBegun
    | DeletionFinished
    | BrokerConfigsSet
    | ClusterConfigsSet
    | GroupConfigsSet
    | DocumentSet
    | ProducerIdsReserved
)


def applied(metadata: Metadata, record: Record) -> Metadata:
    """Return the metadata after a change; what it does not concern stays the same object."""
    match record:
        case TopicsAdded() | PartitionsAdded() | TopicConfigsSet() | DeletionBegun() | DeletionFinished():
            return _topics_changed(metadata, record)
        case BrokerConfigsSet():
            return replace(metadata, broker_configs=dict(record.configs))
        case ClusterConfigsSet():
            return replace(metadata, cluster_configs=dict(record.configs))
        case GroupConfigsSet():
            groups = {name: own for name, own in metadata.group_configs.items() if name != record.group_id}
            if record.configs:
                groups[record.group_id] = dict(record.configs)
            return replace(metadata, group_configs=groups)
        case DocumentSet():
            return replace(metadata, documents={**metadata.documents, record.name: record.value})
        case ProducerIdsReserved():
            return replace(metadata, producer_id_limit=record.limit)
        case _:
            assert_never(record)


def _topics_changed(
    metadata: Metadata, record: TopicsAdded | PartitionsAdded | TopicConfigsSet | DeletionBegun | DeletionFinished
) -> Metadata:
    topics = dict(metadata.topics)
    match record:
        case TopicsAdded():
            for topic in record.topics:
                assert topic.name not in topics, topic.name
                topics[topic.name] = topic
        case PartitionsAdded():
            for name, count in record.counts.items():
                assert count > topics[name].partition_count, (name, count)
                topics[name] = replace(topics[name], partition_count=count)
        case TopicConfigsSet():
            for topic in metadata.topics.values():
                if topic.topic_id == record.topic_id:
                    topics[topic.name] = replace(topic, configs=dict(record.configs))
        case DeletionBegun():
            gone = [topic for topic in topics.values() if topic.topic_id in record.topic_ids]
            for topic in gone:
                del topics[topic.name]
            return replace(metadata, topics=topics, deleting=(*metadata.deleting, *gone))
        case DeletionFinished():
            left = tuple(topic for topic in metadata.deleting if topic.topic_id not in record.topic_ids)
            return replace(metadata, deleting=left)
        case _:
            assert_never(record)
    return replace(metadata, topics=topics)


def to_json(metadata: Metadata) -> dict[str, Any]:
    return {
        "version": FORMAT_VERSION,
        "producer_id_limit": metadata.producer_id_limit,
        "broker_configs": metadata.broker_configs,
        "documents": metadata.documents,
        "cluster_configs": metadata.cluster_configs,
        "group_configs": metadata.group_configs,
        "topics": [_topic_to_json(topic) for topic in metadata.topics.values()],
        "deleting": [_topic_to_json(topic) for topic in metadata.deleting],
    }


def from_json(content: Mapping[str, Any]) -> Metadata:
    """Raises ValueError, KeyError, TypeError: it is not what `to_json` makes."""
    topics = [_topic_from_json(each) for each in content["topics"]]
    return Metadata(
        topics={topic.name: topic for topic in topics},
        deleting=tuple(_topic_from_json(each) for each in content["deleting"]),
        broker_configs=dict(content["broker_configs"]),
        cluster_configs=dict(content.get("cluster_configs", {})),
        group_configs={name: dict(own) for name, own in content.get("group_configs", {}).items()},
        documents=dict(content.get("documents", {})),
        producer_id_limit=int(content["producer_id_limit"]),
    )


def _topic_to_json(topic: Topic) -> dict[str, Any]:
    return {"name": topic.name, "id": topic.topic_id.hex(), "partitions": topic.partition_count, "configs": topic.configs}


def _topic_from_json(value: Mapping[str, Any]) -> Topic:
    return Topic(value["name"], bytes.fromhex(value["id"]), int(value["partitions"]), dict(value["configs"]))
