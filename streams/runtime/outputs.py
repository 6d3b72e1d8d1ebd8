"""What the tasks of one sub-topology put out in one slice of time, and in which order it goes to its topics. (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from logflume.log import InvalidInput
from logflume.log.records import I64, Headers
from logflume.streams.seams import OutputTopic

from .merge import Run


@dataclass(slots=True)
class Columns:
    """Records for one topic: aligned keys, values, timestamps in ms, headers (None: none at all) and causes.

    `times_ms`: for each block of records with causes, the task's running maximum of time at each record's cause.
    """

    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    timestamps_ms: list[int] = field(default_factory=list)
    headers: list[Headers] | None = None
    times_ms: list[I64] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.values)


class TaskOutputs:
    """The `Outputs` of one task: collects columns per output node until the engine takes them."""

    def __init__(self, topics: Mapping[str, OutputTopic]) -> None:
        self._topics = topics
        self._columns: dict[str, Columns] = {}
        self.run: Run | None = None
        self.time_ms = -1

    def send(
        self,
        node: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps_ms: Sequence[int],
        *,
        headers: Sequence[Headers] | None = None,
        causes: Sequence[int] | None = None,
    ) -> None:
        """Take records of an output node (see `streams.seams.Outputs`)."""
        if not values:
            return
        if node not in self._topics:
            raise InvalidInput(f"the program put out records for node {node!r}, which has no topic in the plan")
        columns = self._columns.get(node)
        if columns is None:
            columns = self._columns[node] = Columns()
        before = len(columns)
        columns.keys += keys
        columns.values += values
        columns.timestamps_ms += timestamps_ms
        if headers is not None or columns.headers is not None:
            columns.headers = (columns.headers or [()] * before) + list(headers or [()] * len(values))
        if self._topics[node].is_repartition:
            columns.times_ms.append(self._times(causes, len(values)))

    def _times(self, causes: Sequence[int] | None, count: int) -> I64:
        """Return the running maximum of time at each cause; at flush, as of now."""
        if causes is None or self.run is None:
            return np.full(count, self.time_ms, np.int64)
        return self.run.times_ms[np.asarray(causes, np.int64) - self.run.start]

    def take(self) -> dict[str, Columns]:
        """Return what has been collected per node, and start anew."""
        taken, self._columns = self._columns, {}
        return taken


def merge_by_time(parts: Sequence[Columns]) -> Columns:
    """Merge the outputs of tasks, given in order of partition, by the time of what caused them.

    Inside one task the order stays (times never fall); between tasks ties go to the lower partition. So a repartition topic
    gets the same order whichever task ran first.
    """
    if len(parts) == 1:
        return parts[0]
    times = np.concatenate([block for part in parts for block in part.times_ms])
    order = np.argsort(times, kind="stable").tolist()
    merged = Columns()
    keys = [key for part in parts for key in part.keys]
    values = [value for part in parts for value in part.values]
    timestamps = [timestamp for part in parts for timestamp in part.timestamps_ms]
    merged.keys = [keys[i] for i in order]
    merged.values = [values[i] for i in order]
    merged.timestamps_ms = [timestamps[i] for i in order]
    if any(part.headers is not None for part in parts):
        headers = [each for part in parts for each in (part.headers or [()] * len(part))]
        merged.headers = [headers[i] for i in order]
    return merged
