"""A disk without room, for state or the log: it is said with the cause; with room again all goes on as if nothing had been."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import logflume.streams as lf
from logflume.log import connect
from logflume.log.client import sender
from logflume.log.interfaces import Log
from logflume.log.server import start_embedded
from logflume.streams.runtime import Engine
from tests.log._embedded import keep_free, small_disk
from tests.streams._instance_process import passing_on
from tests.streams.running import embedded, read, running, until, write

KEYS = [f"{n:06}".encode() + b"x" * 1000 for n in range(2000)]
ROOM_BYTES = 256 << 10
LIMITED = f"""
import resource, sys
from tests.streams._instance_process import main
resource.setrlimit(resource.RLIMIT_FSIZE, ({ROOM_BYTES}, resource.RLIM_INFINITY))
main(*sys.argv[1:])
"""
"""The limit is on what one file may hold: the state's write-ahead log, for one."""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with embedded(tmp_path / "data") as opened:
        opened.admin().ensure_topic("in", partitions=2)
        yield opened


RESTARTED = f"""
import resource, sys
from pathlib import Path
from logflume.log import connect
from logflume.streams.runtime import EngineOptions, run_app
from tests.streams._instance_process import passing_on

def make_room(error):
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print("made room", flush=True)
    return "restart"

with connect(sys.argv[1]) as log:
    resource.setrlimit(resource.RLIMIT_FSIZE, ({ROOM_BYTES}, resource.RLIM_INFINITY))
    options = EngineOptions(state_dir=Path(sys.argv[2]), commit_interval_ms=20, on_uncaught=make_room)
    until = lambda status: status.records_in >= {len(KEYS)} and status.lag_records == 0
    run_app(passing_on().plan(), log, options, until=until)
"""


def run_without_room(tmp_path: Path, program: str = LIMITED) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, str(tmp_path / "data"), str(tmp_path / "state")]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def send(log: Log) -> None:
    write(log, "in", [(key, b"v", n) for n, key in enumerate(KEYS)])


def counts(log: Log) -> Counter[int]:
    return Counter(msgspec.json.decode(record.value or b"")["count"] for record in read(log, "out"))


def test_an_application_without_room_ends_with_the_cause_and_loses_nothing(log: Log, tmp_path: Path) -> None:
    send(log)
    ended = run_without_room(tmp_path)
    assert ended.returncode == 1
    assert "cannot write state to" in ended.stderr
    assert "free space" in ended.stderr
    with running(passing_on(), log, tmp_path / "state") as engine:
        finish(log, engine, len(KEYS))
        send(log)
        finish(log, engine, 2 * len(KEYS))
    assert counts(log) == {1: len(KEYS), 2: len(KEYS)}


def finish(log: Log, engine: Engine, wanted: int) -> None:
    until(lambda: counts(log).total() >= wanted, engine)


def test_state_that_has_no_room_to_be_restored_is_said_and_restored_later(log: Log, tmp_path: Path) -> None:
    send(log)
    with running(passing_on(), log, tmp_path / "elsewhere") as engine:
        finish(log, engine, len(KEYS))
    ended = run_without_room(tmp_path)
    assert ended.returncode == 1
    assert "cannot write state to" in ended.stderr
    with running(passing_on(), log, tmp_path / "state") as engine:
        send(log)
        finish(log, engine, 2 * len(KEYS))
    assert counts(log) == {1: len(KEYS), 2: len(KEYS)}


def test_an_application_that_may_begin_again_does_so_when_there_is_room(log: Log, tmp_path: Path) -> None:
    send(log)
    ended = run_without_room(tmp_path, RESTARTED)
    assert ended.returncode == 0, ended.stderr
    assert "made room" in ended.stdout
    assert counts(log) == {1: len(KEYS)}


def counting_once(began: threading.Event, filled: threading.Event) -> lf.App:
    """Count per key, but no record before the disk is full, so that it is full when the results are to be written."""
    app = lf.App("waits")

    def hold(value: str) -> str:
        began.set()
        assert filled.wait(60)
        return value

    app.stream("in", str, key=str).map_values(hold).group_by_key().count(name="counts").to("out", partitions=1)
    return app


def send_new(log: Log, records: int) -> None:
    """Send records of now: a disk without room has retention run at once."""
    write(log, "in", [(b"a", b"v", int(time.time() * 1000))] * records)


def fill_up(path: Path) -> None:
    with path.open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(bytes(1 << 16))


def test_a_log_that_takes_no_records_for_a_while_is_waited_for_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "SAY_AFTER_S", 0.2)
    began, filled = threading.Event(), threading.Event()
    with start_embedded(str(tmp_path / "data")) as broker, connect(str(tmp_path / "data")) as log:
        log.admin().ensure_topic("in")
        with running(counting_once(began, filled), log, tmp_path / "state") as engine:
            send_new(log, 3)
            until(began.is_set, engine)
            keep_free(broker, 2**62)
            until(lambda: "records are refused" in caplog.text, engine)
            filled.set()
            until(lambda: caplog.text.count("takes no records") == 2, engine)  # the output and the changelog
            assert "the disk is almost full" in caplog.text
            assert counts(log) == {}
            keep_free(broker, -1)
            finish(log, engine, 1)
            assert engine.status().commit.aborts == 0
            send_new(log, 1)
            finish(log, engine, 2)
        assert counts(log) == {3: 1, 4: 1}


def test_a_log_whose_disk_was_full_for_longer_than_records_are_tried_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction is given up with the cause; offsets and markers that found no room either are written later."""
    monkeypatch.setattr(sender, "DELIVERY_TIMEOUT_S", 0.5)
    began, filled = threading.Event(), threading.Event()
    configs = {"logflume.disk.min.free.bytes": "0", "log.segment.bytes": str(1 << 20)}
    with contextlib.ExitStack() as opened:
        disk = opened.enter_context(small_disk(tmp_path / "small"))
        opened.enter_context(start_embedded(str(disk / "data"), configs=configs))
        log = opened.enter_context(connect(str(disk / "data")))
        log.admin().ensure_topic("in")
        engine = opened.enter_context(running(counting_once(began, filled), log, tmp_path / "state"))
        send_new(log, 3)
        until(began.is_set, engine)
        fill_up(disk / "ballast")
        filled.set()
        until(lambda: engine.status().commit.aborts > 0, engine)
        assert counts(log) == {}
        (disk / "ballast").unlink()
        finish(log, engine, 1)
        send_new(log, 1)
        finish(log, engine, 2)
        assert counts(log) == {3: 1, 4: 1}
    assert "the last answer: KAFKA_STORAGE_ERROR" in caplog.text
    assert "no space left on the device" in caplog.text
