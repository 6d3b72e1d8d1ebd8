"""The stores of one task over one database: opened together, committed together, dropped together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from logflume.log import StorageError
from logflume.log.records import Chunk
from logflume.streams.seams import StoreSpec

from .checkpoint import Checkpoint
from .dirty import Dirty, DirtyEntries
from .disk import TaskDb
from .gathering import held_bytes, with_keys
from .memory import DiskMemory
from .reader import StoreReader
from .store import Store
from .trimming import ChangelogTimes

_FILE_SHARE = 1 / 4
"""How much of what is gathered at most is worth a file: fewer files are read together later, a batch passes through memory."""


class TaskState:
    """Stores by name, and the checkpoint they stand at. One thread, except what `reader` returns.

    `topic_ids`: of the topics that the stores are restored from, for the next checkpoints.
    """

    def __init__(
        self,
        path: Path,
        *,
        application: str,
        task: str,
        specs: Sequence[StoreSpec],
        memory_bytes: int = 256 << 20,
        disk_memory: DiskMemory | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """Open or create; raises as TaskDb does.

        `memory_bytes`: for entries in memory. `disk_memory`: what RocksDB may take together with other tasks; None: alone, by
        the same setting.
        """
        self._wall_s = wall_s
        disk_memory = disk_memory or DiskMemory(memory_bytes)
        self.db = TaskDb(path, application=application, task=task, specs=specs, memory=disk_memory)
        self.gather_bytes = disk_memory.gather_bytes // max(1, len(specs))
        try:
            self._open_stores(specs, memory_bytes)
        except BaseException:
            self.db.close()
            raise

    def _open_stores(self, specs: Sequence[StoreSpec], memory_bytes: int) -> None:
        self.checkpoint = self.db.checkpoint() or Checkpoint()
        self.topic_ids = self.checkpoint.topic_ids
        times, newest = self.checkpoint.store_times_ms, self.checkpoint.store_newest_ms
        self.stores: dict[str, Store] = {
            spec.name: Store(spec, db=self.db, stream_time_ms=times.get(spec.name, -1), newest_ms=newest.get(spec.name, -1))
            for spec in specs
        }
        self.hold(memory_bytes)
        marks = self.checkpoint.changelog_marks
        self._changelog_times: dict[str, ChangelogTimes] = {
            name: ChangelogTimes(store.layout, marks.get(name, [])) for name, store in self.stores.items() if store.layout
        }

    def hold(self, memory_bytes: int) -> None:
        """Keep entries of that size in memory from now on, the stores sharing it evenly."""
        for store in self.stores.values():
            store.memory_bytes = max(1 << 20, memory_bytes // len(self.stores))

    def encode_dirty(self) -> dict[str, Dirty]:
        """Return what the next commit writes to disk and changelogs, for each store with changes. Raises StateDamaged."""
        self.db.refuse_damage()
        return {name: store.encode_dirty() for name, store in self.stores.items() if store.has_changes}

    def commit(self, entries: Mapping[str, Dirty], checkpoint: Checkpoint) -> None:
        """Write entries and checkpoint in one batch; the store times are added here. Call after the log transaction only."""
        batch = self.db.batch()
        for name, store in self.stores.items():
            dirty = entries.get(name, _NOTHING)
            store.put_into(batch, dirty)
        for name, noted in self._changelog_times.items():
            if name in entries and name in checkpoint.changelogs:
                noted.note(self.stores[name].stream_time_ms, checkpoint.changelogs[name])
        self._write(batch, checkpoint)
        for name, store in self.stores.items():
            dirty = entries.get(name, _NOTHING)
            store.committed(deleted=dirty.deleted())
            store.expire()

    def restore(self, store: Store, chunk: Chunk, checkpoint: Checkpoint) -> None:
        """Take records of a store's changelog: many as a file, others in one write batch."""
        chunk = with_keys(chunk)
        batch, newest_ms = self.db.batch(), -1
        if len(chunk) and held_bytes(chunk) >= self.gather_bytes * _FILE_SHARE:
            with self.db.sorted_file() as file:
                newest_ms = store.restored(chunk, file)
        elif len(chunk):
            newest_ms = store.restored(chunk, batch)
        noted = self._changelog_times.get(store.spec.name)
        end_offset = checkpoint.changelogs.get(store.spec.name)
        if noted is not None and end_offset is not None and newest_ms >= 0:
            noted.note(newest_ms, end_offset)
        self._write(batch, checkpoint)

    def _write(self, batch: Any, checkpoint: Checkpoint) -> None:
        marks = {name: list(noted.marks) for name, noted in self._changelog_times.items()}
        self.checkpoint = replace(
            checkpoint,
            store_times_ms={name: store.stream_time_ms for name, store in self.stores.items()},
            store_newest_ms={name: store.newest_ms for name, store in self.stores.items()},
            changelog_marks=marks,
            topic_ids=self.topic_ids,
            written_s=self._wall_s(),
        )
        self.db.write(batch, self.checkpoint)

    def expired_changelogs(self) -> dict[str, int]:
        """Return store -> offset of its changelog before which all windows have expired, where it has moved. After a commit."""
        found = {name: noted.expired(self.stores[name].stream_time_ms) for name, noted in self._changelog_times.items()}
        return {name: offset for name, offset in found.items() if offset}

    def preload(self) -> None:
        """Read small stores into memory, so that their keys need no look on disk from then on."""
        for store in self.stores.values():
            store.preload()

    def reader(self, store: str) -> StoreReader:
        """Return a thread-safe reader of a store's committed entries."""
        return StoreReader(self.db, self.stores[store].spec)

    def disk_bytes(self) -> int:
        """Return about how much all stores take on disk, 0 once closed. Thread-safe."""
        try:
            with self.db.reading():
                return self.db.estimated_bytes()
        except StorageError:
            return 0

    def close(self) -> None:
        """Drop what is uncommitted and close. Idempotent; waits for readers."""
        for store in self.stores.values():
            store.close()
        self.db.close()


_NOTHING = DirtyEntries([], [], [])
