"""Small helpers of the client's tests: read until enough is there, and wait on a condition."""

from __future__ import annotations

import time
from collections.abc import Callable

from logflume.log import Consumer, Record, TopicPartition
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
