"""The values of records of streams groups (KIP-1071) in `__consumer_offsets`, byte for byte as Apache Kafka writes them.

Their fields are in the tables of `log/protocol`.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Protocol, TypeVar

from logflume.log.broker.groups.epoch_records import VALUE_VERSION, GroupKind, Role, TargetEpochValue, value_reader
from logflume.log.protocol import MessageBase, codec, messages

from .assignor import Task, Tasks
from .topology import Topology, read_topology, write_topology


@dataclass(frozen=True, slots=True)
class StreamsGroupValue:
    """The group's epoch, a hash of its topics, the epoch of the topology whose topics were all there (-1: none), and the
    settings that the assignment depends on."""

    epoch: int
    metadata_hash: int
    validated_topology_epoch: int
    assignment_configs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class StreamsMemberValue:
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topology_epoch: int
    process_id: str
    endpoint: tuple[str, int] | None
    tags: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class StreamsCurrentValue:
    """A member's tasks; `state` is the number of its TaskState, `epochs` at which epoch it got each active task that it holds."""

    epoch: int
    previous_epoch: int
    state: int
    assigned: Tasks = field(default_factory=Tasks)
    revoking: Tasks = field(default_factory=Tasks)
    epochs: Mapping[Task, int] = field(default_factory=dict)


StreamsValue = StreamsGroupValue | StreamsMemberValue | TargetEpochValue | Tasks | StreamsCurrentValue | Topology

_NAMES = {
    Role.GROUP: "StreamsGroupMetadataValue",
    Role.MEMBER: "StreamsGroupMemberMetadataValue",
    Role.TARGET_EPOCH: "StreamsGroupTargetAssignmentMetadataValue",
    Role.TARGET: "StreamsGroupTargetAssignmentMemberValue",
    Role.CURRENT: "StreamsGroupCurrentMemberAssignmentValue",
    Role.OWN: "StreamsGroupTopologyValue",
}


def encode_streams_value(value: StreamsValue) -> bytes:
    """Encode a value; its type tells the kind."""
    body = write_topology(value) if isinstance(value, Topology) else codec.encode_data(_message(value), VALUE_VERSION)
    return struct.pack(">h", VALUE_VERSION) + body


def _message(value: StreamsValue) -> MessageBase:
    if isinstance(value, StreamsGroupValue):
        group = messages.StreamsGroupMetadataValue
        return group(
            epoch=value.epoch,
            metadata_hash=value.metadata_hash,
            validated_topology_epoch=value.validated_topology_epoch,
            last_assignment_configs=[group.LastAssignmentConfig(key=k, value=v) for k, v in value.assignment_configs],
        )
    if isinstance(value, StreamsMemberValue):
        return _member_message(value)
    if isinstance(value, TargetEpochValue):
        return messages.StreamsGroupTargetAssignmentMetadataValue(
            assignment_epoch=value.epoch, assignment_timestamp=value.timestamp_ms
        )
    if isinstance(value, Tasks):
        target = messages.StreamsGroupTargetAssignmentMemberValue
        return target(active_tasks=task_ids(target.TaskIds, value.active), standby_tasks=task_ids(target.TaskIds, value.standby))
    assert isinstance(value, StreamsCurrentValue)
    current = messages.StreamsGroupCurrentMemberAssignmentValue
    return current(
        member_epoch=value.epoch,
        previous_member_epoch=value.previous_epoch,
        state=value.state,
        active_tasks=_held_ids(value.assigned.active, value),
        standby_tasks=task_ids(current.TaskIds, value.assigned.standby),
        active_tasks_pending_revocation=_held_ids(value.revoking.active, value),
        standby_tasks_pending_revocation=task_ids(current.TaskIds, value.revoking.standby),
    )


def _member_message(value: StreamsMemberValue) -> messages.StreamsGroupMemberMetadataValue:
    member = messages.StreamsGroupMemberMetadataValue
    endpoint = None if value.endpoint is None else member.Endpoint(host=value.endpoint[0], port=value.endpoint[1])
    return member(
        instance_id=None,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        topology_epoch=value.topology_epoch,
        process_id=value.process_id,
        user_endpoint=endpoint,
        client_tags=[member.KeyValue(key=k, value=v) for k, v in value.tags],
    )


def by_subtopology(tasks: Iterable[Task]) -> dict[str, list[int]]:
    """Return sub-topology id -> its partitions, both in order."""
    grouped: defaultdict[str, list[int]] = defaultdict(list)
    for subtopology_id, partition in tasks:
        grouped[subtopology_id].append(partition)
    return {subtopology_id: sorted(grouped[subtopology_id]) for subtopology_id in sorted(grouped)}


class HasTasks(Protocol):
    """The tasks of one sub-topology in a message."""

    subtopology_id: str
    partitions: list[int]


TaskIds = TypeVar("TaskIds", bound=HasTasks)


def task_ids(make: Callable[..., TaskIds], tasks: Iterable[Task]) -> list[TaskIds]:
    """Return the tasks as a message has them, made by the class of its `TaskIds`."""
    return [make(subtopology_id=each, partitions=indexes) for each, indexes in by_subtopology(tasks).items()]


def _held_ids(
    tasks: Iterable[Task], value: StreamsCurrentValue
) -> list[messages.StreamsGroupCurrentMemberAssignmentValue.TaskIds]:
    """Return tasks with the epochs at which the member got them."""
    held = messages.StreamsGroupCurrentMemberAssignmentValue.TaskIds
    return [
        held(
            subtopology_id=each,
            partitions=indexes,
            assignment_epochs=list(map(value.epochs.get, zip(repeat(each), indexes), repeat(value.epoch))),
        )
        for each, indexes in by_subtopology(tasks).items()
    ]


def decode_streams_value(role: Role, data: bytes) -> StreamsValue:
    """Decode the value of a record. Raises DecodeError."""
    value_reader(GroupKind.STREAMS, role, data)
    body = codec.decode_data(_NAMES[role], VALUE_VERSION, data[2:])
    if role is Role.OWN:
        return read_topology(body)
    if role is Role.TARGET_EPOCH:
        return TargetEpochValue(body.assignment_epoch, body.assignment_timestamp)
    if role is Role.TARGET:
        return Tasks(tasks_of(body.active_tasks), tasks_of(body.standby_tasks))
    if role is Role.GROUP:
        configs = tuple((c.key, c.value) for c in body.last_assignment_configs or ())
        return StreamsGroupValue(body.epoch, body.metadata_hash, body.validated_topology_epoch, configs)
    return _read_member(body) if role is Role.MEMBER else _read_current(body)


def _read_member(body: messages.StreamsGroupMemberMetadataValue) -> StreamsMemberValue:
    endpoint = body.user_endpoint
    return StreamsMemberValue(
        rack_id=body.rack_id,
        client_id=body.client_id,
        client_host=body.client_host,
        rebalance_timeout_ms=body.rebalance_timeout_ms,
        topology_epoch=body.topology_epoch,
        process_id=body.process_id,
        endpoint=None if endpoint is None else (endpoint.host, endpoint.port),
        tags=tuple((tag.key, tag.value) for tag in body.client_tags),
    )


def _read_current(body: messages.StreamsGroupCurrentMemberAssignmentValue) -> StreamsCurrentValue:
    epochs: dict[Task, int] = {}
    for ids in (*body.active_tasks, *body.active_tasks_pending_revocation):
        told = ids.assignment_epochs or []
        told = told if len(told) == len(ids.partitions) else [body.member_epoch] * len(ids.partitions)
        epochs.update(zip(((ids.subtopology_id, index) for index in ids.partitions), told, strict=True))
    return StreamsCurrentValue(
        epoch=body.member_epoch,
        previous_epoch=body.previous_member_epoch,
        state=body.state,
        assigned=Tasks(tasks_of(body.active_tasks), tasks_of(body.standby_tasks)),
        revoking=Tasks(tasks_of(body.active_tasks_pending_revocation), tasks_of(body.standby_tasks_pending_revocation)),
        epochs=epochs,
    )


def tasks_of(ids_by_subtopology: Iterable[HasTasks]) -> frozenset[Task]:
    """Return the tasks of a message's list of sub-topologies with partitions."""
    return frozenset(chain.from_iterable(zip(repeat(ids.subtopology_id), ids.partitions) for ids in ids_by_subtopology))
