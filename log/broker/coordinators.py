"""Puts the coordinators of groups and transactions over the broker's journals and partitions."""

from __future__ import annotations

import operator
import uuid
from collections.abc import Iterable, Mapping, Sequence

from logflume.log.errors import LogflumeError
from logflume.log.internal_topics import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC

from . import groups, transactions
from .apis.metadata import address
from .apis.topic_changes import make_own
from .core import Core
from .groups import GroupConfig, GroupCoordinator
from .journal import DataPartitions, TopicJournal, open_in
from .ports import NewTopic
from .replies import Reply
from .requests import Handler, RequestContext
from .share import SharePartitions, ShareService
from .transactions import TransactionConfig, TransactionCoordinator

MAX_REMEMBERED_SETTINGS = 100_000


class Coordinators:
    """The coordinators of one broker. They read their journals when they are made. Raises StorageError, DecodeError."""

    def __init__(self, core: Core) -> None:
        self._core = core
        numbers = core.config.number
        self._offsets = TopicJournal(core, OFFSETS_TOPIC, partition_count=numbers("offsets.topic.num.partitions"))
        self._transactions = TopicJournal(
            core, TRANSACTIONS_TOPIC, partition_count=numbers("transaction.state.log.num.partitions")
        )
        self._partitions = DataPartitions(core)
        topics, settings = _Topics(core), GroupSettingsOf(core)
        states = TopicJournal(core, SHARE_STATE_TOPIC, partition_count=numbers("share.coordinator.state.topic.num.partitions"))
        share_partitions = SharePartitions(core.clock, core.timers, states, settings)
        share_partitions.load()
        self.groups = GroupCoordinator(
            _group_config(core),
            core.clock,
            core.timers,
            self._offsets,
            topics,
            settings,
            topics,
            share_partitions,
            new_id=lambda: str(uuid.uuid4()),
            offload=core.offload,
        )
        self.groups.load()
        core.topic_listeners.append(self.groups.removal.drop_topics)
        self._partitions.marker_listeners.append(self._on_marker)
        self.transactions = TransactionCoordinator(
            _transaction_config(core),
            core.clock,
            core.timers,
            self._transactions,
            self._partitions,
            new_producer_id=core.cluster.new_producer_id,
        )
        # After the groups: what it finishes reaches their offsets.
        self.transactions.load()
        core.mended_listeners.append(lambda log: self.transactions.on_partition_back(open_in(log)))
        self.share = ShareService(core, topics, settings, self.groups.share, share_partitions)

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API name."""
        of_groups = groups.handlers(self.groups, _Topics(self._core), self.transactions, self._node)
        of_transactions = transactions.handlers(
            self.transactions,
            self._partitions,
            self._core.clock,
            offsets_partition_count=self._offsets.partition_count,
        )
        return of_groups | self.share.handlers() | of_transactions

    def close(self) -> None:
        """Stop all timers."""
        self.groups.close()
        self.transactions.close()
        self.share.close()

    def _node(self, context: RequestContext) -> tuple[int, str, int]:
        return (self._core.node_id, *address(self._core, context))

    def _on_marker(self, topic: str, partition: int, producer_id: int, is_commit: bool) -> None:
        if topic == OFFSETS_TOPIC:
            self.groups.on_marker(partition, producer_id, is_commit=is_commit)


class GroupSettingsOf:
    """The settings of single groups, as they are in the broker's configs at the moment.

    They are remembered until configs change, as a share group asks for some with every fetch.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._numbers: dict[tuple[str, str], int] = {}
        self._texts: dict[tuple[str, str], str] = {}
        self._seen: tuple[object, ...] = ()

    def number(self, name: str, group_id: str) -> int:
        self._forget_old()
        found = self._numbers.get((name, group_id))
        if found is None:
            found = self._numbers[name, group_id] = self._core.config.group_number(name, self._core.group_configs(group_id))
        return found

    def text(self, name: str, group_id: str) -> str:
        self._forget_old()
        found = self._texts.get((name, group_id))
        if found is None:
            value = self._core.config.lookup_group(name, self._core.group_configs(group_id)).value
            found = self._texts[name, group_id] = value or ""
        return found

    def _forget_old(self) -> None:
        """Forget everything if configs changed: the cluster's state then has other dictionaries."""
        cluster = self._core.cluster
        configs = (cluster.group_configs, cluster.broker_configs, cluster.cluster_configs)
        is_same = len(configs) == len(self._seen) and all(map(operator.is_, configs, self._seen))
        if not is_same or len(self._numbers) + len(self._texts) > MAX_REMEMBERED_SETTINGS:
            self._numbers, self._texts, self._seen = {}, {}, configs


class _Topics:
    """The broker's topics as the coordinators see them. `_making`: set when the topics that are being made are there."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._making: Reply | None = None

    def exists(self, topic: str, partition: int) -> bool:
        return self._core.has_partition(topic, partition)

    def partition_count(self, topic: str) -> int:
        found = self._core.cluster.topics.get(topic)
        return found.partition_count if found else 0

    def names(self) -> Iterable[str]:
        return [topic.name for topic in self._core.cluster.topics.values() if not topic.is_internal]

    def name_of(self, topic_id: bytes) -> str | None:
        topic = self._core.cluster.by_id.get(topic_id)
        return topic.name if topic else None

    def id_of(self, topic: str) -> bytes | None:
        found = self._core.cluster.topics.get(topic)
        return found.topic_id if found else None

    def create(self, wanted: Sequence[NewTopic]) -> Reply:
        """Create topics; one such request at a time, as members of a group ask for the same ones at the same time."""
        if self._making is not None:
            later = Reply()
            self._making.then(lambda _: self.create(wanted).then(later.set))
            return later
        problems = {
            topic.name: f"expected a replication factor of 1 or -1 on a single broker, found {topic.replication_factor}"
            for topic in wanted
            if topic.replication_factor not in (-1, 0, 1)
        }
        possible = {topic.name: (topic.partitions, dict(topic.configs)) for topic in wanted if topic.name not in problems}
        made, self._making = make_own(self._core, possible), Reply()
        reply, over = Reply(), self._making

        def done(errors: Mapping[str, LogflumeError]) -> None:
            self._making = None
            reply.set(problems | {name: str(error) for name, error in errors.items()})
            over.set(None)

        made.then(done)
        return reply


def _group_config(core: Core) -> GroupConfig:
    numbers = core.config.number
    return GroupConfig(
        initial_rebalance_delay_ms=numbers("group.initial.rebalance.delay.ms"),
        min_session_timeout_ms=numbers("group.min.session.timeout.ms"),
        max_session_timeout_ms=numbers("group.max.session.timeout.ms"),
        max_size=numbers("group.max.size"),
        consumer_max_size=numbers("group.consumer.max.size"),
        streams_max_size=numbers("group.streams.max.size"),
        share_max_size=numbers("group.share.max.size"),
        consumer_migration_policy=core.config.text("group.consumer.migration.policy"),
        max_groups=numbers("logflume.max.groups"),
        offset_metadata_max_bytes=numbers("offset.metadata.max.bytes"),
        offsets_retention_check_interval_ms=numbers("offsets.retention.check.interval.ms"),
        offsets_retention_ms=numbers("offsets.retention.minutes") * 60_000,
    )


def _transaction_config(core: Core) -> TransactionConfig:
    numbers = core.config.number
    return TransactionConfig(
        max_timeout_ms=numbers("transaction.max.timeout.ms"),
        has_unlimited=core.config.is_on("transaction.two.phase.commit.enable"),
        id_expiration_ms=numbers("transactional.id.expiration.ms"),
        expiry_check_interval_ms=numbers("transaction.remove.expired.transaction.cleanup.interval.ms"),
        max_ids=numbers("logflume.max.transactional.ids"),
    )
