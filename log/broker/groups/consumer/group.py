"""A consumer group of KIP-848 as data, and how a member moves towards its target assignment. No timers or journal here.

A member gives up first, and gets a partition only when nobody else holds it any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from logflume.log.broker.groups.epoch_records import GroupKind, Partition, epochs_of
from logflume.log.broker.groups.epochs import EpochGroup, EpochMember
from logflume.log.broker.patterns import compile_pattern
from logflume.log.broker.ports import Topics
from logflume.log.broker.turns.deadline import Deadline

from .assignors import DEFAULT_ASSIGNOR
from .records import CurrentValue, MemberValue

AWAY_EPOCH = -2
"""Epoch of a static member that said it will be back."""
CONSUMER_PROTOCOL_TYPE = "consumer"
"""The protocol type of classic groups of consumers."""


class MemberState(IntEnum):
    """Where a member is on its way to the target; the number is that of the journal."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


def may_see_all(topic: str) -> bool:
    """What holds for a member that has not been heard of since the start."""
    return True


NEW = CurrentValue(0, -1, int(MemberState.STABLE), frozenset(), frozenset())


@dataclass(slots=True, eq=False)
class ConsumerMember(EpochMember[MemberValue, CurrentValue]):
    """A member. `may_see`: whether it may know of a topic, as of its last heartbeat; not kept over a restart."""

    current: CurrentValue = NEW
    may_see: Callable[[str], bool] = may_see_all
    rejoin: Deadline = field(init=False)
    """For a member of the classic protocol: by when it must have joined anew, or synced."""

    @property
    def is_classic(self) -> bool:
        """Whether it speaks the classic protocol."""
        return self.metadata.classic is not None

    def cancel_timers(self) -> None:
        EpochMember.cancel_timers(self)
        self.rejoin.cancel()

    @property
    def held(self) -> frozenset[Partition]:
        """What nobody else may have yet."""
        return self.current.assigned | self.current.revoking


@dataclass(slots=True, eq=False)
class ConsumerGroup(EpochGroup[ConsumerMember, frozenset[Partition]]):
    """A group. Invariants: a partition is held by one member; `static` maps each instance id to a member."""

    static: dict[str, str] = field(default_factory=dict)

    kind = GroupKind.CONSUMER
    protocol_type = CONSUMER_PROTOCOL_TYPE
    stable = int(MemberState.STABLE)

    def add(self, member: ConsumerMember) -> None:
        EpochGroup.add(self, member)
        if member.metadata.instance_id is not None:
            self.static[member.metadata.instance_id] = member.member_id

    def remove(self, member: ConsumerMember) -> None:
        EpochGroup.remove(self, member)
        instance_id = member.metadata.instance_id
        if instance_id is not None and self.static.get(instance_id) == member.member_id:
            del self.static[instance_id]

    def held_by_others(self, member: ConsumerMember) -> set[Partition]:
        return {p for other in self.members.values() if other is not member for p in other.held}

    def classic_members(self) -> list[ConsumerMember]:
        return [member for member in self.members.values() if member.is_classic]

    def supports(self, protocol_type: str, names: Collection[str]) -> bool:
        """Whether a member of the classic protocol with these protocols can be in the group: all such share one."""
        if protocol_type != CONSUMER_PROTOCOL_TYPE or not names:
            return False
        shared = set(names)
        for member in self.classic_members():
            if member.metadata.classic is not None:
                shared.intersection_update(name for name, _ in member.metadata.classic.protocols)
        return bool(shared)

    def is_waiting(self, member: ConsumerMember) -> bool:
        """Whether a partition that a member is to get is still held by another."""
        missing = self.target.get(member.member_id, frozenset()) - member.current.assigned
        return not missing.isdisjoint(self.held_by_others(member))

    def assignor(self) -> str:
        """Return the assignor that most members ask for."""
        asked = Counter(m.metadata.assignor for m in self.members.values() if m.metadata.assignor)
        return max(sorted(asked), key=lambda name: asked[name]) if asked else DEFAULT_ASSIGNOR

    def topics_in_use(self, topics: Topics) -> frozenset[str]:
        return all_of(topics_by_member(self.members.values(), topics))


def topics_by_member(members: Iterable[ConsumerMember], topics: Topics) -> dict[str, frozenset[str]]:
    """Return what each member wants, by id; members that want the same have one set, looked up once."""
    by_interest: dict[tuple[object, ...], frozenset[str]] = {}
    wanted: dict[str, frozenset[str]] = {}
    for member in members:
        interest = (member.metadata.topics, member.metadata.regex, member.may_see if member.metadata.regex else None)
        if interest not in by_interest:
            by_interest[interest] = topics_of(member, topics)
        wanted[member.member_id] = by_interest[interest]
    return wanted


def all_of(wanted: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return the topics that anybody wants."""
    return frozenset[str]().union(*set(wanted.values()))


def topics_of(member: ConsumerMember, topics: Topics) -> frozenset[str]:
    """Return the topics that exist and that a member wants: by name, and by expression those that it may know of."""
    metadata, may_see = member.metadata, member.may_see
    wanted = {name for name in metadata.topics if topics.partition_count(name)}
    if metadata.regex:
        found = compile_pattern(metadata.regex).matching(topics.names())
        wanted.update(found if may_see is may_see_all else filter(may_see, found))
    return frozenset(wanted)


def reconcile(
    current: CurrentValue,
    target: frozenset[Partition],
    target_epoch: int,
    owned: Collection[Partition] | None,
    held_by_others: Callable[[], set[Partition]],
    *,
    has_changed: bool = False,
) -> CurrentValue:
    """Return a member's next step to its target: what it gave up, what it gets, and its epoch.

    `owned`: what the member says it has, None if it did not say. It keeps its epoch until it has given up what is not in
    the target, then takes the target's epoch and all that is free. `has_changed`: it wants something else than before, so that
    also a member that had arrived looks again.
    """
    if current.state == MemberState.UNREVOKED_PARTITIONS:
        if owned is None or not current.revoking.isdisjoint(owned):
            return current
    elif current.state == MemberState.STABLE and current.epoch == target_epoch and not has_changed:
        return current
    revoking = current.assigned - target
    if revoking and (owned is None or not revoking.isdisjoint(owned)):
        state = int(MemberState.UNREVOKED_PARTITIONS)
        epochs = epochs_of(current.assigned, current.epochs, current.epoch)
        return CurrentValue(current.epoch, current.previous_epoch, state, current.assigned & target, revoking, epochs)
    wanted = target - current.assigned
    free = wanted - held_by_others() if wanted else wanted
    kept = current.assigned & target
    return CurrentValue(
        epoch=target_epoch,
        previous_epoch=current.epoch if target_epoch != current.epoch else current.previous_epoch,
        state=int(MemberState.STABLE if free == wanted else MemberState.UNRELEASED_PARTITIONS),
        assigned=kept | free,
        revoking=frozenset(),
        epochs=epochs_of(kept, current.epochs, current.epoch) | dict.fromkeys(free, target_epoch),
    )
