"""A group with epochs as data: what the protocols of consumers, shares and streams have in common. No timers or journal here.

A group has an epoch that every change of its membership or topics bumps, and a target assignment computed for an epoch. Each
member walks to the target on its own; where it is on its way is its current assignment.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from logflume.log.broker.ports import JournalRecord, Topics
from logflume.log.broker.replies import Reply
from logflume.log.broker.turns.deadline import Deadline

from .epoch_records import GroupKind

LEAVING_EPOCH = -1


class Current(Protocol):
    """What a member has."""

    @property
    def epoch(self) -> int: ...

    @property
    def previous_epoch(self) -> int: ...


Metadata = TypeVar("Metadata")
Held = TypeVar("Held", bound=Current)
Target = TypeVar("Target")


@dataclass(slots=True, eq=False)
class EpochMember(Generic[Metadata, Held]):
    """A member: what it wants (`metadata`) and what it has (`current`)."""

    member_id: str
    metadata: Metadata
    current: Held
    session: Deadline = field(init=False)
    revocation: Deadline = field(init=False)
    """By when it must have given up what is not in its target."""

    def cancel_timers(self) -> None:
        self.session.cancel()
        self.revocation.cancel()


Member = TypeVar("Member", bound=EpochMember[Any, Any])


@dataclass(slots=True, eq=False)
class EpochGroup(ABC, Generic[Member, Target]):
    """A group.

    `assigned_ms`: when the target was computed (wall time, 0 for never).
    `metadata_hash`: of the topics that the epoch was made for.
    `owed`: what the next write begins with, as the group was of another kind before.
    `is_dirty`: a write failed, so the next one holds everything.
    `refreshed_ms`: when its topics were last looked at (monotonic, -1 for never).
    `assigning`: set when the target that is being computed is there, None if there is none.
    """

    group_id: str
    epoch: int = 0
    assignment_epoch: int = 0
    assigned_ms: int = 0
    metadata_hash: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    target: dict[str, Target] = field(default_factory=dict)
    owed: list[JournalRecord] = field(default_factory=list)
    last_write: Reply | None = None
    is_dirty: bool = False
    is_dead: bool = False
    refreshed_ms: int = -1
    assigning: Reply | None = None

    kind: ClassVar[GroupKind]
    protocol_type: ClassVar[str]
    stable: ClassVar[int]
    """The state of a member that has arrived, as a number of the journal."""

    def die(self) -> None:
        """Refuse everything from now on: the group is being deleted."""
        self.is_dead = True

    def revive(self) -> None:
        """Go on, as an empty group that could not be deleted."""
        self.is_dead = False

    @property
    def state(self) -> str:
        """The state as clients see it."""
        if self.is_dead:
            return "Dead"
        return self.progress() if self.members else "Empty"

    def progress(self) -> str:
        """The state of a group with members."""
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        settled = (self.stable, self.assignment_epoch)
        is_settled = all((m.current.state, m.current.epoch) == settled for m in self.members.values())
        return "Stable" if is_settled else "Reconciling"

    def add(self, member: Member) -> None:
        self.members[member.member_id] = member

    def remove(self, member: Member) -> None:
        del self.members[member.member_id]
        self.target.pop(member.member_id, None)
        member.cancel_timers()

    def cancel_timers(self) -> None:
        for member in self.members.values():
            member.cancel_timers()

    @abstractmethod
    def topics_in_use(self, topics: Topics) -> frozenset[str]:
        """Return the topics that exist and that its members read."""


def hash_topics(names: Iterable[str], topics: Topics) -> int:
    """Return a number that changes with the topics, their ids and their numbers of partitions; never 0."""
    text = b"".join(f"{name}:{topics.partition_count(name)}:".encode() + (topics.id_of(name) or b"") for name in sorted(names))
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True) or 1
