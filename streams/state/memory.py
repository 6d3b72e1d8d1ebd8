"""What RocksDB may take of an application's memory: one block cache for all its tasks, and write buffers by their number.

Each database with a cache and buffers of its own would take memory by the number of tasks, whatever the setting says. RocksDB's
own budget for write buffers is not used: it writes out what the database that happens to write has, however little, and not what
idle ones hold.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

_LEAST_BYTES = 16 << 20
_WRITE_BUFFER_MIN_BYTES, _WRITE_BUFFER_MAX_BYTES = 1 << 20, 32 << 20


class DiskMemory:
    """A quarter of a memory setting, at least 16 MiB: half of it for blocks, their indexes and filters, half for write buffers.

    Shared by all databases that are opened with it. `tasks` is how many those will be, said before they are opened;
    `entries_bytes` is what is left for entries in memory.
    """

    def __init__(self, memory_bytes: int, *, tasks: int = 1) -> None:
        self.disk_bytes = max(memory_bytes // 4, _LEAST_BYTES)
        self.entries_bytes = max(memory_bytes - self.disk_bytes, memory_bytes // 4)
        self.tasks = tasks

    @property
    def write_buffer_bytes(self) -> int:
        """Return the size at which one database writes its buffer to a file; while it does so it may fill another one."""
        share = self.disk_bytes // 2 // max(1, self.tasks)
        return min(max(share, _WRITE_BUFFER_MIN_BYTES), _WRITE_BUFFER_MAX_BYTES)

    @property
    def gather_bytes(self) -> int:
        """Return how much of changelogs is gathered for one database before it is written: as much as its empty buffers."""
        return 2 * self.write_buffer_bytes

    @cached_property
    def cache(self) -> Any:
        """The block cache (rocksdict's)."""
        import rocksdict

        return rocksdict.Cache(self.disk_bytes // 2)
