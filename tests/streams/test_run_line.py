"""What `run_app` says at its end: how many records were left out, for which reasons, and what to do about it."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import logflume as lf
from logflume.log import connect
from logflume.streams.runtime import EngineOptions, EngineStatus, run_app


def test_the_last_line_says_what_was_left_out_and_why(tmp_path: Path) -> None:
    app = lf.App("visits", log=tmp_path / "data")  # a path, as `connect` takes it
    app.stream("clicks").group_by_key().window(lf.tumbling(minutes=1, grace=lf.minutes(0))).count().to("per-minute")
    out = io.StringIO()
    with connect(tmp_path / "data") as log:
        log.admin().ensure_topic("clicks")
        producer = log.producer()
        for key, time_ms in ((b"a", 60_000), (b"a", 600_000), (b"a", 1000), (b"a", 2000), (None, 600_001)):
            producer.send("clicks", b"{}", key=key, timestamp_ms=time_ms).result(30)
        options = EngineOptions(state_dir=tmp_path / "state")
        run_app(app.plan(), log, options, out=out, until=lambda status: status.records_in == 5)
    *before, last, late, null_key = out.getvalue().splitlines()
    assert before[0].startswith("visits "), "it says at once that it runs, to a file too"
    assert "5 in" in last
    assert last.endswith("left out: 2 late, 1 null_key")
    assert late.startswith("  2 late at clicks-1m-count, topic clicks: its windows are closed: give them a longer grace")
    assert "; the first: clicks-0 offset 2: " in late
    assert null_key.startswith("  1 null_key at clicks-1m-count, topic clicks: ")


def test_an_application_whose_until_fails_has_stopped(tmp_path: Path) -> None:
    def fails(status: EngineStatus) -> bool:
        raise ZeroDivisionError(status.application)

    with connect(tmp_path / "data") as log:
        log.admin().ensure_topic("in")
        app = lf.App("failing", log=log, state_dir=tmp_path / "state")
        app.stream("in").to("out")
        before = set(threading.enumerate())
        with pytest.raises(ZeroDivisionError, match="failing"):
            app.run(until=fails)
        assert not [thread.name for thread in threading.enumerate() if thread not in before and "failing" in thread.name]
        assert not log.admin().describe_group("failing").members


def test_a_thread_that_runs_an_application_is_ended_by_who_started_it(tmp_path: Path) -> None:
    stopping = threading.Event()
    with connect(tmp_path / "data") as log:
        log.admin().ensure_topic("in")
        log.producer().send("in", b"x", key=b"a").result(30)
        app = lf.App("threaded", log=log, state_dir=tmp_path / "state")
        app.stream("in").to("out")
        with ThreadPoolExecutor(1) as pool:
            run = pool.submit(app.run, until=lambda status: stopping.is_set() and status.records_in == 1)
            with pytest.raises(TimeoutError):
                run.result(1)
            stopping.set()
            assert run.result(60).records_in == 1
            again = pool.submit(app.run, until=lambda status: status.lag_records == 0)
            assert again.result(60).records_in == 0, "it goes on where the first run ended"
