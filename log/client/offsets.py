"""Offsets of partitions by time, and committed offsets of groups: requests shared by the admin and the consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from logflume.log.errors import LogflumeError
from logflume.log.interfaces import GroupMetadata, OffsetAndMetadata
from logflume.log.protocol import ErrorCode, KafkaError, MessageBase, messages
from logflume.log.records import TopicPartition

from .cluster import GROUP, Cluster
from .retry import with_retries
from .transport import Channel

_Topic = TypeVar("_Topic", bound=MessageBase)

LATEST, EARLIEST = -1, -2
"""Special timestamps of ListOffsets."""

TIMEOUT_S = 60.0


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    """Group partitions by topic, in order."""
    out: dict[str, list[TopicPartition]] = {}
    for tp in partitions:
        out.setdefault(tp.topic, []).append(tp)
    return out


async def list_offsets(
    cluster: Cluster,
    channel: Channel,
    wanted: Mapping[TopicPartition, int],
    *,
    read_committed: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> dict[TopicPartition, tuple[int, int]]:
    """Return (offset, timestamp ms) for each partition's timestamp (ms, LATEST or EARLIEST); offset -1: no such record.

    With `read_committed` LATEST is the last stable offset.
    """
    found: dict[TopicPartition, tuple[int, int]] = {}

    async def attempt() -> None:
        rest = {tp: timestamp for tp, timestamp in wanted.items() if tp not in found}
        by_node: dict[int, list[TopicPartition]] = {}
        errors: list[LogflumeError] = []
        for tp in rest:
            try:
                by_node.setdefault(await cluster.leader(tp), []).append(tp)
            except KafkaError as refused:  # this partition alone
                errors.append(refused)
        requests = [_ask(cluster, channel, node, {tp: rest[tp] for tp in tps}, read_committed) for node, tps in by_node.items()]
        for answers, error in await asyncio.gather(*requests):
            found.update(answers)
            if error is not None:
                errors.append(error)
        if errors:
            raise errors[0]

    def forget(_: object) -> None:
        for tp in wanted:
            if tp not in found:
                cluster.forget_topic(tp.topic)

    await with_retries(attempt, timeout_s=timeout_s, on_failure=forget)
    return found


async def _ask(
    cluster: Cluster, channel: Channel, node: int, wanted: Mapping[TopicPartition, int], read_committed: bool
) -> tuple[dict[TopicPartition, tuple[int, int]], KafkaError | None]:
    topic_class = messages.ListOffsetsRequest.ListOffsetsTopic
    partition_class = messages.ListOffsetsRequest.ListOffsetsPartition
    topics = [
        topic_class(
            name=topic, partitions=[partition_class(partition_index=tp.partition, timestamp=wanted[tp]) for tp in partitions]
        )
        for topic, partitions in by_topic(wanted).items()
    ]
    request = messages.ListOffsetsRequest(replica_id=-1, isolation_level=int(read_committed), topics=topics, timeout_ms=30_000)
    response = await channel.request(request, node=node)
    found: dict[TopicPartition, tuple[int, int]] = {}
    error = None
    for topic in response.topics:
        for p in topic.partitions:
            if p.error_code:
                error = KafkaError(p.error_code, topic=topic.name, partition=p.partition_index)
            else:
                found[TopicPartition(topic.name, p.partition_index)] = (p.offset, p.timestamp)
    return found, error


async def epoch_end(cluster: Cluster, channel: Channel, partition: TopicPartition, epoch: int, *, leader_epoch: int) -> int:
    """Return the offset after the last record of `epoch` (or of the one before it) in the leader's log; -1: it cannot tell.

    Raises KafkaError: FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH when `leader_epoch` is not the leader's.
    """
    request_class = messages.OffsetForLeaderEpochRequest
    part = request_class.OffsetForLeaderPartition(
        partition=partition.partition, current_leader_epoch=leader_epoch, leader_epoch=epoch
    )
    topics = [request_class.OffsetForLeaderTopic(topic=partition.topic, partitions=[part])]
    request = request_class(replica_id=-1, topics=topics)
    response = await channel.request(request, node=await cluster.leader(partition))
    answer = response.topics[0].partitions[0]
    if answer.error_code:
        raise KafkaError(answer.error_code, topic=partition.topic, partition=partition.partition)
    return int(answer.end_offset)


async def fetch_committed(
    cluster: Cluster,
    channel: Channel,
    group_id: str,
    partitions: Sequence[TopicPartition] | None,
    *,
    is_stable: bool = True,
    timeout_s: float = TIMEOUT_S,
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """Return committed offsets of a group (`partitions` None: all it has), None where there is none.

    With `is_stable` waits for transactions that are about to commit offsets (KIP-447).
    """
    topic_class = messages.OffsetFetchRequest.OffsetFetchRequestTopic
    topics = None
    if partitions is not None:
        topics = [topic_class(name=t, partition_indexes=[tp.partition for tp in tps]) for t, tps in by_topic(partitions).items()]
    request = messages.OffsetFetchRequest(group_id=group_id, topics=topics, require_stable=is_stable)

    async def attempt() -> dict[TopicPartition, OffsetAndMetadata | None]:
        node = await cluster.coordinator(GROUP, group_id)
        response = await channel.request(request, node=node)
        if response.error_code:
            raise KafkaError(response.error_code, f"group {group_id!r}")
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        for topic in response.topics:
            for p in topic.partitions:
                tp = TopicPartition(topic.name, p.partition_index)
                if p.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    found[tp] = None
                    continue
                if p.error_code:
                    raise KafkaError(p.error_code, f"group {group_id!r}", topic=tp.topic, partition=tp.partition)
                found[tp] = _committed(p)
        return found

    return await with_retries(attempt, timeout_s=timeout_s, on_failure=lambda _: cluster.forget_coordinator(GROUP, group_id))


async def commit_offsets(
    cluster: Cluster, channel: Channel, member: GroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> None:
    """Commit offsets of a group as a member (or as nobody: generation -1). Raises KafkaError: the first refusal."""
    request_class = messages.OffsetCommitRequest
    request = request_class(
        group_id=member.group_id,
        generation_id_or_member_epoch=member.generation,
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        topics=offset_entries(request_class.OffsetCommitRequestTopic, request_class.OffsetCommitRequestPartition, offsets),
    )
    response = await channel.request(request, node=await cluster.coordinator(GROUP, member.group_id))
    for topic in response.topics:
        for p in topic.partitions:
            if p.error_code:
                raise KafkaError(p.error_code, f"group {member.group_id!r}", topic=topic.name, partition=p.partition_index)


def offset_entries(
    topic_class: Callable[..., _Topic],
    partition_class: Callable[..., MessageBase],
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> list[_Topic]:
    """Return offsets as the topics of a request, whose classes of topics and partitions are given."""
    return [
        topic_class(
            name=topic,
            partitions=[
                partition_class(
                    partition_index=tp.partition,
                    committed_offset=offsets[tp].offset,
                    committed_leader_epoch=offsets[tp].leader_epoch,
                    committed_metadata=offsets[tp].metadata,
                )
                for tp in tps
            ],
        )
        for topic, tps in by_topic(offsets).items()
    ]


def _committed(answer: messages.OffsetFetchResponse.OffsetFetchResponsePartition) -> OffsetAndMetadata | None:
    if answer.committed_offset < 0:
        return None
    return OffsetAndMetadata(answer.committed_offset, answer.metadata or "", answer.committed_leader_epoch)
