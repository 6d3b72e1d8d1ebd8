"""Push queries that go on behind a token: over HTTP, in another engine, and what is no token."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logflume.log import Log, TopicPartition, connect
from logflume.sql import SqlEngine
from logflume.sql.errors import StatementError
from logflume.sql.rest import SqlServer
from logflume.sql.results import PushQuery
from logflume.sql.resuming import Places

SETUP = """
CREATE STREAM s (id INT KEY, l ARRAY<INT>) WITH (KAFKA_TOPIC='s', PARTITIONS=2, VALUE_FORMAT='JSON');
INSERT INTO s VALUES (1, ARRAY[10, 11, 12]); INSERT INTO s VALUES (2, ARRAY[20, 21]); INSERT INTO s VALUES (3, ARRAY[30]);
CREATE TABLE t AS SELECT id, COUNT(*) AS n FROM s GROUP BY id;
"""
QUERY = "SELECT id, EXPLODE(l) AS v FROM s WHERE id > 0 EMIT CHANGES"
ALL = {(1, 10), (1, 11), (1, 12), (2, 20), (2, 21), (3, 30)}
TOKENS = "SET 'ksql.query.push.v2.continuation.tokens.enabled' = 'true';"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    with connect(tmp_path_factory.mktemp("tokens") / "log") as opened:
        yield opened


@pytest.fixture(scope="module")
def engine(log: Log, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlEngine]:
    with SqlEngine(log, tmp_path_factory.mktemp("engine")) as opened:
        list(opened.execute(SETUP))
        yield opened


def push(engine: SqlEngine, text: str, token: str = "") -> PushQuery:
    told = f"SET 'request.ksql.query.push.continuation.token' = '{token}';" if token else ""
    (query,) = [r for r in engine.execute(f"{TOKENS} {told} {text};") if isinstance(r, PushQuery)]
    list(engine.execute("UNSET 'request.ksql.query.push.continuation.token';"))
    return query


def taken(query: PushQuery, count: int) -> tuple[list[tuple[Any, ...]], str]:
    """Return that many rows, and the token behind them."""
    with query:
        rows = [row.values for row in islice(query, count)]
        assert query.token is not None
        return rows, query.token


@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_what_was_given_is_not_given_again_and_nothing_is_left_out(engine: SqlEngine, count: int) -> None:
    first, token = taken(push(engine, QUERY), count)
    if count == len(ALL):
        assert set(first) == ALL
        return
    rest, _ = taken(push(engine, QUERY + " LIMIT 9", token), len(ALL) - count)
    assert sorted(first + rest) == sorted(ALL)


def test_over_http_tokens_stand_behind_rows(engine: SqlEngine) -> None:
    wanted = {"ksql.query.push.v2.continuation.tokens.enabled": True}
    with SqlServer(engine) as server, httpx.Client(base_url=server.address, timeout=120) as client:
        got = client.post("/query", json={"ksql": f"{QUERY} LIMIT 4;", "streamsProperties": wanted}).json()
        token = [part for part in got if "continuationToken" in part][-1]["continuationToken"]["continuationToken"]
        body = {"sql": f"{QUERY} LIMIT 2;", "requestProperties": {"request.ksql.query.push.continuation.token": token}}
        lines = client.post("/query-stream", json=body, headers={"accept": "application/json"}).json()
    rows = [tuple(part["row"]["columns"]) for part in got if "row" in part]
    rows += [tuple(part) for part in lines if isinstance(part, list)]
    assert sorted(rows) == sorted(ALL)
    assert any("continuationToken" in part for part in lines[1:] if isinstance(part, dict))


@pytest.mark.parametrize(
    ("text", "token", "message"),
    [
        (QUERY, "x", "not a continuation token"),
        (QUERY, "e30=", "not a continuation token"),
        (QUERY, "A" * 1_000_001, "at most 1,000,000 characters"),
        (QUERY, "eyJxdWVyeSI6IngiLCJhdCI6e319", "of another query"),
        ("SELECT * FROM t EMIT CHANGES", "", "queries over one stream"),
        ("SELECT id, COUNT(*) FROM s GROUP BY id EMIT CHANGES", "", "queries over one stream"),
        ("SELECT * FROM s PARTITION BY l[1] EMIT CHANGES", "", "queries over one stream"),
    ],
)
def test_what_cannot_go_on_says_so(engine: SqlEngine, text: str, token: str, message: str) -> None:
    with pytest.raises(StatementError, match=message):
        push(engine, text, token)
    list(engine.execute("UNSET 'request.ksql.query.push.continuation.token';"))


def test_a_token_whose_records_are_gone_says_so(engine: SqlEngine, log: Log) -> None:
    list(engine.execute("CREATE STREAM g (v INT) WITH (KAFKA_TOPIC='g', PARTITIONS=1, VALUE_FORMAT='JSON');"))
    list(engine.execute("INSERT INTO g VALUES (1); INSERT INTO g VALUES (2); INSERT INTO g VALUES (3);"))
    _, token = taken(push(engine, "SELECT v FROM g EMIT CHANGES"), 1)
    log.admin().delete_records({TopicPartition("g", 0): 2})
    with pytest.raises(StatementError, match="goes on at offset 0 of g-0, which has 2 to 3"):
        push(engine, "SELECT v FROM g EMIT CHANGES", token)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3)), max_size=12), st.data())
def test_wherever_it_stops_each_row_is_new_once(records: list[tuple[int, int]], data: st.DataObject) -> None:
    """Records of two partitions with so many rows each: any cut, and any order of partitions behind it."""
    offsets = [0, 0]
    rows: list[tuple[int, int]] = []
    for partition, count in records:
        rows += [(partition, offsets[partition])] * count
        offsets[partition] += 1
    cut = data.draw(st.integers(0, len(rows)))
    first = Places("d", {0: (0, 0), 1: (0, 0)})
    assert all(first.is_new(*row) for row in rows[:cut])
    starts = {p.partition: offset for p, offset in first.starts("s").items()}
    told = json.loads(base64.urlsafe_b64decode(first.token()))
    second = Places("d", {int(number): (offset, count) for number, (offset, count) in told["at"].items()})
    again = sorted((row for row in rows if row[1] >= starts[row[0]]), key=lambda row: row[0])
    assert sorted(rows[:cut] + [row for row in again if second.is_new(*row)]) == sorted(rows)
