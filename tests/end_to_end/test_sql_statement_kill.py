"""SIGKILL in the middle of each kind of statement: afterwards each is done wholly or not at all, and can be said again.

The server that is killed holds the log, the engine and its queries in one process: all of them go at once.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from ._command import read_until, wait_until
from ._warm import warm_commands

STATEMENTS = (
    "CREATE STREAM s (k STRING KEY, v INT) WITH (KAFKA_TOPIC='s', PARTITIONS=2, VALUE_FORMAT='JSON');",
    "CREATE TABLE t AS SELECT k, COUNT(*) AS n, SUM(v) AS total FROM s GROUP BY k;",
    "CREATE STREAM c AS SELECT v, k FROM s PARTITION BY v;",
    "INSERT INTO c SELECT v, k FROM s PARTITION BY v;",
    "INSERT INTO s (k, v) VALUES ('a', 1);",
    "CREATE OR REPLACE TABLE t AS SELECT k, COUNT(*) AS n, SUM(v) AS total FROM s WHERE v >= 0 GROUP BY k;",
    "TERMINATE ALL;",
    "DROP STREAM c DELETE TOPIC;",
)
"""In the order in which each can be said: definitions, queries with topics, rows, a replacement, ends."""
DELAY_MAX_S = 0.08


class Server:
    """`logflume sql serve` on a folder of data: log, engine and queries in one process."""

    def __init__(self, folder: Path) -> None:
        data = folder / "log"
        argv = [str(warm_commands() / "logflume"), "sql", "serve", "--data", str(data), "--listen", "127.0.0.1:0"]
        self._process = subprocess.Popen([*argv, "--state-dir", str(folder / "state")], stdout=subprocess.PIPE, text=True)
        address = read_until(self._process, "http").split()[1]
        self._pid = int((data / ".lock").read_text().split()[0])
        self._client = httpx.Client(base_url=address, timeout=60)

    def say(self, text: str) -> Any:
        return self._client.post("/ksql", json={"ksql": text}).json()

    def rows(self, text: str) -> Any:
        return [part["row"]["columns"] for part in self._client.post("/query", json={"ksql": text}).json()[1:]]

    def kill_in(self, text: str, delay_s: float) -> None:
        """Kill the server so long after a statement was sent."""

        def send() -> None:
            with suppress(httpx.TransportError):
                self.say(text)

        sending = threading.Thread(target=send)
        sending.start()
        sending.join(delay_s)
        self.kill()
        sending.join()

    def kill(self) -> None:
        """Idempotent."""
        if self._process.poll() is None:
            os.kill(self._pid, signal.SIGKILL)
            self._process.wait()
            self._client.close()


def is_said_again(answer: Any) -> bool:
    """Tell whether a statement was taken, or refused for being done already."""
    return isinstance(answer, list) or any(words in str(answer) for words in ("already", "does not exist", "Unknown"))


@pytest.mark.slow
def test_a_statement_that_is_killed_is_done_or_not_and_can_be_said_again(tmp_path: Path) -> None:
    chance = random.Random(1)
    with ExitStack() as stack:

        def started() -> Server:
            server = Server(tmp_path)
            stack.callback(server.kill)
            return server

        server = started()
        for text in STATEMENTS:
            server.kill_in(text, chance.uniform(0, DELAY_MAX_S))
            server = started()
            answer = server.say(text)
            assert is_said_again(answer), (text, answer)
            queries = server.say("SHOW QUERIES;")[0]["queries"]
            assert not [query for query in queries if query["state"] == "ERROR"], (text, queries)
        assert {each["name"] for each in server.say("SHOW STREAMS;")[0]["streams"]} == {"S"}
        assert server.say("SHOW QUERIES;")[0]["queries"] == []
        server.say("CREATE TABLE again AS SELECT k, COUNT(*) AS n FROM s GROUP BY k;")
        wait_until(lambda: server.rows("SELECT * FROM again;") in ([["a", 1]], [["a", 2]]))  # the killed row is there, or not
