"""The console: the page that the SQL server gives to a browser. What it does is tried in a real one, where there is one."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import httpx
import pytest

from logflume.log import connect
from logflume.log.registry import UserFile
from logflume.sql import SqlEngine
from logflume.sql.rest import SqlServer

from .conftest import served

SETUP = """
CREATE STREAM s (id INT KEY, n STRING, big BIGINT) WITH (KAFKA_TOPIC='s', PARTITIONS=1, VALUE_FORMAT='JSON');
INSERT INTO s VALUES (1, '<img src=x onerror=alert(1)>', 9007199254740993);
CREATE TABLE t AS SELECT n, COUNT(*) AS c FROM s GROUP BY n;
"""
FILES = ("console.html", "console.css", "console.js")
BROWSER = next(
    filter(None, (os.environ.get("LOGFLUME_CHROMIUM"), *map(shutil.which, ("chromium", "google-chrome", "chrome")))), None
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlServer]:
    with served(tmp_path_factory.mktemp("console"), SETUP) as opened:
        yield opened


def test_a_browser_is_given_the_page_and_a_program_is_sent_to_info(client: httpx.Client) -> None:
    page = client.get("/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    asked = re.findall(r'(?:src|href)="(console/[^"]+)"', page.text)
    assert [client.get(f"/{name}").headers["content-type"].partition(";")[0] for name in asked] == ["text/css", "text/javascript"]
    assert client.get("/").headers["location"] == "/info"
    assert client.get("/console/app.py").status_code == 404


def test_the_page_is_of_this_server_alone_and_lets_nothing_in(client: httpx.Client) -> None:
    policy = client.get("/", headers={"Accept": "text/html"}).headers["content-security-policy"]
    assert {"default-src 'none'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"} <= set(policy.split("; "))
    for name in FILES:
        text = resources.files("logflume.sql.rest").joinpath(name).read_text()
        assert not re.search(r"https?://|innerHTML|insertAdjacentHTML|document\.write|\beval\b", text), name


@pytest.mark.parametrize("asked", ["EXPLAIN CTAS_T_0;", "SELECT n, COUNT(*) FROM s GROUP BY n EMIT CHANGES;"])
def test_a_query_is_drawn_before_and_while_it_runs(client: httpx.Client, asked: str) -> None:
    answer = client.post("/console/picture", json={"ksql": asked})
    assert answer.headers["content-type"] == "image/svg+xml"
    assert answer.text.startswith("<svg ")
    assert "aggregate" in answer.text


def test_what_cannot_be_drawn_is_refused_with_its_place(client: httpx.Client) -> None:
    answer = client.post("/console/picture", json={"ksql": "\n  EXPLAIN SELECT nope FROM s EMIT CHANGES;"})
    assert (answer.status_code, answer.json()["error_code"]) == (400, 40001)
    assert answer.json()["message"].startswith("line 2, column 18: ")
    answer = client.post("/console/picture", json={"ksql": "EXPLAIN CTAS_U_0;"})
    assert "CTAS_T_0" in answer.json()["message"]


def test_the_page_is_for_users_of_the_server(tmp_path: Path) -> None:
    (tmp_path / "users.toml").write_text('[ada]\npassword = "secret"\n')
    users = UserFile(tmp_path / "users.toml")
    with connect(tmp_path / "log") as log, SqlEngine(log, tmp_path / "sql") as engine, SqlServer(engine, users=users) as server:
        headers = {"Accept": "text/html"}
        refused = httpx.get(f"{server.address}/", headers=headers)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Basic ")  # on which a browser asks who one is
        assert httpx.get(f"{server.address}/", headers=headers, auth=("ada", "secret")).status_code == 200


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if BROWSER is None:
        pytest.skip("needs Chromium, as LOGFLUME_CHROMIUM or by its name")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Any, server: SqlServer) -> Iterator[Any]:
    """The page, opened; whatever fails in it fails the test."""
    context = browser.new_context()
    opened = context.new_page()
    opened.set_default_timeout(60_000)
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("dialog", lambda dialog: dialog.accept() if dialog.type == "confirm" else faults.append(dialog.message))
    opened.goto(f"{server.address}/")
    opened.wait_for_selector("#server.good")
    yield opened
    context.close()
    assert not faults


def ran(page: Any, script: str, shows: str) -> Any:
    """Run a script; return what is shown once a text is there."""
    page.fill("#editor", script)
    page.keyboard.press("Control+Enter")
    return page.locator("article", has_text=shows).first


def test_a_person_runs_statements_and_sees_what_they_give(page: Any) -> None:
    made = "CREATE STREAM made (v INT) WITH (KAFKA_TOPIC='made', PARTITIONS=1, VALUE_FORMAT='JSON'); INSERT INTO made VALUES (1);"
    ran(page, f"-- a comment; no statement\n{made} SELECT * FROM s;", "query completed").wait_for()
    assert page.locator("article p").all_inner_texts() == ["Stream MADE created", "1 INSERT done", "1 row; query completed"]
    assert page.locator("td").all_inner_texts() == ["1", "<img src=x onerror=alert(1)>", "9007199254740993"]
    page.locator("#streams button", has_text="MADE").click()
    page.locator("article", has_text="over topic made").wait_for()
    assert page.locator("td").all_inner_texts() == ["V", "INTEGER", ""]


def test_times_of_records_and_windows_are_shown_as_people_read_them(page: Any) -> None:
    yesterday = dt.datetime.now(dt.UTC).date() - dt.timedelta(days=1)
    at_ms = int(dt.datetime.combine(yesterday, dt.time(21, 18, 23, 847_000), dt.UTC).timestamp() * 1000)
    made = f"""CREATE STREAM visits (u STRING KEY, n BIGINT) WITH (KAFKA_TOPIC='visits', PARTITIONS=1, VALUE_FORMAT='JSON');
        INSERT INTO visits (ROWTIME, u, n) VALUES ({at_ms}, 'ann', {at_ms});
        CREATE TABLE hourly AS SELECT u, COUNT(*) AS c FROM visits WINDOW TUMBLING (SIZE 1 HOUR) GROUP BY u;"""
    ran(page, f"{made} SELECT ROWTIME, n FROM visits;", "query completed").wait_for()
    assert page.locator("td").all_inner_texts() == [f"{yesterday}T21:18:23.847Z", str(at_ms)]
    ran(page, "SELECT * FROM hourly;", "WINDOWEND").locator("td").nth(3).wait_for()
    shown = page.locator("article", has_text="WINDOWEND").locator("td").all_inner_texts()
    assert shown == ["ann", f"{yesterday}T21:00:00.000Z", f"{yesterday}T22:00:00.000Z", "1"]


def test_what_is_asked_right_after_a_query_was_made_is_answered_from_all_that_there_was(page: Any) -> None:
    script = "".join(
        f"CREATE TABLE at_once_{i} AS SELECT n, COUNT(*) AS c FROM s GROUP BY n; SELECT c FROM at_once_{i};" for i in range(5)
    )
    ran(page, script, "AT_ONCE_4 created").wait_for()
    page.locator("td").nth(4).wait_for()
    assert page.locator("td").all_inner_texts() == ["1"] * 5


def test_a_mistake_is_shown_where_it_is_and_nothing_after_it_is_done(page: Any) -> None:
    refused = ran(page, "SHOW TOPICS;\nSELECT id,\n  nope FROM s; DROP STREAM s;", "cannot be resolved")
    assert "line 3, column 3" in refused.inner_text()
    refused.get_by_role("button").click()
    chosen = "document.getElementById('editor').value.slice(editor.selectionStart, editor.selectionEnd)"
    assert page.evaluate(chosen) == "nope"
    assert page.locator("#streams button", has_text=re.compile("^S$")).count() == 1


def test_a_mistake_in_a_selection_is_shown_where_it_is_in_the_editor(page: Any) -> None:
    text = "SHOW TOPICS;\n\n  SELECT nope FROM s;"
    page.fill("#editor", text)
    page.evaluate(f"editor.setSelectionRange({text.index('SELECT')}, {len(text)})")
    page.keyboard.press("Control+Enter")
    refused = page.locator("article", has_text="cannot be resolved").first
    assert "line 3, column 10" in refused.inner_text()
    page.evaluate("editor.setSelectionRange(0, 0)")
    refused.get_by_role("button").click()
    assert page.evaluate("[editor.selectionStart, editor.selectionEnd]") == [text.index("nope"), text.index("nope") + 4]


def test_a_mistake_of_what_the_editor_has_not_has_no_place_there(page: Any) -> None:
    page.evaluate("void run('SELECT nope FROM s;')")
    refused = page.locator("article", has_text="cannot be resolved").first
    assert "line 1, column 8" in refused.inner_text()
    assert refused.get_by_role("button").count() == 0


def test_rows_are_told_wherever_the_network_cuts_them(page: Any) -> None:
    """Each end of what was read is tried, also behind a ']' within a row."""
    answer = (
        '[{"header":{"queryId":"q","schema":"`A` ARRAY<INTEGER>"}},\n{"row":{"columns":[[1,2]]}},\n{"row":{"columns":["a]"]}},\n'
        '{"row":{"columns":[null]}},\n{"finalMessage":"Limit Reached"}]\n'
    )
    told = page.evaluate(
        """async (answer) => {
            const asked = window.fetch, found = [];
            try {
                for (let at = 0; at <= answer.length; at += 1) {
                    window.fetch = async () => new Response(new ReadableStream({ start(to) {
                        for (const part of [answer.slice(0, at), answer.slice(at)]) to.enqueue(new TextEncoder().encode(part));
                        to.close();
                    } }));
                    const messages = [];
                    await follow("", (each) => messages.push(each)).catch((error) => messages.push(String(error)));
                    found.push(JSON.stringify(messages));
                }
            } finally { window.fetch = asked; }
            return [...new Set(found)];
        }""",
        answer,
    )
    assert [json.loads(each) for each in told] == [json.loads(answer)]


def test_a_push_query_is_followed_row_by_row_until_it_is_stopped(page: Any, server: SqlServer, client: httpx.Client) -> None:
    ran(page, "SELECT n FROM s WHERE id > 1 EMIT CHANGES;", "waiting for more").wait_for()
    for count in (1, 2):  # each is seen before the next is written
        assert client.post("/ksql", json={"ksql": f"INSERT INTO s VALUES ({count + 1}, 'later', 0);"}).status_code == 200
        page.locator("td", has_text="later").nth(count - 1).wait_for()
    page.click("#stop")
    page.locator("article", has_text="2 rows; stopped").wait_for()
    deadline_s = time.monotonic() + 60
    while server._app._queries._running:
        assert time.monotonic() < deadline_s, "the query still runs"
        client.get("/info")


def test_settings_belong_to_the_page_and_go_along_with_what_it_asks(page: Any) -> None:
    ran(page, "SET 'auto.offset.reset' = 'latest'; DEFINE what = 'n'; SELECT ${what} FROM s LIMIT 1;", "1 row;").wait_for()
    assert [text.rstrip("×") for text in page.locator("#settings li").all_inner_texts()] == [
        "auto.offset.reset = latest",
        "${WHAT} = n",
    ]
    page.locator("#settings button").first.click()
    assert page.locator("#settings li").count() == 1
    ran(page, "SET 'no.such.property' = 'x';", "no.such.property").wait_for()
    assert page.locator("#settings li").count() == 1
    ran(page, "UNDEFINE what -- no more\n; SHOW TOPICS;", "not this page").wait_for()
    assert page.locator("#settings li").count() == 1
    assert page.locator("article").count() == 1, "what comes after it might mean something else now"


def test_a_query_is_drawn_measured_paused_and_goes_on(page: Any) -> None:
    page.locator("#queries button", has_text="CTAS_T_0").click()
    page.wait_for_function("() => document.querySelector('.picture img')?.naturalWidth > 100")
    page.get_by_role("button", name="Measure").click()
    page.locator("th", has_text="ROWS/S").wait_for()
    for act, state in (("Pause", "PAUSED"), ("Resume", "RUNNING")):
        page.get_by_role("button", name=act).click()
        page.locator(f"h2 .state.{state}").wait_for()


def test_a_narrow_window_holds_it_too(page: Any) -> None:
    page.set_viewport_size({"width": 360, "height": 700})
    ran(page, "SELECT * FROM s LIMIT 1;", "1 row;").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
