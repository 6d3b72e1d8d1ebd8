"""The consumer: positions, groups and polls, returning chunks of columns."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Self

from logflume.log.errors import InvalidInput, LogflumeError, TransportError, UnknownName
from logflume.log.interfaces import AssignmentStrategy, GroupMetadata, OffsetAndMetadata
from logflume.log.protocol import ErrorCode, KafkaError
from logflume.log.records import Chunk, TopicPartition

from .assignors import strategy_of
from .classic import ClassicMembership
from .cluster import GROUP, Cluster
from .consumer_protocol import ConsumerProtocolMembership
from .errors import ClientClosed
from .fetcher import Fetched, Fetcher, PartitionState
from .loop import Calls, IoLoop
from .membership import GROUP_PROTOCOLS, Interest, Membership, interest_in
from .offsets import LATEST, fetch_committed, list_offsets
from .retry import with_retries
from .transport import Channel

OFFSET_RESETS = ("earliest", "latest", "none")
CALL_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 10.0
_log = logging.getLogger("logflume.client")

Callback = Callable[[Sequence[TopicPartition]], None]


class Consumer:
    """See `interfaces.Consumer`. One thread at a time, except `wakeup`."""

    def __init__(
        self,
        cluster: Cluster,
        loop: IoLoop,
        *,
        group_id: str | None = None,
        group_instance_id: str | None = None,
        read_committed: bool = True,
        offset_reset: str = "earliest",
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 1_000,
        max_poll_interval_ms: int = 300_000,
        fetch_max_bytes: int = 8_388_608,
        fetch_max_wait_ms: int = 500,
        client_id: str = "logflume",
        assignment_strategies: Sequence[str | AssignmentStrategy] = ("range", "roundrobin"),
        group_protocol: str = "classic",
        server_assignor: str | None = None,
    ) -> None:
        if offset_reset not in OFFSET_RESETS:
            raise UnknownName("offset_reset", offset_reset, OFFSET_RESETS)
        if group_protocol not in GROUP_PROTOCOLS:
            raise UnknownName("group_protocol", group_protocol, GROUP_PROTOCOLS)
        if heartbeat_interval_ms <= 0:
            raise InvalidInput(f"heartbeat_interval_ms must be greater than 0, not {heartbeat_interval_ms}")
        if group_instance_id is not None and group_id is None:
            raise InvalidInput("group_instance_id needs a group_id")
        self._cluster = cluster
        self._loop, self._calls = loop, Calls(loop, "consumer")
        self._group_id = group_id
        self._ready = threading.Condition()
        self._turn_s = max_poll_interval_ms / 3000
        self._is_woken = False
        self._is_kicking = False
        self._closed = False
        self._interest = Interest()
        self._on_assigned: Callback | None = None
        self._on_revoked: Callback | None = None

        async def start() -> tuple[list[Channel], Fetcher, Membership | None]:
            *fetch_channels, group_channel = channels = [cluster.transport.channel(client_id) for _ in range(3)]
            fetcher = Fetcher(
                cluster,
                fetch_channels,
                read_committed=read_committed,
                offset_reset=offset_reset,
                fetch_max_bytes=fetch_max_bytes,
                fetch_max_wait_ms=fetch_max_wait_ms,
                find_committed=self._find_committed,
                ready=self._ready,
            )
            member: Membership | None = None
            if group_id is not None and group_protocol == "classic":
                member = ClassicMembership(
                    cluster,
                    loop,
                    group_channel,
                    group_id=group_id,
                    instance_id=group_instance_id,
                    strategies=[strategy_of(each) for each in assignment_strategies],
                    session_timeout_ms=session_timeout_ms,
                    heartbeat_interval_ms=heartbeat_interval_ms,
                    max_poll_interval_ms=max_poll_interval_ms,
                    on_change=self._notify,
                )
            elif group_id is not None:
                member = ConsumerProtocolMembership(
                    cluster,
                    loop,
                    group_channel,
                    group_id=group_id,
                    instance_id=group_instance_id,
                    assignor=server_assignor,
                    max_poll_interval_ms=max_poll_interval_ms,
                    on_change=self._notify,
                )
            return channels, fetcher, member

        self._channels, self._fetcher, self._member = loop.run(start())

    @property
    def is_closed(self) -> bool:
        return self._closed

    # what to read

    def subscribe(
        self,
        topics: Sequence[str] = (),
        *,
        pattern: str | None = None,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
    ) -> None:
        """Join the consumer group for these topics, and those whose whole name matches the regular expression `pattern`.

        The callbacks run inside `poll`, before records of a new assignment. With a strategy or protocol that is not eager they
        get what changes, else everything.

        Raises:
            InvalidInput: without a group_id, without topics, or with a pattern that is not one.
        """
        self._check_open()
        member = self._need_group("subscribe")
        self._interest = interest_in(topics, pattern)
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        member.subscribe(self._interest)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without group management (offsets can be committed if there is a group_id)."""
        self._check_open()
        if self._interest:
            raise InvalidInput("the consumer is subscribed; a consumer either subscribes or is assigned")
        self._read([TopicPartition(*tp) for tp in partitions])

    def assignment(self) -> tuple[TopicPartition, ...]:
        """Return the partitions being read now, sorted."""
        with self._ready:
            return tuple(sorted(self._fetcher.states))

    # reading

    def poll(self, *, timeout_s: float = 1.0, max_records: int = 100_000) -> list[Chunk]:
        """Return the next records as chunks of one partition each, [] when none came in time or `wakeup` was called.

        A chunk may hold no record and still move the position (of aborted transactions).

        Raises:
            OffsetOutOfRange: with offset_reset "none".
            CorruptBatch: what was fetched does not hold together; the position stays where it is.
            KafkaError: the broker refuses for good.
        """
        self._check_open()
        deadline = time.monotonic() + timeout_s
        while True:
            if self._member is not None and self._interest:
                self._member.maintain(self)
            chunks = self._take(max_records)
            if chunks:
                return chunks
            with self._ready:
                self._raise_pending()
                if self._is_woken:
                    self._is_woken = False
                    return []
                rest = deadline - time.monotonic()
                if rest <= 0:
                    return []
                if not self._fetcher.has_news() and not self._has_group_news():
                    self._ready.wait(min(rest, self._turn_s))  # who waits in a poll is heard of meanwhile

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on from `offset` (an offset that is out of range is noticed by the next fetch)."""
        if offset < 0:
            raise InvalidInput(f"{partition.topic}-{partition.partition}: expected an offset of 0 or more, found {offset}")
        with self._ready:
            self._state(partition).move(offset)
        self._kick()

    def seek_to_time(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Go on from the first record of each partition whose timestamp is at least the given ms, else from its end.

        Returns the offsets.
        """
        self._check_open()

        async def find() -> dict[TopicPartition, int]:
            channel = self._cluster.channel
            found = {tp: offset for tp, (offset, _) in (await list_offsets(self._cluster, channel, times_ms)).items()}
            late = dict.fromkeys((tp for tp, offset in found.items() if offset < 0), LATEST)
            ends = await list_offsets(self._cluster, channel, late) if late else {}
            return found | {tp: offset for tp, (offset, _) in ends.items()}

        for tp in times_ms:
            self._state(tp)
        offsets = self._calls.run(find(), timeout_s=CALL_TIMEOUT_S)
        for tp, offset in offsets.items():
            self.seek(tp, offset)
        return offsets

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`; positions, membership and what was fetched ahead stay."""
        with self._ready:
            for tp in partitions:
                self._state(tp).is_paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`."""
        with self._ready:
            for tp in partitions:
                self._state(tp).is_paused = False
        self._kick()

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record `poll` returns; finds it out (committed offset, reset policy) if need be."""
        deadline = time.monotonic() + CALL_TIMEOUT_S
        with self._ready:
            while True:
                self._check_open()
                position = self._state(partition).position
                if position is not None:
                    return position
                self._raise_pending()
                if not self._ready.wait(max(0.0, deadline - time.monotonic())):
                    raise TransportError(f"{partition.topic}-{partition.partition}: no position within {CALL_TIMEOUT_S:g} s")

    def lag(self, partition: TopicPartition) -> int | None:
        """Return the records between the position and the end as of the last fetch; None before the first."""
        with self._ready:
            state = self._state(partition)
            if state.position is None or state.end_offset < 0:
                return None
            return max(0, state.end_offset - state.position)

    # offsets

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offset of each partition, None where there is none."""
        self._check_open()
        self._need_group("committed")
        wanted = [TopicPartition(*tp) for tp in partitions]
        found = self._calls.run(self._find_committed(wanted), timeout_s=CALL_TIMEOUT_S)
        return {tp: found.get(tp) for tp in wanted}

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None) -> None:
        """Commit the given offsets, or the positions of everything returned by `poll`.

        Raises KafkaError: one that `is_rebalance` tells, when the partitions may belong to another member by now; the next
        `poll` joins again.
        """
        self._check_open()
        member = self._need_group("commit")
        if offsets is None:
            with self._ready:
                offsets = {
                    tp: OffsetAndMetadata(state.position, leader_epoch=state.position_epoch)
                    for tp, state in self._fetcher.states.items()
                    if state.position is not None
                }
        if not offsets:
            return
        if self._interest and not member.is_member:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"this consumer is not a member of group {member.group_id!r} (any more); the next poll joins again",
            )
        wanted = offsets

        def moved(error: LogflumeError) -> None:
            self._cluster.forget_coordinator(GROUP, member.group_id)

        async def commit() -> None:
            await with_retries(lambda: member.commit(wanted), timeout_s=CALL_TIMEOUT_S, on_failure=moved)

        self._calls.run(commit(), timeout_s=CALL_TIMEOUT_S + 35)

    def group_metadata(self) -> GroupMetadata:
        """Return who this member is, for `Producer.send_offsets`."""
        return self._need_group("group_metadata").metadata()

    def renewed_metadata(self) -> GroupMetadata | None:
        """Wait for the join under way; return who this member is then, None if it does not keep its partitions over a join."""
        self._check_open()
        member = self._need_group("renewed_metadata")
        return self._calls.run(member.renewed(), timeout_s=CALL_TIMEOUT_S)

    # end

    def wakeup(self) -> None:
        """Make a `poll` that is waiting in another thread return at once (or the next one, if none is)."""
        with self._ready:
            self._is_woken = True
            self._ready.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self, *, leave_group: bool = True, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Stop reading and leave the group (static members stay). Offsets are not committed. Idempotent.

        Calls that other threads wait for end with ClientClosed. `timeout_s`: how long the coordinator may take to answer; after
        that its session timeout removes the member. Nothing as Python ends (`Log.close`).
        """
        if self._closed or sys.is_finalizing():
            return
        self._closed = True
        self._calls.end()

        async def stop() -> None:
            self._fetcher.close()
            try:
                if self._member is not None and leave_group:
                    async with asyncio.timeout(timeout_s):
                        await self._member.leave()
            except TimeoutError:
                _log.info("group %s: left without a word, for the coordinator does not answer", self._group_id)
            finally:
                if self._member is not None:
                    self._member.stop()
                for channel in self._channels:
                    channel.close()

        with contextlib.suppress(LogflumeError):
            self._loop.run(stop())
        self.wakeup()

    # what a membership does (`membership.Owner`)

    def give_up(self, partitions: Collection[TopicPartition]) -> None:
        """Stop reading these, then tell the application, which may still commit their positions; nothing for none."""
        if not partitions:
            return
        leaving = tuple(sorted(partitions))
        with self._ready:
            for tp in leaving:
                self._state(tp).is_paused = True
        if self._on_revoked is not None:
            self._on_revoked(leaving)
        self._read(set(self.assignment()).difference(leaving))

    def take_over(self, partitions: Collection[TopicPartition]) -> None:
        """Read these too, and tell the application (also when there are none: the rebalance is over)."""
        self._read({*self.assignment(), *partitions})
        if self._on_assigned is not None:
            self._on_assigned(tuple(sorted(partitions)))

    # inside

    def _take(self, max_records: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        count = 0
        while count < max_records:
            with self._ready:
                fetched = self._fetcher.take()
            if fetched is None:
                break
            self._kick()
            chunk = fetched.chunk if fetched.chunk is not None else self._decode(fetched)
            is_whole = count + len(chunk) <= max_records
            if not is_whole:
                rest = chunk.slice(max_records - count, len(chunk))
                chunk = chunk.slice(0, max_records - count)
                with self._ready:
                    self._fetcher.put_back(replace(fetched, records=None, chunk=rest))
            with self._ready:
                if fetched.epoch != fetched.state.epoch:
                    continue
                fetched.state.position = max(chunk.next_offset, fetched.state.position or 0)
                fetched.state.position_epoch = fetched.leader_epoch if is_whole else -1
            chunks.append(chunk)
            count += len(chunk)
        return chunks

    def _decode(self, fetched: Fetched) -> Chunk:
        from logflume.log.batch.decoding import decode_fetch

        state = fetched.state
        assert state.position is not None, "data is fetched only from a known position"
        try:
            return decode_fetch(
                state.partition.topic,
                state.partition.partition,
                fetched.records,
                from_offset=state.position,
                aborted=fetched.aborted,
            )
        except LogflumeError:
            with self._ready:
                state.move(state.position)
            raise

    def _has_group_news(self) -> bool:
        return self._member is not None and bool(self._interest) and self._member.has_news()

    def _read(self, partitions: Collection[TopicPartition]) -> None:
        with self._ready:
            self._fetcher.assign(partitions)
        self._kick()

    async def _find_committed(self, partitions: list[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        if self._group_id is None:
            return {}
        return await fetch_committed(self._cluster, self._cluster.channel, self._group_id, partitions)

    def _kick(self) -> None:
        if not self._is_kicking:
            self._is_kicking = True
            self._loop.call(self._kicked)

    def _kicked(self) -> None:
        self._is_kicking = False
        self._fetcher.kick()

    def _notify(self) -> None:
        with self._ready:
            self._ready.notify_all()

    def _raise_pending(self) -> None:
        error = self._fetcher.take_error()
        if error is not None:
            raise error

    def _state(self, partition: TopicPartition) -> PartitionState:
        state = self._fetcher.states.get(TopicPartition(*partition))
        if state is None:
            known = [f"{tp.topic}-{tp.partition}" for tp in self._fetcher.states]
            raise UnknownName("assigned partition", f"{partition[0]}-{partition[1]}", known)
        return state

    def _need_group(self, verb: str) -> Membership:
        if self._member is None:
            raise InvalidInput(f"{verb} needs a group: log.consumer(group_id=...)")
        return self._member

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the consumer was closed")


def is_rebalance(error: LogflumeError) -> bool:
    """Return whether an offset commit failed because the group is rebalancing or has moved on without this member."""
    return isinstance(error, KafkaError) and error.error in (
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_MEMBER_EPOCH,
    )
