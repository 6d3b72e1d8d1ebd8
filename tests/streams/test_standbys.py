"""Standbys: copies of state that follow their changelogs, and take over without restoring from nothing."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import logflume.streams as lf
from logflume.log import InvalidInput, connect
from logflume.log.interfaces import Log
from logflume.streams.runtime import Engine, EngineOptions
from tests.log._server_process import ServerProcess
from tests.streams.running import read, running, until, write

KEYS = 1_500
STANDBY = {"num_standby_replicas": 1, "acceptable_recovery_lag": 100}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    started = ServerProcess(str(tmp_path / "data"))
    yield started
    started.stop()


@pytest.fixture
def log(server: ServerProcess) -> Iterator[Log]:
    with connect(server.address) as opened:
        opened.admin().ensure_topic("in", partitions=2)
        opened.admin().ensure_topic("users", partitions=2, configs={"cleanup.policy": "compact"})
        yield opened


class Order(msgspec.Struct):
    user: str


class User(msgspec.Struct):
    name: str


def counting() -> lf.App:
    """A store with a changelog of its own."""
    app = lf.App("counting")
    app.stream("in", Order, key=str).group_by_key().aggregate(n=lf.count(), name="counts").to("out")
    return app


def joining() -> lf.App:
    """A table whose changelog is the topic that it is read from."""
    app = lf.App("joining")
    users = app.table("users", User, key=str)
    app.stream("in", Order, key=str).join(users).to("out")
    return app


def feed(log: Log, keys: range) -> None:
    write(log, "in", [(b"k%d" % n, b'{"user": "u"}', 1000) for n in keys])


def copies(engine: Engine) -> dict[str, int | None]:
    return {each.name: each.lag_records for each in engine.status().standbys}


def tasks(engine: Engine) -> set[str]:
    return {task.name for task in engine.status().tasks if not task.is_restoring}


def restored(caplog: pytest.LogCaptureFixture) -> dict[str, int]:
    """Return what was logged of restored stores: task and store -> records."""
    found: dict[str, int] = {}
    for record in caplog.records:
        if record.msg == "task %s: store %s is restored (%d records)":
            task, store, count = record.args  # type: ignore[misc]
            found[f"{task}/{store}"] = int(str(count))
    return found


@pytest.mark.parametrize("make", [counting, joining])
def test_who_stands_by_goes_on_when_an_instance_is_killed(
    server: ServerProcess, log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[], lf.App]
) -> None:
    caplog.set_level(logging.INFO, logger="logflume.streams")
    write(log, "users", [(b"k%d" % n, b'{"name": "n"}', 500) for n in range(KEYS)])
    arguments = [server.address, str(tmp_path / "first"), make.__name__]
    process = subprocess.Popen([sys.executable, "-m", "tests.streams._standby_process", *arguments])
    try:
        feed(log, range(KEYS))
        until(lambda: len(read(log, "out")) == KEYS)
        with running(make(), log, tmp_path / "second", instance_id="second", **STANDBY) as second:
            until(lambda: len(tasks(second)) == 1 and list(copies(second).values()) == [0], second)
            caplog.clear()
            process.kill()
            process.wait()
            log.admin().remove_group_members(make.__name__, ["first"])
            until(lambda: len(tasks(second)) == 2, second)
            assert sum(restored(caplog).values()) < KEYS // 10, "the copy was used"
            assert copies(second) == {}, "nobody else is there"
            feed(log, range(KEYS))
            until(lambda: len(read(log, "out")) == 2 * KEYS, second)
    finally:
        process.kill()
        process.wait()
    if make is counting:
        counts = [msgspec.json.decode(each.value or b"")["n"] for each in read(log, "out")]
        assert Counter(counts) == {1: KEYS, 2: KEYS}


def test_copies_follow_while_the_tasks_run_elsewhere(log: Log, tmp_path: Path) -> None:
    with (
        running(counting(), log, tmp_path / "a", instance_id="a", **STANDBY) as first,
        running(counting(), log, tmp_path / "b", instance_id="b", **STANDBY) as second,
    ):
        until(lambda: len(tasks(first)) == 1 == len(tasks(second)), first, second)
        until(lambda: set(copies(first)) == tasks(second) and set(copies(second)) == tasks(first), first, second)
        feed(log, range(100))
        until(lambda: len(read(log, "out")) == 100, first, second)
        until(lambda: {*copies(first).values(), *copies(second).values()} == {0}, first, second)
        everything = tasks(first) | tasks(second)
        second.stop()
        until(lambda: tasks(first) == everything, first)
        assert copies(first) == {}
        feed(log, range(100))
        until(lambda: len(read(log, "out")) == 200, first)


def test_large_state_moves_to_a_new_instance_only_when_it_is_there(
    log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="logflume.streams")
    settings = {"acceptable_recovery_lag": 100}
    with running(counting(), log, tmp_path / "a", instance_id="a", **settings) as first:
        feed(log, range(KEYS))
        until(lambda: len(read(log, "out")) == KEYS, first)
        caplog.clear()
        with running(counting(), log, tmp_path / "b", instance_id="b", **settings) as second:
            until(lambda: len(tasks(second)) == 1 == len(tasks(first)), first, second)
            assert sum(restored(caplog).values()) <= 100, "it was copied before it moved"
            feed(log, range(KEYS))
            until(lambda: len(read(log, "out")) == 2 * KEYS, first, second)


@pytest.mark.parametrize(
    ("name", "value"), [("num_standby_replicas", -1), ("acceptable_recovery_lag", -1), ("max_warmup_replicas", 0)]
)
def test_settings_that_make_no_sense_are_refused(name: str, value: int) -> None:
    with pytest.raises(InvalidInput, match=f"{name} must be .* or more, not {value}"):
        EngineOptions(**{name: value})  # type: ignore[arg-type]
