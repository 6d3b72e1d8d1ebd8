"""ShareFetch and ShareAcknowledge: records out of share partitions, and what members say of them (KIP-932, KIP-1222).

A fetch that finds nothing waits on the partitions it asks for, both on their logs and on their state in the group, and is tried
again when one of them moves. `records` of the response are slices of segment files: the shell sends them with sendfile.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

from logflume.log.broker.access import Operation, Resource
from logflume.log.broker.core import Core, Partition
from logflume.log.broker.groups.share import ShareGroups
from logflume.log.broker.groups.share.groups import MAX_MEMBER_ID_CHARS
from logflume.log.broker.ports import GroupSettings, Timer
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import RequestContext
from logflume.log.errors import LogflumeError
from logflume.log.protocol import ErrorCode, messages

from .acknowledgements import acks_by_partition, has_acks
from .config import EARLIEST, LATEST, READ_COMMITTED, ShareConfig, duration_ms
from .in_flight import Acquired, Want
from .partitions import SharePartitions
from .reading import LogBatches, read_batches
from .sessions import FINAL_EPOCH, INITIAL_EPOCH, SessionKey, SessionRefused, ShareSessions, TopicPartitionId
from .share_partition import AckResult, SharePartition
from .state_records import ShareKey

MAX_LIMIT_WAIT_MS = 30_000
MAX_ROUNDS = 16
"""How often one try reads on when all it read was hidden; then others have their turn first."""
STRICT_MODE = 1

_log = logging.getLogger("logflume.broker")
_Response = messages.ShareFetchResponse
_AckResponse = messages.ShareAcknowledgeResponse


class Candidate(NamedTuple):
    """Log batches that a share partition may give records of."""

    key: TopicPartitionId
    partition: SharePartition
    fetch_offset: int
    batches: LogBatches


class Refusal(Exception):
    """A request that is refused as a whole."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


class ShareFetchHandler:
    """Handles both APIs. Invariant: `_waiting` holds every fetch that has neither answered nor been dropped."""

    def __init__(
        self, core: Core, groups: ShareGroups, partitions: SharePartitions, settings: GroupSettings, config: ShareConfig
    ) -> None:
        self.core, self.partitions, self.settings, self.config = core, partitions, settings, config
        self.sessions = ShareSessions(config.max_sessions)
        self._groups = groups
        self._waiting: dict[int, dict[_ShareFetch, None]] = {}

    # -- the two APIs

    def share_fetch(self, context: RequestContext, request: messages.ShareFetchRequest) -> messages.ShareFetchResponse | Reply:
        try:
            _check_request(context, request)
            _check_renewal(request, context.api_version)
            wanted = self._update_session(context, request)
        except Refusal as refusal:
            return _Response(error_code=refusal.error, error_message=str(refusal))
        except SessionRefused as refused:
            return self._session_refusal(request, refused)
        acked = self._acknowledge(context, request)
        if request.share_session_epoch == FINAL_EPOCH:
            self.close_session(_session_key(request))
        fetch = _ShareFetch(self, context, request, wanted)
        if fetch.wanted and not fetch.try_answer(is_final=request.max_wait_ms <= 0 or request.min_bytes <= 0):
            self._waiting.setdefault(context.connection_id, {})[fetch] = None
            fetch.wait(request.max_wait_ms)
        reply = Reply()
        _gathered(acked).then(
            lambda results: fetch.found.then(lambda found: reply.set(self._response(context, request, found, results)))
        )
        return reply

    def share_acknowledge(
        self, context: RequestContext, request: messages.ShareAcknowledgeRequest
    ) -> messages.ShareAcknowledgeResponse | Reply:
        try:
            _check_request(context, request)
            key, epoch = _session_key(request), request.share_session_epoch
            if epoch == INITIAL_EPOCH:
                raise Refusal(ErrorCode.INVALID_SHARE_SESSION_EPOCH, "A share session is opened by ShareFetch.")
            if epoch == FINAL_EPOCH:
                self.sessions.get(key)
            else:
                self.sessions.advance(key, epoch)
        except (Refusal, SessionRefused) as refused:
            return _AckResponse(error_code=refused.error, error_message=str(refused))
        acked = self._acknowledge(context, request)
        if epoch == FINAL_EPOCH:
            self.close_session(key)
        reply = Reply()
        _gathered(acked).then(lambda results: reply.set(self._ack_response(key[0], results)))
        return reply

    # -- sessions

    def connection_closed(self, connection_id: int) -> None:
        """Drop the fetches of a connection, and give back what its sessions hold."""
        for fetch in self._waiting.pop(connection_id, {}):
            fetch.stop()
        for key in self.sessions.of_connection(connection_id):
            self.close_session(key)

    def close_session(self, key: SessionKey) -> None:
        """End a member's session, if it has one, and give back what it holds."""
        if self.sessions.close(key) is None:
            return
        group_id, member_id = key
        for partition in self.partitions.of_group(group_id):
            partition.release(member_id)

    def answer_all(self) -> None:
        """Answer every fetch with what there is: the broker is stopping."""
        for fetches in list(self._waiting.values()):
            for fetch in list(fetches):
                fetch.answer_now()

    def forget(self, fetch: _ShareFetch) -> None:
        fetches = self._waiting.get(fetch.connection_id, {})
        fetches.pop(fetch, None)
        if not fetches:
            self._waiting.pop(fetch.connection_id, None)

    def _update_session(self, context: RequestContext, request: messages.ShareFetchRequest) -> list[TopicPartitionId]:
        """Return what is to be fetched. Raises SessionRefused, Refusal."""
        key, epoch = _session_key(request), request.share_session_epoch
        added = [(bytes(topic.topic_id), each.partition_index) for topic in request.topics for each in topic.partitions]
        if epoch == FINAL_EPOCH:
            self.sessions.get(key)
            return []
        if epoch == INITIAL_EPOCH:
            if has_acks(request.topics):
                raise Refusal(ErrorCode.INVALID_REQUEST, "The first fetch of a share session acknowledges nothing.")
            session = self.sessions.open(key, context.connection_id, added)
        else:
            forgotten = [(bytes(topic.topic_id), index) for topic in request.forgotten_topics_data for index in topic.partitions]
            session = self.sessions.advance(key, epoch, added=added, forgotten=forgotten)
        is_fetching = request.max_records > 0 and request.max_bytes > 0 and not request.is_renew_ack
        return list(session.partitions) if is_fetching else []

    def _session_refusal(
        self, request: messages.ShareFetchRequest, refused: SessionRefused
    ) -> messages.ShareFetchResponse | Reply:
        response = _Response(error_code=refused.error, error_message=str(refused))
        if refused.error is not ErrorCode.SHARE_SESSION_LIMIT_REACHED:
            return response
        # As after a fetch without records, so that the client does not ask again and again.
        reply = Reply()
        self.core.timers.call_later(min(max(request.max_wait_ms, 0), MAX_LIMIT_WAIT_MS), lambda: reply.set(response))
        return reply

    # -- acknowledging

    def _acknowledge(
        self, context: RequestContext, request: messages.ShareFetchRequest | messages.ShareAcknowledgeRequest
    ) -> dict[TopicPartitionId, Reply]:
        """Apply what a request says of records; each reply is an AckResult."""
        if not has_acks(request.topics):
            return {}
        is_renewing = request.is_renew_ack
        acks, errors = acks_by_partition(request.topics, version=context.api_version, is_renewing=is_renewing)
        replies = {key: Reply.of((error, text)) for key, (error, text) in errors.items()}
        group_id, member_id = _session_key(request)
        for key, of_partition in acks.items():
            if not of_partition:
                continue
            topic_id, index = key
            topic = self.core.cluster.by_id.get(topic_id)
            partition = self.partitions.get(ShareKey(group_id, topic_id, index))
            if topic is None:
                replies[key] = Reply.of((ErrorCode.UNKNOWN_TOPIC_ID, None))
            elif not context.may(Operation.READ, Resource.TOPIC, topic.name):
                replies[key] = Reply.of((ErrorCode.TOPIC_AUTHORIZATION_FAILED, None))
            elif partition is None:
                replies[key] = Reply.of((ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None))
            else:
                replies[key] = partition.acknowledge(member_id, of_partition)
        return replies

    def _ack_response(self, group_id: str, results: dict[TopicPartitionId, AckResult]) -> _AckResponse:
        response = _AckResponse(acquisition_lock_timeout_ms=self._lock_ms(group_id))
        for topic_id, indexes in _by_topic(results).items():
            topic = _AckResponse.ShareAcknowledgeTopicResponse(topic_id=topic_id)
            response.responses.append(topic)
            for index in indexes:
                error, text = results[topic_id, index]
                topic.partitions.append(_AckResponse.PartitionData(partition_index=index, error_code=error, error_message=text))
        return response

    # -- fetching

    def share_partition(self, context: RequestContext, group_id: str, topic_id: bytes, index: int) -> SharePartition | ErrorCode:
        """Return a share partition, which begins where the group's settings say if nobody has read it yet."""
        topic = self.core.cluster.by_id.get(topic_id)
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if not context.may(Operation.READ, Resource.TOPIC, topic.name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        partition = self.core.partition(topic.name, index)
        if partition is None:
            return self.core.missing(topic.name, index)
        key = ShareKey(group_id, topic_id, index)
        found = self.partitions.get(key)
        if found is not None:
            return found
        if not self._groups.has_state(group_id, topic_id, index):
            return ErrorCode.GROUP_ID_NOT_FOUND
        try:
            return self.partitions.begin(key, self._first_offset(group_id, partition))
        except LogflumeError as error:
            _log.error("share group %s cannot begin in %s-%d: %s", group_id, topic.name, index, error)
            return ErrorCode.KAFKA_STORAGE_ERROR

    def max_bytes(self, context: RequestContext, request: messages.ShareFetchRequest) -> int:
        """Return the most that a fetch may give: what it asks for, within the broker's limit and the client's quota."""
        asked: int = min(request.max_bytes, self.config.fetch_max_bytes)
        of_quota = self.core.quotas.max_fetch_bytes(context) if self.core.quotas.is_active else None
        return asked if of_quota is None else max(1, min(asked, of_quota))

    def _first_offset(self, group_id: str, partition: Partition) -> int:
        reset, log = self.settings.text("share.auto.offset.reset", group_id), partition.log
        if reset == EARLIEST:
            return log.log_start_offset
        if reset == LATEST:
            return log.durable_offset
        found = log.offset_for_time(self.core.clock.wall_ms() - duration_ms(reset))
        return log.durable_offset if found is None else min(found.offset, log.durable_offset)

    def _response(
        self, context: RequestContext, request: messages.ShareFetchRequest, found: Found, acked: dict[TopicPartitionId, AckResult]
    ) -> _Response:
        response = _Response(acquisition_lock_timeout_ms=self._lock_ms(request.group_id or ""))
        for topic_id, indexes in _by_topic([*found.records, *found.errors, *acked]).items():
            topic = _Response.ShareFetchableTopicResponse(topic_id=topic_id)
            response.responses.append(topic)
            for index in indexes:
                key = (topic_id, index)
                data = _Response.PartitionData(partition_index=index, records=b"")
                topic.partitions.append(data)
                data.error_code = found.errors.get(key, ErrorCode.NONE)
                data.acknowledge_error_code, data.acknowledge_error_message = acked.get(key, (ErrorCode.NONE, None))
                if key in found.records:
                    batches, acquired = found.records[key]
                    data.records = batches.slice_of(acquired)
                    data.acquired_records = [
                        _Response.AcquiredRecords(first_offset=a.first, last_offset=a.last, delivery_count=a.delivery_count)
                        for a in acquired
                    ]
        if self.core.quotas.is_active:
            size_bytes = sum(len(data.records) for topic in response.responses for data in topic.partitions)
            response.throttle_time_ms = self.core.quotas.charge_shared_fetch(context, size_bytes)
        return response

    def _lock_ms(self, group_id: str) -> int:
        return self.settings.number("share.record.lock.duration.ms", group_id)


class Found(NamedTuple):
    """What a fetch found: records by partition, and errors."""

    records: dict[TopicPartitionId, tuple[LogBatches, list[Acquired]]]
    errors: dict[TopicPartitionId, ErrorCode]


class _ShareFetch:
    """The fetching part of a request. `found` is set once: with enough records, or what there is when its time is up."""

    __slots__ = (
        "_context",
        "_group_id",
        "_handler",
        "_is_committed",
        "_is_dropped",
        "_request",
        "_timer",
        "_want",
        "_watched",
        "connection_id",
        "found",
        "wanted",
    )

    def __init__(
        self,
        handler: ShareFetchHandler,
        context: RequestContext,
        request: messages.ShareFetchRequest,
        wanted: list[TopicPartitionId],
    ) -> None:
        self._handler, self._context, self._request = handler, context, request
        self.connection_id = context.connection_id
        self._group_id, member_id = _session_key(request)
        self._is_committed = handler.settings.text("share.isolation.level", self._group_id) == READ_COMMITTED
        is_strict = request.share_acquire_mode == STRICT_MODE
        self._want = Want(member_id, request.max_records, max(request.batch_size, 1), is_strict=is_strict)
        # Each request begins with another partition, so that all of them have their turn.
        turn = request.share_session_epoch % len(wanted) if wanted else 0
        self.wanted = wanted[turn:] + wanted[:turn]
        self._timer: Timer | None = None
        self._watched: list[dict[Any, None]] = []
        self._is_dropped = False
        self.found = Reply()
        if not wanted:
            self.found.set(Found({}, {}))

    def wait(self, max_wait_ms: int) -> None:
        self._watch()
        self._timer = self._handler.core.timers.call_later(max_wait_ms, self.answer_now)

    def wake(self) -> None:
        """A partition moved on: answer if that is enough."""
        if not self._is_dropped and not self.try_answer(is_final=False):
            self._watch()

    def answer_now(self) -> None:
        """Answer with what there is."""
        if not self._is_dropped:
            self.try_answer(is_final=True)

    def stop(self) -> None:
        """Forget everything; no answer will be given."""
        self._is_dropped = True
        for waiters in self._watched:
            waiters.pop(self, None)
        self._watched = []
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self) -> None:
        """Wait on every partition and its state in the group, as they are now."""
        core, group_id = self._handler.core, self._group_id
        for waiters in self._watched:
            waiters.pop(self, None)
        self._watched = []
        for topic_id, index in self.wanted:
            topic = core.cluster.by_id.get(topic_id)
            partition = core.partition(topic.name, index) if topic else None
            share = self._handler.partitions.get(ShareKey(group_id, topic_id, index))
            self._watched += [each.waiters for each in (partition, share) if each is not None]
        for waiters in self._watched:
            waiters[self] = None

    def try_answer(self, *, is_final: bool) -> bool:
        """Answer if there are enough records, or in any case; return whether that was done."""
        records: dict[TopicPartitionId, tuple[LogBatches, list[Acquired]]] = {}
        for _ in range(MAX_ROUNDS):
            candidates, errors = self._candidates()
            is_final = is_final or len(errors) == len(self.wanted)
            if not is_final and sum(each.batches.size_bytes for each in candidates) < max(self._request.min_bytes, 1):
                return False
            records = self._acquired(candidates)
            if records or not candidates:
                break
        if not records and not is_final:
            if candidates:
                # All that was read was hidden: there is more behind it, but not in this turn of the loop.
                self._handler.core.timers.call_later(0, self.wake)
            return False
        self.stop()
        self._handler.forget(self)
        self.found.set(Found(records, errors))
        return True

    def _candidates(self) -> tuple[list[Candidate], dict[TopicPartitionId, ErrorCode]]:
        """Read ahead in each partition that may have records for the member."""
        readable: list[tuple[TopicPartitionId, SharePartition, Partition, int]] = []
        errors: dict[TopicPartitionId, ErrorCode] = {}
        core = self._handler.core
        for key in self.wanted:
            share = self._handler.share_partition(self._context, self._group_id, *key)
            if isinstance(share, ErrorCode):
                errors[key] = share
                continue
            partition = core.partition(core.cluster.by_id[key[0]].name, key[1])
            assert partition is not None, key
            share.move_start(partition.log.log_start_offset)
            end = partition.log.last_stable_offset if self._is_committed else partition.log.durable_offset
            if share.has_room() and share.fetch_offset < end:
                readable.append((key, share, partition, end))
        candidates: list[Candidate] = []
        left = self._handler.max_bytes(self._context, self._request)
        records = 0
        for position, (key, share, partition, end) in enumerate(readable):
            if left <= 0 or records >= self._want.max_records:
                break
            try:
                batches = self._read(share, partition, end, left // (len(readable) - position))
            except LogflumeError as error:
                _log.error("cannot read %s-%d for a share group: %s", partition.log.topic, partition.log.partition, error)
                errors[key] = ErrorCode.KAFKA_STORAGE_ERROR
                continue
            # The first partition gives a batch of any size, the others within what is left.
            if batches.pieces and (batches.size_bytes <= left or not candidates):
                left -= batches.size_bytes
                records += batches.record_count
                candidates.append(Candidate(key, share, share.fetch_offset, batches))
        return candidates, errors

    def _read(self, share: SharePartition, partition: Partition, end: int, max_bytes: int) -> LogBatches:
        return read_batches(
            partition.log,
            share.fetch_offset,
            end_offset=end,
            room_end=share.room_end,
            max_records=self._want.max_records,
            max_bytes=max_bytes,
            is_committed=self._is_committed,
        )

    def _acquired(self, candidates: Iterable[Candidate]) -> dict[TopicPartitionId, tuple[LogBatches, list[Acquired]]]:
        found: dict[TopicPartitionId, tuple[LogBatches, list[Acquired]]] = {}
        left = self._want.max_records
        for key, share, fetch_offset, batches in candidates:
            if left <= 0:
                break
            want = Want(self._want.member_id, left, self._want.batch_size, is_strict=self._want.is_strict)
            acquired = share.acquire(want, fetch_offset, batches.spans)
            if acquired:
                found[key] = (batches, acquired)
                left -= sum(each.size for each in acquired)
        return found


def _session_key(request: messages.ShareFetchRequest | messages.ShareAcknowledgeRequest) -> tuple[str, str]:
    """Return group and member, which the request has: see `_check_request`."""
    return request.group_id or "", request.member_id or ""


def _check_request(context: RequestContext, request: messages.ShareFetchRequest | messages.ShareAcknowledgeRequest) -> None:
    """Raise Refusal unless group and member have names and who asks may read in the group."""
    if request.group_id is None:
        raise Refusal(ErrorCode.INVALID_REQUEST, "Invalid group id in the request.")
    if not context.may(Operation.READ, Resource.GROUP, request.group_id):
        raise Refusal(ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED.text)
    if not request.member_id or len(request.member_id) > MAX_MEMBER_ID_CHARS:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"A member id has 1 to {MAX_MEMBER_ID_CHARS} characters.")


def _check_renewal(request: messages.ShareFetchRequest, version: int) -> None:
    """Raise Refusal INVALID_REQUEST if a fetch that renews locks asks for records too (KIP-1222)."""
    if not request.is_renew_ack:
        return
    asked = {
        "maxBytes": request.max_bytes,
        "minBytes": request.min_bytes,
        "maxRecords": request.max_records,
        "maxWaitMs": request.max_wait_ms,
    }
    wrong = [name for name, value in asked.items() if value != 0]
    if wrong:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"{', '.join(wrong)} must be set to 0 if isRenewAck is true.")


def _by_topic(keys: Iterable[TopicPartitionId]) -> dict[bytes, list[int]]:
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, index in dict.fromkeys(keys):
        by_topic.setdefault(topic_id, []).append(index)
    return by_topic


def _gathered(replies: dict[TopicPartitionId, Reply]) -> Reply:
    """Return a reply that is the values of all, by key."""
    gathered, values = Reply(), dict[TopicPartitionId, Any]()

    def on_done(key: TopicPartitionId, value: Any) -> None:
        values[key] = value
        if len(values) == len(replies):
            gathered.set({key: values[key] for key in replies})

    if not replies:
        gathered.set({})
    for key, reply in replies.items():
        reply.then(lambda value, key=key: on_done(key, value))  # type: ignore[misc]
    return gathered
