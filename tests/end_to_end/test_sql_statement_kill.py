"""SIGKILL in the middle of each kind of statement: afterwards each is done wholly or not at all, and can be said again.

Killed is the one process that holds the log, the engine and its queries; or, where they are two, the broker or the engine alone.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.log._server_process import ServerProcess

from ._command import read_until, wait_until
from ._warm import warm_commands

STATEMENTS = (
    "CREATE STREAM s (k STRING KEY, v INT) WITH (KAFKA_TOPIC='s', PARTITIONS=2, VALUE_FORMAT='JSON');",
    "CREATE TABLE t AS SELECT k, COUNT(*) AS n, SUM(v) AS total FROM s GROUP BY k;",
    "CREATE STREAM c AS SELECT v, k FROM s PARTITION BY v;",
    "INSERT INTO c SELECT v, k FROM s PARTITION BY v;",
    "INSERT INTO s (k, v) VALUES ('a', 1);",
    "PAUSE ALL;",
    "RESUME ALL;",
    "ALTER STREAM s ADD COLUMN w INT;",
    "ALTER SYSTEM 'auto.offset.reset' = 'earliest';",
    "CREATE SOURCE CONNECTOR f WITH ('connector.class' = 'file-source', file = 'none.csv', topic = 'f', format = 'csv');",
    "DROP CONNECTOR f;",
    "CREATE OR REPLACE TABLE t AS SELECT k, COUNT(*) AS n, SUM(v) AS total FROM s WHERE v >= 0 GROUP BY k;",
    "TERMINATE ALL;",
    "DROP STREAM c DELETE TOPIC;",
)
"""In the order in which each can be said: definitions, queries with topics, rows, changes, connectors, a replacement, ends."""
DELAY_MAX_S = 0.08


class Server:
    """`logflume sql serve`: with the log in its own process, or over a broker."""

    def __init__(self, folder: Path, broker: ServerProcess | None = None) -> None:
        data, self._broker = folder / "log", broker
        where = ["--data", str(data)] if broker is None else ["--bootstrap", broker.address]
        argv = [str(warm_commands() / "logflume"), "sql", "serve", *where, "--listen", "127.0.0.1:0"]
        self._process = subprocess.Popen([*argv, "--state-dir", str(folder / "state")], stdout=subprocess.PIPE, text=True)
        address = read_until(self._process, "http").split()[1]
        self._pid = int((data / ".lock").read_text().split()[0]) if broker is None else self._process.pid
        self._client = httpx.Client(base_url=address, timeout=60)

    def say(self, text: str) -> Any:
        return self._client.post("/ksql", json={"ksql": text}).json()

    def rows(self, text: str) -> Any:
        return [part["row"]["columns"] for part in self._client.post("/query", json={"ksql": text}).json()[1:]]

    def kill_in(self, text: str, delay_s: float, *, is_broker: bool = False) -> None:
        """Kill the server, or its broker, which comes back, so long after a statement was sent."""

        def send() -> None:
            with suppress(httpx.TransportError):
                self.say(text)

        sending = threading.Thread(target=send)
        sending.start()
        sending.join(delay_s)
        if is_broker:
            assert self._broker is not None
            self._broker.kill()
            self._broker.start()
        else:
            self.kill()
        sending.join()

    def kill(self) -> None:
        """Idempotent."""
        if self._process.poll() is None:
            os.kill(self._pid, signal.SIGKILL)
            self._process.wait()
            self._client.close()

    def stop(self) -> int:
        """Tell it to end, as a service manager does; return its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)


def is_said_again(text: str, answer: Any) -> bool:
    """Tell whether a statement was taken, or refused for being done already: what it makes is there, what it ends is gone."""
    verb = text.split()[0]
    done = {
        "CREATE": ("already",),
        "ALTER": ("already",),
        "DROP": ("does not exist", "Unknown"),
        "TERMINATE": ("does not exist", "Unknown"),
    }
    return isinstance(answer, list) or any(words in str(answer) for words in done.get(verb, ()))


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["both in one process", "the broker", "the engine"])
def test_a_statement_that_is_killed_is_done_or_not_and_can_be_said_again(tmp_path: Path, killed: str) -> None:
    chance = random.Random(1)
    with ExitStack() as stack:
        broker = None if killed.startswith("both") else stack.enter_context(running_broker(tmp_path / "log"))

        def started() -> Server:
            server = Server(tmp_path, broker)
            stack.callback(server.kill)
            return server

        server = started()
        for text in STATEMENTS:
            server.kill_in(text, chance.uniform(0, DELAY_MAX_S), is_broker=killed == "the broker")
            server = server if killed == "the broker" else started()
            answer = server.say(text)
            assert is_said_again(text, answer), (text, answer)
            queries = server.say("SHOW QUERIES;")[0]["queries"]
            assert not [query for query in queries if query["state"] == "ERROR"], (text, queries)
            is_paused = text.startswith("PAUSE")
            assert not [query for query in queries if (query["state"] == "PAUSED") is not is_paused], (text, queries)
        assert {each["name"] for each in server.say("SHOW STREAMS;")[0]["streams"]} == {"S"}
        assert server.say("SHOW QUERIES;")[0]["queries"] == []
        assert server.say("SHOW CONNECTORS;")[0]["connectors"] == []
        columns = [each["name"] for each in server.say("DESCRIBE s;")[0]["sourceDescription"]["fields"]]
        assert columns == ["K", "V", "W"]
        server.say("CREATE TABLE again AS SELECT k, COUNT(*) AS n FROM s GROUP BY k;")
        wait_until(lambda: server.rows("SELECT * FROM again;") in ([["a", 1]], [["a", 2]]))  # the killed row is there, or not


@pytest.mark.slow
def test_state_without_its_current_file_is_filled_again_from_the_changelog(tmp_path: Path) -> None:
    """As it is between two steps of making or removing one: a moment that a kill hits once in a while."""
    with running_broker(tmp_path / "log") as broker:
        server = Server(tmp_path, broker)
        try:
            server.say("CREATE STREAM s (k STRING KEY, v INT) WITH (KAFKA_TOPIC='s', PARTITIONS=1, VALUE_FORMAT='JSON');")
            server.say("INSERT INTO s VALUES ('a', 1); CREATE TABLE t AS SELECT k, COUNT(*) AS n FROM s GROUP BY k;")
            wait_until(lambda: server.rows("SELECT * FROM t;") == [["a", 1]])
            server.kill()
            (current,) = (tmp_path / "state").rglob("CURRENT")
            current.unlink()
            server = Server(tmp_path, broker)
            server.say("INSERT INTO s VALUES ('a', 1);")
            wait_until(lambda: server.rows("SELECT * FROM t;") == [["a", 2]])
            (query,) = server.say("SHOW QUERIES;")[0]["queries"]
            assert query["state"] == "RUNNING"
            assert current.exists()
        finally:
            server.kill()


@contextmanager
def running_broker(data: Path) -> Iterator[ServerProcess]:
    broker = ServerProcess(str(data))
    try:
        yield broker
    finally:
        broker.kill()


@pytest.mark.slow
def test_a_server_whose_broker_is_gone_ends_when_it_is_told_to(tmp_path: Path) -> None:
    with running_broker(tmp_path / "log") as broker:
        server = Server(tmp_path, broker)
        try:
            for statement in STATEMENTS[:2]:
                server.say(statement)
            wait_until(lambda: "RUNNING" in str(server.say("SHOW QUERIES;")))
            broker.kill()
            time.sleep(1.0)  # it notices, and asks again and again
            begun = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - begun < 15, "a request to a broker that is gone is given up after 65 s"
        finally:
            server.kill()
            broker.start()
