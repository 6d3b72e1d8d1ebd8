"""Push queries that keep nothing share one reader of their topic: each record is fetched once for all that follow the topic.

A query that begins before the shared reader has one of its own until it has come as far; so has one whose rows nobody takes, so
that it holds up no other. Nothing is kept for any of them in the log: there is no group to join, and none to clean up after.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from logflume.log import LogflumeError, TopicPartition, UnknownName
from logflume.log.interfaces import Consumer, Log
from logflume.log.records import Chunk
from logflume.streams.runtime import Pipe, StreamsError

from .results import PushRow

ROWS_MAX = 10_000
"""Rows of a query that wait to be taken; beyond them, and those of one turn, no more are read for it."""
TURN_RECORDS_MAX = 1_000
_POLL_S, _LOOK_EVERY_S, _RETRY_S, _FULL_S, _END_TIMEOUT_S = 0.5, 1.0, 0.5, 0.02, 10.0


class Follower:
    """A query that takes the records of a topic from its own offsets on.

    `failure`: why it gets no more. `place`: the next offset of each partition; one that is not in it is taken whole.
    """

    def __init__(self, pipe: Pipe, rows: queue.Queue[PushRow], starts: Mapping[int, int]) -> None:
        self.pipe, self._rows = pipe, rows
        self.place = dict(starts)
        self.failure: BaseException | None = None
        self.is_over = False

    @property
    def is_full(self) -> bool:
        return self._rows.qsize() >= ROWS_MAX

    def take(self, chunk: Chunk) -> None:
        """Take what is new of a chunk."""
        reached = self.place.get(chunk.partition, 0)
        start = int(chunk.offsets.searchsorted(reached))
        try:
            if start < len(chunk):
                self.pipe.take(chunk, start)
        except Exception as error:  # noqa: BLE001 - its own, and told to whoever reads it; others go on
            self.fail(error)
        self.place[chunk.partition] = max(reached, chunk.next_offset)

    def fail(self, error: BaseException) -> None:
        self.failure, self.is_over = error, True


class SharedReaders:
    """Reads topics for those that follow them. Thread-safe."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._topics: dict[str, _Topic] = {}
        self._lock = threading.Lock()
        self._is_closed = threading.Event()

    def follow(self, topic: str, topic_id: str, follower: Follower) -> None:
        """Give a topic's records to a follower, from its place on until it is over.

        `topic_id`: of the topic that its place is in; one that is made anew ends it.
        """
        with self._lock:
            known = self._topics.setdefault(topic_id, _Topic(topic, topic_id))
        with known.lock:
            if known.shared is not None and has_reached(follower, known.shared.place):
                known.shared.followers.append(follower)
            else:
                self._start(known, follower)

    def _start(self, topic: _Topic, follower: Follower) -> None:
        reader = _Reader(self._log, topic, follower, self._is_closed, self._start)
        topic.readers.append(reader)
        reader.thread.start()

    def leave(self, topic_id: str, follower: Follower) -> None:
        """Note that a follower wants no more; returns at once."""
        follower.is_over = True
        known = self._topics[topic_id]
        for reader in list(known.readers):
            reader.wake()

    def close(self) -> None:
        """Read no more; returns when all readers have ended. Idempotent."""
        self._is_closed.set()
        readers = [reader for topic in list(self._topics.values()) for reader in list(topic.readers)]
        for reader in readers:
            reader.wake()
        for reader in readers:
            reader.thread.join(_END_TIMEOUT_S)


@dataclass(slots=True)
class _Topic:
    """A topic and who reads it. Under `lock`: `readers`, their followers and places. `shared`: the one at the topic's end."""

    name: str
    id: str
    lock: threading.Lock = field(default_factory=threading.Lock)
    readers: list[_Reader] = field(default_factory=list)
    shared: _Reader | None = None


class _Reader:
    """Reads a topic in a thread of its own for those that follow it from one place on, as long as there are any."""

    def __init__(self, log: Log, topic: _Topic, first: Follower, is_closed: threading.Event, start: Any) -> None:
        self.place = dict(first.place)
        self.followers = [first]
        self.thread = threading.Thread(target=self._run, name=f"sql-reader-{topic.name}", daemon=True)
        self._log, self._topic, self._is_closed, self._start = log, topic, is_closed, start
        self._consumer: Consumer | None = None
        self._looked_s = time.monotonic()

    def wake(self) -> None:
        """Have it look at once whether it still has followers."""
        consumer = self._consumer
        if consumer is not None:
            consumer.wakeup()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            with self._log.consumer(read_committed=True, offset_reset="none") as consumer:
                self._consumer = consumer
                self._read_all(consumer)
                while not self._is_closed.is_set() and self._goes_on(consumer):
                    self._take_turn(consumer)
        except Exception as failed:  # noqa: BLE001 - told to whoever reads the rows
            error = failed
        finally:
            self._consumer = None
            self._end(error)

    def _read_all(self, consumer: Consumer) -> None:
        places = {TopicPartition(self._topic.name, partition): offset for partition, offset in self.place.items()}
        consumer.assign(places)
        for partition, offset in places.items():
            consumer.seek(partition, offset)

    def _goes_on(self, consumer: Consumer) -> bool:
        """Sort out who is over, who is behind, and whether another reader is as far; False: nobody is left here."""
        topic = self._topic
        with topic.lock:
            self.followers = [each for each in self.followers if not each.is_over]
            if len(self.followers) > 1:
                for each in [each for each in self.followers if each.is_full]:
                    self.followers.remove(each)
                    self._start(topic, each)
            if topic.shared is None and self._is_at_end(consumer):
                topic.shared = self
            if topic.shared not in (None, self) and all(has_reached(each, topic.shared.place) for each in self.followers):
                topic.shared.followers += self.followers
                self.followers = []
            if not self.followers:
                self._leave()
            return bool(self.followers)

    def _is_at_end(self, consumer: Consumer) -> bool:
        return all(consumer.lag(partition) == 0 for partition in consumer.assignment())

    def _take_turn(self, consumer: Consumer) -> None:
        if all(each.is_full for each in self.followers):
            self._is_closed.wait(_FULL_S)
            return
        try:
            self._look_at_topic(consumer)
            chunks = consumer.poll(timeout_s=_POLL_S, max_records=TURN_RECORDS_MAX)
        except LogflumeError as error:
            if not error.is_retriable:
                raise
            self._is_closed.wait(_RETRY_S)
            return
        with self._topic.lock:
            for chunk in chunks:
                for each in self.followers:
                    if not each.is_over:
                        each.take(chunk)
                self.place[chunk.partition] = chunk.next_offset

    def _look_at_topic(self, consumer: Consumer) -> None:
        """Notice within a second that a topic has more partitions, or is another one now. Raises StreamsError."""
        now_s, topic = time.monotonic(), self._topic
        if now_s - self._looked_s < _LOOK_EVERY_S:
            return
        self._looked_s = now_s
        try:
            found = self._log.admin().describe_topics([topic.name])[topic.name]
        except UnknownName as error:
            raise StreamsError(f"topic {topic.name!r} was deleted while it was read") from error
        if found.topic_id != topic.id:
            raise StreamsError(f"topic {topic.name!r} was deleted and made anew while it was read")
        if found.partitions > len(self.place):
            with topic.lock:
                self.place |= {n: 0 for n in range(found.partitions) if n not in self.place}
            self._read_all(consumer)

    def _end(self, error: BaseException | None) -> None:
        with self._topic.lock:
            self._leave()
            for each in self.followers:
                each.fail(error or StreamsError("the engine is closed"))

    def _leave(self) -> None:
        """Be nobody's reader any more; under the topic's lock."""
        topic = self._topic
        if topic.shared is self:
            topic.shared = None
        if self in topic.readers:
            topic.readers.remove(self)


def has_reached(follower: Follower, place: Mapping[int, int]) -> bool:
    """Tell whether a follower misses nothing if it is given what comes behind a place."""
    return all(follower.place.get(partition, 0) >= offset for partition, offset in place.items())
