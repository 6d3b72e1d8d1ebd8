"""The cluster's metadata: topics, their configs, dynamic broker configs, producer id blocks, and documents that other parts
keep here (ACLs, quotas, credentials). One file, replaced atomically.

`<data dir>/cluster.json` is replaced as a whole (temporary file, fsync, rename, directory fsync), so a crash leaves the state
before or after a change; its checksum tells bytes that a disk changed. A topic is written here before its partitions are made,
and is listed under `deleting` until its partitions are gone: what a crash interrupts is finished at the next start.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from typing import Any

import msgspec
from crc32c import crc32c

from logflume.log.broker.ports import Offload, do_at_once
from logflume.log.broker.replies import Reply
from logflume.log.broker.turns.slices import Steps
from logflume.log.errors import StorageError
from logflume.log.storage import Disk
from logflume.log.storage.disk import write_atomically

from .metadata import FORMAT_VERSION, Metadata, ProducerIdsReserved, Record, Topic, applied, from_json, to_json

CHECKSUM = "crc32c"
PRODUCER_ID_BLOCK = 1000
"""Producer ids are handed out in blocks, so that only every thousandth costs a write."""
MAX_WAIT_S = 30.0
_log = logging.getLogger("logflume.broker")


class ClusterState:
    """The metadata in memory; every change is on disk before it is there.

    A change is a `Record`. It is made by `now`, or by `later` with the file written off the broker's thread. Whoever changes
    something while such a write is under way waits for it: `later` in its turn, `now` on the spot. What the attributes hold is
    replaced, never changed.

    Invariants: `by_id` and `topics` hold the same topics; names and ids are unique, also over time for ids. `_held` has what
    steps `in_turn` are changing, with the reply that is set when they are over.
    """

    def __init__(
        self,
        path: str,
        disk: Disk,
        *,
        first_cluster_configs: Mapping[str, str] | None = None,
        offload: Offload = do_at_once,
    ) -> None:
        """Read the file; a missing one is an empty cluster, which begins with these cluster configs.

        Raises StorageError: the file is of a newer version or not readable as what it should be.
        """
        self._path, self._disk, self._offload = path, disk, offload
        self._under_way: _Write | None = None
        self._held: dict[str, Reply] = {}
        self.topics: Mapping[str, Topic] = {}
        content = disk.read_file(path)
        self.by_id: Mapping[bytes, Topic] = {}
        self._hold(Metadata(cluster_configs=dict(first_cluster_configs or {})) if content is None else self._read(content))
        self._next_producer_id = self._metadata.producer_id_limit

    def _hold(self, metadata: Metadata) -> None:
        if metadata.topics is not self.topics:
            self.by_id = {topic.topic_id: topic for topic in metadata.topics.values()}
        self._metadata, self.topics, self.deleting = metadata, metadata.topics, metadata.deleting
        self.broker_configs, self.cluster_configs = metadata.broker_configs, metadata.cluster_configs
        self.group_configs = metadata.group_configs

    def now(self, record: Record) -> None:
        """Make a change, durably. Raises StorageError: nothing has changed."""
        self._settle()
        changed = applied(self._metadata, record)
        self._write(changed)
        self._hold(changed)

    def later(self, record: Record) -> Steps:
        """Make a change whose file is written off this thread; on return it is durable and made. Raises as `now`."""
        while self._under_way is not None:
            yield self._under_way.reply
        write = self._begin(record)
        if not write.reply.is_done:
            yield write.reply
        if write.error is not None:
            raise write.error

    def in_turn(self, what: str, steps: Steps) -> Steps:
        """Run steps that read and then change something of the metadata, while nobody else does so; return what they return."""
        while what in self._held:
            yield self._held[what]
        over = self._held[what] = Reply()
        try:
            return (yield from steps)
        finally:
            del self._held[what]
            over.set(None)

    def document(self, name: str) -> Any:
        """Return what another part of the broker keeps here under a name, as JSON; None if there is nothing."""
        return self._metadata.documents.get(name)

    def new_producer_id(self) -> int:
        """Return a producer id that was never given out; every thousandth call writes, when half of the last block is left."""
        if self._next_producer_id >= self._metadata.producer_id_limit:
            self.now(self._more_producer_ids())
        elif self._next_producer_id == self._metadata.producer_id_limit - PRODUCER_ID_BLOCK // 2 and self._under_way is None:
            self._begin(self._more_producer_ids())
        self._next_producer_id += 1
        return self._next_producer_id - 1

    @property
    def has_producer_ids(self) -> bool:
        """Whether `new_producer_id` writes nothing on the spot."""
        return self._next_producer_id < self._metadata.producer_id_limit

    def reserve_producer_ids(self) -> Steps:
        """Get ids to give out, the first ones after a start. Raises StorageError."""

        def reserve() -> Steps:
            if not self.has_producer_ids:
                yield from self.later(self._more_producer_ids())

        yield from self.in_turn("producer ids", reserve())

    def _more_producer_ids(self) -> ProducerIdsReserved:
        return ProducerIdsReserved(max(self._metadata.producer_id_limit, self._next_producer_id) + PRODUCER_ID_BLOCK)

    def _begin(self, record: Record) -> _Write:
        """Begin to write a change off this thread; it counts once that is done, here or for whoever cannot wait."""
        write = self._under_way = _Write(applied(self._metadata, record))

        def work() -> None:
            try:
                self._write(write.metadata)
            except StorageError as error:
                write.error = error
            finally:
                write.is_over.set()

        self._offload(work).then(lambda _: self._settle_one(write))
        return write

    def _settle(self) -> None:
        """Wait for the write under way, if there is one, and make its change. Raises StorageError: it takes too long."""
        if self._under_way is not None:
            if not self._under_way.is_over.wait(MAX_WAIT_S):
                raise StorageError(f"{self._path}: a write of it that began before is not over after {MAX_WAIT_S:g} s; try again")
            self._settle_one(self._under_way)

    def _settle_one(self, write: _Write) -> None:
        if write.reply.is_done:
            return
        self._under_way = None
        if write.error is None:
            self._hold(write.metadata)
        else:
            _log.error("%s", write.error)
        write.reply.set(None)

    def _write(self, metadata: Metadata) -> None:
        """For any thread. Raises StorageError."""
        content = to_json(metadata)
        write_atomically(
            self._disk, self._path, msgspec.json.format(msgspec.json.encode({CHECKSUM: _checksum(content), **content}))
        )

    def _read(self, data: bytes) -> Metadata:
        try:
            content = msgspec.json.decode(data)
            version = content["version"]
            if version > FORMAT_VERSION:
                raise StorageError(
                    f"{self._path} has format version {version}, this logflume reads up to {FORMAT_VERSION}; use a newer logflume"
                )
            checksum = content.pop(CHECKSUM)
            if checksum != _checksum(content):
                raise ValueError(f"its {CHECKSUM} is {checksum}, expected {_checksum(content)}")
            return from_json(content)
        except (ValueError, KeyError, TypeError) as error:
            name = os.path.basename(self._path)
            raise StorageError(f"{self._path} is not a {name} that logflume wrote ({error}); restore it from a backup") from error


class _Write:
    """A file that is being written off the broker's thread, with the metadata that are then the cluster's."""

    __slots__ = ("error", "is_over", "metadata", "reply")

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata
        self.error: StorageError | None = None
        self.is_over, self.reply = threading.Event(), Reply()


def _checksum(content: Mapping[str, Any]) -> str:
    """Return the CRC-32C of the content in one fixed form, as hex."""
    return f"{crc32c(msgspec.json.encode(content, order='sorted')):08x}"
