"""What is written in one turn of the loop leaves by one call: the head and the body of an answer, the answers to a pipeline."""

from __future__ import annotations

import asyncio
from typing import Any

HELD_BYTES_MAX = 64 << 10


class Gathering:
    """A transport that holds what is written until the turn is over, or it is much. Everything else is the transport's own."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held: list[bytes] = []
        self._held_bytes = 0

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self._leave)
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= HELD_BYTES_MAX:
            self._leave()

    def _leave(self) -> None:
        held, self._held, self._held_bytes = self._held, [], 0
        if held:
            self._transport.write(held[0] if len(held) == 1 else b"".join(held))

    def close(self) -> None:
        """Close once all is written."""
        self._leave()
        self._transport.close()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._leave()
        self._transport.set_protocol(protocol)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
