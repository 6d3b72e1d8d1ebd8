"""Finding a record by time: segments by their largest timestamp, the time index, then headers, then one batch's records."""

from __future__ import annotations

from collections.abc import Sequence

from logflume.log.batch.records import decode_records

from .epochs import LeaderEpochs
from .reading import read_headers
from .segment import Segment
from .slices import TimeOffset


def find_time(
    segments: Sequence[Segment], timestamp_ms: int, *, from_offset: int, up_to_offset: int, epochs: LeaderEpochs
) -> TimeOffset | None:
    """Return the first record with timestamp >= `timestamp_ms` and from_offset <= offset < up_to_offset. Raises CorruptLog."""
    for segment in segments:
        if segment.next_offset <= from_offset or segment.max_timestamp_ms < timestamp_ms:
            continue
        if segment.base_offset >= up_to_offset:
            return None
        found = _find_in_segment(segment, timestamp_ms, from_offset, up_to_offset, epochs)
        if found is not None:
            return found
    return None


def _find_in_segment(
    segment: Segment, timestamp_ms: int, from_offset: int, up_to_offset: int, epochs: LeaderEpochs
) -> TimeOffset | None:
    start_offset = max(segment.time_index.lookup(timestamp_ms) + segment.base_offset, from_offset)
    for header, batch in read_headers([segment], start_offset, up_to=segment.next_offset + 1, epochs=epochs):
        if header.base_offset >= up_to_offset:
            return None
        if header.max_timestamp < timestamp_ms or header.is_control:
            continue
        for record in decode_records(batch.read(), has_crc_check=False):
            if record.timestamp_ms >= timestamp_ms and from_offset <= record.offset < up_to_offset:
                return TimeOffset(record.timestamp_ms, record.offset, header.partition_leader_epoch)
    return None
