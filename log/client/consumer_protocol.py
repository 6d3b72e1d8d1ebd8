"""Membership in a group of the consumer protocol (KIP-848): the broker assigns, and members reconcile one partition at a time.

A heartbeat says what this member wants and holds; an answer may bring what it shall hold. What is not in there any more is given
up in the next poll, and the heartbeat that reports it lets the broker give it to others. No member waits for the slowest one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from logflume.log.errors import LogflumeError, TransportError
from logflume.log.interfaces import GroupMetadata, OffsetAndMetadata
from logflume.log.protocol import ErrorCode, KafkaError, messages
from logflume.log.records import TopicPartition

from .cluster import GROUP, Cluster
from .errors import unforeseen
from .loop import IoLoop
from .membership import Interest, Owner
from .offsets import by_topic, commit_offsets
from .retry import backoff_s
from .transport import Channel

JOINING_EPOCH, LEAVING_EPOCH, STATIC_LEAVING_EPOCH = 0, -1, -2
FIRST_INTERVAL_S = 5.0
"""Between heartbeats, until the broker has said."""
COMMIT_ATTEMPTS = 3
GOODBYE_TIMEOUT_S = 5.0
EPOCH_WAIT_S, EPOCH_CHECK_S = 2.0, 0.01

_MOVED = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
_LOST = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)
_log = logging.getLogger("logflume.client")


class ConsumerProtocolMembership:
    """See `membership.Membership`. `on_change` may be called from the I/O loop.

    Shared between the threads, by single assignments: the caller's writes `_interest`, `_owned` and `_last_poll_s`, the
    loop's `_epoch`;
    `_targets` holds the newest assignment that no poll has taken, if any; the loop sets `_is_lost`, the caller resets it.
    """

    def __init__(
        self,
        cluster: Cluster,
        loop: IoLoop,
        channel: Channel,
        *,
        group_id: str,
        instance_id: str | None,
        assignor: str | None,
        max_poll_interval_ms: int,
        on_change: Callable[[], None],
    ) -> None:
        self.group_id = group_id
        self._cluster = cluster
        self._loop = loop
        self._channel = channel
        self._instance_id = instance_id
        self._assignor = assignor
        self._max_poll_interval_ms = max_poll_interval_ms
        self._on_change = on_change
        self._member_id = str(uuid.uuid4())
        self._epoch = JOINING_EPOCH
        self._interest = Interest()
        self._owned: frozenset[TopicPartition] = frozenset()
        self._targets: deque[frozenset[TopicPartition]] = deque(maxlen=1)
        self._is_lost = False
        self._failure: LogflumeError | None = None
        self._last_poll_s = 0.0
        self._interval_s = FIRST_INTERVAL_S
        self._reported: tuple[Interest, frozenset[TopicPartition]] | None = None
        self._has_sent_pattern = False
        self._ids: dict[bytes, str] = {}
        self._beating: asyncio.Task[None] | None = None
        self._is_urgent = asyncio.Event()

    @property
    def is_member(self) -> bool:
        return self._epoch > 0

    def subscribe(self, interest: Interest) -> None:
        self._interest = interest
        self._loop.call(self._start)

    def maintain(self, owner: Owner) -> None:
        self._touch()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._loop.call(self._start)
            raise failure
        owned = frozenset(owner.assignment())
        if self._is_lost:
            owner.give_up(owned)
            self._owned, self._is_lost = frozenset(), False
        elif self._targets:
            target = self._targets.pop()
            owner.give_up(owned - target)
            owner.take_over(target - owned)
            self._owned = target
        else:
            return
        self._loop.call(self._is_urgent.set)

    def has_news(self) -> bool:
        return bool(self._targets) or self._is_lost or self._failure is not None

    def metadata(self) -> GroupMetadata:
        return GroupMetadata(self.group_id, self._epoch, self._member_id, self._instance_id)

    async def renewed(self) -> GroupMetadata | None:
        return None

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit as this member; an epoch that is out of date is brought up to date by a heartbeat first.

        Raises KafkaError: STALE_MEMBER_EPOCH, UNKNOWN_MEMBER_ID when the group has moved on without this member; others.
        """
        for _ in range(COMMIT_ATTEMPTS):
            epoch = self._epoch
            try:
                return await commit_offsets(self._cluster, self._channel, self.metadata(), offsets)
            except KafkaError as error:
                if error.error is not ErrorCode.STALE_MEMBER_EPOCH:
                    raise
                stale = error
            self._is_urgent.set()
            if not await self._epoch_after(epoch):
                break
        raise stale

    async def leave(self) -> None:
        """Stop heartbeats and tell the broker; what a static member had is kept for it until its session ends.

        The first heartbeat may be there already, though its answer is not here.
        """
        may_be_member = self.is_member or (self._beating is not None and not self._beating.done())
        self.stop()
        if may_be_member:
            await self._say_goodbye()

    def stop(self) -> None:
        if self._beating is not None:
            self._beating.cancel()

    # the loop's side

    def _start(self) -> None:
        self._touch()
        self._is_urgent.set()
        if self._beating is None or self._beating.done():
            self._reported = None
            self._beating = asyncio.get_running_loop().create_task(self._beat_on())

    def _touch(self) -> None:
        self._last_poll_s = self._loop.loop.time()

    async def _beat_on(self) -> None:
        """Heartbeat until an error that no repetition mends; a member that nobody polls leaves, and joins when it is polled."""
        failures = 0
        while self._failure is None:
            self._is_urgent.clear()
            is_idle = self._loop.loop.time() - self._last_poll_s > self._max_poll_interval_ms / 1000
            if is_idle and self.is_member:
                await self._leave_for_idleness()
            elif not is_idle and not self._is_lost:
                try:
                    await self._beat()
                    failures = 0
                except LogflumeError as error:
                    failures += 1
                    self._note(error)
                except Exception as error:  # the boundary: who polls would wait for good  # noqa: BLE001
                    self._failure = unforeseen(f"group {self.group_id}: membership ended", error)
                    self._on_change()
            if self._failure is None:
                await self._pause(backoff_s(failures) if failures else self._interval_s)

    async def _say_goodbye(self) -> None:
        epoch = STATIC_LEAVING_EPOCH if self._instance_id is not None else LEAVING_EPOCH
        request = messages.ConsumerGroupHeartbeatRequest(
            group_id=self.group_id, member_id=self._member_id, member_epoch=epoch, instance_id=self._instance_id
        )
        with contextlib.suppress(LogflumeError):
            node = await self._cluster.coordinator(GROUP, self.group_id, timeout_s=GOODBYE_TIMEOUT_S)
            await self._channel.request(request, node=node, timeout_s=GOODBYE_TIMEOUT_S)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_urgent.wait()

    async def _beat(self) -> None:
        node = await self._cluster.coordinator(GROUP, self.group_id)
        interest, owned = self._interest, self._owned
        request = await self._request(interest, owned)
        response = await self._channel.request(request, node=node)
        if response.error_code:
            raise KafkaError(response.error_code, response.error_message or f"group {self.group_id!r}")
        self._reported = (interest, owned)
        self._epoch = response.member_epoch
        self._interval_s = max(response.heartbeat_interval_ms, 1) / 1000
        if response.assignment is not None:
            self._targets.append(frozenset(await self._named(response.assignment.topic_partitions)))
            self._on_change()

    async def _request(self, interest: Interest, owned: frozenset[TopicPartition]) -> messages.ConsumerGroupHeartbeatRequest:
        """Build a heartbeat: everything when joining or after a failure, else only what has changed."""
        request = messages.ConsumerGroupHeartbeatRequest(
            group_id=self.group_id, member_id=self._member_id, member_epoch=self._epoch, instance_id=self._instance_id
        )
        is_full = self._reported is None or self._epoch == JOINING_EPOCH
        before = self._reported or (Interest(), frozenset())
        if is_full:
            request.rebalance_timeout_ms = self._max_poll_interval_ms
            request.server_assignor = self._assignor
        if is_full or before[0] != interest:
            request.subscribed_topic_names = sorted(interest.topics)
            if interest.pattern is not None or self._has_sent_pattern:
                request.subscribed_topic_regex, self._has_sent_pattern = interest.pattern or "", True
        if is_full or before[1] != owned:
            part_class = messages.ConsumerGroupHeartbeatRequest.TopicPartitions
            ids = {name: topic_id for topic_id, name in self._ids.items()}
            held = () if self._epoch == JOINING_EPOCH else sorted(owned)
            request.topic_partitions = [
                part_class(topic_id=ids[topic], partitions=[tp.partition for tp in tps]) for topic, tps in by_topic(held).items()
            ]
        return request

    async def _named(self, topics: Iterable[messages.ConsumerGroupHeartbeatResponse.TopicPartitions]) -> list[TopicPartition]:
        """Return an assignment by names; what has been deleted since is left out."""
        if any(topic.topic_id not in self._ids for topic in topics):
            await self._cluster.refresh(None)
            self._ids |= {bytes.fromhex(info.topic_id): info.name for info in self._cluster.topics.values()}
        return [TopicPartition(self._ids[t.topic_id], p) for t in topics if t.topic_id in self._ids for p in t.partitions]

    async def _leave_for_idleness(self) -> None:
        _log.warning(
            "group %s: no poll for more than %d ms; leaving, so that others go on with the partitions",
            self.group_id,
            self._max_poll_interval_ms,
        )
        await self._say_goodbye()
        self._lose()

    def _lose(self) -> None:
        """The group does not know us any more: the partitions go, and the next heartbeat joins anew."""
        self._epoch, self._reported = JOINING_EPOCH, None
        self._targets.clear()
        self._is_lost = True
        self._on_change()

    async def _epoch_after(self, epoch: int) -> bool:
        """Wait for a heartbeat to bring another epoch; False when none came."""
        deadline_s = self._loop.loop.time() + EPOCH_WAIT_S
        while self._epoch == epoch and self._loop.loop.time() < deadline_s:
            await asyncio.sleep(EPOCH_CHECK_S)
        return self._epoch != epoch and self.is_member

    def _note(self, error: LogflumeError) -> None:
        """Take a heartbeat that failed."""
        self._reported = None
        if isinstance(error, KafkaError) and error.error in _LOST:
            _log.info("group %s: %s; joining again", self.group_id, error)
            self._lose()
        elif isinstance(error, TransportError) or (isinstance(error, KafkaError) and error.error in _MOVED):
            _log.info("group %s: heartbeat: %s", self.group_id, error)
            self._cluster.forget_coordinator(GROUP, self.group_id)
        elif not error.is_retriable:
            self._failure = error
            self._on_change()
