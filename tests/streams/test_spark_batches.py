"""Micro-batches of a cluster, without Spark: exact through restarts, failures at each step, moves to the live engine and back."""

from __future__ import annotations

import errno
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

import logflume.streams as lf
from logflume import col
from logflume.log import Chunk, InvalidInput, Log, LogflumeError, TopicPartition, TransportError, connect
from logflume.log.protocol import ErrorCode, KafkaError
from logflume.streams.runtime import Engine, EngineOptions, OnProblem, StreamsError
from logflume.streams.seams import Plan
from logflume.streams.spark import LocalRunner, OffsetRange, plan_backfill, run_backfill
from logflume.streams.spark import batches as batches_module
from logflume.streams.spark.batches import BatchDone, Batches, open_batches
from logflume.streams.spark.claims import delete_topics
from logflume.streams.spark.continuous import keep_on
from logflume.streams.spark.failures import raised_by
from logflume.streams.spark.membership import RunsElsewhere
from logflume.streams.spark.steps import StepPlan, passing_told

from ..log._server_process import ServerProcess
from ._spark_apps import Once, Order, create_inputs, final_results, is_done, loader, make_plan, run_live, send_items, send_orders
from .running import embedded, read, send_json, until

STEPS = ["after-job", "after-send-offsets", "after-write", "after-commit"]


class Failed(Exception):
    """What a test has happen."""


def fail() -> None:
    raise Failed


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with embedded(tmp_path / "data") as opened:
        create_inputs(opened)
        yield opened


def steps(
    log: Log,
    kind: str,
    folder: Path,
    count: int = 1,
    *,
    failpoint: Callable[[str], None] = lambda _: None,
    settings: EngineOptions | None = None,
) -> list[BatchDone | None]:
    """Run so many micro-batches of the application "moved"."""
    load, chosen = loader("moved", kind), settings or EngineOptions()
    with open_batches(log, load, LocalRunner().run, folder, settings=chosen, failpoint=failpoint) as batches:
        return [batches.step() for _ in range(count)]


def break_off(log: Log, kind: str, state_dir: Path) -> None:
    """Run the live engine and have it fail at its second task commit: what the first has put on its way stays there."""
    commits: list[str] = []

    def failpoint(reached: str) -> None:
        if reached == "before-flush":
            commits.append(reached)
            if len(commits) == 2:
                fail()

    engine = Engine(make_plan("moved", kind), log, EngineOptions(state_dir=state_dir, commit_interval_ms=10, failpoint=failpoint))
    engine.start()
    until(lambda: engine.has_ended or is_done(log, "moved"))
    with suppress(Failed):
        engine.stop()


def on_its_way(log: Log) -> int:
    """Return how many records are in repartition topics and not processed."""
    committed = log.admin().group_offsets("moved", is_stable=True)
    topics = [
        name for name in log.admin().list_topics(include_internal=True) if name.endswith("-repartition") and "moved" in name
    ]
    every = [TopicPartition(topic, p) for topic in topics for p in range(3)]
    ends = log.admin().end_offsets(every, read_committed=True)
    return sum(end - (committed[tp].offset if tp in committed else 0) for tp, end in ends.items())


@pytest.mark.parametrize("kind", ["direct", "repartition", "grouped", "merged", "foreign", "global"])
def test_an_application_moves_between_live_and_batches_without_loss_or_doubling(log: Log, kind: str, tmp_path: Path) -> None:
    rng, now_ms, folder = random.Random(kind), 5_000_000, tmp_path / "stores"
    ways = ["batches", "live", "broken", "failed", "batches"]
    rng.shuffle(ways)
    for number, way in enumerate(ways):
        now_ms = send_orders(log, rng.randrange(1, 120), seed=number, start_ms=now_ms)
        if kind == "global":
            send_items(log, number)
        match way:
            case "live":
                run_live(log, "moved", kind, tmp_path / "live")
            case "broken":
                break_off(log, kind, tmp_path / "live")
                steps(log, kind, folder)
            case "failed":
                with pytest.raises(Failed):
                    steps(log, kind, folder, failpoint=Once(rng.choice(STEPS), fail))
                steps(log, kind, folder)
            case _:
                done = steps(log, kind, folder, 2)
                assert done[0] is not None
                assert done[1] is None, "nothing is read twice"
        run_live(log, "live", kind, tmp_path / "reference")  # begins with all there is, so that it takes it by time
        found = final_results(log, "moved-out")
        assert found == final_results(log, "live-out") != {}, f"after {ways[: number + 1]}"


@pytest.mark.parametrize("call", ["unlink", "write_bytes", "write_text"])
def test_a_state_folder_without_room_is_said_and_the_next_start_goes_on(
    log: Log, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, now_ms = tmp_path / "stores", send_orders(log, 60, seed=30, start_ms=5_000_000)
    steps(log, "grouped", folder)
    now_ms = send_orders(log, 60, seed=31, start_ms=now_ms)

    def full(path: Path, *_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, call, full)
        said = f"cannot write state to {folder}.*No space left.*free space.*start again"
        if call == "write_bytes":
            assert steps(log, "grouped", folder)[0] is not None, "it is committed, whatever is noted of it"
            assert re.search(said, caplog.text)
        else:
            with pytest.raises(StreamsError, match=said):
                steps(log, "grouped", folder)
    send_orders(log, 60, seed=32, start_ms=now_ms)
    steps(log, "grouped", folder)
    run_live(log, "live", "grouped", tmp_path / "reference")
    assert final_results(log, "moved-out") == final_results(log, "live-out") != {}


def test_the_first_batch_fails_after_it_has_written(log: Log, tmp_path: Path) -> None:
    send_orders(log, 100, seed=2, start_ms=5_000_000)
    for step in ("after-write", "after-send-offsets"):
        with pytest.raises(Failed):
            steps(log, "grouped", tmp_path / "stores", failpoint=Once(step, fail))
    done = steps(log, "grouped", tmp_path / "stores")[0]
    assert done is not None
    assert done.records == 100
    run_live(log, "live", "grouped", tmp_path / "reference")
    assert final_results(log, "moved-out") == final_results(log, "live-out") != {}


def test_what_a_live_instance_left_on_its_way_comes_first(log: Log, tmp_path: Path) -> None:
    now_ms = send_orders(log, 200, seed=3, start_ms=5_000_000)
    break_off(log, "merged", tmp_path / "live")
    assert on_its_way(log) > 0
    send_orders(log, 100, seed=4, start_ms=now_ms)
    steps(log, "merged", tmp_path / "stores")
    assert on_its_way(log) == 0
    run_live(log, "live", "merged", tmp_path / "reference")
    assert final_results(log, "moved-out") == final_results(log, "live-out") != {}


@pytest.mark.parametrize("step", ["after-write", "after-commit"])
def test_stores_are_gone_on_with_only_if_the_log_agrees(log: Log, step: str, tmp_path: Path) -> None:
    folder = tmp_path / "stores"
    now_ms = send_orders(log, 100, seed=5, start_ms=5_000_000)
    steps(log, "grouped", folder)
    before = list(folder.glob("stores-*"))
    now_ms = send_orders(log, 100, seed=6, start_ms=now_ms)
    steps(log, "grouped", folder)
    assert list(folder.glob("stores-*")) == before, "nobody else has run it"
    now_ms = send_orders(log, 100, seed=7, start_ms=now_ms)
    with pytest.raises(Failed):
        steps(log, "grouped", folder, failpoint=Once(step, fail))
    send_orders(log, 100, seed=8, start_ms=now_ms)
    steps(log, "grouped", folder)
    assert list(folder.glob("stores-*")) != before, "what it left is not committed, or nobody knows that it is"
    run_live(log, "live", "grouped", tmp_path / "reference")
    assert final_results(log, "moved-out") == final_results(log, "live-out") != {}


def test_a_live_instance_that_starts_is_given_way_to(log: Log, tmp_path: Path) -> None:
    now_ms = send_orders(log, 100, seed=9, start_ms=5_000_000)
    engine = Engine(make_plan("moved", "grouped"), log, EngineOptions(state_dir=tmp_path / "live", commit_interval_ms=20))
    with open_batches(log, loader("moved", "grouped"), LocalRunner().run, tmp_path / "stores", settings=EngineOptions()) as ours:
        assert ours.step() is not None
        now_ms = send_orders(log, 100, seed=10, start_ms=now_ms)
        engine.start()

        def has_given_way() -> bool:
            try:
                ours.member.check()
            except RunsElsewhere:
                return True
            return False

        until(has_given_way, engine)
        with pytest.raises(RunsElsewhere, match="another instance of 'moved' has started"):
            ours.step()
    engine.stop()
    run_live(log, "moved", "grouped", tmp_path / "live")
    run_live(log, "live", "grouped", tmp_path / "reference")
    assert final_results(log, "moved-out") == final_results(log, "live-out") != {}


def test_a_batch_whose_member_was_replaced_commits_nothing(log: Log, tmp_path: Path) -> None:
    send_orders(log, 100, seed=11, start_ms=5_000_000)
    other: list[BatchDone | None] = []

    def replace() -> None:
        other.extend(steps(log, "grouped", tmp_path / "stores"))

    with pytest.raises(LogflumeError):
        steps(log, "grouped", tmp_path / "zombie", failpoint=Once("after-job", replace))
    assert other[0] is not None
    run_live(log, "live", "grouped", tmp_path / "reference")
    assert final_results(log, "moved-out") == final_results(log, "live-out") != {}


def test_a_driver_that_is_replaced_ends_and_leaves_its_successor_alone(log: Log, tmp_path: Path) -> None:
    now_ms = send_orders(log, 100, seed=18, start_ms=5_000_000)
    load, settings = loader("moved", "grouped"), EngineOptions()
    with ExitStack() as second:
        with open_batches(log, load, LocalRunner().run, tmp_path / "first", settings=settings) as ours:
            assert ours.step() is not None
            theirs = second.enter_context(open_batches(log, load, LocalRunner().run, tmp_path / "second", settings=settings))
            now_ms = send_orders(log, 100, seed=19, start_ms=now_ms)
            with pytest.raises(RunsElsewhere, match="another driver of 'moved'"):
                until(ours.step)
        assert [each.instance_id for each in log.admin().describe_group("moved").members] == ["moved-on-spark"]
        theirs.member.check()
        assert theirs.step() is not None
    assert list(log.admin().describe_group("moved").members) == []


def test_what_runs_already_is_refused(log: Log, tmp_path: Path) -> None:
    send_orders(log, 10, seed=12, start_ms=5_000_000)
    engine = Engine(make_plan("moved", "grouped"), log, EngineOptions(state_dir=tmp_path / "live"))
    engine.start()
    until(
        lambda: len(log.admin().describe_group("moved").members) == 1 if "moved" in log.admin().list_groups() else False, engine
    )
    with pytest.raises(InvalidInput, match=r"application 'moved' is running .*: stop it, and Spark goes on where it has come to"):
        steps(log, "grouped", tmp_path / "stores")
    engine.stop()


def test_settings_hold_or_are_refused(log: Log, tmp_path: Path) -> None:
    send_orders(log, 500, seed=13, start_ms=5_000_000)
    log.admin().create_topic("letters", configs={"cleanup.policy": "compact"})
    with pytest.raises(InvalidInput, match="'letters' is compacted"):
        steps(log, "grouped", tmp_path / "stores", settings=EngineOptions(dead_letter_topic="letters"))
    with pytest.raises(LogflumeError, match="decode"):
        steps(log, "grouped", tmp_path / "stores", settings=EngineOptions(on_problem="stop"))
    assert log.admin().group_offsets("moved") == {}
    assert final_results(log, "moved-out") == {}
    done = steps(log, "grouped", tmp_path / "stores")[0]
    assert done is not None
    assert done.records == 500
    assert done.problems["decode"] > 0
    assert done.results > 0 < done.entries
    assert (done.number, done.behind) == (1, 0)


def letters(log: Log, topic: str) -> list[object]:
    """Return the dead letters of a topic with all that they say, but the name of the application."""
    name = "__streams.errors.application"
    return sorted(
        (each.key, each.value, each.timestamp_ms, [header for header in each.headers if header[0] != name])
        for each in read(log, topic)
    )


def test_dead_letters_are_those_that_a_live_instance_keeps_each_once(log: Log, tmp_path: Path) -> None:
    now_ms, settings = 5_000_000, EngineOptions(dead_letter_topic="letters")
    for number, step in enumerate(STEPS):
        now_ms = send_orders(log, 300, seed=50 + number, start_ms=now_ms)
        with pytest.raises(Failed):
            steps(log, "repartition", tmp_path / "stores", failpoint=Once(step, fail), settings=settings)
        steps(log, "repartition", tmp_path / "stores", settings=settings)
    options = EngineOptions(state_dir=tmp_path / "live", commit_interval_ms=20, dead_letter_topic="kept-live")
    engine = Engine(make_plan("live", "repartition"), log, options)
    engine.start()
    until(lambda: is_done(log, "live"), engine)
    engine.stop()
    assert letters(log, "letters") == letters(log, "kept-live") != []


def noted(name: str, *, is_counted: bool) -> Plan:
    """Return what puts orders out as they are, or the greatest item of each shop."""
    app = lf.App(name)
    orders = app.stream("orders", Order)
    if is_counted:
        orders.group_by(col.shop).aggregate(item=lf.max(col.item)).to(f"{name}-out")
    else:
        orders.to(f"{name}-out")
    return app.plan()


@pytest.mark.parametrize("is_counted", [False, True])
def test_results_that_their_topic_refuses_go_the_way_that_they_go_live(log: Log, is_counted: bool, tmp_path: Path) -> None:
    settings, load = EngineOptions(dead_letter_topic="letters"), partial(noted, is_counted=is_counted)
    for name in ("moved", "live", "batch", "ranged", "strict"):
        log.admin().create_topic(f"{name}-out", partitions=3, configs={"max.message.bytes": "1000"})
    items = [("b", f"{number}") if number % 3 else ("a", "x" * 2_000) for number in range(40)]
    send_json(log, "orders", [(str(n), {"shop": shop, "item": item, "amount": 1}, 1_000) for n, (shop, item) in enumerate(items)])
    with open_batches(log, partial(load, "moved"), LocalRunner().run, tmp_path / "stores", settings=settings) as batches:
        done = batches.step()
    assert done is not None
    assert done.problems == {"refused": 1 if is_counted else 14}
    options = EngineOptions(state_dir=tmp_path / "live", dead_letter_topic="kept-live")
    engine = Engine(load("live"), log, options)
    engine.start()
    until(lambda: is_done(log, "live"), engine)
    engine.stop()
    kept, kept_live = ({(each.key, each.value) for each in read(log, topic)} for topic in ("letters", "kept-live"))
    assert kept == kept_live != set()
    for name, runner in (("batch", LocalRunner(None)), ("ranged", LocalRunner(5))):
        report = run_backfill(plan_backfill(partial(load, name), log.where), runner)
        assert report.problems == done.problems
        assert [(each.reason, each.records) for each in report.left_out] == [("refused", done.problems["refused"])]
        assert final_results(log, f"{name}-out") == final_results(log, "live-out") == final_results(log, "moved-out") != {}
    strict = plan_backfill(partial(load, "strict"), log.where, settings=EngineOptions(on_problem=OnProblem.STOP))
    with pytest.raises(LogflumeError, match=r"does not take .* max.message.bytes is 1000; correct the topology or the topic"):
        run_backfill(strict, LocalRunner())


def test_latest_means_what_comes_after_the_start(log: Log, tmp_path: Path) -> None:
    now_ms = send_orders(log, 100, seed=14, start_ms=5_000_000)
    settings = EngineOptions(offset_reset="latest")
    with open_batches(log, loader("moved", "grouped"), LocalRunner().run, tmp_path / "stores", settings=settings) as batches:
        assert batches.step() is None
        now_ms = send_orders(log, 50, seed=15, start_ms=now_ms)
        done = batches.step()
        assert done is not None
        assert done.records == 50


def test_latest_is_where_the_first_start_was_whatever_happens_before_the_first_batch(log: Log, tmp_path: Path) -> None:
    now_ms = send_orders(log, 100, seed=14, start_ms=5_000_000)
    settings = EngineOptions(offset_reset="latest")
    assert steps(log, "grouped", tmp_path / "stores", settings=settings) == [None]
    send_orders(log, 50, seed=15, start_ms=now_ms)
    with pytest.raises(Failed):
        steps(log, "grouped", tmp_path / "stores", settings=settings, failpoint=Once("after-write", fail))
    done = steps(log, "grouped", tmp_path / "stores", settings=settings)[0]
    assert done is not None
    assert done.records == 50


def test_what_is_committed_is_told_though_the_log_says_nothing_more(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> NoReturn:
        raise TransportError("the broker is away")

    send_orders(log, 500, seed=13, start_ms=5_000_000)
    cut_off = Once("after-commit", lambda: monkeypatch.setattr(batches_module, "mark_of", away))
    done = steps(log, "grouped", tmp_path / "stores", failpoint=cut_off)[0]
    assert done is not None
    assert (done.records, done.behind) == (500, None)
    assert done.problems["decode"] > 0


def test_a_broker_that_is_killed_is_waited_for(tmp_path: Path) -> None:
    server = ServerProcess(str(tmp_path / "data"))
    taken: list[BatchDone | None] = []

    def restart() -> None:
        server.kill()
        server.start()

    def away() -> NoReturn:
        raise TransportError("the broker is away")

    try:
        with connect(server.address) as log:
            create_inputs(log)
            now_ms = 5_000_000
            for number, (at, do) in enumerate([("after-send-offsets", restart), ("writing", away)]):
                now_ms = send_orders(log, 100, seed=23 + number, start_ms=now_ms)
                load, failpoint = loader("moved", "grouped"), Once(at, do)
                options: Any = {"settings": EngineOptions(), "failpoint": failpoint}
                opened = partial(open_batches, log, load, LocalRunner().run, tmp_path / "stores", **options)
                keep_on(opened, lambda batches: taken.append(batches.step()), threading.Event())
                assert failpoint.is_done
            run_live(log, "live", "grouped", tmp_path / "reference")
            assert final_results(log, "moved-out") == final_results(log, "live-out") != {}
    finally:
        server.stop()


def test_the_name_of_what_ended_a_task_is_found_in_what_spark_says() -> None:
    said = "Job aborted.\nTraceback (most recent call last):\n  File x\n{}: broken\n\n\tat org.apache.spark.X\n"
    assert raised_by(Exception(said.format("logflume.streams.runtime.problems.PoisonRecord"))) == "PoisonRecord"
    chained = said.format("ValueError") + said.format("logflume.log.errors.TransportError")
    assert raised_by(Exception(chained)) == "TransportError"
    assert raised_by(Exception("Job aborted: ExecutorLostFailure (executor 1 exited)")) == ""
    with pytest.raises(TransportError, match="Not the leader"), passing_told():
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "Not the leader")


def test_a_task_reads_its_other_inputs_when_nothing_comes_through_a_repartition_topic(log: Log, tmp_path: Path) -> None:
    done = steps(log, "repartition", tmp_path / "stores", 2)
    assert done[0] is not None
    assert (done[0].records, done[0].behind) == (8, 0), "the table's rows, without an order"
    assert done[1] is None
    send_orders(log, 100, seed=16, start_ms=5_000_000)
    steps(log, "repartition", tmp_path / "stores")
    run_live(log, "live", "repartition", tmp_path / "reference")
    assert final_results(log, "moved-out") == final_results(log, "live-out") != {}


@pytest.fixture
def read_ranges(monkeypatch: pytest.MonkeyPatch) -> list[OffsetRange]:
    """What of the table "items" tasks read, as they do."""
    found: list[OffsetRange] = []
    whole = StepPlan.read

    def noted(self: StepPlan, log: Log, wanted: OffsetRange) -> Iterator[Chunk]:
        if wanted.topic == "items":
            found.append(wanted)
        return whole(self, log, wanted)

    monkeypatch.setattr(StepPlan, "read", noted)
    return found


def test_a_global_table_is_read_on_from_where_it_was_and_anew_after_a_long_time(
    log: Log, read_ranges: list[OffsetRange], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, now_ms = [], 5_000_000
    later_s = time.time() + 21 * 3600  # tombstones may be compacted by then
    for number in range(3):
        if number == 2:
            monkeypatch.setattr(time, "time", lambda: later_s)
        if number:
            send_items(log, number)
            assert steps(log, "global", tmp_path / "stores") == [None], "a table alone is no reason for a micro-batch"
        now_ms = send_orders(log, 100, seed=number, start_ms=now_ms)
        steps(log, "global", tmp_path / "stores")
        rounds.append(sum(map(len, read_ranges)))
        read_ranges.clear()
    tasks = 3
    assert rounds == [8 * tasks, 8 * tasks, 24 * tasks]


def test_a_step_that_runs_again_takes_a_global_table_as_it_did_before(log: Log, tmp_path: Path) -> None:
    send_orders(log, 200, seed=40, start_ms=5_000_000)
    seen: list[list[Any]] = []

    def twice(step: StepPlan, plan: Plan, on_progress: Any) -> Any:
        for number in (1, 2):
            result = LocalRunner().run(step, plan, on_progress)
            seen.append([row for part in result.parts for row in part.to_pylist()])
            send_items(log, number)
        return result

    with open_batches(log, loader("moved", "global"), twice, tmp_path / "stores", settings=EngineOptions()) as batches:
        batches.step()
    assert seen[0] == seen[1] != []


def grouped(log: Log) -> Counter[bytes]:
    """Return how many results each group has, whatever the window, whose start is behind the key."""
    return Counter((record.key or b"")[:-8] for record in read(log, "moved-out"))


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_global_table_that_was_made_anew_is_the_new_one(log: Log, is_restarted: bool, tmp_path: Path) -> None:
    load, settings = loader("moved", "global"), EngineOptions()
    with ExitStack() as stack:

        def opened() -> Batches:
            return stack.enter_context(open_batches(log, load, LocalRunner().run, tmp_path / "stores", settings=settings))

        batches = opened()
        now_ms = send_orders(log, 100, seed=41, start_ms=5_000_000)
        batches.step()
        before = grouped(log)
        delete_topics(log, ["items"])
        log.admin().create_topic("items", partitions=3, configs={"cleanup.policy": "compact"})
        send_json(log, "items", [(f"i{n}", {"item": "", "group": "new"}, 0) for n in (0, *range(10, 60))])  # more than before
        send_orders(log, 100, seed=42, start_ms=now_ms)
        if is_restarted:
            stack.pop_all().close()
            batches = opened()
        assert batches.step() is not None
    assert before
    assert set(grouped(log) - before) == {b"new"}
