"""Runs one task over a bounded piece of its inputs, exactly as the engine would. No Spark and no log here.

The same `Task` that the engine runs takes the same chunks in the same order (merged by timestamp, topic, partition), with
the same stores over RocksDB, so what comes out equals a live run that commits every `flush_records` records. One step starts
from a checkpoint (the beginning, or the end of the step before) and ends with one; in between nothing goes to the log.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from logflume.log import Chunk, Headers, TopicPartition
from logflume.log.records import I64
from logflume.streams.operators import BoundProgram, Slice
from logflume.streams.runtime.handlers import SKIPPING, Handlers
from logflume.streams.runtime.merge import FOREVER
from logflume.streams.runtime.opening import TOMBSTONES_SURE_S
from logflume.streams.runtime.outputs import Columns
from logflume.streams.runtime.problems import DeadLetter, TaskProblems, chunk_of_letters, log_lost_letter
from logflume.streams.runtime.rules import TopicRules
from logflume.streams.runtime.status import LeftOut, added_up
from logflume.streams.runtime.task import Task, task_name
from logflume.streams.runtime.writer import Refused, take
from logflume.streams.seams import SubTopology
from logflume.streams.state import Checkpoint, TaskState, gather
from logflume.streams.state.store import Store
from logflume.streams.state.windows import window_start

FLUSH_RECORDS = 500_000
MEMORY_BYTES = 384 << 20
"""What the stores of a task hold in memory: of 2.5 M keys a task, an executor of Spark (512 MB of heap) takes 1.4 GB with it."""

Work = Callable[[Task, TaskState], Iterator[tuple[int, int]]]
"""Does something with a task and its stores, bit by bit; yields (records, changes) of each bit."""
_Changed = dict[str, dict[bytes, None] | None]
"""Store -> the keys that have changed; None: of all that it holds afterwards."""
Ordered = tuple[Chunk, I64]
"""A chunk, and the times in ms by which its records come among those of other inputs."""


@dataclass(frozen=True, slots=True)
class OutputRows:
    """Records for one output node, in order.

    `times_ms`: for a repartition topic, the task's running maximum of time at the cause of each record; else None.
    `causes`: of one slice of a task, the places of their causes in the order of the task (`runtime.outputs.Columns`); else None.
    """

    node: str
    records: Chunk
    times_ms: I64 | None
    causes: I64 | None = None

    def __len__(self) -> int:
        return len(self.records)


@dataclass(frozen=True, slots=True)
class LetterRows:
    """Records that could not be processed, for their topic."""

    records: Chunk


@dataclass(frozen=True, slots=True)
class ChangelogRows:
    """Changed entries of one store as they go to its changelog: aligned keys, values (None: deleted) and timestamps in ms."""

    store: str
    keys: list[bytes]
    values: list[bytes | None]
    timestamps_ms: list[int]


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """The end of a step: positions and times of the task, how many records of source topics it took, and how many records were
    left out, by reason and by place.
    """

    checkpoint: Checkpoint
    records: int
    problems: Mapping[str, int]
    left_out: tuple[LeftOut, ...] = ()

    def with_counts_of(self, other: TaskEnd) -> TaskEnd:
        """Return this end, with what the other has counted too."""
        problems = Counter(other.problems) + Counter(self.problems)
        left_out = added_up((*other.left_out, *self.left_out))
        return TaskEnd(self.checkpoint, other.records + self.records, problems, left_out)


def joined_ends(ends: Iterable[TaskEnd]) -> list[TaskEnd]:
    """Return the ends of tasks, one each of what their slices gave: all of these come to the same positions and times."""
    found: dict[tuple[TopicPartition, ...], TaskEnd] = {}
    for end in ends:
        which = tuple(sorted(end.checkpoint.inputs))
        other = found.get(which)
        if other is None:
            found[which] = end
            continue
        assert other.checkpoint == end.checkpoint, "slices of a task see all of its records"
        found[which] = end.with_counts_of(other)
    return list(found.values())


def later_ends(ends: Iterable[TaskEnd], later: Iterable[TaskEnd]) -> list[TaskEnd]:
    """Return where tasks are after two steps, and what they have counted in both; to some nothing has come in one of them."""
    found = {tuple(sorted(end.checkpoint.inputs)): end for end in ends}
    for end in later:
        which = tuple(sorted(end.checkpoint.inputs))
        found[which] = end.with_counts_of(found[which]) if which in found else end
    return list(found.values())


@dataclass(slots=True)
class ReplayInput:
    """One input of a task: chunks in offset order, and `end`, its position afterwards.

    For a range of the log that is the cut. The records of a repartition topic never are in that topic: it stays as it is.
    """

    partition: TopicPartition
    chunks: Iterator[Ordered]
    end: int
    is_exhausted: bool = False
    is_source: bool = True
    """Whether its records count as input: those of a repartition topic did where they came from."""


@dataclass(frozen=True, slots=True)
class TableInput:
    """One partition of a global table: its records from an offset on, and `end`, the offset up to which it is taken."""

    partition: TopicPartition
    read: Callable[[int], Iterator[Chunk]]
    end: int


@dataclass(slots=True)
class Replay:
    """One step of one task. Iterate over it once: output rows and dead letters as they come, then changelog rows, then the
    `TaskEnd`; or over `paced`, which also gives None whenever it has processed what it took of its inputs.

    `state_dir`: where the task's stores are. A directory that stands at `start` is continued; any other (an executor that has not
    run this task before, or a step that was tried and not committed) is emptied and rebuilt from what `stored` yields for each
    store: the records of its changelog, or of its table source up to `start`.
    `work`: what to do instead of processing the inputs (see `partials.Merging`); yields (records, changes) as it goes on.
    `tables`: global tables, which are taken up to their ends before the first record of an input; a directory that is continued
    goes on where it had come to in them. If that is beyond their ends, or so long ago that compaction may have removed tombstones
    since, it is emptied too.
    `own`: the slice of the task to run; the records that it takes are counted by the first slice.
    `following`: see `runtime.task.Task`. `is_ahead`: whether all of it is computed again (`turns.Turn`): output rows alone come,
    and what is left out is not told.
    `rules`: topics of results -> what these do not take. `dead_letter_topic`: where records go that cannot be processed, or that
    their topic does not take; None: they are counted only.
    """

    subtopology: SubTopology
    partition: int
    inputs: list[ReplayInput]
    application: str
    state_dir: Path
    start: Checkpoint = field(default_factory=Checkpoint)
    stored: Callable[[str], Iterable[Chunk]] = lambda _: ()
    flush_records: int = FLUSH_RECORDS
    memory_bytes: int = MEMORY_BYTES
    work: Work | None = None
    tables: Sequence[TableInput] = ()
    own: Slice | None = None
    following: tuple[str, ...] = ()
    is_ahead: bool = False
    handlers: Handlers = SKIPPING
    rules: Mapping[str, TopicRules] = field(default_factory=dict)
    dead_letter_topic: str | None = None
    read_records: int = 0

    def __iter__(self) -> Iterator[OutputRows | LetterRows | ChangelogRows | TaskEnd]:
        return (part for part in self.paced() if part is not None)

    def paced(self) -> Iterator[OutputRows | LetterRows | ChangelogRows | TaskEnd | None]:
        """See the class."""
        name = task_name(self.subtopology, self.partition)
        state = self._open(name)
        try:
            if state.checkpoint.inputs != self.start.inputs or not self._goes_on(state.checkpoint):
                state.close()
                shutil.rmtree(self.state_dir)
                state = self._open(name)
                is_new = True
            else:
                is_new = False
            for store_name, time_ms in self.start.store_times_ms.items():
                state.stores[store_name].stream_time_ms = time_ms
            yield from self._run(name, state, is_new)
        finally:
            state.close()

    def _open(self, name: str) -> TaskState:
        specs = self.subtopology.program.stores
        return TaskState(self.state_dir, application=self.application, task=name, specs=specs, memory_bytes=self.memory_bytes)

    def _goes_on(self, checkpoint: Checkpoint) -> bool:
        """Return whether what is held of global tables is brought up to date by the records that follow."""
        is_stale = time.time() - checkpoint.written_s > TOMBSTONES_SURE_S
        held = [(checkpoint.tables[each.partition], each.end) for each in self.tables if each.partition in checkpoint.tables]
        return all(at <= end and not (is_stale and at < end) for at, end in held)

    def _rebuild(self, task: Task, state: TaskState) -> None:
        """Fill the stores of an empty directory as of `start`, those of global tables apart."""
        for store_name, store in state.stores.items():
            if store_name in self.subtopology.global_stores():
                continue
            node = self.subtopology.table_sources.get(store_name)
            if node is None:
                for chunk in gather(self.stored(store_name), state.gather_bytes):
                    state.restore(store, chunk, state.checkpoint)
                continue
            for chunk in self.stored(store_name):
                task.function.restore(node, chunk, 0, len(chunk))
                state.commit(state.encode_dirty(), state.checkpoint)

    def _load_tables(self, task: Task, state: TaskState) -> Iterator[None]:
        """Take what there is of the global tables."""
        nodes = {topic: node for node, topic in self.subtopology.program.sources.items()}
        since_flush = 0
        for each in self.tables:
            for chunk in each.read(task.tables.get(each.partition, 0)):
                task.take_table(nodes[each.partition.topic], chunk)
                since_flush += len(chunk)
                if since_flush >= self.flush_records:
                    since_flush = 0
                    self._commit_tables(task, state)
                yield None
            task.tables[each.partition] = each.end  # the last chunk may reach beyond
        if self.tables:
            self._commit_tables(task, state)

    def _commit_tables(self, task: Task, state: TaskState) -> None:
        """Write what was taken of global tables; the stores stand where they stood otherwise."""
        state.commit(state.encode_dirty(), replace(state.checkpoint, tables=dict(task.tables)))

    def _run(
        self, name: str, state: TaskState, is_new: bool
    ) -> Iterator[OutputRows | LetterRows | ChangelogRows | TaskEnd | None]:
        problems = TaskProblems(
            name,
            handlers=self.handlers,
            keeps_letters=self.dead_letter_topic is not None and not self.is_ahead,
            application=self.application,
            is_silent=self.is_ahead,
        )
        sources = self.subtopology.program.sources
        by_topic = {each.partition.topic: each for each in self.inputs}
        task = Task(
            self.subtopology,
            self.partition,
            inputs={node: by_topic[topic].partition for node, topic in sources.items() if topic in by_topic},
            state=state,
            problems=problems,
            checkpoint=replace(self.start, tables=state.checkpoint.tables),
            following=self.following,
        )
        assert isinstance(task.function, BoundProgram)
        task.function.stop_clock()
        if self.own is not None:
            task.function.restrict(self.own)
            task.outputs.keeps_causes = True
        if is_new:
            self._rebuild(task, state)
        yield from self._load_tables(task, state)
        changed: _Changed = {store: None if self._is_from_nothing else {} for store in state.stores}
        records = since_flush = 0
        for done, changes in self._process(task) if self.work is None else self.work(task, state):
            records, since_flush = records + done, since_flush + changes
            if since_flush >= self.flush_records:
                since_flush = 0
                yield from self._commit(task, state, changed)
            yield from letter_rows(self.dead_letter_topic, problems.take_letters(), self.rules)  # as they come: there may be many
            yield None
        yield from self._commit(task, state, changed)
        if self.is_ahead:
            return
        end = self._end_checkpoint(task)
        state.commit({}, end)
        is_first = self.own is None or self.own.number == 0
        for store in sorted(set(changed) - set(self.subtopology.table_sources)):
            if is_first or (self.own is not None and store in self.own.region.stores):
                keys = changed[store]
                yield from changelog_of(state, store, None if keys is None else list(keys))
        yield TaskEnd(end, records + self.read_records if is_first else 0, dict(problems.counts), problems.left_out())

    def _process(self, task: Task) -> Iterator[tuple[int, int]]:
        """Process the inputs, stopping at each multiple of `flush_records`."""
        left = self.flush_records
        while self._fetch(task):
            task.plan(self._is_caught_up)
            while task.has_work:
                done = task.process(FOREVER, left)
                left = left - done if done < left else self.flush_records
                yield 0, done

    def _fetch(self, task: Task) -> bool:
        """Give the task a chunk of each input that it has run out of; False when all inputs are exhausted and processed."""
        is_open = False
        for each in self.inputs:
            if each.is_exhausted or not task.inputs[each.partition].is_empty:
                is_open = is_open or not task.inputs[each.partition].is_empty
                continue
            found = next(each.chunks, None)
            if found is None:
                each.is_exhausted = True
            else:
                chunk, times_ms = found
                task.add(chunk, times_ms)
                self.read_records += len(chunk) if each.is_source else 0
            is_open = True
        return is_open

    def _is_caught_up(self, partition: TopicPartition) -> bool:
        return next(each.is_exhausted for each in self.inputs if each.partition == partition)

    @property
    def _is_from_nothing(self) -> bool:
        """Whether all that the stores hold afterwards has changed: millions of keys need not be remembered then."""
        return not self.start.inputs

    def _commit(self, task: Task, state: TaskState, changed: _Changed) -> Iterator[OutputRows | LetterRows]:
        task.flush()
        for columns in task.take_outputs():
            rows = output_rows(columns, is_slice=self.own is not None)
            yield rows if self.is_ahead else accepted(rows, columns.topic, self.rules, task.problems)
        yield from letter_rows(self.dead_letter_topic, task.problems.take_letters(), self.rules)
        dirty = state.encode_dirty()
        for store, entries in dirty.items():
            keys = changed[store]
            if keys is not None:
                keys.update(dict.fromkeys(entries.keys))
        state.commit(dirty, task.checkpoint())

    def _end_checkpoint(self, task: Task) -> Checkpoint:
        now = task.checkpoint()
        ends = {each.partition: each.end for each in self.inputs}
        return Checkpoint(ends, now.input_times_ms, {}, now.store_times_ms, tables=now.tables)


def output_rows(columns: Columns, *, is_slice: bool = False) -> OutputRows:
    """Return what an output node has collected; of a slice with the places of causes, which whole tasks and ranges do without."""
    times = np.concatenate(columns.times_ms) if columns.times_ms else None
    return OutputRows(columns.node, columns.chunk(), times, np.concatenate(columns.causes) if is_slice else None)


def accepted(rows: OutputRows, topic: str, rules: Mapping[str, TopicRules], problems: TaskProblems) -> OutputRows:
    """Return what a topic takes of the records for it; the others are told of, as whoever writes to the log live does."""
    kept = _taken(rows.records, rules.get(topic), partial(problems.refused, rows.node, topic))
    if kept is None:
        return rows
    times, causes = (None if column is None else column[kept] for column in (rows.times_ms, rows.causes))
    return OutputRows(rows.node, take(rows.records, kept), times, causes)


def letter_rows(topic: str | None, letters: Sequence[DeadLetter], rules: Mapping[str, TopicRules]) -> Iterator[LetterRows]:
    """Yield dead letters as records for their topic, if there are any; what even that does not take is logged."""
    if letters:
        assert topic is not None, "they are not kept without a topic"
        chunk = chunk_of_letters(topic, letters)
        kept = _taken(chunk, rules.get(topic), log_lost_letter)
        yield LetterRows(chunk if kept is None else take(chunk, kept))


def _taken(chunk: Chunk, rules: TopicRules | None, refused: Refused) -> NDArray[np.intp] | None:
    """Return which records a topic takes, None: all; tell of the others."""
    now_ms = int(time.time() * 1000)
    found = [] if rules is None else rules.refused(chunk, now_ms)
    for at, why in found:
        refused(next(chunk.slice(at, at + 1).records()), why)
    return np.delete(np.arange(len(chunk)), [at for at, _ in found]) if found else None


def changelog_of(
    state: TaskState, store: str, keys: list[bytes] | None, *, batch_records: int = 50_000
) -> Iterator[ChangelogRows]:
    """Yield the changelog records of these keys of a store as of its last commit (None: of all that it holds); nothing for
    expired windows.

    They are what is on disk, byte for byte, or a tombstone.
    """
    found = state.stores[store]
    layout, decode = found.layout, found.codec.decode
    rows = found.scan_encoded() if keys is None else _on_disk(state, found, keys, batch_records)
    if layout is not None:
        alive = layout.oldest_alive(found.stream_time_ms)
        rows = ((key, value) for key, value in rows if value is not None and window_start(key) >= alive)
    while part := list(islice(rows, batch_records)):
        times = [0 if value is None else max(decode(value).timestamp_ms, 0) for _, value in part]
        yield ChangelogRows(store, [key for key, _ in part], [value for _, value in part], times)


def _on_disk(state: TaskState, store: Store, keys: list[bytes], batch_records: int) -> Iterator[tuple[bytes, bytes | None]]:
    for at in range(0, len(keys), batch_records):
        part = keys[at : at + batch_records]
        yield from zip(part, state.db.get_many([store.disk_key(key) for key in part]), strict=True)


def by_own_times(chunks: Iterable[Chunk]) -> Iterator[Ordered]:
    """Yield chunks whose records come by their timestamps."""
    return ((chunk, chunk.timestamps_ms) for chunk in chunks)


def chunk_of_rows(
    tp: TopicPartition,
    offset: int,
    keys: list[bytes | None],
    values: list[bytes | None],
    timestamps_ms: list[int],
    headers: list[Headers] | None,
) -> Chunk:
    """Return rows of a repartition topic as the chunk that would be read back from it, with offsets from `offset` on."""
    chunk = Chunk.from_columns(tp.topic, keys, values, timestamps_ms, partition=tp.partition, headers=headers)
    chunk.offsets = chunk.offsets + offset
    chunk.next_offset = offset + len(keys)
    return chunk
