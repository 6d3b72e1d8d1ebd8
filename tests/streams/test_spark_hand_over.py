"""A hand-over's claim: who may run an application while its history is computed, and what becomes of drivers that died."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import logflume as lf
from logflume import col
from logflume.log import Chunk, GroupMetadata, InvalidInput, Log, LogflumeError, OffsetAndMetadata, TopicPartition, connect
from logflume.streams.planner import plan
from logflume.streams.runtime import Engine, EngineOptions, internal_topics
from logflume.streams.seams import OutputTopic, Plan
from logflume.streams.spark import BackfillReport, LocalRunner, Progress, abort_backfill, plan_backfill, run_backfill, writing
from logflume.streams.spark.claims import claim_of
from logflume.streams.spark.ranges import reachable
from logflume.streams.spark.replay import OutputRows, TaskEnd, later_ends
from logflume.streams.spark.rows import RowWriter
from logflume.streams.spark.turns import turns_of
from logflume.streams.spark.writing import OneTransaction, RowsToLog, Target, Written, longest_transaction_ms, plain_runs
from logflume.streams.state import Checkpoint

from ..log._server_process import ServerProcess
from ._spark_apps import (
    ORDERS,
    PARTITIONS,
    WAIT_S,
    Once,
    Order,
    create_inputs,
    final_results,
    loader,
    make_plan,
    own_topics,
    run_live,
    send_orders,
)
from .running import embedded, write

KIND = "repartition"
ROOT = Path(__file__).resolve().parents[2]
STEPS = ["after-claim", "after-topics", "after-job", "writing-ahead", "after-changelogs", "after-send-offsets", "writing"]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with embedded(tmp_path / "data") as opened:
        create_inputs(opened)
        send_orders(opened, 300, seed=1, start_ms=5_000_000)
        yield opened


def backfill(log: Log, failpoint: Callable[[str], None] = lambda _: None) -> None:
    run_backfill(plan_backfill(loader("batch", KIND), log.where), LocalRunner(), failpoint=failpoint)


def run_alone(log: Log) -> None:
    """Compute the same under another name, with nothing that disturbs."""
    run_backfill(plan_backfill(loader("alone", KIND), log.where), LocalRunner())


def check_as_if_alone(log: Log) -> None:
    """Check results, state and offsets against those of a run that nothing has disturbed."""
    run_alone(log)
    compare_with_alone(log)


def compare_with_alone(log: Log) -> None:
    for topic in ("{}-out", *(name.replace("batch", "{}", 1) for name in own_changelogs())):
        assert final_results(log, topic.format("batch")) == final_results(log, topic.format("alone")) != {}
    found = [log.admin().group_offsets(name) for name in ("batch", "alone")]
    assert {tp: at for tp, at in found[0].items() if tp in ORDERS} == {tp: at for tp, at in found[1].items() if tp in ORDERS}


@pytest.mark.parametrize("step", STEPS)
def test_a_backfill_that_is_aborted_at_any_step_leaves_nothing(log: Log, step: str) -> None:
    before = own_topics(log)
    aborted = Once(step, lambda: abort_backfill(loader("batch", KIND), log.where))
    with pytest.raises(LogflumeError):
        backfill(log, aborted)
    assert aborted.is_done
    assert own_topics(log) == before
    assert "batch" not in log.admin().list_groups()


@pytest.mark.parametrize("step", STEPS)
def test_a_later_run_takes_over_and_the_earlier_spoils_nothing(log: Log, step: str) -> None:
    with pytest.raises(LogflumeError):
        backfill(log, Once(step, lambda: backfill(log)))
    check_as_if_alone(log)


@pytest.mark.parametrize("step", ["after-claim", "after-changelogs", "after-write"])
def test_nobody_runs_an_application_whose_history_is_computed(log: Log, step: str, tmp_path: Path) -> None:
    said: list[str] = []

    def start() -> None:
        with pytest.raises(InvalidInput, match="is being computed from its history: start it when that is done") as refused:
            Engine(make_plan("batch", KIND), log, EngineOptions(state_dir=tmp_path)).start()
        said.append(str(refused.value))

    backfill(log, Once(step, start))
    assert len(said) == 1
    assert final_results(log, "batch-out") != {}


def test_an_application_that_joined_before_the_claim_is_not_claimed(log: Log) -> None:
    plan = plan_backfill(loader("batch", KIND), log.where)
    before = own_topics(log)
    member = log.consumer(group_id="batch")
    member.subscribe(["orders"])
    while not member.assignment():
        member.poll(timeout_s=0.1)
    with pytest.raises(InvalidInput, match="is running"):
        run_backfill(plan, LocalRunner())
    member.close()
    assert own_topics(log) == before
    assert log.admin().group_offsets("batch") == {}


def test_state_without_offsets_is_not_added_to(log: Log) -> None:
    (changelog,) = [topic for topic in own_changelogs() if topic.startswith("batch-")]
    log.admin().create_topic(changelog, partitions=PARTITIONS)
    with log.producer() as producer:
        producer.send(changelog, b"state", key=b"g0")
    with pytest.raises(InvalidInput, match=f"no committed offsets, but '{changelog}' holds records of it"):
        backfill(log)
    assert changelog in own_topics(log)


def own_changelogs() -> list[str]:
    return [topic for topic in internal_topics(make_plan("batch", KIND)) if topic.endswith("-changelog")]


def test_there_must_be_something_to_abort(log: Log) -> None:
    with pytest.raises(InvalidInput, match="no unfinished backfill of application 'batch'"):
        abort_backfill(loader("batch", KIND), log.where)
    backfill(log)
    offsets = log.admin().group_offsets("batch")
    with pytest.raises(InvalidInput, match="no unfinished backfill of application 'batch'"):
        abort_backfill(loader("batch", KIND), log.where)
    assert log.admin().group_offsets("batch") == offsets


def test_state_of_any_length_is_written_in_many_transactions(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "RECORDS_PER_TRANSACTION", 2)
    seen: list[dict[bytes | None, tuple[bytes | None, int, int]]] = []
    backfill(log, lambda reached: seen.append(final_results(log, "batch-out")) if reached != "after-commit" else None)
    assert all(results == {} for results in seen), "no reader sees a part"
    assert len(seen) > 5
    check_as_if_alone(log)


def test_a_second_run_that_spark_does_not_tell_of_has_all_written_again(log: Log) -> None:
    """Tasks of a stage that is run again, because rows of a lost executor had to be, count their attempts from 0."""
    log.admin().ensure_topic("written")
    writer = RowWriter({"to": OutputTopic("written")}, {"written": 1}, 0)
    chunk = Chunk.from_columns("", [b"k"] * 20, [b"%d" % n for n in range(20)], [0] * 20)
    (rows,) = writer.rows(OutputRows("to", chunk, None))
    producer = log.producer(transactional_id="once")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send_offsets({TopicPartition("written", 0): OffsetAndMetadata(0)}, GroupMetadata("once", -1, ""))
    to_log = RowsToLog(log.where, Target(OneTransaction(producer.share_transaction()), {}, lambda _: None), plain_runs)
    first, again = (Written.of(to_log(iter([part]))) for part in (rows.slice(0, 15), rows))
    assert (first.results, first.is_partial, first.problem) == (15, False, None)
    assert (again.is_partial, again.problem) == (True, None)
    producer.abort_transaction()


def test_the_last_transaction_is_given_as_long_as_the_broker_allows(tmp_path: Path) -> None:
    process = ServerProcess(str(tmp_path / "log"), ["transaction.max.timeout.ms=7200000"])
    try:
        with connect(process.address) as log:
            assert longest_transaction_ms(log) == 7_200_000
    finally:
        process.stop()


def ways(report: BackfillReport) -> list[bool]:
    """Return of each stage whether it was kept from a run before."""
    return [stage.way.endswith(", kept") for stage in report.stages]


def resumed(log: Log, keep: Path) -> BackfillReport:
    return run_backfill(plan_backfill(loader("batch", KIND), log.where, keep=str(keep)), LocalRunner())


@pytest.mark.parametrize(("failpoint", "kept"), [("after-topics", False), ("after-write", True)])
def test_a_killed_driver_is_gone_on_with_at_its_cut(log: Log, failpoint: str, kept: bool, tmp_path: Path) -> None:
    where, keep = reachable(log), tmp_path / "kept"
    command = [sys.executable, "-m", "tests.streams._backfill_process", where, "batch", KIND, failpoint, str(tmp_path / "killed")]
    killed = subprocess.run([*command, str(keep)], cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    cut = {tp: log.admin().end_offsets([tp])[tp] for tp in ORDERS}
    run_alone(log)
    send_orders(log, 30, seed=2, start_ms=9_000_000)
    report = resumed(log, keep)
    assert set(ways(report)) == {kept}
    assert {tp: report.offsets[tp] for tp in ORDERS} == cut
    assert not list(keep.iterdir()), "what was kept is gone once it is handed over"
    compare_with_alone(log)


def test_only_unfinished_stages_run_again(log: Log, tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    plan = plan_backfill(loader("batch", KIND), log.where, keep=str(keep))
    stages = [turn.subtopology for turn in turns_of(make_plan("batch", KIND))]

    def fail(at: Progress) -> None:
        if at.step.startswith(f"{stages[-1]}:"):
            raise InvalidInput("stopped here")

    with pytest.raises(InvalidInput, match="stopped here"):
        run_backfill(plan, LocalRunner(), on_progress=fail)
    with pytest.raises(InvalidInput, match="is being computed from its history"):
        Engine(make_plan("batch", KIND), log, EngineOptions(state_dir=tmp_path)).start()
    report = resumed(log, keep)
    assert [stage.subtopology for stage in report.stages] == stages
    assert ways(report) == [True] * (len(stages) - 1) + [False]
    check_as_if_alone(log)


def test_what_is_kept_of_another_application_is_not_taken(log: Log, tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    with pytest.raises(InvalidInput, match="stopped here"):
        run_backfill(
            plan_backfill(loader("batch", KIND), log.where, keep=str(keep)), LocalRunner(), failpoint=Once("after-job", stop)
        )
    with pytest.raises(InvalidInput, match=r"keeps a backfill of 'batch' as it was then, not of 'other'"):
        plan_backfill(loader("other", KIND), log.where, keep=str(keep))
    with pytest.raises(InvalidInput, match=r"keeps a backfill of 'batch' as it was then, not of 'batch' as it is now"):
        plan_backfill(loader("batch", "direct"), log.where, keep=str(keep))
    (keep / "cut.json").write_text("{")
    with pytest.raises(InvalidInput, match=r"cut\.json is not a kept cut"):
        plan_backfill(loader("batch", KIND), log.where, keep=str(keep))


def stop() -> None:
    raise InvalidInput("stopped here")


@pytest.mark.parametrize("is_gone", [False, True])
def test_kept_rows_that_cannot_be_read_are_named_and_computed_again_once_removed(log: Log, is_gone: bool, tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    planned = plan_backfill(loader("batch", KIND), log.where, keep=str(keep))
    with pytest.raises(InvalidInput, match="stopped here"):
        run_backfill(planned, LocalRunner(), failpoint=Once("after-job", stop))
    rows = min(keep.glob("stage-*/*.parquet"))
    if is_gone:
        rows.unlink()
    else:
        rows.write_bytes(rows.read_bytes()[:-100])
    with pytest.raises(InvalidInput, match=rf"kept in {rows} cannot be read: .*; remove {rows.parent}, so that"):
        resumed(log, keep)
    shutil.rmtree(rows.parent)
    assert ways(resumed(log, keep))[0] is False
    check_as_if_alone(log)


def test_what_is_kept_is_taken_back_with_the_rest(log: Log, tmp_path: Path) -> None:
    before, keep = own_topics(log), tmp_path / "kept"
    with pytest.raises(InvalidInput, match="stopped here"):
        run_backfill(
            plan_backfill(loader("batch", KIND), log.where, keep=str(keep)),
            LocalRunner(),
            failpoint=Once("after-changelogs", stop),
        )
    (keep / "mine").touch()
    assert own_topics(log) != before
    abort_backfill(loader("batch", KIND), log.where, keep=str(keep))
    assert own_topics(log) == before
    assert [path.name for path in keep.iterdir()] == ["mine"]


def test_a_run_that_fails_before_there_is_anything_to_keep_leaves_nothing(log: Log, tmp_path: Path) -> None:
    """As one whose executors do not see the directory does."""
    before, keep = own_topics(log), tmp_path / "kept"
    planned = plan_backfill(loader("batch", KIND), log.where, keep=str(keep))
    with pytest.raises(InvalidInput, match="stopped here"):
        run_backfill(planned, LocalRunner(), failpoint=Once("after-topics", stop))
    assert own_topics(log) == before
    assert claim_of(log, "batch") is None
    assert list(keep.iterdir()) == []


def test_what_cannot_be_kept_is_refused_before_anything_is_claimed(log: Log, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = own_topics(log)
    with pytest.raises(InvalidInput, match=r"cannot make the directory .*file"):
        run_backfill(plan_backfill(loader("batch", KIND), log.where, keep=str(tmp_path / "file")), LocalRunner())
    assert own_topics(log) == before
    assert "batch" not in log.admin().list_groups()


@pytest.mark.parametrize("kind", ["repartition", "foreign"])
def test_tasks_that_nothing_comes_to_stand_at_the_cut_too(kind: str, tmp_path: Path) -> None:
    with embedded(tmp_path / "data") as log:
        for topic in ("orders", "items"):
            log.admin().create_topic(topic, partitions=PARTITIONS, configs={"retention.ms": "-1"})
        write(log, "items", [(b"i1", b'{"item": "i1", "group": "g"}', 0)])
        write(log, "orders", [(b"s", b'{"shop": "s", "item": "i1", "amount": 1}', 1)])
        run_backfill(plan_backfill(loader("batch", kind), log.where), LocalRunner())
        assert claim_of(log, "batch") is None, "of no partition is it still being computed"
        committed = log.admin().group_offsets("batch")
        assert committed.keys() >= {*ORDERS, *(TopicPartition("items", p) for p in range(PARTITIONS))}
        write(log, "items", [(b"i1", b'{"item": "i1", "group": "h"}', 2)])
        run_live(log, "batch", kind, tmp_path / "live")
        ((value, _, _),) = final_results(log, "batch-out").values()
        assert kind == "repartition" or b'"of_group":"h"' in (value or b""), (
            "who asked before the cut is told of what comes after it"
        )


def test_of_two_steps_each_task_stands_where_the_last_one_left_it() -> None:
    def end(partition: int, offset: int, records: int) -> TaskEnd:
        return TaskEnd(Checkpoint({TopicPartition("in", partition): offset}), records, {})

    found = later_ends([end(0, 5, 5), end(1, 3, 3)], [end(1, 4, 1), end(2, 1, 1)])
    assert found == [end(0, 5, 5), end(1, 4, 4), end(2, 1, 1)]


def test_an_application_without_state_is_handed_over_without_a_pass_for_changelogs(log: Log) -> None:
    def load() -> Plan:
        app = lf.App("plain")
        app.stream("orders", Order).filter(col.amount > 10).to("plain-out")
        return plan(app.topology())

    said: list[str] = []
    runner = LocalRunner(at_once_records=0)
    report = run_backfill(plan_backfill(load, log.where), runner, on_progress=lambda at: said.append(at.step))
    assert [step for step in said if step.startswith("hand-over")] == ["hand-over: writing, try", "hand-over: records written"]
    written = log.admin().end_offsets([TopicPartition("plain-out", p) for p in range(PARTITIONS)], read_committed=True)
    assert report.entries == 0
    assert 0 < report.results <= sum(written.values())
