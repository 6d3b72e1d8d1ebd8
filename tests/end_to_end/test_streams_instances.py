"""Three instances of a joining, counting application are killed and restarted while it runs: nothing lost, nothing doubled.

Each instance has a name, so that one whose disk is lost is the same member again. What was committed is compared with a
computation in plain Python. LOGFLUME_KILLS=N makes N random kills instead of 6.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from logflume.log import connect
from logflume.log.interfaces import Log
from logflume.log.records import TopicPartition
from tests.end_to_end._command import serving
from tests.end_to_end.joining_app import APPLICATION, WINDOW_MS
from tests.streams.running import read, until, write

KILLS = int(os.environ.get("LOGFLUME_KILLS", "6"))
USERS, PAGES, PARTITIONS = 2000, 7, 4
NAMES = ("a", "b", "c")


class Instance:
    """One process of the application, with a state directory of its own."""

    def __init__(self, address: str, root: Path, name: str) -> None:
        self._address, self._name = address, name
        self.state = root / name
        self._errors = (root / f"{name}.log").open("a")
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.end_to_end.joining_app", self._address, str(self.state), self._name]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._errors, text=True)

    def wait_until_running(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "running\n"

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(timeout=60) == 0


class Feeder(threading.Thread):
    """Writes events until stopped; `sent` of them are in the log."""

    def __init__(self, log: Log) -> None:
        super().__init__(daemon=True)
        self._log = log
        self._stopping = threading.Event()
        self.sent = 0

    def run(self) -> None:
        while not self._stopping.wait(0.02):
            write(self._log, "events", [event(n) for n in range(self.sent, self.sent + 50)])
            self.sent += 50

    def stop(self) -> None:
        self._stopping.set()
        self.join(timeout=60)
        assert not self.is_alive()


def event(n: int) -> tuple[bytes, bytes, int]:
    """Return the nth event: key, value, time in ms."""
    return b"u%d" % (n * 7 % USERS), b'{"n":%d,"page":"p%d"}' % (n, n % PAGES), 1_700_000_000_000 + 10 * n


@pytest.fixture
def instances(tmp_path: Path) -> Iterator[tuple[str, list[Instance]]]:
    with serving(tmp_path / "data", "--workers", "0") as (address, _):
        made = [Instance(address, tmp_path, name) for name in NAMES]
        yield address, made
        for each in made:
            each.kill()


@pytest.mark.slow
def test_three_instances_are_killed_at_random(instances: tuple[str, list[Instance]]) -> None:
    address, group = instances
    rng = random.Random(3)
    with connect(address) as log:
        for topic in ("users", "events"):
            log.admin().ensure_topic(topic, partitions=PARTITIONS)
        write(log, "users", [(b"u%d" % n, b'{"name":"user %d"}' % n, 1_600_000_000_000) for n in range(USERS)])
        feeder = Feeder(log)
        feeder.start()
        for each in group:
            each.start()
        for each in group:
            each.wait_until_running()
        for kill in range(KILLS):
            victim = rng.choice(group)
            victim.kill()
            if kill % 3 == 2:
                shutil.rmtree(victim.state)
            time.sleep(rng.random() * 0.2)
            victim.start()
            victim.wait_until_running()
        group[0].stop()
        done = progress(log)
        until(lambda: progress(log) > done)
        feeder.stop()
        until(lambda: progress(log) == feeder.sent)
        for each in group[1:]:
            each.stop()
        group[0].start()
        write(log, "events", [event(n) for n in range(feeder.sent, feeder.sent + USERS)])
        until(lambda: progress(log) == feeder.sent + USERS)
        until(lambda: caught_up(log))
        check(log, feeder.sent + USERS)


def progress(log: Log) -> int:
    """Return how many events are committed as processed."""
    offsets = log.admin().group_offsets(APPLICATION)
    return sum(offset.offset for partition, offset in offsets.items() if partition.topic == "events")


def caught_up(log: Log) -> bool:
    """Return whether the records of the repartition topic are processed too."""
    partitions = [TopicPartition(f"{APPLICATION}-events-by-page-repartition", p) for p in range(PARTITIONS)]
    ends, done = log.admin().end_offsets(partitions), log.admin().group_offsets(APPLICATION)
    return all(ends[tp] == 0 or (tp in done and done[tp].offset >= ends[tp]) for tp in partitions)


def check(log: Log, count: int) -> None:
    """Compare everything with a computation from the events."""
    events = [event(n) for n in range(count)]
    joined = [msgspec.json.decode(record.value or b"") for record in read(log, "joined")]
    assert sorted(row["n"] for row in joined) == list(range(count)), "each event is joined exactly once"
    assert all(row["name"] == f"user {row['n'] * 7 % USERS}" for row in joined)
    counts = {record.key: msgspec.json.decode(record.value or b"")["count"] for record in read(log, "counts")}
    assert counts == Counter(key for key, _, _ in events)
    pages: Counter[bytes] = Counter()
    for n, (_, _, time_ms) in enumerate(events):
        pages[b"p%d" % (n % PAGES) + (time_ms - time_ms % WINDOW_MS).to_bytes(8, "big")] += 1
    assert {r.key: msgspec.json.decode(r.value or b"")["count"] for r in read(log, "pages")} == pages
