"""Runs the SQL server: HTTP/1.1 and HTTP/2 on one address, in a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvicorn

from logflume.log import InvalidInput, LogflumeError, connect_as_owner
from logflume.log.loopback import TLS_ADVICE, is_loopback, refuse_exposed
from logflume.log.registry import Tls, Users, loop_factory
from logflume.sql.connectors import ConnectorsOf
from logflume.sql.engine import DEFAULT_SERVICE, SqlEngine
from logflume.sql.places import default_state_dir
from logflume.sql.pull_service import PullService
from logflume.sql.running import GONE_TIMEOUT_S
from logflume.sql.warming import warm_up
from logflume.streams.functions import Library

from .app import SqlApp
from .connections import KEEP_ALIVE_S, FirstBytes

DEFAULT_LISTEN = "127.0.0.1:8088"
FOLLOW_EVERY_S = 0.1
STOP_TIMEOUT_S = 10.0
SWITCH_INTERVAL_S = 0.001
"""A request has the interpreter back from a query's thread so soon; Python's own 5 ms add up at each change of threads."""
_BACKLOG = 128
_log = logging.getLogger("logflume.sql")


class SqlServer:
    """Serves an engine until closed. Context manager; it serves once entered.

    `users` None: everybody may do everything, so that only loopback addresses may be listened on. `tls`: HTTPS alone is spoken.
    """

    def __init__(
        self,
        engine: SqlEngine,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        users: Users | None = None,
        tls: Tls | None = None,
        is_insecure: bool = False,
    ) -> None:
        """`is_insecure`: without `tls` passwords and rows may be read on the way; only if somebody says so.

        Raises InvalidInput: the address cannot be listened on, or the certificate not be used; says why."""
        if users is None and not is_loopback(host):
            raise InvalidInput(
                f"a SQL server without users listens on loopback addresses only, found {host}; give it users (--users FILE), or "
                "leave it at 127.0.0.1"
            )
        refuse_exposed(
            "the SQL server", host, has_users=True, has_tls=tls is not None, advice=TLS_ADVICE, is_insecure=is_insecure
        )
        if tls is not None:
            tls.check()
        self._tls = tls
        self._engine = engine
        self._app = SqlApp(engine, version=version("logflume"), users=users)
        self._socket = _listen(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self._stopping = threading.Event()
        self._http = _Quiet(self._config())
        self._thread = threading.Thread(target=self._run, name="sql-server", daemon=True)
        self._follower = threading.Thread(target=self._follow, name="sql-follower", daemon=True)

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self._tls is None else 'https'}://{host}:{self.port}"

    def __enter__(self) -> SqlServer:
        self._thread.start()
        self._follower.start()
        self._engine.is_followed = True
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        self._engine.is_followed = False
        self._app.close()
        self._http.should_exit = True
        self._thread.join(STOP_TIMEOUT_S)
        self._follower.join(GONE_TIMEOUT_S)  # a broker that is gone may keep it until the log is closed
        self._socket.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(self._http.serve(sockets=[self._socket]))

    def _config(self) -> uvicorn.Config:
        made = uvicorn.Config(
            self._app.asgi,
            http=FirstBytes,
            ws="wsproto",
            log_config=None,
            log_level="error",
            lifespan="off",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
            ssl_certfile=None if self._tls is None else self._tls.certificate,
            ssl_keyfile=None if self._tls is None else self._tls.key,
        )
        made.load()
        if made.ssl is not None:
            made.ssl.set_alpn_protocols(["h2", "http/1.1"])
        return made

    def _follow(self) -> None:
        """Load what first statements need; then take in the commands of other servers, and start again what has failed."""
        warm_up()
        while not self._stopping.wait(FOLLOW_EVERY_S):
            try:
                self._engine.following.follow()
            except LogflumeError as error:
                _log.warning("commands cannot be read: %s; trying again", error)


class _Quiet(uvicorn.Server):
    """Leaves signals to whoever owns the process."""

    def capture_signals(self) -> Any:
        return contextlib.nullcontext()


def run_server(
    where: str,
    stopping: Callable[[], threading.Event],
    *,
    host: str,
    port: int,
    state_dir: Path | None = None,
    runs_queries: bool = True,
    service: str = DEFAULT_SERVICE,
    users: Users | None = None,
    tls: Tls | None = None,
    is_insecure: bool = False,
    connectors: ConnectorsOf | None = None,
    functions: Library | None = None,
) -> None:
    """Serve a log until a signal; print where. `runs_queries` False: workers run the queries, and are asked.

    `stopping`: as `run_worker` takes it; `users`, `tls` and `is_insecure`: as `SqlServer`. For a process of its own: its
    threads have the interpreter in shorter turns.

    Raises:
        LogflumeError: the log cannot be opened, or the address not listened on.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with ExitStack() as stack:
        log = stack.enter_context(connect_as_owner(where))
        made = SqlEngine(
            log,
            state_dir or default_state_dir(where),
            service=service,
            runs_queries=runs_queries,
            connectors=connectors,
            library=functions,
        )
        engine = stack.enter_context(made)
        if runs_queries:
            stack.enter_context(PullService(engine, log))
        server = stack.enter_context(SqlServer(engine, host=host, port=port, users=users, tls=tls, is_insecure=is_insecure))
        stop = stopping()
        print(f"sql       {server.address}", flush=True)
        stop.wait()


def _listen(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise InvalidInput(f"cannot listen on {host}:{port}: {error.strerror or error}; choose another address") from error
    sock.setblocking(False)
    return sock
