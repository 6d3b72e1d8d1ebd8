"""Runs steps in this process, one stream task after another, without Spark: for a history that one core can take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from logflume.streams.seams import Plan

from .replay import TaskEnd
from .steps import Progress, RowKind, StepPlan, TaskRunner, decode_end, in_order, repartition_input

_ORDER = [("partition", "ascending"), ("time_ms", "ascending"), ("task", "ascending"), ("seq", "ascending")]


@dataclass(frozen=True, slots=True)
class LocalResult:
    """Rows in memory."""

    ends: list[TaskEnd]
    parts: list[Any]

    def tables(self) -> Iterator[Any]:
        """Yield sink and changelog rows, task by task."""
        yield from self.parts

    def release(self) -> None:
        """Forget the rows."""
        self.parts.clear()


@dataclass(frozen=True, slots=True)
class LocalRunner:
    """The `StepRunner` without Spark. All rows that leave tasks are held in memory."""

    def run(self, step: StepPlan, plan: Plan, on_progress: Callable[[Progress], None]) -> LocalResult:
        """Compute a step."""
        import pyarrow as pa

        shuffled: dict[str, list[Any]] = {}
        result = LocalResult([], [])
        for sub in in_order(plan):
            repartition = repartition_input(sub, plan)
            count = max(step.partitions[topic] for topic in sub.program.sources.values())
            if repartition is None:
                batches = [pa.RecordBatch.from_pydict({"partition": pa.array([p], pa.int32())}) for p in range(count)]
            else:
                rows = shuffled.pop(repartition, [])
                batches = pa.Table.from_batches(rows).sort_by(_ORDER).to_batches() if rows else []
            for number, batch in enumerate(TaskRunner(step, sub.name, repartition)(iter(batches)), 1):
                kind, name = batch.column("kind")[0].as_py(), batch.column("name")[0].as_py()
                if kind == RowKind.END:
                    result.ends.extend(decode_end(value) for value in batch.column("value").to_pylist())
                elif kind == RowKind.REPARTITION:
                    shuffled.setdefault(name, []).append(batch)
                else:
                    result.parts.append(pa.Table.from_batches([batch]))
                on_progress(Progress(f"{sub.name}: blocks of rows", number, 0))
        return result
