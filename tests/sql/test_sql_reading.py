"""A long SELECT through a server: who asked for it learns meanwhile how far the server has read."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from logflume.log import ProgressLine, connect
from logflume.sql import QueryFailed, Rows, SqlClient, SqlEngine
from logflume.sql.batch import Runner
from logflume.sql.client import ServerRefused
from logflume.sql.render import row_csv
from logflume.sql.rest import SqlServer, reading
from logflume.sql.session import Session

WAIT_S = 30.0
SETUP = """
CREATE STREAM s (id INT KEY, v INT) WITH (KAFKA_TOPIC='s', PARTITIONS=2, VALUE_FORMAT='JSON');
INSERT INTO s VALUES (1, 10), (2, 20), (3, 30);
"""


class Slow:
    """An engine's way to execute, which halts where a query first tells how far it has read, until `go_on`."""

    def __init__(self, engine: SqlEngine) -> None:
        self._execute, self.go_on, self.given_up = engine.execute_one, threading.Event(), threading.Event()

    def __call__(self, source: Any, *, session: Session) -> Any:
        tell = session.on_read

        def told(read: int, total: int) -> None:
            assert tell is not None
            try:
                while not self.go_on.wait(0.01):
                    tell(read, total)
            except QueryFailed:
                self.given_up.set()
                raise

        session.on_read = None if tell is None else told
        return self._execute(source, session=session)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SqlServer]:
    with connect(tmp_path / "log") as log, SqlEngine(log, tmp_path / "sql") as engine, SqlServer(engine) as opened:
        list(engine.execute(SETUP))
        yield opened


@pytest.fixture
def slow(server: SqlServer, monkeypatch: pytest.MonkeyPatch) -> Slow:
    slowed = Slow(server._engine)
    monkeypatch.setattr(server._engine, "execute_one", slowed)
    monkeypatch.setattr(reading, "QUIET_S", 0.01)
    monkeypatch.setattr(reading, "EVERY_S", 0.01)
    return slowed


def noting(told: list[tuple[int, int]], then: Callable[[], None]) -> Session:
    """Return a session that keeps what it is told, and does something once the server has read anything."""

    def note(read: int, total: int) -> None:
        told.append((read, total))
        if read:
            then()

    return Session(on_read=note)


def test_a_client_is_told_how_far_the_server_has_read(server: SqlServer, slow: Slow) -> None:
    told: list[tuple[int, int]] = []
    with SqlClient(server.address) as client:
        (found,) = client.execute("SELECT id, v FROM s;", session=noting(told, slow.go_on.set))
    assert isinstance(found, Rows)
    assert sorted(found.rows) == [(1, 10), (2, 20), (3, 30)]
    assert {total for read, total in told if read} == {3}


def test_the_shell_shows_it_at_a_terminal_and_leaves_that_clean(server: SqlServer, slow: Slow) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            if "of 3" in text:
                slow.go_on.set()
            return super().write(text)

    now_s = iter(range(1_000_000))
    told, out = Terminal(), io.StringIO()
    progress = ProgressLine(told, monotonic_s=lambda: float(next(now_s)))
    with SqlClient(server.address) as client:
        Runner(client, Console(file=out, width=100), row_text=row_csv, progress=progress).run_text("SELECT id FROM s;")
    first, *shown, last = told.getvalue().split("\r\x1b[K")
    assert (first, last) == ("", "")
    assert "of 3 (" in shown[-1]
    assert sorted(out.getvalue().split()) == ["1", "2", "3", "ID"]


def test_a_query_at_fault_is_refused_as_if_nothing_had_been_told(
    server: SqlServer, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow.go_on.set()
    wrong, refusals = "SELECT nothing FROM s;", []
    session = Session(on_read=lambda read, total: None)
    with SqlClient(server.address) as client:
        for quiet_s in (WAIT_S, 0.0):  # refused with a status, then in a line
            monkeypatch.setattr(reading, "QUIET_S", quiet_s)
            with pytest.raises(ServerRefused, match="NOTHING") as refused:
                client.execute_one(wrong, session=session)
            refusals.append((refused.value.error_code, str(refused.value)))
    assert refusals[0] == refusals[1]
    assert refusals[0][0] == 40001


def test_nobody_is_told_who_did_not_ask(server: SqlServer, slow: Slow) -> None:
    slow.go_on.set()
    asked = {"sql": "SELECT id FROM s;"}
    plain = httpx.post(f"{server.address}/query-stream", json=asked, timeout=WAIT_S)
    whole = httpx.post(
        f"{server.address}/query-stream",
        json={**asked, "tellsRead": True},
        headers={"Accept": "application/json"},
        timeout=WAIT_S,
    )
    assert "recordsRead" not in plain.text + whole.text
    assert sorted(map(json.loads, plain.text.splitlines()[1:])) == [[1], [2], [3]]
    assert sorted(whole.json()[1:]) == [[1], [2], [3]]


def test_what_nobody_waits_for_any_more_is_read_no_further(server: SqlServer, slow: Slow) -> None:
    asked = {"sql": "SELECT id FROM s;", "tellsRead": True}
    with httpx.stream("POST", f"{server.address}/query-stream", json=asked, timeout=WAIT_S) as answer:
        assert json.loads(next(answer.iter_lines())).keys() == {"recordsRead", "recordsTotal"}
    assert slow.given_up.wait(WAIT_S)
