"""Puts the coordinators of groups and transactions over the broker's journals and partitions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from logflume.log.protocol import ErrorCode

from . import groups
from .cluster import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from .core import Core
from .groups import GroupConfig, GroupCoordinator, TxnAdmission
from .journal import DataPartitions, TopicJournal
from .metadata import address
from .seams import Handler, Reply, RequestContext


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
        self.groups = GroupCoordinator(
            _group_config(core), core.clock, core.timers, self._offsets, _Topics(core), new_id=lambda: str(uuid.uuid4())
        )
        self.groups.load()
        core.topic_listeners.append(lambda topic: self.groups.on_topics_deleted([topic]))
        self._partitions.marker_listeners.append(self._on_marker)
        self.admission: TxnAdmission = _NoTransactions()

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API name."""
        return groups.handlers(self.groups, _Topics(self._core), self.admission, self._node)

    def close(self) -> None:
        """Stop all timers."""
        self.groups.close()

    def _node(self, context: RequestContext) -> tuple[int, str, int]:
        return (self._core.node_id, *address(self._core, context))

    def _on_marker(self, topic: str, partition: int, producer_id: int, is_commit: bool) -> None:
        if topic == OFFSETS_TOPIC:
            self.groups.on_marker(partition, producer_id, is_commit=is_commit)


class _NoTransactions:
    """Admission of a broker without a transaction coordinator: none."""

    def admit(
        self, transactional_id: str, producer_id: int, producer_epoch: int, topic: str, partition: int, *, can_add: bool
    ) -> ErrorCode | Reply:
        return ErrorCode.INVALID_TXN_STATE


class _Topics:
    """The broker's topics as the coordinators see them."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def exists(self, topic: str, partition: int) -> bool:
        return self._core.partition(topic, partition) is not None

    def name_of(self, topic_id: bytes) -> str | None:
        topic = self._core.cluster.by_id.get(topic_id)
        return topic.name if topic else None

    def id_of(self, topic: str) -> bytes | None:
        found = self._core.cluster.topics.get(topic)
        return found.topic_id if found else None


def _group_config(core: Core) -> GroupConfig:
    numbers = core.config.number
    return GroupConfig(
        initial_rebalance_delay_ms=numbers("group.initial.rebalance.delay.ms"),
        min_session_timeout_ms=numbers("group.min.session.timeout.ms"),
        max_session_timeout_ms=numbers("group.max.session.timeout.ms"),
        max_size=numbers("group.max.size"),
        offset_metadata_max_bytes=numbers("offset.metadata.max.bytes"),
        offsets_retention_ms=numbers("offsets.retention.minutes") * 60_000,
    )
