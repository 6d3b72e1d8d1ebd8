"""One partition's log: segments, producer state, transactions, durability. Batches stay opaque (architecture, D1).

Used from one thread (the broker's loop), except that `FlushTicket.sync` runs in a worker thread. Nothing here waits, but for
the disk. Opening and recovery are in `opening.py`, the rules for a batch in `rules.py`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from bisect import bisect_right
from collections.abc import Iterator

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
from logflume.log.errors import CorruptLog, LogflumeError, StorageError

from .checking import CheckBudget
from .checkpoint import Checkpoint
from .compaction import CLEANED_SUFFIX, CompactionPlan, CompactionResult, check_compaction, discard_compaction
from .config import LogConfig
from .disk import Disk
from .epochs import LeaderEpochs
from .errors import DiskFull, OffsetOutOfRange, PartitionFailed
from .producers import ProducerState, ProducerStates
from .reading import read_aborted, read_headers, read_slice
from .replaying import replayed_producers
from .retention import due_for_compaction, is_expired, start_after_retention
from .rules import check_client_batch, check_size, check_timestamps
from .segment import MAX_RELATIVE_OFFSET, Segment
from .slices import AbortedTransaction, AppendInfo, FlushTicket, LogSlice, RecoveryReport, TimeOffset
from .statefiles import StateFiles
from .swaps import finish_swaps
from .timesearch import find_time

_MAX_DAMAGES = 100
_log = logging.getLogger("logflume.storage")


class PartitionLog:
    """The log of one partition. Made by `open_log`.

    Attributes:
        config: may be replaced at any time (a frozen value); takes effect from the next call.
        recovery: what opening found and did.
        damages: what was found damaged since the log was opened, as texts that name file and position, in order.
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
        self.directory = directory
        self.topic, _, partition = os.path.basename(directory).rpartition("-")
        self.partition = int(partition)
        self.config = config
        self.topic_id = topic_id
        self.recovery = recovery
        self._disk = disk
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._active = segments[-1]
        self._producers = producers
        self._ended: list[tuple[int, int]] = []
        """Markers that are not durable: their offsets, and the first ones of what they end."""
        self._held: dict[int, int] = {}
        """Producers whose transaction has ended here and not everywhere yet, and where it began."""
        self._epochs = epochs
        self._log_start_offset = log_start_offset
        self._files = StateFiles(disk, directory, checkpoint, dense_offset=dense_offset)
        self._durable_offset = self._active.next_offset
        self._durable_position = self._active.size_bytes
        self._active_since_ms = -1
        self._generation = 0
        self._failure: LogflumeError | None = None
        self._flushes_under_way = 0
        self._is_closed = False
        self.damages: dict[str, None] = {}

    @property
    def log_start_offset(self) -> int:
        """First offset that can be read."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Offset the next record gets."""
        return self._active.next_offset

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
        return not self._flushes_under_way

    @property
    def durable_offset(self) -> int:
        """End of what may be acknowledged and read: the high watermark of a log without followers."""
        return self._durable_offset

    @property
    def last_stable_offset(self) -> int:
        """End of what read_committed readers may see: first offset of the earliest transaction that is open on disk or held,
        else `durable_offset`."""
        first_unstable = min([*(first for _, first in self._ended), *self._held.values()], default=self._durable_offset)
        return min(self._producers.first_unstable_offset(self._durable_offset), first_unstable, self._durable_offset)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments, without indexes."""
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def leader_epoch(self) -> int:
        """Latest leader epoch appended with, -1 for none."""
        return self._epochs.latest

    def open_transactions(self) -> dict[int, int]:
        """Return producer id -> first offset of each open transaction."""
        return dict(self._producers.open_transactions)

    def hold(self, producer_id: int, first_offset: int) -> None:
        """Keep read_committed readers before a transaction that has ended, until `release`; an open of the log releases too."""
        self._held.setdefault(producer_id, first_offset)

    def release(self, producer_id: int) -> None:
        """Let readers see what `hold` kept from them."""
        self._held.pop(producer_id, None)

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
            if first_offset is not None and header.last_offset >= self._durable_offset:
                self._ended.append((header.last_offset, first_offset))
            aborted = self._producers.apply_marker(header, marker, offset=header.last_offset, timestamp_ms=now_ms)
            if aborted is not None:
                self._active.aborted.append(aborted)
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
        stamp(head, self._active.next_offset, leader_epoch)
        body = view[HEADER_BYTES:]
        header = header.at(self._active.next_offset, leader_epoch)
        if self.config.message_timestamp_type == "LogAppendTime" and not header.is_control:
            stamp_append_time(head, body, now_ms)
            header = parse_header(head, end=header.size_bytes)
        return header, (head, body)

    def _write(self, header: BatchHeader, buffers: tuple[Buffer, Buffer]) -> None:
        """Write a batch at the end of the active segment; after an error nothing of it remains, or the partition has failed."""
        active = self._active
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
            self._durable_offset, self._durable_position = active.next_offset, active.size_bytes

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
        active, config = self._active, self.config
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
        if not self._active.size_bytes:
            return
        new = Segment(self._disk, self.directory, self._active.next_offset, index_interval_bytes=self.config.index_interval_bytes)
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
        self._segments.append(new)
        self._bases.append(new.base_offset)
        self._active = new
        self._durable_position = 0
        self._generation += 1
        self._unload_sealed()
        with contextlib.suppress(DiskFull):  # the next checkpoint makes up for it; until then an open scans more
            self.save_checkpoint()

    def _unload_sealed(self) -> None:
        """Give up memory and descriptors of the sealed segments; what is read again is loaded again."""
        for segment in self._segments[:-1]:
            segment.unload()

    def _segment_at(self, offset: int) -> int:
        """Return the index of the segment that holds `offset`, or would."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    # -- read

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        up_to_offset: int | None = None,
        min_one_batch: bool = True,
        budget: CheckBudget | None = None,
    ) -> LogSlice:
        """Return the bytes from the batch that holds `offset` on, at most `max_bytes` and only batches below `up_to_offset`.

        Args:
            up_to_offset: durable_offset if None; last_stable_offset for read_committed readers.
            min_one_batch: give the first batch whole even if it is bigger than `max_bytes`.
            budget: bounds what is checked; less is returned when it is spent. None: no bound.

        Raises:
            OffsetOutOfRange: offset < log_start_offset or > log_end_offset. At the end the slice is empty.
            CorruptLog: the batch at that place is damaged.
        """
        if not self._log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(
                f"{self.topic}-{self.partition}: expected an offset of {self._log_start_offset} to {self.log_end_offset}, "
                f"found {offset}"
            )
        up_to = self._durable_offset if up_to_offset is None else min(up_to_offset, self._durable_offset)
        if offset >= up_to:
            return LogSlice(None, 0, 0, offset)
        try:
            return read_slice(
                self._segments[self._segment_at(offset) :],
                offset,
                max_bytes,
                up_to=up_to,
                min_one_batch=min_one_batch,
                epochs=self._epochs,
                budget=budget,
            )
        except CorruptLog as error:
            raise self.note_damage(error) from None

    def headers(self, offset: int, *, up_to_offset: int | None = None) -> Iterator[tuple[BatchHeader, LogSlice]]:
        """Yield the header of each batch from the one that holds `offset` on, with a slice of exactly that batch.

        Raises:
            CorruptLog: the bytes are not a batch, or one with other offsets than belong there.
        """
        up_to = self._durable_offset if up_to_offset is None else min(up_to_offset, self._durable_offset)
        try:
            yield from read_headers(self._segments[self._segment_at(offset) :], offset, up_to=up_to, epochs=self._epochs)
        except CorruptLog as error:
            raise self.note_damage(error) from None

    def sealed_segments(self) -> list[Segment]:
        """Return the segments that are not written to any more, for the scrubber."""
        return [segment for segment in self._segments[:-1] if segment.info is not None]

    def holds(self, segment: Segment) -> bool:
        """Say whether a segment is part of the log now."""
        return not self._is_closed and segment in self._segments

    def leader_epochs(self) -> LeaderEpochs:
        """Return a copy of the leader epochs."""
        return LeaderEpochs.of(self._epochs)

    def note_damage(self, error: CorruptLog) -> CorruptLog:
        """Name damage in the log of the process, once, and count it; returns the error, to be raised."""
        text = str(error)
        if text not in self.damages and len(self.damages) < _MAX_DAMAGES:
            self.damages[text] = None
            _log.error("damage in %s-%d, which is not served: %s", self.topic, self.partition, text)
        return error

    def aborted_transactions(self, from_offset: int, to_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap from_offset <= offset < to_offset, by first offset. Raises CorruptLog."""
        try:
            return read_aborted(self._segments[self._segment_at(from_offset) :], from_offset, to_offset)
        except CorruptLog as error:
            raise self.note_damage(error) from None

    def offset_for_time(self, timestamp_ms: int) -> TimeOffset | None:
        """Return the first record with a timestamp >= `timestamp_ms` among the durable ones, None if there is none.

        Raises:
            CorruptLog: a batch on the way to it is damaged.
        """
        try:
            return find_time(
                self._segments,
                timestamp_ms,
                from_offset=self._log_start_offset,
                up_to_offset=self._durable_offset,
                epochs=self._epochs,
            )
        except CorruptLog as error:
            raise self.note_damage(error) from None

    def max_timestamp(self) -> TimeOffset | None:
        """Return the first record with the largest timestamp, None for an empty log."""
        largest = {segment.max_timestamp_ms for segment in self._segments if segment.max_timestamp_ms >= 0}
        found = (self.offset_for_time(timestamp_ms) for timestamp_ms in sorted(largest, reverse=True))
        return next((each for each in found if each is not None), None)

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return (largest epoch <= the given one, end offset of it), (-1, -1) if unknown (OffsetsForLeaderEpoch, KIP-101)."""
        return self._epochs.end_offset(leader_epoch, self.log_end_offset)

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
        active = self._active
        if self._durable_offset >= active.next_offset:
            return None
        self._flushes_under_way += 1
        return FlushTicket(active.file, active.size_bytes, active.next_offset, self._generation)

    def finish_flush(self, ticket: FlushTicket, error: Exception | None = None) -> int:
        """Take in the result of `ticket.sync`: move `durable_offset` (returned), or on an error fail the partition."""
        self._flushes_under_way -= 1
        if error is not None:
            self._fail(error if isinstance(error, LogflumeError) else StorageError(f"{self.directory}: {error}"))
        elif ticket.generation == self._generation and ticket.end_offset > self._durable_offset:
            self._durable_offset, self._durable_position = ticket.end_offset, ticket.position
            if self._ended:
                self._ended = [each for each in self._ended if each[0] >= self._durable_offset]
        return self._durable_offset

    def flush(self) -> int:
        """Sync everything appended so far, blocking; return the durable offset.

        Raises:
            StorageError: the sync failed; the partition takes no appends any more.
        """
        ticket = self.begin_flush()
        if ticket is None:
            return self._durable_offset
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
            self._active.sync()

    def _save_state(self) -> None:
        """Write indexes, producer snapshot and leader epochs as of the log end."""
        self._files.save_state(self._segments, producers=self._producers, epochs=self._epochs, end_offset=self.log_end_offset)

    def save_checkpoint(self, *, swaps: tuple[int, ...] = (), swap_suffix: str = "") -> None:
        """Write the checkpoint file for a recovery point that does not move."""
        self._files.save_checkpoint(self._segments, log_start_offset=self._log_start_offset, swaps=swaps, swap_suffix=swap_suffix)

    # -- truncation and retention

    def truncate_to(self, offset: int) -> None:
        """Drop every batch with a record at or beyond `offset` (a follower that diverged). Durable on return."""
        self._check_usable()
        if offset >= self.log_end_offset:
            return
        index = self._segment_at(offset)
        segment = self._segments[index]
        position = segment.position_of(offset)
        end_offset = segment.offset_at(position)
        dropped = self._segments[index + 1 :]
        self._segments, self._bases = self._segments[: index + 1], self._bases[: index + 1]
        self._active = segment
        segment.forget_info()
        self._generation += 1
        self._log_start_offset = min(self._log_start_offset, end_offset)
        self._files.cleaned_offset = min(self._files.cleaned_offset, segment.base_offset)
        self._files.dense_offset = min(self._files.dense_offset, end_offset)
        self.save_checkpoint()
        for each in reversed(dropped):
            each.remove()
            self._disk.fsync_dir(self.directory)
        segment.cut(position, end_offset)
        segment.sync()
        self._epochs.cut_end(end_offset)
        self._durable_offset, self._durable_position = end_offset, position
        self._producers, self._ended = replayed_producers(self._segments), []
        self._held.clear()
        self.checkpoint()

    def delete_records_before(self, offset: int) -> int:
        """Move the log start offset up to `offset` (at most the durable offset), durably; drop segments below it.

        Returns the log start offset.

        Raises:
            OffsetOutOfRange: offset beyond the durable offset.
        """
        if offset > self._durable_offset:
            raise OffsetOutOfRange(
                f"{self.topic}-{self.partition}: cannot delete records before {offset}, the log ends at {self._durable_offset}"
            )
        if offset > self._log_start_offset:
            self._advance_start(offset)
        return self._log_start_offset

    def _advance_start(self, offset: int) -> int:
        """Move the log start durably, then drop the sealed segments below it; return the bytes freed."""
        count = 0
        while count < len(self._segments) - 1 and self._bases[count + 1] <= offset:
            count += 1
        before = self._segments, self._bases, self._log_start_offset
        dropped = self._segments[:count]
        self._segments, self._bases, self._log_start_offset = self._segments[count:], self._bases[count:], offset
        try:
            self._save_checkpoint_on_full_disk(dropped)
        except StorageError:
            self._segments, self._bases, self._log_start_offset = before
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
        self._unload_sealed()
        self._producers.expire(now_ms - self.config.producer_id_expiration_ms)
        if not self.config.is_deleted:
            return 0
        if self._active.size_bytes and is_expired(self._active, self.config, now_ms):
            self.roll()
        start_offset = start_after_retention(self._segments, self.config, start_offset=self._log_start_offset, now_ms=now_ms)
        return self._advance_start(start_offset) if start_offset > self._log_start_offset else 0

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
        before = self._segments, self._bases, self._files.cleaned_offset, self._files.dense_offset
        dropped = [segment for segment in self._segments[:count] if segment.base_offset not in kept]
        self._segments = compacted + self._segments[count:]
        self._bases = [segment.base_offset for segment in self._segments]
        self._files.cleaned_offset = result.end_offset
        self._files.dense_offset = max(self._files.dense_offset, result.end_offset)
        try:
            self.save_checkpoint(swaps=tuple(kept), swap_suffix=result.suffix)
        except DiskFull:
            self._segments, self._bases, self._files.cleaned_offset, self._files.dense_offset = before
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
            self._active.file.truncate(self._durable_position)
        except StorageError:
            return
