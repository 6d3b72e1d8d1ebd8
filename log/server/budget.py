"""The memory that requests being received and responses not yet taken may hold together (`queued.max.request.bytes`).

What is counted is what is held: a connection's receive buffer beyond its first size, and its unsent bytes. A length that a
client only announces costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Holder(Protocol):
    """A connection as the budget sees it."""

    def give_back(self) -> None:
        """Give back what is held without need."""

    def resume(self) -> None:
        """Read on: there may be room now."""


class MemoryBudget:
    """Counts bytes held; says who may hold more.

    Invariants: `used_bytes` is the sum over all holders. At most one holder is over the limit: whoever asks first when the budget
    is used up gets what it asks for, so that somebody always gets on; the bound is therefore the limit plus one request.
    """

    __slots__ = ("_favoured", "_held", "_limit_bytes", "_waiting", "used_bytes")

    def __init__(self, limit_bytes: Callable[[], int]) -> None:
        """`limit_bytes`: the setting as it is now; negative for no bound."""
        self._limit_bytes = limit_bytes
        self._held: dict[Holder, int] = {}
        self._waiting: dict[Holder, None] = {}
        self._favoured: Holder | None = None
        self.used_bytes = 0

    @property
    def is_used_up(self) -> bool:
        """Whether more is held than may be."""
        return 0 <= self._limit_bytes() < self.used_bytes

    @property
    def is_wanted(self) -> bool:
        """Whether what is held without need is to be given back: too much is held, or somebody waits."""
        return bool(self._waiting) or self.is_used_up

    def set_held(self, holder: Holder, size_bytes: int) -> None:
        """Say how much a holder holds now; 0 when it is gone. Wakes those who wait when something came free."""
        before = self._held.get(holder, 0)
        if size_bytes == before:
            return
        self.used_bytes += size_bytes - before
        if size_bytes:
            self._held[holder] = size_bytes
        else:
            del self._held[holder]
            if self._favoured is holder:
                self._favoured = None
        if size_bytes < before and self._waiting:
            waiting, self._waiting = self._waiting, {}
            for each in waiting:
                each.resume()

    def may_grow(self, holder: Holder, more_bytes: int) -> bool:
        """Whether a holder may hold so many bytes more. If not, its `resume` is called later, and it is to ask again."""
        limit = self._limit_bytes()
        if limit < 0 or self.used_bytes + more_bytes <= limit or self._favoured is holder:
            return True
        for other in list(self._held):
            if other is not holder:
                other.give_back()
        if self.used_bytes + more_bytes <= limit:
            return True
        if self._favoured is None:
            self._favoured = holder
            return True
        self._waiting[holder] = None
        return False

    def forget(self, holder: Holder) -> None:
        """Drop a holder that is gone."""
        self._waiting.pop(holder, None)
        self.set_held(holder, 0)
