"""A connection whose time in a turn of the loop is up goes on in the next, in order, and sends no more often than it has to."""

import socket
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from logflume.log.protocol import frames, messages
from logflume.log.server import connection
from logflume.log.server.budget import MemoryBudget
from logflume.log.server.connection import Connection
from logflume.log.server.traffic import Traffic

from ._turned_broker import TurnedBroker

REQUESTS = 7


class HandTurnedLoop:
    """As much of an asyncio loop as a connection uses."""

    def __init__(self) -> None:
        self.due: deque[Callable[[], None]] = deque()
        self.readable: Callable[[], None] | None = None

    def time(self) -> float:
        return 0.0

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        self.readable = callback

    def remove_reader(self, fd: int) -> None:
        self.readable = None

    def turn(self) -> None:
        for _ in range(len(self.due)):
            self.due.popleft()()


class Scene:
    """A client and its connection, of which each request uses up the time of a turn."""

    def __init__(self, path: Path) -> None:
        self.loop, self.broker = HandTurnedLoop(), TurnedBroker(path)
        self.client, end = socket.socketpair()
        end.setblocking(False)
        self.client.settimeout(0)
        self.connection = Connection(
            end,
            cast(Any, self.loop),
            self.broker.handlers,
            connection_id=1,
            host="h",
            listener="PLAINTEXT",
            on_close=lambda _: None,
            budget=MemoryBudget(lambda: -1),
            traffic=Traffic(),
        )

    def ask(self) -> None:
        """Send the requests at once, and let the broker learn of it."""
        request = messages.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        self.client.sendall(b"".join(b"".join(frames.request_frame(request, 4, number, "c")) for number in range(REQUESTS)))
        assert self.loop.readable is not None
        self.loop.readable()

    def received(self) -> list[int]:
        """Return the correlation ids of the answers that came since the last time."""
        try:
            data = self.client.recv(1 << 16)
        except BlockingIOError:
            return []
        ids = []
        while data:
            size = int.from_bytes(data[:4], "big")
            ids.append(int.from_bytes(data[4:8], "big"))
            data = data[4 + size :]
        return ids


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(connection, "TURN_S", -1.0)
    scene = Scene(tmp_path)
    yield scene
    scene.connection.close("the test is over")
    scene.client.close()
    scene.broker.close()


def test_every_turn_handles_a_request_and_two_turns_send_together(scene: Scene) -> None:
    scene.ask()
    by_turn = [scene.received()]
    for _ in range(REQUESTS):
        scene.loop.turn()
        by_turn.append(scene.received())
    assert by_turn == [[], [0, 1], [], [2, 3], [], [4, 5], [6], []]


def test_what_is_held_goes_out_when_no_more_is_read(scene: Scene) -> None:
    scene.ask()
    scene.connection.drain()
    scene.loop.turn()
    assert scene.received() == [0]
    assert scene.client.recv(1) == b"", "the broker stops: it closes once what it handled is answered"
