"""What the group coordinator asks of the rest of the broker, besides journal, clock and timers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from ...protocol.errors import ErrorCode
from ..seams import Reply


class NewTopic(Protocol):
    """A topic that is wanted; a `replication_factor` of 0 or -1 is the broker's default."""

    @property
    def name(self) -> str: ...

    @property
    def partitions(self) -> int: ...

    @property
    def replication_factor(self) -> int: ...

    @property
    def configs(self) -> tuple[tuple[str, str], ...]: ...


class Topics(Protocol):
    """The topics that exist, by name and by id (16 bytes)."""

    def exists(self, topic: str, partition: int) -> bool: ...

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions, 0 for a topic that does not exist."""
        ...

    def names(self) -> Iterable[str]:
        """Return the names of all topics but the internal ones."""
        ...

    def name_of(self, topic_id: bytes) -> str | None: ...

    def id_of(self, topic: str) -> bytes | None: ...


class InternalTopics(Protocol):
    """Makes the topics that streams groups need for themselves."""

    def create(self, wanted: Sequence[NewTopic]) -> Reply:
        """Create topics, those that are not there; the reply, once it is durable, is what went wrong by topic, as text."""
        ...


class GroupSettings(Protocol):
    """The settings of single groups, each the group's own or the broker's default, within the broker's bounds."""

    def number(self, name: str, group_id: str) -> int:
        """Return a setting of `group_config_specs` that is a whole number, as it applies to the group now."""
        ...

    def text(self, name: str, group_id: str) -> str: ...


class ShareStates(Protocol):
    """What share groups have of their partitions, kept elsewhere."""

    def delete_group(self, group_id: str) -> Reply:
        """Forget all of a group; the reply is an ErrorCode, NONE once that is on disk."""
        ...


class TxnAdmission(Protocol):
    """Says whether a producer may write to a partition in its transaction."""

    def admit(
        self, transactional_id: str, producer_id: int, producer_epoch: int, topic: str, partition: int, *, can_add: bool
    ) -> ErrorCode | Reply:
        """Return an ErrorCode, or a Reply of one when the partition has to be added to the transaction first.

        A caller that gets NONE must append before it gives up control, so that the end of the transaction cannot slip between.
        """
        ...
