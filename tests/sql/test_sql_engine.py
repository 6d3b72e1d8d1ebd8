"""The engine over a real embedded log: definitions, queries of all kinds, restart, and what is refused."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from logflume.log.interfaces import Log
from logflume.log.registry import Rights
from logflume.sql import Message, PushQuery, Rows, SqlEngine, StatementError
from logflume.sql.session import Session

SETUP = """
CREATE STREAM S (ID INT KEY, V DOUBLE, N STRING) WITH (KAFKA_TOPIC='s', PARTITIONS=2, VALUE_FORMAT='JSON');
CREATE TABLE T (ID INT PRIMARY KEY, NAME STRING) WITH (KAFKA_TOPIC='t', PARTITIONS=2, VALUE_FORMAT='JSON');
INSERT INTO T (ROWTIME, ID, NAME) VALUES (1, 1, 'one'); INSERT INTO T (ROWTIME, ID, NAME) VALUES (2, 2, 'two');
INSERT INTO S (ROWTIME, ID, V, N) VALUES (10, 1, 1.5, 'a');
INSERT INTO S (ROWTIME, ID, V, N) VALUES (20, 2, 2.5, 'b');
INSERT INTO S (ROWTIME, ID, V, N) VALUES (3600010, 1, 4, 'a');
"""


@pytest.fixture
def engine(log: Log, tmp_path: Path) -> Iterator[SqlEngine]:
    with SqlEngine(log, tmp_path / "sql") as opened:
        yield opened


def run(engine: SqlEngine, text: str) -> list[Any]:
    return list(engine.execute(text))


def rows(engine: SqlEngine, text: str) -> list[tuple[Any, ...]]:
    (result,) = run(engine, text)
    assert isinstance(result, Rows)
    return sorted(result.rows, key=repr)


def eventually(read: Callable[[], Any], expected: Any, *, timeout_s: float = 30.0) -> None:
    """Wait until `read` gives what is expected."""
    deadline = time.monotonic() + timeout_s
    found = read()
    while found != expected and time.monotonic() < deadline:
        threading.Event().wait(0.05)
        found = read()
    assert found == expected


def test_streams_and_tables_are_read_from_the_beginning(engine: SqlEngine) -> None:
    run(engine, SETUP)
    assert rows(engine, "SELECT ID, N, ROWTIME FROM S WHERE V > 2") == [(1, "a", 3600010), (2, "b", 20)]
    run(engine, "INSERT INTO T VALUES (2, 'zwei')")
    assert rows(engine, "SELECT * FROM T") == [(1, "one"), (2, "zwei")]
    assert rows(engine, "SELECT * FROM S LIMIT 1")[0][0] in (1, 2)


def test_pull_queries_answer_from_state_by_key_and_by_scan(engine: SqlEngine) -> None:
    run(engine, SETUP + "CREATE TABLE C AS SELECT N, COUNT(*) AS CNT, SUM(V) * 2 AS D FROM S GROUP BY N HAVING COUNT(*) > 1;")
    eventually(lambda: rows(engine, "SELECT * FROM C"), [("a", 2, 11.0)])
    (by_key,) = run(engine, "SELECT D, CNT + 1 AS MORE FROM C WHERE N IN ('a', 'b', 'x')")
    assert by_key.rows == ((11.0, 3),)
    assert by_key.note == "read from 3 key(s) of its state"
    assert rows(engine, "SELECT * FROM C WHERE N = 'b'") == []


def test_windowed_tables_are_pulled_by_key_and_window(engine: SqlEngine) -> None:
    run(engine, SETUP + "CREATE TABLE W AS SELECT N, COUNT(*) AS CNT FROM S WINDOW TUMBLING (SIZE 1 HOUR) GROUP BY N;")
    everything = [("a", 0, 3600000, 1), ("a", 3600000, 7200000, 1), ("b", 0, 3600000, 1)]
    eventually(lambda: rows(engine, "SELECT * FROM W"), everything)
    assert rows(engine, "SELECT * FROM W WHERE N = 'a'") == everything[:2]
    assert rows(engine, "SELECT CNT, WINDOWSTART FROM W WHERE N = 'a' AND WINDOWSTART >= '1970-01-01T01'") == [(1, 3600000)]


def test_joins_and_inserts_run_as_queries(engine: SqlEngine) -> None:
    run(
        engine,
        SETUP
        + "CREATE STREAM J AS SELECT S.ID AS ID, UCASE(T.NAME) AS NAME, V FROM S LEFT JOIN T ON S.ID = T.ID;"
        + "CREATE STREAM ALL_NAMES (ID INT KEY, NAME STRING) WITH (KAFKA_TOPIC='all', PARTITIONS=2, VALUE_FORMAT='JSON');"
        + "INSERT INTO ALL_NAMES SELECT ID, NAME FROM J;",
    )
    eventually(lambda: rows(engine, "SELECT * FROM ALL_NAMES"), [(1, "ONE"), (1, "ONE"), (2, "TWO")])


def test_push_queries_follow_until_their_limit_or_cancel(engine: SqlEngine) -> None:
    run(engine, SETUP)
    (push,) = run(engine, "SELECT N, V FROM S WHERE V > 1 EMIT CHANGES LIMIT 3")
    assert isinstance(push, PushQuery)
    assert sorted(r.values for r in push) == [("a", 1.5), ("a", 4.0), ("b", 2.5)]
    (endless,) = run(engine, "SELECT N, COUNT(*) AS CNT FROM S GROUP BY N EMIT CHANGES")
    first = list(itertools.islice(iter(endless), 2))
    assert {r.values for r in first} == {("a", 2), ("b", 1)}
    endless.close()
    run(engine, "INSERT INTO S VALUES (7, 7, 'c')")
    assert rows(engine, "SELECT ID FROM S WHERE ID = 7") == [(7,)]


def test_queries_survive_a_restart(log: Log, tmp_path: Path) -> None:
    with SqlEngine(log, tmp_path / "sql") as engine:
        run(engine, SETUP + "CREATE TYPE NAME AS STRING; CREATE TABLE C AS SELECT N, COUNT(*) AS CNT FROM S GROUP BY N;")
        eventually(lambda: rows(engine, "SELECT * FROM C"), [("a", 2), ("b", 1)])
    with SqlEngine(log, tmp_path / "sql") as again:
        assert list(again.catalog.queries) == ["CTAS_C_0"]
        assert list(again.catalog.types) == ["NAME"]
        run(again, "INSERT INTO S VALUES (1, 1, 'a')")
        eventually(lambda: rows(again, "SELECT * FROM C"), [("a", 3), ("b", 1)])
        (message,) = run(again, "CREATE TABLE E AS SELECT N, MAX(V) AS M FROM S GROUP BY N")
        assert message.query_id == "CTAS_E_1"
        run(again, "TERMINATE CTAS_C_0; DROP TABLE C DELETE TOPIC")
    with SqlEngine(log, tmp_path / "sql") as third:
        assert set(third.catalog.sources) == {"S", "T", "E"}
        assert list(third.catalog.queries) == ["CTAS_E_1"]
        assert not [t for t in log.admin().list_topics(include_internal=True) if "CTAS_C_0" in t]


def test_two_engines_of_a_service_agree(log: Log, tmp_path: Path, engine: SqlEngine) -> None:
    with SqlEngine(log, tmp_path / "other", runs_queries=False) as other:
        run(engine, SETUP)
        (message,) = run(other, "CREATE TABLE C AS SELECT N, COUNT(*) AS CNT FROM S GROUP BY N")
        assert message.query_id == "CTAS_C_0"
        assert rows(engine, "SHOW QUERIES")[0][0] == "CTAS_C_0"
        eventually(lambda: rows(other, "SELECT * FROM C"), [("a", 2), ("b", 1)])


def test_a_result_can_be_used_by_the_next_statement_though_another_process_runs_the_query(log: Log, tmp_path: Path) -> None:
    with SqlEngine(log, tmp_path / "other", runs_queries=False) as other:
        run(other, SETUP + "CREATE STREAM A AS SELECT * FROM S; CREATE STREAM B AS SELECT * FROM A PARTITION BY N;")
        run(other, "CREATE TABLE C AS SELECT N, COUNT(*) AS CNT FROM B GROUP BY N; CREATE TABLE D AS SELECT * FROM C;")
        assert rows(other, "SELECT * FROM D") == rows(other, "SELECT * FROM A") == []
        described = log.admin().describe_topics(["A", "B", "C", "D"])
        assert [described[name].partitions for name in "ABCD"] == [2, 2, 2, 2]


REFUSED = {
    "SELECT VV FROM S": "Did you mean V?",
    "SELECT * FROM SS": "Did you mean S?",
    "SELECT ABSS(V) FROM S": "did you mean ABS?",
    "CREATE STREAM X (A STRNG) WITH (KAFKA_TOPIC='x', PARTITIONS=1, VALUE_FORMAT='JSON')": "did you mean STRING?",
    "CREATE STREAM X (A STRING) WITH (KAFKA_TOPIC='x', PARTITIONS=1, VALUE_FORMAT='JSN')": "did you mean JSON",
    "CREATE STREAM X (A STRING) WITH (KAFKA_TOPC='x', VALUE_FORMAT='JSON')": "Did you mean KAFKA_TOPIC?",
    "CREATE STREAM X (A STRING) WITH (KAFKA_TOPIC='nope', VALUE_FORMAT='JSON')": "Kafka topic does not exist: nope",
    "CREATE STREAM S (A STRING) WITH (KAFKA_TOPIC='s', VALUE_FORMAT='JSON')": "already exists",
    "CREATE TABLE X AS SELECT ID, V FROM S": "Please use CREATE STREAM AS SELECT",
    "CREATE TABLE X AS SELECT N, V, COUNT(*) FROM S GROUP BY N": "not part of GROUP BY: V",
    "CREATE TABLE X AS SELECT COUNT(*) AS C FROM S GROUP BY N": "must include the grouping expression N",
    "CREATE STREAM X AS SELECT ID, V FROM S WHERE N > 3": "Cannot compare N (STRING) to 3 (INTEGER)",
    "CREATE STREAM X AS SELECT * FROM S JOIN T ON S.N = T.ID": "types don't match",
    "SELECT N, V FROM S PARTITION BY N": "Add EMIT CHANGES",
    "CREATE STREAM X AS SELECT N, V FROM S ORDER BY V": "ORDER BY is for queries that end",
    "INSERT INTO S (ID, VV) VALUES (1, 2)": "Did you mean V?",
    "INSERT INTO S (ID, V) VALUES (1, 'x')": "field `V` but got STRING(x). Cannot convert",
    "INSERT INTO T (NAME) VALUES ('x')": "primary key",
    "DROP STREAM T": "Incompatible data source type",
    "TERMINATE CTAS_NOPE_0": "Unknown queryId",
    "SET 'auto.ofset.reset' = 'latest'": "did you mean 'auto.offset.reset'",
    "PAUSE CTAS_NOPE_0": "Unknown queryId",
    "CREATE STREAM X (A STRING) WITH (KAFKA_TOPIC='x', PARTITIONS=1, VALUE_FORMAT='AVR')": "did you mean AVRO",
}


def test_what_cannot_be_is_refused_and_changes_nothing(engine: SqlEngine) -> None:
    run(engine, SETUP)
    catalog, topics = engine.catalog, engine.log.admin().list_topics(include_internal=True)
    for text, message in REFUSED.items():
        with pytest.raises(StatementError) as caught:
            run(engine, f"SHOW TABLES;\n{text};\nSHOW STREAMS;")
        error = caught.value
        assert message in error.reason, text
        assert error.text == text
        assert error.line == 2
        assert error.column >= 1
    assert engine.catalog == catalog
    assert engine.log.admin().list_topics(include_internal=True) == topics


def test_show_describe_and_explain(engine: SqlEngine) -> None:
    run(engine, SETUP + "DEFINE x = 'S'; SET 'auto.offset.reset' = 'earliest';")
    assert [r[0] for r in rows(engine, "SHOW STREAMS")] == ["S"]
    assert [r[0] for r in rows(engine, "SHOW TOPICS")] == ["s", "t"]
    assert rows(engine, "DESCRIBE ${x}") == [("ID", "INTEGER", "KEY"), ("N", "STRING", ""), ("V", "DOUBLE", "")]
    assert any("ROUND" in r[0] for r in rows(engine, "DESCRIBE FUNCTION ROUND"))
    assert ("x", "S") not in rows(engine, "SHOW VARIABLES")
    assert rows(engine, "SHOW VARIABLES") == [("X", "S")]
    (plan,) = run(engine, "EXPLAIN SELECT N, COUNT(*) FROM S WHERE V > 1 GROUP BY N EMIT CHANGES")
    text = "\n".join(r[0] for r in plan.rows)
    assert "Aggregate COUNT(*)" in text
    assert "Filter [WHERE] (V > 1.0)" in text
    assert len(rows(engine, "SHOW FUNCTIONS")) == 154
    assert isinstance(run(engine, "UNSET 'auto.offset.reset'")[0], Message)


def test_records_that_do_not_fit_are_counted_never_silent(engine: SqlEngine, log: Log) -> None:
    run(engine, SETUP)
    producer = log.producer()
    for value in (b"no json", b'{"V": "x"}', b'{"V": 8}'):
        producer.send("s", value, key=b"\0\0\0\1", timestamp_ms=5)
    producer.flush()
    producer.close()
    (found,) = run(engine, "SELECT V FROM S WHERE V > 3")
    assert sorted(found.rows) == [(4.0,), (8.0,)]
    assert "2 record(s) left out, the first s[" in found.note
    (push,) = run(engine, "SELECT V FROM S EMIT CHANGES LIMIT 4")
    assert sorted(r.values for r in push) == [(1.5,), (2.5,), (4.0,), (8.0,)]
    assert push.dropped() == {"decode": 2}
    run(engine, "CREATE STREAM O AS SELECT ID, V FROM S")
    eventually(lambda: rows(engine, "SHOW QUERIES")[0][3:6], (6, 4, 2))
    assert re.fullmatch(r"2 decode at \S+, topic s", rows(engine, "SHOW QUERIES")[0][8])
    (analysed,) = run(engine, "EXPLAIN ANALYZE CSAS_O_0")
    assert re.search(r"2 decode at \S+, topic s \(the first: s-\d offset \d: ", analysed.note)
    stranger = Session(rights=Rights("bob", read=("o",)))
    (analysed,) = engine.execute("EXPLAIN ANALYZE CSAS_O_0", session=stranger)
    assert re.search(r"2 decode at \S+, topic s;", analysed.note), "what stands in a record is for readers of its topic"


def test_a_source_in_use_cannot_be_dropped(engine: SqlEngine) -> None:
    run(engine, SETUP + "CREATE STREAM O AS SELECT ID, V FROM S;")
    reads = r"streams and/or tables read from this source: \[O\].\nYou need to drop them before dropping S"
    with pytest.raises(StatementError, match=reads):
        run(engine, "DROP STREAM S")
    run(engine, "CREATE STREAM P (ID INT KEY, V DOUBLE) WITH (KAFKA_TOPIC='p', PARTITIONS=1, VALUE_FORMAT='JSON');")
    run(engine, "INSERT INTO P SELECT ID, V FROM O;")
    for name, reading, writing in (("O", "INSERTQUERY_1", ""), ("P", "", "INSERTQUERY_1")):
        used = rf"read from this source: \[{reading}\].\n.*write into this source: \[{writing}\].\nYou need to terminate"
        with pytest.raises(StatementError, match=used):
            run(engine, f"DROP STREAM {name}")
    run(engine, "TERMINATE INSERTQUERY_1; DROP STREAM P; DROP STREAM O; DROP STREAM S DELETE TOPIC;")
    assert rows(engine, "SHOW STREAMS") == []
    assert rows(engine, "SHOW QUERIES") == []


REPLACEMENTS = {
    "TABLE s (id INT PRIMARY KEY, v INT) WITH (KAFKA_TOPIC='s', VALUE_FORMAT='JSON')": "has type = KSTREAM .* to KTABLE",
    "STREAM s (id INT KEY, v INT) WITH (KAFKA_TOPIC='other', VALUE_FORMAT='JSON', PARTITIONS=1)": "has topic = s .* to other",
    "STREAM s (id INT KEY, v INT) WITH (KAFKA_TOPIC='s', VALUE_FORMAT='DELIMITED')": "value JSON.*value DELIMITED",
    "STREAM s (id INT KEY, v BIGINT, w BIGINT) WITH (KAFKA_TOPIC='s', VALUE_FORMAT='JSON', TIMESTAMP='w')": "has timestampColumn",
    "STREAM s (id BIGINT KEY, v BIGINT) WITH (KAFKA_TOPIC='s', VALUE_FORMAT='JSON')": (
        r"Key columns must be identical. The following key columns are changed, missing or reordered: \[`ID` INTEGER KEY\]"
    ),
    "STREAM s (id INT KEY, w INT, v BIGINT) WITH (KAFKA_TOPIC='s', VALUE_FORMAT='JSON')": r"reordered: \[`V` BIGINT\]",
}


@pytest.mark.parametrize("text", REPLACEMENTS)
def test_a_replacement_that_readers_could_not_follow_says_what_changes(engine: SqlEngine, text: str) -> None:
    run(engine, "CREATE STREAM s (id INT KEY, v BIGINT) WITH (KAFKA_TOPIC='s', PARTITIONS=1, VALUE_FORMAT='JSON');")
    with pytest.raises(StatementError, match=REPLACEMENTS[text]):
        run(engine, f"CREATE OR REPLACE {text};")


def test_a_join_without_its_key_is_refused_and_one_with_it_is_explained(engine: SqlEngine) -> None:
    run(engine, SETUP + "CREATE STREAM R (ID INT KEY, X INT) WITH (KAFKA_TOPIC='r', PARTITIONS=2, VALUE_FORMAT='JSON');")
    join = "FROM S JOIN R WITHIN 1 HOUR ON S.ID = R.ID"
    with pytest.raises(StatementError, match="must include the join expressions"):
        run(engine, f"CREATE STREAM J AS SELECT V, X {join}")
    (plan,) = run(engine, f"EXPLAIN SELECT S.ID, V, X {join} EMIT CHANGES")
    assert ("  Join [inner of streams, -3600000 to +3600000 ms] S_ID, S_V, TABLE:R_X AS R_X",) in plan.rows
    assert "J" not in engine.catalog.sources


def test_a_join_of_streams_runs(engine: SqlEngine) -> None:
    run(engine, SETUP + "CREATE STREAM R (ID INT KEY, X INT) WITH (KAFKA_TOPIC='r', PARTITIONS=2, VALUE_FORMAT='JSON');")
    run(engine, "CREATE STREAM J AS SELECT S.ID AS ID, V, X FROM S JOIN R WITHIN 1 HOUR ON S.ID = R.ID")
    run(engine, "INSERT INTO S (ID, V) VALUES (1, 5), (2, 6); INSERT INTO R (ID, X) VALUES (1, 7);")
    eventually(lambda: rows(engine, "SELECT * FROM J"), [(1, 5, 7)])
    (said,) = run(engine, "INSERT INTO R (ID, X) VALUES (2, 8), (2, 9)")
    assert said.text == "2 rows inserted"
    eventually(lambda: sorted(rows(engine, "SELECT * FROM J")), [(1, 5, 7), (2, 6, 8), (2, 6, 9)])


def test_who_selects_from_a_topic_is_given_the_statement_that_makes_it_a_stream(engine: SqlEngine, log: Log) -> None:
    log.admin().ensure_topic("Visits", partitions=1)
    producer = log.producer()
    for n, value in enumerate(
        (b'{"page": "/", "ms": 1, "at": {"x": [1.5]}, "note": null}', b'{"page": "/b", "ms": 2.5}', b"no json")
    ):
        producer.send("Visits", value, key=b"ann", timestamp_ms=n)
    producer.flush()
    producer.close()
    for asked in ("SELECT * FROM visits;", "CREATE TABLE n AS SELECT k, COUNT(*) AS c FROM visits GROUP BY k;"):
        with pytest.raises(StatementError) as refused:
            run(engine, asked)
        made = refused.value.reason.partition(" records: ")[2]
        assert made == (
            "CREATE STREAM VISITS (k STRING KEY, PAGE STRING, MS DOUBLE, AT STRUCT<X ARRAY<DOUBLE>>, NOTE STRING) "
            "WITH (KAFKA_TOPIC = 'Visits', VALUE_FORMAT = 'JSON');"
        )
    run(engine, made)
    assert [row[1] for row in rows(engine, "SELECT * FROM visits;")] == ["/", "/b"]
