"""SIGKILL the application at every step of a task commit and at random, and the broker too: nothing lost, nothing doubled.

The outputs (read committed) and the stores are compared with a recomputation in plain Python from the committed input. Each round
is short; LOGFLUME_KILLS=N makes N random kills instead of 3.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from logflume.log import LogflumeError, connect
from logflume.log.interfaces import Log
from logflume.log.records import Record, TopicPartition
from logflume.streams.state import TaskState
from tests.end_to_end.streams_app import APPLICATION
from tests.kills._instances import COMMIT_STEPS
from tests.streams.handmade import COUNTS, WINDOW, WINDOWED

KILLS = int(os.environ.get("LOGFLUME_KILLS", "3"))
PARTITIONS = 2


@dataclass
class Broker:
    """A broker process on a fixed port, that can be killed and started again."""

    data: Path
    port: int = 0
    process: subprocess.Popen[str] | None = field(default=None, init=False)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        if not self.port:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port = probe.getsockname()[1]
        command = [sys.executable, "-m", "logflume.log.server", "--data", str(self.data), "--listen", self.address]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        assert "ready" in self.process.stdout.readline()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    started = Broker(tmp_path / "data")
    started.start()
    yield started
    started.kill()


Starter = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start_app(tmp_path: Path) -> Iterator[Starter]:
    """Start application processes on a log; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(where: str, *arguments: str, state: str = "state") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.end_to_end.streams_app", where, str(tmp_path / state), *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.fixture
def apps(broker: Broker, start_app: Starter) -> Starter:
    """Start application processes on the broker."""
    return lambda *arguments, state="state": start_app(broker.address, *arguments, state=state)


class Feeder(threading.Thread):
    """Writes lines, steadily, until stopped; survives the broker's death (idempotent producer, new one per attempt)."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._rng = random.Random(7)
        self._stopping = threading.Event()
        self.sent = 0

    def run(self) -> None:
        time_ms = 10_000
        while not self._stopping.wait(0.01):
            with contextlib.suppress(LogflumeError), connect(self._address) as log:
                producer = log.producer()
                while not self._stopping.wait(0.01):
                    for _ in range(20):
                        time_ms += 10
                        late_ms = self._rng.choice([0, 0, 0, 300, 3000])
                        word, key = b"w%d" % self._rng.randrange(30), b"k%d" % self._rng.randrange(20)
                        producer.send("lines", word, key=key, timestamp_ms=time_ms - late_ms)
                    producer.flush(timeout_s=20)
                    self.sent += 20

    def stop(self) -> None:
        self._stopping.set()
        self.join(timeout=60)
        assert not self.is_alive()


def prepare(log: Log) -> None:
    admin = log.admin()
    admin.ensure_topic("lines", partitions=PARTITIONS)
    admin.ensure_topic("names", partitions=PARTITIONS, configs={"cleanup.policy": "compact"})
    producer = log.producer()
    for i in range(20):
        producer.send("names", b"name-%d" % i, key=b"k%d" % i, timestamp_ms=1)
    producer.flush()
    producer.close()


def read(log: Log, topic: str) -> list[Record]:
    """Return all committed records, each partition in order."""
    consumer = log.consumer(read_committed=True)
    partitions = [TopicPartition(topic, p) for p in range(log.admin().describe_topics([topic])[topic].partitions)]
    ends = log.admin().end_offsets(partitions, read_committed=True)
    consumer.assign(partitions)
    found: list[Record] = []
    while any(consumer.position(tp) < ends[tp] for tp in partitions):
        for chunk in consumer.poll(timeout_s=0.2):
            found += chunk.records()
    consumer.close()
    return found


def wait_for(condition: Callable[[], Any], what: str, *, timeout_s: float = 60.0) -> None:
    end, last = time.monotonic() + timeout_s, ""
    while True:
        try:
            if condition():
                return
        except LogflumeError as error:  # a broker that is down for a moment
            last = f"; the last error: {error!r}"
        assert time.monotonic() < end, f"{what}: not reached in {timeout_s} s{last}"
        time.sleep(0.1)


def caught_up(log: Log) -> bool:
    """Return whether all lines are read and all words counted, as far as committed."""
    admin = log.admin()
    topics = ("lines", f"{APPLICATION}-words-repartition")
    partitions = [TopicPartition(topic, p) for topic in topics for p in range(PARTITIONS)]
    ends, done = admin.end_offsets(partitions), admin.group_offsets(APPLICATION)
    return all(ends[tp] == 0 or (tp in done and done[tp].offset >= ends[tp]) for tp in partitions)


def check_results(log: Log, states: list[Path]) -> None:
    """Compare everything with a recomputation from the input."""
    lines = read(log, "lines")
    words = read(log, f"{APPLICATION}-words-repartition")
    assert Counter((r.value, r.timestamp_ms) for r in words) == Counter((r.value, r.timestamp_ms) for r in lines)

    expected_joined: dict[bytes | None, list[bytes]] = {}
    for record in lines:
        expected_joined.setdefault(record.key, []).append((record.value or b"") + b" name-" + (record.key or b"")[1:])
    joined: dict[bytes | None, list[bytes | None]] = {}
    for record in read(log, "joined"):
        joined.setdefault(record.key, []).append(record.value)
    assert joined == expected_joined

    counts = Counter(record.value for record in lines)
    sequences: dict[bytes | None, list[bytes | None]] = {}
    for record in read(log, "counts-out"):
        sequences.setdefault(record.key, []).append(record.value)
    assert sequences == {word: [b"%d" % n for n in range(1, count + 1)] for word, count in counts.items()}

    windows, times = recount_windows(words)
    latest = {record.key: int(record.value or b"0") for record in read(log, "windows-out")}
    assert latest == windows
    check_stores(states, counts, windows, times)


def recount_windows(words: list[Record]) -> tuple[dict[bytes, int], dict[int, int]]:
    """Return the count per word and window without the late ones, and the stream time of each partition."""
    times: dict[int, int] = {}
    windows: Counter[bytes] = Counter()
    for record in words:
        now = times[record.partition] = max(times.get(record.partition, -1), record.timestamp_ms)
        start = record.timestamp_ms - record.timestamp_ms % WINDOW.size_ms
        if start + WINDOW.size_ms > now - WINDOW.grace_ms:
            windows[(record.value or b"") + start.to_bytes(8, "big")] += 1
    return dict(windows), times


def check_stores(states: list[Path], counts: Counter[bytes | None], windows: dict[bytes, int], times: dict[int, int]) -> None:
    found: dict[bytes, int] = {}
    alive: dict[bytes, int] = {}
    for path in states:
        state = TaskState(path, application=APPLICATION, task=path.name, specs=(COUNTS, WINDOWED))
        found |= {key: entry.state[0] for key, entry in state.stores["counts"].range(b"", None) if entry.state}
        alive |= {key: entry.state[0] for key, entry in state.stores["per_second"].range(b"", None) if entry.state}
        partition = int(path.name.rpartition(".")[2])
        assert state.stores["per_second"].stream_time_ms == times[partition]
        state.close()
    assert found == counts
    assert alive.items() <= windows.items()
    assert alive


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0


@pytest.mark.slow
def test_killed_at_every_step_and_at_random(tmp_path: Path, broker: Broker, apps: Starter) -> None:
    rng = random.Random(11)
    with connect(broker.address) as log:
        prepare(log)
        feeder = Feeder(broker.address)
        feeder.start()
        for step in COMMIT_STEPS:
            assert apps(step, str(rng.randrange(2, 8))).wait(timeout=60) == -signal.SIGKILL, step
        for _ in range(KILLS):
            process = apps()
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
            time.sleep(rng.random() * 0.3)
            process.kill()
            process.wait()
        feeder.stop()
        survivor = apps()
        wait_for(lambda: caught_up(log), "all of the input")
        stop(survivor)
        assert len(read(log, "lines")) == feeder.sent
        check_results(log, sorted((tmp_path / "state" / APPLICATION / "0").glob("back.*")))


@pytest.mark.slow
def test_an_embedded_log_dies_with_its_application(tmp_path: Path, start_app: Starter) -> None:
    """One process holds log and application: SIGKILL takes both."""
    data, rng, sent = tmp_path / "embedded", random.Random(5), 0
    with connect(str(data)) as log:
        prepare(log)
    for step in ("after-produce", "after-send-offsets", "after-log-commit", "after-store-batch", ""):
        with connect(str(data)) as log:
            producer = log.producer()
            for i in range(200):
                key, time_ms = b"k%d" % rng.randrange(20), 10_000 + (sent + i) * 10 - rng.choice([0, 0, 3000])
                producer.send("lines", b"w%d" % rng.randrange(30), key=key, timestamp_ms=time_ms)
            producer.flush()
        sent += 200
        process = start_app(str(data), step, "1")
        if step:
            assert process.wait(timeout=60) == -signal.SIGKILL, step
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    with connect(str(data)) as log:
        wait_for(lambda: caught_up(log), "all of the input")
    stop(process)
    with connect(str(data)) as log:
        assert len(read(log, "lines")) == sent
        check_results(log, sorted((tmp_path / "state" / APPLICATION / "0").glob("back.*")))


@pytest.mark.slow
def test_the_broker_is_killed_under_a_running_application(tmp_path: Path, broker: Broker, apps: Starter) -> None:
    with connect(broker.address) as log:
        prepare(log)
    feeder = Feeder(broker.address)
    feeder.start()
    process = apps()
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    for _ in range(2):
        before = feeder.sent
        wait_for(lambda before=before: feeder.sent > before + 200, "more input")
        broker.kill()
        broker.start()
    before = feeder.sent
    wait_for(lambda: feeder.sent > before + 200, "input after the last kill")
    feeder.stop()
    with connect(broker.address) as log:
        wait_for(lambda: caught_up(log), "all of the input")
        assert process.poll() is None
        stop(process)
        check_results(log, sorted((tmp_path / "state" / APPLICATION / "0").glob("back.*")))


@pytest.mark.slow
def test_a_paused_instance_is_fenced_when_it_comes_back(tmp_path: Path, broker: Broker, apps: Starter) -> None:
    """SIGSTOP beyond the session timeout: others take over; what the zombie still had in hand is refused."""
    with connect(broker.address) as log:
        prepare(log)
        feeder = Feeder(broker.address)
        feeder.start()
        zombie = apps("", "0", "6000")
        assert zombie.stdout is not None
        assert zombie.stdout.readline() == "running\n"
        other = apps("", "0", "6000", state="other")
        wait_for(lambda: len(members(log)) == 2, "the second instance")
        os.kill(zombie.pid, signal.SIGSTOP)
        wait_for(lambda: len(members(log)) == 1, "the session timeout of the first")
        done = committed(log)
        wait_for(lambda: committed(log) > done, "the other's progress")
        os.kill(zombie.pid, signal.SIGCONT)
        wait_for(lambda: len(members(log)) == 2, "the zombie's return")
        feeder.stop()
        wait_for(lambda: caught_up(log), "all of the input")
        stop(zombie)
        stop(other)
        check_results(log, newest_states(tmp_path))


def members(log: Log) -> list[str | None]:
    return [member.instance_id for member in log.admin().describe_group(APPLICATION).members]


def committed(log: Log) -> int:
    return sum(offset.offset for offset in log.admin().group_offsets(APPLICATION).values())


def newest_states(tmp_path: Path) -> list[Path]:
    """Return the directory of each partition's last owner: the one that stands at the changelog's end."""
    found = []
    for partition in range(PARTITIONS):
        candidates = []
        for root in ("state", "other"):
            path = tmp_path / root / APPLICATION / "0" / f"back.{partition}"
            if path.exists():
                state = TaskState(path, application=APPLICATION, task=path.name, specs=(COUNTS, WINDOWED))
                candidates.append((sum(state.checkpoint.inputs.values()), path))
                state.close()
        found.append(max(candidates)[1])
    return found
