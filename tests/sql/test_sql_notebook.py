"""`%%sql` in a notebook: results as tables, a running query in one place, rows kept as data, mistakes without a traceback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from logflume.log import connect
from logflume.log.schemas import BIGINT, STRING, Column
from logflume.sql import PushQuery, PushRow, SqlEngine, notebook
from logflume.sql.notebook import NotebookRunner, data_of

from ._notebook import Notebook
from .conftest import served

CREATE = """CREATE STREAM s (id INT KEY, v BIGINT, m MAP<STRING, INT>) WITH (KAFKA_TOPIC='s', PARTITIONS=1, VALUE_FORMAT='JSON');
INSERT INTO s VALUES (1, 9007199254740993, MAP('<a>' := 1)); INSERT INTO s (id) VALUES (2); INSERT INTO s (id, v) VALUES (3, 30);
"""
FOLLOW = "SELECT id, v FROM s EMIT CHANGES"


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook whose first cell has made a stream of three rows."""
    folder = tmp_path_factory.mktemp("notebook")
    found = Notebook(folder)
    found.run("%load_ext logflume")
    ran = found.run(f"%%sql --data {folder}/data\n{CREATE}")
    assert (ran.printed, ran.is_done) == ("Stream S created\n" + "1 row inserted\n" * 3, True)
    yield found
    found.close()


def test_rows_are_a_table_and_data_under_a_name(opened: Notebook) -> None:
    ran = opened.run("%%sql found\nSELECT * FROM s;")
    (table,) = ran.html
    assert table.startswith(
        "<table><tr><th>ID</th><th>V</th><th>M</th></tr><tr><td>1</td><td>9007199254740993</td><td>{&lt;a&gt;=1}<"
    )
    assert table.endswith("<p>3 rows; read from topic s, start to end</p>")
    kept = opened["found"]
    assert isinstance(kept, pd.DataFrame)
    assert kept["V"].tolist() == [9007199254740993, pd.NA, 30], "no digit is lost beside a null"
    assert kept["M"].tolist() == [{"<a>": 1}, None, None]


def test_a_line_is_a_cell_of_one_statement(opened: Notebook) -> None:
    (shown,) = opened.run("id = 7\n%sql SELECT id FROM s WHERE m['<a>'] = 1;").shown
    assert shown.startswith("ID\n1\n1 row; ")
    (shown,) = opened.run("%sql SELECT '{id} $id' AS said FROM s LIMIT 1").shown
    assert shown.startswith("SAID\n{id} $id\n"), "a statement is taken as it stands"


def test_no_more_rows_are_shown_than_asked_for(opened: Notebook) -> None:
    (shown,) = opened.run("%%sql --rows 2\nSELECT id FROM s;").shown
    assert shown.startswith("ID\n1\n2\n2 rows; ")
    assert "there are more than 2: narrow it with WHERE or LIMIT, show more with --rows, or take all under a name" in shown
    (shown,) = opened.run("%%sql --rows 2 found\nSELECT id FROM s;").shown
    assert "3 rows; read from topic s, start to end; shown are the first 2" in shown
    assert opened["found"]["ID"].tolist() == [1, 2, 3]


def test_a_running_query_is_one_table_that_changes_until_its_limit(opened: Notebook) -> None:
    ran = opened.run(f"%%sql live --rows 2\n{FOLLOW} LIMIT 3; SHOW TABLES;")
    *live, tables = zip(ran.shown, ran.places, strict=True)
    (_, (place, is_update)), *later = live
    assert not is_update
    assert later
    assert all(each == (place, True) for _, each in later)
    assert live[0][0] == "ID\tV\n0 rows; following; interrupt the cell to stop the query"
    assert live[-1][0] == "ID\tV\n2\tnull\n3\t30\n3 rows, shown are the last 2; LIMIT is reached"
    assert tables[1] != (place, True)
    assert opened["live"].empty, "the last rows are those of SHOW TABLES"


def test_an_interrupt_ends_the_query_and_the_cell_goes_on(opened: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    poll = PushQuery.poll
    stopped: list[PushQuery] = []

    def interrupted(self: PushQuery, *, timeout_s: float) -> PushRow | None:
        row = poll(self, timeout_s=timeout_s)
        if row is not None and row.values[0] == 3:
            stopped.append(self)
            raise KeyboardInterrupt
        return row

    monkeypatch.setattr(PushQuery, "poll", interrupted)
    ran = opened.run(f"%%sql live\n{FOLLOW}; DEFINE x = 'y';")
    assert (ran.printed, ran.is_done) == ("X = 'y'\n", True)
    assert ran.shown[-1].endswith("2 rows; stopped")
    assert opened["live"]["ID"].tolist() == [1, 2]
    assert stopped[0].is_cancelled


def test_a_running_query_ends_when_its_time_is_over(tmp_path: Path, opened: Notebook) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 0.25
        return now[0]

    with connect(tmp_path / "log") as log, SqlEngine(log, tmp_path / "sql") as engine:
        list(engine.execute(CREATE))
        assert NotebookRunner(engine, monotonic_s=clock).run_cell(f"{FOLLOW};", live_s=5) is None
    assert now[0] > 5
    assert opened.run("%%sql --seconds 0.2\nPRINT 's' FROM BEGINNING;").shown[-1].endswith("stopped after 0.2 s")


def test_a_removed_row_is_shown_as_one(opened: Notebook) -> None:
    ran = opened.run("""%%sql
CREATE TABLE t (id INT PRIMARY KEY, v STRING) WITH (KAFKA_TOPIC='t', PARTITIONS=1, VALUE_FORMAT='KAFKA');
INSERT INTO t VALUES (1, 'a'); INSERT INTO t (id) VALUES (1);
SELECT * FROM t EMIT CHANGES LIMIT 2;""")
    assert ran.shown[-1] == "ID\tV\n1\ta\n1\t(removed)\n2 rows; LIMIT is reached"


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        (
            "%%sql\nSHOW STREAMS;\nSELECT idd\nFROM s;",
            "line 3, column 8: SELECT column 'IDD' cannot be resolved. Did you mean ID?",
        ),
        ("%%sql --data x --bootstrap y:1\nSHOW STREAMS;", "give either --data or --bootstrap, not both"),
        ("%%sql --server y:1\nSHOW STREAMS;", "--server is a URL such as http://127.0.0.1:8088, found 'y:1'"),
        ("%%sql --server http://127.0.0.1:1\nSHOW STREAMS;", "127.0.0.1:1"),
        ("%sql SELECT idd FROM s", "line 1, column 8: SELECT column 'IDD' cannot be resolved. Did you mean ID?"),
        ("%sql", "UsageError: %sql takes a statement, such as %sql SHOW STREAMS; a cell of several begins with %%sql"),
        (
            "%sql --data ./data",
            "UsageError: %sql takes a statement alone; options stand in the first line of a cell: %%sql --data",
        ),
        ("%%sql --halp\nSHOW STREAMS;", "UsageError: unrecognized arguments: --halp; %%sql? says what it takes"),
        ("%%sql 'a\nSHOW STREAMS;", "UsageError: No closing quotation: 'a"),
        ("%%sql class\nSHOW STREAMS;", "expected a name of Python, found 'class'"),
        ("%%sql --rows 0\nSHOW STREAMS;", "expected a number of rows of 1 or more, found '0'"),
        ("%%sql --seconds nan\nSHOW STREAMS;", "expected a number of seconds above 0, found 'nan'"),
    ],
)
def test_what_is_wrong_is_said_without_a_traceback_and_the_cell_fails(opened: Notebook, cell: str, said: str) -> None:
    ran = opened.run(cell)
    assert not ran.is_done
    assert said in ran.printed.splitlines()[0]
    assert "Traceback" not in ran.printed
    assert opened.run("%%sql\nSHOW STREAMS;").is_done, "the session goes on where it was"


def test_a_server_is_asked_by_its_address(tmp_path: Path, opened: Notebook) -> None:
    with served(tmp_path, CREATE) as server:
        ran = opened.run(f"%%sql --server {server.address}\nSET 'auto.offset.reset' = 'earliest'; {FOLLOW} LIMIT 1;")
        assert ran.shown[-1] == "ID\tV\n1\t9007199254740993\n1 row; LIMIT is reached"
        assert opened.run("%%sql\nSHOW TABLES;").is_done, "the next cell goes where this one went"
    back = opened.run(f"%%sql --data {opened.folder}/data\nSHOW STREAMS;")
    assert back.is_done


FUNCTION = """from logflume.sql import scalar


@scalar
def spread(v: int) -> int:
    return v - 1
"""


def test_functions_of_a_file_are_there_from_the_session_s_first_cell_on(tmp_path: Path, opened: Notebook) -> None:
    (tmp_path / "own.py").write_text(FUNCTION)
    own, data = f"--functions {tmp_path}/own.py", f"--data {tmp_path}/data"
    assert opened.run(f"%%sql {data} {own}\n{CREATE}").is_done
    (shown,) = opened.run("%%sql\nSELECT spread(v) AS less FROM s WHERE id = 3;").shown
    assert shown.startswith("LESS\n29\n")
    (tmp_path / "other.py").write_text(FUNCTION)
    for place in ("", data):
        assert opened.run(f"%%sql {place} {own}\nSHOW STREAMS;").is_done, "a cell may be run again"
        again = opened.run(f"%%sql {place} --functions {tmp_path}/other.py\nSHOW STREAMS;")
        assert not again.is_done
        assert "was not opened with these functions as they are now; %reload_ext logflume ends it" in again.printed
    (tmp_path / "own.py").write_text(FUNCTION.replace("- 1", "- 2"))
    assert "was not opened with these functions" in opened.run(f"%%sql {own}\nSHOW STREAMS;").printed
    assert "was not opened with these functions" in opened.run(f"%%sql --data {opened.folder}/data {own}\nSHOW STREAMS;").printed
    for options, said in (
        (f"--data {tmp_path}/other --functions {tmp_path}/none.py", "functions cannot be read from"),
        (f"--server http://127.0.0.1:1 {own}", "functions run where the queries do: start the server with --functions"),
    ):
        refused = opened.run(f"%%sql {options}\nSHOW STREAMS;")
        assert not refused.is_done
        assert said in refused.printed
    assert opened.run(f"%%sql --data {opened.folder}/data\nSHOW STREAMS;").is_done


def test_plans_are_text_and_the_help_names_the_options(opened: Notebook) -> None:
    assert "Scan STREAM S (topic s, JSON)" in opened.run("%%sql\nEXPLAIN SELECT * FROM s;").printed
    assert "--seconds N" in opened.run("%%sql?").printed


def test_data_is_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    columns, rows = (Column("N", BIGINT), Column("T", STRING)), [(1, "a"), (None, None)]

    def without(*missing: str) -> Callable[[str], object]:
        return lambda name: None if name in missing else name

    monkeypatch.setattr(notebook, "find_spec", without("pandas"))
    assert data_of(columns, rows) == pa.table({"N": [1, None], "T": ["a", None]})
    assert data_of(columns, []).num_rows == 0
    monkeypatch.setattr(notebook, "find_spec", without("pandas", "pyarrow"))
    assert data_of(columns, rows) == [{"N": 1, "T": "a"}, {"N": None, "T": None}]


ENDS = """
import sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance(ipython_dir=sys.argv[1])
shell.run_line_magic("load_ext", "logflume")
assert shell.run_cell(f"%%sql --data {sys.argv[1]}/data\\n{sys.argv[2]}").success
"""


@pytest.mark.slow
def test_a_notebook_that_ends_stops_its_queries_first(tmp_path: Path) -> None:
    query = "CREATE TABLE c AS SELECT id, COUNT(*) AS n FROM s GROUP BY id;"
    command = [sys.executable, "-c", ENDS, str(tmp_path), CREATE + query]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
