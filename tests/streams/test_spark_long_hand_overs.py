"""Hand-overs that take longer than brokers let a transaction be open: still all or nothing, through kills at each step of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from logflume.log import NO_TIMEOUT_MS, Log, LogflumeError, TransportError, connect
from logflume.streams.spark import LocalRunner, abort_backfill, handover, plan_backfill, run_backfill

from ..log._server_process import ServerProcess
from ._spark_apps import Once, create_inputs, final_results, loader, own_topics, send_orders
from .running import until

KIND = "grouped"
SHORT_MS = 300
STEPS = ["after-send-offsets", "writing", "after-write"]


@contextmanager
def serving(path: Path, *, is_unlimited: bool) -> Iterator[tuple[ServerProcess, Log]]:
    """Give a broker with input, and a log on it; its limit is below what the state's own transactions would ask for."""
    configs = ["transaction.max.timeout.ms=100000", f"transaction.two.phase.commit.enable={str(is_unlimited).lower()}"]
    process = ServerProcess(str(path / "log"), configs)
    try:
        with connect(process.address) as log:
            create_inputs(log)
            send_orders(log, 100, seed=1, start_ms=5_000_000)
            yield process, log
    finally:
        process.stop()


@pytest.fixture(autouse=True)
def many_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take any number of results for more than can be written in time."""
    monkeypatch.setattr(handover, "RESULTS_PER_SECOND_SURE", 0)


def hand_over(log: Log) -> tuple[str, int]:
    """Return the state and the time-out of the last transaction of a hand-over."""
    (found,) = log.admin().request("DescribeTransactions", transactional_ids=["batch-backfill"]).transaction_states
    return found.transaction_state, found.transaction_timeout_ms


def backfill(log: Log, name: str, failpoint: Callable[[str], None] = lambda _: None) -> None:
    run_backfill(plan_backfill(loader(name, KIND), log.where), LocalRunner(), failpoint=failpoint)


def test_results_are_all_or_nothing_without_a_time_out_and_through_kills_of_the_broker(tmp_path: Path) -> None:
    with serving(tmp_path, is_unlimited=True) as (server, log):
        left = set(STEPS[1:])

        def kill_the_broker(reached: str) -> None:
            if reached in left:
                left.remove(reached)
                server.kill()
                server.start()
                assert hand_over(log) == ("Ongoing", NO_TIMEOUT_MS)
                assert final_results(log, "batch-out") == {}, "no reader sees a part"

        backfill(log, "batch", kill_the_broker)
        assert not left
        backfill(log, "alone")
        assert final_results(log, "batch-out") == final_results(log, "alone-out") != {}


def test_what_a_driver_has_left_open_without_a_time_out_is_ended_by_the_next(tmp_path: Path) -> None:
    with serving(tmp_path, is_unlimited=True) as (_, log):
        before = own_topics(log)
        for step in STEPS:
            with pytest.raises(LogflumeError):
                backfill(log, "batch", Once(step, lambda: abort_backfill(loader("batch", KIND), log.where)))
            assert hand_over(log)[0] != "Ongoing"
            assert own_topics(log) == before
        with pytest.raises(LogflumeError):
            backfill(log, "batch", Once("writing", lambda: backfill(log, "batch")))
        backfill(log, "alone")
        assert final_results(log, "batch-out") == final_results(log, "alone-out") != {}


def test_results_that_take_longer_than_brokers_allow_are_refused_in_words_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "longest_transaction_ms", lambda _: SHORT_MS)
    with serving(tmp_path, is_unlimited=False) as (_, log):
        before = own_topics(log)
        too_late = Once("after-write", lambda: until(lambda: hand_over(log)[0] == "CompleteAbort"))
        with pytest.raises(
            TransportError, match=r"not written within the 300 ms .*: set transaction\.two\.phase\.commit\.enable=true"
        ):
            backfill(log, "batch", too_late)
        assert own_topics(log) == before
        assert "batch" not in log.admin().list_groups()


def test_few_results_keep_the_time_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    said: list[tuple[str, int]] = []
    with serving(tmp_path, is_unlimited=True) as (_, log):
        backfill(log, "batch", Once("after-write", lambda: said.append(hand_over(log))))
    assert said == [("Ongoing", 100_000)]
