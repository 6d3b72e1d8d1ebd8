"""SQL against `logflume serve`: queries run in a worker, pull queries come from its state, through a kill and a hand-over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ._command import LOOK_EVERY_S, free_port, read_until, run, serving, wait_until

CREATE = """
CREATE STREAM flights (k STRING KEY, delay DOUBLE) WITH (KAFKA_TOPIC='flights', PARTITIONS=2, VALUE_FORMAT='JSON');
CREATE TABLE delays AS SELECT k, COUNT(*) AS n, SUM(delay) AS total FROM flights GROUP BY k;
"""
BACKFILL = "CREATE TABLE again AS SELECT k, COUNT(*) AS n, SUM(delay) AS total FROM flights GROUP BY k;"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    with serving(tmp_path_factory.mktemp("stack") / "data") as found:
        address, _ = found
        run("sql", "-e", CREATE, "--bootstrap", address)
        yield found


def send(address: str, first: int, last: int) -> None:
    """Write flights with delays first..last-1, in turn for two airlines."""
    lines = "".join(f'{"AU"[n % 2]}A:{{"DELAY": {n}}}\n' for n in range(first, last))
    run("produce", "flights", "-K", ":", "--bootstrap", address, stdin=lines)


def pull(address: str, table: str) -> list[dict[str, object]]:
    """Return the rows of a table now."""
    text = run("sql", "-e", f"SELECT * FROM {table};", "--json", "--bootstrap", address).stdout
    rows = [json.loads(line) for line in text.splitlines()]
    return sorted(rows, key=lambda row: str(row["K"]))


def wait_for_rows(address: str, table: str, expected: list[dict[str, object]]) -> None:
    """Ask until the table has these rows; fail after two minutes."""
    deadline = time.monotonic() + 120
    while (found := pull(address, table)) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(LOOK_EVERY_S)


def rows_of(last: int) -> list[dict[str, object]]:
    """The table after flights 0..last-1, computed plainly."""
    return [
        {"K": name, "N": len(range(start, last, 2)), "TOTAL": float(sum(range(start, last, 2)))}
        for start, name in ((0, "AA"), (1, "UA"))
    ]


def test_a_query_survives_the_kill_of_its_worker_and_answers_from_state(stack: tuple[str, subprocess.Popen[str]]) -> None:
    address, process = stack
    send(address, 0, 100)
    wait_for_rows(address, "delays", rows_of(100))
    assert "of its state" in run("sql", "-e", "SELECT * FROM delays WHERE k='UA';", "--bootstrap", address).stderr
    shown = run("sql", "-e", "SHOW QUERIES;", "--json", "--bootstrap", address).stdout
    assert json.loads(shown.splitlines()[0])["STATE"] == "RUNNING"
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[1]), signal.SIGKILL)
    assert "engine-0 ended with signal SIGKILL" in read_until(process, "starting it again")
    send(address, 100, 150)
    wait_for_rows(address, "delays", rows_of(150))


def test_a_backfilled_query_goes_on_at_the_cut(stack: tuple[str, subprocess.Popen[str]]) -> None:
    address, _ = stack
    run(
        "sql",
        "-e",
        "CREATE STREAM IF NOT EXISTS flights (k STRING KEY) WITH (KAFKA_TOPIC='flights', VALUE_FORMAT='JSON');",
        "--bootstrap",
        address,
    )
    planned = run("backfill", "-e", BACKFILL, "--dry-run", "--json", "--bootstrap", address)
    assert sum(each["cut"] for each in json.loads(planned.stdout)["cut"]) >= 150
    assert "AGAIN" not in run("sql", "-e", "SHOW TABLES;", "--bootstrap", address).stdout
    done = run("backfill", "-e", BACKFILL, "--engine", "local", "--bootstrap", address)
    assert "running query with ID CTAS_AGAIN" in done.stdout
    wait_for_rows(address, "again", rows_of(150))
    send(address, 150, 170)
    wait_for_rows(address, "again", rows_of(170))
    wait_for_rows(address, "delays", rows_of(170))


def test_a_mistake_names_position_and_near_match(stack: tuple[str, subprocess.Popen[str]]) -> None:
    address, _ = stack
    failed = run("sql", "-e", "SELECT delya FROM flights EMIT CHANGES;", "--bootstrap", address, code=1)
    assert "DELAY" in failed.stderr
    assert "Traceback" not in failed.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)  # six processes start and end
def test_the_sql_server_answers_for_the_workers(tmp_path: Path) -> None:
    listen = f"127.0.0.1:{free_port()}"
    with (
        serving(tmp_path / "data", "--workers", "2", "--sql", listen) as (address, _),
        httpx.Client(base_url=f"http://{listen}", timeout=60) as client,
    ):
        assert client.get("/info").status_code == 200, "what is listed answers when it is said to be ready"
        made = client.post("/ksql", json={"ksql": CREATE}).json()
        assert [each["commandStatus"]["status"] for each in made] == ["SUCCESS", "SUCCESS"]
        send(address, 0, 100)

        def rows() -> list[list[object]]:
            found = client.post("/query", json={"ksql": "SELECT * FROM delays;"}).json()
            return sorted(each["row"]["columns"] for each in found[1:]) if isinstance(found, list) else []

        wait_until(lambda: rows() == [list(row.values()) for row in rows_of(100)])
    failed = run("serve", "--data", str(tmp_path / "other"), "--registry", "off", "--sql", "0.0.0.0:0", code=1)
    assert "--sql expects a loopback address" in failed.stderr
