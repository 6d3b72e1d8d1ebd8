"""What clients of a soak did and saw. Each worker writes its own list, in the order of its own time; nothing is guessed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

SUBSCRIBED = -1
OK, FAILED, UNKNOWN = "ok", "failed", "unknown"
COMMITTED, ABORTED = "committed", "aborted"


class At(NamedTuple):
    """A partition."""

    topic: str
    partition: int


@dataclass(slots=True)
class Sent:
    """A record that was handed to a producer. `session`: one life of the producer; `number`: its order in it."""

    worker: str
    session: int
    number: int
    at: At
    value: str
    txn: int | None = None
    outcome: str = UNKNOWN
    offset: int = -1


@dataclass(slots=True)
class Transaction:
    """A transaction of a worker. It is `committed` or `aborted` only if the client was told so."""

    worker: str
    txn: int
    outcome: str = UNKNOWN
    is_commit_tried: bool = False


class Polled(NamedTuple):
    """A record that a consumer was given. `session`: one assignment, read without a gap; SUBSCRIBED: a group may begin anew."""

    worker: str
    session: int
    at: At
    offset: int
    value: str
    read_committed: bool


class OffsetCommit(NamedTuple):
    """A commit of a group's offset; UNKNOWN if no answer came."""

    group: str
    at: At
    offset: int
    outcome: str


class OffsetRead(NamedTuple):
    """A group's committed offset as it was read back, -1 for none."""

    group: str
    at: At
    offset: int


class EndSeen(NamedTuple):
    """The end of a partition as the broker told it: the high watermark, or the last stable offset."""

    at: At
    offset: int
    read_committed: bool


@dataclass(frozen=True, slots=True)
class Copy:
    """A transactional copy of a topic by consuming, producing and committing offsets in one transaction."""

    group: str
    source: str
    target: str


Event = Sent | Transaction | Polled | OffsetCommit | OffsetRead | EndSeen
Records = dict[At, list[tuple[int, str]]]
"""Values of each partition by rising offset."""


@dataclass(slots=True)
class History:
    """Everything: the workers' lists, and what is in the log at the end."""

    lists: dict[str, list[Event]] = field(default_factory=dict)
    copies: list[Copy] = field(default_factory=list)
    committed: Records = field(default_factory=dict)
    """All that a read_committed consumer reads from the beginning when everything has calmed down."""
    uncommitted: Records = field(default_factory=dict)
    group_offsets: dict[tuple[str, At], int] = field(default_factory=dict)
    """Committed offsets of the groups at the end."""
    kills: int = 0
    deaths: int = 0
    """Clients that ended in the middle of a transaction."""

    def of(self, kind: type[Event]) -> Iterator[Event]:
        """Yield the events of a kind, worker by worker, each in its own order."""
        return (event for events in self.lists.values() for event in events if isinstance(event, kind))

    def dump(self, path: Path) -> None:
        """Write all of it as JSON lines."""
        with path.open("w") as file:
            for worker, events in self.lists.items():
                for event in events:
                    fields = event._asdict() if isinstance(event, tuple) else asdict(event)
                    file.write(json.dumps({"list": worker, "kind": type(event).__name__, **fields}) + "\n")
            for name, records in (("committed", self.committed), ("uncommitted", self.uncommitted)):
                for at, found in records.items():
                    file.write(json.dumps({"list": "final", "kind": name, "at": at, "records": found}) + "\n")


def by_partition(records: Iterable[tuple[At, int, str]]) -> Records:
    """Group (partition, offset, value) by partition, sorted by offset."""
    found: Records = {}
    for at, offset, value in records:
        found.setdefault(at, []).append((offset, value))
    return {at: sorted(values) for at, values in found.items()}
