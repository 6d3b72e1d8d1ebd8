"""An application that takes the place of a running one, computed beside it: tables, streams, kills, and what is refused."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from logflume.log import InvalidInput, Log, LogflumeError
from logflume.streams.runtime import Engine, EngineOptions
from logflume.streams.seams import Plan
from logflume.streams.spark import BackfillPlan, LocalRunner, Progress, abort_backfill, plan_backfill, run_backfill
from logflume.streams.spark.ranges import reachable

from ._replace_apps import expected, maker, sell, table
from ._spark_apps import WAIT_S, Once
from .running import embedded, read, until

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = 2
STEPS = ["after-changelogs", "after-stop", "after-rest", "after-write"]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with embedded(tmp_path / "data") as opened:
        opened.admin().create_topic("sales", partitions=PARTITIONS)
        yield opened


class Running:
    """An application that runs until it is stopped."""

    def __init__(self, log: Log, load_plan: Callable[[], Plan], state_dir: Path) -> None:
        self.log, self.plan = log, load_plan()
        self.engine = Engine(self.plan, log, EngineOptions(state_dir=state_dir, commit_interval_ms=20))
        self.engine.start()

    def wait_until_done(self) -> None:
        """Wait until it has committed the end of the sales."""

        def is_done() -> bool:
            committed = self.log.admin().group_offsets(self.plan.application)
            ends = self.log.admin().end_offsets(committed, read_committed=True)
            return len(committed) == PARTITIONS and all(at.offset >= ends[tp] for tp, at in committed.items())

        until(is_done, self.engine)

    def stop(self) -> None:
        self.engine.stop()


def replace_old(log: Log, old: Running, *, failpoint: Callable[[str], None] = lambda _: None, kind: str = "table") -> None:
    """Replace an application that goes on until it is computed beside it, and reads more meanwhile."""
    planned = plan_backfill(maker("new", kind, 5), log.where, replaces="old")

    def stopping() -> None:
        sell(log, 40, 60)
        old.wait_until_done()
        old.stop()

    run_backfill(planned, LocalRunner(), on_stopping=stopping, failpoint=failpoint)


def test_a_table_is_switched_in_one_step_and_goes_on(log: Log, tmp_path: Path) -> None:
    sell(log, 0, 40)
    old = Running(log, maker("old"), tmp_path / "old")
    old.wait_until_done()
    seen: list[bool] = []
    replace_old(log, old, failpoint=lambda at: seen.append(b"e" in table(log)) if at != "after-commit" else None)
    assert all(seen), "until the last step readers have what the old one wrote"
    assert table(log) == expected(60), "rows of keys that the new one does not have are gone"
    with pytest.raises(InvalidInput, match="application 'old' is replaced by 'new', which goes on where this one stopped"):
        Running(log, maker("old"), tmp_path / "old")
    new = Running(log, maker("new", "table", 5), tmp_path / "new")
    sell(log, 60, 100)
    new.wait_until_done()
    new.stop()
    assert table(log) == expected(100)


def test_a_stream_keeps_what_was_written_and_each_record_is_there_once(log: Log, tmp_path: Path) -> None:
    sell(log, 0, 40)
    old = Running(log, maker("old", "stream"), tmp_path / "old")
    old.wait_until_done()
    replace_old(log, old, kind="stream")
    new = Running(log, maker("new", "stream", 5), tmp_path / "new")
    sell(log, 60, 100)
    new.wait_until_done()
    new.stop()
    results = [(record.timestamp_ms - 1000, msgspec.json.decode(record.value or b"")["n"]) for record in read(log, "result")]
    assert sorted((at, n >= 100) for at, n in results) == [(i, i >= 60) for i in range(100) if i < 60 or i % 5 < 4]


@pytest.mark.parametrize("step", STEPS)
def test_a_replacement_that_is_aborted_gives_the_old_one_back(log: Log, step: str, tmp_path: Path) -> None:
    sell(log, 0, 40)
    old = Running(log, maker("old"), tmp_path / "old")
    old.wait_until_done()
    before = log.admin().list_topics(include_internal=True)
    with pytest.raises(LogflumeError):
        replace_old(log, old, failpoint=Once(step, lambda: abort_backfill(maker("new", "table", 5), log.where)))
    old.stop()
    assert set(log.admin().list_topics(include_internal=True)) - set(before) <= {"__transaction_state"}
    again = Running(log, maker("old"), tmp_path / "old")
    sell(log, 60 if step in STEPS[1:] else 40, 100)
    again.wait_until_done()
    again.stop()
    assert table(log)[b"e"] == {"count": 20, "total": 20}
    assert table(log)[b"a"] == {"count": 20, "total": 200}


def test_a_driver_killed_while_the_old_one_is_stopped_is_followed_by_another(log: Log, tmp_path: Path) -> None:
    sell(log, 0, 40)
    old = Running(log, maker("old"), tmp_path / "old")
    old.wait_until_done()
    old.stop()
    command = [sys.executable, "-m", "tests.streams._replace_process", reachable(log), "after-rest"]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with pytest.raises(InvalidInput, match="application 'old' is being replaced by 'new'"):
        Running(log, maker("old"), tmp_path / "old")
    assert b"e" in table(log)
    assert plan_backfill(maker("new", "table", 5), log.where, replaces="old").replaces == "old", "the next run takes it over"
    sell(log, 40, 50)
    abort_backfill(maker("new", "table", 5), log.where)
    old = Running(log, maker("old"), tmp_path / "old")
    old.wait_until_done()
    old.stop()
    assert table(log)[b"e"] == {"count": 10, "total": 10}
    run_backfill(plan_backfill(maker("new", "table", 5), log.where, replaces="old"), LocalRunner())
    assert table(log) == expected(50)


def test_it_waits_until_the_old_one_is_stopped(log: Log, tmp_path: Path) -> None:
    sell(log, 0, 20)
    old = Running(log, maker("old"), tmp_path / "old")
    old.wait_until_done()
    stopping: list[threading.Thread] = []

    def on_progress(at: Progress) -> None:
        if "stop old" in at.step and not stopping:
            assert at.done == 1
            stopping.append(threading.Thread(target=old.stop))
            stopping[0].start()

    planned = plan_backfill(maker("new", "table", 5), log.where, replaces="old")
    run_backfill(planned, LocalRunner(), on_progress=on_progress)
    stopping[0].join()
    assert table(log) == expected(20)


def test_what_cannot_be_replaced_is_refused_before_anything_changes(log: Log, tmp_path: Path) -> None:
    sell(log, 0, 20)
    with pytest.raises(InvalidInput, match="no application 'old' that could be replaced"):
        plan_backfill(maker("new"), log.where, replaces="old")
    with pytest.raises(InvalidInput, match=r"both are called 'old'.*a name of its own"):
        plan_backfill(maker("old"), log.where, replaces="old")
    old = Running(log, maker("old", "stream"), tmp_path / "old")
    old.wait_until_done()
    old.stop()
    sell(log, 20, 40)
    planned = plan_backfill(maker("new", "stream"), log.where, replaces="old")
    with pytest.raises(InvalidInput, match=r"'old' was stopped before it had written all results.*sales-\d.*start it again"):
        run_backfill(planned, LocalRunner())
    again = Running(log, maker("old", "stream"), tmp_path / "old")
    again.wait_until_done()
    again.stop()
    assert len(read(log, "result")) == 40


def test_what_was_finished_before_the_switch_is_kept(log: Log, tmp_path: Path) -> None:
    sell(log, 0, 40)
    old = Running(log, maker("old"), tmp_path / "old")
    old.wait_until_done()
    old.stop()
    keep = str(tmp_path / "kept")

    def planned() -> BackfillPlan:
        return plan_backfill(maker("new", "table", 5), log.where, keep=keep, replaces="old")

    def fail() -> None:
        raise InvalidInput("stopped here")

    with pytest.raises(InvalidInput, match="stopped here"):
        run_backfill(planned(), LocalRunner(), failpoint=Once("after-rest", fail))
    again = Running(log, maker("old"), tmp_path / "old")
    sell(log, 40, 60)
    again.wait_until_done()
    again.stop()
    report = run_backfill(planned(), LocalRunner())
    assert [stage.way.endswith(", kept") for stage in report.stages] == [True, False]
    assert table(log) == expected(60)
