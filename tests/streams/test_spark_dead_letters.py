"""What a backfill leaves out is kept as a live application keeps it, each record once, whichever way it is computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from logflume.log import InvalidInput, Log, LogflumeError, TopicPartition
from logflume.streams.runtime import Engine, EngineOptions, replay
from logflume.streams.spark import (
    BackfillPlan,
    LocalRunner,
    archive_topic,
    at_once,
    plan_backfill,
    plan_together,
    run_backfill,
    run_together,
)

from ._letter_apps import KINDS, PARTITIONS, create_topics, letters_of, maker, sell
from ._spark_apps import Once, own_topics
from .running import embedded, read, until

SALES = [TopicPartition("sales", p) for p in range(PARTITIONS)]
RECORDS = 300
WAYS = {
    "written at once": LocalRunner(),
    "record by record": LocalRunner(at_once_records=0),
    "range by range": LocalRunner(13, at_once_records=0),
    "in slices": LocalRunner(slices=3),
}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with embedded(tmp_path / "data") as opened:
        create_topics(opened, "live", "batch")
        yield opened


def kept(topic: str) -> EngineOptions:
    return EngineOptions(dead_letter_topic=topic)


def run_live(log: Log, name: str, kind: str, folder: Path, *, letters: str = "live-letters") -> None:
    """Run an application to the end of all that it reads."""
    plan = maker(name, kind)()
    engine = Engine(plan, log, EngineOptions(state_dir=folder / name, commit_interval_ms=20, dead_letter_topic=letters))
    topics = sorted({topic for sub in plan.subtopologies for topic in sub.shared_topics()})

    def is_done() -> bool:
        admin = log.admin()
        if not all(admin.find_topics([topic]) for topic in topics):
            return False
        every = [TopicPartition(topic, p) for topic in topics for p in range(PARTITIONS)]
        at = admin.group_offsets(name)
        ends = admin.end_offsets(every, read_committed=True)
        return all(not end or (tp in at and at[tp].offset >= end) for tp, end in ends.items())

    engine.start()
    try:
        until(is_done, engine)
    finally:
        engine.stop()


def planned(log: Log, kind: str, *, name: str = "batch", letters: str = "letters", **options: str) -> BackfillPlan:
    return plan_backfill(maker(name, kind), log.where, settings=kept(letters), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_those_that_a_live_instance_keeps(log: Log, kind: str, tmp_path: Path) -> None:
    sell(log, 0, RECORDS)
    run_live(log, "live", kind, tmp_path)
    wanted = letters_of(log, "live-letters", "live")
    more = {"chain": {"refused"}, "summed": {"expression"}}.get(kind, set())
    assert {dict(facts)["reason"] for *_, facts in wanted} == {"decode", "callable"} | more
    for way, runner in WAYS.items():
        name = way.replace(" ", "-")
        create_topics(log, name)
        report = run_backfill(planned(log, kind, name=name), runner)
        assert letters_of(log, "letters", name) == wanted, way
        assert wanted.total() == sum(count for reason, count in report.problems.items() if reason != "null_key")
        assert way != "range by range" or "range by range" in {stage.way for stage in report.stages}
    sell(log, RECORDS, RECORDS + 100)
    for name, topic in (("live", "live-letters"), ("range-by-range", "letters")):
        run_live(log, name, kind, tmp_path, letters=topic)
    assert letters_of(log, "letters", "range-by-range") == letters_of(log, "live-letters", "live")


def test_without_a_topic_they_are_counted_only(log: Log) -> None:
    sell(log, 0, RECORDS)
    before = own_topics(log)
    report = run_backfill(plan_backfill(maker("batch", "chain"), log.where), LocalRunner())
    assert report.problems["refused"] > 0 < report.problems["decode"]
    assert own_topics(log) == before


@pytest.mark.parametrize("step", ["after-job", "after-send-offsets", "after-write"])
@pytest.mark.parametrize("way", ["written at once", "record by record"])
def test_a_run_that_fails_leaves_none_and_the_next_keeps_each_once(log: Log, way: str, step: str, tmp_path: Path) -> None:
    sell(log, 0, RECORDS)
    run_live(log, "live", "chain", tmp_path)
    with pytest.raises(LogflumeError):
        run_backfill(planned(log, "chain"), WAYS[way], failpoint=Once(step, fail))
    assert read(log, "letters") == []
    run_backfill(planned(log, "chain"), WAYS[way])
    assert letters_of(log, "letters", "batch") == letters_of(log, "live-letters", "live")


def test_a_run_that_goes_on_keeps_those_of_the_run_that_died_each_once(log: Log, tmp_path: Path) -> None:
    sell(log, 0, RECORDS)
    run_live(log, "live", "regrouped", tmp_path)
    root = str(tmp_path / "kept")
    with pytest.raises(LogflumeError):
        run_backfill(planned(log, "regrouped", keep=root), LocalRunner(), failpoint=Once("after-job", fail))
    sell(log, RECORDS, RECORDS + 100)
    report = run_backfill(planned(log, "regrouped", keep=root), LocalRunner())
    assert {stage.way for stage in report.stages} == {"record by record, kept"}
    assert letters_of(log, "letters", "batch") == letters_of(log, "live-letters", "live")


def test_stages_that_were_kept_without_them_are_computed_again(log: Log, tmp_path: Path) -> None:
    sell(log, 0, RECORDS)
    root = str(tmp_path / "kept")
    without = plan_backfill(maker("batch", "chain"), log.where, keep=root)
    with pytest.raises(LogflumeError):
        run_backfill(without, LocalRunner(), failpoint=Once("after-job", fail))
    report = run_backfill(planned(log, "chain", keep=root), LocalRunner())
    bad = sum(count for reason, count in report.problems.items() if reason != "null_key")
    assert len(read(log, "letters")) == bad > 0


def test_several_in_one_pass_keep_their_own_in_one_topic(log: Log, tmp_path: Path) -> None:
    sell(log, 0, RECORDS)
    for kind, name in (("chain", "live"), ("counted", "other")):
        run_live(log, name, kind, tmp_path)
    loads = [maker("batch", "chain"), maker("more", "counted")]
    run_together(plan_together(loads, log.where, settings=[kept("letters")] * 2), LocalRunner())
    assert letters_of(log, "letters", "batch") == letters_of(log, "live-letters", "live")
    assert letters_of(log, "letters", "more") == letters_of(log, "live-letters", "other")
    assert len(read(log, "letters")) == len(read(log, "live-letters"))


def test_those_of_an_archive_say_the_offsets_of_the_log(log: Log, tmp_path: Path) -> None:
    sell(log, 0, RECORDS)
    run_live(log, "live", "counted", tmp_path)
    root = str(tmp_path / "archive")
    archive_topic(log, "sales", root)
    log.admin().delete_records(dict(log.admin().end_offsets(SALES, read_committed=True)))
    run_backfill(planned(log, "counted", history=root), LocalRunner())
    assert letters_of(log, "letters", "batch") == letters_of(log, "live-letters", "live")


@pytest.mark.parametrize("has_own", [True, False])
def test_what_takes_the_place_of_another_adds_none_beside_those_of_that_one(log: Log, has_own: bool, tmp_path: Path) -> None:
    sell(log, 0, RECORDS)
    run_live(log, "live", "counted", tmp_path)

    def go_on() -> None:
        sell(log, RECORDS, RECORDS + 100)
        run_live(log, "live", "counted", tmp_path)

    topic = "letters" if has_own else "live-letters"
    run_backfill(planned(log, "counted", letters=topic, replaces="live"), LocalRunner(), on_stopping=go_on)
    of_old = letters_of(log, "live-letters", "live")
    assert letters_of(log, topic, "batch") == (of_old if has_own else Counter())
    sell(log, RECORDS + 100, RECORDS + 200)
    run_live(log, "batch", "counted", tmp_path, letters=topic)
    fresh = letters_of(log, topic, "batch") - (of_old if has_own else Counter())
    assert {dict(facts)["reason"] for *_, facts in fresh} == {"decode", "callable"}


def test_so_many_that_they_do_not_fit_through_the_driver_are_written_where_they_are(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(at_once, "LETTERS_BYTES", 10_000)
    sell(log, 0, 2 * RECORDS, is_broken=True)
    said: list[str] = []
    report = run_backfill(planned(log, "chain"), LocalRunner(), on_progress=lambda at: said.append(at.step))
    assert "not to be written while it is computed: computed first, then written" in said
    assert len(read(log, "letters")) == report.problems["decode"] == 2 * RECORDS


def test_they_go_back_where_they_came_from(log: Log) -> None:
    sell(log, 0, RECORDS)
    run_backfill(planned(log, "counted"), LocalRunner())
    before = [(r.key, r.value, r.timestamp_ms, r.headers) for r in read(log, "sales")]
    assert replay(log, "letters") == {"sales": len(read(log, "letters"))}
    back = Counter((r.key, r.value, r.timestamp_ms, r.headers) for r in read(log, "sales")) - Counter(before)
    assert back.total() == len(read(log, "letters"))
    assert set(back) <= set(before)


def test_a_topic_in_which_they_would_replace_each_other_is_refused_before_anything_changes(log: Log) -> None:
    sell(log, 0, 10)
    log.admin().create_topic("letters", configs={"cleanup.policy": "compact"})
    before = own_topics(log)
    with pytest.raises(InvalidInput, match="'letters' is compacted"):
        planned(log, "counted")
    assert own_topics(log) == before
    assert "batch" not in log.admin().list_groups()


def fail() -> None:
    raise LogflumeError("it died")
