"""The settings of the group coordinator that are the same for all groups, each under Kafka's own name in the docstring."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Settings of the group coordinator.

    Attributes:
        initial_rebalance_delay_ms: `group.initial.rebalance.delay.ms`. How long the first rebalance of an empty group waits for
            more members. Kafka's 3000 spares a large deployment a few rebalances and costs everybody else three
            seconds at each start. 50 ms still catches the members that one process or one test starts together (they join
            within a few ms of each other) and is not felt by a person.
        min_session_timeout_ms, max_session_timeout_ms: `group.min.session.timeout.ms`, `group.max.session.timeout.ms`.
        max_size: `group.max.size`, members of one group.
        max_groups: `logflume.max.groups`, groups of all kinds.
        offset_metadata_max_bytes: `offset.metadata.max.bytes`, UTF-8 bytes of the text beside an offset.
        offsets_retention_ms: `offsets.retention.minutes`, after the group became empty.
        offsets_retention_check_interval_ms: `offsets.retention.check.interval.ms`.
        consumer_max_size: `group.consumer.max.size`, members of one group of the consumer protocol.
        streams_max_size: `group.streams.max.size`, members of one streams group.
        consumer_migration_policy: `group.consumer.migration.policy`.
        share_max_size: `group.share.max.size`, members of one share group.
        refresh_interval_ms: how often a group with epochs looks whether its topics have changed.
    """

    initial_rebalance_delay_ms: int = 50
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2_147_483_647
    max_groups: int = 50_000
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    offsets_retention_check_interval_ms: int = 600_000
    consumer_max_size: int = 2_147_483_647
    streams_max_size: int = 2_147_483_647
    share_max_size: int = 200
    consumer_migration_policy: str = "bidirectional"
    refresh_interval_ms: int = 1_000
