"""The caller's side of a classic group: when to join, and what becomes of the partitions meanwhile.

With an eager strategy all partitions are given up before each join. With cooperative ones the consumer goes on with what it
has, gives up what it did not get back, and joins once more so that others can have it (KIP-429).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future

from logflume.log.errors import LogflumeError
from logflume.log.interfaces import AssignmentStrategy, GroupMetadata, OffsetAndMetadata
from logflume.log.protocol import KafkaError
from logflume.log.records import TopicPartition

from .cluster import Cluster
from .errors import ClientClosed
from .group import NO_GENERATION, STALE_MEMBER, GroupMember, Joined
from .loop import IoLoop
from .membership import Interest, Owner
from .transport import Channel

_JOIN_UNDER_WAY_S = 0.5  # the coordinator has it by then, though others may keep its answer back


class ClassicMembership:
    """See `membership.Membership`. `on_change` may be called from the I/O loop.

    `_holder`: who this member was when it got the partitions that it has. A member that the group has dropped meanwhile joins as
    another: what it has is somebody else's by then, and is committed for in vain.
    """

    def __init__(
        self,
        cluster: Cluster,
        loop: IoLoop,
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
        self._loop = loop
        self._on_change = on_change
        self._interest = Interest()
        self._joining: Future[Joined] | None = None
        self._holder = GroupMetadata(group_id, NO_GENERATION, "", instance_id)
        self._member = GroupMember(
            cluster,
            channel,
            group_id=group_id,
            instance_id=instance_id,
            strategies=strategies,
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            max_poll_interval_ms=max_poll_interval_ms,
            on_change=on_change,
        )
        self._is_cooperative = all(strategy.is_cooperative for strategy in strategies)
        self._takes_advice = {strategy.name: strategy.on_advice for strategy in strategies}

    @property
    def is_member(self) -> bool:
        return self._member.generation != NO_GENERATION

    def subscribe(self, interest: Interest) -> None:
        self._interest = interest
        self._member.needs_join = True

    def maintain(self, owner: Owner) -> None:
        self._member.last_poll_s = self._loop.loop.time()
        if self._member.failure is not None:
            raise self._member.failure
        if self._joining is None and self._member.needs_join:
            keeps_reading = self._is_cooperative and self.is_member
            if not keeps_reading:
                owner.give_up(owner.assignment())
            self._joining = self._loop.submit(self._member.join(self._interest, owner.assignment()))
            self._joining.add_done_callback(lambda _: self._on_change())
        if self._joining is not None and self._joining.done():
            joining, self._joining = self._joining, None
            self._finish(owner, joining)

    def has_news(self) -> bool:
        is_joined = self._joining is not None and self._joining.done()
        return is_joined or (self._joining is None and self._member.needs_join) or self._member.failure is not None

    def metadata(self) -> GroupMetadata:
        return self._holder if self._is_another else self._member.metadata()

    @property
    def _is_another(self) -> bool:
        """Whether the group has dropped the member that has the partitions."""
        return self._member.member_id != self._holder.member_id

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        try:
            await self._member.commit(offsets, self.metadata())
        except KafkaError as error:
            if error.error not in STALE_MEMBER or await self.renewed() is None:
                raise
            await self._member.commit(offsets, self.metadata())

    async def renewed(self) -> GroupMetadata | None:
        """Wait for the join under way; return who this member is then, None if it does not keep its partitions over a join.

        What it had before the join is its own until it joins once more, so that it may still commit for that.
        """
        joining = self._joining
        if joining is None or not self._is_cooperative:
            return None
        waiting = asyncio.wrap_future(joining)
        await asyncio.wait([waiting])
        has_failed = waiting.cancelled() or waiting.exception() is not None
        return None if has_failed or not self.is_member or self._is_another else self.metadata()

    async def leave(self) -> None:
        """Leave, behind a join that is under way: one that reaches the coordinator after the leave makes a member for nobody."""
        if self._joining is not None:
            joining = asyncio.wrap_future(self._joining)
            await asyncio.wait([joining], timeout=_JOIN_UNDER_WAY_S)
            if joining.done() and not joining.cancelled():
                joining.exception()  # whatever it is does not matter any more
        self._cancel_join()
        await self._member.leave()

    def stop(self) -> None:
        self._cancel_join()
        self._member.stop()

    def _finish(self, owner: Owner, joining: Future[Joined]) -> None:
        try:
            joined = joining.result()
        except CancelledError:
            raise ClientClosed("the consumer was closed") from None
        except LogflumeError:
            self._member.needs_join = True
            raise
        self._takes_advice[joined.strategy](joined.advice)
        if self._is_another:
            owner.give_up(owner.assignment())
        self._holder = self._member.metadata()
        owned, assigned = set(owner.assignment()), set(joined.partitions)
        if owned - assigned:
            owner.give_up(owned - assigned)
            self._member.needs_join = True
        owner.take_over(assigned - owned)

    def _cancel_join(self) -> None:
        if self._joining is not None:
            self._joining.cancel()
