"""Requests that a client sends without waiting for the answers to those before (pipelining: RFC 9112, 9.3.2).

They are answered in the order in which they came, and each begins when the one before it is answered; or, where that one only
waits for the disk, as soon as it says so: then the rows of all of them get there together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import cast

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

UNANSWERED_MAX = 128
"""Requests of one connection; beyond them none is read or begun before the first is answered."""
_TURN = "logflume.turn"


async def in_turn(scope: Scope) -> None:
    """Return when all requests that came before this one over its connection are answered.

    Raises ClientDisconnect: nobody waits for the answers any more.
    """
    turn: _Turn | None = scope.get(_TURN)  # those by HTTP/2 have no order
    if turn is not None:
        await turn.has_come.wait()
        if turn.cycle.disconnected:
            raise ClientDisconnect


def let_next(scope: Scope) -> None:
    """Let the request behind this one begin: nothing that it does can come before what this one has done."""
    turn: _Turn | None = scope.get(_TURN)
    if turn is not None:
        turn.lets_next = True
        turn.protocol.begin_next()


class _Turn:
    """The place of a request among those of its connection. `has_come`: all before it are answered, or never will be."""

    __slots__ = ("cycle", "has_come", "lets_next", "protocol")

    def __init__(self, protocol: Pipelining, cycle: RequestResponseCycle) -> None:
        self.protocol, self.cycle = protocol, cycle
        self.has_come, self.lets_next = asyncio.Event(), False


class Pipelining(HttpToolsProtocol):
    """The protocol of uvicorn, in which a request may let the next one begin.

    Invariants: `_turns` are those of the requests that are not answered, in their order; the first has come. The last of them are
    those of `pipeline`, which have not begun; of the others, all but the last let the next one begin.
    """

    _turns: deque[_Turn]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._turns = deque()

    def on_headers_complete(self) -> None:
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is before:  # it becomes a WebSocket
            return
        turn = _Turn(self, self.cycle)
        cast("Scope", self.cycle.scope)[_TURN] = turn
        if not self._turns:
            turn.has_come.set()
        self._turns.append(turn)
        if len(self._turns) < UNANSWERED_MAX:
            self.flow.resume_reading()  # who does not read does not see that the client has gone
        self.begin_next()

    def begin_next(self) -> None:
        """Begin the first request that has not begun, if the one before it lets it."""
        begun = len(self._turns) - len(self.pipeline)
        if not self.pipeline or not 0 < begun < UNANSWERED_MAX or not self._turns[begun - 1].lets_next:
            return
        turn = self._turns[begun]
        if turn.cycle.waiting_for_100_continue:  # which is said to who has all other answers
            return
        cycle, app = self.pipeline.pop()
        task = self.loop.create_task(cycle.run_asgi(partial(_answer_in_turn, turn, cast("ASGIApp", app))))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def on_response_complete(self) -> None:
        self._turns.popleft()
        if len(self._turns) == len(self.pipeline):
            super().on_response_complete()  # begins the next
        else:
            self.server_state.total_requests += 1
        if self._turns and not self.transport.is_closing():
            self._turns[0].has_come.set()
            self.begin_next()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.pipeline.clear()
        for turn in self._turns:
            turn.cycle.disconnected = True
            turn.cycle.message_event.set()
            turn.has_come.set()


async def _answer_in_turn(turn: _Turn, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    async def send_in_turn(message: Message) -> None:
        await turn.has_come.wait()
        await send(message)

    try:
        await app(scope, receive, send_in_turn)
    except Exception:
        await turn.has_come.wait()  # who called tells of it
        raise
