"""Compaction: rewriting sealed segments so that each key keeps its last record. Works on files alone, beside a running log.

`PartitionLog.compaction_plan` says what to do, `run_compaction` does it (in any thread or process; a plan and a result can be
pickled), `PartitionLog.finish_compaction` puts the result in place. Offsets never change; the active segment and what lies
beyond the last stable offset are never touched (as in Kafka's log cleaner; KIP-58, KIP-534):

- a record stays if no later one has its key; a record without a key goes;
- a tombstone stays for delete.retention.ms after the first compaction that saw it, noted as the batch's delete horizon;
- records of aborted transactions go at once; a marker stays while data of its transaction does, and then as a tombstone would;
- the last batch of each producer stays, even empty, so that its sequence survives a rebuild of the producer state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from logflume.log.batch.compression import compress
from logflume.log.batch.control import parse_marker
from logflume.log.batch.header import (
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    pack_header,
    parse_header,
)
from logflume.log.batch.key_scan import KeyScan, scan_keys
from logflume.log.batch.records import RecordData, decode_records, records_section, write_record
from logflume.log.errors import CorruptLog, StorageError

from .checking import checked_batches
from .checkpoint import SegmentInfo
from .disk import Disk
from .epochs import LeaderEpochs
from .segment import MAX_RELATIVE_OFFSET, SEGMENT_SUFFIXES, Segment, file_name
from .slices import AbortedTransaction

Pace = Callable[[int], None]

CLEANED_SUFFIX = ".cleaned"
"""How the suffix of every file of a compaction that is not yet in place ends."""
SYNC_EVERY_BYTES = 1 << 20
"""What is written is synced in small parts: the fsync of a producer's batch may have to wait for all that is dirty."""
_MAX_KEYS = 5_000_000


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What to compact.

    Attributes:
        segments: the sealed segments up to the end of the range, from the log start on.
        dirty_offset: where the part begins that was never compacted.
        aborted: the aborted transactions of the log; markers may lie behind the range, the data of which is all decided.
        last_offsets: last offset of each producer's last batch.
        max_segment_bytes: small segments are merged up to this size.
        suffix: of the files that are written; nobody else, now or later, writes files of that name.
        dense_offset: segments from here on leave out no offsets.
        epochs: leader epochs and where they begin.
    """

    directory: str
    suffix: str
    segments: tuple[SegmentInfo, ...]
    dirty_offset: int
    aborted: tuple[AbortedTransaction, ...]
    last_offsets: frozenset[int]
    now_ms: int
    delete_retention_ms: int
    max_segment_bytes: int
    index_interval_bytes: int
    dense_offset: int
    epochs: tuple[tuple[int, int], ...]
    max_keys: int = _MAX_KEYS


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What was compacted: `replaced` segments by `segments`, whose files have the suffix, up to `end_offset`."""

    suffix: str
    replaced: tuple[SegmentInfo, ...]
    segments: tuple[SegmentInfo, ...]
    end_offset: int
    bytes_before: int
    bytes_after: int


def run_compaction(plan: CompactionPlan, *, disk: Disk, pace: Pace = lambda _: None) -> CompactionResult:
    """Write the compacted segments beside the old ones, durably.

    Args:
        pace: told of each batch's bytes that were read or written; it may wait.

    Raises:
        StorageError: a file is gone or damaged, or the disk refused; what was written is removed.
    """
    sources = [
        Segment(
            disk,
            plan.directory,
            info.base_offset,
            index_interval_bytes=plan.index_interval_bytes,
            info=info,
            is_dense=info.base_offset >= plan.dense_offset,
        )
        for info in plan.segments
    ]
    last_offset_of_key, sources = _last_offsets(sources, plan, pace)
    rewriter = _Rewriter(plan, last_offset_of_key, pace)
    written: list[Segment] = []
    try:
        for group in _groups(sources, plan.max_segment_bytes):
            # Every batch is indexed: what compaction leaves out is then known, and offsets can be checked (checking.py).
            target = Segment(
                disk, plan.directory, group[0].base_offset, index_interval_bytes=0, suffix=plan.suffix, is_dense=False
            )
            written.append(target)
            target.file.truncate(0)
            synced_bytes = 0
            for source in group:
                for batch, header in rewriter.rewrite(source):
                    target.write([batch], header)
                    pace(header.size_bytes)
                    if target.size_bytes - synced_bytes >= SYNC_EVERY_BYTES:
                        target.file.sync()
                        synced_bytes = target.size_bytes
            target.next_offset = group[-1].next_offset
            target.sync()
            target.save_indexes()
        disk.fsync_dir(plan.directory)
    except StorageError:
        for target in written:
            target.remove()
        raise
    infos = tuple(target.info for target in written if target.info is not None)
    return CompactionResult(
        plan.suffix,
        plan.segments[: len(sources)],
        infos,
        sources[-1].next_offset,
        sum(source.size_bytes for source in sources),
        sum(info.size_bytes for info in infos),
    )


def discard_compaction(result: CompactionResult, directory: str, *, disk: Disk) -> None:
    """Remove the files of a result that is not wanted any more."""
    for info in result.segments:
        for kind in SEGMENT_SUFFIXES:
            disk.remove(f"{directory}/{file_name(info.base_offset, kind)}{result.suffix}")


def check_compaction(result: CompactionResult, directory: str, *, disk: Disk) -> None:
    """Compare a result with what it was to replace and with its files. Raises CorruptLog: something else has written to them."""
    ends = result.replaced[0].base_offset, result.replaced[-1].next_offset
    found = result.segments[0].base_offset, result.segments[-1].next_offset
    if found != ends or result.end_offset != ends[1]:
        raise CorruptLog(f"{directory}: expected a compaction of offsets {ends[0]} to {ends[1]}, found {found[0]} to {found[1]}")
    for info in result.segments:
        path = f"{directory}/{file_name(info.base_offset, '.log')}{result.suffix}"
        if disk.size(path) != info.size_bytes:
            raise CorruptLog(f"{path}: expected a compacted segment of {info.size_bytes} bytes, found {disk.size(path)}")


def _last_offsets(sources: list[Segment], plan: CompactionPlan, pace: Pace) -> tuple[dict[bytes | None, int], list[Segment]]:
    """Return the last offset of each key in the dirty part, and the segments up to where the map was full."""
    last_offset_of_key: dict[bytes | None, int] = {}
    aborted = _AbortedFilter(plan.aborted)
    for i, source in enumerate(sources):
        if source.next_offset <= plan.dirty_offset:
            continue
        for data, header in _batches(source, plan, pace):
            if aborted.is_hidden(header, data):
                continue
            scan = scan_keys(bytes(records_section(data, 0, header)), header.record_count)
            base_offset = header.base_offset
            last_offset_of_key.update(zip(scan.keys, [base_offset + delta for delta in scan.deltas], strict=True))
            last_offset_of_key.pop(None, None)
        if len(last_offset_of_key) > plan.max_keys:
            return last_offset_of_key, sources[: i + 1]
    return last_offset_of_key, sources


def _groups(sources: list[Segment], max_bytes: int) -> Iterator[list[Segment]]:
    """Yield runs of segments that fit into one."""
    group: list[Segment] = []
    size_bytes = 0
    for source in sources:
        is_wide = bool(group) and source.next_offset - group[0].base_offset > MAX_RELATIVE_OFFSET
        if group and (size_bytes + source.size_bytes > max_bytes or is_wide):
            yield group
            group, size_bytes = [], 0
        group.append(source)
        size_bytes += source.size_bytes
    yield group


def _batches(source: Segment, plan: CompactionPlan, pace: Pace) -> Iterator[tuple[bytes, BatchHeader]]:
    """Yield each batch of a segment, checked: what compaction writes counts as good afterwards."""
    for _, header, data in checked_batches(source, 0, source.size_bytes, epochs=LeaderEpochs.of(plan.epochs)):
        pace(header.size_bytes)
        yield bytes(data), header


class _AbortedFilter:
    """Follows the batches in order and knows which belong to an aborted transaction."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._waiting = sorted(((txn.first_offset, txn.producer_id) for txn in aborted), reverse=True)
        self._active: set[int] = set()

    def is_hidden(self, header: BatchHeader, data: bytes) -> bool:
        """Say whether a batch is a marker or belongs to an aborted transaction."""
        while self._waiting and self._waiting[-1][0] <= header.last_offset:
            self._active.add(self._waiting.pop()[1])
        if header.is_control:
            marker = parse_marker(data)
            if marker is not None and not marker.is_commit:
                self._active.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._active


@dataclass(slots=True)
class _Rewriter:
    """Decides batch by batch what stays. `_open_data`: producers whose current transaction has records that stay."""

    plan: CompactionPlan
    last_offset_of_key: dict[bytes | None, int]
    pace: Pace
    _aborted: _AbortedFilter = field(init=False)
    _open_data: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._aborted = _AbortedFilter(self.plan.aborted)

    def rewrite(self, source: Segment) -> Iterator[tuple[bytes | bytearray, BatchHeader]]:
        """Yield each batch of a segment that stays, as it is or rewritten."""
        for data, header in _batches(source, self.plan, self.pace):
            is_hidden = self._aborted.is_hidden(header, data)
            if header.is_control:
                kept = self._rewrite_marker(data, header)
            else:
                kept = self._rewrite_data(data, header, is_aborted=is_hidden)
            if kept is not None:
                yield kept

    def _is_past_horizon(self, header: BatchHeader) -> bool:
        return header.has_delete_horizon and header.base_timestamp < self.plan.now_ms

    def _rewrite_marker(self, data: bytes, header: BatchHeader) -> tuple[bytes | bytearray, BatchHeader] | None:
        has_data = header.producer_id in self._open_data
        self._open_data.discard(header.producer_id)
        if has_data:
            return data, header
        if header.has_delete_horizon:
            return None if self._is_past_horizon(header) else (data, header)
        return self._with_horizon(header, decode_records(data, has_crc_check=False))

    def _rewrite_data(
        self, data: bytes, header: BatchHeader, *, is_aborted: bool
    ) -> tuple[bytes | bytearray, BatchHeader] | None:
        if is_aborted:
            return self._emptied(header)
        section = bytes(records_section(data, 0, header))
        scan = scan_keys(section, header.record_count)
        kept = self._kept(scan, header)
        if not kept:
            return self._emptied(header)
        if header.is_transactional:
            self._open_data.add(header.producer_id)
        has_tombstone = any(map(scan.is_tombstone.__getitem__, kept))
        if len(kept) == header.record_count and has_tombstone == header.has_delete_horizon:
            return data, header
        if has_tombstone == header.has_delete_horizon:
            section = b"".join([section[scan.starts[row] : scan.ends[row]] for row in kept])
            return _sealed(header, section, len(kept), header.base_timestamp, header.max_timestamp, header.attributes)
        deltas = {scan.deltas[row] for row in kept}
        records = [r for r in decode_records(data, has_crc_check=False) if r.offset - header.base_offset in deltas]
        if has_tombstone:
            return self._with_horizon(header, records)
        return _encode(
            header, records, base_timestamp_ms=records[0].timestamp_ms, attributes=header.attributes & ~DELETE_HORIZON_BIT
        )

    def _kept(self, scan: KeyScan, header: BatchHeader) -> list[int]:
        """Return which records stay."""
        last, base_offset = self.last_offset_of_key, header.base_offset
        kept = [
            row
            for row, (key, delta) in enumerate(zip(scan.keys, scan.deltas, strict=True))
            if last.get(key, -1) <= base_offset + delta and key is not None
        ]
        if self._is_past_horizon(header):
            kept = [row for row in kept if not scan.is_tombstone[row]]
        return kept

    def _with_horizon(self, header: BatchHeader, records: list[RecordData]) -> tuple[bytearray, BatchHeader]:
        """Return the batch with a delete horizon, delete.retention.ms from now."""
        horizon_ms = self.plan.now_ms + self.plan.delete_retention_ms
        return _encode(header, records, base_timestamp_ms=horizon_ms, attributes=header.attributes | DELETE_HORIZON_BIT)

    def _emptied(self, header: BatchHeader) -> tuple[bytearray, BatchHeader] | None:
        """Return the batch without records if it is the last of its producer; not transactional any more, for its marker may go
        before it does."""
        if header.last_offset not in self.plan.last_offsets:
            return None
        attributes = header.attributes & ~(TRANSACTIONAL_BIT | CODEC_MASK | DELETE_HORIZON_BIT)
        return _sealed(header, b"", 0, header.base_timestamp, header.max_timestamp, attributes)


def _encode(
    header: BatchHeader, records: list[RecordData], *, base_timestamp_ms: int, attributes: int
) -> tuple[bytearray, BatchHeader]:
    """Encode records with their offsets and times as the batch that had them, over another base timestamp."""
    section = bytearray()
    for record in records:
        write_record(
            section,
            record.timestamp_ms - base_timestamp_ms,
            record.offset - header.base_offset,
            record.key,
            record.value,
            record.headers,
        )
    max_timestamp_ms = header.max_timestamp
    if not header.is_append_time:
        max_timestamp_ms = max(record.timestamp_ms for record in records)
    return _sealed(header, section, len(records), base_timestamp_ms, max_timestamp_ms, attributes)


def _sealed(
    header: BatchHeader, section: Buffer, count: int, base_timestamp_ms: int, max_timestamp_ms: int, attributes: int
) -> tuple[bytearray, BatchHeader]:
    """Return the batch of `header` with other records and times."""
    batch = bytearray(HEADER_BYTES)
    batch += compress(attributes & CODEC_MASK, section)
    pack_header(
        batch,
        size_bytes=len(batch),
        count=count,
        last_offset_delta=header.last_offset_delta,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        base_offset=header.base_offset,
        leader_epoch=header.partition_leader_epoch,
        attributes=attributes,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
    return batch, parse_header(batch)
