"""What an engine is doing, as data: for live tables, logs and metrics."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

_LATENCIES_KEPT = 512


class EngineState(StrEnum):
    """STARTING: topics and group. RESTORING: at least one task waits for its stores. FAILED: see `error`."""

    STARTING = "starting"
    REBALANCING = "rebalancing"
    RESTORING = "restoring"
    RUNNING = "running"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class InputStatus:
    """One input partition. `position`: next offset to process; `lag_records` None: not known yet.

    `lag_ms`: how far the last record processed lies behind the clock, 0 when there is no other; None: not known.
    """

    topic: str
    partition: int
    position: int
    lag_records: int | None
    buffered_records: int
    lag_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Records that a node left out for a reason. `first`: the first of them and its cause.

    `topic`: what they were read from, for `refused` what they were for; empty: no topic, or records say it themselves.
    """

    node: str
    topic: str
    reason: str
    records: int
    first: str = ""

    def __str__(self) -> str:
        where = f"{self.node}, topic {self.topic}" if self.topic else self.node
        return f"{self.records:,} {self.reason} at {where}"


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """One task. `dropped`: reason -> records left out. `stream_time_ms` -1: nothing seen yet. `nodes`: rows that left each.

    `records_in` are of the application's own source topics, `repartitioned` those that its own repartition topics bring.
    """

    name: str
    is_restoring: bool
    stream_time_ms: int
    records_in: int
    records_out: int
    dropped: Mapping[str, int]
    inputs: tuple[InputStatus, ...]
    entries_in_memory: int
    state_disk_bytes: int = 0
    nodes: Mapping[str, int] = field(default_factory=dict)
    repartitioned: int = 0


@dataclass(frozen=True, slots=True)
class StandbyStatus:
    """A copy of a task's state. `lag_records`: what it lacks of the changelogs, None: not known yet."""

    name: str
    lag_records: int | None


@dataclass(frozen=True, slots=True)
class BlockedStatus:
    """A task that has been in one call for long. `where`: the function, with its file and line."""

    task: str
    where: str
    lasted_s: float


@dataclass(frozen=True, slots=True)
class CommitStatus:
    """Task commits since the start. Latencies in ms over the last 512."""

    commits: int = 0
    aborts: int = 0
    latency_p50_ms: float = 0.0
    latency_max_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A snapshot. Rates are per second since the engine started processing; totals survive rebalances.

    `instance_id`: of the instance that says it; empty: none does, so that what it has counted is not known.
    `records_in` and `records_out`: of the application's sources and sinks. `repartitioned`: records that went from task to task
    through its repartition topics, counted when they are read. `left_out`: `dropped`, place by place.
    """

    application: str
    state: EngineState
    instance_id: str
    tasks: tuple[TaskStatus, ...] = ()
    records_in: int = 0
    records_out: int = 0
    records_in_per_s: float = 0.0
    records_out_per_s: float = 0.0
    dropped: Mapping[str, int] = field(default_factory=dict)
    lag_records: int | None = None
    commit: CommitStatus = CommitStatus()
    restore_remaining_records: int = 0
    restore_records_per_s: float = 0.0
    standbys: tuple[StandbyStatus, ...] = ()
    blocked: BlockedStatus | None = None
    error: str | None = None
    repartitioned: int = 0
    left_out: tuple[LeftOut, ...] = ()


def added_up(parts: Iterable[LeftOut]) -> tuple[LeftOut, ...]:
    """Return what several have left out, once for each place, the most first.

    >>> [str(each) for each in added_up([LeftOut("count", "t", "late", 2), LeftOut("count", "t", "late", 3)])]
    ['5 late at count, topic t']
    """
    found: dict[tuple[str, str, str], LeftOut] = {}
    for each in parts:
        place = (each.node, each.topic, each.reason)
        before = found.get(place)
        found[place] = each if before is None else replace(before, records=before.records + each.records)
    return tuple(
        sorted(
            (each for each in found.values() if each.records),
            key=lambda each: (-each.records, each.node, each.topic, each.reason),
        )
    )


class CommitTimes:
    """Counts task commits and keeps the latest latencies."""

    def __init__(self) -> None:
        self.commits = 0
        self.aborts = 0
        self._latencies_ms: deque[float] = deque(maxlen=_LATENCIES_KEPT)

    def add(self, latency_s: float) -> None:
        """Count one commit."""
        self.commits += 1
        self._latencies_ms.append(latency_s * 1000)

    def status(self) -> CommitStatus:
        """Return the figures."""
        ordered = sorted(self._latencies_ms)
        if not ordered:
            return CommitStatus(self.commits, self.aborts)
        return CommitStatus(self.commits, self.aborts, ordered[len(ordered) // 2], ordered[-1])


class RateMeter:
    """Records per second over about the last two seconds."""

    def __init__(self, now_s: float) -> None:
        self._marks: deque[tuple[float, int]] = deque([(now_s, 0)], maxlen=64)

    def mark(self, now_s: float, total: int) -> None:
        """Note the total at a time; at most one mark per 100 ms is kept."""
        if now_s - self._marks[-1][0] >= 0.1:
            self._marks.append((now_s, total))
            while len(self._marks) > 2 and now_s - self._marks[1][0] > 2.0:
                self._marks.popleft()

    def rate(self, now_s: float, total: int) -> float:
        """Return the rate up to now."""
        then_s, before = self._marks[0]
        return (total - before) / max(now_s - then_s, 1e-3)
