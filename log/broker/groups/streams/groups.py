"""Streams groups (KIP-1071): heartbeats, leaving, the topology and its internal topics, target assignments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from logflume.log.broker.groups.config import GroupConfig
from logflume.log.broker.groups.epoch_records import GroupKind, Role
from logflume.log.broker.groups.epoch_rules import Assignment, EpochRules, Records
from logflume.log.broker.groups.epochs import LEAVING_EPOCH, hash_topics
from logflume.log.broker.groups.refused import Refused
from logflume.log.broker.ports import Clock, GroupSettings, InternalTopics, Journal, Offload, Timers, Topics
from logflume.log.broker.replies import Reply
from logflume.log.broker.turns.deadline import Deadline
from logflume.log.protocol.errors import ErrorCode

from .assignor import NO_TASKS, Tasks, assign_sticky
from .configured import Configured, Status, Told, configure
from .group import NEVER, NEW, StreamsGroup, StreamsMember, TaskState, reconcile
from .records import StreamsCurrentValue, StreamsGroupValue, StreamsMemberValue, encode_streams_value
from .topology import InternalTopic, Topology, check_topology

MayCreate = Callable[[str], bool]
"""Whether the asking client may create a topic."""


class TopicsMissing(Exception):
    """A heartbeat needs internal topics that are to be made first."""

    def __init__(self, topics: tuple[InternalTopic, ...]) -> None:
        super().__init__(", ".join(topic.name for topic in topics))
        self.topics = topics


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


class StreamsGroups(EpochRules[StreamsGroup, StreamsMember]):
    """The rules of streams groups, over groups that the coordinator keeps. Holds no state of its own."""

    kind = GroupKind.STREAMS

    def __init__(
        self,
        config: GroupConfig,
        settings: GroupSettings,
        clock: Clock,
        timers: Timers,
        journal: Journal,
        topics: Topics,
        offload: Offload,
        internal: InternalTopics,
    ) -> None:
        super().__init__(config, settings, clock, timers, journal, topics, offload)
        self._internal = internal

    def new_group(self, group_id: str) -> StreamsGroup:
        """Make an empty group."""
        group = StreamsGroup(group_id)
        group.delay = Deadline(self._clock, self._timers, lambda: self._on_delay_end(group))
        return group

    # -- policy

    @property
    def max_size(self) -> int:
        return self._config.streams_max_size

    def group_value(self, group: StreamsGroup) -> StreamsGroupValue:
        return StreamsGroupValue(group.epoch, group.metadata_hash, group.validated_epoch, group.configs)

    def own_values(self, group: StreamsGroup) -> Records:
        return {} if group.topology is None else {(Role.OWN, ""): group.topology}

    def encode_value(self, value: Any) -> bytes:
        return encode_streams_value(value)

    def new_member(self, member_id: str, metadata: StreamsMemberValue, current: StreamsCurrentValue | None) -> StreamsMember:
        return StreamsMember(member_id, metadata, current or NEW)

    def restore_value(self, group: StreamsGroup, role: Role, value: Any) -> None:
        if role is Role.OWN:
            group.topology = value
            return
        super().restore_value(group, role, value)
        group.validated_epoch, group.configs = value.validated_topology_epoch, value.assignment_configs

    def may_keep(self, group: StreamsGroup) -> bool:
        """Without its topology nothing can be given out: the members have to join anew."""
        return group.topology is not None

    def give_up_ms(self, member: StreamsMember) -> int | None:
        return member.metadata.rebalance_timeout_ms if member.current.state == TaskState.UNREVOKED_TASKS else None

    def on_empty(self, group: StreamsGroup) -> None:
        group.delay.cancel()

    def assignment(self, group: StreamsGroup) -> Assignment:
        configured = group.configured
        if configured is None or configured.problem is not None:
            return Assignment(0, partial(dict.fromkeys, tuple(group.members), NO_TASKS))
        replicas = self.setting("num.standby.replicas", group.group_id)
        compute = partial(
            assign_sticky,
            {member.member_id: member.metadata.process_id for member in group.members.values()},
            configured.task_counts,
            frozenset(each.subtopology_id for each in configured.topology.subtopologies if each.changelogs),
            dict(group.target),
            standby_replicas=replicas,
        )
        return Assignment(len(group.members) + sum(configured.task_counts.values()) * (1 + replicas), compute)

    # -- heartbeat

    def heartbeat(self, group: StreamsGroup, beat: StreamsHeartbeat, problems: Mapping[str, str] | None) -> Reply:
        """Join, stay or leave, by a request that was checked; the reply is a StreamsResult once what it says is on disk.

        `problems`: what went wrong as the group's internal topics were made, None if that was not tried yet.

        Raises TopicsMissing: some are to be made first; nothing has changed.
        """
        try:
            if beat.member_epoch == LEAVING_EPOCH:
                return self._leave(group, beat)
            return self._stay(group, beat, problems)
        except Refused as refused:
            return Reply.of(StreamsResult(refused.error, str(refused), beat.member_id))

    def make(self, topics: Sequence[InternalTopic], may_create: MayCreate) -> Reply:
        """Make internal topics; the reply is what went wrong by topic, as text."""
        denied = {topic.name: f"Unauthorized to CREATE on topic {topic.name}." for topic in topics if not may_create(topic.name)}
        reply = Reply()
        made = self._internal.create([topic for topic in topics if topic.name not in denied])
        made.then(lambda problems: reply.set(denied | {name: f"{name}: {text}" for name, text in problems.items()}))
        return reply

    def _stay(self, group: StreamsGroup, beat: StreamsHeartbeat, problems: Mapping[str, str] | None) -> Reply:
        # Everything that can be refused is refused before anything changes.
        known = group.members.get(beat.member_id)
        self._check_member(group, known, beat)
        topology = self._topology_for(group, beat)
        configured = self._configured(group, topology, problems)
        _check_tasks(configured, beat.owned)
        records: Records = {}
        member = known or self._add(group, beat.member_id)
        metadata_before, current_before = member.metadata, member.current
        member.metadata = _updated(member.metadata, beat)
        must_bump = metadata_before != member.metadata or known is None
        if must_bump:
            records[Role.MEMBER, member.member_id] = member.metadata
        if group.topology != topology:
            group.topology = topology
            records[Role.OWN, ""] = topology
        self._reconfigure(group, configured, records, must_bump=must_bump)
        delayed = self._delayed(group, is_first=len(group.members) == 1 and known is None)

        def go_on(records: Records) -> Reply:
            return self._move(group, member, beat, current_before, delayed, records)

        if delayed:
            return go_on(records)
        failed = _failed(StreamsResult(ErrorCode.NONE, member_id=member.member_id))
        return self.once_assigned(group, member, records, go_on, failed)

    def _move(
        self,
        group: StreamsGroup,
        member: StreamsMember,
        beat: StreamsHeartbeat,
        before: StreamsCurrentValue,
        status: Sequence[Told],
        records: Records,
    ) -> Reply:
        """Let a member move towards its target, and answer it."""
        topology = group.topology
        assert topology is not None, "its members brought it"
        target = group.target.get(member.member_id, NO_TASKS)
        member.current = reconcile(group, member, target, group.assignment_epoch, beat.owned)
        if member.current != before or beat.member_epoch == 0:
            records[Role.CURRENT, member.member_id] = member.current
        self.restart_timers(group, member)
        if beat.is_shutdown:
            group.shutdown_by = group.shutdown_by or member.member_id
        has_news = beat.member_epoch == 0 or member.current.assigned != before.assigned or _has_missed(beat, before)
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
        return self.answer(group, records, result, _failed(result))

    def _check_member(self, group: StreamsGroup, known: StreamsMember | None, beat: StreamsHeartbeat) -> None:
        if known is None:
            if beat.member_epoch != 0:
                raise self.unknown(group.group_id, beat.member_id)
            self.check_room(group)
        elif beat.member_epoch != 0:
            held, owned = known.current.assigned, beat.owned
            is_own = owned is not None and owned.active <= held.active and owned.standby <= held.standby
            self.check_epoch(known.current, beat.member_epoch, has_only_its_own=is_own)

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

    def _configured(self, group: StreamsGroup, topology: Topology, problems: Mapping[str, str] | None) -> Configured:
        """Return the topology with its topics. Raises TopicsMissing: those of its own are to be made first."""
        configured = group.configured
        is_current = configured is not None and configured.topology == topology and not self.is_refresh_due(group)
        if not is_current or configured is None or configured.missing:
            configured = configure(topology, self._topics)
        if not configured.missing:
            return configured
        if problems is None:
            raise TopicsMissing(configured.missing)
        assert configured.problem is not None, "they are missing"
        status, text = configured.problem
        told = [problems[topic.name] for topic in configured.missing if topic.name in problems]
        return replace(configured, problem=(status, "; ".join([text, *told[:3]])))

    def _add(self, group: StreamsGroup, member_id: str) -> StreamsMember:
        nothing = StreamsMemberValue(None, "", "", -1, NEVER, "", None, ())
        member = group.members[member_id] = self.give_timers(group, StreamsMember(member_id, nothing))
        return member

    # -- epochs and targets

    def _reconfigure(self, group: StreamsGroup, configured: Configured, records: Records, *, must_bump: bool) -> None:
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
            group.metadata_hash, group.validated_epoch, group.configs = hashed, validated_epoch, configs
            self.bump(group, records)

    def _assignment_configs(self, group: StreamsGroup) -> tuple[tuple[str, str], ...]:
        return (("num.standby.replicas", str(self.setting("num.standby.replicas", group.group_id))),)

    def _delayed(self, group: StreamsGroup, *, is_first: bool) -> list[Told]:
        """Return what a member is told if the target assignment has to wait."""
        delay_ms = self.setting("initial.rebalance.delay.ms", group.group_id)
        if is_first and delay_ms > 0 and not group.delay.is_set:
            group.delay.set_after(delay_ms)
        if group.delay.is_set:
            return [(Status.ASSIGNMENT_DELAYED, "Assignment delayed due to the configured initial rebalance delay.")]
        if group.epoch > group.assignment_epoch and not self.may_assign(group):
            return [(Status.ASSIGNMENT_DELAYED, "Assignment delayed due to the configured assignment interval.")]
        return []

    def _on_delay_end(self, group: StreamsGroup) -> None:
        """Give out the first tasks; members hear of them with their next heartbeat."""
        if group.members and group.epoch > group.assignment_epoch:
            self.assign(group)

    # -- leaving and timeouts

    def _leave(self, group: StreamsGroup, beat: StreamsHeartbeat) -> Reply:
        member = group.members.get(beat.member_id)
        if member is None:
            raise self.unknown(group.group_id, beat.member_id)
        if beat.is_shutdown:
            group.shutdown_by = group.shutdown_by or beat.member_id
        result = StreamsResult(ErrorCode.NONE, member_id=beat.member_id, member_epoch=beat.member_epoch)
        return self.answer(group, self.removed(group, [member]), result, _failed(result))


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


def _check_tasks(configured: Configured, owned: Tasks | None) -> None:
    """Raise Refused INVALID_REQUEST if a member has a task that does not exist."""
    if owned is None or configured.problem is not None:
        return
    for subtopology_id, partition in chain(owned.active, owned.standby):
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


def _failed(result: StreamsResult) -> StreamsResult:
    return StreamsResult(ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id=result.member_id)
