"""Share groups as `__consumer_offsets` has them: the last value of each key."""

from __future__ import annotations

from logflume.log.internal_topics import OFFSETS_TOPIC

from ...errors import DecodeError
from ..seams import JournalRecord, ReplayedBatch
from .group_records import ShareGroupKey, ShareGroupValue, decode_share_group_key, decode_share_group_value


class GroupReplay:
    """What the batches taken so far amount to: `values` by key. Records of other kinds of groups are left out."""

    def __init__(self) -> None:
        self.values: dict[ShareGroupKey, ShareGroupValue] = {}

    def take(self, partition: int, batch: ReplayedBatch) -> None:
        """Take the next batch of a partition. Raises DecodeError, with its place, when a record cannot be read."""
        try:
            for record in batch.records:
                self._take(record)
        except DecodeError as error:
            raise DecodeError(f"{OFFSETS_TOPIC}-{partition}, offset {batch.base_offset}: {error}") from error

    def _take(self, record: JournalRecord) -> None:
        key = decode_share_group_key(record.key)
        if key is not None and record.value is None:
            self.values.pop(key, None)
        elif key is not None and record.value is not None:
            self.values[key] = decode_share_group_value(key.kind, record.value)
