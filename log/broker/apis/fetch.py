"""Fetch: reads what is durable, long-polls until there is enough of it, keeps sessions (KIP-227), lists aborted transactions.

A long poll waits on the partitions it asks for and is tried again when one of them moves on; no polling, one timer each.
`records` of the response are `LogSlice`s of segment files: the shell sends them with sendfile.
"""

from __future__ import annotations

import logging

from logflume.log.broker.access import CLUSTER_NAME, UNRESTRICTED, Operation, Resource, Rights
from logflume.log.broker.core import LEADER_EPOCH, Core, Partition
from logflume.log.broker.ports import Timer
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import CLOSE_CONNECTION, CloseConnection, RequestContext
from logflume.log.broker.turns.slices import Steps
from logflume.log.errors import CorruptLog, LogflumeError
from logflume.log.protocol import ErrorCode, messages
from logflume.log.storage import CheckBudget, OffsetOutOfRange, PartitionLog

from .fetch_sessions import INITIAL_EPOCH, FetchSession, FetchSessions, SessionError, Wanted

READ_COMMITTED = 1
PARTITIONS_AT_A_TIME = 500
RESPONSE_BYTES = 40
"""What a partition costs in a response besides its records, for quotas."""
TOPIC_IDS_FROM_VERSION = 13

_log = logging.getLogger("logflume.broker")
_Response = messages.FetchResponse
_TopicResponse = _Response.FetchableTopicResponse
_PartitionData = _Response.PartitionData
_Aborted = _Response.AbortedTransaction


class FetchHandler:
    """Handles Fetch. Invariant: `_waiting` holds every long poll that has neither answered nor been dropped."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.sessions = FetchSessions(core.config, core.clock)
        self._waiting: dict[int, dict[_LongPoll, None]] = {}

    def fetch(self, context: RequestContext, request: messages.FetchRequest) -> messages.FetchResponse | Reply:
        wanted = self._wanted(request, context.api_version)
        try:
            session = self.sessions.update(request, wanted)
        except SessionError as error:
            return _Response(error_code=error.error_code)
        if session is not None:
            wanted = list(session.partitions.values())
        poll = _LongPoll(self, context, request, wanted, session)
        if not poll.is_big:
            response = poll.try_answer(is_final=request.max_wait_ms <= 0)
            if response is not None:
                return response
        self._waiting.setdefault(context.connection_id, {})[poll] = None
        return poll.wait(request.max_wait_ms)

    def connection_closed(self, connection_id: int) -> None:
        """Drop the long polls of a connection."""
        for poll in self._waiting.pop(connection_id, {}):
            poll.stop()

    def answer_all(self) -> None:
        """Answer every long poll with what there is: the broker is stopping."""
        for polls in list(self._waiting.values()):
            for poll in list(polls):
                poll.answer_now()

    def forget(self, poll: _LongPoll) -> None:
        polls = self._waiting.get(poll.connection_id)
        if polls is not None:
            polls.pop(poll, None)
            if not polls:
                del self._waiting[poll.connection_id]

    def _wanted(self, request: messages.FetchRequest, version: int) -> list[Wanted]:
        wanted = []
        for topic in request.topics:
            name, topic_id = topic.topic, topic.topic_id
            if version >= TOPIC_IDS_FROM_VERSION:
                known = self._core.cluster.by_id.get(topic_id)
                name = known.name if known else ""
            wanted += [
                Wanted(name, topic_id, each.partition, each.fetch_offset, each.partition_max_bytes, each.current_leader_epoch)
                for each in topic.partitions
            ]
        return wanted

    def read(
        self,
        each: Wanted,
        *,
        is_committed: bool,
        max_bytes: int,
        min_one_batch: bool,
        budget: CheckBudget,
        rights: Rights = UNRESTRICTED,
    ) -> _PartitionData:
        """Return the PartitionData of one partition."""
        data = _PartitionData(partition_index=each.partition, high_watermark=-1, records=b"")
        if rights is not UNRESTRICTED and each.topic and not rights.allows(Operation.READ, Resource.TOPIC, each.topic):
            data.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return data
        partition = self._core.partition(each.topic, each.partition)
        if partition is None:
            data.error_code = self._core.missing(each.topic, each.partition) if each.topic else ErrorCode.UNKNOWN_TOPIC_ID
            return data
        if each.leader_epoch > LEADER_EPOCH:
            data.error_code = ErrorCode.UNKNOWN_LEADER_EPOCH
            return data
        log = partition.log
        data.high_watermark, data.last_stable_offset = log.durable_offset, log.last_stable_offset
        data.log_start_offset = log.log_start_offset
        end = data.last_stable_offset if is_committed else data.high_watermark
        data.aborted_transactions = [] if is_committed else None
        try:
            if each.offset < end or each.offset < data.log_start_offset or each.offset > log.log_end_offset:
                records = log.read(each.offset, max_bytes, up_to_offset=end, min_one_batch=min_one_batch, budget=budget)
                if records:
                    if is_committed:
                        data.aborted_transactions = _aborted(log, records.first_offset, end)
                    data.records = records
        except OffsetOutOfRange:
            data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        except CorruptLog:  # named by the log
            data.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        except LogflumeError as error:
            _log.error("cannot read %s-%d at offset %d: %s", each.topic, each.partition, each.offset, error)
            data.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return data


def _aborted(log: PartitionLog, first_offset: int, end: int) -> list[_Aborted]:
    found = log.aborted_transactions(first_offset, end)
    return [_Aborted(producer_id=each.producer_id, first_offset=each.first_offset) for each in found]


class _Look:
    """What a look at the partitions of a fetch has found so far."""

    __slots__ = ("budget", "found", "has_error", "left_bytes", "size_bytes")

    def __init__(self, left_bytes: int) -> None:
        self.left_bytes, self.size_bytes, self.has_error = left_bytes, 0, False
        self.budget = CheckBudget()
        self.found: list[tuple[Wanted, _PartitionData]] = []


class _LongPoll:
    """A fetch that may have to wait. Answers once: with enough bytes, an error, or what there is when its time is up."""

    __slots__ = (
        "_context",
        "_handler",
        "_is_final",
        "_is_looking",
        "_is_stopped",
        "_is_woken",
        "_reply",
        "_request",
        "_rights",
        "_session",
        "_timer",
        "_waits_on",
        "_wanted",
        "connection_id",
        "is_big",
    )

    def __init__(
        self,
        handler: FetchHandler,
        context: RequestContext,
        request: messages.FetchRequest,
        wanted: list[Wanted],
        session: FetchSession | None,
    ) -> None:
        self._handler, self._context, self._request = handler, context, request
        self._wanted, self._session = wanted, session
        self._rights = _rights_to_read(context, request)
        self._waits_on: list[Partition] = []
        self._reply: Reply | None = None
        self._timer: Timer | None = None
        self.connection_id = context.connection_id
        self.is_big = len(wanted) > PARTITIONS_AT_A_TIME
        """It reads its partitions in slices, one look at all of them after the other."""
        self._is_looking = self._is_woken = self._is_final = self._is_stopped = False

    def wait(self, max_wait_ms: int) -> Reply:
        core = self._handler._core
        self._reply = Reply()
        if self.is_big and max_wait_ms <= 0:
            self._look_again(is_final=True)
            return self._reply
        for each in self._wanted:
            partition = core.partition(each.topic, each.partition)
            if partition is not None:
                partition.waiters[self] = None
                self._waits_on.append(partition)
        self._timer = core.timers.call_later(max_wait_ms, self._time_is_up)
        if self.is_big:
            self._look_again(is_final=False)
        return self._reply

    def wake(self) -> None:
        """A partition moved on: answer if that is enough."""
        if self.is_big:
            self._look_again(is_final=False)
        else:
            self._answer(is_final=False)

    def stop(self) -> None:
        """Forget everything; no answer will be given."""
        self._is_stopped = True
        for partition in self._waits_on:
            partition.waiters.pop(self, None)
        self._waits_on = []
        if self._timer is not None:
            self._timer.cancel()

    def answer_now(self) -> None:
        """Answer with what there is."""
        self._answer(is_final=True)

    def _time_is_up(self) -> None:
        if self.is_big:
            self._look_again(is_final=True)
        else:
            self._answer(is_final=True)

    def _answer(self, *, is_final: bool) -> None:
        self._give(self.try_answer(is_final=is_final))

    def _give(self, response: _Response | CloseConnection | None) -> None:
        if response is not None and self._reply is not None and not self._reply.is_done:
            self.stop()
            self._handler.forget(self)
            self._reply.is_long = self.is_big
            self._reply.set(response)

    def _look_again(self, *, is_final: bool) -> None:
        """Look at all partitions in slices, from the first on; while that is done already, once more after it."""
        self._is_woken, self._is_final = True, self._is_final or is_final
        if not self._is_looking:
            self._is_looking = True
            self._handler._core.slices.run(self._look())

    def _look(self) -> Steps:
        try:
            while self._is_woken and not self._is_stopped:
                self._is_woken, is_final = False, self._is_final
                left, min_bytes = self._bounds()
                look = _Look(left)
                for start in range(0, len(self._wanted), PARTITIONS_AT_A_TIME):
                    self._read(look, self._wanted[start : start + PARTITIONS_AT_A_TIME])
                    yield None
                    if self._is_stopped:
                        return
                self._give(self._judge(look, min_bytes, is_final=is_final))
        except Exception:
            self._give(CLOSE_CONNECTION)
            raise  # it is logged by who runs the slices
        finally:
            self._is_looking = False

    def try_answer(self, *, is_final: bool) -> messages.FetchResponse | None:
        """Return the response, or None if it is worth waiting for more."""
        left, min_bytes = self._bounds()
        look = _Look(left)
        self._read(look, self._wanted)
        return self._judge(look, min_bytes, is_final=is_final)

    def _bounds(self) -> tuple[int, int]:
        """Return how many bytes the answer may have at most, and how many are worth an answer before its time is up."""
        core, request = self._handler._core, self._request
        left = min(request.max_bytes, core.config.number("fetch.max.bytes"))
        if core.quotas.is_active:
            most = core.quotas.max_fetch_bytes(self._context)
            left = left if most is None else min(left, most)
        return left, min(request.min_bytes, left)

    def _read(self, look: _Look, wanted: list[Wanted]) -> None:
        is_committed = self._request.isolation_level == READ_COMMITTED
        read, budget, rights, found = self._handler.read, look.budget, self._rights, look.found
        left, size_bytes, has_error = look.left_bytes, look.size_bytes, look.has_error
        for each in wanted:
            data = read(
                each,
                is_committed=is_committed,
                max_bytes=max(0, min(each.max_bytes, left)),
                min_one_batch=size_bytes == 0,
                budget=budget,
                rights=rights,
            )
            has_error = has_error or data.error_code != 0
            size = len(data.records) if data.records is not None else 0
            size_bytes += size
            left -= size
            found.append((each, data))
        look.left_bytes, look.size_bytes, look.has_error = left, size_bytes, has_error

    def _judge(self, look: _Look, min_bytes: int, *, is_final: bool) -> messages.FetchResponse | None:
        """Return the response that a look at all partitions makes, or None if it is worth waiting for more."""
        found, size_bytes = look.found, look.size_bytes
        is_enough = size_bytes >= min_bytes or (look.budget.is_spent and size_bytes)
        if not (is_final or look.has_error or is_enough or not self._wanted):
            return None
        quiet_ms = 0
        quotas = self._handler._core.quotas
        if quotas.is_active:
            is_held_back, quiet_ms = quotas.charge_fetch(self._context, size_bytes + RESPONSE_BYTES * len(found))
            if is_held_back:
                return self._hold_back(quiet_ms)
        if self._session is not None:
            found = self._session.changed(found)
        return _Response(
            throttle_time_ms=quiet_ms, session_id=self._session.session_id if self._session else 0, responses=_by_topic(found)
        )

    def _hold_back(self, quiet_ms: int) -> messages.FetchResponse:
        """Return an empty response for a client that is over its quota; what the session would have told stays to be told."""
        session = self._session
        if session is not None and self._request.session_epoch == INITIAL_EPOCH:
            self._handler.sessions.forget(session)
            session = None
        return _Response(throttle_time_ms=quiet_ms, session_id=session.session_id if session else 0)


class _Replica:
    """Rights of a fetch as a replica: all of the log with CLUSTER_ACTION, nothing without."""

    def __init__(self, context: RequestContext) -> None:
        self._is_let_in = context.may(Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME)

    def allows(self, operation: Operation, resource: Resource, name: str) -> bool:
        return self._is_let_in

    def allows_some(self, operation: Operation, resource: Resource) -> bool:
        return self._is_let_in


def _rights_to_read(context: RequestContext, request: messages.FetchRequest) -> Rights:
    if context.rights is UNRESTRICTED:
        return UNRESTRICTED
    state = request.replica_state
    replica_id = request.replica_id if state is None else state.replica_id
    return _Replica(context) if replica_id >= 0 else context.rights


def _by_topic(found: list[tuple[Wanted, _PartitionData]]) -> list[_TopicResponse]:
    """Group runs of partitions of one topic."""
    topics: list[_TopicResponse] = []
    for each, data in found:
        if not topics or (topics[-1].topic, topics[-1].topic_id) != (each.topic, each.topic_id):
            topics.append(_TopicResponse(topic=each.topic, topic_id=each.topic_id))
        topics[-1].partitions.append(data)
    return topics
