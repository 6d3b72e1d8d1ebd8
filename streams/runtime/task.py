"""A task: one sub-topology x one partition number, with its inputs, its stores and its bound program.

Knows no log and no group: the engine hands it chunks and takes its outputs. One thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from logflume.log import LogflumeError
from logflume.log.records import I64, Chunk, TopicPartition
from logflume.streams.seams import SubTopology, Taken, TaskFunction
from logflume.streams.state import Checkpoint, TaskState

from .handlers import StreamsError
from .merge import FOREVER, Input, Merger, Round, Run
from .outputs import Columns, TaskOutputs
from .problems import Place, TaskProblems


@dataclass(slots=True)
class TaskCounts:
    """What a task has done since it was opened. `repartitioned`: records read that an own repartition topic brought."""

    records_in: int = 0
    bytes_in: int = 0
    records_out: int = 0
    repartitioned: int = 0

    def since(self, before: TaskCounts) -> Counter[str]:
        """Return by how much each count has grown."""
        return Counter({each.name: getattr(self, each.name) - getattr(before, each.name) for each in fields(self)})


@dataclass(frozen=True, slots=True)
class Ending:
    """A log transaction whose end is not known yet: it has happened if the offset of `partition` is `offset` or more.

    `counts` and `dropped`: what the task counts in it.
    """

    partition: TopicPartition
    offset: int
    counts: Counter[str]
    dropped: Counter[Place]


class Task:
    """See the module. `changelogs`: store -> next offset of its changelog, kept up by the committer.

    `tables`: next offset to read of each partition of a global table. `following`: topics with ranks from 1 on (`merge.Input`).
    """

    def __init__(
        self,
        subtopology: SubTopology,
        partition: int,
        *,
        inputs: Mapping[str, TopicPartition],
        state: TaskState | None,
        problems: TaskProblems,
        checkpoint: Checkpoint,
        repartition_topics: Collection[str] = (),
        following: Sequence[str] = (),
    ) -> None:
        self.subtopology = subtopology
        self.partition = partition
        self.name = task_name(subtopology, partition)
        self.state = state
        self.problems = problems
        self._repartition_topics = repartition_topics
        self.outputs = TaskOutputs(subtopology.outputs)
        self.counts = TaskCounts()
        self.committed = TaskCounts()
        self.committed_problems: Counter[Place] = Counter()
        self.ending: Ending | None = None
        self.changelogs = dict(checkpoint.changelogs)
        self.tables = dict(checkpoint.tables)
        by_partition: dict[TopicPartition, list[str]] = {}
        for node, source in inputs.items():
            by_partition.setdefault(source, []).append(node)
        self.inputs: dict[TopicPartition, Input] = {
            source: Input(
                tuple(nodes),
                source,
                position=checkpoint.inputs.get(source, 0),
                time_ms=checkpoint.input_times_ms.get(source, -1),
                rank=following.index(source.topic) + 1 if source.topic in following else 0,
            )
            for source, nodes in by_partition.items()
        }
        self.merger = Merger(list(self.inputs.values()), takes_together=subtopology.program.takes_together)
        self.has_changes = False
        self.has_begun = False
        """Whether the program knows the time of the wall clock: it must before the first record."""
        stores = state.stores if state else {}
        self.function: TaskFunction = subtopology.program.bind(stores, self.outputs, problems)

    # -- taking records --------------------------------------------------------------------------------------------------

    def add(self, chunk: Chunk, times_ms: I64 | None = None) -> None:
        """Buffer a fetched chunk of one of the inputs; `times_ms`: see `merge.Input.add`."""
        if self.inputs[TopicPartition(chunk.topic, chunk.partition)].add(chunk, times_ms):
            self.has_changes = True

    def miss(self, source: TopicPartition, start: int, stop: int) -> None:
        """Count records of an input that the log deleted before they were read."""
        self.problems.missed(self.inputs[source].nodes[0], source, start, stop)

    def take_table(self, node: str, chunk: Chunk) -> None:
        """Take the records of a global table's partition that are not in its store yet. Raises as `process`."""
        source = TopicPartition(chunk.topic, chunk.partition)
        start = int(chunk.offsets.searchsorted(self.tables.get(source, 0)))
        self.problems.chunks = [chunk]
        try:
            if start < len(chunk):
                self.function.process(node, chunk, start, len(chunk))
        except LogflumeError:
            raise
        except Exception as error:
            where = f"{chunk.topic}-{chunk.partition} from offset {chunk.offsets[start]}"
            raise StreamsError.of(error, f"task {self.name}", f"while taking {where} into a table") from error
        self.tables[source] = max(chunk.next_offset, self.tables.get(source, 0))
        self.has_changes = True

    def plan(self, is_caught_up: Callable[[TopicPartition], bool]) -> None:
        """Decide the order of what is buffered, as far as it is certain."""
        self.merger.plan(is_caught_up)

    def frontier(self) -> tuple[int, int]:
        """Return (time, partition): what comes later than what is planned lies not before this; far away when caught up."""
        return (self.merger.time_ms, self.partition) if self.merger.is_blocked else FOREVER

    def horizon(self, records: int) -> tuple[int, int]:
        """Return (time, partition) up to which there are about so many planned records; far away when there are fewer."""
        left = records
        for run in self.merger.runs:
            if len(run) >= left:
                return int(run.times_ms[left - 1]), self.partition
            left -= len(run)
        return FOREVER

    @property
    def has_work(self) -> bool:
        return bool(self.merger.runs)

    def process(self, limit: tuple[int, int], max_records: int) -> int:
        """Process planned records up to a (time, partition) inclusive, at most about `max_records`; return how many.

        Raises:
            StreamsError: the program failed; names task, topic, partition and offsets.
        """
        done = 0
        runs = self.merger.runs
        last_time = limit[0] if self.partition <= limit[1] else limit[0] - 1
        while runs and done < max_records:
            run = runs.popleft()
            count = min(int(run.times_ms.searchsorted(last_time, side="right")), max_records - done)
            if count < len(run):
                if count == 0:
                    runs.appendleft(run)
                    break
                run, later = run.split(count)
                runs.appendleft(later)
            self._process_run(run)
            done += len(run)
        return done

    def _process_run(self, run: Run | Round) -> None:
        parts = run.parts()
        self.problems.chunks = [part.chunk for part in parts]
        self.outputs.begin(run)
        try:
            if isinstance(run, Run) and len(run.input.nodes) == 1:
                self.function.process(run.input.nodes[0], run.chunk, run.start, run.stop)
            else:
                at = run.places if isinstance(run, Round) else [np.arange(run.start, run.stop)]
                self.function.process_together(
                    [
                        Taken(node, part.chunk, part.start, part.stop, places)
                        for part, places in zip(parts, at, strict=True)
                        for node in part.input.nodes
                    ]
                )
        except LogflumeError:
            raise
        except Exception as error:
            what = " and ".join(map(_offsets, parts))
            raise StreamsError.of(error, f"task {self.name}", f"while processing {what}") from error
        self.outputs.end(run)
        for part in parts:
            part.input.processed(part)
            if part.input.partition.topic in self._repartition_topics:
                self.counts.repartitioned += len(part)
            else:
                self.counts.records_in += len(part)
            self.counts.bytes_in += len(part.chunk.buffer) * len(part) // len(part.chunk)
        self.has_changes = True

    def advance(self, now_ms: int) -> None:
        """Tell the program the time of the wall clock; what is due by it is put out."""
        self.has_begun = True
        try:
            self.function.advance(now_ms)
        except LogflumeError:
            raise
        except Exception as error:
            raise StreamsError.of(error, f"task {self.name}", "as time goes on") from error
        stores = self.state.stores.values() if self.state else ()
        if self.outputs.has_any or any(store.has_changes for store in stores):
            self.has_changes = True

    def flush(self) -> None:
        """Let the program put out what leaves at task commit."""
        try:
            self.function.flush()
        except LogflumeError:
            raise
        except Exception as error:
            raise StreamsError.of(error, f"task {self.name}", "at task commit") from error

    def take_outputs(self) -> list[Columns]:
        """Return the outputs since the last call, per output node and topic."""
        taken = self.outputs.take()
        outputs = self.subtopology.outputs
        self.counts.records_out += sum(len(each) for each in taken if not outputs[each.node].is_repartition)
        return taken

    def will_commit(self) -> None:
        """Note that the log transaction with everything up to here is about to end."""
        partition, source = next(iter(self.inputs.items()))
        self.ending = Ending(
            partition,
            source.position,
            self.counts.since(self.committed),
            self.problems.places - self.committed_problems,
        )

    def has_committed(self) -> None:
        """Note that everything up to here is durable."""
        self.has_changes, self.ending = False, None
        self.committed = replace(self.counts)
        self.committed_problems = Counter(self.problems.places)

    # -- commit ----------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """Return positions and times as of now."""
        return Checkpoint(
            {partition: each.position for partition, each in self.inputs.items()},
            {partition: each.time_ms for partition, each in self.inputs.items()},
            dict(self.changelogs),
            {name: store.stream_time_ms for name, store in self.state.stores.items()} if self.state else {},
            tables=dict(self.tables),
        )

    @property
    def buffered_records(self) -> int:
        return sum(each.buffered_records for each in self.inputs.values())


def _offsets(run: Run) -> str:
    chunk = run.chunk
    return f"{chunk.topic}-{chunk.partition} offsets {chunk.offsets[run.start]} to {chunk.offsets[run.stop - 1]}"


def task_name(subtopology: SubTopology, partition: int) -> str:
    """Return a task's name, which is also that of its state directory."""
    return f"{subtopology.name}.{partition}"
