"""A disk without room for state: the application ends with the cause; with room again it goes on as if nothing had been."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from logflume.log.interfaces import Log
from logflume.streams.runtime import Engine
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
