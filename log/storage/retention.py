"""Which segments a log gives up, and which it compacts: by size, by age, by how much of them is dirty. Pure decisions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from .config import LogConfig
from .segment import Segment


def is_expired(segment: Segment, config: LogConfig, now_ms: int) -> bool:
    """Whether all of a segment's records are older than retention.ms; one without timestamps never is."""
    return 0 <= config.retention_ms < now_ms - segment.max_timestamp_ms and segment.max_timestamp_ms >= 0


def start_after_retention(segments: Sequence[Segment], config: LogConfig, *, start_offset: int, now_ms: int) -> int:
    """Return where a log begins once whole segments older than retention.ms or beyond retention.bytes are gone."""
    size_bytes = sum(segment.size_bytes for segment in segments)
    excess_bytes = size_bytes - config.retention_bytes if config.retention_bytes >= 0 else 0
    for segment, following in pairwise(segments):
        if not is_expired(segment, config, now_ms) and excess_bytes < segment.size_bytes:
            break
        excess_bytes -= segment.size_bytes
        start_offset = following.base_offset
    return start_offset


def due_for_compaction(
    segments: Sequence[Segment], config: LogConfig, *, cleaned_offset: int, last_stable_offset: int, now_ms: int
) -> list[Segment]:
    """Return the segments to compact now, from the log start on; none if too little is dirty, or the log is not compacted.

    Args:
        cleaned_offset: where the part begins that was never compacted.
        last_stable_offset: what lies beyond is not decided yet.
    """
    cleanable: list[Segment] = []
    for segment in segments[:-1] if config.is_compacted else []:
        is_young = 0 < config.min_compaction_lag_ms > now_ms - segment.max_timestamp_ms
        if is_young or segment.next_offset > last_stable_offset:
            break
        cleanable.append(segment)
    dirty = [segment for segment in cleanable if segment.base_offset >= cleaned_offset]
    dirty_bytes = sum(segment.size_bytes for segment in dirty)
    is_late = bool(dirty) and now_ms - dirty[0].max_timestamp_ms > config.max_compaction_lag_ms
    total_bytes = sum(segment.size_bytes for segment in cleanable)
    is_enough = dirty_bytes >= total_bytes * config.min_cleanable_dirty_ratio or is_late
    return cleanable if dirty_bytes and is_enough else []
