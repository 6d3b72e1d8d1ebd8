"""CREATE OR REPLACE of a query whose history was computed beside it: any change of its meaning, and both ids meanwhile."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from logflume.log import InvalidInput, Log
from logflume.sql import Rows, SqlEngine, StatementError
from logflume.streams.spark import LocalRunner, plan_backfill, run_backfill
from tests.streams.running import until

SETUP = """
CREATE STREAM s (k STRING KEY, n INT) WITH (KAFKA_TOPIC='s', PARTITIONS=2, VALUE_FORMAT='JSON');
CREATE TABLE sums AS SELECT k, SUM(n) AS total FROM s GROUP BY k;
"""
REPLACED = "CREATE OR REPLACE TABLE sums AS SELECT k, SUM(n * 10) AS total FROM s WHERE n > 1 GROUP BY k;"


@pytest.fixture
def engine(log: Log, tmp_path: Path) -> Iterator[SqlEngine]:
    with SqlEngine(log, tmp_path / "sql") as opened:
        run(opened, SETUP)
        insert(opened, 1, 9)
        until(lambda: rows(opened) == expected(1, 9))
        yield opened


def run(engine: SqlEngine, text: str) -> list[Any]:
    return list(engine.execute(text))


def insert(engine: SqlEngine, first: int, stop: int) -> None:
    run(engine, "".join(f"INSERT INTO s VALUES ('k{n % 3}', {n});" for n in range(first, stop)))


def rows(engine: SqlEngine, table: str = "sums") -> dict[str, int]:
    (result,) = run(engine, f"SELECT k, total FROM {table};")
    assert isinstance(result, Rows)
    return dict(result.rows)


def expected(first: int, stop: int, *, times: int = 1) -> dict[str, int]:
    found: dict[str, int] = {}
    for n in range(first, stop):
        found[f"k{n % 3}"] = found.get(f"k{n % 3}", 0) + n * times
    return found


def test_a_query_of_another_meaning_takes_the_place_of_one_that_runs(engine: SqlEngine, log: Log) -> None:
    with pytest.raises(StatementError, match="may not change"):
        run(engine, REPLACED.replace(" WHERE n > 1", ""))
    (before,) = engine.catalog.queries
    prepared = engine.prepare(REPLACED)
    assert prepared.replaces == before
    old = engine.application_of(before)
    planned = plan_backfill(prepared.compile, log.where, replaces=old)

    def stop() -> None:
        assert rows(engine) == expected(1, 9)
        insert(engine, 9, 12)
        until(lambda: rows(engine) == expected(1, 12))
        run(engine, f"PAUSE `{before}`;")

    run_backfill(planned, LocalRunner(), on_stopping=stop)
    engine.start(prepared)
    until(lambda: rows(engine) == expected(2, 12, times=10))
    insert(engine, 12, 15)
    until(lambda: rows(engine) == expected(2, 15, times=10))
    assert list(engine.catalog.queries) == [prepared.command.query_id] != [before]
    until(lambda: old not in log.admin().list_groups())
    assert not [topic for topic in log.admin().list_topics(include_internal=True) if topic.startswith(f"{old}-")]


def test_the_old_query_goes_on_if_it_is_not_replaced_after_all(engine: SqlEngine, log: Log) -> None:
    (before,) = engine.catalog.queries
    prepared = engine.prepare(REPLACED)
    planned = plan_backfill(prepared.compile, log.where, replaces=engine.application_of(before))

    def fail(reached: str) -> None:
        if reached == "after-rest":
            raise InvalidInput("stopped here")

    with pytest.raises(InvalidInput, match="stopped here"):
        run_backfill(planned, LocalRunner(), on_stopping=lambda: run(engine, f"PAUSE `{before}`;") and None, failpoint=fail)
    run(engine, f"RESUME `{before}`;")
    insert(engine, 9, 12)
    until(lambda: rows(engine) == expected(1, 12))


KILLED = """
import os, signal, sys
from logflume.cli import main
from logflume.sql import SqlEngine
from logflume.streams.spark import handover

def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

at = sys.argv.pop(1)
if at == "before the command":
    SqlEngine.start = kill
else:
    handover.Switch.__init__ = kill
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "says"), [("before the command", "handed over by a run that ended then"), ("before the switch", "installed")]
)
def test_a_command_killed_around_the_switch_is_given_again(engine: SqlEngine, log: Log, at: str, says: str) -> None:
    (before,) = engine.catalog.queries
    command = ["backfill", "-e", REPLACED, "--engine", "local", "--data", log.where]
    with following(engine):
        killed = subprocess.run([sys.executable, "-c", KILLED, at, *command], capture_output=True, text=True, timeout=240)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert list(engine.catalog.queries) == [before]
        done = subprocess.run([sys.executable, "-m", "logflume", *command], capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        assert says in done.stdout
    until(lambda: rows(engine) == expected(2, 9, times=10))
    insert(engine, 9, 12)
    until(lambda: rows(engine) == expected(2, 12, times=10))
    assert before not in engine.catalog.queries


@pytest.mark.slow
def test_a_command_killed_between_the_hand_over_and_its_record_is_given_again(engine: SqlEngine, log: Log) -> None:
    made = "CREATE TABLE fresh AS SELECT k, SUM(n) AS total FROM s GROUP BY k;"
    command = ["backfill", "-e", made, "--engine", "local", "--data", log.where]
    with following(engine):
        killed = subprocess.run([sys.executable, "-c", KILLED, "before the command", *command], capture_output=True, timeout=240)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert "FRESH" not in engine.catalog.sources
        done = subprocess.run([sys.executable, "-m", "logflume", *command], capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        assert "its history was handed over by a run that ended then; Table FRESH created" in done.stdout
    until(lambda: rows(engine, "fresh") == expected(1, 9))


@contextmanager
def following(engine: SqlEngine) -> Iterator[None]:
    """Read the commands of others for an engine, as a server does."""
    ends = threading.Event()

    def follow() -> None:
        while not ends.wait(0.05):
            engine.following.catch_up()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def test_readers_must_be_able_to_follow(engine: SqlEngine) -> None:
    with pytest.raises(StatementError, match="Cannot upgrade data source"):
        engine.prepare("CREATE OR REPLACE TABLE sums AS SELECT k, COUNT(*) AS other FROM s GROUP BY k;")
