"""Queries that end: computed once over their topics, ordered, cut; queries in FROM and WITH, there and in what runs for good."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from logflume.log import ProgressLine, connect
from logflume.sql import PushQuery, Rows, SqlEngine, StatementError
from logflume.sql.batch import Runner
from logflume.sql.render import row_csv

from .test_sql_engine import eventually

SETUP = """
CREATE STREAM S (ID INT KEY, V DOUBLE, N STRING, TAGS ARRAY<STRING>) WITH (KAFKA_TOPIC='s', PARTITIONS=3, VALUE_FORMAT='JSON');
CREATE STREAM EMPTY (ID INT KEY, V DOUBLE) WITH (KAFKA_TOPIC='empty', PARTITIONS=3, VALUE_FORMAT='JSON');
CREATE TABLE T (ID INT PRIMARY KEY, NAME STRING) WITH (KAFKA_TOPIC='t', PARTITIONS=3, VALUE_FORMAT='JSON');
INSERT INTO T (ROWTIME, ID, NAME) VALUES (1, 1, 'one'), (2, 2, 'two');
INSERT INTO S (ROWTIME, ID, V, N, TAGS) VALUES
    (10, 1, 1.5, 'a', ARRAY['x', 'y']), (20, 2, 2.5, 'b', ARRAY['y']), (30, 3, 0.5, NULL, ARRAY['z']), (3600010, 1, 4, 'a', NULL);
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlEngine]:
    folder: Path = tmp_path_factory.mktemp("once")
    with connect(folder / "log") as log, SqlEngine(log, folder / "sql") as opened:
        list(opened.execute(SETUP))
        yield opened


def rows(engine: SqlEngine, text: str) -> list[tuple[Any, ...]]:
    (result,) = engine.execute(text)
    assert isinstance(result, Rows)
    return list(result.rows)


CASES = {
    "SELECT COUNT(*), SUM(V), MAX(N) FROM S": [(4, 8.5, "b")],
    "SELECT COUNT(*), SUM(V) FROM EMPTY": [(0, 0.0)],
    "SELECT C + 1 FROM (SELECT COUNT(*) AS C FROM S) X": [(5,)],
    "SELECT MAX(NAME), COUNT(*) FROM T": [("two", 2)],
    "SELECT MAX(V), COUNT(*) FROM EMPTY WHERE V > 0": [(None, 0)],
    "SELECT N, COUNT(*) AS C FROM S GROUP BY N ORDER BY C DESC, N": [("a", 2), ("b", 1)],
    "SELECT N, COUNT(*) AS C FROM S GROUP BY N HAVING COUNT(*) > 1": [("a", 2)],
    "SELECT S.ID, T.NAME FROM S JOIN T ON S.ID = T.ID ORDER BY ID DESC LIMIT 1": [(2, "two")],
    "SELECT ID, V FROM S ORDER BY V DESC LIMIT 2": [(1, 4.0), (2, 2.5)],
    "SELECT ID, V FROM S ORDER BY 2 LIMIT 2 OFFSET 1": [(1, 1.5), (2, 2.5)],
    "SELECT ID FROM S ORDER BY N NULLS FIRST, V * -1": [(3,), (1,), (1,), (2,)],
    "SELECT ID FROM S ORDER BY N, V DESC": [(1,), (1,), (2,), (3,)],
    "SELECT ID FROM S WHERE V > 1 ORDER BY ID DESC LIMIT 0": [],
    "SELECT * FROM T ORDER BY NAME DESC": [(2, "two"), (1, "one")],
    "SELECT DISTINCT ID FROM S ORDER BY ID": [(1,), (2,), (3,)],
    "SELECT DISTINCT ID, V > 1 AS BIG FROM S ORDER BY ID, BIG": [(1, True), (2, True), (3, False)],
    "SELECT S.ID, NAME, V FROM S LEFT JOIN T ON S.ID = T.ID ORDER BY V": [
        (3, None, 0.5), (1, "one", 1.5), (2, "two", 2.5), (1, "one", 4.0),
    ],
    "SELECT NAME, SUM(V) AS TOTAL FROM S JOIN T ON S.ID = T.ID GROUP BY NAME ORDER BY NAME": [("one", 5.5), ("two", 2.5)],
    "SELECT ID, COUNT(*) AS C, WINDOWSTART AS W FROM S WINDOW TUMBLING (SIZE 1 HOUR) GROUP BY ID ORDER BY W, ID": [
        (1, 1, 0), (2, 1, 0), (3, 1, 0), (1, 1, 3600000),
    ],
    "SELECT ID FROM S WHERE V < 1 UNION ALL SELECT ID FROM S WHERE V > 3 ORDER BY ID DESC": [(3,), (1,)],
    "SELECT MAX(C) FROM (SELECT N, COUNT(*) AS C FROM S GROUP BY N) X": [(2,)],
    "SELECT COUNT(*) FROM (SELECT DISTINCT N FROM S WHERE N IS NOT NULL) X": [(2,)],
    "SELECT X.N FROM (SELECT N, V * 2 AS W FROM S) X WHERE W > 4 ORDER BY W": [("b",), ("a",)],
    "WITH BIG AS (SELECT * FROM S WHERE V > 1), NAMED AS (SELECT ID, V FROM BIG) SELECT COUNT(*) FROM NAMED": [(3,)],
    "WITH C AS (SELECT ID, COUNT(*) AS N FROM S GROUP BY ID) SELECT NAME, N FROM C JOIN T ON C.ID = T.ID ORDER BY NAME": [
        ("one", 2), ("two", 1),
    ],
    "SELECT T, COUNT(*) AS C FROM (SELECT EXPLODE(TAGS) AS T FROM S) X GROUP BY T ORDER BY T": [("x", 1), ("y", 2), ("z", 1)],
}  # fmt: skip


@pytest.mark.parametrize("text", CASES)
def test_a_query_that_ends_gives(engine: SqlEngine, text: str) -> None:
    found = rows(engine, text)
    assert (found if "ORDER BY" in text else sorted(found, key=repr)) == CASES[text]


REFUSED = {
    "SELECT ID FROM S ORDER BY 3": "counted from 1",
    "SELECT ID FROM S ORDER BY NOPE": "NOPE",
    "SELECT ID FROM S ORDER BY TAGS": "have no order",
    "SELECT DISTINCT ID FROM S ORDER BY V + 1": "ordered by columns that it selects",
    "SELECT DISTINCT COUNT(*) FROM S": "SELECT DISTINCT with aggregates",
    "SELECT ID FROM S ORDER BY ID EMIT CHANGES": "queries that end",
    "CREATE STREAM O AS SELECT ID, V FROM S ORDER BY V": "queries that end",
    "CREATE STREAM O AS SELECT * FROM (SELECT V FROM S) X": "must select its key",
    "SELECT ROWOFFSET, COUNT(*) FROM S GROUP BY ROWOFFSET": "ROWOFFSET",
    "WITH A AS (SELECT * FROM S), A AS (SELECT * FROM T) SELECT * FROM A": "names A twice",
    "SELECT * FROM (SELECT V, ROWTIME FROM S) X": "name of its own",
    "SELECT * FROM (SELECT ID, V FROM S) X JOIN (SELECT ID, NAME FROM T) X ON X.ID = X.ID": "own alias",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_query_that_cannot_be_says_why(engine: SqlEngine, text: str) -> None:
    with pytest.raises(StatementError, match=REFUSED[text]):
        list(engine.execute(text))


def test_names_of_with_do_not_multiply_without_bound(engine: SqlEngine) -> None:
    named = ["A0 AS (SELECT * FROM S)"]
    named += [f"A{n} AS (SELECT * FROM A{n - 1} UNION ALL SELECT * FROM A{n - 1})" for n in range(1, 40)]
    with pytest.raises(StatementError, match="reads more than 100 sources"):
        list(engine.execute(f"WITH {', '.join(named)} SELECT * FROM A39"))


def test_a_service_may_refuse_what_is_computed_once(engine: SqlEngine) -> None:
    with pytest.raises(StatementError, match="don't support GROUP BY"):
        engine.execute_one("SELECT N, COUNT(*) FROM S GROUP BY N", properties={"logflume.query.once.enabled": "false"})


def test_queries_within_queries_run_for_good(engine: SqlEngine) -> None:
    list(
        engine.execute(
            "CREATE STREAM BIG AS WITH X AS (SELECT ID, V * 2 AS W, N FROM S) SELECT ID, W, N FROM X WHERE W > 4;"
            "CREATE TABLE SIZES AS SELECT C, COUNT(*) AS HOW_MANY FROM (SELECT ID, COUNT(*) C FROM S GROUP BY ID) X GROUP BY C;"
        )
    )
    eventually(lambda: rows(engine, "SELECT ID, W FROM BIG ORDER BY W"), [(2, 5.0), (1, 8.0)])
    eventually(lambda: rows(engine, "SELECT C, HOW_MANY FROM SIZES WHERE HOW_MANY > 0 ORDER BY C"), [(1, 2), (2, 1)])


def test_a_circle_through_another_query_is_refused(engine: SqlEngine) -> None:
    list(engine.execute("CREATE STREAM ONCE_MORE AS SELECT * FROM S; CREATE STREAM AND_AGAIN AS SELECT * FROM ONCE_MORE;"))
    with pytest.raises(StatementError, match="by way of CSAS_ONCE_MORE"):
        list(engine.execute("INSERT INTO S SELECT * FROM AND_AGAIN"))


JOINED = """
CREATE TABLE A (K INT PRIMARY KEY, X INT) WITH (KAFKA_TOPIC='a', PARTITIONS=1, VALUE_FORMAT='JSON');
CREATE TABLE B (K INT PRIMARY KEY, Y INT) WITH (KAFKA_TOPIC='b', PARTITIONS=1, VALUE_FORMAT='JSON');
CREATE TABLE C (K INT PRIMARY KEY, Z INT) WITH (KAFKA_TOPIC='c', PARTITIONS=1, VALUE_FORMAT='JSON');
INSERT INTO A VALUES (1, 10), (2, 20);
INSERT INTO B VALUES (2, 200), (3, 300);
INSERT INTO C VALUES (1, 1000), (3, 3000), (4, 4000);
"""


@pytest.mark.parametrize("second", ["A.K = C.K", "B.K = C.K"])
def test_tables_are_joined_fully_one_after_the_other(engine: SqlEngine, second: str) -> None:
    list(engine.execute(JOINED.replace("CREATE TABLE", "CREATE OR REPLACE TABLE")))
    found = rows(engine, f"SELECT ROWKEY, X, Y, Z FROM A FULL JOIN B ON A.K = B.K FULL JOIN C ON {second} ORDER BY 1")
    assert found == [(1, 10, None, 1000), (2, 20, 200, None), (3, None, 300, 3000), (4, None, None, 4000)]


def test_aggregates_of_all_rows_can_be_followed(engine: SqlEngine) -> None:
    (query,) = engine.execute("SELECT COUNT(*) AS N, MAX(V) FROM S EMIT CHANGES LIMIT 1;")
    assert isinstance(query, PushQuery)
    assert [row.values for row in query] == [(4, 4.0)]
    with pytest.raises(StatementError, match=r"does not support aggregate function .* without a GROUP BY clause"):
        list(engine.execute("CREATE TABLE ALL_ROWS AS SELECT COUNT(*) FROM S;"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class SlowClock:
    """Each look at it is a second later."""

    now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def read_slowly(engine: SqlEngine, told: io.StringIO, clock: Callable[[], float], query: str) -> str:
    """Return what a query prints; `told` gets its progress."""
    out = io.StringIO()
    progress = ProgressLine(told, monotonic_s=clock)
    Runner(engine, Console(file=out, width=100), row_text=row_csv, progress=progress).run_text(query)
    return out.getvalue()


@pytest.mark.parametrize(
    ("query", "read"),
    [
        ("SELECT COUNT(*) AS C FROM S;", 4),
        ("SELECT ID FROM S WHERE ID = 2;", 4),
        ("SELECT S.ID FROM S JOIN T ON S.ID = T.ID;", 2),
    ],
)
def test_a_long_select_says_at_a_terminal_how_far_it_has_read_and_leaves_it_clean(
    engine: SqlEngine, query: str, read: int
) -> None:
    told = Terminal()
    out = read_slowly(engine, told, SlowClock(), query)
    first, *shown, last = told.getvalue().split("\r\x1b[K")
    assert (first, last) == ("", ""), "the line is gone at the end"
    assert re.match(rf"records read: {read} of {read} \(100 %\)", shown[-1])
    assert "records read" not in out


def test_a_long_select_in_a_pipe_tells_a_line_now_and_then_beside_its_rows_and_a_short_one_nothing(engine: SqlEngine) -> None:
    told = io.StringIO()
    out = read_slowly(engine, told, SlowClock(), "SELECT ID FROM S; SELECT ID FROM S; SELECT ID FROM S; SELECT ID FROM S;")
    assert "\x1b" not in told.getvalue() + out
    assert "records read" not in out
    for told in (io.StringIO(), Terminal()):
        read_slowly(engine, told, lambda: 0.0, "SELECT ID FROM S;")
        assert told.getvalue() == "", "what is soon done says nothing"
