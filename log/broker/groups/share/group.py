"""A share group (KIP-932) as data. No timers or journal here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from logflume.log.broker.groups.epoch_records import GroupKind, Partition
from logflume.log.broker.groups.epochs import EpochGroup, EpochMember
from logflume.log.broker.ports import Topics

from .records import STABLE, ShareCurrentValue, ShareMemberValue, TopicState

NEW = ShareCurrentValue(0, -1, frozenset())


@dataclass(slots=True, eq=False)
class ShareMember(EpochMember[ShareMemberValue, ShareCurrentValue]):
    """A member."""

    current: ShareCurrentValue = NEW


@dataclass(slots=True, eq=False)
class ShareGroup(EpochGroup[ShareMember, frozenset[Partition]]):
    """A group. `initialized`: topic id -> its partitions that the group has state of, or will once they are fetched."""

    initialized: Mapping[bytes, TopicState] = field(default_factory=dict)

    kind = GroupKind.SHARE
    protocol_type = "share"
    stable = STABLE

    def progress(self) -> str:
        """As nothing has to be given up first, members are where they are to be."""
        return "Stable"

    def topics_in_use(self, topics: Topics) -> frozenset[str]:
        """Return the topics that exist and that its members read."""
        wanted = {name for member in self.members.values() for name in member.metadata.topics}
        return frozenset(name for name in wanted if topics.partition_count(name))
