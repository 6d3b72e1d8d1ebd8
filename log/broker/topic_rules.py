"""Which topics are being created, extended or deleted, and whether a change may begin."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from logflume.log.internal_topics import BROKER_TOPICS
from logflume.log.protocol import ErrorCode, KafkaError

from .schema_ids import VALIDATIONS, SchemaJudge
from .security.internal_topics import partitions_beyond
from .settings.lookup import BrokerConfig
from .state.cluster import ClusterState
from .state.metadata import Topic

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class TopicRules:
    """The changes of topics that are under way, and the rules for new ones.

    Attributes:
        busy: names of topics that are being created, extended or deleted (`apis/topic_changes.py`).
    """

    def __init__(
        self, cluster: ClusterState, config: BrokerConfig, schemas: SchemaJudge, *, count_partitions: Callable[[], int]
    ) -> None:
        """`count_partitions` counts those that are open."""
        self._cluster, self._config, self._schemas, self._count_partitions = cluster, config, schemas, count_partitions
        self.busy: set[str] = set()
        self._coming_partitions = 0

    @contextlib.contextmanager
    def changing(self, topics: Sequence[Topic], more_partitions: int) -> Iterator[None]:
        """Keep others from changing these topics, and count the partitions that they are about to have."""
        names = {topic.name for topic in topics}
        assert not names & self.busy, "checked by whoever begins a change"
        self.busy |= names
        self._coming_partitions += more_partitions
        try:
            yield
        finally:
            self.busy -= names
            self._coming_partitions -= more_partitions

    def check_not_busy(self, name: str) -> None:
        """Raise KafkaError REQUEST_TIMED_OUT, which clients retry, while the topic is being created, extended or deleted."""
        if name in self.busy:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"topic {name} is being created, extended or deleted by another request; try again"
            )

    def check_new(self, name: str, partition_count: int, configs: Mapping[str, str], *, others: int = 0) -> None:
        """Raise KafkaError if a topic like this cannot be created, beside so many partitions of others."""
        check_topic_name(name)
        if name in self._cluster.topics:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        self.check_not_busy(name)
        if name not in BROKER_TOPICS:
            self._check_count(partition_count)
        self._check_total(name, partition_count + others)
        self.check_configs(configs)

    def check_configs(self, configs: Mapping[str, str]) -> None:
        """Raise KafkaError INVALID_CONFIG for an unknown name or a value that is not valid."""
        for key, value in configs.items():
            self._config.lookup_topic(key, configs).spec.check(value)
            if key in VALIDATIONS and value == "true" and not self._schemas.has_registry:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    f"{key}=true needs confluent.schema.registry.url, a setting of the broker",
                )

    def check_more_partitions(self, topic: Topic, total: int, *, others: int = 0) -> None:
        """Raise KafkaError if a topic cannot have so many, beside so many new ones of others."""
        self.check_not_busy(topic.name)
        if total <= topic.partition_count:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {topic.name} currently has {topic.partition_count} partition(s); {total} would not be an increase.",
            )
        self._check_count(total)
        self._check_total(topic.name, total - topic.partition_count + others)

    def check_request_size(self, topics: int) -> None:
        """Raise KafkaError POLICY_VIOLATION if a request names more topics than one may."""
        most = self._config.number("logflume.request.max.topics")
        if topics > most:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"one request names {topics} topics; expected at most {most} (logflume.request.max.topics)",
            )

    def _check_count(self, count: int) -> None:
        most = self._config.number("logflume.topic.max.partitions")
        if not 1 <= count <= most:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"expected 1 to {most} partitions (logflume.topic.max.partitions), found {count}; choose fewer or more",
            )

    def _check_total(self, name: str, more: int) -> None:
        most = self._config.number("logflume.max.partitions")
        there = self._count_partitions() + self._coming_partitions
        beyond = partitions_beyond(name)
        if beyond is not None and there + more > most + beyond:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{there} partitions and {more} more would be over logflume.max.partitions, {most}"
                f"{f' and {beyond} for topics like {name}' if beyond else ''}; "
                "delete topics, choose fewer partitions or raise the setting",
            )


def check_topic_name(name: str) -> None:
    """Raise KafkaError INVALID_TOPIC_EXCEPTION unless the name is legal: letters, digits, '.', '_' and '-', up to 249."""
    if name in (".", "..") or not _NAME.fullmatch(name):
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"invalid topic name {name[:300]!r}: expected 1 to 249 ASCII letters, digits, '.', '_' and '-', and not '.' or '..'",
        )
