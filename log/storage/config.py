"""The settings of one partition's log. Names are Kafka's topic configs with `.` written `_`. Data only."""

from __future__ import annotations

from dataclasses import dataclass

DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Settings of a log; -1 means unlimited for retention.

    Attributes:
        flush: "fsync" (acknowledged means on disk) or "os" (acknowledged means handed to the operating system).
        cleanup_policy: "delete", "compact" or "compact,delete".
        message_timestamp_type: "CreateTime" or "LogAppendTime".
    """

    segment_bytes: int = 1024**3
    segment_ms: int = 7 * DAY_MS
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 * 1024**2
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = -1
    max_message_bytes: int = 1_048_588
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = 2**63 - 1
    message_timestamp_after_max_ms: int = 2**63 - 1
    cleanup_policy: str = "delete"
    delete_retention_ms: int = DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    min_cleanable_dirty_ratio: float = 0.5
    producer_id_expiration_ms: int = DAY_MS
    flush: str = "fsync"

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def roll_ms(self) -> int:
        """Age at which a segment is rolled: by max.compaction.lag.ms if compacted, for only sealed segments are compacted."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @property
    def is_deleted(self) -> bool:
        return "delete" in self.cleanup_policy
