"""Answers that come later: a one-shot promise of the one thread that everything in `log/broker` runs on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from logflume.log.errors import LogflumeError
from logflume.log.protocol import ErrorCode, KafkaError, detail_of


class Reply:
    """A response that comes later: a one-shot promise for the single broker thread.

    A handler returns a response message at once, a `Reply` for later, or None for "no response" (acks=0).
    """

    __slots__ = ("_callbacks", "held_bytes", "is_done", "is_long", "value")

    def __init__(self) -> None:
        self.is_done = self.is_long = False
        """`is_long`: it is worked on in slices; the client's next requests wait for it, and it is encoded off this thread. Set
        just before the value it means the latter only."""
        self.held_bytes = 0
        """Bytes of the request that are kept until then: the client's next requests wait while they are too many."""
        self.value: Any = None
        self._callbacks: list[Callable[[Any], None]] = []

    @classmethod
    def of(cls, value: Any) -> Reply:
        """Return a reply that is there already."""
        reply = cls()
        reply.set(value)
        return reply

    def set(self, value: Any) -> None:
        """Complete the reply; a second call is a bug."""
        assert not self.is_done, "a reply is set once"
        self.is_done, self.value = True, value
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(value)

    def then(self, callback: Callable[[Any], None]) -> None:
        """Call back with the value, now if it is there."""
        if self.is_done:
            callback(self.value)
        else:
            self._callbacks.append(callback)


class Refusable(Protocol):
    """An answer, or the part of one about a topic, a group or their like, that can say why it was refused."""

    error_code: int
    error_message: str | None


def refuse(answer: Refusable, error: LogflumeError) -> None:
    """Say in an answer why it was refused; what is not an error of the protocol is one of the storage."""
    answer.error_code = error.number if isinstance(error, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
    answer.error_message = detail_of(error)


def as_reply(value: Any) -> Reply:
    """Return the value as a reply that is done, or the reply that it is."""
    if isinstance(value, Reply):
        return value
    reply = Reply()
    reply.set(value)
    return reply
