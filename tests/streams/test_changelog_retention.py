"""A broker deletes by its clock, and the stream time of replayed history is years behind it: no state that is alive may go."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import logflume.streams as lf
from logflume.log import connect
from logflume.log.interfaces import Log
from logflume.log.records import TopicPartition
from logflume.streams import col
from tests.log._server_process import ServerProcess
from tests.streams.running import read, running, until, write

DAY_MS = 86_400_000
OLD_MS = 1_600_000_000_000 // DAY_MS * DAY_MS
WORDS = 20


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """A log on a broker that applies retention all the time."""
    server = ServerProcess(str(tmp_path / "data"), ["log.retention.check.interval.ms=50"])
    with connect(server.address) as opened:
        opened.admin().ensure_topic("words", partitions=1, configs={"retention.ms": "-1"})
        yield opened
    server.stop()


def counting(retention_days: int = 0) -> lf.App:
    app = lf.App("counting")
    window = lf.tumbling(days=1, retention=lf.days(retention_days))
    app.stream("words", str).group_by(col.value).window(window).count(name="per_day").to("counts")
    return app


def send(log: Log, count: int, *, day: int) -> None:
    write(log, "words", [(None, b"w%d" % (n % WORDS), OLD_MS + day * DAY_MS + n) for n in range(count)])


def latest(log: Log) -> dict[tuple[bytes, int], int]:
    """Return (word, day) -> count, as put out last."""
    rows = [(record.key or b"", msgspec.json.decode(record.value or b"")["count"]) for record in read(log, "counts")]
    return {(key[:-8], (int.from_bytes(key[-8:], "big") - OLD_MS) // DAY_MS): n for key, n in rows}


def wait_for_retention(log: Log) -> None:
    """Wait until the broker has applied retention to everything, as a topic shows that must lose a segment by it."""
    admin, marker = log.admin(), TopicPartition("marker", 0)
    for _ in range(2):
        if "marker" in admin.list_topics():
            admin.delete_topic("marker")
        admin.ensure_topic("marker", configs={"retention.ms": "1000", "segment.bytes": "1000"})
        for _ in range(3):
            write(log, "marker", [(None, bytes(700), OLD_MS)])
        until(lambda: admin.start_offsets([marker])[marker] > 0)


def test_windows_of_last_year_that_are_still_open_survive_the_loss_of_the_disk(log: Log, tmp_path: Path) -> None:
    for round in range(1, 4):
        send(log, 200, day=0)
        with running(counting(), log, tmp_path / "state") as engine:
            until(lambda wanted=200 * round: sum(latest(log).values()) == wanted, engine)
        wait_for_retention(log)
        shutil.rmtree(tmp_path / "state")
    assert latest(log) == {(b"w%d" % n, 0): 30 for n in range(WORDS)}


def test_the_changelog_of_windows_that_have_expired_is_deleted_also_after_restarts(log: Log, tmp_path: Path) -> None:
    admin, changelog = log.admin(), TopicPartition("counting-per_day-changelog", 0)
    expected: Counter[tuple[bytes, int]] = Counter()
    start = 0
    for day in range(0, 40, 4):
        send(log, 100, day=day)
        expected.update((b"w%d" % (n % WORDS), day) for n in range(100))
        with running(counting(2), log, tmp_path / "state", purge_interval_ms=10) as engine:
            until(lambda: latest(log) == expected, engine)
            if day >= 12:
                until(lambda before=start: admin.start_offsets([changelog])[changelog] > before, engine)
                start = admin.start_offsets([changelog])[changelog]
        if day % 8 == 0:
            shutil.rmtree(tmp_path / "state")
    assert latest(log) == expected
    assert admin.end_offsets([changelog])[changelog] - start < 6 * (WORDS + 10), "only the last few days are kept"
