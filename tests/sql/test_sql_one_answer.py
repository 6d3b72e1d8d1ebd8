"""Random queries, run in every way there is, give one answer, which is DuckDB's: by three workers of which one is killed in the
middle, pulled from them, pushed, computed once, and backfilled."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from logflume.log import LogflumeError, connect
from logflume.log.interfaces import Log
from logflume.log.server import start_embedded
from logflume.sql import PushQuery, Rows, SqlEngine
from logflume.sql.first_read import wait_until_read
from logflume.streams.spark import LocalRunner, plan_backfill, run_backfill

from .test_sql_duckdb import SETUP, SOURCES, Query, alike, duck, queries, records  # noqa: F401 - `duck` is a fixture
from .test_sql_many_workers import start_worker
from .test_sql_once import rows

Row = tuple[Any, ...]
WORKERS, LIMIT_S = 3, 180.0
KINDS = (SOURCES[1:3], SOURCES[3:4], SOURCES[6:8])
"""One query of each: a stream beside a table, a table, tables by a foreign key."""


@dataclass(frozen=True)
class Cluster:
    """A broker with its workers, and an engine that runs nothing."""

    address: str
    log: Log
    engine: SqlEngine
    workers: list[Any]
    folder: Path

    def kill_and_start_again(self, number: int) -> None:
        self.workers[number].kill()
        self.workers[number].wait()
        self.workers[number] = start_worker(self.address, self.folder / f"state-{number}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("one")
    with start_embedded(str(folder / "log")) as broker:
        address = str(broker.addresses[0])
        with connect(address) as log, SqlEngine(log, folder / "sql", runs_queries=False) as engine:
            workers = [start_worker(address, folder / f"state-{number}") for number in range(WORKERS)]
            try:
                yield Cluster(address, log, engine, workers, folder)
            finally:
                for worker in workers:
                    worker.kill()
                    worker.wait()


def send(log: Log, sent: list[tuple[int, tuple[str, bytes | None, bytes | None]]]) -> None:
    with log.producer() as producer:
        for at_ms, (topic, key, value) in sent:
            producer.send(topic, value, key=key, timestamp_ms=at_ms)


def wait_for_all(cluster: Cluster) -> None:
    """Wait until the queries have read what there is."""
    for query_id, known in cluster.engine.applied.queries.items():
        plan = cluster.engine.following.compiled(query_id, known)
        left = wait_until_read(
            cluster.log.admin(),
            plan,
            lambda read, total: None,
            until_s=time.monotonic() + LIMIT_S,
            has_failed=lambda: False,
            monotonic_s=time.monotonic,
            wait=time.sleep,
        )
        assert not left, (query_id, left)


def pulled(cluster: Cluster, name: str) -> list[Row]:
    (found,) = cluster.engine.execute(f"SELECT * FROM {name};")
    assert isinstance(found, Rows)
    return list(found.rows)


def pulled_in_the_end(cluster: Cluster, name: str, expected: Counter[Row]) -> list[Row]:
    """Pull until the answer is as expected or time is over; a partition may be on its way from one worker to another."""
    over_s = time.monotonic() + LIMIT_S
    while True:
        try:
            found = pulled(cluster, name)
        except LogflumeError:
            found = []
        if alike(found) == expected or time.monotonic() > over_s:
            return found
        time.sleep(0.05)


def pushed_in_the_end(cluster: Cluster, query: Query, expected: Counter[Row]) -> list[Row]:
    """Follow a query until what it has shown is as expected; of a table the last row of each key counts."""
    (push,) = cluster.engine.execute(f"{query.ours} EMIT CHANGES;")
    assert isinstance(push, PushQuery)
    seen: list[Row] = []
    over_s = time.monotonic() + LIMIT_S
    with push:
        while alike(seen) != expected and time.monotonic() < over_s:
            row = push.poll(timeout_s=1.0)
            if row is None:
                continue
            if query.is_table:
                seen = [each for each in seen if each[0] != row.values[0]]
            if not row.is_tombstone:
                seen.append(tuple(row.values))
    return seen


def backfilled(cluster: Cluster, text: str) -> None:
    prepared = cluster.engine.prepare(text)
    run_backfill(plan_backfill(prepared.compile, cluster.address), LocalRunner())
    cluster.engine.start(prepared)


def said(query: Query, name: str) -> str:
    kind = "TABLE" if query.is_table else "STREAM"
    return f"CREATE {kind} {name} WITH (KAFKA_TOPIC='{name}-{time.monotonic_ns()}') AS {query.ours};"


def drawn() -> tuple[Query, ...]:
    """Return one query of each kind. The first that Hypothesis draws are the simplest; so one that comes later."""
    seen: list[tuple[Query, ...]] = []

    @settings(max_examples=20, database=None, phases=[Phase.generate])
    @given(asked=st.tuples(*(queries(sources=kind) for kind in KINDS)))
    def draw(asked: tuple[Query, ...]) -> None:
        seen.append(asked)

    draw()
    return seen[-1]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_way_of_running_a_query_gives_the_same(
    cluster: Cluster,
    duck: duckdb.DuckDBPyConnection,  # noqa: F811
) -> None:
    engine, asked = cluster.engine, drawn()
    list(engine.execute(SETUP.replace("PARTITIONS=1", f"PARTITIONS={WORKERS}")))
    every = list(enumerate(records()))
    tables, stream = [each for each in every if each[1][0] != "r"], [each for each in every if each[1][0] == "r"]
    for number, query in enumerate(asked):
        list(engine.execute(said(query, f"live{number}")))
    send(cluster.log, tables)
    wait_for_all(cluster)  # a row of the stream meets the tables as they are
    send(cluster.log, stream[: len(stream) // 2])
    cluster.kill_and_start_again(0)
    send(cluster.log, stream[len(stream) // 2 :])
    wait_for_all(cluster)
    for number, query in enumerate(asked):
        expected = alike(duck.execute(query.theirs).fetchall())
        backfilled(cluster, said(query, f"computed{number}"))
        for way in (
            partial(rows, engine, f"{query.ours};"),
            partial(pulled_in_the_end, cluster, f"live{number}", expected),
            partial(pulled_in_the_end, cluster, f"computed{number}", expected),
            partial(pushed_in_the_end, cluster, query, expected),
        ):
            assert alike(way()) == expected, (query.ours, way)
