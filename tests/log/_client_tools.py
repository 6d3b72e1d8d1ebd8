"""Helpers of the client's tests: read until enough is there, wait on a condition, a member of a group on a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from logflume.log import Consumer, KafkaError, Record, TopicPartition, is_rebalance
from logflume.log.client.log import Log

WAIT_S = 30.0


def read(consumer: Consumer, count: int, *, timeout_s: float = WAIT_S) -> list[Record]:
    """Poll until `count` records are there (or time is over); returns them in the order they came."""
    records: list[Record] = []
    deadline = time.monotonic() + timeout_s
    while len(records) < count and time.monotonic() < deadline:
        for chunk in consumer.poll(timeout_s=0.5):
            records += chunk.records()
    return records


def read_all(log: Log, topic: str, *, read_committed: bool = True) -> dict[int, list[Record]]:
    """Read everything that is in a topic now, by partition."""
    admin = log.admin()
    partitions = [TopicPartition(topic, p) for p in range(admin.describe_topics([topic])[topic].partitions)]
    ends = admin.end_offsets(partitions, read_committed=read_committed)
    consumer = log.consumer(read_committed=read_committed)
    consumer.assign(partitions)
    out: dict[int, list[Record]] = {tp.partition: [] for tp in partitions}
    deadline = time.monotonic() + WAIT_S
    while any(consumer.position(tp) < ends[tp] for tp in partitions):
        assert time.monotonic() < deadline, f"positions {[consumer.position(tp) for tp in partitions]} of {ends}"
        for chunk in consumer.poll(timeout_s=0.5):
            out[chunk.partition] += chunk.records()
    consumer.close()
    return out


def wait_until(is_true: Callable[[], object], *, timeout_s: float = WAIT_S) -> None:
    """Poll a condition (every 10 ms) until it holds; fails the test if it never does."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.01)


class Member:
    """A consumer polled by a thread of its own; keeps what it got and when it was assigned what."""

    def __init__(self, consumer: Consumer, topics: Sequence[str], *, poll_s: float = 0.1) -> None:
        self.consumer = consumer
        self.values: list[bytes | None] = []
        self.assignments: list[tuple[TopicPartition, ...]] = []
        self.revoked: list[tuple[TopicPartition, ...]] = []
        self._is_stopping, self._poll_s = False, poll_s
        consumer.subscribe(topics, on_assigned=self._assigned, on_revoked=self._revoked)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.assignments.append(tuple(partitions))

    def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.revoked.append(tuple(partitions))
        self.consumer.commit()

    def _run(self) -> None:
        while not self._is_stopping:
            try:
                for chunk in self.consumer.poll(timeout_s=self._poll_s):
                    self.values += chunk.values()
                self.consumer.commit()
            except KafkaError as error:
                if not is_rebalance(error):
                    raise

    def stop(self) -> None:
        self._is_stopping = True
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "its thread hangs"
        self.consumer.close()
