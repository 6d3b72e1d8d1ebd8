"""A data directory: one holder at a time, its identity, and the partitions in it (architecture, D3).

<data dir>/.lock               held by fcntl while open; its text names the holder
<data dir>/meta.properties     version, cluster.id, node.id
<data dir>/<topic>-<partition> one log each; `...-delete` once given up
"""

from __future__ import annotations

from typing import NamedTuple

from .config import LogConfig
from .disk import Disk
from .partition import PartitionLog


class Holder(NamedTuple):
    """Who holds a data directory: process id, and where it listens (Unix socket path or host:port, "" if it does not)."""

    pid: int
    address: str


class DataDir:
    """An open data directory. Context manager."""

    path: str
    cluster_id: str
    node_id: int

    @classmethod
    def open(cls, path: str, *, disk: Disk, address: str = "", cluster_id: str | None = None, node_id: int = 1) -> DataDir:
        """Lock the directory (made if missing) and read or write its identity.

        Raises:
            DataDirLocked: another process holds it; `holder` says which and where it listens.
            StorageError: of a newer version, of another cluster or node, or not a logflume directory (and not empty).
        """
        raise NotImplementedError

    @staticmethod
    def holder(path: str) -> Holder | None:
        """Return who holds the directory now, None if nobody does."""
        raise NotImplementedError

    def set_address(self, address: str) -> None:
        """Tell others where the holder listens (written to the lock file)."""
        raise NotImplementedError

    def partitions(self) -> dict[tuple[str, int], str]:
        """Return (topic, partition) -> directory for every log in it."""
        raise NotImplementedError

    def open_partition(self, topic: str, partition: int, *, topic_id: str, config: LogConfig, now_ms: int) -> PartitionLog:
        """Open the log of a partition, made durably (directory fsync) if missing."""
        raise NotImplementedError

    def delete_partition(self, log: PartitionLog) -> None:
        """Close the log without a checkpoint, rename its directory to `...-delete` durably, then remove it."""
        raise NotImplementedError

    def close(self) -> None:
        """Give up the lock. Partitions are closed by their users. Idempotent."""
        raise NotImplementedError
