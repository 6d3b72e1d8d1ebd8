"""A function that waits for something is named in the log and in the status, and the group does not lose the instance by it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import logflume.streams as lf
from logflume.streams.runtime import Engine
from logflume.streams.runtime.metrics import exposition
from logflume.streams.runtime.run import describe_status
from logflume.streams.runtime.watch import Watch, Watches
from tests.streams.running import embedded, read, running, send_json, until

SESSION_MS = 6_000


def place(engine: Engine) -> str:
    blocked = engine.status().blocked
    return blocked.where if blocked else ""


def lasted_s(engine: Engine) -> float:
    blocked = engine.status().blocked
    return blocked.lasted_s if blocked else 0.0


def test_a_function_that_blocks_is_named_and_heartbeats_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Event()

    def asks_a_slow_service(value: int) -> int:
        assert gate.wait(60)
        return value + 1

    app = lf.App("waiting")
    app.stream("in", int, key=str).map_values(asks_a_slow_service).to("out")
    with embedded(tmp_path / "data") as log:
        log.admin().ensure_topic("in", partitions=1)
        with running(app, log, tmp_path / "state", session_timeout_ms=SESSION_MS, blocked_after_ms=200) as engine:
            send_json(log, "in", [("a", 1, 1000)])
            until(lambda: "asks_a_slow_service" in place(engine), engine)
            blocked = engine.status().blocked
            assert blocked is not None
            line = asks_a_slow_service.__code__.co_firstlineno + 1
            assert blocked.task == "in.0"
            assert f"{Path(__file__).name}:{line}" in blocked.where
            until(lambda: lasted_s(engine) > SESSION_MS / 1000 + 1, engine)
            assert log.admin().describe_group("waiting").state == "Stable"
            assert "asks_a_slow_service" in describe_status(engine.status())
            assert b"logflume_streams_blocked_seconds{" in exposition(engine.status())
            gate.set()
            until(lambda: len(read(log, "out")) == 1, engine)
            until(lambda: engine.status().blocked is None, engine)
            assert engine.status().commit.aborts == 0
    said = [each.getMessage() for each in caplog.records if "asks_a_slow_service" in each.getMessage()]
    assert len(said) == 1
    assert f"{Path(__file__).name}:{line}" in said[0]


def test_one_thread_looks_through_the_watches_of_all_engines_that_share_it() -> None:
    def threads() -> int:
        return sum(each.name == "engine-watch" for each in threading.enumerate())

    before, watches = threads(), Watches()
    made = [Watch(name, blocked_after_ms=10, monotonic_s=time.monotonic) for name in ("a", "b")]
    for _ in range(2):  # the thread ends with the last one, and another begins with the next
        for watch in made:
            watches.add(watch)
            watch.enter("in.0")
        assert threads() == before + 1
        deadline = time.monotonic() + 60
        while any(watch.blocked is None for watch in made) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert all(watch.blocked is not None for watch in made)
        watches.remove(made[0])
        assert threads() == before + 1
        watches.remove(made[1])
        while threads() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert threads() == before
        for watch in made:
            watch.leave()
            watch.look()


def test_a_call_counts_as_long_by_itself_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    watch = Watch("app", blocked_after_ms=2000, monotonic_s=lambda: now_s)
    for _ in range(10):
        watch.enter("in.0")
        now_s += 1.0
        watch.look()
        watch.leave()
        watch.look()
        assert watch.blocked is None
    watch.enter("in.0")
    for _ in range(3):
        now_s += 2.0
        watch.look()
    assert watch.blocked is not None
    assert watch.blocked.lasted_s == 6.0
    assert len(caplog.records) == 1
