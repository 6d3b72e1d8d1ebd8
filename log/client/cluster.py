"""The metadata cache: topics, partitions, leaders and coordinators, refreshed when they turn out to be out of date."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from logflume.log.errors import LogflumeError, TransportError, UnknownName, UnknownTopic
from logflume.log.protocol import ErrorCode, KafkaError, messages
from logflume.log.records import TopicPartition

from .retry import shielded, with_retries
from .transport import Channel, Transport

GROUP, TRANSACTION = 0, 1
"""Kinds of coordinator (FindCoordinator key_type)."""

METADATA_MAX_AGE_S = 60.0
UNKNOWN_TOPIC_GRACE_S = 1.0
"""How long a topic that is not there is looked for again: right after its creation not every broker of a cluster knows it."""


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """Leader (node id, -1 if there is none now) and its epoch."""

    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as metadata has it; `partitions` by partition number."""

    name: str
    topic_id: str
    partitions: tuple[PartitionInfo, ...]
    is_internal: bool


class Cluster:
    """What is known of the cluster. On the I/O loop only; other threads may look into `topics`, which is whole at any time."""

    def __init__(self, transport: Transport, client_id: str) -> None:
        self.transport = transport
        self.channel: Channel = transport.channel(client_id)
        self.topics: dict[str, TopicInfo] = {}
        self.controller = -1
        self.cluster_id = ""
        self._coordinators: dict[tuple[int, str], int] = {}
        self._refreshing: dict[frozenset[str] | None, asyncio.Task[Mapping[str, TopicInfo]]] = {}

    def partition_count_now(self, topic: str) -> int | None:
        """Return the number of partitions if it is known; callable from any thread."""
        info = self.topics.get(topic)
        return len(info.partitions) if info else None

    async def refresh(self, topics: Iterable[str] | None) -> Mapping[str, TopicInfo]:
        """Fetch metadata of these topics (None: all); refreshes of the same topics at the same time are one request.

        Returns what is known by that answer; whoever doubts a topic may take it out of `topics` at any moment.
        """
        wanted = None if topics is None else frozenset(topics)
        task = self._refreshing.get(wanted)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._fetch(wanted))
            self._refreshing[wanted] = task
            task.add_done_callback(lambda _: self._refreshing.pop(wanted, None))
        return await shielded(task)

    async def keep_fresh(self) -> None:
        """Refresh what is known every now and then, so that new partitions are noticed; runs until it is cancelled."""
        while True:
            await asyncio.sleep(METADATA_MAX_AGE_S)
            with contextlib.suppress(LogflumeError):
                await self.refresh(list(self.topics))

    async def topic(self, name: str, *, timeout_s: float = 30.0) -> TopicInfo:
        """Return a topic of which a partition has a leader, from the cache if it is there.

        A partition without one is offline, which is nothing to the others: see `leader`.

        Raises:
            TypeError: the name is no text, which no broker could be asked for.
            UnknownName: there is no such topic; with near matches.
            TransportError: no metadata in time.
        """
        if not isinstance(name, str):
            raise TypeError(f"expected a topic's name, found {type(name).__name__}")
        found = self.topics.get(name)
        if found is not None and any(p.leader >= 0 for p in found.partitions):
            return found
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + UNKNOWN_TOPIC_GRACE_S

        async def look() -> TopicInfo:
            info = (await self.refresh([name])).get(name)
            if info is None:
                if loop.time() < give_up_s:
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic=name)
                known = await self.refresh(None)
                if name not in known:
                    raise UnknownTopic(name, known)
                info = known[name]  # made since it was asked for
            if all(p.leader < 0 for p in info.partitions):
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, topic=name)
            return info

        return await with_retries(look, timeout_s=timeout_s)

    async def leader(self, partition: TopicPartition) -> int:
        """Return the node id of a partition's leader.

        Raises as `topic`, UnknownName for a partition beyond the last, KafkaError LEADER_NOT_AVAILABLE for one that is offline.
        """
        info = await self.topic(partition.topic)
        if not 0 <= partition.partition < len(info.partitions):
            await self.refresh([partition.topic])
            info = await self.topic(partition.topic)
        if not 0 <= partition.partition < len(info.partitions):
            raise UnknownName(
                "partition", f"{partition.topic}-{partition.partition}", [f"{partition.topic}-{len(info.partitions) - 1}"]
            )
        if info.partitions[partition.partition].leader < 0:
            await self.refresh([partition.topic])
            if self.leader_now(partition) < 0:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, topic=partition.topic, partition=partition.partition)
            return self.leader_now(partition)
        return info.partitions[partition.partition].leader

    def leader_now(self, partition: TopicPartition) -> int:
        """Return the leader if the cache has one, else -1."""
        info = self.topics.get(partition.topic)
        if info is None or partition.partition >= len(info.partitions):
            return -1
        return info.partitions[partition.partition].leader

    def leader_epoch_now(self, partition: TopicPartition) -> int:
        """Return the epoch of the leader that `leader_now` gives, -1 if it is not known."""
        info = self.topics.get(partition.topic)
        if info is None or partition.partition >= len(info.partitions):
            return -1
        return info.partitions[partition.partition].leader_epoch

    def forget_topic(self, topic: str) -> None:
        """The cache turned out to be wrong about a topic."""
        self.topics.pop(topic, None)

    async def coordinator(self, kind: int, key: str, *, timeout_s: float = 30.0) -> int:
        """Return the node id of the coordinator of a group or transactional id."""
        cached = self._coordinators.get((kind, key))
        if cached is not None:
            return cached

        async def find() -> int:
            response = await self.channel.request(messages.FindCoordinatorRequest(key=key, key_type=kind))
            if response.error_code:
                raise KafkaError(response.error_code, f"{'group' if kind == GROUP else 'transactional id'} {key!r}")
            self.transport.learn_nodes({response.node_id: (response.host, response.port)})
            return int(response.node_id)

        node = await with_retries(find, timeout_s=timeout_s)
        self._coordinators[(kind, key)] = node
        return node

    def forget_coordinator(self, kind: int, key: str) -> None:
        """The coordinator turned out to have moved."""
        self._coordinators.pop((kind, key), None)

    async def _fetch(self, wanted: frozenset[str] | None) -> Mapping[str, TopicInfo]:
        topics = None if wanted is None else [messages.MetadataRequest.MetadataRequestTopic(name=n) for n in sorted(wanted)]
        request = messages.MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        response = await self.channel.request(request)
        if not response.brokers:
            raise TransportError("the metadata names no broker")
        self.transport.learn_nodes({broker.node_id: (broker.host, broker.port) for broker in response.brokers})
        self.controller, self.cluster_id = response.controller_id, response.cluster_id or ""
        known = {} if wanted is None else dict(self.topics)
        for topic in response.topics:
            self._take(topic, known)
        self.topics = known  # at once, for other threads look here too
        return dict(known)

    def _take(self, topic: messages.MetadataResponse.MetadataResponseTopic, known: dict[str, TopicInfo]) -> None:
        if topic.name is None:
            return  # asked for by their names, none is without
        if topic.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
            known.pop(topic.name, None)
            return
        if topic.error_code and topic.error_code != ErrorCode.LEADER_NOT_AVAILABLE:
            raise KafkaError(topic.error_code, topic=topic.name)
        count = max((p.partition_index for p in topic.partitions), default=-1) + 1
        partitions = [PartitionInfo(-1, -1)] * count
        for p in topic.partitions:
            partitions[p.partition_index] = PartitionInfo(p.leader_id, p.leader_epoch)
        known[topic.name] = TopicInfo(topic.name, topic.topic_id.hex(), tuple(partitions), topic.is_internal)
