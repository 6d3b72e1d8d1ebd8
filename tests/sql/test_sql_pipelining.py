"""Requests that a client sends without waiting: answered in order, begun early only where the one before lets them."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from logflume.sql.rest.pipelining import UNANSWERED_MAX, Pipelining, in_turn, let_next

from .conftest import served


class Disk:
    """An app: /row begins at once, lets the next begin and waits for its row; /late takes its turn; /fault fails."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.lost: list[str] = []
        self.written: dict[str, asyncio.Event] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["query_string"].decode()
        try:
            if scope["path"] == "/late":
                await in_turn(scope)
        except ClientDisconnect:
            self.lost.append(name)
            return
        self.begun.append(name)
        if scope["path"] == "/row":
            let_next(scope)
            await self.row(name).wait()
        elif scope["path"] == "/fault":
            raise ValueError(name)
        elif scope["path"] == "/followed":
            while (await receive())["type"] != "http.disconnect":
                pass
            self.lost.append(name)
            return
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(name))]})
        await send({"type": "http.response.body", "body": name.encode()})

    def row(self, name: str) -> asyncio.Event:
        return self.written.setdefault(name, asyncio.Event())


class Client:
    """A connection to an app."""

    def __init__(self, app: Disk, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.app, self.writer = app, writer
        self._reader = reader

    def sends(self, *targets: str, more: str = "") -> None:
        self.writer.write("".join(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n" for target in targets).encode())

    async def answer(self) -> tuple[str, str]:
        """Return the status and the body of the next answer."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = head.partition("content-length: ")[2].partition("\r\n")[0] or "0"
        return head.split()[1], (await self._reader.readexactly(int(length))).decode()

    async def begun(self, *names: str) -> None:
        """Return when exactly these have begun, and the others had the time to."""
        while len(self.app.begun) < len(names):
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert self.app.begun == list(names)


def connected(test: Callable[[Client], Awaitable[None]]) -> None:
    async def run() -> None:
        app = Disk()
        config = uvicorn.Config(app, lifespan="off", log_config=None)
        config.load()
        state = ServerState()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Pipelining(config, state, {}), "127.0.0.1", 0)
        async with server:
            client = Client(app, *await asyncio.open_connection(*server.sockets[0].getsockname()))
            async with asyncio.timeout(60):
                await test(client)
            client.writer.close()

    asyncio.run(run())


def test_those_that_wait_for_the_disk_wait_together_and_are_answered_in_order() -> None:
    async def check(client: Client) -> None:
        client.sends("/row?a", "/row?b")
        await client.begun("a", "b")
        client.sends("/row?c")
        await client.begun("a", "b", "c")
        client.app.row("c").set()
        client.app.row("b").set()
        await client.begun("a", "b", "c")
        client.app.row("a").set()
        assert [await client.answer() for _ in range(3)] == [("200", "a"), ("200", "b"), ("200", "c")]

    connected(check)


def test_one_that_takes_its_turn_begins_when_all_before_it_are_answered_and_lets_none_overtake_it() -> None:
    async def check(client: Client) -> None:
        client.sends("/row?a", "/row?b", "/late?c", "/row?d")
        await client.begun("a", "b")
        client.app.row("b").set()
        client.app.row("d").set()
        await client.begun("a", "b")
        client.app.row("a").set()
        assert [await client.answer() for _ in range(4)] == [("200", each) for each in "abcd"]
        assert client.app.begun == ["a", "b", "c", "d"]

    connected(check)


def test_a_fault_is_told_behind_the_answers_before_it() -> None:
    async def check(client: Client) -> None:
        client.sends("/row?a", "/fault?b")
        await client.begun("a", "b")
        client.app.row("a").set()
        assert await client.answer() == ("200", "a")
        assert (await client.answer())[0] == "500"

    connected(check)


def test_so_many_are_under_way_at_a_time_and_no_more() -> None:
    async def check(client: Client) -> None:
        names = [str(n) for n in range(UNANSWERED_MAX + 2)]
        client.sends(*(f"/row?{name}" for name in names))
        await client.begun(*names[:UNANSWERED_MAX])
        client.app.row("0").set()
        await client.begun(*names[: UNANSWERED_MAX + 1])
        for name in names:
            client.app.row(name).set()
        assert [(await client.answer())[1] for _ in names] == names
        client.sends("/row?0")  # the connection goes on
        assert await client.answer() == ("200", "0")

    connected(check)


def test_who_waits_to_be_told_to_go_on_is_told_so_behind_the_answers_before_it() -> None:
    async def check(client: Client) -> None:
        client.sends("/row?a")
        client.sends("/row?b", more="Expect: 100-continue\r\n")
        await client.begun("a")
        client.app.row("a").set()
        client.app.row("b").set()
        assert [(await client.answer())[0] for _ in range(3)] == ["200", "100", "200"]

    connected(check)


def test_a_client_that_goes_away_is_missed_by_all_its_requests() -> None:
    async def check(client: Client) -> None:
        client.sends("/row?a", "/late?b", "/row?c")
        await client.begun("a")
        client.writer.close()
        while client.app.lost != ["b"]:
            await asyncio.sleep(0)
        client.app.row("a").set()
        await client.begun("a")

    connected(check)


def test_what_is_followed_ends_with_its_client_though_another_request_waits_behind_it() -> None:
    async def check(client: Client) -> None:
        client.sends("/followed?a")
        await client.begun("a")
        client.sends("/row?b")
        await client.begun("a")
        client.writer.close()
        while client.app.lost != ["a"]:
            await asyncio.sleep(0)
        await client.begun("a")

    connected(check)


def pipelined(address: str, *requests: tuple[str, dict[str, Any]]) -> list[tuple[int, Any]]:
    """Send all requests at once over one connection; return the status and the content of each answer."""
    host, port = address.removeprefix("http://").split(":")
    sent = b""
    for path, content in requests:
        body = json.dumps(content).encode()
        sent += b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(body), body)
    found: list[tuple[int, Any]] = []
    with socket.create_connection((host, int(port)), timeout=60) as sock, sock.makefile("rb") as answers:
        sock.sendall(sent)
        for _ in requests:
            status, length = int(answers.readline().split()[1]), 0
            while (line := answers.readline().lower()) != b"\r\n":
                length = int(line.partition(b":")[2]) if line.startswith(b"content-length:") else length
            found.append((status, json.loads(answers.read(length))))
    return found


def test_statements_that_are_sent_together_are_done_as_if_each_had_waited(tmp_path: Path) -> None:
    made = "CREATE STREAM s (k STRING KEY, n INT) WITH (KAFKA_TOPIC='s', PARTITIONS=1, VALUE_FORMAT='JSON');"
    with served(tmp_path, made + "INSERT INTO s VALUES ('k', -1);") as server:
        rows = [("/ksql", {"ksql": f"INSERT INTO s VALUES ('k', {n});"}) for n in range(300)]
        other = "CREATE STREAM o (n INT) WITH (KAFKA_TOPIC='o', PARTITIONS=1, VALUE_FORMAT='JSON');"
        found = pipelined(
            server.address,
            *rows,
            ("/ksql", {"ksql": "INSERT INTO s VALUES ('k', 'x');"}),
            ("/ksql", {"ksql": other}),
            ("/ksql", {"ksql": "INSERT INTO o VALUES (1);"}),
            ("/query", {"ksql": "SELECT n FROM o;"}),
        )
        assert found[:300] == [(200, [])] * 300
        assert [status for status, _ in found[300:]] == [400, 200, 200, 200]
        assert found[300][1]["statementText"] == "INSERT INTO s VALUES ('k', 'x')"
        assert found[301][1][0]["commandStatus"]["status"] == "SUCCESS"
        assert found[303][1][1]["row"]["columns"] == [1]
        lines = httpx.post(f"{server.address}/query-stream", json={"sql": "SELECT n FROM s;"}, timeout=60).text.splitlines()
        assert [json.loads(line) for line in lines[1:]] == [[n] for n in range(-1, 300)]
