"""Applications on a real log, as the tests of the runtime start, feed and read them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import logflume.streams as lf
from logflume.log import connect
from logflume.log.interfaces import Log
from logflume.log.records import Record, TopicPartition
from logflume.streams.kernels import kernel_loader
from logflume.streams.runtime import Engine, EngineOptions


@contextmanager
def running(app: lf.App, log: Log, state_dir: Path, **options: Any) -> Iterator[Engine]:
    """Run an application; it is stopped in order at the end, unless it has ended by itself."""
    settings = {"state_dir": state_dir, "commit_interval_ms": 20, **options}
    engine = Engine(app.plan(), log, EngineOptions(**settings))
    engine.start()
    try:
        yield engine
    finally:
        if not engine.has_ended:
            engine.stop()


@contextmanager
def embedded(path: Path) -> Iterator[Log]:
    """Open a log in this process."""
    with connect(str(path)) as log:
        yield log


def until(condition: Callable[[], Any], *engines: Engine, timeout_s: float = 60.0) -> Any:
    """Wait for a condition and return what it gave; raises what made an engine fail meanwhile."""
    end = time.monotonic() + timeout_s
    while not (found := condition()):
        for engine in engines:
            if engine.has_ended:
                engine.wait()
        assert time.monotonic() < end, "not reached in time"
        time.sleep(0.01)
    return found


def read(log: Log, topic: str) -> list[Record]:
    """Return the committed records of a topic, each partition in order; none where there is no such topic yet."""
    admin = log.admin()
    if topic not in admin.list_topics(include_internal=True):
        return []
    partitions = [TopicPartition(topic, p) for p in range(admin.describe_topics([topic])[topic].partitions)]
    ends = admin.end_offsets(partitions, read_committed=True)
    consumer = log.consumer(read_committed=True)
    consumer.assign(partitions)
    found: list[Record] = []
    while any(consumer.position(tp) < ends[tp] for tp in partitions):
        for chunk in consumer.poll(timeout_s=0.2):
            found += chunk.records()
    consumer.close()
    return found


def write(log: Log, topic: str, rows: Iterable[tuple[bytes | None, bytes | None, int]]) -> None:
    """Write (key, value, time in ms) to a topic and wait until they are there."""
    producer = log.producer()
    for key, value, time_ms in rows:
        producer.send(topic, value, key=key, timestamp_ms=time_ms)
    producer.flush()
    producer.close()


def send_json(log: Log, topic: str, rows: Iterable[tuple[str | None, Any, int]]) -> None:
    """Write (key, value as JSON, time in ms)."""
    encode = msgspec.json.encode
    write(log, topic, ((None if key is None else key.encode(), encode(value), time_ms) for key, value, time_ms in rows))


@pytest.fixture(params=["without kernels", "with kernels"])
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test without kernels, and with them from the first record on."""
    if request.param == "without kernels":
        with kernel_loader().held_back():
            yield request.param
        return
    if not kernel_loader().load("meetings", "chains", "sessions", "sliding"):
        pytest.skip("the kernels need numba")
    yield request.param
