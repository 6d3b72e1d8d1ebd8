"""One connection to a broker: frames in and out, pipelined requests matched by correlation id, deadlines.

Frames are read straight into memory of their own, so that fetched records are never copied. The size of a frame is
bounded before anything is allocated. A request that is not answered in time closes the connection, because all answers
behind it would be late too.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from logflume.log.errors import DecodeError, LogflumeError, TransportError
from logflume.log.protocol import ErrorCode, KafkaError, MessageBase, frames, messages

from .errors import LoginRefused
from .logins import advance, exchange_of
from .security import Security
from .versions import TRANSACTION_V2, VersionRanges, choose_version

MAX_FRAME_BYTES = 512 * 1024 * 1024
CLIENT_SOFTWARE = "logflume"
SESSION_USED = 0.85
"""The part of a session's time that is used; then the client logs in anew, before the broker ends it (KIP-368)."""
_READ_BUFFER_BYTES = 128 * 1024
_PRODUCE_KEY = 0
_API_VERSIONS_KEY = 18
_SIZE = struct.Struct(">i")


class _Pending(NamedTuple):
    future: asyncio.Future[Any]
    api_key: int
    version: int
    deadline_s: float


class Connection(asyncio.BufferedProtocol):
    """A live connection. Invariant: while it is open, every id in `_pending` has been sent and not answered."""

    def __init__(self, *, address: str, client_id: str, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.address = address
        self.ranges: VersionRanges = {}
        self.features: Mapping[str, int] = MappingProxyType({})
        self._client_id = client_id
        self._max_frame_bytes = max_frame_bytes
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._pending: dict[int, _Pending] = {}
        self._next_id = 0
        self._failure: LogflumeError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._buffer = bytearray(_READ_BUFFER_BYTES)
        self._filled = 0
        self._frame: memoryview | None = None
        self._frame_filled = 0
        self._ends_s: float | None = None
        self._drained: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and self._failure is None and not self._transport.is_closing()

    @property
    def is_ending(self) -> bool:
        """The session of its login is about to end: what comes next goes over a new connection."""
        return self._ends_s is not None and self._loop.time() >= self._ends_s

    def send(self, message: MessageBase, *, timeout_s: float, max_version: int = 1 << 15) -> asyncio.Future[Any]:
        """Send a request in the version both sides hold; the future is that of the response (None at once for acks=0)."""
        has_v2 = self.features.get(TRANSACTION_V2, 0) >= 2
        version = choose_version(message.api_key, self.ranges, has_transaction_v2=has_v2, max_version=max_version)
        return self._send(message, version, timeout_s)

    async def negotiate(self, *, timeout_s: float) -> None:
        """Learn the broker's versions and features (ApiVersions, KIP-35, KIP-511).

        A broker that does not know version 3 says so in version 0; some write even that in a form of their own.
        """
        request = messages.ApiVersionsRequest(client_software_name=CLIENT_SOFTWARE, client_software_version="0.1")
        try:
            response = await self._send(request, 3, timeout_s)
        except DecodeError:
            response = await self._send(request, 0, timeout_s)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            response = await self._send(request, 0, timeout_s)
        if response.error_code:
            raise KafkaError(response.error_code, f"{self.address} refused ApiVersions")
        self.ranges = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
        self.features = {feature.name: feature.max_version_level for feature in response.finalized_features or ()}

    async def log_in(self, security: Security, *, host: str, timeout_s: float) -> None:
        """Log in by SASL (KIP-43, KIP-152). Raises LoginRefused, TransportError, InvalidInput."""
        mechanism = security.mechanism
        answer = await self._send(messages.SaslHandshakeRequest(mechanism=mechanism), 1, timeout_s)
        if answer.error_code:
            there = ", ".join(answer.mechanisms)
            raise LoginRefused(f"{self.address} has no mechanism {mechanism}; it has {there or 'none on this listener'}")
        run = self._loop.run_in_executor  # passwords are stretched, tickets fetched: nothing for the loop
        exchange = await run(None, partial(exchange_of, security, host=host))
        version = choose_version(messages.SaslAuthenticateRequest.api_key, self.ranges)
        token, lifetime_ms = await run(None, advance, exchange, None), 0
        while token is not None:
            response = await self._send(messages.SaslAuthenticateRequest(auth_bytes=token), version, timeout_s)
            if response.error_code:
                who = f" as {security.username!r}" if security.username else ""
                raise LoginRefused(
                    f"{self.address} refused the login{who} by {mechanism}: {response.error_message or 'no reason'}"
                )
            lifetime_ms = response.session_lifetime_ms
            token = await run(None, advance, exchange, response.auth_bytes)
        if lifetime_ms > 0:
            self._ends_s = self._loop.time() + lifetime_ms / 1000 * SESSION_USED

    async def drained(self) -> None:
        """Return when nothing that was sent waits for its answer."""
        if self._pending and self.is_open:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)

    def _tell_drained(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def close(self, error: LogflumeError | None = None) -> None:
        """Close; requests without an answer fail with `error`. Idempotent."""
        if self._failure is None:
            self._failure = error or TransportError(f"the connection to {self.address} was closed")
        if self._transport is not None:
            self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._pending = self._pending, {}
        for entry in pending.values():
            if not entry.future.done():
                entry.future.set_exception(self._failure)
                entry.future.exception()
        self._tell_drained()

    def _send(self, message: MessageBase, version: int, timeout_s: float) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._transport is None or not self.is_open:
            future.set_exception(self._failure or TransportError(f"the connection to {self.address} is closed"))
            return future
        correlation_id = self._next_id
        self._next_id = (correlation_id + 1) & 0x7FFFFFFF
        self._transport.writelines(frames.request_frame(message, version, correlation_id, self._client_id))
        if message.api_key == _PRODUCE_KEY and isinstance(message, messages.ProduceRequest) and message.acks == 0:
            future.set_result(None)
            return future
        self._pending[correlation_id] = _Pending(future, message.api_key, version, self._loop.time() + timeout_s)
        if self._timer is None:
            self._timer = self._loop.call_later(min(timeout_s, 1.0), self._check_deadlines)
        return future

    def _check_deadlines(self) -> None:
        self._timer = None
        now = self._loop.time()
        if any(entry.deadline_s <= now for entry in self._pending.values()):
            self.close(TransportError(f"{self.address} did not answer a request in time; the connection was closed"))
        elif self._pending:
            self._timer = self._loop.call_later(0.5, self._check_deadlines)

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        cause = f": {exc}" if exc else ""
        has_tls = self._transport is not None and self._transport.get_extra_info("ssl_object") is not None
        hint = "; it had answered nothing yet" if not self.ranges else ""
        if hint and not has_tls:
            hint += ": does it want TLS (`logflume profile add` says so to commands)?"
        self.close(TransportError(f"{self.address} closed the connection{cause}{hint}"))

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._frame_filled :]
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        try:
            if self._frame is not None:
                self._frame_filled += nbytes
                if self._frame_filled == len(self._frame):
                    frame, self._frame = self._frame, None
                    self._receive(frame)
                return
            self._filled += nbytes
            self._split()
        except LogflumeError as error:
            self.close(error)

    def _split(self) -> None:
        """Take whole frames out of the read buffer; give a frame that does not fit memory of its own."""
        position, filled = 0, self._filled
        buffer = memoryview(self._buffer)
        while filled - position >= 4:
            size = _SIZE.unpack_from(buffer, position)[0]
            if not 4 <= size <= self._max_frame_bytes:
                raise DecodeError(
                    f"{self.address} sent a frame of {size} bytes, expected 4 to {self._max_frame_bytes}; is it a Kafka broker?"
                )
            available = filled - position - 4
            if available < size:
                if size + 4 > len(buffer) - position:
                    self._frame = memoryview(bytearray(size))
                    self._frame[:available] = buffer[position + 4 : filled]
                    self._frame_filled = available
                    position = filled
                break
            frame = memoryview(bytes(buffer[position + 4 : position + 4 + size]))
            position += 4 + size
            self._receive(frame)
        rest = filled - position
        if rest and position:
            buffer[:rest] = bytes(buffer[position:filled])
        self._filled = rest

    def _receive(self, frame: memoryview) -> None:
        entry = self._pending.pop(frames.correlation_id(frame), None)
        if entry is None:
            raise DecodeError(f"{self.address} answered a request that was not sent; is it a Kafka broker?")
        try:
            response = frames.decode_response(frame, entry.api_key, entry.version, is_exact=False)
        except LogflumeError as error:
            if not entry.future.done():
                entry.future.set_exception(error)
            if entry.api_key == _API_VERSIONS_KEY:
                return
            raise
        if not entry.future.done():
            entry.future.set_result(response)
        if not self._pending:
            self._tell_drained()
