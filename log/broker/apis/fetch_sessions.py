"""Incremental fetch sessions (KIP-227): the broker remembers what a consumer fetches, both sides send only changes.

A request with session id 0 and epoch 0 asks for a session; epoch -1 is a full fetch without one (session id 0, or closing the
named one). A consumer that gets no session (all slots taken by active ones) goes on with full fetches.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from logflume.log.broker.ports import Clock
from logflume.log.broker.settings.lookup import BrokerConfig
from logflume.log.protocol import ErrorCode, messages

FINAL_EPOCH, INITIAL_EPOCH, MAX_EPOCH = -1, 0, 2**31 - 1
EVICT_AFTER_MS = 120_000
"""A session that was not used for so long makes room for a new one (min.incremental.fetch.session.eviction.ms)."""

_Key = tuple[str, bytes, int]


class Wanted(NamedTuple):
    """One partition of a fetch. `topic` is "" when the topic id is not known."""

    topic: str
    topic_id: bytes
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int


class SessionError(Exception):
    """The session is not known, or its epoch is not the expected one."""

    def __init__(self, error_code: int) -> None:
        super().__init__(error_code)
        self.error_code = error_code


class FetchSession:
    """A session: what is fetched, in order, and what was last told of each partition."""

    __slots__ = ("_told", "epoch", "partitions", "session_id", "used_ms")

    def __init__(self, session_id: int, partitions: dict[_Key, Wanted], now_ms: int) -> None:
        self.session_id, self.partitions, self.used_ms = session_id, partitions, now_ms
        self.epoch = 1
        self._told: dict[_Key, tuple[int, int, int]] = {}

    def changed(
        self, found: list[tuple[Wanted, messages.FetchResponse.PartitionData]]
    ) -> list[tuple[Wanted, messages.FetchResponse.PartitionData]]:
        """Return the partitions that have records, an error, or moved since they were last told.

        Those with records go to the end of the session's order, so that every partition gets its turn (KIP-227).
        """
        changed = []
        for each, data in found:
            key = (each.topic, each.topic_id, each.partition)
            told = (data.high_watermark, data.last_stable_offset, data.log_start_offset)
            has_records = data.records is not None and len(data.records) > 0
            if has_records or data.error_code or self._told.get(key) != told:
                changed.append((each, data))
                if data.error_code:
                    self._told.pop(key, None)
                else:
                    self._told[key] = told
            if has_records and key in self.partitions:
                self.partitions[key] = self.partitions.pop(key)
        return changed

    def apply(self, wanted: list[Wanted], forgotten: list[_Key]) -> None:
        for key in forgotten:
            self.partitions.pop(key, None)
            self._told.pop(key, None)
        for each in wanted:
            self.partitions[each.topic, each.topic_id, each.partition] = each


class FetchSessions:
    """All sessions of the broker, at most `max.incremental.fetch.session.cache.slots`, the least recently used first."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config, self._clock = config, clock
        self._sessions: dict[int, FetchSession] = {}
        self._ids = itertools.count(1)

    def __len__(self) -> int:
        return len(self._sessions)

    def update(self, request: messages.FetchRequest, wanted: list[Wanted]) -> FetchSession | None:
        """Return the session after this request, None for a fetch without one. Raises SessionError."""
        if request.session_epoch == FINAL_EPOCH:
            self._sessions.pop(request.session_id, None)
            return None
        now_ms = self._clock.monotonic_ms()
        if request.session_epoch == INITIAL_EPOCH:
            self._sessions.pop(request.session_id, None)
            return self._new(wanted, now_ms)
        session = self._sessions.pop(request.session_id, None)
        if session is None:
            raise SessionError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        self._sessions[session.session_id] = session
        if request.session_epoch != session.epoch:
            raise SessionError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.epoch = 1 if session.epoch == MAX_EPOCH else session.epoch + 1
        session.used_ms = now_ms
        session.apply(wanted, _forgotten(request, session))
        return session

    def forget(self, session: FetchSession) -> None:
        """Drop a session that its client was not told of."""
        self._sessions.pop(session.session_id, None)

    def _new(self, wanted: list[Wanted], now_ms: int) -> FetchSession | None:
        slots = self._config.number("max.incremental.fetch.session.cache.slots")
        if len(self._sessions) >= slots:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.used_ms < EVICT_AFTER_MS:
                return None
            del self._sessions[oldest.session_id]
        session = FetchSession(next(self._ids), {(w.topic, w.topic_id, w.partition): w for w in wanted}, now_ms)
        self._sessions[session.session_id] = session
        return session


def _forgotten(request: messages.FetchRequest, session: FetchSession) -> list[_Key]:
    gone = {(topic.topic, topic.topic_id, index) for topic in request.forgotten_topics_data for index in topic.partitions}
    return [key for key in session.partitions if ("", key[1], key[2]) in gone or (key[0], key[1], key[2]) in gone] if gone else []
