"""Fetches records ahead of the caller; answered data is queued until `poll` decodes it.

Usually one request per broker is under way. While that one waits for data, partitions that become due (after a seek or resume,
or because their data was taken) are asked for on a second connection.

The loop side sends requests and queues raw answers; the caller's side takes and decodes them, so that the next fetch is under
way while records are decoded and processed. `lock` guards everything that both sides touch.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from logflume.log.batch.header import end_of_batches
from logflume.log.errors import LogflumeError
from logflume.log.protocol import ErrorCode, KafkaError, messages
from logflume.log.records import Chunk, TopicPartition

from .cluster import Cluster
from .errors import LogTruncated, OffsetOutOfRange, unforeseen
from .offsets import EARLIEST, LATEST, by_topic, epoch_end, list_offsets
from .retry import backoff_s
from .transport import Channel

PARTITION_MIN_BYTES = 1024 * 1024
CATCH_UP_WAIT_MS = 20
"""How long a fetch waits for data of idle partitions while the caller has yet to take the data of others."""

UNASKED_WAIT_MS = 500
"""How long at most while some partitions are not asked for (paused, say): once they are, they may have to wait for its end."""

GATHER_S, GATHER_BYTES = 0.005, 64 * 1024
"""While the caller has yet to take less than this, the next fetch leaves later, so that it brings more: records that come a few
at a time would else cost a request each."""

TOLD_PAUSE_S = 1.0
"""Between two tellings of an error that only the caller can mend."""

_log = logging.getLogger("logflume.client")


@dataclass(slots=True, eq=False)
class PartitionState:
    """Where reading of one partition stands.

    `position`: next offset the caller gets, None until known; `position_epoch`: leader epoch of the record before it, -1 if it is
    not known. `fetch_position`, `fetch_epoch`: the same of the next offset to ask for. `leader_epoch`: the leader's for which
    `fetch_position` is known to be in its log. `epoch` changes with each seek, so that answers to older requests are dropped.
    `answers`: what was fetched and not taken yet, in order; `has_turn`: the fetcher will look for one when its turn comes.
    """

    partition: TopicPartition
    position: int | None = None
    position_epoch: int = -1
    fetch_position: int | None = None
    fetch_epoch: int = -1
    leader_epoch: int = -1
    epoch: int = 0
    is_paused: bool = False
    is_in_flight: bool = False
    is_initialising: bool = False
    buffered_bytes: int = 0
    failures: int = 0
    not_before_s: float = 0.0
    end_offset: int = -1
    error: LogflumeError | None = None
    answers: deque[Fetched] = field(default_factory=deque)
    has_turn: bool = False

    def move(self, offset: int | None, leader_epoch: int = -1) -> None:
        """Go on from `offset` (None: to be found out), behind a record of `leader_epoch`; what was fetched is dropped."""
        self.position = self.fetch_position = offset
        self.position_epoch = self.fetch_epoch = leader_epoch
        self.leader_epoch = -1
        self.epoch += 1
        self.answers.clear()
        self.buffered_bytes = 0
        self.error = None


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer for one partition, not decoded, or the rest of a decoded one; `leader_epoch` is that of its last batch."""

    state: PartitionState
    epoch: int
    size_bytes: int
    records: Any
    leader_epoch: int
    aborted: tuple[tuple[int, int], ...] = ()
    chunk: Chunk | None = None


class Fetcher:
    """See the module. `find_position(partitions)` gives committed offsets; `wake` tells a waiting poll to look again."""

    def __init__(
        self,
        cluster: Cluster,
        channels: Sequence[Channel],
        *,
        read_committed: bool,
        offset_reset: str,
        fetch_max_bytes: int,
        fetch_max_wait_ms: int,
        find_committed: Callable[[list[TopicPartition]], Any],
        ready: threading.Condition,
    ) -> None:
        self.lock = ready
        self.states: dict[TopicPartition, PartitionState] = {}
        self._turns: deque[PartitionState] = deque()
        self._cluster = cluster
        self._channels = tuple(channels)
        self._read_committed = read_committed
        self._offset_reset = offset_reset
        self._max_bytes = fetch_max_bytes
        self._max_wait_ms = fetch_max_wait_ms
        self._find_committed = find_committed
        self._busy: dict[int, set[int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._answered_s = 0.0
        self._gathering: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._fault: LogflumeError | None = None

    # caller's side (lock held)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these; positions of partitions that stay are kept."""
        wanted = list(partitions)
        self.states = {tp: self.states.get(tp) or PartitionState(tp) for tp in wanted}

    def take(self) -> Fetched | None:
        """Return the next answer that is wanted now: of each partition in turn, so that a backlog of one holds up no other.

        What belongs to paused partitions stays.
        """
        for _ in range(len(self._turns)):
            state = self._turns.popleft()
            state.has_turn = False
            if not state.answers or not self._is_read(state):
                continue
            fetched = None if state.is_paused else state.answers.popleft()
            self._give_turn(state)
            if fetched is not None:
                state.buffered_bytes -= fetched.size_bytes
                return fetched
        return None

    def put_back(self, rest: Fetched) -> None:
        """Keep what is left of an answer for a later turn, unless the partition was moved meanwhile."""
        state = rest.state
        if rest.epoch == state.epoch:
            state.buffered_bytes += rest.size_bytes
            state.answers.appendleft(rest)
            self._give_turn(state)

    def _give_turn(self, state: PartitionState) -> None:
        if state.answers and not state.has_turn:
            state.has_turn = True
            self._turns.append(state)

    def has_news(self) -> bool:
        """Return whether `take` or `take_error` would return something."""
        if self._fault is not None or any(state.error is not None for state in self.states.values()):
            return True
        return any(state.answers and not state.is_paused and self._is_read(state) for state in self._turns)

    def _is_read(self, state: PartitionState) -> bool:
        return self.states.get(state.partition) is state

    def take_error(self) -> LogflumeError | None:
        """Return an error that no retry mends, once; the partition is tried again afterwards. A fault of our own stays."""
        if self._fault is not None:
            return self._fault
        for state in self.states.values():
            if state.error is not None:
                error, state.error = state.error, None
                return error
        return None

    # loop side

    def kick(self) -> None:
        """Ask for whatever there is room for."""
        if self._is_closed:
            return
        now = asyncio.get_running_loop().time()
        with self.lock:
            unknown = [s for s in self.states.values() if s.position is None and not s.is_initialising and s.not_before_s <= now]
            for state in unknown:
                state.is_initialising = True
            asked = [(state, state.epoch) for state in unknown]
            by_node, held_back = self._fetchable(now)
            has_unasked = any(not state.is_in_flight for state in self.states.values())
        most_ms = min(self._max_wait_ms, UNASKED_WAIT_MS) if has_unasked else self._max_wait_ms
        if asked:
            self._start(self._initialise(asked))
        for node, states in by_node.items():
            wait_ms = CATCH_UP_WAIT_MS if node in held_back else most_ms
            index = self._free_channel(node)
            self._busy.setdefault(node, set()).add(index)
            self._start(self._fetch(node, index, states, wait_ms))
        self._plan_retry(now)

    def close(self) -> None:
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        for timer in (self._timer, self._gathering):
            if timer is not None:
                timer.cancel()

    def _fetchable(self, now: float) -> tuple[dict[int, list[PartitionState]], set[int]]:
        """Return the partitions to ask each idle broker for, and the brokers with partitions held back. Lock held."""
        buffered = sum(state.buffered_bytes for state in self.states.values())
        by_node: dict[int, list[PartitionState]] = {}
        held_back: set[int] = set()
        if 0 < buffered < GATHER_BYTES and now < self._answered_s + GATHER_S:
            if self._gathering is None:
                self._gathering = asyncio.get_running_loop().call_at(self._answered_s + GATHER_S, self._gathered)
            return by_node, held_back
        for state in self.states.values():
            if state.fetch_position is None or state.is_paused or state.is_in_flight or state.not_before_s > now:
                continue
            node = self._cluster.leader_now(state.partition)
            if node < 0:
                state.is_in_flight = True
                self._start(self._find_leader(state))
            elif not self._is_validated(state):
                state.is_in_flight = True
                self._start(self._validate(state))
            elif state.buffered_bytes and buffered >= self._max_bytes:
                held_back.add(node)
            elif self._free_channel(node) >= 0:
                by_node.setdefault(node, []).append(state)
        for states in by_node.values():
            for state in states:
                state.is_in_flight = True
        return by_node, held_back

    def _gathered(self) -> None:
        self._gathering = None
        self.kick()

    def _is_validated(self, state: PartitionState) -> bool:
        """Return whether the current leader may be asked from this position on: its log has it, or nothing can be compared."""
        newest = self._cluster.leader_epoch_now(state.partition)
        if state.fetch_epoch < 0 or newest <= state.fetch_epoch:
            state.leader_epoch = max(newest, state.leader_epoch)
        return newest <= state.leader_epoch

    async def _validate(self, state: PartitionState) -> None:
        """Ask a new leader where the epoch of our last record ends in its log: before our position if it lost some (KIP-320)."""
        tp, epoch, position, last_epoch = state.partition, state.epoch, state.fetch_position, state.fetch_epoch
        newest = self._cluster.leader_epoch_now(tp)
        try:
            end = await epoch_end(self._cluster, self._cluster.channel, tp, last_epoch, leader_epoch=newest)
        except LogflumeError as error:
            self._failed(state, error)
        else:
            assert position is not None, "only a known position is validated"
            with self.lock:
                if state.epoch == epoch and (end < 0 or end >= position):
                    state.leader_epoch = newest
                elif state.epoch == epoch:
                    self._take_truncation(state, LogTruncated(tp, position, end))
        finally:
            state.is_in_flight = False
        self.kick()

    def _take_truncation(self, state: PartitionState, truncation: LogTruncated) -> None:
        """Go on where the logs part, or stop and tell, as the reset policy says. Lock held."""
        if self._offset_reset == "none":
            state.error = truncation
            state.not_before_s = asyncio.get_running_loop().time() + TOLD_PAUSE_S
        else:
            _log.warning("%s; going on at %d (offset_reset=%s)", truncation, truncation.diverges_at, self._offset_reset)
            state.move(truncation.diverges_at)
        self.lock.notify_all()

    def _free_channel(self, node: int) -> int:
        """Return the index of a channel without a request to this broker, -1 if there is none."""
        busy = self._busy.get(node, ())
        return next((i for i in range(len(self._channels)) if i not in busy), -1)

    def _plan_retry(self, now: float) -> None:
        waits = [s.not_before_s - now for s in self.states.values() if s.not_before_s > now]
        if waits and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(min(waits) + 0.001, self._retry)

    def _retry(self) -> None:
        self._timer = None
        self.kick()

    async def _find_leader(self, state: PartitionState) -> None:
        try:
            await self._cluster.leader(state.partition)
        except LogflumeError as error:
            self._failed(state, error)
        finally:
            state.is_in_flight = False
        self.kick()

    async def _initialise(self, asked: list[tuple[PartitionState, int]]) -> None:
        """Find where to start: the committed offset, else by the reset policy. A seek since the epochs were taken stands."""
        states = [state for state, _ in asked]
        try:
            committed: Mapping[TopicPartition, Any] = await self._find_committed([s.partition for s in states])
            rest = [s.partition for s in states if committed.get(s.partition) is None]
            for topic in {tp.topic for tp in rest}:
                await self._cluster.topic(topic)
            # One without a leader is asked for later: the others need not wait for it.
            led = [tp for tp in rest if self._cluster.leader_now(tp) >= 0]
            found = await self._reset_offsets(led, "it has no committed offset") if led else {}
        except LogflumeError as error:
            with self.lock:  # a seek meanwhile has answered the question
                for state, epoch in asked:
                    if state.epoch == epoch:
                        self._failed(state, error)
        else:
            with self.lock:
                for state, epoch in asked:
                    offset = committed.get(state.partition)
                    if state.epoch == epoch:
                        if offset is not None:
                            state.move(offset.offset, offset.leader_epoch)
                        elif state.partition in found:
                            state.move(found[state.partition])
                        else:
                            tp = state.partition
                            self._failed(
                                state, KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, topic=tp.topic, partition=tp.partition)
                            )
                self.lock.notify_all()
        finally:
            for state in states:
                state.is_initialising = False
        self.kick()

    async def _reset_offsets(self, partitions: list[TopicPartition], why: str) -> dict[TopicPartition, int]:
        if self._offset_reset == "none":
            names = ", ".join(f"{tp.topic}-{tp.partition}" for tp in partitions)
            raise OffsetOutOfRange(f"{names}: {why}, and offset_reset is 'none'; seek to an offset, or choose earliest or latest")
        timestamp = EARLIEST if self._offset_reset == "earliest" else LATEST
        found = await list_offsets(
            self._cluster, self._cluster.channel, dict.fromkeys(partitions, timestamp), read_committed=self._read_committed
        )
        return {tp: offset for tp, (offset, _) in found.items()}

    async def _fetch(self, node: int, index: int, states: list[PartitionState], most_ms: int) -> None:
        asked = {state.partition: (state, state.epoch, state.fetch_position) for state in states}
        try:
            is_unknown = any(state.end_offset < 0 for state in states)  # whoever asks for a lag has it by the first answer
            request = self._request(states, 0 if is_unknown else most_ms)
            response = await self._channels[index].request(request, node=node)
            if response.error_code:
                raise KafkaError(response.error_code)
        except LogflumeError as error:
            for state in states:
                self._failed(state, error)
        else:
            self._answered_s = asyncio.get_running_loop().time()
            self._answered(asked, response)
        finally:
            self._busy[node].discard(index)
            for state in states:
                state.is_in_flight = False
        self.kick()

    def _request(self, states: list[PartitionState], wait_ms: int) -> Any:
        topic_class = messages.FetchRequest.FetchTopic
        partition_class = messages.FetchRequest.FetchPartition
        each = max(PARTITION_MIN_BYTES, self._max_bytes // max(1, len(states)))
        positions = {state.partition: state.fetch_position for state in states}
        topics = [
            topic_class(
                topic=topic,
                partitions=[
                    partition_class(
                        partition=tp.partition,
                        fetch_offset=positions[tp] or 0,
                        partition_max_bytes=each,
                        current_leader_epoch=self.states[tp].leader_epoch if tp in self.states else -1,
                    )
                    for tp in tps
                ],
            )
            for topic, tps in by_topic(positions).items()
        ]
        return messages.FetchRequest(
            max_wait_ms=wait_ms, min_bytes=1, max_bytes=self._max_bytes, isolation_level=int(self._read_committed), topics=topics
        )

    def _answered(
        self, asked: Mapping[TopicPartition, tuple[PartitionState, int, int | None]], response: messages.FetchResponse
    ) -> None:
        errors: list[tuple[PartitionState, KafkaError, int]] = []
        has_come = False
        with self.lock:
            for topic in response.responses:
                for answer in topic.partitions:
                    state, epoch, offset = asked[TopicPartition(topic.topic, answer.partition_index)]
                    if state.epoch != epoch or not self._is_read(state):
                        continue
                    if answer.error_code:
                        error = KafkaError(answer.error_code, topic=topic.topic, partition=answer.partition_index)
                        errors.append((state, error, epoch))
                        continue
                    state.failures = 0
                    state.end_offset = answer.last_stable_offset if self._read_committed else answer.high_watermark
                    if answer.records:
                        assert offset is not None
                        self._queue(state, answer, offset)
                        has_come = True
            if has_come:
                self.lock.notify_all()
        for state, error, epoch in errors:
            self._failed(state, error, epoch=epoch)

    def _queue(self, state: PartitionState, answer: messages.FetchResponse.PartitionData, offset: int) -> None:
        end = end_of_batches(answer.records)
        if end is None:
            tp = state.partition
            state.error = KafkaError(
                ErrorCode.CORRUPT_MESSAGE, f"no whole batch at offset {offset}", topic=tp.topic, partition=tp.partition
            )
            return
        size = len(answer.records)
        aborted = (
            tuple((a.producer_id, a.first_offset) for a in answer.aborted_transactions or ()) if self._read_committed else ()
        )
        after, leader_epoch = end
        state.answers.append(Fetched(state, state.epoch, size, answer.records, leader_epoch, aborted))
        self._give_turn(state)
        state.buffered_bytes += size
        state.fetch_position, state.fetch_epoch = max(after, offset), leader_epoch

    def _failed(self, state: PartitionState, error: LogflumeError, *, epoch: int = -1) -> None:
        """Take a failure: look for the leader again, find a new position, or tell the caller. `epoch`: of what was asked."""
        loop = asyncio.get_running_loop()
        if isinstance(error, KafkaError) and error.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            if not state.is_initialising:
                state.is_initialising = True
                self._start(self._out_of_range(state, epoch))
            return
        with self.lock:
            state.failures += 1
            state.not_before_s = loop.time() + backoff_s(state.failures)
            self._cluster.forget_topic(state.partition.topic)
            if not error.is_retriable:
                state.error = error
                self.lock.notify_all()
        if error.is_retriable:
            _log.info("%s-%d: %s; trying again", state.partition.topic, state.partition.partition, error)

    async def _out_of_range(self, state: PartitionState, epoch: int) -> None:
        """The position is not in the log (any more): go on where the reset policy says, and say so."""
        tp, position = state.partition, state.fetch_position
        try:
            bounds = await list_offsets(self._cluster, self._cluster.channel, {tp: EARLIEST})
            start = bounds[tp][0]
            found = await self._reset_offsets([tp], f"offset {position} is out of range (the log starts at {start})")
        except LogflumeError as error:
            self._failed(state, error)
        else:
            with self.lock:
                if state.epoch == epoch:
                    _log.warning(
                        "%s-%d: offset %s is out of range, the log starts at %d; going on at %d (offset_reset=%s)",
                        tp.topic,
                        tp.partition,
                        position,
                        start,
                        found[tp],
                        self._offset_reset,
                    )
                    state.move(found[tp])
        finally:
            state.is_initialising = False
        self.kick()

    def _start(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Let the caller have what should not happen, rather than wait for an answer that nobody asks for any more."""
        self._tasks.discard(task)
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            with self.lock:
                self._fault = unforeseen("the consumer fetches no more", fault)
                self.lock.notify_all()
