"""The shell through a pseudo terminal's input, batch runs, and how results look."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pty
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.console import Console

from logflume.log import TransportError, connect, load_kernels
from logflume.log.schemas import BIGINT, STRING, Column
from logflume.log.server import start_embedded
from logflume.log.server.addresses import parse_address
from logflume.sql import SqlEngine, pull
from logflume.sql.batch import Runner, run_batch
from logflume.sql.completion import SqlCompleter
from logflume.sql.opening import open_engine
from logflume.sql.plain_input import is_accepted
from logflume.sql.render import RowLines, fit_widths, print_rows
from logflume.sql.results import PushRow, Rows
from logflume.sql.session import Session
from logflume.sql.shell import run_shell

CREATE = "CREATE STREAM s (id INT KEY, v STRING) WITH (KAFKA_TOPIC='s', PARTITIONS=1, VALUE_FORMAT='JSON');"


def shell(tmp_path: Path, typed: str, *, width: int = 100) -> str:
    out = io.StringIO()
    with create_pipe_input() as pipe:
        pipe.send_text(typed)
        code = run_shell(
            str(tmp_path / "data"),
            history_path=tmp_path / "history",
            prompt_input=pipe,
            prompt_output=DummyOutput(),
            console=Console(file=out, width=width),
        )
    assert code == 0
    return out.getvalue()


def test_a_session_over_several_lines(tmp_path: Path) -> None:
    typed = CREATE + "\rINSERT INTO s\rVALUES (1, 'x;y');\rSELECT *\rFROM s;\r\\q\r"
    text = shell(tmp_path, typed)
    assert "Reads start at the beginning" in text
    assert "Stream S created" in text
    assert "x;y" in text
    assert "1 row; read from topic s, start to end" in text
    assert "FROM s;" in (tmp_path / "history").read_text()


def test_a_mistake_shows_its_place_and_the_shell_goes_on(tmp_path: Path) -> None:
    text = shell(tmp_path, CREATE + "\rSHOW STREAMS; SELECT idd FROM s; SHOW TABLES;\rSELCT 1;\r\\halp\rexit;\r")
    assert "SELECT column 'IDD' cannot be resolved. Did you mean ID?" in text
    assert "  SELECT idd FROM s\n         ^^^" in text
    assert "Unknown statement 'SELCT'; did you mean SELECT" in text
    assert "did you mean \\help?" in text
    assert "Traceback" not in text


def test_queries_of_an_earlier_session_go_on(tmp_path: Path) -> None:
    shell(tmp_path, CREATE + "\rCREATE TABLE c AS SELECT id, COUNT(*) AS n FROM s GROUP BY id;\r\\q\r")
    text = shell(
        tmp_path, "INSERT INTO s VALUES (5, 'a');\rSELECT * FROM s EMIT CHANGES LIMIT 1;\rSHOW QUERIES;\r\\q\r", width=200
    )
    assert "2 streams and tables, 1 queries" in text
    assert "CTAS_C_0" in text
    assert "ID | V" in text


def test_enter_ends_only_what_is_complete() -> None:
    assert is_accepted("SHOW TABLES;")
    assert is_accepted("\\help")
    assert not is_accepted("SELECT 'a;")
    assert not is_accepted("SELECT a -- ;")


def test_ctrl_c_stops_the_query_only(tmp_path: Path) -> None:
    out = io.StringIO()
    with connect(tmp_path / "log") as log, SqlEngine(log, tmp_path / "sql") as engine:
        runner = Runner(engine, Console(file=out, width=80))
        runner.run_text(CREATE + "INSERT INTO s VALUES (1, 'x');")
        (push,) = engine.execute_one("SELECT * FROM s EMIT CHANGES")
        original: Callable[..., PushRow | None] = push.poll  # type: ignore[union-attr]
        calls = iter([1])

        def poll(**options: float) -> PushRow | None:
            row = original(**options)
            if row is None and next(calls, None) is None:
                raise KeyboardInterrupt
            return row

        push.poll = poll  # type: ignore[union-attr, method-assign]
        runner.follow(push)  # type: ignore[arg-type]
        assert "query stopped" in out.getvalue()
        runner.run_text("SHOW STREAMS;")
        assert not [t.name for t in threading.enumerate() if "push" in t.name]


def test_batch_gives_json_lines_and_exit_codes(tmp_path: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    script = tmp_path / "setup.sql"
    script.write_text(CREATE + "\nINSERT INTO s VALUES (1, 'ü'); -- done\n")
    where = str(tmp_path / "data")
    code = run_batch(
        where, text=f"RUN SCRIPT '{script}'; SELECT * FROM s;", is_json=True, console=Console(file=out), errors=Console(file=err)
    )
    assert code == 0
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert lines == [{"message": "Stream S created"}, {"message": "1 row inserted"}, {"ID": 1, "V": "ü"}]
    assert run_batch(where, text="SELECT * FROM t;", console=Console(file=out), errors=Console(file=err)) == 1
    assert "line 1, column 15: T does not exist" in err.getvalue()
    assert "CREATE STREAM name (columns) WITH (KAFKA_TOPIC" in err.getvalue()
    with connect(tmp_path / "other") as log, SqlEngine(log, tmp_path / "sql") as engine:
        nested = tmp_path / "nested.sql"
        nested.write_text(f"DEFINE n = '7'; RUN SCRIPT '{script}'; INSERT INTO s VALUES (${{n}}, 'x');")
        *_, rows = engine.execute(f"RUN SCRIPT '{nested}'; SELECT * FROM s;")
        assert isinstance(rows, Rows)
        assert sorted(rows.rows) == [(1, "ü"), (7, "x")]
    loop = tmp_path / "loop.sql"
    loop.write_text(f"RUN SCRIPT '{loop}';")
    assert run_batch(where, path=loop, console=Console(file=out), errors=Console(file=err)) == 1


def test_completion_knows_sources_columns_and_functions(tmp_path: Path) -> None:
    with connect(tmp_path / "log") as log, SqlEngine(log, tmp_path / "sql") as engine:
        list(engine.execute("CREATE STREAM orders (amount INT) WITH (KAFKA_TOPIC='o', PARTITIONS=1, VALUE_FORMAT='JSON');"))
        completer = SqlCompleter(engine)

        def complete(text: str) -> list[str]:
            return [c.text for c in completer.get_completions(Document(text), CompleteEvent())]

        assert complete("SELECT * FROM or") == ["ORDERS"]
        assert complete("SELECT * FROM orders WHERE am") == ["AMOUNT"]
        assert complete("SELECT substr") == ["SUBSTRING("]
        assert "EXPLAIN" in complete("exp")


def test_rows_fit_the_terminal() -> None:
    lines = RowLines((Column("ID", BIGINT), Column("TEXT", STRING)), 30)
    rows = [PushRow((1, "x" * 50), 0), PushRow((12345, None), 0), PushRow((), 0, True)]
    shown = [*lines.start(rows[:1]), *(lines.line(r) for r in rows)]
    assert all(len(line) <= 30 for line in shown)
    assert shown[2].endswith("…")
    assert shown[4] == "(removed)"
    assert sum(fit_widths([50, 50, 50], 60)) <= 54


def printed(result: Rows, *, width: int = 80) -> str:
    out = io.StringIO()
    print_rows(Console(file=out, width=width), result, is_json=False)
    return out.getvalue()


def test_values_are_shown_as_people_read_them(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    script = """
        CREATE STREAM o (u STRING KEY, cents DOUBLE) WITH (KAFKA_TOPIC='o', PARTITIONS=1, VALUE_FORMAT='JSON');
        INSERT INTO o (ROWTIME, u, cents) VALUES (1795382303847, 'a', 13966874.91);
        INSERT INTO o (ROWTIME, u, cents) VALUES (1795382303848, 'b', 1e-7);
        SELECT u, cents, ROWTIME FROM o;
        CREATE TABLE hourly AS SELECT u, SUM(CAST(cents AS DECIMAL(12, 2))) AS euros FROM o
          WINDOW TUMBLING (SIZE 1 HOUR) WHERE u = 'a' GROUP BY u;
    """
    out = io.StringIO()
    assert run_batch(data, text=script, console=Console(file=out, width=120)) == 0
    assert "│ a │ 13966874.91 │ 2026-11-22T21:18:23.847Z │" in out.getvalue()
    assert "│ b │      1.0E-7 │ 2026-11-22T21:18:23.848Z │" in out.getvalue()
    out = io.StringIO()
    assert run_batch(data, text="SELECT u, cents, ROWTIME FROM o LIMIT 1;", is_json=True, console=Console(file=out)) == 0
    assert json.loads(out.getvalue()) == {"U": "a", "CENTS": 13966874.91, "ROWTIME": "2026-11-22T21:18:23.847Z"}
    for statement in ("SELECT * FROM hourly;", "SELECT * FROM hourly EMIT CHANGES LIMIT 1;"):
        out = io.StringIO()
        assert run_batch(data, text=statement, is_json=True, console=Console(file=out)) == 0
        window = {"WINDOWSTART": "2026-11-22T21:00:00.000Z", "WINDOWEND": "2026-11-22T22:00:00.000Z"}
        assert json.loads(out.getvalue(), parse_float=str) == {"U": "a", **window, "EUROS": "13966874.91"}


def test_a_table_at_a_terminal_is_capped_and_says_so() -> None:
    text = printed(Rows("T", (Column("N", BIGINT),), tuple((n,) for n in range(5_000))))
    assert text.count("│") < 2_100
    assert "5,000 rows; shown are the first 1,000" in " ".join(text.split())


def test_a_terminal_asks_for_no_more_rows_than_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(tmp_path / "log") as log, SqlEngine(log, tmp_path / "sql") as engine:
        list(engine.execute(CREATE))
        producer = log.producer()
        for n in range(30_000):
            producer.send("s", b'{"V": "' + b"x" * 200 + b'"}', key=n.to_bytes(4, "big"))
        producer.flush()
        made, read = [0], list[tuple[int, int]]()
        monkeypatch.setattr(pull, "value_of", counting(pull.value_of, made))
        out = io.StringIO()
        load_kernels()
        tracemalloc.start()
        Runner(engine, Console(file=out, width=100)).run_text("SELECT * FROM s;")
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        told = " ".join(out.getvalue().split())
        assert "there are more than 1,000: narrow it with WHERE or LIMIT, or take all with --json or through a pipe" in told
        assert made[0] <= 2 * 1_002 + 2, "columns computed: those of the rows shown"
        assert peak_bytes < 16 << 20, "of 30,000 rows of 200 bytes, which are 6 MB before any object is made of them"
        session = Session(on_read=lambda done, total: read.append((done, total)))
        (counted,) = engine.execute_one("SELECT COUNT(*) FROM s", session=session)
        assert isinstance(counted, Rows)
        assert counted.rows == ((30_000,),)
        assert read[-1] == (30_000, 30_000)


def counting(function: Callable[..., object], calls: list[int]) -> Callable[..., object]:
    def called(*args: object) -> object:
        calls[0] += 1
        return function(*args)

    return called


def test_a_long_result_at_a_terminal_goes_through_the_pager(tmp_path: Path) -> None:
    rows_text = ", ".join(f"({n}, 'row {n}')" for n in range(60))
    text = f"{CREATE}INSERT INTO s VALUES {rows_text};"
    assert run_batch(str(tmp_path / "data"), text=text, console=Console(file=io.StringIO())) == 0
    seen = tmp_path / "seen"
    command = [sys.executable, "-m", "logflume", "sql", "--data", str(tmp_path / "data"), "-e"]
    for rows, is_paged in ((60, True), (2, False)):
        own, terminal = pty.openpty()
        environment = {**os.environ, "PAGER": f"cat > {seen}", "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
        process = subprocess.Popen([*command, f"SELECT * FROM s LIMIT {rows};"], stdin=terminal, stdout=terminal, env=environment)
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # the terminal is gone with the process
            while part := os.read(own, 65536):
                shown += part
        os.close(own)
        assert process.wait(60) == 0
        assert seen.exists() is is_paged
        assert (b"row 1" in shown) is not is_paged
        if is_paged:
            assert "row 59" in seen.read_text()
            seen.unlink()


def test_a_long_statement_takes_one_line_and_an_empty_column_none() -> None:
    columns = tuple(Column(name, STRING) for name in ("QUERY", "STATEMENT", "ERROR"))
    text = printed(Rows("QUERIES", columns, (("CTAS_C_0", "CREATE TABLE C AS SELECT " + "X, " * 100, ""),)))
    assert sum("│" in line for line in text.splitlines()) == 2
    assert "ERROR" not in text


def test_pipes_get_whole_cells_between_tabs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = CREATE + "INSERT INTO s VALUES (1, '" + "x" * 300 + "\ty'); SELECT * FROM s; SELECT * FROM s EMIT CHANGES LIMIT 1;"
    assert run_batch(str(tmp_path / "data"), text=text) == 0
    line = "1\t" + "x" * 300 + "\\ty"
    assert capfd.readouterr().out.splitlines()[2:] == ["ID\tV", line, "ID\tV", line]


def test_a_server_that_is_gone_is_said_at_once_and_the_shell_ends(tmp_path: Path) -> None:
    with start_embedded(str(tmp_path / "log"), listen=[parse_address("127.0.0.1:0")]) as broker:
        address = str(broker.addresses[0])
        out = io.StringIO()
        with open_engine(address, state_dir=tmp_path / "sql") as engine:
            runner = Runner(engine, Console(file=out, width=100))
            runner.run_text(CREATE)
            broker.close()
            with pytest.raises(TransportError, match="does not answer"):
                runner.run_text("SHOW STREAMS;")
    assert "S created" in out.getvalue()


def test_rows_go_out_as_csv(tmp_path: Path) -> None:
    out, errors = io.StringIO(), io.StringIO()
    script = """CREATE STREAM sold (k STRING KEY, item STRING, euros DOUBLE)
          WITH (KAFKA_TOPIC='sold', PARTITIONS=1, VALUE_FORMAT='JSON');
        INSERT INTO sold VALUES ('a', 'pen, "red"', 1200000000.5);
        INSERT INTO sold VALUES ('b', NULL, 2);
        SELECT k, item, euros FROM sold;
        SELECT k, euros FROM sold EMIT CHANGES LIMIT 1;"""
    assert (
        run_batch(str(tmp_path / "data"), text=script, is_csv=True, console=Console(file=out), errors=Console(file=errors)) == 0
    )
    assert list(csv.reader(out.getvalue().splitlines()))[-5:] == [
        ["K", "ITEM", "EUROS"],
        ["a", 'pen, "red"', "1200000000.5"],
        ["b", "", "2.0"],
        ["K", "EUROS"],
        ["a", "1200000000.5"],
    ]
