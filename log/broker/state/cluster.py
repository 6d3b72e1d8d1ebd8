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
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from crc32c import crc32c

from logflume.log.broker.ports import Offload, do_at_once
from logflume.log.broker.replies import Reply
from logflume.log.broker.turns.slices import Steps
from logflume.log.errors import StorageError
from logflume.log.internal_topics import BROKER_TOPICS
from logflume.log.storage import Disk
from logflume.log.storage.disk import write_atomically

FORMAT_VERSION = 1
CHECKSUM = "crc32c"
PRODUCER_ID_BLOCK = 1000
"""Producer ids are handed out in blocks, so that only every thousandth costs a write."""


MAX_WAIT_S = 30.0
_log = logging.getLogger("logflume.broker")


@dataclass(slots=True, eq=False)
class Topic:
    """A topic: 16 bytes of id, number of partitions, its own configs (those that differ from the broker's)."""

    name: str
    topic_id: bytes
    partition_count: int
    configs: dict[str, str] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        return self.name in BROKER_TOPICS


Change = Generator[dict[str, Any], None, None]
"""A change of the metadata: yields what is to be written, and is gone on with, to change the memory, once that is on disk."""


class ClusterState:
    """The metadata in memory; every change is on disk before it is there.

    A `Change` is made by `now`, or by `later` with the file written off the broker's thread. Whoever changes something while such
    a write is under way waits for it: `later` in its turn, `now` on the spot.

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
        self.topics: dict[str, Topic] = {}
        self.by_id: dict[bytes, Topic] = {}
        self.deleting: list[Topic] = []
        self.broker_configs: dict[str, str] = {}
        self._documents: dict[str, Any] = {}
        self.cluster_configs = dict(first_cluster_configs or {})
        self.group_configs: dict[str, dict[str, str]] = {}
        self._next_producer_id = self._producer_id_limit = 0
        content = disk.read_file(path)
        if content is not None:
            self._load(content)

    def now(self, change: Change) -> None:
        """Make a change, durably. Raises StorageError: nothing has changed."""
        self._settle()
        self._write(self._content(next(change)))
        _go_on(change)

    def later(self, change: Change) -> Steps:
        """Make a change whose file is written off this thread; on return it is durable and made. Raises as `now`."""
        while self._under_way is not None:
            yield self._under_way.reply
        write = self._begin(change)
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

    def add_topics(self, topics: Sequence[Topic]) -> Change:
        assert not any(topic.name in self.topics for topic in topics)
        yield {"topics": [*self.topics.values(), *topics]}
        for topic in topics:
            self.topics[topic.name] = self.by_id[topic.topic_id] = topic

    def set_partition_counts(self, counts: Mapping[str, int]) -> Change:
        """Set the new, larger number of partitions of topics, by name."""
        assert all(count > self.topics[name].partition_count for name, count in counts.items())
        yield {
            "topics": [
                Topic(each.name, each.topic_id, counts.get(each.name, each.partition_count), each.configs)
                for each in self.topics.values()
            ]
        }
        for name, count in counts.items():
            self.topics[name].partition_count = count

    def set_topic_configs(self, topic: Topic, configs: Mapping[str, str]) -> Change:
        changed = Topic(topic.name, topic.topic_id, topic.partition_count, dict(configs))
        yield {"topics": [changed if each is topic else each for each in self.topics.values()]}
        topic.configs = dict(configs)

    def set_broker_configs(self, configs: Mapping[str, str]) -> Change:
        yield {"broker_configs": configs}
        self.broker_configs = dict(configs)

    def document(self, name: str) -> Any:
        """Return what another part of the broker keeps here under a name, as JSON; None if there is nothing."""
        return self._documents.get(name)

    def set_document(self, name: str, value: Any) -> Change:
        """Keep JSON under a name: ACLs, quotas, credentials and the like."""
        documents = {**self._documents, name: value}
        yield {"documents": documents}
        self._documents = documents

    def set_cluster_configs(self, configs: Mapping[str, str]) -> Change:
        yield {"cluster_configs": configs}
        self.cluster_configs = dict(configs)

    def set_group_configs(self, group_id: str, configs: Mapping[str, str]) -> Change:
        """Replace a group's own configs; a group without any is forgotten."""
        changed = {name: own for name, own in self.group_configs.items() if name != group_id}
        if configs:
            changed[group_id] = dict(configs)
        yield {"group_configs": changed}
        self.group_configs = changed

    def begin_delete(self, topics: Sequence[Topic]) -> Change:
        """Take topics away; their partitions are to be deleted, then `finish_delete` made."""
        gone = {topic.topic_id for topic in topics}
        yield {
            "topics": [each for each in self.topics.values() if each.topic_id not in gone],
            "deleting": [*self.deleting, *topics],
        }
        for topic in topics:
            del self.topics[topic.name], self.by_id[topic.topic_id]
        self.deleting += topics

    def finish_delete(self, topics: Sequence[Topic]) -> Change:
        gone = {topic.topic_id for topic in topics}
        left = [each for each in self.deleting if each.topic_id not in gone]
        yield {"deleting": left}
        self.deleting = left

    def new_producer_id(self) -> int:
        """Return a producer id that was never given out; every thousandth call writes, when half of the last block is left."""
        if self._next_producer_id >= self._producer_id_limit:
            self.now(self._more_producer_ids())
        elif self._next_producer_id == self._producer_id_limit - PRODUCER_ID_BLOCK // 2 and self._under_way is None:
            self._begin(self._more_producer_ids())
        self._next_producer_id += 1
        return self._next_producer_id - 1

    @property
    def has_producer_ids(self) -> bool:
        """Whether `new_producer_id` writes nothing on the spot."""
        return self._next_producer_id < self._producer_id_limit

    def reserve_producer_ids(self) -> Steps:
        """Get ids to give out, the first ones after a start. Raises StorageError."""

        def reserve() -> Steps:
            if not self.has_producer_ids:
                yield from self.later(self._more_producer_ids())

        yield from self.in_turn("producer ids", reserve())

    def _more_producer_ids(self) -> Change:
        limit = max(self._producer_id_limit, self._next_producer_id) + PRODUCER_ID_BLOCK
        yield {"producer_id_limit": limit}
        self._producer_id_limit = limit

    def _begin(self, change: Change) -> _Write:
        """Begin to write what a change yields off this thread; it is gone on with there, or by whoever cannot wait."""
        write = self._under_way = _Write(change)
        content = self._content(next(change))

        def work() -> None:
            try:
                self._write(content)
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
            _go_on(write.change)
        else:
            _log.error("%s", write.error)
        write.reply.set(None)

    def _content(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Return what is to be written. Nothing of it is changed while it is: whoever would waits first."""
        state: dict[str, Any] = {
            "topics": self.topics.values(),
            "deleting": self.deleting,
            "broker_configs": self.broker_configs,
            "documents": self._documents,
            "cluster_configs": self.cluster_configs,
            "group_configs": self.group_configs,
            "producer_id_limit": self._producer_id_limit,
        } | changes
        return state | {"topics": list(state["topics"]), "deleting": list(state["deleting"])}

    def _write(self, state: Mapping[str, Any]) -> None:
        """For any thread. Raises StorageError."""
        content = {
            "version": FORMAT_VERSION,
            "producer_id_limit": state["producer_id_limit"],
            "broker_configs": dict(state["broker_configs"]),
            "documents": state["documents"],
            "cluster_configs": dict(state["cluster_configs"]),
            "group_configs": state["group_configs"],
            "topics": [_to_json(topic) for topic in state["topics"]],
            "deleting": [_to_json(topic) for topic in state["deleting"]],
        }
        write_atomically(
            self._disk, self._path, orjson.dumps({CHECKSUM: _checksum(content), **content}, option=orjson.OPT_INDENT_2)
        )

    def _load(self, content: bytes) -> None:
        try:
            state = orjson.loads(content)
            version = state["version"]
            if version > FORMAT_VERSION:
                raise StorageError(
                    f"{self._path} has format version {version}, this logflume reads up to {FORMAT_VERSION}; use a newer logflume"
                )
            checksum = state.pop(CHECKSUM)
            if checksum != _checksum(state):
                raise ValueError(f"its {CHECKSUM} is {checksum}, expected {_checksum(state)}")
            self.topics = {each["name"]: _from_json(each) for each in state["topics"]}
            self.deleting = [_from_json(each) for each in state["deleting"]]
            self.broker_configs = dict(state["broker_configs"])
            self._documents = dict(state.get("documents", {}))
            self.cluster_configs = dict(state.get("cluster_configs", {}))
            self.group_configs = {name: dict(own) for name, own in state.get("group_configs", {}).items()}
            self._next_producer_id = self._producer_id_limit = int(state["producer_id_limit"])
        except (ValueError, KeyError, TypeError) as error:
            name = os.path.basename(self._path)
            raise StorageError(f"{self._path} is not a {name} that logflume wrote ({error}); restore it from a backup") from error
        self.by_id = {topic.topic_id: topic for topic in self.topics.values()}


class _Write:
    """A file that is being written off the broker's thread, for a change."""

    __slots__ = ("change", "error", "is_over", "reply")

    def __init__(self, change: Change) -> None:
        self.change = change
        self.error: StorageError | None = None
        self.is_over, self.reply = threading.Event(), Reply()


def _go_on(change: Change) -> None:
    """Have a change that is on disk made in memory."""
    for _ in change:
        raise AssertionError("a change is written once")


def _checksum(content: Mapping[str, Any]) -> str:
    """Return the CRC-32C of the content in one fixed form, as hex."""
    return f"{crc32c(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)):08x}"


def _to_json(topic: Topic) -> dict[str, Any]:
    return {"name": topic.name, "id": topic.topic_id.hex(), "partitions": topic.partition_count, "configs": topic.configs}


def _from_json(value: dict[str, Any]) -> Topic:
    return Topic(value["name"], bytes.fromhex(value["id"]), int(value["partitions"]), dict(value["configs"]))
