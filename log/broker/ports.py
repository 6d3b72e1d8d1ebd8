"""What the broker asks of its surroundings, and its rooms of each other, as protocols with the data that goes through them.

Nothing in `log/broker` opens a socket or file, sleeps, or reads a clock of its own (architecture, D2: sans-IO); the shell
(`log/server`) and tests bring what is behind these.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from logflume.log.protocol import ErrorCode

from .replies import Reply

if TYPE_CHECKING:
    from logflume.log.storage import PartitionLog


class Clock(Protocol):
    """Time as the core sees it."""

    def wall_ms(self) -> int: ...

    def monotonic_ms(self) -> int: ...


class Timer(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """Calls back on the broker thread after a delay; a test drives it by hand."""

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer: ...


class Offload(Protocol):
    """Does what would hold the broker's thread for long elsewhere. What comes first is begun first."""

    def __call__(self, work: Callable[[], Any]) -> Reply:
        """Return a reply that is set, on the broker's thread, to the value or the exception of `work`, which shares no state."""
        ...


def do_at_once(work: Callable[[], Any]) -> Reply:
    """Be an `Offload` without another thread, for a core that has none."""
    reply = Reply()
    try:
        reply.set(work())
    except Exception as error:  # noqa: BLE001 - whoever asked for the work judges it
        reply.set(error)
    return reply


FlushCallback = Callable[[Exception | None], None]


class Flusher(Protocol):
    """Makes appended data durable; `storage.FlushScheduler` is one."""

    def request(self, log: PartitionLog, callback: FlushCallback) -> None: ...


class Address(Protocol):
    """Where clients reach this broker."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


class Waiter(Protocol):
    """Someone who waits for a partition to move on."""

    def wake(self) -> None: ...


GUID_BYTES = 17
"""A one and the GUID of a schema."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a topic demands of one side: a schema of the subject that is called so."""

    side: str
    topic: str
    strategy: str


@dataclass(frozen=True, slots=True)
class SchemaRef:
    """A schema as a record names it: a zero and its id, or a one and its GUID."""

    data: bytes

    @property
    def guid(self) -> str:
        """The GUID; empty where it is an id."""
        return str(uuid.UUID(bytes=self.data[1:])) if len(self.data) == GUID_BYTES else ""

    @property
    def id(self) -> int:
        return int.from_bytes(self.data[1:], "big")

    def __str__(self) -> str:
        return f"GUID {self.guid}" if self.guid else f"id {self.id}"


class SchemaFinder(Protocol):
    """Asks a registry; blocks."""

    def is_met(self, demand: Demand, ref: SchemaRef, /) -> bool:
        """Return whether a schema is of the subject that is demanded. Raises LogflumeError where there is no answer."""
        ...


class Keys(Protocol):
    """The keys that a provider publishes."""

    def find(self, key_id: str) -> Any | None:
        """Return a public key, None if there is none of that id; asks for newer ones then, for later."""
        ...


class TicketContext(Protocol):
    """The broker's end of one security context of Kerberos. Each may wait for a disk; raises LoginFailed."""

    def accept(self, token: bytes) -> bytes:
        """Take a token of the client; return the answer to it."""
        ...

    def initiator(self) -> str | None:
        """Return the client's principal, as alice/admin@REALM, once the context is established, else None."""
        ...

    def wrap(self, message: bytes) -> bytes: ...

    def unwrap(self, message: bytes) -> bytes: ...


class TicketAcceptor(Protocol):
    """The Kerberos key of the broker's service."""

    def begin(self) -> TicketContext: ...


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """A record of an internal compacted topic; value None is a tombstone."""

    key: bytes
    value: bytes | None
    timestamp_ms: int = -1


@dataclass(frozen=True, slots=True)
class ReplayedBatch:
    """A batch of an internal topic as read back. `marker` is None for data, else True for commit and False for abort."""

    base_offset: int
    producer_id: int
    producer_epoch: int
    is_transactional: bool
    marker: bool | None
    records: tuple[JournalRecord, ...]


class Journal(Protocol):
    """An internal topic (`__consumer_offsets`, `__transaction_state`) as a coordinator uses it."""

    @property
    def partition_count(self) -> int: ...

    def append(
        self, partition: int, records: Sequence[JournalRecord], *, producer_id: int = -1, producer_epoch: int = -1
    ) -> Reply:
        """Append as one batch; the reply is set to the base offset once it is on disk, or to an error code (negative).

        With a producer id the batch is transactional (pending until that transaction's marker reaches the partition).
        """
        ...

    def replay(self, partition: int) -> Iterator[ReplayedBatch]:
        """Yield every batch from the log start, in offset order, with enough context to follow transactions."""
        ...


class TxnPartitions(Protocol):
    """How the transaction coordinator reaches data partitions: verifies that they exist and writes the markers."""

    def exists(self, topic: str, partition: int) -> bool: ...

    def write_marker(
        self,
        topic: str,
        partition: int,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        *,
        is_commit: bool,
        is_bumped: bool = False,
    ) -> Reply:
        """Append a control batch; the reply is set to error code 0 once it is on disk. Readers see the end when it is announced.

        `is_bumped`: its epoch is newer than that of all data which it ends, so that data of this epoch belongs to the
        transaction behind it: there the marker is already.
        """
        ...

    def announce(self, ended: Sequence[tuple[str, int]], producer_id: int, *, is_commit: bool) -> None:
        """Let readers see a transaction's end in partitions where its marker is on disk, in all of them at once.

        What was kept for it (offsets of groups) counts from then on.
        """
        ...

    def producer_epoch(self, topic: str, partition: int, producer_id: int) -> int | None:
        """Return the latest epoch that the partition has of a producer, -1 for none, None while it cannot be read."""
        ...

    def open_transactions(self) -> Iterable[OpenInPartition]:
        """Return what is open in all partitions that can be read."""
        ...


@dataclass(frozen=True, slots=True)
class OpenInPartition:
    """A producer with records in a partition of which no marker says what becomes of them."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int


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


class InternalTopics(Protocol):
    """Makes the topics that streams groups need for themselves."""

    def create(self, wanted: Sequence[NewTopic]) -> Reply:
        """Create topics, those that are not there; the reply, once it is durable, is what went wrong by topic, as text."""
        ...


class GroupSettings(Protocol):
    """The settings of single groups, each the group's own or the broker's default, within the broker's bounds."""

    def number(self, name: str, group_id: str) -> int:
        """Return a setting of `settings.groups` that is a whole number, as it applies to the group now."""
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
    ) -> Admission:
        """Who may append must do so before giving up control, so that the end of the transaction cannot slip between."""
        ...


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a producer may write to a partition in its transaction, now or (`is_first_added`) once it was added to it.

    `added`, a Reply of an ErrorCode, is there while that is on its way; who has appended answers when both are on disk.
    """

    error: ErrorCode = ErrorCode.NONE
    added: Reply | None = None
    is_first_added: bool = False
