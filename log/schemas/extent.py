"""How large a schema may be, its named types written out where they are used: a few lines can stand for 2**60 types."""

from __future__ import annotations

from logflume.log.errors import DecodeError

MAX_DEPTH = 64
MAX_TYPES = 10_000


class Extent:
    """What is left of the types that a schema may have, as it is walked."""

    def __init__(self) -> None:
        self._left = MAX_TYPES

    def enter(self, depth: int, what: str) -> None:
        """Count a type. Raises DecodeError where it is nested too deep, or there are too many."""
        self._left -= 1
        if depth > MAX_DEPTH:
            raise DecodeError(f"{what} contains itself or is nested deeper than {MAX_DEPTH} levels; columns cannot hold that")
        if self._left < 0:
            raise DecodeError(f"{what} has more than {MAX_TYPES:,} types, written out; columns cannot hold that")
