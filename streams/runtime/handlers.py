"""What becomes of records that cannot be decoded, processed or put out, and of errors nobody foresaw: policies or functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from logflume.log import InvalidInput, LogflumeError, UnknownName
from logflume.log.records import Record


class OnProblem(StrEnum):
    """What a record that cannot be decoded or evaluated does. SKIP: counted, logged, kept if there is a dead letter topic."""

    SKIP = "skip"
    STOP = "stop"


class OnUncaught(StrEnum):
    """What an error of the application itself does. RESTART: go on from what was committed, after a pause that grows."""

    STOP = "stop"
    RESTART = "restart"


class StreamsError(LogflumeError):
    """An application cannot go on; says which task, record and cause."""

    code = "STREAMS_ERROR"

    @classmethod
    def of(cls, error: Exception, who: str, doing: str) -> StreamsError:
        """Return what tells that `who` met an error while it was `doing` something.

        >>> str(StreamsError.of(MemoryError(), "task in.0", "while processing in-0 offsets 0 to 1"))
        'task in.0: MemoryError while processing in-0 offsets 0 to 1'
        """
        return cls(f"{who}: {type(error).__name__} {doing}" + (f": {error}" if str(error) else ""))


@dataclass(frozen=True, slots=True)
class Problem:
    """What a handler is asked about.

    Attributes:
        reason: decode, expression, callable, encode or refused.
        topic, partition, offset: of the record that was read; of what was refused its topic, and -1.
        record: the record read (for refused: to be written); None where it is not at hand.
        cause: the error, or what is wrong in words.
    """

    reason: str
    task: str
    node: str
    topic: str
    partition: int
    offset: int
    record: Record | None
    cause: object


T = TypeVar("T", bound=StrEnum)
Handler = OnProblem | Callable[[Problem], OnProblem | str]
UncaughtHandler = OnUncaught | Callable[[BaseException], OnUncaught | str]


@dataclass(frozen=True, slots=True)
class Handlers:
    """Who decides about records: decode (bytes that are no value), process (functions, expressions), produce (topics refuse)."""

    decode: Handler
    process: Handler
    produce: Handler

    @classmethod
    def all(cls, handler: Handler) -> Handlers:
        return cls(handler, handler, handler)

    def decide(self, problem: Problem) -> OnProblem:
        """Return what shall become of a record. Raises StreamsError: the handler raises, or says something else."""
        handler = {"decode": self.decode, "refused": self.produce}.get(problem.reason, self.process)
        return handler if isinstance(handler, OnProblem) else _asked(handler, problem, OnProblem, f"task {problem.task}")


SKIPPING = Handlers.all(OnProblem.SKIP)


def decide_uncaught(handler: UncaughtHandler, error: BaseException) -> OnUncaught:
    """Return what shall become of the application. Raises StreamsError: the handler raises, or says something else."""
    return handler if isinstance(handler, OnUncaught) else _asked(handler, error, OnUncaught, "on_uncaught")


def _asked(handler: Callable[[Any], Any], about: object, kind: type[T], where: str) -> T:
    try:
        said = handler(about)
    except Exception as error:
        raise StreamsError(f"{where}: the handler raises {type(error).__name__}: {error}") from error
    if said not in list(kind):
        raise StreamsError(f"{where}: the handler must return {' or '.join(repr(each.value) for each in kind)}, not {said!r}")
    return kind(said)


def checked(name: str, value: Any, kind: type[T]) -> T | Callable[[Any], Any]:
    """Return a setting that is a policy or a function. Raises UnknownName, InvalidInput."""
    if isinstance(value, str):
        if value not in list(kind):
            raise UnknownName(name, value, [each.value for each in kind])
        return kind(value)
    if not callable(value):
        raise InvalidInput(f"{name} must be {' or '.join(repr(each.value) for each in kind)}, or a function, not {value!r}")
    found: Callable[[Any], Any] = value
    return found
