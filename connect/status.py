"""What a worker says about its connectors, as data: one honest state each, the worst of its tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class State(StrEnum):
    """Kafka Connect's states and COMPLETED: a bounded source that was read to its end."""

    UNASSIGNED = "UNASSIGNED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    RESTARTING = "RESTARTING"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    COMPLETED = "COMPLETED"


_WORST_FIRST = (
    State.FAILED,
    State.RESTARTING,
    State.UNASSIGNED,
    State.STOPPED,
    State.PAUSED,
    State.RUNNING,
    State.COMPLETED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """One task.

    Attributes:
        records: records acknowledged by the log (source) or safe in the target (sink) since the worker started.
        broken: rows or records that could not be processed and were kept in the dead-letter topic.
        rate: records per second, over the last few seconds.
        done, total: progress in the unit of the source (bytes or rows; offsets for a sink); total None when it is not known.
        cause: why it failed last, secrets masked.
        restarts: how often it was started again; next_restart_s: seconds until the next time (RESTARTING only).
    """

    task: int
    state: State
    records: int = 0
    broken: int = 0
    rate: float = 0.0
    done: int = 0
    total: int | None = None
    cause: str | None = None
    restarts: int = 0
    next_restart_s: float = 0.0

    @property
    def fraction(self) -> float | None:
        """Part done, 0..1; None when the total is not known."""
        return min(self.done / self.total, 1.0) if self.total else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorStatus:
    """One connector. `guarantee` is what its records can rely on ("exactly-once", "at-least-once")."""

    name: str
    connector: str
    kind: str
    guarantee: str
    tasks: tuple[TaskStatus, ...]
    topics: tuple[str, ...] = ()
    config: dict[str, str] = field(default_factory=dict)
    eta_s: float | None = None

    @property
    def state(self) -> State:
        """The worst state of its tasks; UNASSIGNED when it has none."""
        return worst(task.state for task in self.tasks)

    @property
    def records(self) -> int:
        return sum(task.records for task in self.tasks)

    @property
    def broken(self) -> int:
        return sum(task.broken for task in self.tasks)

    @property
    def rate(self) -> float:
        return sum(task.rate for task in self.tasks)

    @property
    def cause(self) -> str | None:
        """The cause of the worst task that has one."""
        ranked = sorted(self.tasks, key=lambda task: _WORST_FIRST.index(task.state))
        return next((task.cause for task in ranked if task.cause), None)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-ready data, in the shape of Kafka Connect's status with the figures beside."""
        return {
            "name": self.name,
            "type": self.kind,
            "connector": {"plugin": self.connector, "state": self.state.value, "guarantee": self.guarantee},
            "topics": list(self.topics),
            "records": self.records,
            "broken": self.broken,
            "records_per_second": round(self.rate, 1),
            "eta_s": self.eta_s,
            "tasks": [
                {
                    "id": task.task,
                    "state": task.state.value,
                    "records": task.records,
                    "broken": task.broken,
                    "done": task.done,
                    "total": task.total,
                    "restarts": task.restarts,
                    "next_restart_s": task.next_restart_s,
                    **({"trace": task.cause} if task.cause else {}),
                }
                for task in self.tasks
            ],
        }


def worst(states: Iterable[State]) -> State:
    """Return the worst of the states; UNASSIGNED for none.

    >>> worst([State.RUNNING, State.FAILED])
    <State.FAILED: 'FAILED'>
    """
    present = set(states)
    return next((state for state in _WORST_FIRST if state in present), State.UNASSIGNED)
