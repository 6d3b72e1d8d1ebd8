"""Shares out tasks among the members of a streams group (KIP-1071, `sticky`). Pure functions.

Active tasks go back to who had them, else to who had a standby, as long as that member has not got its share; the rest goes to
the process with the least load (tasks per member), and there to the member with fewest. Standby tasks follow by the same rules,
never two of one task in one process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Task = tuple[str, int]
"""Sub-topology id and partition."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks of a member."""

    active: frozenset[Task] = frozenset()
    standby: frozenset[Task] = frozenset()


NO_TASKS = Tasks()


def assign_sticky(
    processes: Mapping[str, str],
    task_counts: Mapping[str, int],
    stateful: frozenset[str],
    before: Mapping[str, Tasks],
    *,
    standby_replicas: int,
) -> dict[str, Tasks]:
    """Return the tasks of every member.

    Args:
        processes: member id -> process id.
        task_counts: sub-topology id -> number of tasks.
        stateful: the sub-topologies with state, whose tasks may have standbys.
        before: member id -> what it had.

    >>> assign_sticky({"a": "p", "b": "q"}, {"0": 2}, frozenset(), {}, standby_replicas=0)["a"].active
    frozenset({('0', 0)})
    """
    if not processes:
        return {}
    active = [(each, index) for each, count in task_counts.items() for index in range(count)]
    standby = [task for task in active if task[0] in stateful] if standby_replicas else []
    share = _Share(processes, before, len(active), len(active) + len(standby) * standby_replicas)
    share.give_active(active)
    share.give_standby(standby, standby_replicas)
    return {member: Tasks(frozenset(share.active[member]), frozenset(share.standby[member])) for member in processes}


@dataclass(slots=True)
class _Quota:
    """How many tasks a member may get: those left over the members left, rounded up. Members that reached it are out."""

    tasks: int
    members: int

    @property
    def size(self) -> int:
        return -(-self.tasks // self.members) if self.members else 0

    def note(self, count: int) -> None:
        """Note that a member now has so many."""
        if self.members and count == self.size:
            self.members -= 1
            self.tasks -= count


@dataclass(slots=True)
class _Process:
    """The members of one process and the tasks in it. Invariant: a task is there once."""

    members: list[str] = field(default_factory=list)
    tasks: set[Task] = field(default_factory=set)
    count: int = 0

    @property
    def load(self) -> float:
        return self.count / len(self.members)


class _Share:
    def __init__(self, processes: Mapping[str, str], before: Mapping[str, Tasks], active: int, total: int) -> None:
        self.active: dict[str, set[Task]] = {member: set() for member in processes}
        self.standby: dict[str, set[Task]] = {member: set() for member in processes}
        self._processes: dict[str, _Process] = {}
        self._process_of: dict[str, _Process] = {}
        self._active_before: dict[Task, str] = {}
        self._standby_before: dict[Task, list[str]] = {}
        self._active_quota, self._total_quota = _Quota(active, len(processes)), _Quota(total, len(processes))
        for member in sorted(processes):
            process = self._processes.setdefault(processes[member], _Process())
            process.members.append(member)
            self._process_of[member] = process
            had = before.get(member, NO_TASKS)
            self._active_before.update(dict.fromkeys(had.active, member))
            for task in had.standby:
                self._standby_before.setdefault(task, []).append(member)

    def give_active(self, tasks: Iterable[Task]) -> None:
        ordered = sorted(tasks, key=lambda task: (task[1], task[0]))
        rest = [task for task in ordered if not self._give_back(task, self._active_before.get(task))]
        rest = [task for task in rest if not self._give_back(task, self._least_loaded(self._standby_before.get(task, ())))]
        for task in sorted(rest):
            self._put(min(self._processes.values(), key=lambda process: process.load), task, self.active)

    def give_standby(self, tasks: Iterable[Task], replicas: int) -> None:
        rest: list[tuple[Task, int]] = []
        for task in sorted(tasks, key=lambda task: (task[1], task[0]), reverse=True):
            left = replicas
            while left and self._give_back_standby(task):
                left -= 1
            if left:
                rest.append((task, left))
        for task, left in sorted(rest, reverse=True):
            for _ in range(left):
                able = [process for process in self._processes.values() if task not in process.tasks]
                if not able:
                    break
                self._put(min(able, key=lambda process: process.load), task, self.standby)

    def _give_back(self, task: Task, member: str | None) -> bool:
        """Give an active task to a member that knows it, unless it has its share."""
        if member is None or self._count(member) >= self._active_quota.size:
            return False
        self._add(member, task, self.active)
        return True

    def _give_back_standby(self, task: Task) -> bool:
        """Give a standby to a member that had the task in one role or the other; whether one could take it."""
        known = [self._active_before.get(task), self._least_loaded(self._standby_before.get(task, ()), without=task)]
        for member in known:
            if member is None or task in self._process_of[member].tasks or self._count(member) >= self._total_quota.size:
                continue
            self._add(member, task, self.standby)
            return True
        return False

    def _least_loaded(self, members: Iterable[str], *, without: Task | None = None) -> str | None:
        able = [member for member in members if without is None or without not in self._process_of[member].tasks]
        return min(able, key=lambda member: (self._process_of[member].load, self._count(member)), default=None)

    def _put(self, process: _Process, task: Task, role: dict[str, set[Task]]) -> None:
        self._add(min(process.members, key=self._count), task, role)

    def _add(self, member: str, task: Task, role: dict[str, set[Task]]) -> None:
        process = self._process_of[member]
        role[member].add(task)
        process.tasks.add(task)
        process.count += 1
        if role is self.active:
            self._active_quota.note(self._count(member))
        self._total_quota.note(self._count(member))

    def _count(self, member: str) -> int:
        return len(self.active[member]) + len(self.standby[member])
