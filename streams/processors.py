"""Processors: classes of a user's own that take records one by one, with stores and schedules.

A processor never learns of batches: it is given the records of its task in order, and what it forwards while it has a record
comes from that record. Stores are those of the task: what is put into them is durable with the task commit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Record:
    """A record as a processor takes and forwards it: key, value, event time (ms), headers."""

    key: Any
    value: Any
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def with_key(self, key: Any) -> Record:
        """Return the record with another key."""
        return replace(self, key=key)

    def with_value(self, value: Any) -> Record:
        """Return the record with another value."""
        return replace(self, value=value)

    def with_timestamp(self, timestamp_ms: int) -> Record:
        """Return the record with another event time."""
        return replace(self, timestamp_ms=timestamp_ms)


@dataclass(frozen=True, slots=True)
class Metadata:
    """Where the record being processed comes from."""

    topic: str
    partition: int
    offset: int


class Time(StrEnum):
    """Whose time a schedule follows: that of the records, or that of the wall clock."""

    STREAM = "stream"
    WALL_CLOCK = "wall_clock"


class Store(Protocol):
    """Values of any kind by key; what is put is there at once, and durable with the task commit."""

    def get(self, key: Any) -> Any:
        """Return the value of a key, None when there is none."""
        ...

    def time_of(self, key: Any) -> int | None:
        """Return the time that the value of a key was put with, None when there is none."""
        ...

    def put(self, key: Any, value: Any, *, timestamp_ms: int | None = None) -> None:
        """Set the value of a key, with a time (else the stream time); None deletes it."""
        ...

    def delete(self, key: Any) -> Any:
        """Delete a key and return the value it had."""
        ...

    def items(self, start: Any = None, stop: Any = None, *, prefix: str | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield keys and values with start <= key < stop, or whose text begins so, in the order of the encoded keys; the store
        may be changed meanwhile."""
        ...


class Cancellable(Protocol):
    """A schedule."""

    def cancel(self) -> None:
        """Let it not be called any more."""
        ...


class Context(Protocol):
    """What a processor has of its task."""

    def forward(self, record: Record, *, child: str | None = None) -> None:
        """Give a record to all that follows, or to one of the processor's named children."""
        ...

    def store(self, name: str) -> Any:
        """Return one of the processor's stores: a `Store`, or what its kind has (`lf.window_store` and the like say)."""
        ...

    def schedule(self, every_ms: int, call: Callable[[int], None], *, time: Time = Time.STREAM) -> Cancellable:
        """Call `call(time_ms)` each time that this much time has passed.

        Stream time: aligned to 0, so for the first time with the first record; several missed calls are one. Wall clock: for the
        first time after `every_ms`. A schedule that is set up while a record is processed begins with the records fetched next.
        """
        ...

    @property
    def metadata(self) -> Metadata | None:
        """Where the record being processed comes from; None in a schedule."""
        ...

    @property
    def stream_time_ms(self) -> int:
        """The largest event time that the task has taken, -1 before the first."""
        ...

    @property
    def wall_clock_ms(self) -> int: ...


class Processor(ABC):
    """The base of a user's processors.

    >>> import logflume.streams as lf
    >>> from logflume.streams.testing import TopologyTestDriver
    >>> class Numbered(lf.Processor):
    ...     def init(self, context):
    ...         super().init(context)
    ...         self.seen = context.store("seen")
    ...
    ...     def process(self, record):
    ...         number = (self.seen.get(record.key) or 0) + 1
    ...         self.seen.put(record.key, number)
    ...         self.context.forward(record.with_value(f"{number}. {record.value}"))
    >>> app = lf.App("numbers")
    >>> app.stream("lines", str).process_values(Numbered, lf.key_value_store("seen")).to("numbered")
    >>> driver = TopologyTestDriver(app)
    >>> for line in ("to", "be"):
    ...     driver.input("lines").send(line, key="a")
    >>> [record.value for record in driver.output("numbered").read()]
    ['1. to', '2. be']
    """

    context: Context

    def init(self, context: Context) -> None:
        """Begin; stores are there, schedules can be set up."""
        self.context = context

    @abstractmethod
    def process(self, record: Record) -> None:
        """Take a record."""

    def close(self) -> None:
        """End: the task goes away."""
