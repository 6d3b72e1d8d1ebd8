"""Queries that Spark runs: made so, moved there and back from where they are, restarted, paused and terminated; without Java."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from logflume.log import InvalidInput, Log, LogflumeError, TopicPartition, TransportError
from logflume.sql import Rows, SqlEngine, StatementError
from logflume.sql.on_spark import drive_queries
from logflume.sql.running import Left
from logflume.streams.runtime import EngineOptions
from logflume.streams.seams import Plan
from logflume.streams.spark import BatchDone, LocalRunner
from logflume.streams.spark.batches import open_batches
from tests.end_to_end._command import run as command
from tests.log._server_process import ServerProcess
from tests.sql._spark_driver import driven, driving
from tests.streams._spark_apps import Once
from tests.streams._spark_cluster import WAIT_S as SPARK_WAIT_S
from tests.streams._spark_session import NEEDS_JAVA
from tests.streams.running import read, until

SETUP = """
CREATE STREAM s (k STRING KEY, n INT, g STRING) WITH (KAFKA_TOPIC='s', PARTITIONS=2, VALUE_FORMAT='JSON');
CREATE TABLE latest (k STRING PRIMARY KEY, n INT, g STRING) WITH (KAFKA_TOPIC='s', VALUE_FORMAT='JSON');
CREATE TABLE names (g STRING PRIMARY KEY, name STRING) WITH (KAFKA_TOPIC='names', PARTITIONS=2, VALUE_FORMAT='JSON');
INSERT INTO names (g, name, ROWTIME) VALUES ('g0', 'zero', 0); INSERT INTO names (g, name, ROWTIME) VALUES ('g1', 'one', 0);
"""
QUERIES = {
    "filter": "CREATE STREAM {} AS SELECT k, n * 2 AS m FROM s WHERE n > 2;",
    "sum": "CREATE TABLE {} AS SELECT k, SUM(n) AS total FROM s GROUP BY k;",
    "by-other": "CREATE TABLE {} AS SELECT g, COUNT(*) AS many, MAX(n) AS top FROM s GROUP BY g;",
    "windows": "CREATE TABLE {} AS SELECT k, COUNT(*) AS many FROM s WINDOW TUMBLING (SIZE 1 SECOND) GROUP BY k;",
    "table-join": "CREATE STREAM {} AS SELECT s.g AS g, s.n AS n, names.name FROM s LEFT JOIN names ON s.g = names.g;",
    "foreign-key": "CREATE TABLE {} AS SELECT latest.k AS k, n, name FROM latest LEFT JOIN names ON latest.g = names.g;",
}


def run(engine: SqlEngine, text: str) -> list[Any]:
    return list(engine.execute(text))


@pytest.fixture
def engine(log: Log, tmp_path: Path) -> Iterator[SqlEngine]:
    """A server that runs live queries."""
    with SqlEngine(log, tmp_path / "sql") as opened:
        run(opened, SETUP)
        opened.is_followed = True
        yield opened


def insert(engine: SqlEngine, rng: random.Random, count: int) -> None:
    """Insert rows, some of them late."""
    rows = (
        (f"k{rng.randrange(4)}", rng.randrange(9), f"g{rng.randrange(3)}", 5_000 + rng.randrange(9_000)) for _ in range(count)
    )
    run(engine, "".join(f"INSERT INTO s (k, n, g, ROWTIME) VALUES ('{k}', {n}, '{g}', {at});" for k, n, g, at in rows))


def query_of(engine: SqlEngine, sink: str) -> str:
    return next(each.id for each in engine.catalog.queries.values() if each.sink == sink)


def has_read_all(engine: SqlEngine, log: Log, sink: str) -> bool:
    engine.following.catch_up()
    application = engine.application_of(query_of(engine, sink))
    committed = log.admin().group_offsets(application, is_stable=True)
    own = [topic for topic in log.admin().list_topics(include_internal=True) if topic.startswith(application)]
    inside = [topic for topic in own if not topic.endswith("-changelog")]
    every = [tp for tp in log.admin().end_offsets(committed) if tp.topic == "s" or tp.topic in inside]
    ends = log.admin().end_offsets(every, read_committed=True)
    done = sum(committed[tp].offset for tp in every if tp.topic == "s")
    return done == total(log) and all(committed[tp].offset >= end for tp, end in ends.items())


def total(log: Log) -> int:
    return sum(log.admin().end_offsets([TopicPartition("s", p) for p in range(2)], read_committed=True).values())


def results(log: Log, topic: str, *, is_table: bool) -> object:
    """Return all records of a stream, in any order; of a table the newest of each key."""
    records = [(record.key, record.value, record.timestamp_ms) for record in read(log, topic)]
    return {key: of for key, *of in records} if is_table else sorted(records)


def move(engine: SqlEngine, query_id: str, where: str) -> None:
    run(engine, f"PAUSE {query_id}; SET 'engine' = '{where}'; RESUME {query_id}; UNSET 'engine';")
    assert engine.catalog.queries[query_id].engine == where


@pytest.mark.parametrize("kind", QUERIES)
def test_a_query_moves_to_spark_and_back_whatever_fails(log: Log, engine: SqlEngine, kind: str, tmp_path: Path) -> None:
    rng, steps = random.Random(kind), ["after-job", "after-send-offsets", "after-write", "after-commit"]

    def fail() -> None:
        raise TransportError("the broker is away")

    run(engine, QUERIES[kind].format("live") + "SET 'engine' = 'spark';" + QUERIES[kind].format("moved") + "UNSET 'engine';")
    moved, topics = query_of(engine, "MOVED"), ("LIVE", "MOVED")
    for number, place in enumerate(["spark", "live", "spark"]):
        if number:
            move(engine, moved, place)
        with driven(log, tmp_path / "driver", Once(rng.choice(steps), fail)):
            for _ in range(2):
                insert(engine, rng, rng.randrange(1, 25))
                until(lambda: all(has_read_all(engine, log, sink) for sink in topics))
        live, other = (results(log, topic, is_table="TABLE {}" in QUERIES[kind]) for topic in topics)
        assert live == other
        assert live


def test_what_spark_runs_is_paused_terminated_and_told(log: Log, engine: SqlEngine, tmp_path: Path) -> None:
    run(engine, "SET 'engine' = 'spark';")
    (made,) = run(engine, QUERIES["sum"].format("sums"))
    assert made.text.endswith("on Spark (logflume sql on-spark)")
    query_id, application = query_of(engine, "SUMS"), engine.application_of(query_of(engine, "SUMS"))
    insert(engine, random.Random(1), 20)
    (shown,) = run(engine, "SHOW QUERIES;")
    assert shown.rows[0][:2] == (query_id, "STARTING")
    assert "no driver runs it" in shown.rows[0][-1]

    def rows() -> dict[str, int]:
        (result,) = run(engine, "SELECT k, total FROM sums;")
        assert isinstance(result, Rows)
        return dict(result.rows)

    with driven(log, tmp_path / "driver"):
        until(lambda: has_read_all(engine, log, "SUMS"))
        before = rows()
        assert before
        (shown,) = run(engine, "SHOW QUERIES;")
        assert shown.rows[0][:2] == (query_id, "RUNNING")
        run(engine, f"PAUSE {query_id};")
        until(lambda: not log.admin().describe_group(application).members)
        insert(engine, random.Random(2), 20)
        run(engine, f"UNSET 'engine'; RESUME {query_id};")
        assert engine.catalog.queries[query_id].engine == "spark", "RESUME alone leaves it where it was"
        until(lambda: has_read_all(engine, log, "SUMS"))
        assert rows() != before
        run(engine, f"TERMINATE {query_id};")

        def is_gone() -> bool:
            engine.following.catch_up()
            admin = log.admin()
            left = [topic for topic in admin.list_topics(include_internal=True) if topic.startswith(application)]
            return not left and application not in admin.list_groups()

        until(is_gone)
    assert not (tmp_path / "driver" / "state" / application).exists()
    assert "SUMS" in engine.catalog.sources


def test_what_a_driver_counts_is_shown_by_others_of_its_machine_and_no_figure_without_one(
    log: Log, engine: SqlEngine, tmp_path: Path
) -> None:
    run(engine, "SET 'engine' = 'spark';" + QUERIES["filter"].format("doubled"))
    insert(engine, random.Random(1), 20)

    def shown() -> tuple[object, ...]:
        (queries,) = run(engine, "SHOW QUERIES;")
        (row,) = (dict(zip((column.name for column in queries.columns), row, strict=True)) for row in queries.rows)
        return tuple(row[name] for name in ("STATE", "RECORDS IN", "RECORDS OUT", "DROPPED", "LAG"))

    assert shown() == ("STARTING", None, None, None, None)
    with driven(log, tmp_path / "driver"):
        until(lambda: has_read_all(engine, log, "DOUBLED"))
        assert shown() == ("RUNNING", None, None, None, 0), "who runs in this process is not asked, as one elsewhere is not"
    insert(engine, random.Random(2), 10)
    assert shown() == ("STARTING", None, None, None, 10)
    with driving(log.where, tmp_path / "driver"):
        until(lambda: has_read_all(engine, log, "DOUBLED"))
        written = len(read(log, "DOUBLED"))
        counted = until(lambda: (found := shown())[1:2] == (10,) and found)
        assert counted == ("RUNNING", 10, counted[2], 0, 0)
        assert 0 < counted[2] < written
        move(engine, query_of(engine, "DOUBLED"), "live")
        until(lambda: shown() == ("RUNNING", 0, 0, 0, 0))


def test_what_was_terminated_without_a_driver_leaves_nothing_either(log: Log, engine: SqlEngine, tmp_path: Path) -> None:
    run(engine, "SET 'engine' = 'spark';" + QUERIES["sum"].format("sums"))
    query_id, application = query_of(engine, "SUMS"), engine.application_of(query_of(engine, "SUMS"))
    insert(engine, random.Random(1), 5)
    with driven(log, tmp_path / "driver"):
        until(lambda: has_read_all(engine, log, "SUMS"))
    run(engine, f"TERMINATE {query_id};")
    assert not [topic for topic in log.admin().list_topics(include_internal=True) if topic.startswith(application)]
    assert application not in log.admin().list_groups()


def test_what_cannot_be_is_refused_before_anything_changes(log: Log, engine: SqlEngine) -> None:
    with pytest.raises(StatementError, match="'engine' is 'live' or 'spark', found 'flink'"):
        run(engine, "SET 'engine' = 'flink';")
    run(engine, "UNSET 'engine';" + QUERIES["sum"].format("sums"))
    query_id = query_of(engine, "SUMS")
    run(engine, f"SET 'engine' = 'spark'; RESUME {query_id};")
    assert engine.catalog.queries[query_id].engine == "live", "it was not paused, so it was not resumed"


def test_until_end_ends_at_the_end_and_says_what_failed(log: Log, engine: SqlEngine, tmp_path: Path) -> None:
    run(engine, "SET 'engine' = 'spark';" + QUERIES["sum"].format("sums"))
    insert(engine, random.Random(1), 5)

    def to_the_end(
        load_plan: Callable[[], Plan],
        state_root: Path,
        stopping: threading.Event,
        on_batch: Callable[[BatchDone], None],
        dead_letter_topic: str | None,
    ) -> None:
        with open_batches(log, load_plan, LocalRunner().run, state_root, settings=EngineOptions()) as batches:
            while batches.step() is not None:
                pass

    def fails(*_: object) -> None:
        raise InvalidInput("no room")

    options: Any = {"state_dir": tmp_path / "driver", "until_end": True}
    with pytest.raises(LogflumeError, match=f"{query_of(engine, 'SUMS')}: no room"):
        drive_queries(log.where, fails, threading.Event(), **options)
    drive_queries(log.where, to_the_end, threading.Event(), **options)
    assert has_read_all(engine, log, "SUMS")


@pytest.mark.spark
@pytest.mark.slow
@NEEDS_JAVA
def test_the_command_runs_all_queries_of_the_catalog_in_one_session(tmp_path: Path) -> None:
    server = ServerProcess(str(tmp_path / "log"))
    try:
        rows = "".join(f"INSERT INTO s (k, n, g) VALUES ('k{n % 2}', {n}, 'g');" for n in range(20))
        queries = "SET 'engine' = 'spark';" + QUERIES["sum"].format("sums") + QUERIES["filter"].format("doubled")
        command("sql", "-e", SETUP + rows + queries, "--bootstrap", server.address)
        options = ("--master", "local[2]", "--state-dir", str(tmp_path / "state"), "--bootstrap", server.address, "--until-end")
        done = command("sql", "on-spark", *options, "--json", timeout_s=SPARK_WAIT_S)
        batches = [json.loads(line) for line in done.stdout.splitlines()]
        assert {each["query"]: each["records"] for each in batches} == {
            "logflume-sql-CTAS_SUMS_0": 20,
            "logflume-sql-CSAS_DOUBLED_1": 20,
        }
        query = "SELECT k, total FROM sums; SELECT COUNT(*) AS many FROM doubled;"
        told = command("sql", "-e", query, "--json", "--bootstrap", server.address).stdout
        assert [json.loads(line) for line in told.splitlines()] == [
            {"K": "k0", "TOTAL": 90},
            {"K": "k1", "TOTAL": 100},
            {"MANY": 17},
        ]
    finally:
        server.stop()


def test_what_a_query_left_is_not_that_of_a_later_one_of_its_id(
    engine: SqlEngine, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(engine, "CREATE STREAM o (k STRING KEY, n INT) WITH (KAFKA_TOPIC='o', PARTITIONS=2, VALUE_FORMAT='JSON');")
    run(engine, "SET 'engine' = 'spark'; INSERT INTO o WITH (QUERY_ID='Q') SELECT k, n FROM s;")
    running = engine.following.running
    with monkeypatch.context() as patch:
        patch.setattr(running, "forget", list)  # a driver still stops it
        run(engine, "TERMINATE Q;")
        run(engine, "UNSET 'engine'; INSERT INTO o WITH (QUERY_ID='Q') SELECT k, n FROM s; INSERT INTO s (k, n) VALUES ('a', 1);")
    until(lambda: len(read(log, "o")) == 1)
    run(engine, "PAUSE Q;")
    engine.following.catch_up()
    assert log.admin().group_offsets(engine.application_of("Q"))
    run(engine, "RESUME Q; INSERT INTO s (k, n) VALUES ('b', 2);")
    until(lambda: len(read(log, "o")) == 2)


def test_what_a_query_left_is_looked_for_again_when_the_log_did_not_answer(
    engine: SqlEngine, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(engine, "SET 'engine' = 'spark'; CREATE STREAM o AS SELECT k, n FROM s;")
    looks: list[int] = []

    def fails() -> Any:
        looks.append(1)
        raise TransportError("the server is away")

    clock = [10.0]
    running = engine.following.running
    monkeypatch.setattr(running, "_monotonic_s", lambda: clock[0])
    left = [Left("CSAS_O_0", "logflume-sql-CSAS_O_0", frozenset)]
    with monkeypatch.context() as patch:
        admin = log.admin()
        patch.setattr(admin, "list_groups", fails)
        patch.setattr(log, "admin", lambda: admin)
        for _ in range(3):
            assert running.forget(left) == left
        assert len(looks) == 1
    assert running.forget(left) == left
    clock[0] += 1.0
    assert running.forget(left) == []


def test_an_engine_that_there_is_not_is_refused_wherever_it_is_named(engine: SqlEngine) -> None:
    run(engine, "CREATE STREAM o AS SELECT k, n FROM s; PAUSE ALL;")
    for statement in ("CREATE STREAM p AS SELECT k, n FROM s;", "RESUME ALL;"):
        for name in ("Spark", "flink"):
            with pytest.raises(StatementError, match=f"'engine' is 'live' or 'spark', found '{name}'"):
                engine.execute_one(statement, properties={"engine": name})
    assert set(engine.catalog.queries) == {"CSAS_O_0"}
