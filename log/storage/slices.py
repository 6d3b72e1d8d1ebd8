"""What an append, a read and the beginning of a flush give back. Data, and the sync that makes it durable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .disk import File


class AppendInfo(NamedTuple):
    """Where a batch went.

    Attributes:
        first_offset, last_offset: offsets of its first and last record; of the earlier append if `is_duplicate`.
        log_append_time_ms: the time stamped on it with LogAppendTime, else -1.
        is_duplicate: an idempotent producer sent it again; nothing was appended.
    """

    first_offset: int
    last_offset: int
    log_append_time_ms: int = -1
    is_duplicate: bool = False


@dataclass(slots=True)
class LogSlice:
    """A run of bytes of one segment file, beginning at a batch; it may end inside one. Keeps the file open while referred to.

    Attributes:
        position, size_bytes: where in the file. Size 0: nothing to read at this offset yet.
        first_offset: base offset of its first batch (<= the offset asked for).
    """

    file: File | None
    position: int
    size_bytes: int
    first_offset: int

    @property
    def fd(self) -> int:
        """The descriptor for sendfile, -1 for an empty slice."""
        return -1 if self.file is None else self.file.fileno()

    def __len__(self) -> int:
        return self.size_bytes

    def read(self) -> bytes:
        """Read the bytes (page cache, no decoding)."""
        return b"" if self.file is None else self.file.read(self.position, self.size_bytes)


class TimeOffset(NamedTuple):
    """A record found by time."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class AbortedTransaction(NamedTuple):
    """An aborted transaction on a partition: data in first_offset..last_offset; `last_stable_offset` is that after its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class RecoveryReport(NamedTuple):
    """What opening a log found and did; `is_clean` when nothing had to be scanned.

    Attributes:
        scanned_bytes: bytes checked from the recovery point on.
        truncated_bytes: length of the torn tail that was cut off, 0 for none; `truncated_file`, `truncated_position` say where.
        kept_file: a copy of the tail that was cut off, if good batches were in it, which only a power loss explains; else "".
        rebuilt_indexes: how many index files were made anew.
    """

    is_clean: bool
    scanned_bytes: int = 0
    truncated_bytes: int = 0
    truncated_file: str = ""
    truncated_position: int = 0
    rebuilt_indexes: int = 0
    kept_file: str = ""


class FlushTicket:
    """One flush under way: what to sync, and how far the log is durable after it. `sync` may run in any thread."""

    __slots__ = ("end_offset", "file", "generation", "position")

    def __init__(self, file: File, position: int, end_offset: int, generation: int) -> None:
        self.file, self.position, self.end_offset, self.generation = file, position, end_offset, generation

    def sync(self) -> None:
        """Sync the file; blocks. Raises StorageError."""
        self.file.sync()
