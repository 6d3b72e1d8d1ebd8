"""What `sql lint` finds: mistakes with their places, what is seldom meant, and nothing in scripts that are right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from logflume.cli.sql import app
from logflume.log import connect
from logflume.sql import SqlEngine
from logflume.sql.lint import Severity, lint_script

ORDERS = (
    "CREATE STREAM orders (id INT KEY, cents BIGINT, note STRING) "
    "WITH (KAFKA_TOPIC = 'orders', VALUE_FORMAT = 'JSON', PARTITIONS = 2);\n"
)


def found(text: str) -> list[str]:
    return [str(f) for f in lint_script(text)]


def test_a_script_that_is_right_has_nothing_found() -> None:
    script = (
        "SET 'auto.offset.reset' = 'earliest';\nDEFINE least = '100';\n" + ORDERS + "CREATE TYPE money AS DECIMAL(10, 2);\n"
        "CREATE STREAM pays (id INT KEY, cents BIGINT) WITH (KAFKA_TOPIC = 'pays', VALUE_FORMAT = 'AVRO', PARTITIONS = 2);\n"
        "CREATE STREAM big AS SELECT * FROM orders WHERE cents > ${least} EMIT CHANGES;\n"
        "CREATE TABLE n AS SELECT id, COUNT(*) AS n FROM big GROUP BY id EMIT CHANGES;\n"
        "CREATE STREAM paid AS SELECT o.id, p.cents FROM orders o JOIN pays p WITHIN 5 MINUTES GRACE PERIOD 1 MINUTE "
        "ON o.id = p.id;\n"
        "INSERT INTO big SELECT * FROM orders EMIT CHANGES;\nINSERT INTO orders (id, cents) VALUES (1, 2);\n"
        "SELECT * FROM n WHERE id = 1;\nSELECT note, COUNT(*) FROM orders GROUP BY note ORDER BY note LIMIT 3;\n"
        "EXPLAIN SELECT * FROM big EMIT CHANGES;\nDESCRIBE n;\nDROP TABLE n;\n"
    )
    assert found(script) == []


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELCT 1;", "2:1: error: Unknown statement 'SELCT'; did you mean SELECT or SET or UNSET? [SQL_SYNTAX]"),
        (
            "CREATE STREAM big AS\n  SELECT * FROM orders WHERE cent > 1;",
            "3:30: error: WHERE column 'CENT' cannot be resolved. Did you mean CENTS? [SQL_STATEMENT]",
        ),
        (
            "SET 'ksql.output.topic.name.prefx' = 'x';",
            "2:1: error: Unknown property: ksql.output.topic.name.prefx; did you mean 'ksql.output.topic.name.prefix'? "
            "[SQL_STATEMENT]",
        ),
        (
            "SELECT * FROM orders WHERE note LIKE 'abc';",
            "2:28: warning: a pattern without % and _ only matches itself; write = or put a % where anything may stand "
            "[plain-pattern]",
        ),
        (
            "SELECT * FROM orders WHERE 1 = 1 EMIT CHANGES;",
            "2:28: warning: this WHERE is the same for every row: it reads no column [constant-condition]",
        ),
        (
            "INSERT INTO orders VALUES (1, 2, 'x');",
            "2:1: warning: name the columns: without them the values go by place, and a column added later breaks it "
            "[values-by-place]",
        ),
        ("DEFINE least = '1';", "2:1: warning: nothing uses the variable of DEFINE least = '1' [unused-variable]"),
        (
            "SELECT note, COUNT(*) FROM orders GROUP BY note LIMIT 3;",
            "2:49: warning: LIMIT without ORDER BY gives any of the rows, not the first [limit-without-order]",
        ),
        (
            ORDERS.replace("orders", "pays") + "SELECT * FROM orders o JOIN pays p WITHIN 5 MINUTES ON o.id = p.id EMIT CHANGES;",
            "3:24: warning: WITHIN without GRACE PERIOD keeps both sides for a day beyond the window; say how late records "
            "may come [join-without-grace]",
        ),
        ("SELECT * FROM ${source} EMIT CHANGES;", "2:1: note: ${SOURCE} is not defined in this script [not-checked]"),
        (
            "CREATE STREAM s WITH (KAFKA_TOPIC = 's', VALUE_FORMAT = 'AVRO');",
            "2:1: note: its columns are in a schema registry, which was not given [not-checked]",
        ),
    ],
)
def test_each_thing_has_its_place(statement: str, expected: str) -> None:
    assert found(ORDERS + statement) == [expected]


def test_statements_on_what_a_failed_one_would_have_made_are_left_out() -> None:
    script = ORDERS + (
        "CREATE STREAM big AS SELECT nope FROM orders;\nCREATE TABLE n AS SELECT id, COUNT(*) AS n FROM big GROUP BY id;\n"
        "INSERT INTO big SELECT * FROM orders;\nSELECT * FROM n;\nSELECT wrong FROM orders EMIT CHANGES;\n"
    )
    assert [(f.line, f.severity) for f in lint_script(script)] == [(2, Severity.ERROR), (6, Severity.ERROR)]


def test_the_command_takes_files_and_pipes_and_what_exists(tmp_path: Path) -> None:
    script = tmp_path / "big.sql"
    script.write_text("SELECT * FROM orders WHERE note LIKE 'x';")
    run = CliRunner()
    alone = run.invoke(app, ["lint", str(script)])
    assert alone.exit_code == 1
    assert f"{script}:1:15: error: ORDERS does not exist." in alone.stdout
    with connect(tmp_path / "log") as log, SqlEngine(log, tmp_path / "state", runs_queries=False) as engine:
        list(engine.execute(ORDERS))
    there = run.invoke(app, ["lint", str(script), "--data", str(tmp_path / "log"), "--json"])
    assert there.exit_code == 0
    assert json.loads(there.stdout)["code"] == "plain-pattern"
    assert run.invoke(app, ["lint", "-", "--strict"], input=ORDERS + "INSERT INTO orders VALUES (1, 2, 'x');").exit_code == 1


def test_fmt_changes_files_or_says_which_would_change(tmp_path: Path) -> None:
    script = tmp_path / "a.sql"
    script.write_text("show   tables;")
    run = CliRunner()
    checked = run.invoke(app, ["fmt", str(script), "--check"])
    assert (checked.exit_code, checked.stdout) == (1, f"{script} would be laid out\n")
    shown = run.invoke(app, ["fmt", str(script), "--diff"])
    assert (shown.exit_code, "+SHOW TABLES;" in shown.stdout) == (1, True)
    assert script.read_text() == "show   tables;"
    assert run.invoke(app, ["fmt", str(script)]).exit_code == 0
    assert script.read_text() == "SHOW TABLES;\n"
    assert run.invoke(app, ["fmt", str(script), "--check"]).exit_code == 0
    assert run.invoke(app, ["fmt", "-"], input="list topics").stdout == "LIST TOPICS\n"
