"""One partition's log: segments, producer state, transactions, durability. Batches stay opaque (architecture, D1).

Used from one thread (the broker's loop), except that `FlushTicket.sync` runs in a worker thread. Nothing here waits, but for
the disk. Reading is in `readable.py`, opening and recovery in `opening.py`, the rules for a batch in `rules.py`.
"""

from __future__ import annotations

import contextlib
import logging

from logflume.log.batch.control import build_marker, parse_marker
from logflume.log.batch.header import (
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    check_crc,
    iter_batches,
    parse_header,
    stamp,
    stamp_append_time,
)
from logflume.log.errors import LogflumeError, StorageError

from .checkpoint import Checkpoint
from .compaction import CLEANED_SUFFIX, CompactionPlan, CompactionResult, check_compaction, discard_compaction
from .config import LogConfig
from .disk import Disk
from .epochs import LeaderEpochs
from .errors import DiskFull, OffsetOutOfRange, PartitionFailed
from .producers import ProducerState, ProducerStates
from .readable import ReadableLog
from .replaying import replayed_producers
from .retention import due_for_compaction, is_expired, start_after_retention
from .rules import check_client_batch, check_size, check_timestamps
from .segment import MAX_RELATIVE_OFFSET, Segment
from .slices import AppendInfo, FlushTicket, RecoveryReport
from .statefiles import StateFiles
from .swaps import finish_swaps

_log = logging.getLogger("logflume.storage")


class PartitionLog(ReadableLog):
    """The log of one partition. Made by `open_log`.

    Attributes:
        config: may be replaced at any time (a frozen value); takes effect from the next call.
        recovery: what opening found and did.
        topic_id: 32 hex digits.

    Invariants: log_start_offset <= durable_offset <= log_end_offset; offsets are dense but for compaction; what lies below
    `durable_offset` is on disk (flush "fsync") or with the operating system (flush "os"). Only the last segment is written to,
    and it begins to exist after everything before it is on disk, so that only its end can be torn.
    """

    def __init__(
        self,
        directory: str,
        disk: Disk,
        config: LogConfig,
        *,
        topic_id: str,
        segments: list[Segment],
        log_start_offset: int,
        producers: ProducerStates,
        epochs: LeaderEpochs,
        recovery: RecoveryReport,
        checkpoint: Checkpoint | None,
        dense_offset: int,
    ) -> None:
        """Take over what opening found; everything in `segments` is on disk."""
        super().__init__(directory, segments, epochs, log_start_offset=log_start_offset)
        self.config = config
        self.topic_id = topic_id
        self.recovery = recovery
        self._disk = disk
        self._producers = producers
        self._files = StateFiles(disk, directory, checkpoint, dense_offset=dense_offset)
        self._active_since_ms = -1
        self._failure: LogflumeError | None = None

    @property
    def has_failed(self) -> bool:
        """Whether it takes no appends since a write or fsync failed."""
        return self._failure is not None

    @property
    def failure(self) -> LogflumeError | None:
        """The error of the disk since which it takes no appends, None for none."""
        return self._failure

    @property
    def is_settled(self) -> bool:
        """Whether no flush is under way, which may still make something durable."""
        return self._durability.is_settled

    @property
    def last_stable_offset(self) -> int:
        """End of what read_committed readers may see: first offset of the earliest transaction that is open on disk or held,
        else `durable_offset`."""
        return self._durability.last_stable_offset(self._producers.first_unstable_offset(self._durability.offset))

    def open_transactions(self) -> dict[int, int]:
        """Return producer id -> first offset of each open transaction."""
        return dict(self._producers.open_transactions)

    def hold(self, producer_id: int, first_offset: int) -> None:
        """Keep read_committed readers before a transaction that has ended, until `release`; an open of the log releases too."""
        self._durability.hold(producer_id, first_offset)

    def release(self, producer_id: int) -> None:
        """Let readers see what `hold` kept from them."""
        self._durability.release(producer_id)

    def producer(self, producer_id: int) -> ProducerState | None:
        """Return what is remembered of a producer id; not to be changed."""
        return self._producers.states.get(producer_id)

    def producers(self) -> dict[int, ProducerState]:
        """Return what is remembered of each producer id; not to be changed."""
        return dict(self._producers.states)

    # -- append

    def append(
        self,
        data: Buffer,
        *,
        leader_epoch: int,
        now_ms: int,
        is_client: bool = True,
        checked: BatchHeader | None = None,
    ) -> AppendInfo:
        """Check and append the batches in `data` (whole ones only; exactly one from a client). Not durable until flushed.

        `data` is not written to and not kept. Offsets and leader epoch are stamped; LogAppendTime too if the config says so.
        With `is_client=False` (coordinators) control batches are allowed and timestamps are not bounded. `checked` is the header
        of `data`, one batch, of which the caller has checked everything but the producer's place; without it the records are
        not looked at.

        Raises:
            CorruptBatch: header or checksum is wrong (UnsupportedMagic: another format).
            AppendRefused: a rule is broken: size, timestamp, producer sequence, epoch or transaction; see its `error_code`.
            DiskFull: no space; nothing of it remains.
            PartitionFailed: an earlier write or fsync failed.
        """
        self._check_usable()
        if checked is not None:
            return self._append_one(data, checked, leader_epoch, now_ms)
        header = parse_header(data)
        if header.size_bytes != len(data):
            check_size(data, is_client=is_client)
        infos = []
        for position, header in list(iter_batches(data)):
            batch = memoryview(data)[position : position + header.size_bytes]
            check_crc(batch, header)
            if is_client:
                check_client_batch(header, self.config)
                if self.config.message_timestamp_type == "CreateTime":
                    check_timestamps(header.base_timestamp, header.max_timestamp, self.config, now_ms)
            infos.append(self._append_one(batch, header, leader_epoch, now_ms))
        return AppendInfo(
            infos[0].first_offset, infos[-1].last_offset, infos[-1].log_append_time_ms, is_duplicate=infos[0].is_duplicate
        )

    def _append_one(self, data: Buffer, header: BatchHeader, leader_epoch: int, now_ms: int) -> AppendInfo:
        marker = parse_marker(data) if header.is_control else None
        if marker is not None:
            self._producers.check_marker(header, marker)
        elif header.producer_id >= 0:
            repeated = self._producers.check(header)
            if repeated is not None:
                return AppendInfo(repeated.first_offset, repeated.last_offset, is_duplicate=True)
        self._roll_if_needed(header, now_ms)
        header, buffers = self._stamped(data, header, leader_epoch, now_ms)
        self._write(header, buffers)
        if marker is not None:
            first_offset = self._producers.open_transactions.get(header.producer_id)
            if first_offset is not None:
                self._durability.ended(header.last_offset, first_offset)
            aborted = self._producers.apply_marker(header, marker, offset=header.last_offset, timestamp_ms=now_ms)
            if aborted is not None:
                self._segments.active.aborted.append(aborted)
        else:
            self._producers.apply(header, first_offset=header.base_offset, last_offset=header.last_offset, timestamp_ms=now_ms)
        self._epochs.add(leader_epoch, header.base_offset)
        append_time_ms = header.max_timestamp if header.is_append_time else -1
        return AppendInfo(header.base_offset, header.last_offset, append_time_ms)

    def _stamped(
        self, data: Buffer, header: BatchHeader, leader_epoch: int, now_ms: int
    ) -> tuple[BatchHeader, tuple[Buffer, Buffer]]:
        """Return the header as stamped, and the batch with it: a copy of the header bytes, the rest as it is."""
        view = memoryview(data)
        head = bytearray(view[:HEADER_BYTES])
        stamp(head, self._segments.active.next_offset, leader_epoch)
        body = view[HEADER_BYTES:]
        header = header.at(self._segments.active.next_offset, leader_epoch)
        if self.config.message_timestamp_type == "LogAppendTime" and not header.is_control:
            stamp_append_time(head, body, now_ms)
            header = parse_header(head, end=header.size_bytes)
        return header, (head, body)

    def _write(self, header: BatchHeader, buffers: tuple[Buffer, Buffer]) -> None:
        """Write a batch at the end of the active segment; after an error nothing of it remains, or the partition has failed."""
        active = self._segments.active
        try:
            active.write(buffers, header)
        except StorageError as error:
            try:
                active.file.truncate(active.size_bytes)
            except StorageError:
                self._fail(error)
            if not isinstance(error, DiskFull):
                self._fail(error)
            raise
        if self.config.flush == "os":
            self._durability.written(active)

    def append_marker(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        is_commit: bool,
        leader_epoch: int,
        now_ms: int,
    ) -> AppendInfo:
        """Append the control batch that ends a transaction. Raises as `append`."""
        batch = build_marker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            is_commit=is_commit,
            timestamp_ms=now_ms,
        )
        return self.append(batch, leader_epoch=leader_epoch, now_ms=now_ms, is_client=False)

    def _fail(self, error: LogflumeError) -> None:
        """Take no more appends: what the disk holds is unknown until the log is opened again."""
        if self._failure is None:
            _log.error("%s takes no appends until it is opened again: %s", self.directory, error)
            self._failure = error

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise PartitionFailed(
                f"{self.directory}: takes no appends since a write or fsync failed ({self._failure}); "
                "mend the disk: a broker opens the log again by itself, with growing pauses"
            )
        assert not self._is_closed, f"{self.directory} is closed"

    # -- segments

    def _roll_if_needed(self, header: BatchHeader, now_ms: int) -> None:
        active, config = self._segments.active, self.config
        if not active.size_bytes:
            self._active_since_ms = header.max_timestamp if header.max_timestamp >= 0 else now_ms
            return
        if self._active_since_ms < 0:
            first = active.header_at(0).max_timestamp
            self._active_since_ms = first if first >= 0 else now_ms
        is_full = active.size_bytes + header.size_bytes > config.segment_bytes
        # By the records' own time, as Kafka does: records of years ago must not roll a segment each.
        batch_ms = header.max_timestamp if header.max_timestamp >= 0 else now_ms
        is_old = batch_ms - self._active_since_ms > config.roll_ms
        is_wide = active.next_offset + header.last_offset_delta - active.base_offset > MAX_RELATIVE_OFFSET
        has_full_index = len(active.offset_index) * 12 >= config.segment_index_bytes
        if is_full or is_old or is_wide or has_full_index:
            self.roll()
            self._active_since_ms = header.max_timestamp if header.max_timestamp >= 0 else now_ms

    def roll(self) -> None:
        """Seal the active segment, durably, and begin a new one at the log end."""
        self._check_usable()
        if not self._segments.active.size_bytes:
            return
        new = Segment(
            self._disk, self.directory, self._segments.active.next_offset, index_interval_bytes=self.config.index_interval_bytes
        )
        try:
            self._sync_active()
            self._save_state()
            new.sync()
            self._disk.fsync_dir(self.directory)
        except DiskFull:
            # An empty file with this name would look like a gap once the active segment has grown beyond it.
            new.remove()
            raise
        except StorageError as error:
            self._fail(error)
            raise
        self._segments.add(new)
        self._durability.rolled()
        self._segments.unload_sealed()
        with contextlib.suppress(DiskFull):  # the next checkpoint makes up for it; until then an open scans more
            self.save_checkpoint()

    # -- durability

    def begin_flush(self) -> FlushTicket | None:
        """Return what must be synced for everything appended so far to be durable, None if nothing is dirty.

        Raises:
            PartitionFailed: an earlier write or fsync failed.
        """
        if self._is_closed:
            # A topic deleted under its producers: the flush they wait for must fail, and nobody else's.
            raise PartitionFailed(f"{self.directory} is closed")
        self._check_usable()
        return self._durability.begin_flush(self._segments.active)

    def finish_flush(self, ticket: FlushTicket, error: Exception | None = None) -> int:
        """Take in the result of `ticket.sync`: move `durable_offset` (returned), or on an error fail the partition."""
        self._durability.finish_flush(ticket, is_done=error is None)
        if error is not None:
            self._fail(error if isinstance(error, LogflumeError) else StorageError(f"{self.directory}: {error}"))
        return self._durability.offset

    def flush(self) -> int:
        """Sync everything appended so far, blocking; return the durable offset.

        Raises:
            StorageError: the sync failed; the partition takes no appends any more.
        """
        ticket = self.begin_flush()
        if ticket is None:
            return self._durability.offset
        try:
            ticket.sync()
        except StorageError as error:
            self.finish_flush(ticket, error)
            raise
        return self.finish_flush(ticket)

    def checkpoint(self) -> None:
        """Flush, and move the recovery point to the end, so that a restart after a crash scans only what comes after."""
        self._sync_active()
        self._save_state()
        self.save_checkpoint()

    def _sync_active(self) -> None:
        """Make everything appended durable, whatever `flush` says."""
        self.flush()
        if self.config.flush == "os":
            self._segments.active.sync()

    def _save_state(self) -> None:
        """Write indexes, producer snapshot and leader epochs as of the log end."""
        self._files.save_state(self._segments, producers=self._producers, epochs=self._epochs, end_offset=self.log_end_offset)

    def save_checkpoint(self, *, swaps: tuple[int, ...] = (), swap_suffix: str = "") -> None:
        """Write the checkpoint file for a recovery point that does not move."""
        self._files.save_checkpoint(self._segments, log_start_offset=self.log_start_offset, swaps=swaps, swap_suffix=swap_suffix)

    # -- truncation and retention

    def truncate_to(self, offset: int) -> None:
        """Drop every batch with a record at or beyond `offset` (a follower that diverged). Durable on return."""
        self._check_usable()
        if offset >= self.log_end_offset:
            return
        index = self._segments.index_at(offset)
        segment = self._segments[index]
        position = segment.position_of(offset)
        end_offset = segment.offset_at(position)
        dropped = self._segments[index + 1 :]
        self._segments.put(self._segments[: index + 1])
        segment.forget_info()
        self._durability.begin_cut()
        self._log_start_offset = min(self.log_start_offset, end_offset)
        self._files.cleaned_offset = min(self._files.cleaned_offset, segment.base_offset)
        self._files.dense_offset = min(self._files.dense_offset, end_offset)
        self.save_checkpoint()
        for each in reversed(dropped):
            each.remove()
            self._disk.fsync_dir(self.directory)
        segment.cut(position, end_offset)
        segment.sync()
        self._epochs.cut_end(end_offset)
        self._durability.cut(end_offset, position)
        self._producers = replayed_producers(self._segments)
        self.checkpoint()

    def delete_records_before(self, offset: int) -> int:
        """Move the log start offset up to `offset` (at most the durable offset), durably; drop segments below it.

        Returns the log start offset.

        Raises:
            OffsetOutOfRange: offset beyond the durable offset.
        """
        if offset > self._durability.offset:
            raise OffsetOutOfRange(
                f"{self.topic}-{self.partition}: cannot delete records before {offset}, the log ends at {self._durability.offset}"
            )
        if offset > self.log_start_offset:
            self._advance_start(offset)
        return self.log_start_offset

    def _advance_start(self, offset: int) -> int:
        """Move the log start durably, then drop the sealed segments below it; return the bytes freed."""
        count = self._segments.index_at(offset)
        before, start_before = list(self._segments), self.log_start_offset
        dropped = before[:count]
        self._segments.put(before[count:])
        self._log_start_offset = offset
        try:
            self._save_checkpoint_on_full_disk(dropped)
        except StorageError:
            self._segments.put(before)
            self._log_start_offset = start_before
            raise
        self._epochs.cut_start(offset)
        for segment in dropped:
            segment.remove()
        return sum(segment.size_bytes for segment in dropped)

    def _save_checkpoint_on_full_disk(self, dropped: list[Segment]) -> None:
        """Write the checkpoint; if there is no room for it, the indexes of segments that are about to go make some."""
        try:
            self.save_checkpoint()
        except DiskFull:
            if not dropped:
                raise
            for segment in dropped:
                segment.remove_indexes()
            self.save_checkpoint()

    def apply_retention(self, now_ms: int) -> int:
        """Drop whole segments older than retention.ms or beyond retention.bytes; return how many bytes that freed.

        Forgets producers that were silent for producer.id.expiration.ms too. Only durable records are dropped.
        """
        self._check_usable()
        self._segments.unload_sealed()
        self._producers.expire(now_ms - self.config.producer_id_expiration_ms)
        if not self.config.is_deleted:
            return 0
        if self._segments.active.size_bytes and is_expired(self._segments.active, self.config, now_ms):
            self.roll()
        start_offset = start_after_retention(self._segments, self.config, start_offset=self.log_start_offset, now_ms=now_ms)
        return self._advance_start(start_offset) if start_offset > self.log_start_offset else 0

    # -- compaction

    def compaction_plan(self, now_ms: int, *, name: str) -> CompactionPlan | None:
        """Return what to compact now, None if the log is not compacted or not dirty enough (min.cleanable.dirty.ratio).

        `name` becomes part of the names of what is written, so it must be one that was never used before.
        """
        config = self.config
        if self._failure or self._is_closed:
            return None
        cleanable = due_for_compaction(
            self._segments,
            config,
            cleaned_offset=self._files.cleaned_offset,
            last_stable_offset=self.last_stable_offset,
            now_ms=now_ms,
        )
        if not cleanable:
            return None
        return CompactionPlan(
            self.directory,
            f".{name}{CLEANED_SUFFIX}",
            tuple(segment.info for segment in cleanable if segment.info is not None),
            self._files.cleaned_offset,
            tuple(each for segment in self._segments for each in segment.aborted),
            frozenset(state.batches[-1].last_offset for state in self._producers.states.values() if state.batches),
            now_ms,
            config.delete_retention_ms,
            config.segment_bytes,
            config.index_interval_bytes,
            self._files.dense_offset,
            tuple(self._epochs),
        )

    def finish_compaction(self, result: CompactionResult) -> int:
        """Put compacted segments in place of the old ones, durably; return how many bytes that freed.

        If the log's segments have changed since the plan was made, the result is thrown away and 0 returned.

        Raises:
            CorruptLog: the files are not what the result says; they are removed, the log stays as it is.
            StorageError: the disk refused.
        """
        count = len(result.replaced)
        compacted = [
            Segment(
                self._disk,
                self.directory,
                info.base_offset,
                index_interval_bytes=self.config.index_interval_bytes,
                info=info,
                is_dense=False,
            )
            for info in result.segments
        ]
        is_stale = tuple(segment.info for segment in self._segments[:count]) != result.replaced
        if is_stale or self._failure is not None or self._is_closed:
            discard_compaction(result, self.directory, disk=self._disk)
            return 0
        try:
            check_compaction(result, self.directory, disk=self._disk)
        except StorageError:
            discard_compaction(result, self.directory, disk=self._disk)
            raise
        kept = {segment.base_offset for segment in compacted}
        before, cleaned_before, dense_before = list(self._segments), self._files.cleaned_offset, self._files.dense_offset
        dropped = [segment for segment in before[:count] if segment.base_offset not in kept]
        self._segments.put(compacted + before[count:])
        self._files.cleaned_offset = result.end_offset
        self._files.dense_offset = max(self._files.dense_offset, result.end_offset)
        try:
            self.save_checkpoint(swaps=tuple(kept), swap_suffix=result.suffix)
        except DiskFull:
            self._segments.put(before)
            self._files.cleaned_offset, self._files.dense_offset = cleaned_before, dense_before
            discard_compaction(result, self.directory, disk=self._disk)
            raise
        except StorageError as error:
            self._fail(error)
            raise
        try:
            finish_swaps(self._disk, self.directory, result.segments, result.suffix)
            for segment in dropped:
                segment.remove()
            with contextlib.suppress(DiskFull):  # an open then finds the swaps done already
                self.save_checkpoint()
        except StorageError as error:
            self._fail(error)
            raise
        return result.bytes_before - result.bytes_after

    def close(self) -> None:
        """Checkpoint and close: the next open scans nothing. Idempotent. A failed partition closes without a checkpoint."""
        if self._is_closed:
            return
        if self._failure is None:
            self.checkpoint()
        else:
            self._discard_tail()
        self.abandon()

    def abandon(self) -> None:
        """Close without a checkpoint, as a crash would."""
        self._is_closed = True
        for segment in self._segments:
            segment.close()

    def _discard_tail(self) -> None:
        """Cut off what was never acknowledged: after a failed fsync the page cache may show what the disk does not hold."""
        try:
            self._segments.active.file.truncate(self._durability.position)
        except StorageError:
            return
