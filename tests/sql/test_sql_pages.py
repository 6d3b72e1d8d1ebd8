"""The pages under docs/sql say what happens: their statements run one after the other, and give what stands below them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from logflume.log import connect
from logflume.log.schemas import Column
from logflume.sql import Message, PushQuery, Rows, SqlEngine, StatementError
from logflume.sql.reference import functions_page
from logflume.sql.render import cell_text
from logflume.sql.results import Result
from logflume.streams.functions import builtin_library

PAGES = Path(__file__).resolve().parents[2] / "docs" / "sql"
BLOCK = re.compile(r"```sql\n(.*?)```(?:\n+```text\n(.*?)```)?", re.DOTALL)
WAIT_S = 60.0


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SqlEngine]:
    with connect(tmp_path / "log") as log, SqlEngine(log, tmp_path / "sql") as opened:
        yield opened


def shown(result: Result) -> list[str]:
    """Return a result as the pages show it: names of columns, then a row a line; rows of no order by their text."""
    if isinstance(result, Message):
        return [result.text]
    if isinstance(result, PushQuery):
        timer = threading.Timer(WAIT_S, result.cancel)
        timer.start()
        try:
            return [_line([c.name for c in result.columns]), *(_row(row.values, result.columns) for row in result)]
        finally:
            timer.cancel()
            result.close()
    assert isinstance(result, Rows)
    return [_line([c.name for c in result.columns]), *(_row(values, result.columns) for values in result.rows)]


def _row(values: tuple[object, ...], columns: tuple[Column, ...]) -> str:
    return _line([cell_text(v, c) for v, c in zip(values, columns, strict=True)]) if values else "(removed)"


def _line(cells: list[str]) -> str:
    return " | ".join(cells).rstrip()


def outcome(engine: SqlEngine, text: str) -> list[str]:
    """Run statements; return what the last gives, or what is wrong."""
    found: list[str] = []
    try:
        for result in engine.execute(text):
            found = shown(result)
    except StatementError as error:
        return ["error: " + error.reason.splitlines()[0]]
    return found


def test_the_statements_of_the_reference_do_what_it_says(engine: SqlEngine) -> None:
    wrong: list[str] = []
    for text, expected in BLOCK.findall((PAGES / "dialect.md").read_text()):
        wanted = expected.splitlines()
        found = outcome(engine, text)
        deadline = time.monotonic() + WAIT_S
        is_read = text.strip().splitlines()[0].startswith(("SELECT", "WITH", "SHOW QUERIES"))
        while wanted and is_read and not _is_same(found, wanted, text) and time.monotonic() < deadline:
            threading.Event().wait(0.05)  # what a query that runs for good gives comes when it does
            found = outcome(engine, text)
        is_refused = not wanted and bool(found) and found[0].startswith("error")
        if is_refused or (wanted and not _is_same(found, wanted, text)):
            wrong.append("\n".join([text, "gave", *found]))
            break
    assert not wrong, wrong[0]


def _is_same(found: list[str], wanted: list[str], text: str) -> bool:
    """Tell whether a result is as the page has it; rows have an order where ORDER BY gives them one."""
    return found == wanted or ("ORDER BY" not in text and found[:1] == wanted[:1] and sorted(found[1:]) == sorted(wanted[1:]))


def test_the_page_of_functions_is_that_of_the_library() -> None:
    """`logflume sql functions > docs/sql/functions.md` writes it anew."""
    assert (PAGES / "functions.md").read_text() == functions_page(builtin_library())
