"""Membership in a classic consumer group: join, sync, heartbeat, leave. Runs on the I/O loop.

The heartbeat goes on by itself; a rebalance only sets `needs_join`, and the consumer joins again from its next poll (see
`classic.py`). A member that is not polled for `max_poll_interval_ms` leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from logflume.log.errors import LogflumeError, TransportError, UnknownTopic
from logflume.log.interfaces import AssignmentStrategy, GroupMetadata, OffsetAndMetadata
from logflume.log.protocol import ErrorCode, KafkaError, messages
from logflume.log.records import TopicPartition

from .cluster import GROUP, Cluster
from .errors import unforeseen
from .membership import Interest
from .offsets import commit_offsets
from .retry import backoff_s
from .subscription import decode_assignment, decode_subscription, encode_assignment, encode_subscription
from .transport import Channel

PROTOCOL_TYPE = "consumer"
JOIN_MARGIN_S = 10.0
NO_GENERATION = -1
_MISSING_TOPIC_CHECK_S = 1.0
_TOPIC_CHECK_S = 30.0

STALE_MEMBER = (ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS)
"""What a commit is told when the group has gone on to a generation that this member has not heard of yet."""

_MOVED = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
_log = logging.getLogger("logflume.client")


@dataclass(frozen=True, slots=True)
class Joined:
    """What a join brought: partitions by the strategy of that name, and what the leader says beside them."""

    partitions: list[TopicPartition]
    strategy: str
    advice: bytes


class GroupMember:
    """One member. `on_change` is called when `needs_join` or `failure` was set."""

    def __init__(
        self,
        cluster: Cluster,
        channel: Channel,
        *,
        group_id: str,
        instance_id: str | None,
        strategies: Sequence[AssignmentStrategy],
        session_timeout_ms: int,
        heartbeat_interval_ms: int,
        max_poll_interval_ms: int,
        on_change: Callable[[], None],
    ) -> None:
        self.group_id = group_id
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = NO_GENERATION
        self.needs_join = False
        self.failure: LogflumeError | None = None
        self.last_poll_s = 0.0
        self._cluster = cluster
        self._channel = channel
        self._strategies = {strategy.name: strategy for strategy in strategies}
        self._session_timeout_ms = session_timeout_ms
        self._heartbeat_s = min(heartbeat_interval_ms / 1000, session_timeout_ms / 3000)
        self._max_poll_interval_ms = max_poll_interval_ms
        self._on_change = on_change
        self._interest = Interest()
        self._topics: frozenset[str] = frozenset()
        self._owned: frozenset[TopicPartition] = frozenset()
        self._partition_counts: dict[str, int] = {}
        self._is_leader = False
        self._has_left_over = False
        self._is_joining = False
        self._tasks: list[asyncio.Task[None]] = []

    def metadata(self) -> GroupMetadata:
        return GroupMetadata(self.group_id, self.generation, self.member_id, self.instance_id)

    async def join(self, interest: Interest, owned: Iterable[TopicPartition]) -> Joined:
        """Join (again) and return what is assigned; waits for the others as long as the group's rebalance takes.

        `owned`: what this member goes on reading meanwhile.
        """
        self._stop_tasks()
        self._interest, self._owned, self.needs_join = interest, frozenset(owned), False
        self._is_joining = True
        try:
            return await self._join_at_last()
        finally:
            self._is_joining = False

    async def _join_at_last(self) -> Joined:
        attempt = 0
        while True:
            attempt += 1
            try:
                assigned = await self._join_once()
            except KafkaError as error:
                self._take_join_error(error)
            except TransportError as error:
                _log.info("group %s: %s; joining again", self.group_id, error)
                self._cluster.forget_coordinator(GROUP, self.group_id)
            else:
                self._start(self._heartbeat(), self._watch())
                return assigned
            await asyncio.sleep(backoff_s(attempt))

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], sent: GroupMetadata) -> None:
        """Commit offsets as this member, or as who it was (or without membership, when it never joined).

        Raises KafkaError: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS when it is not current; others retried.
        """
        try:
            await commit_offsets(self._cluster, self._channel, sent, offsets)
        except KafkaError as error:
            if not self._is_joining and self.metadata() == sent:  # else it speaks of a generation that is over anyway
                self._note(error)
            raise

    async def leave(self) -> None:
        """Stop heartbeats and, unless static, tell the coordinator, so that the others get the partitions at once."""
        self._stop_tasks()
        if self.member_id and self.instance_id is None:
            identity = messages.LeaveGroupRequest.MemberIdentity(member_id=self.member_id)
            request = messages.LeaveGroupRequest(group_id=self.group_id, member_id=self.member_id, members=[identity])
            with contextlib.suppress(LogflumeError):
                node = await self._cluster.coordinator(GROUP, self.group_id, timeout_s=5.0)
                await self._channel.request(request, node=node, timeout_s=5.0)
        self._forget_membership()

    def stop(self) -> None:
        """Stop heartbeats without a word; the coordinator finds out after the session timeout."""
        self._stop_tasks()

    # joining

    async def _join_once(self) -> Joined:
        if self._interest.pattern is not None:
            await self._cluster.refresh(None)
        self._topics, self._partition_counts, self._has_left_over = self._wanted_now(), {}, False
        node = await self._cluster.coordinator(GROUP, self.group_id)
        response = await self._channel.request(
            self._join_request(), node=node, timeout_s=self._max_poll_interval_ms / 1000 + JOIN_MARGIN_S
        )
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            return await self._join_once()
        _raise(response.error_code, self.group_id)
        self.member_id, self.generation = response.member_id, response.generation_id
        self._is_leader = response.leader == response.member_id
        assignments = await self._assign(response) if self._is_leader else []
        request = messages.SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=response.protocol_name,
            assignments=assignments,
        )
        synced = await self._channel.request(request, node=node, timeout_s=self._max_poll_interval_ms / 1000 + JOIN_MARGIN_S)
        _raise(synced.error_code, self.group_id)
        partitions, advice = decode_assignment(synced.assignment)
        return Joined(partitions, response.protocol_name, advice)

    def _wanted_now(self) -> frozenset[str]:
        """Return the topics of interest as far as they are known; a pattern matches no internal topics."""
        return self._interest.names(topic.name for topic in self._cluster.topics.values() if not topic.is_internal)

    def _join_request(self) -> messages.JoinGroupRequest:
        protocol_class = messages.JoinGroupRequest.JoinGroupRequestProtocol
        return messages.JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self._session_timeout_ms,
            rebalance_timeout_ms=self._max_poll_interval_ms,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                protocol_class(
                    name=name,
                    metadata=encode_subscription(self._topics, self._owned, self.generation, strategy.user_data()),
                )
                for name, strategy in self._strategies.items()
            ],
        )

    async def _assign(self, response: messages.JoinGroupResponse) -> list[messages.SyncGroupRequest.SyncGroupRequestAssignment]:
        """As the leader, share the partitions of all topics that members want; nothing if what was shared before stays."""
        members = [decode_subscription(m) for m in response.members]
        wanted = frozenset().union(*(m.topics for m in members))
        known = await self._cluster.refresh(wanted)  # others of this connection forget what they doubt at any time
        counts = {name: len(known[name].partitions) for name in wanted if name in known and known[name].partitions}
        for name in wanted - counts.keys():
            _log.warning("group %s: %s; it is read when it exists", self.group_id, UnknownTopic(name, known))
        self._partition_counts = {name: counts.get(name, 0) for name in wanted}
        if response.skip_assignment:
            self._has_left_over = await self._count_shared() < sum(counts.values())
            return []
        strategy = self._strategies[response.protocol_name or ""]
        shares, advice = strategy.assign(members, counts), strategy.advise(members, counts)
        self._has_left_over = len(set().union(*shares.values())) < sum(counts.values())
        assignment_class = messages.SyncGroupRequest.SyncGroupRequestAssignment
        return [
            assignment_class(member_id=name, assignment=encode_assignment(shares.get(name, []), advice.get(name, b"")))
            for name in (member.member_id for member in members)
        ]

    async def _count_shared(self) -> int:
        """Return how many partitions the group's members have, as the coordinator tells everybody."""
        node = await self._cluster.coordinator(GROUP, self.group_id)
        response = await self._channel.request(messages.DescribeGroupsRequest(groups=[self.group_id]), node=node)
        group = response.groups[0]
        _raise(group.error_code, self.group_id)
        return len({tp for member in group.members for tp in decode_assignment(member.member_assignment)[0]})

    def _take_join_error(self, error: KafkaError) -> None:
        """Note what must change before joining again; raises errors that no repetition mends."""
        if error.error in _MOVED:
            self._cluster.forget_coordinator(GROUP, self.group_id)
        elif error.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._forget_membership()
        elif error.error is not ErrorCode.REBALANCE_IN_PROGRESS and not error.is_retriable:
            raise error

    # staying

    async def _heartbeat(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.needs_join and self.failure is None:
            await asyncio.sleep(self._heartbeat_s)
            if loop.time() - self.last_poll_s > self._max_poll_interval_ms / 1000:
                _log.warning(
                    "group %s: no poll for more than %d ms; leaving, so that others go on with the partitions",
                    self.group_id,
                    self._max_poll_interval_ms,
                )
                self.needs_join = True
                self._tasks.clear()
                await self.leave()
                self._on_change()
                return
            await self._beat()

    async def _beat(self) -> None:
        request = messages.HeartbeatRequest(
            group_id=self.group_id, generation_id=self.generation, member_id=self.member_id, group_instance_id=self.instance_id
        )
        try:
            node = await self._cluster.coordinator(GROUP, self.group_id)
            response = await self._channel.request(request, node=node, timeout_s=self._session_timeout_ms / 1000)
        except LogflumeError as error:
            _log.info("group %s: heartbeat: %s", self.group_id, error)
            self._cluster.forget_coordinator(GROUP, self.group_id)
            return
        if response.error_code:
            self._note(KafkaError(response.error_code, f"group {self.group_id!r}"))

    async def _watch(self) -> None:
        """Start a rebalance when the pattern matches other topics and, as the leader, when a topic gets partitions.

        So too when partitions are still nobody's after a session timeout: a static member that was to give them up died before
        it joined once more, and is back without them; or their topic was made while the leader was away.
        """
        loop = asyncio.get_running_loop()
        deal_again_s = loop.time() + self._session_timeout_ms / 1000
        while (self._is_leader or self._interest.pattern is not None) and not self.needs_join:
            is_missing = any(count == 0 for count in self._partition_counts.values())
            is_soon = is_missing or self._has_left_over or self._interest.pattern is not None
            await asyncio.sleep(_MISSING_TOPIC_CHECK_S if is_soon else _TOPIC_CHECK_S)
            with contextlib.suppress(LogflumeError):
                await self._cluster.refresh(None if self._interest.pattern is not None else self._partition_counts)
                now = {name: self._cluster.partition_count_now(name) or 0 for name in self._partition_counts}
                is_other = now != self._partition_counts or self._wanted_now() != self._topics
                if is_other or (self._has_left_over and loop.time() >= deal_again_s):
                    self.needs_join = True
                    self._on_change()

    def _note(self, error: KafkaError) -> None:
        """Take what an answer says about our membership."""
        if error.error in _MOVED:
            self._cluster.forget_coordinator(GROUP, self.group_id)
        elif error.error is ErrorCode.REBALANCE_IN_PROGRESS:
            self.needs_join = True
        elif error.error in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID):
            if self.generation != NO_GENERATION:
                self.needs_join = True
            self._forget_membership()
        elif error.error is ErrorCode.FENCED_INSTANCE_ID:
            self.failure = KafkaError(
                error.number, f"another consumer with group_instance_id {self.instance_id!r} took this one's place"
            )
        else:
            return
        self._on_change()

    def _forget_membership(self) -> None:
        """What the group has dropped has nothing: what it had may be another's by now."""
        self.member_id, self.generation, self._owned = "", NO_GENERATION, frozenset()

    def _start(self, *coroutines: Coroutine[Any, Any, None]) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(each) for each in coroutines]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Let the caller have what should not happen: without heartbeats it would be dropped, and wait for good."""
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            self.failure = unforeseen(f"group {self.group_id}: membership ended", fault)
            self._on_change()

    def _stop_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = []


def _raise(error_code: int, group_id: str) -> None:
    if error_code:
        raise KafkaError(error_code, f"group {group_id!r}")
