"""Queries on Spark as a driver keeps them: of two drivers one has a query, and what ends slowly is not taken apart meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import logflume as lf
from logflume.log import Log, connect
from logflume.sql.on_spark import SparkQueries, driver_status
from logflume.sql.running import PAUSE_MAX_S, Left, RunningQueries, Wanted, application_id
from logflume.streams import plan
from logflume.streams.runtime import EngineOptions, EngineState, EngineStatus
from logflume.streams.seams import Plan
from logflume.streams.spark import RunsElsewhere
from tests.streams.running import until

SERVICE = "service"


class Driver:
    """The queries of a driver whose clock stands until it is set."""

    def __init__(self, log: Log, folder: Path, run: Callable[[threading.Event], None]) -> None:
        self.now_s, self.starts = 0.0, 0

        def counted(_: object, __: object, stopping: threading.Event, *___: object) -> None:
            self.starts += 1
            run(stopping)

        options = EngineOptions(state_dir=folder)
        made = SparkQueries(log.admin(), counted, folder)
        self.running = RunningQueries(log, options, made, monotonic_s=lambda: self.now_s)

    def keep(self, *query_ids: str) -> None:
        self.now_s += PAUSE_MAX_S + 1
        self.running.keep({q: Wanted(application_id(SERVICE, q), partial(plan_of, q), Any) for q in query_ids})

    def has_ended(self, query_id: str) -> bool:
        engine = self.running.engine(query_id)
        return engine is not None and engine.has_ended


def plan_of(query_id: str) -> Plan:
    app = lf.App(application_id(SERVICE, query_id))
    app.stream("flights").to("copies")
    return plan(app.topology())


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with connect(tmp_path / "log") as opened:
        opened.admin().create_topic("flights", partitions=1)
        yield opened


def test_a_driver_that_gave_way_does_not_take_a_query_back_from_one_that_lives(log: Log, tmp_path: Path) -> None:
    def gives_way(_: threading.Event) -> None:
        raise RunsElsewhere("another driver has started")

    driver = Driver(log, tmp_path / "driver", gives_way)
    with log.consumer(group_id=application_id(SERVICE, "Q")) as other:
        other.subscribe(["flights"])
        until(lambda: other.poll(timeout_s=0.01) is not None and bool(other.assignment()))
        driver.keep("Q")
        until(lambda: driver.has_ended("Q"))
        for _ in range(3):
            driver.keep("Q")
            status = driver.running.status()["Q"]
            assert (driver.starts, status.state, status.error) == (1, EngineState.FAILED, "another driver has started")
    driver.keep("Q")
    assert driver.starts == 2, "nobody else has it any more"


def test_an_error_without_a_text_is_one(log: Log, tmp_path: Path) -> None:
    def fails(_: threading.Event) -> None:
        raise RuntimeError

    driver = Driver(log, tmp_path / "driver", fails)
    driver.keep("Q")
    until(lambda: driver.has_ended("Q"))
    status = driver.running.status()["Q"]
    assert (status.state, status.error) == (EngineState.FAILED, "RuntimeError")


def test_of_two_drivers_the_one_that_has_a_query_is_believed(log: Log) -> None:
    failed = EngineStatus("Q", EngineState.FAILED, "", error="another driver has started")
    running = EngineStatus("Q", EngineState.RUNNING, "spark", records_in=5)
    for told in ([failed, running], [running, failed], [running]):
        assert driver_status(log.admin(), "Q", told).records_in == 5
    assert driver_status(log.admin(), "Q", [failed]).error == failed.error


def test_what_a_query_needs_is_there_until_its_micro_batch_has_ended(log: Log, tmp_path: Path) -> None:
    has_ended, told = threading.Event(), threading.Semaphore(0)

    def runs_long(stopping: threading.Event) -> None:
        stopping.wait()
        told.release()
        has_ended.wait()

    driver = Driver(log, tmp_path / "driver", runs_long)
    topic, state = f"{application_id(SERVICE, 'P')}-store-changelog", tmp_path / "driver" / application_id(SERVICE, "P")
    left = Left("P", application_id(SERVICE, "P"), lambda: frozenset({topic}))
    log.admin().create_topic(topic, partitions=1)
    state.mkdir(parents=True)
    driver.keep("P", "Q")
    driver.running.stop(["P", "Q"], timeout_s=0.0)
    assert told.acquire(timeout=60)
    assert told.acquire(timeout=60), "all are told, not one after the other has ended"
    driver.keep("P", "Q")
    assert driver.starts == 2, "what ends is not started beside itself"
    assert driver.running.forget([left]) == [left]
    assert log.admin().find_topics([topic])
    assert state.exists()
    has_ended.set()
    until(lambda: not driver.running.forget([left]))
    assert not log.admin().find_topics([topic])
    assert not state.exists()
