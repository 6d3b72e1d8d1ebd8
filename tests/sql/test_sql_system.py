"""ALTER SYSTEM sets properties for all sessions; EXPLAIN ANALYZE looks at a query that runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from logflume.log import connect
from logflume.sql import Rows, SqlClient, SqlEngine, StatementError
from logflume.sql.rest import SqlServer

MADE = "CREATE STREAM s (k STRING KEY, v INT) WITH (KAFKA_TOPIC='s', PARTITIONS=2, VALUE_FORMAT='JSON');"
FORMAT = "ksql.persistence.default.format.value"


def run(engine: SqlEngine, text: str, **more: Any) -> Any:
    return list(engine.execute(text, **more))[-1]


def steps(found: Rows) -> dict[str, Any]:
    return {step: count for step, count, _ in found.rows}


def test_a_property_of_the_system_is_every_session_s_until_it_sets_another(tmp_path: Path) -> None:
    def made_format(engine: SqlEngine, name: str, **more: Any) -> str:
        run(engine, f"CREATE STREAM {name} (v INT) WITH (KAFKA_TOPIC='{name}', PARTITIONS=1);", **more)
        return engine.catalog.sources[name].value_format.name

    with connect(tmp_path / "log") as log:
        with SqlEngine(log, tmp_path / "a") as engine, SqlEngine(log, tmp_path / "b", runs_queries=False) as other:
            with pytest.raises(StatementError, match="VALUE_FORMAT"):
                made_format(engine, "A")
            assert "set for all sessions" in run(engine, f"ALTER SYSTEM '{FORMAT}'='JSON';").text
            assert made_format(engine, "B") == "JSON"
            assert made_format(engine, "C", properties={FORMAT: "DELIMITED"}) == "DELIMITED"
            other.following.catch_up()
            assert made_format(other, "D") == "JSON"
            run(engine, f"ALTER SYSTEM '{FORMAT}'='KAFKA';")
        with SqlEngine(log, tmp_path / "a") as again:
            assert made_format(again, "E") == "KAFKA"
            assert (FORMAT, "KAFKA") in [row[:2] for row in run(again, "SHOW PROPERTIES;").rows]
            assert again.catalog.sources["B"].value_format.name == "JSON"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ALTER SYSTEM 'ksql.persistence.default.format.valeu'='JSON';", "did you mean 'ksql.persistence.default.format.value'"),
        ("ALTER SYSTEM 'auto.offset.reset'='middle';", "'earliest' or 'latest'"),
        ("EXPLAIN ANALYZE nope;", "Query with id:NOPE does not exist"),
        ("ASSERT VALUES s (id) VALUES (1);", "ASSERT VALUES is for tools that run test scripts"),
        ("ASSERT NULL VALUES s (id) KEY (1);", "ASSERT NULL VALUES is for tools"),
        ("ASSERT TABLE t (id INT PRIMARY KEY);", "ASSERT TABLE is for tools"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with (
        connect(tmp_path / "log") as log,
        SqlEngine(log, tmp_path / "sql") as engine,
        pytest.raises(StatementError, match=message),
    ):
        run(engine, text)


def test_explain_analyze_tells_what_each_step_put_out(tmp_path: Path) -> None:
    with connect(tmp_path / "log") as log, SqlEngine(log, tmp_path / "sql") as engine, SqlServer(engine) as server:
        run(engine, MADE + "CREATE TABLE t AS SELECT k, SUM(v) AS n FROM s WHERE v > 1 GROUP BY k;")
        run(engine, "INSERT INTO s VALUES ('a', 1), ('a', 2), ('b', 3);")
        deadline = time.monotonic() + 60
        while not engine.status()["CTAS_T_0"].tasks and time.monotonic() < deadline:
            time.sleep(0.05)
        while (out := steps(found := run(engine, "EXPLAIN ANALYZE ctas_t_0;"))).get(
            "SELECT"
        ) != 2 and time.monotonic() < deadline:
            assert [c.name for c in found.columns] == ["STEP", "ROWS OUT", "ROWS/S"]
        assert out == {"S": 3, "WHERE": 2, "AGGREGATE": 2, "SELECT": 2}
        assert "in 3, out 2" in found.note
        with SqlClient(server.address) as client:
            (told,) = client.execute("EXPLAIN ANALYZE CTAS_T_0;")
            assert isinstance(told, Rows)
            assert told.title == "EXPLAIN ANALYZE CTAS_T_0"
            assert steps(told) == {name: str(count) for name, count in out.items()}
        run(engine, "PAUSE CTAS_T_0;")
        with pytest.raises(StatementError, match="has no steps that are counted on this machine"):
            run(engine, "EXPLAIN ANALYZE CTAS_T_0;")
