"""Migrations: run once, in order, kept, and refused where what was run is not what is there."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from logflume.cli import main
from logflume.log import connect
from logflume.sql import Rows, SqlEngine, StatementError
from logflume.sql.migrations import MigrationFault, Migrations, new_migration, read_folder

FIRST = """DEFINE topic = 'orders';
CREATE STREAM orders (id INT KEY, cents BIGINT) WITH (KAFKA_TOPIC='${topic}', PARTITIONS=1, VALUE_FORMAT='JSON');
INSERT INTO orders VALUES (1, 5); -- it's one; really
"""
SECOND = "CREATE STREAM big AS SELECT * FROM orders WHERE cents > 100 EMIT CHANGES;\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "migrations"
    for name, text in (("orders", FIRST), ("big orders", SECOND)):
        new_migration(found, name).write_text(text)
    return found


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SqlEngine]:
    with connect(tmp_path / "log") as log, SqlEngine(log, tmp_path / "sql") as opened:
        yield opened


def opened(engine: SqlEngine, folder: Path) -> Migrations:
    return Migrations(engine, folder, now=lambda: datetime(2024, 5, 1, tzinfo=UTC))


def states(engine: SqlEngine, folder: Path) -> list[tuple[str, str]]:
    return [(row[0], row[2]) for row in opened(engine, folder).info().rows]


def apply(engine: SqlEngine, folder: Path, *, until: int | None = None, runs_again: bool = False) -> list[int]:
    return [m.version for m in opened(engine, folder).apply(until=until, runs_again=runs_again)]


def test_scripts_are_numbered_as_they_are_made(folder: Path) -> None:
    assert [m.path.name for m in read_folder(folder)] == ["V000001__orders.sql", "V000002__big_orders.sql"]


def test_each_script_is_run_once_in_order(engine: SqlEngine, folder: Path) -> None:
    assert states(engine, folder) == [("1", "PENDING"), ("2", "PENDING")]
    assert apply(engine, folder, until=1) == [1]
    assert set(engine.catalog.sources) == {"MIGRATION_EVENTS", "MIGRATION_SCHEMA_VERSIONS", "ORDERS"}
    assert states(engine, folder) == [("1", "MIGRATED"), ("2", "PENDING")]
    assert apply(engine, folder) == [2]
    assert apply(engine, folder) == []
    (rows,) = engine.execute("SELECT id FROM orders;")
    assert isinstance(rows, Rows)
    assert rows.rows == ((1,),)
    assert opened(engine, folder).applied()[2].previous == "1"


def test_a_statement_that_is_wrong_is_found_before_any_script_runs(engine: SqlEngine, folder: Path) -> None:
    new_migration(folder, "typo").write_text("\nCREAT STREAM x;")
    with pytest.raises(StatementError, match="line 2, column 1: Unknown statement 'CREAT'") as caught:
        apply(engine, folder)
    assert caught.value.__notes__ == [f"in {folder / 'V000003__typo.sql'}"]
    assert dict(engine.catalog.sources) == {}
    new_migration(folder, "reads")
    (folder / "V000003__typo.sql").write_text("SELECT 1 FROM orders;")
    with pytest.raises(StatementError, match=r"V000003__typo.sql: a migration changes what there is"):
        apply(engine, folder)


def test_a_script_that_fails_is_recorded_and_run_again_when_it_is_mended(engine: SqlEngine, folder: Path) -> None:
    broken = folder / "V000002__big_orders.sql"
    broken.write_text(SECOND.replace("cents >", "cent >"))
    with pytest.raises(StatementError, match="Did you mean CENTS"):
        apply(engine, folder)
    assert states(engine, folder) == [("1", "MIGRATED"), ("2", "ERROR")]
    assert "Did you mean CENTS" in opened(engine, folder).info().rows[1][-1]
    broken.write_text(SECOND)
    assert apply(engine, folder) == [2]
    assert states(engine, folder) == [("1", "MIGRATED"), ("2", "MIGRATED")]


def test_what_was_run_may_not_change(engine: SqlEngine, folder: Path) -> None:
    apply(engine, folder)
    (folder / "V000001__orders.sql").write_text(FIRST + "-- more")
    (folder / "V000002__big_orders.sql").unlink()
    problems = opened(engine, folder).problems()
    assert "V000001__orders.sql has changed since it was run" in problems[0]
    assert "its script is not in the folder any more" in problems[1]
    with pytest.raises(MigrationFault, match="has changed"):
        apply(engine, folder)


def test_a_script_older_than_one_that_was_run_is_refused(engine: SqlEngine, folder: Path) -> None:
    (folder / "V000002__big_orders.sql").rename(folder / "V000005__big_orders.sql")
    apply(engine, folder)
    (folder / "V000003__late.sql").write_text("DROP STREAM big;")
    with pytest.raises(MigrationFault, match="give it a higher number"):
        apply(engine, folder)


def test_a_version_that_a_process_ended_within_is_run_again_only_when_told(engine: SqlEngine, folder: Path) -> None:
    running = opened(engine, folder).apply()
    next(running)
    migrations = opened(engine, folder)
    migrations._record(migrations.migrations[1], "RUNNING", "2024-05-01", "", "1", "")
    with pytest.raises(MigrationFault, match="--again"):
        apply(engine, folder)
    assert apply(engine, folder, runs_again=True) == [2]


@pytest.mark.parametrize(
    ("name", "problem"),
    [("first.sql", "expected a name such as"), ("V1__again.sql", "version 1 is that of"), ("V0__none.sql", "expected a name")],
)
def test_files_that_are_no_migrations_are_refused(folder: Path, name: str, problem: str) -> None:
    (folder / name).write_text("")
    with pytest.raises(MigrationFault, match=problem):
        read_folder(folder)


def test_the_command_makes_applies_and_tells(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*args: str) -> int:
        return main(["sql", "migrate", args[0], "--folder", str(folder), *args[1:]])

    data = ("--data", str(tmp_path / "data"))
    assert run("new", "add more") == 0
    (folder / "V000003__add_more.sql").write_text("DROP STREAM big;")
    assert run("apply", "--dry-run", *data) == 0
    assert "version 3 (add_more) would be run" in capsys.readouterr().out
    assert run("apply", *data) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "3 run"
    assert run("info", *data) == 0
    assert "MIGRATED" in capsys.readouterr().out
    assert run("validate", *data) == 0
    (folder / "V000001__orders.sql").write_text("")
    assert run("validate", *data) == 1
    assert "has changed" in capsys.readouterr().err
