"""A streams group as data, and how a member moves towards its target tasks. No timers or journal here.

As in a consumer group each member gives up first, and gets a task only when it is free: an active task when nobody has it, any
task when its own process has it in no other role, for the members of a process share its directory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from ...deadline import Deadline
from ...seams import JournalRecord, Reply
from ..ports import Topics
from .assignor import NO_TASKS, Task, Tasks
from .configured import Configured
from .records import StreamsCurrentValue, StreamsMemberValue
from .topology import Topology

NEVER = -1


class TaskState(IntEnum):
    """Where a member is on its way to the target; the number is that of the journal."""

    STABLE = 1
    UNREVOKED_TASKS = 2
    UNRELEASED_TASKS = 3


NEW = StreamsCurrentValue(0, -1, int(TaskState.STABLE))


@dataclass(slots=True, eq=False)
class StreamsMember:
    """A member: what it is (`metadata`) and what it holds (`current`)."""

    member_id: str
    metadata: StreamsMemberValue
    current: StreamsCurrentValue = NEW
    session: Deadline = field(init=False)
    revocation: Deadline = field(init=False)

    @property
    def held(self) -> Tasks:
        """What it has not yet given up."""
        assigned, revoking = self.current.assigned, self.current.revoking
        return Tasks(assigned.active | revoking.active, assigned.standby | revoking.standby)

    def cancel_timers(self) -> None:
        self.session.cancel()
        self.revocation.cancel()


@dataclass(slots=True, eq=False)
class StreamsGroup:
    """A group. Invariant: an active task is held by one member.

    `validated_epoch`: the epoch of the topology whose topics were all there, -1 for none. `configs`: the settings that the
    epoch was made for. `configured`: what follows from the topology and the topics of `metadata_hash`; None before it is known.
    `delay`: running until the first tasks may be given out. `shutdown_by`: who asked all to stop.
    `endpoint_epoch`: moves when a member with an address gets other tasks; not kept over a restart.
    `owed`, `is_dirty`: as in a consumer group.
    """

    group_id: str
    delay: Deadline
    epoch: int = 0
    assignment_epoch: int = 0
    assigned_ms: int = 0
    metadata_hash: int = 0
    validated_epoch: int = NEVER
    configs: tuple[tuple[str, str], ...] = ()
    topology: Topology | None = None
    configured: Configured | None = None
    members: dict[str, StreamsMember] = field(default_factory=dict)
    target: dict[str, Tasks] = field(default_factory=dict)
    shutdown_by: str | None = None
    endpoint_epoch: int = 0
    owed: list[JournalRecord] = field(default_factory=list)
    last_write: Reply | None = None
    is_dirty: bool = False
    is_dead: bool = False
    refreshed_ms: int = -1

    kind = "Streams"
    protocol_type = "streams"

    @property
    def state(self) -> str:
        """The state as clients see it."""
        if self.is_dead:
            return "Dead"
        if not self.members:
            return "Empty"
        if self.topology is None or self.topology.epoch != self.validated_epoch:
            return "NotReady"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        settled = (int(TaskState.STABLE), self.assignment_epoch)
        is_settled = all((m.current.state, m.current.epoch) == settled for m in self.members.values())
        return "Stable" if is_settled else "Reconciling"

    def die(self) -> None:
        """Refuse everything from now on: the group is being deleted."""
        self.is_dead = True

    def revive(self) -> None:
        """Go on, as an empty group that could not be deleted."""
        self.is_dead = False

    def remove(self, member: StreamsMember) -> None:
        del self.members[member.member_id]
        self.target.pop(member.member_id, None)
        member.cancel_timers()
        if not self.members:
            self.shutdown_by = None

    def topics_in_use(self, topics: Topics) -> frozenset[str]:
        """Return the topics that its members read."""
        if self.topology is None or not self.members:
            return frozenset()
        return frozenset(name for each in self.topology.subtopologies for name in each.inputs)

    def is_free(self, member: StreamsMember, task: Task, *, is_active: bool) -> bool:
        """Whether a member may take a task now: nobody else is active on it, its process has it in no other role."""
        for other in self.members.values():
            if other is member:
                continue
            held, is_same = other.held, other.metadata.process_id == member.metadata.process_id
            if task in held.active and (is_active or is_same):
                return False
            if is_same and task in held.standby:
                return False
        return True


def reconcile(
    group: StreamsGroup, member: StreamsMember, target: Tasks, target_epoch: int, owned: Tasks | None
) -> StreamsCurrentValue:
    """Return a member's next step to its target: what it gave up, what it gets, and its epoch.

    `owned`: the tasks the member says it has, None if it did not say. It keeps its epoch until it has given up what is not in the
    target, then takes the target's epoch and all that is free.
    """
    current = member.current
    if current.state == TaskState.UNREVOKED_TASKS:
        if _has_any(owned, current.revoking):
            return current
    elif current.state == TaskState.STABLE and current.epoch == target_epoch:
        return current
    assigned = current.assigned
    kept = Tasks(assigned.active & target.active, assigned.standby & target.standby)
    revoking = Tasks(assigned.active - target.active, assigned.standby - target.standby)
    epochs = {task: current.epochs.get(task, current.epoch) for task in assigned.active}
    if revoking != NO_TASKS and _has_any(owned, revoking):
        state = int(TaskState.UNREVOKED_TASKS)
        return StreamsCurrentValue(current.epoch, current.previous_epoch, state, kept, revoking, epochs)
    free = Tasks(
        frozenset(t for t in target.active - kept.active if group.is_free(member, t, is_active=True)),
        frozenset(t for t in target.standby - kept.standby if group.is_free(member, t, is_active=False)),
    )
    given = Tasks(kept.active | free.active, kept.standby | free.standby)
    return StreamsCurrentValue(
        epoch=target_epoch,
        previous_epoch=current.epoch if target_epoch != current.epoch else current.previous_epoch,
        state=int(TaskState.STABLE if given == target else TaskState.UNRELEASED_TASKS),
        assigned=given,
        epochs={task: epochs[task] for task in kept.active} | dict.fromkeys(free.active, target_epoch),
    )


def _has_any(owned: Tasks | None, revoking: Tasks) -> bool:
    """Whether a member still has one of these tasks, or did not say."""
    return owned is None or not (owned.active.isdisjoint(revoking.active) and owned.standby.isdisjoint(revoking.standby))
