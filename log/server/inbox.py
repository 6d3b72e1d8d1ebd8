"""What a connection has received and not handled: one buffer, used again and again, in which frames are found."""

from __future__ import annotations

import struct
from collections.abc import Callable

from logflume.log.errors import DecodeError

INITIAL_BUFFER_BYTES = 16 * 1024
KEPT_BUFFER_BYTES = 4 * 1024 * 1024
"""A receive buffer that grew beyond this for one request is given back after it."""
ROOM_FOR_FRAMES = 4
"""A buffer holds so many frames of the size that was last too big for it, so that few are moved, up to ROOM_BYTES."""
ROOM_BYTES = 1024 * 1024

_SIZE = struct.Struct(">i")


class Inbox:
    """The receive buffer of a connection.

    Invariant: bytes _start.._end are received and not handled. Frames are views of the buffer: they are valid until the next
    call of `make_room`, `settle` or `give_back`.
    """

    __slots__ = ("_buffer", "_end", "_start", "_view")

    def __init__(self) -> None:
        self._buffer = bytearray(INITIAL_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    def __bool__(self) -> bool:
        """Whether something is there that is not handled."""
        return self._start != self._end

    @property
    def room(self) -> memoryview:
        """Where to receive to; `took` says how much it was."""
        return self._view[self._end :]

    def took(self, received_bytes: int) -> None:
        """Take what was received into `room`."""
        self._end += received_bytes

    @property
    def held_bytes(self) -> int:
        """Memory beyond what every connection has."""
        return len(self._buffer) - INITIAL_BUFFER_BYTES

    @property
    def has_size(self) -> bool:
        """Whether the size of the frame at the front is there."""
        return self._end - self._start >= 4

    def missing(self, least: int, most: int) -> int:
        """Return the bytes that the frame at the front has with its size if it is not complete, else 0; its size is there.

        Raises DecodeError: a size that is not within `least` to `most`.
        """
        size: int = _SIZE.unpack_from(self._view, self._start)[0]
        if not least <= size <= most:
            raise DecodeError(f"a frame of {size} bytes: expected {least} to {most} (socket.request.max.bytes)")
        return 0 if self._end >= self._start + 4 + size else size + 4

    def take(self) -> memoryview:
        """Return the frame at the front, which is complete, without its size."""
        begin = self._start + 4
        self._start = begin + _SIZE.unpack_from(self._view, self._start)[0]
        return self._view[begin : self._start]

    def has_room(self, frame_bytes: int) -> bool:
        """Whether a frame of so many bytes fits behind what is handled."""
        return len(self._buffer) - self._start >= frame_bytes

    @property
    def is_at_end(self) -> bool:
        """Whether there is no room for the size of another frame."""
        return len(self._buffer) - self._end < 4

    def make_room(self, frame_bytes: int, may_grow: Callable[[int], bool]) -> bool:
        """Make room for a frame of so many bytes: move what is there to the front; grow, at most fourfold, so that a lie costs no
        memory. Returns False where `may_grow` does not grant the bytes."""
        wanted = max(frame_bytes, min(ROOM_FOR_FRAMES * frame_bytes, ROOM_BYTES))
        received = self._end - self._start
        size_bytes = max(len(self._buffer), min(wanted, max(4 * received, INITIAL_BUFFER_BYTES)))
        if size_bytes > len(self._buffer) and not may_grow(size_bytes - len(self._buffer)):
            return False
        self._replace(size_bytes)
        return True

    def settle(self) -> None:
        """Begin at the front again once everything is handled."""
        self._start = self._end = 0

    @property
    def is_too_big(self) -> bool:
        """Whether the buffer is not to be kept once it is empty."""
        return len(self._buffer) > KEPT_BUFFER_BYTES

    def give_back(self) -> bool:
        """Give back a buffer that has grown, if it is empty; say whether it was."""
        if self or not self.held_bytes:
            return False
        self._replace(INITIAL_BUFFER_BYTES)
        return True

    def _replace(self, size_bytes: int) -> None:
        unhandled = self._view[self._start : self._end]
        if size_bytes == len(self._buffer):
            self._view[: len(unhandled)] = unhandled
        else:
            buffer = bytearray(size_bytes)
            buffer[: len(unhandled)] = unhandled
            self._buffer, self._view = buffer, memoryview(buffer)
        self._start, self._end = 0, len(unhandled)
