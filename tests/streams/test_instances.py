"""Who an instance is: the same member after SIGKILL, also without its disk; and what two of one name do."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from logflume.log import connect
from logflume.log.interfaces import Log
from logflume.streams.runtime import StreamsError
from tests.log._server_process import ServerProcess
from tests.streams._instance_process import passing_on
from tests.streams.running import read, running, until, write

TEN_MINUTES_MS = 600_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    started = ServerProcess(str(tmp_path / "data"))
    yield started
    started.stop()


@pytest.fixture
def log(server: ServerProcess) -> Iterator[Log]:
    with connect(server.address) as opened:
        opened.admin().ensure_topic("in", partitions=2)
        yield opened


def send(log: Log, count: int) -> None:
    write(log, "in", [(b"k%d" % n, b"x", 1000) for n in range(count)])


def test_an_instance_that_was_killed_and_lost_its_disk_goes_on_at_once(server: ServerProcess, log: Log, tmp_path: Path) -> None:
    """Its session would last ten minutes: only the same member gets its partitions back before."""
    state = tmp_path / "state"
    for round in range(1, 4):
        process = subprocess.Popen([sys.executable, "-m", "tests.streams._instance_process", server.address, str(state)])
        try:
            send(log, 10)
            until(lambda wanted=10 * round: len(read(log, "out")) == wanted)
        finally:
            process.kill()
            process.wait()
        shutil.rmtree(state)


def test_a_name_that_is_taken_twice_stops_the_first_with_the_cause(log: Log, tmp_path: Path) -> None:
    settings = {"instance_id": "one", "session_timeout_ms": TEN_MINUTES_MS}
    with running(passing_on(), log, tmp_path / "a", **settings) as first:
        send(log, 10)
        until(lambda: len(read(log, "out")) == 10, first)
        with running(passing_on(), log, tmp_path / "b", **settings) as second:
            with pytest.raises(StreamsError, match=r"'one'.*taken by another process"):
                first.wait(timeout_s=60)
            send(log, 10)
            until(lambda: len(read(log, "out")) == 20, second)


def test_a_copied_state_directory_makes_another_instance_of_itself(log: Log, tmp_path: Path) -> None:
    with running(passing_on(), log, tmp_path / "a") as engine:
        send(log, 10)
        until(lambda: len(read(log, "out")) == 10, engine)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with running(passing_on(), log, tmp_path / "a") as first, running(passing_on(), log, tmp_path / "b") as second:
        until(lambda: len(first.status().tasks) == 1 == len(second.status().tasks), first, second)
        assert first.status().instance_id != second.status().instance_id
        send(log, 10)
        until(lambda: len(read(log, "out")) == 20, first, second)
