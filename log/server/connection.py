"""One client connection: frames in, handlers, responses out in the order of the requests.

The connection owns its non-blocking socket, because neither `sendmsg` nor `sendfile` can be had below an asyncio transport. One
receive buffer is used again and again: requests are handled as views of it, and no handler keeps a view after it has
returned, so that bytes of one request never turn into those of another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

from logflume.log.broker.access import UNRESTRICTED
from logflume.log.broker.handlers import API_VERSIONS, Handlers
from logflume.log.broker.replies import Reply, as_reply
from logflume.log.broker.requests import ANONYMOUS, CLOSE_CONNECTION, RequestContext
from logflume.log.broker.security import Login
from logflume.log.errors import DecodeError, LogflumeError
from logflume.log.protocol import ErrorCode, KafkaError, codec, frames, messages

from .budget import MemoryBudget
from .inbox import INITIAL_BUFFER_BYTES, Inbox
from .metering import handle_metered
from .outbox import Outbox, Slot
from .tls import TlsSocket
from .traffic import Traffic

RECEIVES_PER_TURN, TLS_RECEIVES_PER_TURN = 4, 32
"""TLS gives at most one record of 16 KiB at a time."""
MAX_LOGIN_FRAME_BYTES = 64 * 1024
"""A request of somebody who has yet to log in; `sasl.server.max.receive.size` may make it less."""
MAX_IN_FLIGHT = 128
"""Requests of one connection that may wait for their responses; no more is read until some are answered."""
QUICK_ELEMENTS = 10_000
"""Requests with so many elements in their arrays are decoded at once, larger ones, up to a bound, off the loop's thread."""
TURN_S = 0.002
"""For so long requests of one connection are handled in a turn of the loop; then it is the others' turn."""
MAX_PENDING_BYTES = 8 * 1024 * 1024
"""Unsent bytes from which on no more is read: a client that does not read is not served on."""

_SIZE = struct.Struct(">i")
_log = logging.getLogger("logflume.server")


class Connection:
    """A connection on the loop's thread.

    Invariants: responses leave in the order of their requests; the socket is registered for writing exactly while the outbox is
    blocked; nothing is read or handled while too many requests wait for their answers, too much is unsent, or the next request
    has no room in the budget.
    """

    def __init__(
        self,
        sock: socket.socket | TlsSocket,
        loop: asyncio.AbstractEventLoop,
        handlers: Handlers,
        *,
        connection_id: int,
        host: str,
        listener: str,
        on_close: Callable[[Connection], None],
        budget: MemoryBudget,
        traffic: Traffic,
        principal: str = ANONYMOUS,
        port: int = 0,
        login: Login | None = None,
    ) -> None:
        """`login`: on a listener with SASL; it says who the client is, `principal` does otherwise."""
        self.connection_id, self.host = connection_id, host
        self.began_s = loop.time()
        self.active_s = self.sent_s = loop.time()
        """When something was last received or sent; when something was last sent, or sending began to wait for the client."""
        self.frame_began_s: float | None = None
        """Since when a request is being received that is not complete, None without one."""
        self._sock, self._loop, self._handlers = sock, loop, handlers
        self._listener, self._on_close, self._budget, self._traffic = listener, on_close, budget, traffic
        self._principal, self._port, self._login = principal, port, login
        self._tls = sock if isinstance(sock, TlsSocket) else None
        self._fd = sock.fileno()
        self._inbox, self._outbox = Inbox(), Outbox(sock)
        self._is_closed = self._is_reading = self._is_writing = self._is_flush_due = self._is_draining = False
        self._is_starved = self._is_paused = self._is_held = False
        """`_is_paused`: it has had its time in this turn of the loop, and goes on in the next; the selector is not told.
        `_is_held`: what was answered in this turn goes out with the next one's."""
        self._alone: Slot | None = None
        self._unmute_handle: asyncio.TimerHandle | None = None
        self._set_reading(is_on=True)

    @property
    def is_idle(self) -> bool:
        """Nothing is waiting for an answer or to be sent."""
        return not self._outbox.waiting and not self._outbox

    @property
    def is_waiting_for_login(self) -> bool:
        return self._login is not None and self._login.is_waiting

    @property
    def is_stalled(self) -> bool:
        """The client does not take what it was sent."""
        return self._is_writing

    def late_s(self, now_s: float) -> float:
        """Return how long the client has taken over the request that it is sending, 0 if none or if the broker made it wait."""
        return now_s - self.frame_began_s if self.frame_began_s is not None and self._is_reading else 0.0

    def drain(self) -> None:
        """Read no more; close as soon as every request that was read is answered."""
        self._is_draining = True
        self._set_reading(is_on=False)
        if self.is_idle:
            self.close("the broker is stopping")

    def close(self, reason: str, *, level: int = logging.DEBUG) -> None:
        """Close at once; answers still due are dropped. Idempotent."""
        if self._is_closed:
            return
        text = "closed the connection of %s: %s"
        if level > logging.INFO:
            self._handlers.complaints.say(_log, level, self.host, text, self.host, reason)
        else:
            _log.log(level, text, self.host, reason)
        self._set_reading(is_on=False)
        if self._is_writing:
            self._loop.remove_writer(self._fd)
        self._is_closed = True
        if self._unmute_handle is not None:
            self._unmute_handle.cancel()
        self._outbox.forget_waiting()
        self._budget.forget(self)
        self._sock.close()
        self._handlers.connection_closed(self.connection_id)
        self._on_close(self)

    def _set_reading(self, *, is_on: bool) -> None:
        if is_on == self._is_reading or self._is_closed:
            return
        self._is_reading = is_on
        if is_on:
            if self.frame_began_s is not None:
                self.frame_began_s = self._loop.time()
            self._loop.add_reader(self._fd, self._readable)
            if self._tls is not None and self._tls.has_received:
                self._loop.call_soon(self._read_on)
        else:
            self._loop.remove_reader(self._fd)

    def _readable(self) -> None:
        """Receive and handle; again at once if the buffer was filled, so that few turns and sends serve many requests."""
        if self._is_paused:
            return
        for _ in range(RECEIVES_PER_TURN if self._tls is None else TLS_RECEIVES_PER_TURN):
            room = self._inbox.room
            try:
                received = self._sock.recv_into(room)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self.close(str(error))
                return
            if received == 0:
                self.close("the client closed it")
                return
            self._inbox.took(received)
            self._traffic.received_bytes += received
            try:
                self._handle_frames()
            except LogflumeError as error:  # bytes that are no request, an answer that cannot be encoded or read from the disk
                self._traffic.failed += 1
                self.close(str(error), level=logging.WARNING)
                return
            if (received < len(room) and self._tls is None) or not self._is_reading or self._is_paused:
                break
        else:
            if self._tls is not None and self._tls.has_received:
                self._loop.call_soon(self._read_on)
        self.active_s = self._loop.time()
        if not self._inbox:
            self.frame_began_s = None
        elif self.frame_began_s is None:
            self.frame_began_s = self.active_s
        self._end_turn()

    def _read_on(self) -> None:
        """Receive what is decrypted already: no selector tells of it."""
        if self._is_reading and not self._is_closed:
            self._readable()

    def _frame_limits(self) -> tuple[int, int]:
        """Return the least and the most bytes of the next frame."""
        config = self._handlers.core.config
        if self._login is None or not self._login.is_waiting:
            return 8, config.number("socket.request.max.bytes")
        most = min(MAX_LOGIN_FRAME_BYTES, config.number("sasl.server.max.receive.size"))
        return 0 if self._login.expects_raw else 8, most

    def _handle_frames(self) -> None:
        """Handle the complete frames in the buffer; make room for the next one. Raises DecodeError."""
        inbox, (least, most) = self._inbox, self._frame_limits()
        until_s = perf_counter() + TURN_S
        while inbox.has_size and not self._is_closed:
            if self._is_full():
                self._set_reading(is_on=False)
                return
            missing_bytes = inbox.missing(least, most)
            if missing_bytes:
                self._make_room(missing_bytes)
                break
            self.frame_began_s = None
            self._handle(inbox.take())
            if self._login is not None:
                least, most = self._frame_limits()
            if inbox and perf_counter() > until_s:
                self._is_paused = True
                self._loop.call_soon(self._go_on)
                return
        if not inbox:
            inbox.settle()
            if inbox.is_too_big or self._budget.is_wanted:
                self.give_back()
        elif inbox.is_at_end:
            self._make_room(INITIAL_BUFFER_BYTES)

    def _make_room(self, frame_bytes: int) -> None:
        """Make room for the next frame; if there is none in the budget, reading stops until there is."""
        if self._inbox.has_room(frame_bytes):
            return
        self._is_starved = not self._inbox.make_room(frame_bytes, partial(self._budget.may_grow, self))
        if self._is_starved:
            self._set_reading(is_on=False)
        else:
            self._count_held()

    def give_back(self) -> None:
        """Give back a receive buffer that is empty."""
        if self._inbox.give_back():
            self._count_held()

    def _count_held(self) -> None:
        self._budget.set_held(self, self._inbox.held_bytes + self._outbox.held_bytes)

    def _handle(self, frame: memoryview) -> None:
        """Handle one request. Raises DecodeError, KafkaError ILLEGAL_SASL_STATE."""
        login = self._login
        if login is not None and login.expects_raw:
            self._handle_bare_token(login, bytes(frame))
            return
        header, pos = frames.decode_request_header(frame)
        key, version = header.api_key, header.api_version
        refusal = login.refusal(key) if login is not None else None
        if refusal is not None:
            raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE, refusal)
        if not self._handlers.is_handled(key, version):
            self._refuse_version(header)
            return
        began_s = perf_counter()
        try:
            request = codec.decode_request(key, version, frame[pos:], max_elements=QUICK_ELEMENTS)
        except codec.TooManyElements:
            self._decode_elsewhere(header, bytes(frame[pos:]), began_s)
            return
        outcome = self._outcome(header, request, len(frame))
        if outcome is None:
            self._traffic.observe(key, perf_counter() - began_s)
        elif outcome is CLOSE_CONNECTION:
            self._traffic.failed += 1
            self._close_after_queue(f"API key {key} failed")
        elif isinstance(outcome, Reply):
            self._await(self._outbox.new_slot(outcome.held_bytes), outcome, header, began_s)
        else:
            self._answer(frames.response_frame(outcome, version, header.correlation_id))
            self._traffic.observe(key, perf_counter() - began_s)

    def _handle_bare_token(self, login: Login, token: bytes) -> None:
        """Take a token that is no request, which follows a SaslHandshake of version 0; the answer is a bare token too."""
        slot = self._outbox.new_slot(len(token))
        self._alone = slot

        def answer(response: Any) -> None:
            if self._is_closed:
                return
            if response.error_code:
                self._close_after_queue("the login was refused")
            else:
                self._fill(slot, [_SIZE.pack(len(response.auth_bytes)), response.auth_bytes])

        login.authenticate(token).then(answer)

    def _outcome(self, header: frames.RequestHeader, request: Any, size_bytes: int) -> Any:
        """Have a request handled; returns what `Handlers.handle` does."""
        key, version = header.api_key, header.api_version
        context = RequestContext(
            key,
            version,
            header.correlation_id,
            header.client_id or "",
            self.host,
            self.connection_id,
            self._principal if self._login is None else self._login.principal,
            self._listener,
            UNRESTRICTED,
            self._port,
            self._login,
        )
        if self._handlers.core.quotas.is_active:
            return handle_metered(self._handlers, context, request, size_bytes=size_bytes, mute=self._mute)
        return self._handlers.handle(context, request)

    def _await(self, slot: Slot, reply: Reply, header: frames.RequestHeader, began_s: float) -> None:
        """Answer when the reply comes; what is long in coming stays alone until then."""
        if reply.is_long:
            self._alone = slot
        reply.then(lambda response: self._answer_later(slot, response, header, began_s, is_long=reply.is_long))

    def _decode_elsewhere(self, header: frames.RequestHeader, body: bytes, began_s: float) -> None:
        """Decode a big request off this thread, then handle it; nothing else of this client is handled before it is answered."""
        slot, size_bytes = self._outbox.new_slot(len(body)), len(body)
        self._alone = slot

        def handle(decoded: Any) -> None:
            if self._is_closed:
                return
            if isinstance(decoded, Exception):
                self._traffic.failed += 1
                self.close(str(decoded), level=logging.WARNING)
                return
            outcome = as_reply(self._outcome(header, decoded, size_bytes))
            outcome.is_long = True
            self._await(slot, outcome, header, began_s)

        most = self._handlers.max_elements(header.api_key)
        decode = partial(codec.decode_request, header.api_key, header.api_version, memoryview(body), max_elements=most)
        self._handlers.core.offload(decode).then(handle)

    def _mute(self, quiet_ms: int) -> None:
        """Read and handle nothing for so long (KIP-219); answers go on being sent."""
        if self._is_closed:
            return
        until_s = self._loop.time() + quiet_ms / 1000
        if self._unmute_handle is not None:
            if self._unmute_handle.when() >= until_s:
                return
            self._unmute_handle.cancel()
        self._unmute_handle = self._loop.call_at(until_s, self._unmute)
        self._set_reading(is_on=False)

    def _unmute(self) -> None:
        self._unmute_handle = None
        self._resume()

    def _refuse_version(self, header: frames.RequestHeader) -> None:
        if header.api_key == API_VERSIONS:
            known = self._handlers.api_versions
            response = messages.ApiVersionsResponse(api_keys=known.api_keys)
            self._answer(frames.unsupported_api_versions_frame(header.correlation_id, response))
            return
        raise DecodeError(f"API key {header.api_key} version {header.api_version} is not handled; ask with ApiVersions")

    def _answer(self, parts: list[Any]) -> None:
        self._outbox.add_behind(parts)

    def _answer_later(self, slot: Slot, response: Any, header: frames.RequestHeader, began_s: float, *, is_long: bool) -> None:
        """Take the value of a reply; the response goes out once those before it are there."""
        if self._is_closed:
            return
        self._traffic.observe(header.api_key, perf_counter() - began_s)
        if response is CLOSE_CONNECTION:
            self._traffic.failed += 1
            self._close_after_queue("a request failed")
            return
        if response is None:
            self._fill(slot, [])
            return
        encode = partial(frames.response_frame, response, header.api_version, header.correlation_id)
        if is_long:
            self._handlers.core.offload(encode).then(lambda parts: self._fill(slot, parts))
        else:
            try:
                self._fill(slot, encode())
            except LogflumeError as error:
                self.close(str(error), level=logging.ERROR)

    def _fill(self, slot: Slot, parts: Any) -> None:
        """Put a response, or the exception in place of one, where it belongs."""
        if self._is_closed:
            return
        if isinstance(parts, Exception):
            self.close(str(parts), level=logging.ERROR)
            return
        is_next = self._outbox.fill(slot, parts)
        was_alone = slot is self._alone
        if was_alone:
            self._alone = None
        if is_next:
            self._flush_soon()
        else:
            self._count_held()
            if was_alone:
                self._resume()

    def _close_after_queue(self, reason: str) -> None:
        self._flush()
        self.close(reason, level=logging.WARNING)

    def _flush_soon(self) -> None:
        """Send at the end of this turn of the loop, together with what else gets ready in it."""
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send what is ready, as far as the socket takes it."""
        self._is_flush_due = False
        if self._is_closed:
            return
        try:
            self._outbox.take_ready()
        except LogflumeError as error:
            self.close(str(error), level=logging.ERROR)
            return
        if self._is_writing or (not self._outbox and not self._is_draining):
            self._count_held()
            self._resume()
            return
        self._send()

    def _send(self) -> None:
        before = self._outbox.sent_bytes
        try:
            is_done = self._outbox.send()
        except (OSError, LogflumeError) as error:
            self.close(str(error))
            return
        self.active_s = self.sent_s = self._loop.time()
        self._traffic.sent_bytes += self._outbox.sent_bytes - before
        self._count_held()
        if is_done and self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._fd)
        elif not is_done and not self._is_writing:
            self._is_writing = True
            self._loop.add_writer(self._fd, self._send)
        if self._is_draining and self.is_idle:
            self.close("the broker is stopping")
            return
        if self._login is not None and self._login.is_failed and self.is_idle:
            self._discard_received()
            self.close("the login was refused")
            return
        self._resume()

    def _discard_received(self) -> None:
        """Take what a client sent that is not answered any more: closed with it unread, the client might lose the last answer."""
        scratch = memoryview(bytearray(INITIAL_BUFFER_BYTES))
        with contextlib.suppress(OSError):
            for _ in range(RECEIVES_PER_TURN):
                if not self._sock.recv_into(scratch):
                    break

    def _resume(self) -> None:
        """Read on unless too much is waiting to be answered or sent; what was received meanwhile is handled first."""
        if self._is_reading or self._is_draining or self._is_closed or self._is_starved or self._is_full():
            return
        if self._inbox:
            self._loop.call_soon(self._handle_received)
        else:
            self._set_reading(is_on=True)

    def resume(self) -> None:
        """Ask for room in the budget again, then read on."""
        if self._is_starved:
            self._loop.call_soon(self._handle_received)

    def _go_on(self) -> None:
        """Go on with what is in the buffer, in the next turn of the loop."""
        self._is_paused = False
        if self._is_closed:
            return
        if not self._is_reading:
            self._end_turn()
            return
        if self.frame_began_s is not None:
            self.frame_began_s = self._loop.time()
        self._handle_buffer()
        if self._tls is not None and self._tls.has_received:
            self._loop.call_soon(self._read_on)

    def _handle_received(self) -> None:
        """Handle what is in the buffer although nothing new came, then read on if there is room."""
        self._is_starved = False
        if self._is_closed or self._is_reading or self._is_draining or self._is_full():
            return
        self._set_reading(is_on=True)
        self._handle_buffer()

    def _handle_buffer(self) -> None:
        try:
            self._handle_frames()
        except LogflumeError as error:
            self._traffic.failed += 1
            self.close(str(error), level=logging.WARNING)
            return
        self._end_turn()

    def _end_turn(self) -> None:
        """Send what this turn answered; if it was cut short, with those of the next: a send costs as much as two requests."""
        self._is_held = self._is_paused and not self._is_held
        if not self._is_held:
            self._flush()

    def _is_full(self) -> bool:
        """Whether too many requests wait for their answers, or too many bytes to be sent, or the client must be quiet."""
        unsent_bytes = self._outbox.held_bytes
        return (
            self._unmute_handle is not None
            or self._alone is not None
            or len(self._outbox.waiting) >= MAX_IN_FLIGHT
            or unsent_bytes >= MAX_PENDING_BYTES
            or (unsent_bytes > 0 and self._budget.is_used_up)
        )
