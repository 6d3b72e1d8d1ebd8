"""A streams group as data, and how a member moves towards its target tasks. No timers or journal here.

As in a consumer group each member gives up first, and gets a task only when it is free: an active task when nobody has it, any
task when its own process has it in no other role, for the members of a process share its directory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from logflume.log.broker.groups.epoch_records import GroupKind, epochs_of
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

    def not_free(self, member: StreamsMember) -> Tasks:
        """Return what a member cannot take now: active what somebody is active on, either what its own process has."""
        active: set[Task] = set()
        own: set[Task] = set()
        for other in self.members.values():
            if other is member:
                continue
            is_same = other.metadata.process_id == member.metadata.process_id
            for tasks in (other.current.assigned, other.current.revoking):
                active |= tasks.active
                if is_same:
                    own |= tasks.active | tasks.standby
        return Tasks(frozenset(active | own), frozenset(own))


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
    epochs = epochs_of(assigned.active, current.epochs, current.epoch)
    if revoking != NO_TASKS and _has_any(owned, revoking):
        state = int(TaskState.UNREVOKED_TASKS)
        return StreamsCurrentValue(current.epoch, current.previous_epoch, state, kept, revoking, epochs)
    taken = group.not_free(member)
    free = Tasks(target.active - kept.active - taken.active, target.standby - kept.standby - taken.standby)
    given = Tasks(kept.active | free.active, kept.standby | free.standby)
    return StreamsCurrentValue(
        epoch=target_epoch,
        previous_epoch=current.epoch if target_epoch != current.epoch else current.previous_epoch,
        state=int(TaskState.STABLE if given == target else TaskState.UNRELEASED_TASKS),
        assigned=given,
        epochs=epochs_of(kept.active, epochs, current.epoch) | dict.fromkeys(free.active, target_epoch),
    )


def _has_any(owned: Tasks | None, revoking: Tasks) -> bool:
    """Whether a member still has one of these tasks, or did not say."""
    return owned is None or not (owned.active.isdisjoint(revoking.active) and owned.standby.isdisjoint(revoking.standby))
