"""Pull queries by key that are bound once: other keys are answered as if the query had been looked at anew."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logflume.log import connect
from logflume.sql import SqlEngine
from logflume.sql.rest.forms import Chunked
from logflume.sql.rest.queries import Queries, whole
from logflume.sql.results import Rows
from logflume.sql.session import Session

SETUP = """
CREATE STREAM s (k STRING KEY, i INT, l BIGINT) WITH (KAFKA_TOPIC='s', PARTITIONS=3, VALUE_FORMAT='JSON');
CREATE TABLE by_text AS SELECT k, COUNT(*) AS n, MAX(l) AS m FROM s GROUP BY k EMIT CHANGES;
CREATE TABLE by_int AS SELECT i, COUNT(*) AS n, SUM(l) * 2 AS twice FROM s GROUP BY i;
CREATE TABLE by_window AS SELECT k, COUNT(*) AS n FROM s WINDOW TUMBLING (SIZE 1 DAY) GROUP BY k;
CREATE TABLE many AS SELECT k, COUNT(*) AS n FROM s GROUP BY k HAVING COUNT(*) > 1;
"""
KEYS = ("a", "it's", "", "é\n", "; --", "7", "-1")
NUMBERS = (-1, 0, 1, 7, 2**31 - 1)
SHAPES = (
    "SELECT * FROM by_text WHERE k = {0};",
    "SELECT m, k AS key, ROWTIME FROM by_text WHERE {0} = k",
    "SELECT * FROM by_text WHERE k IN ({0}, {1}, {0});",
    "SELECT * FROM by_text WHERE k = {0} AND n > {1};",
    "SELECT * FROM by_text WHERE k = {0} LIMIT {1};",
    "SELECT k, {0} AS said FROM by_text WHERE k = {1};",
    "SELECT * FROM by_int WHERE i = {0};",
    "SELECT n, twice, i FROM by_int WHERE i IN ({0}, -{1});",
    "SELECT * FROM by_window WHERE k = {0};",
    "SELECT WINDOWEND, n, k FROM by_window WHERE k = {0} AND WINDOWSTART > {1};",
    "SELECT * FROM many WHERE k IN ({0}, {1});",
    "SELECT * FROM s WHERE k = {0};",
)
LITERALS = st.one_of(
    st.sampled_from(KEYS).map(lambda key: "'" + key.replace("'", "''") + "'"),
    st.sampled_from((*map(abs, NUMBERS), 2**31, 2**63)).map(str),
    st.just("1.5"),
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlEngine]:
    path = tmp_path_factory.mktemp("points")
    with connect(path / "log") as log, SqlEngine(log, path / "sql") as opened:
        list(opened.execute(SETUP))
        rows = [{"K": key, "I": number, "L": number * 10} for key in KEYS for number in NUMBERS]
        rows += [{"K": "once", "I": 5, "L": 50}]
        assert not any(opened.rows.send("s", [json.dumps(row).encode() for row in rows])())
        for table, expected in (("by_text", 8), ("by_int", 6), ("by_window", 8), ("many", 7)):
            while len(answer(opened, f"SELECT * FROM {table};").rows) < expected:  # the test's own limit ends it
                time.sleep(0.01)
        opened.is_followed = True
        yield opened


def answer(engine: SqlEngine, text: str) -> Rows:
    (found,) = engine.execute(text)
    assert isinstance(found, Rows)
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.sampled_from(SHAPES), st.lists(st.tuples(LITERALS, LITERALS), min_size=3, max_size=5))
def test_a_query_with_other_literals_is_answered_as_if_it_came_alone(
    engine: SqlEngine, shape: str, rows: list[tuple[str, str]]
) -> None:
    queries = Queries(engine)
    for row in rows:
        text = shape.format(*row)
        found = queries.start_at_once(text, Session())
        if found is not None:
            expected = answer(engine, text)
            assert isinstance(found.rows, Rows)
            assert (found.columns, sorted(found.rows.rows), found.keys) == (
                expected.columns,
                sorted(expected.rows),
                expected.keys,
            )


def test_a_query_by_key_waits_for_nothing_from_the_second_on(engine: SqlEngine) -> None:
    queries = Queries(engine)
    list(engine.execute("SELECT k, n FROM by_text WHERE k = 'x';"))
    for key, n in (("a", 5), ("once", 1)):
        found = queries.start_at_once(f"SELECT k, n FROM by_text WHERE k = '{key}';", Session())
        assert found is not None
        (_, row) = json.loads(whole(found, Chunked()) or b"")
        assert row == {"row": {"columns": [key, n]}}


def test_thousands_of_keys_are_answered_together(engine: SqlEngine) -> None:
    for n in range(3):
        keys = ", ".join(f"'{key}'" for key in ["a", "once", *(f"no{n}{each}" for each in range(2000))])
        found = Queries(engine).start(f"SELECT * FROM by_text WHERE k IN ({keys});", Session())
        assert isinstance(found.rows, Rows)
        assert sorted(found.rows.rows) == [("a", 5, (2**31 - 1) * 10), ("once", 1, 50)]


def test_a_table_that_is_made_anew_is_answered_by_what_it_is_now(engine: SqlEngine) -> None:
    list(engine.execute("CREATE TABLE again AS SELECT k, COUNT(*) AS n FROM s GROUP BY k;"))

    def pulled(key: str) -> object:
        text = f"SELECT * FROM again WHERE k = '{key}';"
        at_once = Queries(engine).start_at_once(text, Session())
        return answer(engine, text).rows if at_once is None else at_once.rows.rows if isinstance(at_once.rows, Rows) else None

    while (pulled("a"), pulled("once")) != ((("a", 5),), (("once", 1),)):
        time.sleep(0.01)
    list(engine.execute("DROP TABLE again DELETE TOPIC; CREATE TABLE again AS SELECT k, MIN(l) AS n FROM s GROUP BY k;"))
    while (pulled("a"), pulled("once")) != ((("a", -10),), (("once", 50),)):
        time.sleep(0.01)
