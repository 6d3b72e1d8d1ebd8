"""What a connection still has to send: responses in the order of their requests, buffers and file ranges, partial sends.

Bytes go out with one `sendmsg` per turn; large file ranges with `sendfile`, straight from the page cache.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from typing import Any

from logflume.log.storage import LogSlice

from .tls import TlsSocket

READ_BELOW_BYTES = 32 * 1024
"""File ranges shorter than this are read and sent with their neighbours: fewer system calls."""
MAX_BUFFERS = 512
"""Buffers per `sendmsg`; the system allows 1024."""
_MSG_MORE = getattr(socket, "MSG_MORE", 0)


class Slot:
    """The place of a response in the queue; `parts` is None until it is there, [] for no response.

    `size_bytes`: memory that it holds; what is kept of the request until then.
    """

    __slots__ = ("parts", "size_bytes")

    def __init__(self, *, held_bytes: int) -> None:
        self.parts: list[Any] | None = None
        self.size_bytes = held_bytes

    def fill(self, parts: list[Any]) -> int:
        """Take the response; return the bytes of memory that it holds (file ranges hold none)."""
        self.parts = parts
        self.size_bytes = sum(len(part) for part in parts if not isinstance(part, LogSlice))
        return self.size_bytes


class Outbox:
    """The unsent parts of a connection, and the places of responses that are not there yet.

    Invariant: responses leave in the order of their places; no part of one leaves before all of those before it.

    Attributes:
        waiting: places of responses that wait, or whose predecessors do.
        sent_bytes: all that was sent so far.
    """

    __slots__ = ("_parts", "_pending_bytes", "_sock", "_waiting_bytes", "sent_bytes", "waiting")

    def __init__(self, sock: socket.socket | TlsSocket) -> None:
        self._sock = sock
        self._parts: deque[Any] = deque()
        self.waiting: deque[Slot] = deque()
        self._waiting_bytes = self._pending_bytes = self.sent_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def held_bytes(self) -> int:
        """Bytes in memory of responses that are not sent, those that wait for earlier ones too (file ranges cost none)."""
        return self._pending_bytes + self._waiting_bytes

    def new_slot(self, held_bytes: int) -> Slot:
        """Return the next place, for a response that comes later."""
        slot = Slot(held_bytes=held_bytes)
        self._waiting_bytes += held_bytes
        self.waiting.append(slot)
        return slot

    def fill(self, slot: Slot, parts: list[Any]) -> bool:
        """Put a response in its place; say whether it is the next one to leave."""
        self._waiting_bytes -= slot.size_bytes
        self._waiting_bytes += slot.fill(parts)
        return bool(self.waiting) and self.waiting[0] is slot

    def take_ready(self) -> None:
        """Queue the responses that no other has to leave before. Raises LogflumeError: a file cannot be read."""
        while self.waiting and self.waiting[0].parts is not None:
            slot = self.waiting.popleft()
            self._waiting_bytes -= slot.size_bytes
            self.add(slot.parts or [])

    def add_behind(self, parts: list[Any]) -> None:
        """Queue a response that is there at once, behind those that wait."""
        if self.waiting:
            self.fill(self.new_slot(0), parts)
        else:
            self.add(parts)

    def forget_waiting(self) -> None:
        """Drop the places of all responses that wait."""
        self.waiting.clear()

    def add(self, parts: list[Any]) -> None:
        """Queue the buffers (bytes, bytearray, memoryview) and file ranges of one response."""
        for part in parts:
            if isinstance(part, LogSlice):
                if part.size_bytes < READ_BELOW_BYTES:
                    part = part.read()
                else:
                    self._parts.append(_FileRange(part))
                    continue
            if part:
                self._parts.append(part)
                self._pending_bytes += len(part)

    def send(self) -> bool:
        """Send as much as the socket takes now; True when everything is sent. Raises OSError."""
        parts = self._parts
        while parts:
            if isinstance(parts[0], _FileRange):
                before = parts[0].left_bytes
                is_done = parts[0].send(self._sock)
                self.sent_bytes += before - parts[0].left_bytes
                if not is_done:
                    return False
                parts.popleft()
            elif not self._send_buffers():
                return False
        return True

    def _send_buffers(self) -> bool:
        """Send the run of buffers at the front in one call; False when the socket is full."""
        parts = self._parts
        if len(parts) == 1:
            buffers, size = [parts[0]], len(parts[0])
        else:
            buffers, size = [], 0
            for part in parts:
                if isinstance(part, _FileRange) or len(buffers) == MAX_BUFFERS:
                    break
                buffers.append(part)
                size += len(part)
        flags = _MSG_MORE if len(buffers) < len(parts) else 0
        try:
            sent = self._sock.sendmsg(buffers, (), flags)
        except (BlockingIOError, InterruptedError):
            return False
        self._pending_bytes -= sent
        self.sent_bytes += sent
        if sent == size:
            for _ in buffers:
                parts.popleft()
            return True
        while sent >= len(parts[0]):
            sent -= len(parts.popleft())
        parts[0] = memoryview(parts[0])[sent:]
        return False


class _FileRange:
    """A range of a segment file under way. The slice keeps the file open."""

    __slots__ = ("_position", "_slice", "left_bytes")

    def __init__(self, part: LogSlice) -> None:
        self._slice, self._position, self.left_bytes = part, part.position, part.size_bytes

    def send(self, sock: socket.socket | TlsSocket) -> bool:
        """Send on; True when all of it is sent. Raises OSError, also if the file is shorter than it was."""
        source = self._slice.fd
        while self.left_bytes:
            try:
                if isinstance(sock, TlsSocket):
                    sent = sock.send_file(source, self._position, self.left_bytes)
                else:
                    sent = os.sendfile(sock.fileno(), source, self._position, self.left_bytes)
            except (BlockingIOError, InterruptedError):
                return False
            if sent == 0:
                raise OSError(f"{self.left_bytes} bytes of a segment are missing at position {self._position}")
            self._position += sent
            self.left_bytes -= sent
        return True
