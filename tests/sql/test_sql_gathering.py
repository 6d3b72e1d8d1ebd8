"""An answer's head and body leave together, in order, and nothing that was written is lost when the connection closes."""

from __future__ import annotations

import asyncio
from typing import Any

from logflume.sql.rest.gathering import HELD_BYTES_MAX, Gathering


class Written:
    """A transport that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def write(self, data: bytes) -> None:
        self.told.append(data)

    def close(self) -> None:
        self.told.append("closed")

    def is_closing(self) -> bool:
        return "closed" in self.told


def test_what_is_written_in_one_turn_leaves_by_one_call() -> None:
    async def turns() -> list[Any]:
        below = Written()
        whole = Gathering(below, asyncio.get_running_loop())  # type: ignore[arg-type]
        whole.write(b"head")
        whole.write(b"body")
        assert below.told == []
        await asyncio.sleep(0)
        whole.write(b"next")
        whole.close()
        assert whole.is_closing()
        return below.told

    assert asyncio.run(turns()) == [b"headbody", b"next", "closed"]


def test_what_is_much_leaves_at_once() -> None:
    async def much() -> list[Any]:
        below = Written()
        whole = Gathering(below, asyncio.get_running_loop())  # type: ignore[arg-type]
        whole.write(b"a" * HELD_BYTES_MAX)
        return list(below.told)

    assert asyncio.run(much()) == [b"a" * HELD_BYTES_MAX]
