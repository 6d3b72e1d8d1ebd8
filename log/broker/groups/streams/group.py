"""A streams group as data, and how a member moves towards its target tasks. No timers or journal here.

As in a consumer group each member gives up first, and gets a task only when it is free: an active task when nobody has it, any
task when its own process has it in no other role, for the members of a process share its directory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from logflume.log.broker.groups.epoch_records import GroupKind
from logflume.log.broker.groups.epochs import EpochGroup, EpochMember
from logflume.log.broker.ports import Topics
from logflume.log.broker.turns.deadline import Deadline

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
class StreamsMember(EpochMember[StreamsMemberValue, StreamsCurrentValue]):
    """A member."""

    current: StreamsCurrentValue = NEW

    @property
    def held(self) -> Tasks:
        """What it has not yet given up."""
        assigned, revoking = self.current.assigned, self.current.revoking
        return Tasks(assigned.active | revoking.active, assigned.standby | revoking.standby)


@dataclass(slots=True, eq=False)
class StreamsGroup(EpochGroup[StreamsMember, Tasks]):
    """A group. Invariant: an active task is held by one member.

    `delay`: running until the first tasks may be given out.
    `validated_epoch`: the epoch of the topology whose topics were all there, -1 for none. `configs`: the settings that the
    epoch was made for. `configured`: what follows from the topology and the topics of `metadata_hash`; None before it is known.
    `shutdown_by`: who asked all to stop.
    `endpoint_epoch`: moves when a member with an address gets other tasks; not kept over a restart.
    """

    delay: Deadline = field(init=False)
    validated_epoch: int = NEVER
    configs: tuple[tuple[str, str], ...] = ()
    topology: Topology | None = None
    configured: Configured | None = None
    shutdown_by: str | None = None
    endpoint_epoch: int = 0

    kind = GroupKind.STREAMS
    protocol_type = "streams"
    stable = int(TaskState.STABLE)

    def progress(self) -> str:
        is_ready = self.topology is not None and self.topology.epoch == self.validated_epoch
        return EpochGroup.progress(self) if is_ready else "NotReady"

    def remove(self, member: StreamsMember) -> None:
        EpochGroup.remove(self, member)
        if not self.members:
            self.shutdown_by = None

    def cancel_timers(self) -> None:
        EpochGroup.cancel_timers(self)
        self.delay.cancel()

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
