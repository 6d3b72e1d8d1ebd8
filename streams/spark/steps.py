"""A step of an application as a batch job: sub-topologies in order, a job task per stream task, repartition topics as shuffles.

A step goes from a start (nothing, or the end of the step before) to a cut of the source topics. Each job task runs a `Replay`
that reads its offset ranges from the log itself, so no record passes through Spark's JVM unless it is an output. Rows that
leave a stream task all have one shape (`ROWS`); those of a repartition topic are partitioned and sorted in the order that the
engine gives such a topic: (running maximum of time in the source partition, source partition, order inside the task).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, Self

import numpy as np

from logflume.log import Chunk, Log, LogflumeError, TopicPartition, TransportError, connect, load_kernels
from logflume.streams.kernels import kernel_loader
from logflume.streams.operators import OperatorProgram, Region, Slice
from logflume.streams.runtime.failures import is_fatal
from logflume.streams.runtime.handlers import SKIPPING, Handlers
from logflume.streams.runtime.rules import TopicRules
from logflume.streams.runtime.task import task_name
from logflume.streams.seams import Plan, SubTopology, changelog_topic
from logflume.streams.state import Checkpoint

from .archives import Archive, read_history
from .costs import Cost
from .forms import RangeForm, forms_of
from .kept import Kept
from .partials import Merging, run_range
from .ranges import OffsetRange, read_range
from .replay import (
    MEMORY_BYTES,
    ChangelogRows,
    LetterRows,
    Ordered,
    OutputRows,
    Replay,
    ReplayInput,
    TableInput,
    TaskEnd,
    Work,
    by_own_times,
    chunk_of_rows,
)
from .rows import RowKind, RowWriter, parts_of, records_of, unpack_headers
from .state_folder import begin_task, copied_task
from .turns import Turn
from .writing import Target, Written

KERNELS_FROM_RECORDS = 50_000
Read = Callable[[Log, OffsetRange], Iterator[Chunk]]
Paced = Iterator[Any]
"""Arrow batches of rows, and None whenever what was read so far has been processed."""
Run = Callable[[Log, int, Read], Paced]
"""Computes the range or task of a number, from what it reads."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step computes. Picklable, apart from `load_plan` itself being importable or picklable by value.

    Attributes:
        where: the log, as `logflume.log.connect` takes it, reachable from every Spark executor.
        ranges: what is read of each source partition, and of repartition topics that hold records which are not processed yet.
            Those of global tables are read by each task that has them, before all else.
        partitions: topic -> number of partitions, for all topics of the application.
        starts: task name -> checkpoint that it goes on from; absent: the beginning.
        state_root: directory that holds the stores between steps, one folder a task, on a file system that all executors share;
            None: each task keeps its stores in a scratch directory of its executor, and removes it.
        archive: what of the ranges is read from files instead of the log.
        kept: where finished stages are kept; None: nowhere.
        token: tells this step from any other that uses the same `state_root`.
        handlers: what becomes of records that cannot be processed.
        rules: topics of results -> what these do not take.
        dead_letter_topic: where they are kept, among the results; None: nowhere.
    """

    load_plan: Callable[[], Plan]
    where: str
    ranges: Mapping[TopicPartition, OffsetRange]
    partitions: Mapping[str, int]
    starts: Mapping[str, Checkpoint]
    state_root: str | None = None
    memory_bytes: int = MEMORY_BYTES
    archive: Archive = field(default_factory=dict)
    kept: Kept | None = None
    token: str = ""
    handlers: Handlers = SKIPPING
    rules: Mapping[str, TopicRules] = field(default_factory=dict)
    dead_letter_topic: str | None = None

    def read(self, log: Log, wanted: OffsetRange) -> Iterator[Chunk]:
        """Yield the records of a range, from wherever they are."""
        return read_history(log, wanted, self.archive.get(wanted.topic_partition, ()))


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a step is, in words, and `done` of `total` (0: not known)."""

    step: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class StageDone:
    """A stage that is done: of which sub-topology, how it was computed, in how many tasks, in what time and at what cost."""

    subtopology: str
    way: str
    tasks: int
    seconds: float
    cost: Cost


class StepResult(Protocol):
    """What a step computed, kept until `release`."""

    @property
    def stages(self) -> list[StageDone]:
        """The stages in the order in which they ran."""
        ...

    @property
    def ends(self) -> list[TaskEnd]:
        """The end of each task that ran."""
        ...

    @property
    def results(self) -> int:
        """How many records of results there are."""
        ...

    def write(self, target: Target, kinds: frozenset[RowKind]) -> Written:
        """Write the records of these kinds, sinks or changelogs, those of one partition in order."""
        ...

    def then(self, later: Self) -> Self:
        """Return what both hold; `later` went on from the ends of this one."""
        ...

    def release(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StepWritten:
    """A step whose tasks have written what they computed: their ends, the stages, and what all of them say.

    `letters`: dead letters that are still to be written, as Arrow tables: key, value, timestamp_ms, headers.
    """

    ends: list[TaskEnd]
    stages: list[StageDone]
    written: Written
    letters: list[Any]


class StepRunner(Protocol):
    """Runs the stream tasks of a step somewhere."""

    @property
    def concurrency(self) -> int:
        """How many tasks run at a time."""
        ...

    def run(self, step: StepPlan, plan: Plan, on_progress: Callable[[Progress], None]) -> StepResult: ...

    def run_together(
        self, jobs: Sequence[tuple[StepPlan, Plan]], on_progress: Callable[[Progress], None]
    ) -> Sequence[StepResult]:
        """Run steps of several applications on one log, which share what they read (`sharing.py`)."""
        ...

    def writes_at_once(self, step: StepPlan, plan: Plan) -> bool:
        """Return whether `run_at_once` takes a step."""
        ...

    def run_at_once(self, step: StepPlan, plan: Plan, target: Target, on_progress: Callable[[Progress], None]) -> StepWritten:
        """Run a step whose tasks write what they compute (`at_once.py`)."""
        ...


def region_of(sub: SubTopology) -> Region | None:
    """Return what a sub-topology's tasks can be cut into slices behind; None: they cannot."""
    return sub.program.region if isinstance(sub.program, OperatorProgram) else None


@dataclass(frozen=True, slots=True)
class RangeRunner:
    """The function mapped over Arrow batches with a column `partition`: runs the ranges of these numbers, in their order.

    `ranges`: (number inside its partition, range), those of one partition in order of their numbers. `combined`: the repartition
    topics of which entries are given in place of records.
    """

    step: StepPlan
    subtopology: str
    ranges: tuple[tuple[int, OffsetRange], ...]
    combined: frozenset[str]

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        run = self.prepared()
        with passing_told(), connect(self.step.where) as log:
            for batch in batches:
                for at in batch.column("partition").to_pylist():
                    yield from (rows for rows in run(log, at, self.step.read) if rows is not None)

    def prepared(self) -> Run:
        """Plan once, for any number of ranges."""
        prepare_kernels(max((len(wanted) for _, wanted in self.ranges), default=0))
        plan = self.step.load_plan()
        forms = forms_of(plan)
        form = forms.by_name[self.subtopology]
        readers = {node: forms.combined[out.topic] for node, out in form.outputs.items() if out.topic in self.combined}
        return partial(self._run, plan.application, form, readers)

    def _run(self, application: str, form: RangeForm, readers: Mapping[str, RangeForm], log: Log, at: int, read: Read) -> Paced:
        number, wanted = self.ranges[at]
        step = self.step
        writer = RowWriter(form.outputs, step.partitions, wanted.partition, number=number)
        parts = run_range(
            form,
            wanted.topic_partition,
            read(log, wanted),
            readers,
            step.partitions,
            application=application,
            handlers=step.handlers,
            rules=step.rules,
            dead_letter_topic=step.dead_letter_topic,
        )
        for part in parts:
            if part is None:
                yield None
            else:
                yield from writer.rows(part)


@dataclass(frozen=True, slots=True)
class TaskRunner:
    """The function mapped over Arrow batches: runs the stream tasks whose partitions come along, sorted by partition.

    The batches hold the records of the repartition topics that the turn takes; `is_merging`: what came of ranges instead.
    `slices`: into how many a task is cut: number n is slice n % slices of the task of partition n // slices.
    """

    step: StepPlan
    turn: Turn
    is_merging: bool = False
    slices: int = 1

    @property
    def subtopology(self) -> str:
        """Whose tasks they are."""
        return self.turn.subtopology

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        run = self.prepared()
        for number, taken in _by_partition(batches):
            with passing_told(), connect(self.step.where) as log:
                yield from (rows for rows in run(log, number, self.step.read, taken) if rows is not None)

    def prepared(self) -> Callable[..., Paced]:
        """Plan once, for any number of tasks; what is returned is a `Run`, to which rows that the task takes can be given."""
        prepare_kernels(max(map(len, self.step.ranges.values()), default=0))
        plan = self.step.load_plan()
        sub = next(each for each in plan.subtopologies if each.name == self.subtopology)
        form = self._form(plan) if self.is_merging else None
        region = region_of(sub) if self.slices > 1 else None
        return partial(self._run, plan.application, sub, form, region)

    def _form(self, plan: Plan) -> RangeForm:
        forms = forms_of(plan)
        return forms.by_name.get(self.subtopology) or forms.combined_readers[self.subtopology]

    def _run(
        self,
        application: str,
        sub: SubTopology,
        form: RangeForm | None,
        region: Region | None,
        log: Log,
        number: int,
        read: Read,
        rows: Iterable[Any] = (),
    ) -> Paced:
        partition, which = divmod(number, self.slices)
        own = None if region is None else Slice(region, which, self.slices)
        name, topics = task_name(sub, partition), sorted(sub.shared_topics())
        start = self.step.starts.get(name, Checkpoint())
        with ExitStack() as stack:
            folder = self._folder(stack, name)
            work: Work | None = None
            shuffled: Mapping[str, Iterator[Any]] = {}
            if form is not None:
                topic = sub.program.sources[form.source]
                work = Merging(form, topic, (part for batch in rows for part in parts_of(batch))).run
            else:
                shuffled = stack.enter_context(_by_topic(self.turn.takes, records_of(rows)))
            replay = Replay(
                sub,
                partition,
                [self._input(partial(read, log), TopicPartition(topic, partition), start, shuffled) for topic in topics],
                application,
                folder / (name if own is None else f"{name}-{own.number}"),
                start=start,
                stored=partial(stored_chunks, log, application, sub, partition, start),
                memory_bytes=self.step.memory_bytes,
                work=work,
                tables=self._tables(partial(read, log), sub),
                own=own,
                following=self.turn.following,
                is_ahead=self.turn.is_ahead,
                handlers=self.step.handlers,
                rules=self.step.rules,
                dead_letter_topic=self.step.dead_letter_topic,
            )
            writer = RowWriter(sub.outputs, self.step.partitions, partition)
            for part in replay.paced():
                if part is None:
                    yield None
                elif self._gives(part, sub):
                    yield from writer.rows(part)

    def _folder(self, stack: ExitStack, task: str) -> Path:
        """Return where the stores of a task are."""
        if self.step.state_root is None:
            return stack.enter_context(scratch())
        root = Path(self.step.state_root)
        if self.turn.is_ahead:
            return stack.enter_context(copied_task(root, task, self.step.token))
        begin_task(root, task, self.step.token)
        return root

    def _gives(self, part: OutputRows | LetterRows | ChangelogRows | TaskEnd, sub: SubTopology) -> bool:
        """Return whether something that a task puts out is this turn's to give."""
        if not isinstance(part, OutputRows):
            return True
        out = sub.outputs[part.node]
        return out.topic in self.turn.gives if out.is_repartition else not self.turn.is_ahead

    def _tables(self, read: Callable[[OffsetRange], Iterator[Chunk]], sub: SubTopology) -> list[TableInput]:
        def read_from(whole: OffsetRange, at: int) -> Iterator[Chunk]:
            return read(replace(whole, start=max(whole.start, at)))

        wholes = [whole for tp, whole in sorted(self.step.ranges.items()) if tp.topic in sub.global_topics]
        return [TableInput(whole.topic_partition, partial(read_from, whole), whole.end) for whole in wholes]

    def _input(
        self,
        read: Callable[[OffsetRange], Iterator[Chunk]],
        tp: TopicPartition,
        start: Checkpoint,
        shuffled: Mapping[str, Iterator[Any]],
    ) -> ReplayInput:
        wanted, follows = self.step.ranges.get(tp), tp.topic in self.turn.following
        end = start.inputs.get(tp, 0) if wanted is None else wanted.end
        is_missing = follows and tp.topic not in self.turn.takes
        found = iter(()) if wanted is None or is_missing or self.is_merging else read(wanted)
        chunks = _all_at_first(found) if follows else by_own_times(found)
        if tp.topic not in shuffled:
            return ReplayInput(tp, chunks, end)
        rows = _chunks_of(tp, end, shuffled[tp.topic], follows=follows)
        return ReplayInput(tp, chain(chunks, rows), end, is_source=False)


@contextmanager
def passing_told() -> Iterator[None]:
    """Have what may be gone by the next time end a task as TransportError: the driver is told an error's name and words only."""
    try:
        yield
    except LogflumeError as error:
        if is_fatal(error) or isinstance(error, TransportError):
            raise
        raise TransportError(str(error)) from error


@contextmanager
def scratch() -> Iterator[Path]:
    """Give a directory that lives for a task, where Spark keeps its own files, or in the system's temporary directory."""
    ours = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    with TemporaryDirectory(prefix="logflume-", dir=ours if os.path.isdir(ours) else None, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def _by_topic(topics: Sequence[str], rows: Iterator[Any]) -> Iterator[Mapping[str, Iterator[Any]]]:
    """Give the rows of each topic, to be read side by side: of several, which come one after another, by way of the disk."""
    if len(topics) < 2:
        yield dict.fromkeys(topics, rows)
        return
    import pyarrow as pa

    with scratch() as spool, ExitStack() as stack:
        paths = {topic: str(spool / str(number)) for number, topic in enumerate(topics)}
        writers: dict[str, Any] = {}
        for batch in rows:
            column = batch.column("name").to_numpy(zero_copy_only=False)
            for topic in topics:
                first, last = (int(column.searchsorted(topic, side=side)) for side in ("left", "right"))
                if first == last:
                    continue
                if topic not in writers:
                    writers[topic] = stack.enter_context(pa.OSFile(paths[topic], "wb"))
                    writers[topic] = stack.enter_context(pa.ipc.new_stream(writers[topic], batch.schema))
                writers[topic].write_batch(batch.slice(first, last - first))
        stack.close()
        readers = {topic: stack.enter_context(pa.OSFile(paths[topic], "rb")) for topic in writers}
        yield {topic: iter(pa.ipc.open_stream(readers[topic])) if topic in readers else iter(()) for topic in topics}


def prepare_kernels(records: int) -> None:
    """Load the kernels at once where there is much to do: a store keeps objects up to its first commit if it began with them."""
    if records >= KERNELS_FROM_RECORDS:
        load_kernels()
        kernel_loader().load()


def stored_chunks(log: Log, application: str, sub: SubTopology, partition: int, start: Checkpoint, store: str) -> Iterator[Chunk]:
    """Yield what a store is rebuilt from: its changelog, or its table source up to where the task has read it."""
    if not start.inputs:
        return
    node = sub.table_sources.get(store)
    topic = changelog_topic(application, store) if node is None else sub.program.sources[node]
    tp = TopicPartition(topic, partition)
    first = log.admin().start_offsets([tp])[tp]
    end = log.admin().end_offsets([tp], read_committed=True)[tp] if node is None else start.inputs[tp]
    yield from read_range(log, OffsetRange(topic, partition, min(first, end), end))


def _by_partition(batches: Iterator[Any]) -> Iterator[tuple[int, Iterator[Any]]]:
    """Group consecutive rows by their `partition` column; each group must be used up before the next (it is, on advance)."""
    pending: list[Any] = []

    def take(partition: int) -> Iterator[Any]:
        while True:
            if not pending:
                batch = next(batches, None)
                if batch is None:
                    return
                if batch.num_rows:
                    pending.append(batch)
                continue
            batch = pending.pop()
            column = batch.column("partition").to_numpy(zero_copy_only=False)
            count = int(np.searchsorted(column, partition, side="right"))
            if count == 0:
                pending.append(batch)
                return
            if count < batch.num_rows:
                pending.append(batch.slice(count))
            yield batch.slice(0, count)

    while True:
        while not pending:
            batch = next(batches, None)
            if batch is None:
                return
            if batch.num_rows:
                pending.append(batch)
        partition = int(pending[0].column("partition")[0].as_py())
        rows = take(partition)
        yield partition, rows
        for _ in rows:
            pass


def _chunks_of(tp: TopicPartition, offset: int, rows: Iterator[Any], *, follows: bool) -> Iterator[Ordered]:
    """Turn shuffled rows into the chunks of the repartition topic; where it follows, with the times of their causes."""
    for batch in rows:
        blobs = batch.column("headers").to_pylist()
        headers = [unpack_headers(blob) for blob in blobs] if any(blob is not None for blob in blobs) else None
        keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
        chunk = chunk_of_rows(tp, offset, keys, values, batch.column("timestamp_ms").to_pylist(), headers)
        yield chunk, batch.column("time_ms").to_numpy() if follows else chunk.timestamps_ms
        offset += batch.num_rows


def _all_at_first(chunks: Iterable[Chunk]) -> Iterator[Ordered]:
    """Yield what a topic held before the step: all that caused it was taken then."""
    return ((chunk, np.zeros(len(chunk), np.int64)) for chunk in chunks)
