"""A registry that runs: a listening socket, a connection to the log and uvicorn around the application, in a thread of its
own."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import socket
import threading
from typing import Any

import uvicorn

from logflume.log.client import connect
from logflume.log.errors import InvalidInput, LogflumeError

from .app import RegistryApp
from .schemas import DEFAULT_LIMITS, Limits
from .service import Service, Settings
from .store import DEFAULT_TOPIC, ensure_topic

START_TIMEOUT_S = 60.0
BACKLOG = 512
MAX_CONNECTIONS = 1_000
KEEP_ALIVE_S = 60
_log = logging.getLogger("logflume.registry")


class RegistryServer:
    """Serves a registry over a log until closed. Context manager; `address` is where it listens."""

    def __init__(
        self,
        where: str,
        *,
        host: str = "127.0.0.1",
        port: int = 8081,
        advertise: str | None = None,
        topic: str = DEFAULT_TOPIC,
        group_id: str = "logflume-registry",
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        """`where`: as for `connect`. `advertise`: `http://host:port` under which the other instances reach this one.

        Raises:
            InvalidInput: the address cannot be listened on; says why.
        """
        self._where = where
        self._socket = listen(host, port)
        bound = self._socket.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{bound}"
        self._settings = Settings(advertise or reachable(host, bound), topic, group_id, limits)
        self._thread = threading.Thread(target=self._run, name="registry", daemon=True)
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._server: uvicorn.Server | None = None
        self.service: Service | None = None

    def start(self) -> RegistryServer:
        """Return once the topic is read and requests are answered. Raises what kept it from starting."""
        self._thread.start()
        if not self._ready.wait(START_TIMEOUT_S):
            self.close()
            raise LogflumeError(f"the registry did not start within {START_TIMEOUT_S:g} s")
        if self._failure is not None:
            self._socket.close()
            raise self._failure
        return self

    def stop(self) -> None:
        """Ask it to end; does not wait. May be called in a signal handler."""
        if self._server is not None:
            self._server.should_exit = True

    def wait(self) -> None:
        """Return when the registry has ended."""
        while self._thread.is_alive():
            self._thread.join(0.5)
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        self.stop()
        self._thread.join(30)
        self._socket.close()

    def __enter__(self) -> RegistryServer:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(self._serve())
        except BaseException as error:  # handed to whoever waits  # noqa: BLE001
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        log = await asyncio.to_thread(connect, self._where, client_id="logflume-registry")
        service: Service | None = None
        try:
            partition = await asyncio.to_thread(ensure_topic, log, self._settings.topic)
            service = Service(log, partition, self._settings)
            await service.start()
            self.service = service
            app = RegistryApp(service)
            server = self._server = _Quiet(_config(app))
            self._ready.set()
            await server.serve(sockets=[self._socket])
            await app.close()
        finally:
            if service is not None:
                await service.close()
            await asyncio.to_thread(log.close)


class _Quiet(uvicorn.Server):
    """Leaves signals to whoever owns the process."""

    def capture_signals(self) -> Any:
        return contextlib.nullcontext()


def _config(app: RegistryApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_level="error",
        lifespan="off",
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=5,
        proxy_headers=False,
    )


def _loop_factory() -> Any:
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises InvalidInput with the reason, such as a port that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise InvalidInput(
            f"the registry cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}; choose another address"
        ) from error
    return made


def reachable(host: str, port: int) -> str:
    """Return the address under which other instances reach one that listens on `host`.

    >>> reachable("127.0.0.1", 8081), reachable("::1", 8081)
    ('http://127.0.0.1:8081', 'http://[::1]:8081')
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if address.is_unspecified:
        return f"http://{socket.gethostname()}:{port}"
    return f"http://[{host}]:{port}" if address.version == 6 else f"http://{host}:{port}"
