"""The connector API (architecture, D13): a spec, a loop and an offset. Data and protocols only.

A *source* is a generator: it yields batches of rows, each with the offset that follows it, and goes on only after the batch
and its offset are on disk in the log, in one transaction. A *sink* takes batches and says up to which offset they are safe in
the target. Neither sees producers, consumers, threads or retries; the worker owns those.

A plug-in is a `SourceConnector` or `SinkConnector` object, found by its short name: in the table of built-in ones, or under the
entry point group `logflume.connectors`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from logflume.log import TopicPartition
from logflume.log.schemas import Column, Row

from .config import Config
from .errors import Problem
from .spec import Spec

I64 = npt.NDArray[np.int64]
Partition = Mapping[str, str]
"""A source partition: what an offset belongs to, for example {"file": "/data/flights.csv"}."""
Offset = Mapping[str, Any]
"""A position in a source partition: JSON values, meaningful to its connector only."""

EXACTLY_ONCE = "exactly-once"
AT_LEAST_ONCE = "at-least-once"


@dataclass(frozen=True, slots=True)
class Broken:
    """A row that could not become a record: its bytes as found, where it was (file, line, column), and why."""

    data: bytes
    file: str
    line: int
    column: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSchema:
    """The columns of the keys and values of a batch; no key column = null keys."""

    key: tuple[Column, ...]
    value: tuple[Column, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceBatch:
    """N rows of one source partition.

    Attributes:
        offset: the position behind these rows.
        keys, values: N rows aligned with the schema; None is a null key, or a tombstone.
        timestamps_ms: int64[N], event time.
        positions: int[N], line or row numbers for error messages; may be empty.
        broken: rows left out.
        done, total: progress in the source partitions of this task so far, in one unit; total None when it is not known.
    """

    partition: Partition
    offset: Offset
    schema: RowSchema
    keys: Sequence[Row | None]
    values: Sequence[Row | None]
    timestamps_ms: I64
    positions: Sequence[int] = ()
    broken: Sequence[Broken] = ()
    done: int = 0
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Idle:
    """Yielded by a source that has nothing for `wait_s` seconds."""

    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceContext:
    """What a source task is given.

    Attributes:
        task, tasks: number of this task and of all; a source splits its partitions among them.
        offset_of: the kept offset of a source partition, None when there is none.
        clock_s: monotonic seconds, for pacing.
    """

    task: int
    tasks: int
    offset_of: Callable[[Partition], Offset | None]
    clock_s: Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConnector:
    """A source plug-in.

    Attributes:
        read: the loop. Returning ends a bounded source; BrokenRow or any other error fails the task. `GeneratorExit` at a yield
            means stop: give resources back in `finally`.
    """

    name: str
    doc: str
    spec: Spec
    read: Callable[[Config, SourceContext], Iterator[SourceBatch | Idle]]
    kind: str = field(default="source", init=False)

    def guarantee(self, config: Config) -> str:
        """A source's offset is written with its records, so it is exactly-once as long as it resumes exactly."""
        return EXACTLY_ONCE


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkBatch:
    """N records of one topic partition, decoded, in offset order; those that could not be decoded are left out.

    `keys` and `values` are rows aligned with the schema, None for null (a null value is a tombstone). `next_offset` is the
    position behind the batch; it may be beyond offsets[-1] + 1, and a batch may have no record but still move the position.
    """

    partition: TopicPartition
    schema: RowSchema
    offsets: I64
    timestamps_ms: I64
    keys: Sequence[Row | None]
    values: Sequence[Row | None]
    next_offset: int

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True, slots=True)
class Refused:
    """A record of a batch that the target cannot take, and why; it goes the way of `errors.tolerance`."""

    offset: int
    reason: str


class SinkTask(Protocol):
    """One task of a sink. Called by one thread."""

    def open(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Take partitions over; return the next offset of each that is already in the target, where the target keeps offsets.

        Records below these are never put.
        """
        ...

    def put(self, batch: SinkBatch) -> Sequence[Refused]:
        """Take a batch, need not be durable yet; return the records it cannot take. Raises TargetRefused when it takes none."""
        ...

    def flush(self, *, is_final: bool) -> Mapping[TopicPartition, int]:
        """Make durable what is due, or all with `is_final`; return the next offset of every partition that is safe."""
        ...

    def release(self, partitions: Sequence[TopicPartition]) -> None:
        """Forget partitions that were taken away, after a final flush or without one; what is not flushed is dropped."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """What a sink task is given: its connector's name and task number, the topics' schemas and a clock."""

    connector: str
    task: int
    schema: RowSchema
    clock_s: Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkConnector:
    """A sink plug-in. `guarantee_of` says what the records in the target can rely on under a config.

    `target_problems` looks at the target before anything is started there, and says what could never be written.
    """

    name: str
    doc: str
    spec: Spec
    start: Callable[[Config, SinkContext], SinkTask]
    guarantee_of: Callable[[Config], str]
    target_problems: Callable[[Config], Iterable[Problem]] = lambda config: ()
    kind: str = field(default="sink", init=False)

    def guarantee(self, config: Config) -> str:
        return self.guarantee_of(config)


Connector = SourceConnector | SinkConnector
