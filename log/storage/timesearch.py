"""Finding a record by time: segments by their largest timestamp, the time index, then headers, then one batch's records."""

from __future__ import annotations

from collections.abc import Sequence

from logflume.log.batch.records import decode_records

from .segment import Segment
from .slices import TimeOffset


def find_time(segments: Sequence[Segment], timestamp_ms: int, *, from_offset: int, up_to_offset: int) -> TimeOffset | None:
    """Return the first record with timestamp >= `timestamp_ms` and from_offset <= offset < up_to_offset."""
    for segment in segments:
        if segment.next_offset <= from_offset or segment.max_timestamp_ms < timestamp_ms:
            continue
        if segment.base_offset >= up_to_offset:
            return None
        found = _find_in_segment(segment, timestamp_ms, from_offset, up_to_offset)
        if found is not None:
            return found
    return None


def _find_in_segment(segment: Segment, timestamp_ms: int, from_offset: int, up_to_offset: int) -> TimeOffset | None:
    start_offset = max(segment.time_index.lookup(timestamp_ms) + segment.base_offset, from_offset)
    for position, header in segment.scan(segment.position_of(start_offset)):
        if header.base_offset >= up_to_offset:
            return None
        if header.max_timestamp < timestamp_ms or header.is_control:
            continue
        for record in decode_records(segment.file.read(position, header.size_bytes)):
            if record.timestamp_ms >= timestamp_ms and from_offset <= record.offset < up_to_offset:
                return TimeOffset(record.timestamp_ms, record.offset, header.partition_leader_epoch)
    return None
