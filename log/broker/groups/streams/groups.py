"""Streams groups (KIP-1071): heartbeats, leaving, timeouts, the topology and its internal topics, target assignments, records.

What a member hears is on disk when it hears it. Memory goes ahead, as in consumer groups: a task that one member gave up may go
to the next in a record right behind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ....errors import LogflumeError
from ....protocol.errors import ErrorCode
from ...deadline import Deadline
from ...seams import Clock, Journal, JournalRecord, Reply, Timers
from ..config import GroupConfig
from ..consumer_group import LEAVING_EPOCH, hash_topics
from ..partitioner import partition_of
from ..ports import GroupSettings, InternalTopics, Topics
from ..refused import Refused
from .assignor import NO_TASKS, Tasks, assign_sticky
from .configured import Configured, Status, Told, configure
from .group import NEVER, NEW, StreamsGroup, StreamsMember, TaskState, reconcile
from .records import (
    StreamsCurrentValue,
    StreamsGroupValue,
    StreamsKey,
    StreamsKeyKind,
    StreamsMemberValue,
    StreamsTargetEpochValue,
    StreamsValue,
    encode_streams_key,
    encode_streams_value,
)
from .topology import InternalTopic, Topology, check_topology

Records = dict[StreamsKey, StreamsValue | None]
"""What is to be written, None for a removal."""

MayCreate = Callable[[str], bool]
"""Whether the asking client may create a topic."""


@dataclass(frozen=True, slots=True)
class StreamsHeartbeat:
    """A heartbeat: None and -1 mean unchanged. `owned`: the tasks the member has. `endpoint_epoch`: what it knows of others."""

    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None
    rebalance_timeout_ms: int
    topology: Topology | None
    owned: Tasks | None
    process_id: str | None
    endpoint: tuple[str, int] | None
    tags: tuple[tuple[str, str], ...] | None
    endpoint_epoch: int
    is_shutdown: bool
    client_id: str
    client_host: str


@dataclass(frozen=True, slots=True)
class StreamsResult:
    """The answer; `tasks` and `endpoints` (of all members with an address) are None when nothing changed."""

    error: ErrorCode
    message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    tasks: Tasks | None = None
    status: tuple[Told, ...] = ()
    endpoint_epoch: int = 0
    endpoints: tuple[tuple[tuple[str, int], Tasks], ...] | None = None


class StreamsGroups:
    """The rules of streams groups, over groups that the coordinator keeps. Holds no state of its own."""

    def __init__(
        self,
        config: GroupConfig,
        settings: GroupSettings,
        clock: Clock,
        timers: Timers,
        journal: Journal,
        topics: Topics,
        internal: InternalTopics,
    ) -> None:
        self._config, self._settings, self._clock, self._timers = config, settings, clock, timers
        self._journal, self._topics, self._internal = journal, topics, internal

    def new_group(self, group_id: str) -> StreamsGroup:
        """Make an empty group."""
        group: StreamsGroup
        delay = Deadline(self._clock, self._timers, lambda: self._on_delay_end(group))
        group = StreamsGroup(group_id, delay)
        return group

    # -- heartbeat

    def heartbeat(self, group: StreamsGroup, beat: StreamsHeartbeat, may_create: MayCreate) -> Reply:
        """Join, stay or leave, by a request that was checked; the reply is a StreamsResult once what it says is on disk."""
        try:
            if beat.member_epoch == LEAVING_EPOCH:
                return self._leave(group, beat)
            return self._stay(group, beat, may_create)
        except Refused as refused:
            return _done(StreamsResult(refused.error, str(refused), beat.member_id))

    def _stay(self, group: StreamsGroup, beat: StreamsHeartbeat, may_create: MayCreate) -> Reply:
        # Everything that can be refused is refused before anything changes.
        known = group.members.get(beat.member_id)
        self._check_member(group, known, beat)
        topology = self._topology_for(group, beat)
        configured = self._configured(group, topology, may_create)
        _check_tasks(configured, beat.owned)
        records: Records = {}
        member = known or self._add(group, beat.member_id)
        metadata_before, current_before = member.metadata, member.current
        member.metadata = _updated(member.metadata, beat)
        must_bump = metadata_before != member.metadata or known is None
        if must_bump:
            records[StreamsKey(StreamsKeyKind.MEMBER, group.group_id, member.member_id)] = member.metadata
        if group.topology != topology:
            group.topology = topology
            records[StreamsKey(StreamsKeyKind.TOPOLOGY, group.group_id)] = topology
        self._refresh(group, configured, records, must_bump=must_bump)
        status = self._assign_if_due(group, records, is_first=len(group.members) == 1 and known is None)
        target = group.target.get(member.member_id, NO_TASKS)
        member.current = reconcile(group, member, target, group.assignment_epoch, beat.owned)
        if member.current != current_before or beat.member_epoch == 0:
            records[StreamsKey(StreamsKeyKind.CURRENT, group.group_id, member.member_id)] = member.current
        self._restart_timers(group, member)
        if beat.is_shutdown:
            group.shutdown_by = group.shutdown_by or member.member_id
        has_news = (
            beat.member_epoch == 0 or member.current.assigned != current_before.assigned or _has_missed(beat, current_before)
        )
        if has_news and member.metadata.endpoint is not None:
            group.endpoint_epoch += 1
        result = StreamsResult(
            ErrorCode.NONE,
            member_id=member.member_id,
            member_epoch=member.current.epoch,
            tasks=member.current.assigned if has_news else None,
            status=(*_stale(topology, member), *status, *_told(group)),
            endpoint_epoch=group.endpoint_epoch,
            endpoints=_endpoints(group) if group.endpoint_epoch != beat.endpoint_epoch else None,
        )
        return self._answer(group, records, result)

    def _check_member(self, group: StreamsGroup, known: StreamsMember | None, beat: StreamsHeartbeat) -> None:
        if known is None:
            if beat.member_epoch != 0:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {beat.member_id} is not a member of group {group.group_id}.")
            if len(group.members) >= self._config.streams_max_size:
                text = f"The streams group has reached its maximum capacity of {self._config.streams_max_size} members."
                raise Refused(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
        elif beat.member_epoch != 0:
            _check_epoch(known, beat)

    def _topology_for(self, group: StreamsGroup, beat: StreamsHeartbeat) -> Topology:
        """Return the topology that the group has after this heartbeat."""
        if beat.topology is None:
            assert group.topology is not None, "a group with members has a topology"
            return group.topology
        check_topology(beat.topology)
        if group.topology is None or not group.members:
            return beat.topology
        if group.topology.epoch > beat.topology.epoch or group.topology == beat.topology:
            return group.topology
        raise Refused(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")

    def _configured(self, group: StreamsGroup, topology: Topology, may_create: MayCreate) -> Configured:
        """Return the topology with its topics, after creating those of its own that are missing."""
        configured = group.configured
        is_current = configured is not None and configured.topology == topology and not self._is_refresh_due(group)
        if not is_current or configured is None:
            configured = configure(topology, self._topics)
        if not configured.missing:
            return configured
        problems = [text for topic in configured.missing if (text := self._create(topic, may_create))]
        configured = configure(topology, self._topics)
        if configured.problem is None or not problems:
            return configured
        status, text = configured.problem
        return replace(configured, problem=(status, f"{text}; {'; '.join(problems[:3])}"))

    def _create(self, topic: InternalTopic, may_create: MayCreate) -> str | None:
        """Create an internal topic; return what went wrong."""
        if not may_create(topic.name):
            return f"Unauthorized to CREATE on topic {topic.name}."
        try:
            self._internal.create(topic.name, topic.partitions, topic.replication_factor, dict(topic.configs))
        except LogflumeError as error:
            return f"{topic.name}: {error}"
        return None

    def _add(self, group: StreamsGroup, member_id: str) -> StreamsMember:
        nothing = StreamsMemberValue(None, "", "", -1, NEVER, "", None, ())
        member = group.members[member_id] = self.give_timers(group, StreamsMember(member_id, nothing))
        return member

    # -- epochs and targets

    def _is_refresh_due(self, group: StreamsGroup) -> bool:
        elapsed_ms = self._clock.monotonic_ms() - group.refreshed_ms
        return group.refreshed_ms < 0 or elapsed_ms >= self._config.consumer_refresh_interval_ms

    def _refresh(self, group: StreamsGroup, configured: Configured, records: Records, *, must_bump: bool) -> None:
        """Bump the epoch if the members, the topology, its topics or the settings have changed."""
        hashed = group.metadata_hash
        if configured is not group.configured:
            group.refreshed_ms = self._clock.monotonic_ms()
            names = [name for name in configured.topology.topics() if self._topics.partition_count(name)]
            hashed = hash_topics(names, self._topics)
        group.configured = configured
        validated_epoch = NEVER if configured.problem else configured.topology.epoch
        configs = self._assignment_configs(group)
        changed = (hashed, validated_epoch, configs) != (group.metadata_hash, group.validated_epoch, group.configs)
        if must_bump or changed:
            group.epoch += 1
            group.metadata_hash, group.validated_epoch, group.configs = hashed, validated_epoch, configs
            records[StreamsKey(StreamsKeyKind.GROUP, group.group_id)] = _group_value(group)

    def _assignment_configs(self, group: StreamsGroup) -> tuple[tuple[str, str], ...]:
        return (("num.standby.replicas", str(self._settings.number("streams.num.standby.replicas", group.group_id))),)

    def _assign_if_due(self, group: StreamsGroup, records: Records, *, is_first: bool) -> list[Told]:
        """Compute the target assignment for the group's epoch, unless it has to wait; return what a member is told then."""
        delay_ms = self._settings.number("streams.initial.rebalance.delay.ms", group.group_id)
        if is_first and delay_ms > 0 and not group.delay.is_set:
            group.delay.set_after(delay_ms)
        if group.delay.is_set:
            return [(Status.ASSIGNMENT_DELAYED, "Assignment delayed due to the configured initial rebalance delay.")]
        if group.epoch <= group.assignment_epoch:
            return []
        interval_ms = self._settings.number("streams.assignment.interval.ms", group.group_id)
        if interval_ms and self._clock.wall_ms() < group.assigned_ms + interval_ms:
            return [(Status.ASSIGNMENT_DELAYED, "Assignment delayed due to the configured assignment interval.")]
        self._assign(group, records)
        return []

    def _assign(self, group: StreamsGroup, records: Records) -> None:
        configured = group.configured
        target = dict.fromkeys(group.members, NO_TASKS)
        if configured is not None and configured.problem is None:
            stateful = frozenset(each.subtopology_id for each in configured.topology.subtopologies if each.changelogs)
            target = assign_sticky(
                {member.member_id: member.metadata.process_id for member in group.members.values()},
                configured.task_counts,
                stateful,
                group.target,
                standby_replicas=self._settings.number("streams.num.standby.replicas", group.group_id),
            )
        for member_id, tasks in target.items():
            if group.target.get(member_id) != tasks:
                records[StreamsKey(StreamsKeyKind.TARGET, group.group_id, member_id)] = tasks
        group.target, group.assignment_epoch, group.assigned_ms = target, group.epoch, self._clock.wall_ms()
        key = StreamsKey(StreamsKeyKind.TARGET_EPOCH, group.group_id)
        records[key] = StreamsTargetEpochValue(group.epoch, group.assigned_ms)

    def _on_delay_end(self, group: StreamsGroup) -> None:
        """Give out the first tasks; members hear of them with their next heartbeat."""
        if group.members and group.epoch > group.assignment_epoch:
            records: Records = {}
            self._assign(group, records)
            self._write(group, records)

    # -- leaving and timeouts

    def _leave(self, group: StreamsGroup, beat: StreamsHeartbeat) -> Reply:
        member = group.members.get(beat.member_id)
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {beat.member_id} is not a member of group {group.group_id}.")
        if beat.is_shutdown:
            group.shutdown_by = group.shutdown_by or beat.member_id
        result = StreamsResult(ErrorCode.NONE, member_id=beat.member_id, member_epoch=beat.member_epoch)
        return self._answer(group, self._removed(group, member), result)

    def _removed(self, group: StreamsGroup, member: StreamsMember) -> Records:
        """Take a member out and bump the epoch; the others get its tasks with their next heartbeats."""
        group.remove(member)
        group.epoch += 1
        records = _tombstones(group.group_id, member.member_id)
        if not group.members:
            # Nobody is left to compute a target for: the empty one is up to date.
            group.delay.cancel()
            group.assignment_epoch = group.epoch
            key = StreamsKey(StreamsKeyKind.TARGET_EPOCH, group.group_id)
            records[key] = StreamsTargetEpochValue(group.epoch, group.assigned_ms)
        records[StreamsKey(StreamsKeyKind.GROUP, group.group_id)] = _group_value(group)
        return records

    def _drop(self, group: StreamsGroup, member: StreamsMember) -> None:
        if group.members.get(member.member_id) is member:
            self._write(group, self._removed(group, member))

    def give_timers(self, group: StreamsGroup, member: StreamsMember) -> StreamsMember:
        """Give a member its timers and start its session."""
        member.session = Deadline(self._clock, self._timers, lambda: self._drop(group, member))
        member.revocation = Deadline(self._clock, self._timers, lambda: self._drop(group, member))
        self._restart_timers(group, member)
        return member

    def _restart_timers(self, group: StreamsGroup, member: StreamsMember) -> None:
        member.session.set_after(self._settings.number("streams.session.timeout.ms", group.group_id))
        if member.current.state != TaskState.UNREVOKED_TASKS:
            member.revocation.cancel()
        elif not member.revocation.is_set:
            member.revocation.set_after(max(member.metadata.rebalance_timeout_ms, 0))

    # -- journal

    def tombstones(self, group: StreamsGroup) -> list[JournalRecord]:
        """Return the records that remove a group from the journal."""
        keys: Records = {}
        for member_id in group.members:
            keys |= _tombstones(group.group_id, member_id)
        for kind in (StreamsKeyKind.TARGET_EPOCH, StreamsKeyKind.GROUP, StreamsKeyKind.TOPOLOGY):
            keys[StreamsKey(kind, group.group_id)] = None
        return self._encoded(keys)

    def _answer(self, group: StreamsGroup, records: Records, result: StreamsResult) -> Reply:
        if not records and not group.is_dirty and not group.owed:
            return _done(result)
        reply = Reply()
        failed = StreamsResult(ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id=result.member_id)
        self._write(group, records).then(lambda offset: reply.set(result if offset >= 0 else failed))
        return reply

    def _write(self, group: StreamsGroup, records: Records) -> Reply:
        """Append records; after a failure the next write holds the whole group."""
        if group.is_dirty:
            records = records | _everything(group)
            group.is_dirty = False
        owed, group.owed = group.owed, []
        partition = partition_of(group.group_id, self._journal.partition_count)
        written = self._journal.append(partition, [*owed, *self._encoded(records)])
        group.last_write = written

        def on_written(base_offset: int) -> None:
            if base_offset < 0:
                group.is_dirty, group.owed = True, owed

        written.then(on_written)
        return written

    def _encoded(self, records: Records) -> list[JournalRecord]:
        now_ms = self._clock.wall_ms()
        return [
            JournalRecord(encode_streams_key(key), None if value is None else encode_streams_value(value), now_ms)
            for key, value in records.items()
        ]


def check_request(beat: StreamsHeartbeat) -> None:
    """Raise Refused INVALID_REQUEST unless the fields fit together."""

    def require(condition: bool, text: str) -> None:
        if not condition:
            raise Refused(ErrorCode.INVALID_REQUEST, text)

    require(bool(beat.member_id), "MemberId can't be empty.")
    require(bool(beat.group_id), "GroupId can't be empty.")
    require(beat.rack_id != "", "RackId can't be empty.")
    require(beat.member_epoch >= LEAVING_EPOCH, "Static membership is not yet supported.")
    if beat.member_epoch == 0:
        require(beat.rebalance_timeout_ms != -1, "RebalanceTimeoutMs must be provided in first request.")
        require(beat.owned is None or beat.owned == NO_TASKS, "ActiveTasks and StandbyTasks must be empty when (re-)joining.")
        require(beat.topology is not None, "Topology must be non-null when (re-)joining.")
    else:
        require(beat.topology is None, "Topology can only be provided when (re-)joining.")


def _check_epoch(member: StreamsMember, beat: StreamsHeartbeat) -> None:
    """Raise Refused FENCED_MEMBER_EPOCH unless the epoch is the member's, or that before a response which was lost."""
    current = member.current
    if beat.member_epoch == current.epoch:
        return
    is_retry = beat.member_epoch == current.previous_epoch and beat.member_epoch < current.epoch
    if is_retry and beat.owned is not None:
        has_only_its_own = beat.owned.active <= current.assigned.active and beat.owned.standby <= current.assigned.standby
        if has_only_its_own:
            return
    side = "smaller" if beat.member_epoch < current.epoch else "greater"
    raise Refused(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The streams group member has a {side} member epoch ({beat.member_epoch}) than the one known by the group "
        f"coordinator ({current.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _check_tasks(configured: Configured, owned: Tasks | None) -> None:
    """Raise Refused INVALID_REQUEST if a member has a task that does not exist."""
    if owned is None or configured.problem is not None:
        return
    for subtopology_id, partition in owned.active | owned.standby:
        count = configured.task_counts.get(subtopology_id)
        if count is None:
            raise Refused(ErrorCode.INVALID_REQUEST, f"Subtopology {subtopology_id} does not exist in the topology.")
        if not 0 <= partition < count:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"Task {partition} for subtopology {subtopology_id} is invalid. Number of tasks for this subtopology: {count}",
            )


def _has_missed(beat: StreamsHeartbeat, current: StreamsCurrentValue) -> bool:
    """Whether a member shows by its epoch or its tasks that it did not hear the last response."""
    return beat.member_epoch != current.epoch or (beat.owned is not None and beat.owned != current.assigned)


def _updated(metadata: StreamsMemberValue, beat: StreamsHeartbeat) -> StreamsMemberValue:
    """Return what the member is now: what the heartbeat leaves out has not changed."""
    return StreamsMemberValue(
        rack_id=beat.rack_id if beat.rack_id is not None else metadata.rack_id,
        client_id=beat.client_id,
        client_host=beat.client_host,
        rebalance_timeout_ms=beat.rebalance_timeout_ms if beat.rebalance_timeout_ms != -1 else metadata.rebalance_timeout_ms,
        topology_epoch=beat.topology.epoch if beat.topology is not None else metadata.topology_epoch,
        process_id=beat.process_id if beat.process_id is not None else metadata.process_id,
        endpoint=beat.endpoint if beat.endpoint is not None else metadata.endpoint,
        tags=beat.tags if beat.tags is not None else metadata.tags,
    )


def _stale(topology: Topology, member: StreamsMember) -> list[Told]:
    own = member.metadata.topology_epoch
    if own >= topology.epoch:
        return []
    text = f"The member's topology epoch {own} is behind the group's topology epoch {topology.epoch}."
    return [(Status.STALE_TOPOLOGY, text)]


def _told(group: StreamsGroup) -> list[Told]:
    """Return what every member is told."""
    told = [group.configured.problem] if group.configured and group.configured.problem else []
    if group.shutdown_by is not None:
        by = f"Streams group member {group.shutdown_by}"
        text = f"{by} encountered a fatal error and requested a shutdown for the entire application."
        told.append((Status.SHUTDOWN_APPLICATION, text))
    return told


def _endpoints(group: StreamsGroup) -> tuple[tuple[tuple[str, int], Tasks], ...]:
    """Return the tasks at each address: those of all members there together, as a client keeps one entry per address."""
    found: dict[tuple[str, int], Tasks] = {}
    for member in group.members.values():
        endpoint, tasks = member.metadata.endpoint, member.current.assigned
        if endpoint is not None:
            known = found.get(endpoint, NO_TASKS)
            found[endpoint] = Tasks(known.active | tasks.active, known.standby | tasks.standby)
    return tuple(found.items())


def _group_value(group: StreamsGroup) -> StreamsGroupValue:
    return StreamsGroupValue(group.epoch, group.metadata_hash, group.validated_epoch, group.configs)


def _tombstones(group_id: str, member_id: str) -> Records:
    kinds = (StreamsKeyKind.CURRENT, StreamsKeyKind.TARGET, StreamsKeyKind.MEMBER)
    return {StreamsKey(kind, group_id, member_id): None for kind in kinds}


def _everything(group: StreamsGroup) -> Records:
    records: Records = {}
    for member in group.members.values():
        records[StreamsKey(StreamsKeyKind.MEMBER, group.group_id, member.member_id)] = member.metadata
        records[StreamsKey(StreamsKeyKind.CURRENT, group.group_id, member.member_id)] = member.current
    for member_id, tasks in group.target.items():
        records[StreamsKey(StreamsKeyKind.TARGET, group.group_id, member_id)] = tasks
    target_epoch = StreamsTargetEpochValue(group.assignment_epoch, group.assigned_ms)
    records[StreamsKey(StreamsKeyKind.TARGET_EPOCH, group.group_id)] = target_epoch
    records[StreamsKey(StreamsKeyKind.GROUP, group.group_id)] = _group_value(group)
    if group.topology is not None:
        records[StreamsKey(StreamsKeyKind.TOPOLOGY, group.group_id)] = group.topology
    return records


def _done(result: StreamsResult) -> Reply:
    reply = Reply()
    reply.set(result)
    return reply


def restore(
    group: StreamsGroup, values: dict[StreamsKey, StreamsValue], give_timers: Callable[[StreamsMember], StreamsMember]
) -> None:
    """Rebuild a group from the last value of each of its keys; parts of a member without its metadata are left out."""
    members: dict[str, StreamsMemberValue] = {}
    currents: dict[str, StreamsCurrentValue] = {}
    for key, value in values.items():
        if isinstance(value, StreamsGroupValue):
            group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
            group.validated_epoch, group.configs = value.validated_topology_epoch, value.assignment_configs
        elif isinstance(value, StreamsMemberValue):
            members[key.member_id] = value
        elif isinstance(value, StreamsCurrentValue):
            currents[key.member_id] = value
        elif isinstance(value, StreamsTargetEpochValue):
            group.assignment_epoch, group.assigned_ms = value.epoch, value.timestamp_ms
        elif isinstance(value, Tasks):
            group.target[key.member_id] = value
        else:
            group.topology = value
    group.target = {member_id: target for member_id, target in group.target.items() if member_id in members}
    if group.topology is None:
        # Without its topology nothing can be given out: the members have to join anew.
        members = {}
    for member_id, metadata in members.items():
        group.members[member_id] = give_timers(StreamsMember(member_id, metadata, currents.get(member_id, NEW)))
