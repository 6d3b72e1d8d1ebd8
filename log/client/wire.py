"""TCP and Unix socket transport: connections by broker, opened when needed, reopened with backoff."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from logflume.log.errors import LogflumeError, TransportError
from logflume.log.protocol import MessageBase

from .connection import Connection
from .errors import ClientClosed, LoginRefused
from .retry import backoff_s, shielded
from .security import Security
from .transport import REQUEST_TIMEOUT_S

CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker listens: host and port, or a Unix socket path."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else f"{self.host}:{self.port}"


class WireTransport:
    """Knows the bootstrap addresses and the brokers. With a Unix socket there is one broker, always reached through it."""

    def __init__(self, bootstrap: Sequence[Address], security: Security | None = None) -> None:
        self.bootstrap = tuple(bootstrap)
        self.security = security or Security({})
        self.nodes: dict[int, Address] = {}
        self._channels: list[WireChannel] = []

    def channel(self, client_id: str) -> WireChannel:
        made = WireChannel(self, client_id)
        self._channels.append(made)
        return made

    def forget(self, channel: WireChannel) -> None:
        """Called by a channel that was closed."""
        if channel in self._channels:
            self._channels.remove(channel)

    def learn_nodes(self, nodes: Mapping[int, tuple[str, int]]) -> None:
        for node, (host, port) in nodes.items():
            self.nodes[node] = self.bootstrap[0] if self.bootstrap[0].path else Address(host, port)

    def candidates(self, node: int | None) -> tuple[Address, ...]:
        """Return the addresses to try for a broker (any broker if None), in order."""
        if node is not None:
            known = self.nodes.get(node)
            if known is None:
                raise TransportError(f"broker {node} is not in the cluster's metadata")
            return (known,)
        return (*self.bootstrap, *(a for a in self.nodes.values() if a not in self.bootstrap))

    async def close(self) -> None:
        for channel in list(self._channels):
            channel.close()


@dataclass(slots=True)
class _Slot:
    """What is known of one address: the connection, the attempt under way, and how long to leave it alone after failures.

    Requests that wait for the connection take turns when it is there; as long as some of these `waiting` are left, others that
    come wait behind them.
    """

    connection: Connection | None = None
    attempt: asyncio.Task[Connection] | None = None
    failures: int = 0
    not_before_s: float = 0.0
    waiting: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_usable(self) -> bool:
        return self.connection is not None and self.connection.is_open and not self.connection.is_ending


class WireChannel:
    """One connection per broker. See `transport.Channel`."""

    def __init__(self, transport: WireTransport, client_id: str) -> None:
        self._transport = transport
        self._client_id = client_id
        self._slots: dict[Address, _Slot] = {}
        self._is_closed = False

    async def request(
        self, message: MessageBase, *, node: int | None = None, timeout_s: float = REQUEST_TIMEOUT_S, max_version: int = 1 << 15
    ) -> Any:
        connection = self._open_connection(node) or await self._connect(node)
        return await connection.send(message, timeout_s=timeout_s, max_version=max_version)

    async def features(self, *, node: int | None = None) -> Mapping[str, int]:
        connection = self._open_connection(node) or await self._connect(node)
        return connection.features

    def close(self) -> None:
        self._is_closed = True
        self._transport.forget(self)
        for slot in self._slots.values():
            if slot.attempt is not None:
                slot.attempt.cancel()
            if slot.connection is not None:
                slot.connection.close(ClientClosed("the client was closed"))
        self._slots.clear()

    def _open_connection(self, node: int | None) -> Connection | None:
        for address in self._transport.candidates(node):
            slot = self._slots.get(address)
            if slot is not None and slot.connection is not None and slot.connection.is_open:
                return slot.connection if slot.is_usable and not slot.waiting else None
        return None

    async def _connect(self, node: int | None) -> Connection:
        """Open a connection to the first address that answers."""
        errors: list[LogflumeError] = []
        for address in self._transport.candidates(node):
            try:
                return await self._connect_address(address)
            except LogflumeError as error:
                errors.append(error)
        for failure in errors:
            if len(errors) == 1 or not failure.is_retriable:  # a refusal does not get better by trying again
                raise failure
        raise TransportError("; ".join(str(error) for error in errors) or "no broker address is known")

    async def _connect_address(self, address: Address) -> Connection:
        if self._is_closed:
            raise ClientClosed("the client was closed")
        slot = self._slots.setdefault(address, _Slot())
        if slot.attempt is None or (slot.attempt.done() and not slot.is_usable):
            slot.attempt = asyncio.get_running_loop().create_task(self._attempt(address, slot))
        attempt = slot.attempt
        slot.waiting += 1
        try:
            async with slot.turn:  # in the order in which they came
                return await shielded(attempt)
        except asyncio.CancelledError:
            if attempt.cancelled():
                raise ClientClosed("the client was closed") from None
            raise
        finally:
            slot.waiting -= 1

    async def _attempt(self, address: Address, slot: _Slot) -> Connection:
        loop = asyncio.get_running_loop()
        if slot.connection is not None and slot.connection.is_open:  # its session ends: requests keep their order
            await slot.connection.drained()
            slot.connection.close()
        await asyncio.sleep(max(0.0, slot.not_before_s - loop.time()))
        try:
            connection = await asyncio.wait_for(self._dial(address), CONNECT_TIMEOUT_S)
        except TimeoutError:
            error = TransportError(f"{address} did not accept a connection within {CONNECT_TIMEOUT_S:g} s")
            raise self._failed(slot, error) from None
        except ssl.SSLError as cause:
            raise self._failed(slot, _not_trusted(address, cause)) from None
        except OSError as cause:
            reason = _reason(cause)
            if not reason and self._transport.security.has_tls:
                reason = "it ended the TLS handshake; is it a listener without TLS, or does it want a client's certificate?"
            raise self._failed(slot, TransportError(f"cannot connect to {address}: {reason}")) from None
        except LogflumeError as error:
            raise self._failed(slot, error) from None
        slot.connection, slot.failures, slot.not_before_s = connection, 0, 0.0
        return connection

    def _failed(self, slot: _Slot, error: LogflumeError) -> LogflumeError:
        slot.failures += 1
        slot.not_before_s = asyncio.get_running_loop().time() + backoff_s(slot.failures)
        return error

    async def _dial(self, address: Address) -> Connection:
        loop = asyncio.get_running_loop()

        def protocol() -> Connection:
            return Connection(address=str(address), client_id=self._client_id)

        if address.path:
            _, connection = await loop.create_unix_connection(protocol, address.path)
        else:
            security = self._transport.security
            context = await loop.run_in_executor(None, security.context) if security.has_tls else None
            transport, connection = await loop.create_connection(protocol, address.host, address.port, ssl=context)
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await connection.negotiate(timeout_s=CONNECT_TIMEOUT_S)
            if self._transport.security.has_sasl:
                await connection.log_in(self._transport.security, host=address.host, timeout_s=CONNECT_TIMEOUT_S)
        except BaseException:
            connection.close()
            raise
        return connection


def _not_trusted(address: Address, error: ssl.SSLError) -> LogflumeError:
    """Return what a failed TLS handshake means to the user."""
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = "name its authority in ssl.ca.location" if error.verify_code in (18, 19, 20, 21) else ""
        return LoginRefused(
            f"{address} shows a certificate that is not good: {error.verify_message}{'; ' if advice else ''}{advice}"
        )
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if "wrong version number" in reason or "record layer failure" in reason:
        return LoginRefused(f"{address} does not speak TLS; is it a listener without (security.protocol=PLAINTEXT)?")
    return LoginRefused(f"the TLS handshake with {address} failed: {reason}")


def _reason(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused; does a broker listen there?"
    if isinstance(error, socket.gaierror):
        return "the host name is not known"
    return error.strerror or str(error)
