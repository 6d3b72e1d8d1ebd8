"""One partition's log: segments, producer state, transactions, durability. Batches stay opaque (architecture, D1).

Used from one thread (the broker's loop), except that `FlushTicket.sync` runs in a worker thread. Nothing here waits, but for
the disk.
"""

from __future__ import annotations

from collections.abc import Iterator

from logflume.log.batch.header import BatchHeader, Buffer

from .config import LogConfig
from .disk import Disk
from .slices import AbortedTransaction, AppendInfo, LogSlice, RecoveryReport, TimeOffset


class PartitionLog:
    """The log of one partition.

    Invariants: log_start_offset <= durable_offset <= log_end_offset; offsets are dense but for compaction; what lies below
    `durable_offset` is on disk (flush "fsync") or with the operating system (flush "os").
    """

    topic: str
    partition: int
    topic_id: str
    directory: str
    config: LogConfig
    """May be replaced at any time (a frozen value); takes effect from the next call."""
    recovery: RecoveryReport

    @classmethod
    def open(cls, directory: str, *, disk: Disk, config: LogConfig, now_ms: int, topic_id: str | None = None) -> PartitionLog:
        """Open, or create, the log in `<data dir>/<topic>-<partition>`, and recover it from its recovery point on.

        Args:
            topic_id: 32 hex digits; written to `partition.metadata` when created, compared when opened, None = whatever is there.

        Raises:
            CorruptLog: bytes that were durable are damaged or missing; names file and position. Nothing was changed.
            StorageError: the disk refused.
        """
        raise NotImplementedError

    @property
    def log_start_offset(self) -> int:
        raise NotImplementedError

    @property
    def log_end_offset(self) -> int:
        """Offset the next record gets."""
        raise NotImplementedError

    @property
    def durable_offset(self) -> int:
        """End of what may be acknowledged and read: the high watermark of a log without followers."""
        raise NotImplementedError

    @property
    def last_stable_offset(self) -> int:
        """End of what read_committed readers may see: first offset of the earliest open transaction, else `durable_offset`."""
        raise NotImplementedError

    @property
    def size_bytes(self) -> int:
        raise NotImplementedError

    @property
    def leader_epoch(self) -> int:
        """Latest leader epoch appended with, -1 for none."""
        raise NotImplementedError

    def append(self, data: Buffer, *, leader_epoch: int, now_ms: int, is_client: bool = True) -> AppendInfo:
        """Check and append the batches in `data` (whole ones only; exactly one from a client). Not durable until flushed.

        `data` is not written to and not kept. Offsets and leader epoch are stamped; LogAppendTime too if the config says so.
        With `is_client=False` (coordinators, markers) control batches are allowed and timestamps are not bounded.

        Raises:
            CorruptBatch: header or checksum is wrong (UnsupportedMagic: another format).
            AppendRefused: a rule is broken: size, timestamp, producer sequence, epoch or transaction; see its `error_code`.
            DiskFull: no space; nothing of it remains.
            PartitionFailed: an earlier write or fsync failed.
        """
        raise NotImplementedError

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
        raise NotImplementedError

    def read(self, offset: int, max_bytes: int, *, up_to_offset: int | None = None, min_one_batch: bool = True) -> LogSlice:
        """Return the bytes from the batch that holds `offset` on, at most `max_bytes` and only batches below `up_to_offset`.

        Args:
            up_to_offset: durable_offset if None; last_stable_offset for read_committed readers.
            min_one_batch: give the first batch whole even if it is bigger than `max_bytes`.

        Raises:
            OffsetOutOfRange: offset < log_start_offset or > log_end_offset. At the end the slice is empty.
            CorruptLog: the bytes at that place are not a batch.
        """
        raise NotImplementedError

    def headers(self, offset: int, *, up_to_offset: int | None = None) -> Iterator[tuple[BatchHeader, LogSlice]]:
        """Yield the header of each batch from the one that holds `offset` on, with a slice of exactly that batch."""
        raise NotImplementedError

    def aborted_transactions(self, from_offset: int, to_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap from_offset <= offset < to_offset, by first offset."""
        raise NotImplementedError

    def offset_for_time(self, timestamp_ms: int) -> TimeOffset | None:
        """Return the first record with a timestamp >= `timestamp_ms` among the durable ones, None if there is none."""
        raise NotImplementedError

    def max_timestamp(self) -> TimeOffset | None:
        """Return the first record with the largest timestamp, None for an empty log."""
        raise NotImplementedError

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return (largest epoch <= the given one, end offset of it), (-1, -1) if unknown (OffsetsForLeaderEpoch, KIP-101)."""
        raise NotImplementedError

    def open_transactions(self) -> dict[int, int]:
        """Return producer id -> first offset of each open transaction."""
        raise NotImplementedError

    def begin_flush(self) -> FlushTicket | None:
        """Return what must be synced for everything appended so far to be durable, None if nothing is dirty."""
        raise NotImplementedError

    def finish_flush(self, ticket: FlushTicket, error: Exception | None = None) -> int:
        """Take in the result of `ticket.sync`: move `durable_offset` (returned), or on an error fail the partition."""
        raise NotImplementedError

    def flush(self) -> int:
        """Sync everything appended so far, blocking; return the durable offset."""
        raise NotImplementedError

    def truncate_to(self, offset: int) -> None:
        """Drop every batch with a record at or beyond `offset` (a follower that diverged). Durable on return."""
        raise NotImplementedError

    def delete_records_before(self, offset: int) -> int:
        """Move the log start offset up to `offset` (at most the durable offset), durably; drop segments below it.

        Raises:
            OffsetOutOfRange: offset beyond the durable offset.
        """
        raise NotImplementedError

    def apply_retention(self, now_ms: int) -> int:
        """Drop whole segments older than retention.ms or beyond retention.bytes; return how many bytes that freed."""
        raise NotImplementedError

    def checkpoint(self) -> None:
        """Flush, and move the recovery point to the end, so that a restart after a crash scans only what comes after."""
        raise NotImplementedError

    def close(self) -> None:
        """Checkpoint and close: the next open scans nothing. Idempotent. A failed partition closes without a checkpoint."""
        raise NotImplementedError


class FlushTicket:
    """One flush under way: what to sync, and how far the log is durable after it. `sync` may run in any thread."""

    end_offset: int

    def sync(self) -> None:
        """Sync the files; blocks. Raises StorageError."""
        raise NotImplementedError
