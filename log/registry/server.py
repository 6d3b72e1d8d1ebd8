"""A registry that runs: a listening socket, a connection to the log and uvicorn around the application, in a thread of its
own."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
import threading
from dataclasses import dataclass
from typing import Any

import uvicorn

from logflume.log.client import connect
from logflume.log.errors import InvalidInput, LogflumeError
from logflume.log.loopback import TLS_ADVICE, refuse_exposed

from .app import RegistryApp
from .schemas import DEFAULT_LIMITS, Limits
from .service import MAX_BODY_BYTES, Service, Settings
from .store import DEFAULT_TOPIC, ensure_topic
from .users import Users

START_TIMEOUT_S = 60.0
BACKLOG = 512
MAX_CONNECTIONS = 1_000
KEEP_ALIVE_S = 60
_log = logging.getLogger("logflume.registry")


@dataclass(frozen=True, slots=True)
class Tls:
    """The files (PEM) by which HTTPS is spoken. `ca`: who signed the other instances' certificates; empty: this one did."""

    certificate: str
    key: str
    ca: str = ""

    def check(self) -> None:
        """Raise InvalidInput unless certificate and key can be read and belong together."""
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
            self.trusted()
        except (OSError, ssl.SSLError) as error:
            raise InvalidInput(f"the certificate {self.certificate} with the key {self.key} cannot be used: {error}") from None

    def trusted(self) -> ssl.SSLContext:
        """Return what other instances' certificates are checked by."""
        context = ssl.create_default_context()
        context.load_verify_locations(self.ca or self.certificate)
        return context


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
        max_body_bytes: int = MAX_BODY_BYTES,
        users: Users | None = None,
        tls: Tls | None = None,
        is_insecure: bool = False,
    ) -> None:
        """`where`: as for `connect`. `advertise`: `http://host:port` under which the other instances reach this one.

        `users`: who may do what; None: everybody everything. `tls`: HTTPS alone is spoken.
        `is_insecure`: others may reach it without one of the two, which is said aloud.

        Raises:
            InvalidInput: the address cannot be listened on, or the certificate cannot be read; says why.
        """
        advice = TLS_ADVICE if users is not None else f"--users FILE names who may do what; {TLS_ADVICE}"
        refuse_exposed(
            "the schema registry",
            host,
            has_users=users is not None,
            has_tls=tls is not None,
            advice=advice,
            is_insecure=is_insecure,
        )
        if tls is not None:
            tls.check()
        self._where = where
        self._socket = listen(host, port)
        bound = self._socket.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        scheme = "http" if tls is None else "https"
        self.address = f"{scheme}://{shown}:{bound}"
        self._settings = Settings(advertise or reachable(host, bound, scheme=scheme), topic, group_id, limits, max_body_bytes)
        self._users = users
        self._tls = tls
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
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
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
            app = RegistryApp(service, users=self._users, trusted=True if self._tls is None else self._tls.trusted())
            server = self._server = _Quiet(_config(app, self._tls))
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


def _config(app: RegistryApp, tls: Tls | None) -> uvicorn.Config:
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
        ssl_certfile=None if tls is None else tls.certificate,
        ssl_keyfile=None if tls is None else tls.key,
    )


def loop_factory() -> Any:
    """Return what makes a loop for HTTP: uvloop's, with a third of the CPU a request, where it is there; None: Python's."""
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
        reason = error.strerror or error
        raise InvalidInput(f"the registry cannot listen on {host}:{port}: {reason}; choose another address") from error
    return made


def reachable(host: str, port: int, *, scheme: str = "http") -> str:
    """Return the address under which other instances reach one that listens on `host`.

    >>> reachable("127.0.0.1", 8081), reachable("::1", 8081)
    ('http://127.0.0.1:8081', 'http://[::1]:8081')
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"{scheme}://{host}:{port}"
    if address.is_unspecified:
        return f"{scheme}://{socket.gethostname()}:{port}"
    return f"{scheme}://[{host}]:{port}" if address.version == 6 else f"{scheme}://{host}:{port}"
