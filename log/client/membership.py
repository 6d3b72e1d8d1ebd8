"""What a consumer and its membership in a group ask of each other; `classic.py` and `consumer_protocol.py` are the two kinds.

A membership has two sides: tasks on the I/O loop (heartbeats, joins), and `maintain`, which each poll calls on the caller's
thread: only there are partitions given up and taken over, so that the callbacks of a rebalance run between two polls.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from logflume.log.errors import InvalidInput
from logflume.log.interfaces import GroupMetadata, OffsetAndMetadata
from logflume.log.records import TopicPartition

GROUP_PROTOCOLS = ("classic", "consumer")


@dataclass(frozen=True, slots=True)
class Interest:
    """What a consumer subscribed to: topics by name, and all topics whose whole name matches `pattern`."""

    topics: frozenset[str] = field(default_factory=frozenset)
    pattern: str | None = None

    def __bool__(self) -> bool:
        return bool(self.topics) or self.pattern is not None

    def names(self, existing: Iterable[str]) -> frozenset[str]:
        """Return the topics by name, and those among `existing` that the pattern matches."""
        if self.pattern is None:
            return self.topics
        pattern = re.compile(self.pattern)
        return self.topics | {name for name in existing if pattern.fullmatch(name)}


def interest_in(topics: Iterable[str], pattern: str | None) -> Interest:
    """Check what `subscribe` was given. Raises InvalidInput: nothing to read, or a pattern that is no regular expression."""
    if isinstance(topics, str):
        raise InvalidInput(f"expected a list of topics, found {topics!r}")
    names = frozenset(topics)
    if not names and pattern is None:
        raise InvalidInput(f"expected a list of topics or a pattern, found {topics!r}")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise InvalidInput(f"the pattern {pattern!r} is no regular expression: {error}") from error
    return Interest(names, pattern)


class Owner(Protocol):
    """What a membership may do to its consumer, on the caller's thread."""

    def assignment(self) -> tuple[TopicPartition, ...]: ...

    def give_up(self, partitions: Collection[TopicPartition]) -> None:
        """Stop reading these, then tell the application, which may still commit their positions; nothing for none."""
        ...

    def take_over(self, partitions: Collection[TopicPartition]) -> None:
        """Read these too, and tell the application (also when there are none: the rebalance is over)."""
        ...


class Membership(Protocol):
    """One consumer's membership. All but `commit` and `leave` are for the caller's thread."""

    @property
    def group_id(self) -> str: ...

    @property
    def is_member(self) -> bool:
        """Whether the group knows this consumer, so that it may commit for partitions it was assigned."""
        ...

    def subscribe(self, interest: Interest) -> None:
        """Read these from the next `maintain` on."""
        ...

    def maintain(self, owner: Owner) -> None:
        """Do what the group asks for: give up, join, take over. Raises the error that keeps it out of the group for good."""
        ...

    def has_news(self) -> bool:
        """Return whether `maintain` would have something to do. Called under the consumer's lock."""
        ...

    def metadata(self) -> GroupMetadata: ...

    async def renewed(self) -> GroupMetadata | None:
        """Return who this member is when the join under way is over, None if it does not keep its partitions over a join."""
        ...

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None: ...

    async def leave(self) -> None: ...

    def stop(self) -> None:
        """Stop without a word; the group finds out after the session timeout."""
        ...
