"""One address, two libraries: connections that speak HTTP/1.1 and WebSocket go to uvicorn, those that speak HTTP/2 to hypercorn.

Which one is known by ALPN, or by what a client without TLS sends first: the preface of HTTP/2 (RFC 9113, 3.4), or a request that
asks for an upgrade to it (h2c, RFC 7540, 3.2).
"""

from __future__ import annotations

import asyncio
import logging
import re
from http import HTTPStatus
from typing import Any, cast

from uvicorn import Config
from uvicorn.server import ServerState

from .gathering import Gathering
from .pipelining import Pipelining

PREFACE = b"PRI * HTTP/2.0"
KEEP_ALIVE_S = 300
_HEAD_BYTES_MAX = 16 << 10
_log = logging.getLogger("logflume.sql")
_NO_REASON = re.compile(rb"\AHTTP/1\.1 (\d{3}) \r\n")
_UPGRADE = re.compile(rb"\r\nupgrade:[ \t]*h2c[ \t]*\r\n", re.IGNORECASE)


def is_http_2(start: bytes) -> bool | None:
    """Tell whether what a client sent first begins HTTP/2; None: more of it is needed.

    >>> is_http_2(b"PRI"), is_http_2(b"PRI * HTTP/2.0"), is_http_2(b"GET /info HTTP/1.1\\r\\n\\r\\n")
    (None, True, False)
    """
    if start.startswith(PREFACE) or PREFACE.startswith(start):
        return True if len(start) >= len(PREFACE) else None
    end = start.find(b"\r\n\r\n")
    if end < 0:
        return None if len(start) < _HEAD_BYTES_MAX else False
    return _UPGRADE.search(start, 0, end + 2) is not None


class FirstBytes(asyncio.Protocol):
    """Has a connection until it is known what it speaks; uvicorn makes one for each, with its own arguments."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._config, self._state, self._app_state = config, server_state, app_state
        self._loop = _loop or asyncio.get_running_loop()
        self._start = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # that of uvloop is one without being an instance
        self._state.connections.add(self)  # type: ignore[arg-type]
        self._timer = self._loop.call_later(KEEP_ALIVE_S, transport.close)
        secured = transport.get_extra_info("ssl_object")
        if secured is not None:
            self._hand_over(is_2=secured.selected_alpn_protocol() == "h2")

    def data_received(self, data: bytes) -> None:
        self._start += data
        is_2 = is_http_2(self._start)
        if is_2 is not None:
            self._hand_over(is_2=is_2)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()

    def shutdown(self) -> None:
        """End what has not said anything yet; uvicorn calls this when it stops."""
        self._transport.close()

    def _leave(self) -> None:
        self._state.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def _hand_over(self, *, is_2: bool) -> None:
        self._leave()
        if is_2:
            protocol: asyncio.Protocol = self._http_2()
        else:
            protocol = Pipelining(self._config, self._state, self._app_state, self._loop)
        self._transport.set_protocol(protocol)
        whole = self._transport if is_2 else cast("asyncio.Transport", Gathering(self._transport, self._loop))
        protocol.connection_made(whole)
        if self._start:
            protocol.data_received(self._start)

    def _http_2(self) -> asyncio.StreamReaderProtocol:
        from hypercorn.asyncio.tcp_server import TCPServer
        from hypercorn.asyncio.worker_context import WorkerContext
        from hypercorn.config import Config as Http2Config
        from hypercorn.utils import wrap_app

        state, settings = self._state, Http2Config()
        settings.errorlog, settings.loglevel = _log, "WARNING"
        settings.include_server_header, settings.keep_alive_timeout = False, KEEP_ALIVE_S
        settings.keep_alive_max_requests = 1_000_000_000

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connection = _Http2(task)
            state.tasks.add(task)
            state.connections.add(connection)  # type: ignore[arg-type]
            try:
                app = wrap_app(self._config.loaded_app, 0, "asgi")
                told = cast("asyncio.StreamWriter", _WithReasons(writer))
                await TCPServer(app, self._loop, settings, WorkerContext(None), {}, reader, told)
            except asyncio.CancelledError:
                writer.close()
            finally:
                state.tasks.discard(task)
                state.connections.discard(connection)

        return asyncio.StreamReaderProtocol(asyncio.StreamReader(loop=self._loop), serve, loop=self._loop)


class _WithReasons:
    """A writer whose status lines say their reason: HTTP may leave it out, as hypercorn does; some clients then read nothing."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def write(self, data: bytes) -> None:
        self._writer.write(_NO_REASON.sub(_with_reason, data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


def _with_reason(line: re.Match[bytes]) -> bytes:
    return b"HTTP/1.1 %b %b\r\n" % (line[1], HTTPStatus(int(line[1])).phrase.encode())


class _Http2:
    """A connection of hypercorn, as uvicorn ends connections."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task

    def shutdown(self) -> None:
        self._task.cancel()
