"""The engine on a real log: results, restarts, rebalances, bad records, gaps; the programs are written by hand."""

from __future__ import annotations

import logging
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from logflume.log import InvalidInput, UnknownName, connect
from logflume.log.interfaces import Log
from logflume.log.records import TopicPartition
from logflume.streams.runtime import (
    Engine,
    EngineOptions,
    EngineState,
    Guarantee,
    OnGap,
    OnProblem,
    PoisonRecord,
    StreamsError,
    pace,
)
from logflume.streams.seams import Plan
from tests.streams.handmade import WINDOW, counting_plan, join_plan, window_plan

Outputs = list[tuple[bytes | None, bytes | None]]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with connect(str(tmp_path / "data")) as opened:
        yield opened


@pytest.fixture
def run(tmp_path: Path, log: Log) -> Iterator[Callable[..., Engine]]:
    """Start engines that are stopped at the end."""
    engines: list[Engine] = []

    def start(plan: Plan, **settings: Any) -> Engine:
        options = EngineOptions(**{"state_dir": tmp_path / "state", "commit_interval_ms": 30, **settings})
        engine = Engine(plan, log, options)
        engine.start()
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        if not engine.has_ended:
            engine.stop()


def until(condition: Callable[[], Any], *engines: Engine, timeout_s: float = 30.0) -> Any:
    """Wait for a condition; fails with the engine's error when that ended."""
    end = time.monotonic() + timeout_s
    while not (found := condition()):
        for engine in engines:
            if engine.has_ended:
                engine.wait()
        assert time.monotonic() < end, "not reached in time"
        time.sleep(0.01)
    return found


def read(log: Log, topic: str, *, read_committed: bool = True) -> Outputs:
    """Return all records of a topic as (key, value), each partition in order."""
    consumer = log.consumer(read_committed=read_committed)
    admin = log.admin()
    count = admin.describe_topics([topic])[topic].partitions
    partitions = [TopicPartition(topic, p) for p in range(count)]
    ends = admin.end_offsets(partitions, read_committed=read_committed)
    consumer.assign(partitions)
    rows: Outputs = []
    while any(consumer.position(tp) < ends[tp] for tp in partitions):
        for chunk in consumer.poll(timeout_s=0.2):
            rows += zip(chunk.keys(), chunk.values(), strict=True)
    consumer.close()
    return rows


def feed(log: Log, count: int, *, seed: int = 1, start_ms: int = 0, partitions: int = 3) -> list[tuple[bytes, int]]:
    """Write words with rising times, some set back, to `lines`; return (word, time)."""
    log.admin().ensure_topic("lines", partitions=partitions)
    rng = random.Random(seed)
    producer = log.producer()
    rows = []
    for i in range(count):
        word, time_ms = b"w%d" % rng.randrange(40), start_ms + 3000 + i * 5 - rng.choice([0, 0, 0, 400, 2500])
        producer.send("lines", word, key=b"k%d" % rng.randrange(100), timestamp_ms=time_ms)
        rows.append((word, time_ms))
    producer.flush()
    producer.close()
    return rows


def sequences(rows: Outputs) -> dict[bytes | None, list[bytes | None]]:
    """Return the values of each key, in order."""
    found: dict[bytes | None, list[bytes | None]] = {}
    for key, value in rows:
        found.setdefault(key, []).append(value)
    return found


def expected_counts(rows: list[tuple[bytes, int]]) -> dict[bytes, list[bytes]]:
    counts = Counter(word for word, _ in rows)
    return {word: [b"%d" % n for n in range(1, count + 1)] for word, count in counts.items()}


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_counts_are_exact_and_can_be_read_while_it_runs(log: Log, run: Callable[..., Engine], guarantee: Guarantee) -> None:
    rows = feed(log, 2000)
    engine = run(counting_plan(), guarantee=guarantee)
    expected = expected_counts(rows)
    store = engine.store("counts")
    until(lambda: sum(e.state[0] for _, e in store.range() if e.state) == 2000, engine)
    assert sequences(read(log, "counts-out")) == expected
    assert {key: e.state for key, e in store.range()} == {key: (len(values),) for key, values in expected.items()}
    assert store.get(rows[0][0]) is not None
    assert store.get(b"never") is None
    status = until(lambda: (s := engine.status()).lag_records == 0 and s, engine)
    assert status.state is EngineState.RUNNING
    assert (status.records_in, status.repartitioned) == (2000, 2000)
    assert len(status.tasks) == 6
    engine.stop()
    assert engine.status().state is EngineState.STOPPED
    assert log.admin().topic_configs("counting-counts-changelog")["cleanup.policy"] == "compact"


def test_a_restart_goes_on_and_an_empty_disk_is_filled_from_the_changelog(
    log: Log, run: Callable[..., Engine], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = feed(log, 500)
    first = run(counting_plan())
    until(lambda: len(read(log, "counts-out")) == 500, first)
    first.stop()
    caplog.set_level(logging.INFO, "logflume.streams")
    rows += feed(log, 300, seed=2)
    second = run(counting_plan())
    until(lambda: len(read(log, "counts-out")) == 800, second)
    second.stop()
    assert "restoring" not in caplog.text
    shutil.rmtree(tmp_path / "state")
    rows += feed(log, 300, seed=3)
    third = run(counting_plan())
    until(lambda: len(read(log, "counts-out")) == 1100, third)
    assert "restoring all of store counts" in caplog.text
    assert sequences(read(log, "counts-out")) == expected_counts(rows)


@pytest.mark.parametrize("round_records", [64, 4_096])
def test_history_over_several_partitions_is_counted_as_if_read_by_time(
    log: Log, run: Callable[..., Engine], round_records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition is far behind in the log; without alignment by time most of it would come late."""
    monkeypatch.setattr(pace, "FIRST_RECORDS", round_records)
    monkeypatch.setattr(pace, "MAX_RECORDS", round_records)
    admin, producer = log.admin(), log.producer()
    admin.ensure_topic("lines", partitions=2)
    rows = [(p, i, 1000 + i * 7) for p in range(2) for i in range(3000)]
    for partition, i, time_ms in rows:
        producer.send("lines", b"w%d" % (i % 5), key=b"k", partition=partition, timestamp_ms=time_ms)
    producer.flush()
    engine = run(window_plan(repartitions=1))
    expected = Counter((b"w%d" % (i % 5)) + (t - t % WINDOW.size_ms).to_bytes(8, "big") for _, i, t in rows)

    def results() -> dict[bytes | None, int]:
        return {key: int(values[-1] or b"0") for key, values in sequences(read(log, "windows-out")).items()}

    until(lambda: results() == expected, engine)
    assert engine.status().dropped == {}
    last_start = (1000 + 2999 * 7) // WINDOW.size_ms * WINDOW.size_ms
    store = engine.store("per_second")
    until(lambda: [start for start, _ in store.windows(b"w1")][-1:] == [last_start], engine)


def test_lateness_survives_a_restart_on_an_empty_disk(log: Log, run: Callable[..., Engine], tmp_path: Path) -> None:
    log.admin().ensure_topic("lines", partitions=1)
    producer = log.producer()

    def send(word: bytes, time_ms: int) -> None:
        producer.send("lines", word, key=b"k", timestamp_ms=time_ms).result(timeout=30)

    send(b"a", 10_000)
    engine = run(window_plan())
    until(lambda: len(read(log, "windows-out")) == 1, engine)
    engine.stop()
    shutil.rmtree(tmp_path / "state")
    again = run(window_plan())
    send(b"a", 5_000)
    send(b"b", 10_100)
    until(lambda: len(read(log, "windows-out")) == 2, again)
    assert [key for key, _ in read(log, "windows-out")] == [
        b"a" + (10_000).to_bytes(8, "big"),
        b"b" + (10_000).to_bytes(8, "big"),
    ]
    assert again.status().dropped == {"late": 1}


def test_a_table_is_restored_from_its_own_topic(log: Log, run: Callable[..., Engine], tmp_path: Path) -> None:
    admin, producer = log.admin(), log.producer()
    for name in ("lines", "names"):
        admin.ensure_topic(name, partitions=2, configs={"cleanup.policy": "compact"} if name == "names" else None)
    for i in range(20):
        producer.send("names", b"name-%d" % i, key=b"k%d" % i, timestamp_ms=1)
    producer.send("names", None, key=b"k3", timestamp_ms=2)
    producer.flush()
    feed(log, 400, partitions=2)
    engine = run(join_plan())
    until(lambda: engine.status().lag_records == 0, engine)
    until(lambda: len(list(engine.store("names").range())) == 19, engine)
    before = until(lambda: read(log, "joined"), engine)
    assert all(value and value.endswith(b"name-" + (key or b"")[1:]) for key, value in before)
    assert b"k3" not in {key for key, _ in before}
    engine.stop()
    assert "joining-names-changelog" not in admin.list_topics(include_internal=True)
    shutil.rmtree(tmp_path / "state")
    again = run(join_plan())
    producer.send("lines", b"hello", key=b"k7", timestamp_ms=9_000_000)
    producer.flush()
    until(lambda: len(read(log, "joined")) == len(before) + 1, again)
    assert (b"k7", b"hello name-7") in read(log, "joined")


def test_a_second_instance_takes_over_half_and_gives_it_back(log: Log, run: Callable[..., Engine]) -> None:
    rows = feed(log, 600)
    first = run(counting_plan())
    until(lambda: len(read(log, "counts-out")) == 600, first)
    second = run(counting_plan())
    until(lambda: len(second.status().tasks) >= 2 and len(first.status().tasks) <= 4, first, second)
    rows += feed(log, 600, seed=5)
    until(lambda: len(read(log, "counts-out")) == 1200, first, second)
    assert sequences(read(log, "counts-out")) == expected_counts(rows)
    views = first.store("counts"), second.store("counts")
    until(lambda: sorted(views[0].partitions + views[1].partitions) == [0, 1, 2], first, second)
    second.stop()
    until(lambda: len(first.status().tasks) == 6, first)
    rows += feed(log, 600, seed=6)
    until(lambda: len(read(log, "counts-out")) == 1800, first)
    assert sequences(read(log, "counts-out")) == expected_counts(rows)


def test_what_is_processed_is_deleted_from_repartition_topics(log: Log, run: Callable[..., Engine]) -> None:
    feed(log, 500)
    engine = run(counting_plan(), purge_interval_ms=10)
    until(lambda: len(read(log, "counts-out")) == 500, engine)
    partitions = [TopicPartition("counting-words-repartition", p) for p in range(3)]
    until(lambda: log.admin().start_offsets(partitions) == log.admin().end_offsets(partitions), engine)
    feed(log, 100, seed=2)
    until(lambda: len(read(log, "counts-out")) == 600, engine)


def test_state_that_is_too_old_for_the_changelogs_tombstones_is_rebuilt(
    log: Log, run: Callable[..., Engine], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = feed(log, 200)
    engine = run(counting_plan())
    until(lambda: len(read(log, "counts-out")) == 200, engine)
    engine.stop()
    shutil.copytree(tmp_path / "state", tmp_path / "old")
    rows += feed(log, 200, seed=2)
    engine = run(counting_plan())
    until(lambda: len(read(log, "counts-out")) == 400, engine)
    engine.stop()
    later = Engine(
        counting_plan(),
        log,
        EngineOptions(state_dir=tmp_path / "old", commit_interval_ms=30),
        wall_s=lambda: time.time() + 86_400,
    )
    later.start()
    rows += feed(log, 100, seed=3)
    until(lambda: len(read(log, "counts-out")) == 500, later)
    later.stop()
    assert "does not fit the log" in caplog.text
    assert sequences(read(log, "counts-out")) == expected_counts(rows)


def test_errors_of_the_log_end_a_session_and_nothing_is_counted_twice(log: Log, run: Callable[..., Engine]) -> None:
    rng, hits = random.Random(3), Counter[str]()

    def fail_sometimes(name: str) -> None:
        hits[name] += 1
        if rng.random() < 0.05 and hits["failed"] < 12:
            hits["failed"] += 1
            raise replace_error(name)

    rows = feed(log, 300)
    engine = run(counting_plan(), failpoint=fail_sometimes, commit_interval_ms=5)
    for seed in range(2, 12):
        rows += feed(log, 100, seed=seed)
    until(lambda: len(read(log, "counts-out")) == len(rows), engine, timeout_s=60)
    assert sequences(read(log, "counts-out")) == expected_counts(rows)
    assert hits["failed"] > 0
    totals = {word: (len(values),) for word, values in expected_counts(rows).items()}
    until(lambda: {k: e.state for k, e in engine.store("counts").range()} == totals, engine)


def test_at_least_once_loses_nothing_when_the_log_fails(log: Log, run: Callable[..., Engine]) -> None:
    hits = Counter[str]()

    def fail_sometimes(name: str) -> None:
        hits["calls"] += 1
        if hits["calls"] % 8 == 5 and hits["failed"] < 8:
            hits["failed"] += 1
            raise replace_error(name)

    rows = feed(log, 300)
    engine = run(counting_plan(), guarantee="at_least_once", failpoint=fail_sometimes, commit_interval_ms=5)
    for seed in range(2, 10):
        rows += feed(log, 100, seed=seed)
    expected = expected_counts(rows)

    def is_all_there() -> bool:
        return all(len(sequences(read(log, "counts-out")).get(word, [])) >= len(values) for word, values in expected.items())

    until(is_all_there, engine, timeout_s=60)
    assert hits["failed"] > 0

    def is_in_store() -> bool:
        found = {key: entry.state[0] for key, entry in engine.store("counts").range() if entry.state}
        return all(found.get(word, 0) >= len(values) for word, values in expected.items())

    until(is_in_store, engine)


def test_at_least_once_commits_offsets_only_behind_the_output(log: Log, run: Callable[..., Engine]) -> None:
    seen: list[tuple[int, int]] = []

    def look(name: str) -> None:
        if name == "after-log-flush":
            offsets = log.admin().group_offsets(plan.application)
            counted = sum(offset.offset for tp, offset in offsets.items() if tp.topic.endswith("-repartition"))
            seen.append((len(read(log, "counts-out")), counted))

    rows = feed(log, 300)
    plan = counting_plan()
    engine = run(plan, guarantee="at_least_once", failpoint=look)
    until(lambda: seen and seen[-1][0] == len(rows), engine)
    written_before = 0
    for written, committed in seen:
        assert committed < written or written == written_before, "offsets follow the output that they stand for"
        written_before = written


def test_a_backlog_is_fetched_as_it_is_processed_so_that_its_first_results_do_not_wait_for_all_of_it(
    log: Log, run: Callable[..., Engine]
) -> None:
    buffered: list[int] = []

    def look(name: str) -> None:
        if name == "before-flush":
            buffered.append(sum(each.buffered_records for task in engine.status().tasks for each in task.inputs))

    feed(log, 30_000, partitions=1)
    engine = run(window_plan(repartitions=1), failpoint=look)
    until(lambda: buffered, engine)
    assert buffered[0] <= 2 * pace.FIRST_RECORDS


def test_several_applications_share_a_process_and_their_input(log: Log, run: Callable[..., Engine]) -> None:
    rows = feed(log, 400)
    counting, windows = run(counting_plan()), run(window_plan(repartitions=1))
    until(lambda: len(read(log, "counts-out")) == 400, counting, windows)
    until(lambda: windows.status().lag_records == 0 and windows.status().records_in == 400, counting, windows)
    assert sequences(read(log, "counts-out")) == expected_counts(rows)
    counting.stop()
    feed(log, 100, seed=2, start_ms=50_000)
    until(lambda: windows.status().records_in == 500, windows)
    assert counting.status().state is EngineState.STOPPED


def replace_error(name: str) -> Exception:
    from logflume.log import TransportError

    return TransportError(f"injected at {name}")


def test_bad_records_go_to_the_dead_letter_topic(log: Log, run: Callable[..., Engine]) -> None:
    log.admin().ensure_topic("lines", partitions=1)
    producer = log.producer()
    for word in (b"a", b"poison", b"b"):
        producer.send("lines", word, key=b"k", timestamp_ms=5)
    producer.flush()
    engine = run(counting_plan(), dead_letter_topic="dead")
    until(lambda: len(read(log, "counts-out")) == 2, engine)
    assert read(log, "dead") == [(b"k", b"poison")]
    assert engine.status().dropped == {"decode": 1}


def test_a_bad_record_stops_the_application_when_told_so(log: Log, run: Callable[..., Engine]) -> None:
    log.admin().ensure_topic("lines", partitions=1)
    producer = log.producer()
    producer.send("lines", b"poison", key=b"k", timestamp_ms=5)
    producer.flush()
    engine = run(counting_plan(), on_problem=OnProblem.STOP)
    with pytest.raises(PoisonRecord, match="lines-0 offset 0"):
        engine.wait(timeout_s=30)
    assert engine.status().state is EngineState.FAILED
    assert "lines-0 offset 0" in (engine.status().error or "")


def test_records_lost_to_retention_stop_the_application_or_are_stepped_over(log: Log, run: Callable[..., Engine]) -> None:
    feed(log, 100, partitions=1)
    first = run(counting_plan())
    until(lambda: len(read(log, "counts-out")) == 100, first)
    first.stop()
    feed(log, 100, seed=2, partitions=1)
    log.admin().delete_records({TopicPartition("lines", 0): 150})
    stopped = run(counting_plan())
    with pytest.raises(StreamsError, match="lines-0: offsets 100 to 149 were deleted"):
        stopped.wait(timeout_s=30)
    going_on = run(counting_plan(), on_gap=OnGap.EARLIEST)
    until(lambda: len(read(log, "counts-out")) == 150, going_on)
    until(lambda: going_on.status().dropped == {"deleted": 50}, going_on)
    (left_out,) = going_on.status().left_out
    assert (left_out.topic, left_out.first) == ("lines", "lines-0 offset 100: deleted by retention before it was read")


def test_a_missing_source_or_unequal_partitions_are_said_before_anything_starts(log: Log, run: Callable[..., Engine]) -> None:
    log.admin().ensure_topic("line", partitions=1)
    with pytest.raises(UnknownName, match="did you mean 'line'"):
        run(counting_plan())
    log.admin().ensure_topic("lines", partitions=2)
    log.admin().ensure_topic("names", partitions=3)
    with pytest.raises(InvalidInput, match="lines has 2, names has 3"):
        run(join_plan())


def test_state_without_offsets_is_refused(log: Log, run: Callable[..., Engine]) -> None:
    feed(log, 100)
    engine = run(counting_plan())
    until(lambda: len(read(log, "counts-out")) == 100, engine)
    engine.stop()
    log.admin().delete_group("counting")
    again = run(counting_plan())
    with pytest.raises(StreamsError, match="no committed offsets"):
        again.wait(timeout_s=30)


def test_an_error_in_the_program_names_task_and_records(log: Log, run: Callable[..., Engine]) -> None:
    feed(log, 10, partitions=1)
    plan = counting_plan()
    rekey, count = plan.subtopologies

    class Broken:
        sources, stores = rekey.program.sources, ()
        takes_together = False

        def bind(self, *parts: Any) -> Any:
            class Function:
                def process(self, *args: Any) -> None:
                    raise ZeroDivisionError("by hand")

                def advance(self, now_ms: int) -> None:
                    pass

            return Function()

    engine = run(replace(plan, subtopologies=(replace(rekey, program=Broken()), count)))
    with pytest.raises(StreamsError, match=r"task rekey\.0: ZeroDivisionError while processing lines-0 offsets 0 to 9: by hand"):
        engine.wait(timeout_s=30)
