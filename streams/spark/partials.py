"""One offset range run on its own, and the merging of what ranges give into the stores of a task. No Spark, no log.

What comes of a range needs nothing from the ranges before it but two times, which are put right afterwards:
- lateness: a record is late by the store's stream time, which only grows. What is late by the records of its own range is left
  out there. What remains of one window is late by the ranges before either as a whole or not at all, because lateness depends
  on the window's start alone; so it is decided when the entry is merged, and the number of records in it is counted then;
- the running maximum of time of a record for a repartition topic: the larger of that in its range and that before its range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec
import numpy as np

from logflume.log import Chunk, LogflumeError, TopicPartition, key_partitions
from logflume.log.records import I32
from logflume.streams.operators import BoundProgram
from logflume.streams.runtime.handlers import SKIPPING, Handlers, StreamsError
from logflume.streams.runtime.merge import Input, Run
from logflume.streams.runtime.outputs import Columns, TaskOutputs
from logflume.streams.runtime.problems import DeadLetter, TaskProblems, letter_facts
from logflume.streams.runtime.rules import TopicRules
from logflume.streams.runtime.status import LeftOut
from logflume.streams.runtime.task import Task
from logflume.streams.seams import TaskFunction
from logflume.streams.state import TaskState
from logflume.streams.state.store import Store

from .forms import RangeForm
from .replay import LetterRows, OutputRows, accepted, letter_rows, output_rows

NO_RULES: Mapping[str, TopicRules] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PartialRows:
    """Entries of a store over one range, as records: keys, encoded entries and timestamps.

    `topic`: the repartition topic whose partition of the key they belong to; None: they belong to the range's own partition.
    """

    topic: str | None
    store: str
    records: Chunk


@dataclass(frozen=True, slots=True)
class RangeEnd:
    """What else is to be known of a range, for one partition of one sub-topology.

    Attributes:
        time_ms: largest timestamp of its records, -1 without any.
        clocks_ms: windowed store -> largest time that it has observed.
        problems: how many records were left out by reason; `left_out`: by place too.
    """

    subtopology: str
    partition: int
    time_ms: int
    clocks_ms: Mapping[str, int]
    records: int
    problems: Mapping[str, int]
    left_out: tuple[LeftOut, ...] = ()


decode_range_end = msgspec.msgpack.Decoder(RangeEnd).decode


@dataclass(slots=True)
class _Running:
    """A form over one range: its function, empty stores, and what it has counted."""

    form: RangeForm
    problems: TaskProblems
    outputs: TaskOutputs
    stores: dict[str, Store]
    function: TaskFunction
    records: dict[int, int] = field(default_factory=dict)
    times_ms: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, form: RangeForm, problems: TaskProblems) -> _Running:
        outputs = TaskOutputs(form.outputs)
        stores = {spec.name: Store(spec) for spec in form.program.stores}
        return cls(form, problems, outputs, stores, form.program.bind(stores, outputs, problems))

    def process(self, chunk: Chunk) -> None:
        """Take all records of a chunk. Raises StreamsError, naming the offsets, for what the program raises."""
        self.problems.chunks = (chunk,)
        try:
            self.function.process(self.form.source, chunk, 0, len(chunk))
        except LogflumeError:
            raise
        except Exception as error:
            first, last = int(chunk.offsets[0]), int(chunk.offsets[-1])
            doing = f"while processing {chunk.topic}-{chunk.partition} offsets {first} to {last}"
            raise StreamsError.of(error, self.form.subtopology, doing) from error

    def observe(self, partition: int, records: int, time_ms: int) -> None:
        """Count records of a partition."""
        self.records[partition] = self.records.get(partition, 0) + records
        self.times_ms[partition] = max(self.times_ms.get(partition, -1), time_ms)

    def finish(self, topic: str | None) -> Iterator[PartialRows | RangeEnd]:
        """Yield the entries of all stores, then an end for each partition; the first one has all problems."""
        for name, store in self.stores.items():
            dirty = store.encode_dirty()
            if len(dirty):
                yield PartialRows(topic, name, dirty.chunk(topic or ""))
        clocks = {name: self.stores[name].stream_time_ms for name in self.form.windows}
        problems, left_out = dict(self.problems.counts), self.problems.left_out()
        for partition, seen in self.records.items():
            records = seen if topic is None else 0  # those of a repartition topic counted where they came from
            yield RangeEnd(self.form.subtopology, partition, self.times_ms[partition], clocks, records, problems, left_out)
            problems, left_out = {}, ()


def run_range(
    form: RangeForm,
    source: TopicPartition,
    chunks: Iterator[Chunk],
    readers: Mapping[str, RangeForm],
    partitions: Mapping[str, int],
    *,
    application: str = "",
    handlers: Handlers = SKIPPING,
    rules: Mapping[str, TopicRules] = NO_RULES,
    dead_letter_topic: str | None = None,
) -> Iterator[OutputRows | LetterRows | PartialRows | RangeEnd | None]:
    """Run a form over the chunks of one range, in offset order; give None after each chunk.

    Args:
        readers: Repartition node -> form of the sub-topology that reads it, run here on what would be written.
        partitions: topic -> number of partitions.
        handlers: what becomes of records that cannot be processed.
        rules, dead_letter_topic: see `Replay`.
    """

    def problems() -> TaskProblems:
        name, keeps = f"{form.subtopology}.{source.partition}", dead_letter_topic is not None
        return TaskProblems(name, handlers=handlers, keeps_letters=keeps, application=application)

    own = _Running.of(form, problems())
    combined = {node: _Running.of(reader, problems()) for node, reader in readers.items()}
    own.observe(source.partition, 0, -1)
    time_ms = -1
    for chunk in chunks:
        times = np.maximum.accumulate(np.maximum(chunk.timestamps_ms, time_ms))
        time_ms = int(times[-1])
        run = Run(Input((form.source,), source, position=0), chunk, 0, len(chunk), times)
        own.outputs.begin(run)
        own.process(chunk)
        own.outputs.end(run)
        own.observe(source.partition, len(chunk), int(chunk.timestamps_ms.max()))
        letters: list[DeadLetter] = []
        for columns in own.outputs.take():
            if columns.node in combined:
                letters += _combine(combined[columns.node], columns.topic, columns, partitions)
                continue
            yield accepted(output_rows(columns), columns.topic, rules, own.problems)
        yield from letter_rows(dead_letter_topic, own.problems.take_letters() + letters, rules)
        yield None
    yield from own.finish(None)
    for node, reader in combined.items():
        yield from reader.finish(form.outputs[node].topic)


def _combine(reader: _Running, topic: str, columns: Columns, partitions: Mapping[str, int]) -> list[DeadLetter]:
    """Run the reader of a repartition topic on records for it; return what it could not process.

    Which partition they would be in matters for times alone, and for where dead letters say that they are from.
    """
    chunk = columns.chunk()
    chunk.topic = topic
    chunk.partition = 0
    reader.process(chunk)
    targets = key_partitions(chunk, partitions[topic])
    for partition in np.unique(targets).tolist():
        times = chunk.timestamps_ms[targets == partition]
        reader.observe(max(partition, 0), len(times), int(times.max()))
    return [_placed(letter, reader.form.subtopology, targets) for letter in reader.problems.take_letters()]


def _placed(letter: DeadLetter, subtopology: str, targets: I32) -> DeadLetter:
    """Return a dead letter of a record of a chunk with the partition that it would be in, and the task that would take it."""
    if "offset" not in (facts := letter_facts(letter.headers)):  # no record, but what it made
        return letter
    partition = max(int(targets[int(facts["offset"])]), 0)
    return letter.with_facts({"partition": partition, "task": f"{subtopology}.{partition}"})


@dataclass(slots=True)
class Merging:
    """What a task does instead of reading records: it takes what came of the ranges, in their order.

    `parts`: of each range its partial entries, then its end.
    """

    form: RangeForm
    topic: str
    parts: Iterator[PartialRows | RangeEnd]

    def run(self, task: Task, state: TaskState) -> Iterator[tuple[int, int]]:
        """Merge everything; yields (records, entries) of each part."""
        assert isinstance(task.function, BoundProgram)
        source = task.inputs[TopicPartition(self.topic, task.partition)]
        for part in self.parts:
            if isinstance(part, RangeEnd):
                for name, time_ms in part.clocks_ms.items():
                    state.stores[name].stream_time_ms = max(state.stores[name].stream_time_ms, time_ms)
                source.time_ms = max(source.time_ms, part.time_ms)
                task.outputs.time_ms = max(task.outputs.time_ms, source.time_ms)
                task.problems.add(part.problems, part.left_out)
                yield part.records, 0
                continue
            late = task.function.works[self.form.merges[part.store]].absorb(part.records)
            if late:
                task.problems.add({"late": late}, (LeftOut(part.store, self.topic, "late", late),))
            yield 0, len(part.records)
