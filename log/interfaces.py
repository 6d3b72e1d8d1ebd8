"""What streams, sql, connect and Spark may ask of the log: the protocols that `logflume.log.client` fills in.

The same classes work over both transports (architecture, D3): the log opened in this process, and TCP or a Unix socket to a
logflume broker or an Apache Kafka cluster. All calls are blocking and thread-safe unless said otherwise; every one raises
`TransportError` when the log cannot be reached within its timeout and `KafkaError` when the broker refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

from .records import Chunk, Headers, TopicPartition

if TYPE_CHECKING:
    from .client import Security


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where a record went. `offset` is -1 with acks=0."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic: its id (32 hex digits) and number of partitions."""

    name: str
    topic_id: str
    partitions: int
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class NewTopic:
    """How a topic is made. `partitions` and `replication_factor` -1: as the cluster has it."""

    partitions: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int = -1


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset (the next one to read) and the free text kept beside it."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class GroupMemberDescription:
    """A member of a consumer group and the partitions it holds."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group of consumers, also a share group: state (Empty, PreparingRebalance, Stable, Dead, ...), protocol, members."""

    group_id: str
    state: str
    protocol: str
    members: tuple[GroupMemberDescription, ...]


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """Identity of a live group member, passed to a transaction so that a stale member's offsets are refused (KIP-447)."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Subscription:
    """A member, the topics it wants, and what it still holds of the assignment of `generation` (-1: it does not say).

    `user_data`: what its strategy tells the leader beside that.
    """

    member_id: str
    instance_id: str | None
    topics: frozenset[str]
    owned: frozenset[TopicPartition] = field(default_factory=frozenset)
    generation: int = -1
    user_data: bytes = b""


def claims_of(members: Iterable[Subscription]) -> dict[TopicPartition, set[str]]:
    """Return who still has what: who says so of the latest generation (several: in doubt); older claims are void (KIP-792)."""
    latest: dict[TopicPartition, int] = {}
    claims: dict[TopicPartition, set[str]] = {}
    for member in members:
        for tp in member.owned:
            if member.generation > latest.get(tp, -2):
                latest[tp], claims[tp] = member.generation, set()
            if member.generation == latest[tp]:
                claims[tp].add(member.member_id)
    return claims


Assignment = dict[str, list[TopicPartition]]
"""Member id -> its partitions."""

Strategy = Callable[[Sequence[Subscription], Mapping[str, int]], Assignment]
Advice = Callable[[Sequence[Subscription], Mapping[str, int]], Mapping[str, bytes]]


def no_advice(members: Sequence[Subscription], partition_counts: Mapping[str, int]) -> Mapping[str, bytes]:
    """Tell nobody anything: the default of `AssignmentStrategy.advise`."""
    return {}


def take_no_advice(data: bytes) -> None:
    """Forget what the leader said: the default of `AssignmentStrategy.on_advice`."""


@dataclass(frozen=True, slots=True)
class AssignmentStrategy:
    """A strategy under the name by which members agree on it.

    `is_cooperative`: members go on reading what they have while the group rebalances; then `assign` must not give away what
    another member still has. After a session timeout it is asked again about what it left over. `user_data` is asked at each
    join; `advise` is what the leader tells members (by id) beside their partitions, and `on_advice` gets it on the thread that
    polls, before the partitions.
    """

    name: str
    assign: Strategy
    is_cooperative: bool = False
    user_data: Callable[[], bytes] = bytes
    advise: Advice = no_advice
    on_advice: Callable[[bytes], None] = take_no_advice


NO_TIMEOUT_MS = 2**31 - 1
"""The time-out of a transaction that only its producer, or the next of its transactional id, ends; as in KIP-939."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that producers in several processes write to; only the one that began it ends it. Made to be sent to them.

    `has_v2`: brokers add partitions to it themselves (KIP-890).
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    has_v2: bool


class Producer(Protocol):
    """Sends records. Idempotent by default; transactional when made with a transactional id. Acked = on disk (acks=all)."""

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> Future[RecordMetadata]:
        """Queue one record; blocks only while the buffer is full. Partition: given, else murmur2 of the key, else sticky."""
        ...

    def send_chunk(self, topic: str, chunk: Chunk, *, partition: int | None = None) -> Future[int]:
        """Queue all records of a chunk in order; the future gives their number once all are acknowledged.

        Partition: given, else per record by the key as in `send`.
        """
        ...

    def can_queue(self, topic: str) -> bool:
        """Return whether `send` and `send_chunk` to this topic would not wait now."""
        ...

    def flush(self, *, timeout_s: float = 120.0) -> None:
        """Wait until everything queued is acknowledged; raises the first error of a record that was not."""
        ...

    def init_transactions(self, *, transaction_timeout_ms: int | None = None) -> None:
        """Fence older producers of this transactional id and abort what they left open.

        `transaction_timeout_ms`: of transactions from now on, in place of that which the producer was made with.

        Raises InvalidInput: brokers do not allow so long a transaction.
        """
        ...

    def begin_transaction(self) -> None: ...

    def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: GroupMetadata,
        *,
        renewed: Callable[[], GroupMetadata | None] = lambda: None,
    ) -> None:
        """Add a group's offset commit to the open transaction.

        `renewed`: asked once when the group has gone on without this member: who it is by now, None if it must abort.
        """
        ...

    def share_transaction(self) -> OpenTransaction:
        """Return the open transaction for producers that join it (`Log.join_transaction`), here or in other processes."""
        ...

    def commit_transaction(self) -> None:
        """Flush, then commit; on return all of it is visible to read_committed readers and on disk."""
        ...

    def abort_transaction(self) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


class Consumer(Protocol):
    """Reads records. Not thread-safe (one thread at a time), except `wakeup`."""

    def subscribe(
        self,
        topics: Sequence[str] = (),
        *,
        pattern: str | None = None,
        on_assigned: Callable[[Sequence[TopicPartition]], None] | None = None,
        on_revoked: Callable[[Sequence[TopicPartition]], None] | None = None,
    ) -> None:
        """Join the consumer group for these topics, and those whose whole name matches the regular expression `pattern`.

        The callbacks run inside `poll`, before records of a new assignment.
        """
        ...

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without group management."""
        ...

    def assignment(self) -> tuple[TopicPartition, ...]: ...

    def poll(self, *, timeout_s: float = 1.0, max_records: int = 100_000) -> list[Chunk]:
        """Return the next records as chunks of one partition each, [] when none came in time."""
        ...

    def seek(self, partition: TopicPartition, offset: int) -> None: ...

    def seek_to_time(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Go on from the first record of each partition whose timestamp is at least the given ms, else from its end."""
        ...

    def pause(self, partitions: Iterable[TopicPartition]) -> None: ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...

    def position(self, partition: TopicPartition) -> int: ...

    def lag(self, partition: TopicPartition) -> int | None:
        """Records between the position and the end as of the last fetch; None before the first."""
        ...

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]: ...

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None) -> None:
        """Commit the given offsets, or the positions of everything returned by `poll`."""
        ...

    def group_metadata(self) -> GroupMetadata: ...

    def renewed_metadata(self) -> GroupMetadata | None:
        """Wait for the join under way; return who this member is then, None if it does not keep its partitions over a join."""
        ...

    def wakeup(self) -> None:
        """Make a `poll` that is waiting in another thread return at once."""
        ...

    def close(self, *, leave_group: bool = True) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


class Admin(Protocol):
    """Topics, groups and offsets."""

    def create_topic(
        self, name: str, *, partitions: int = 1, replication_factor: int = -1, configs: Mapping[str, str] | None = None
    ) -> TopicDescription | None:
        """Create a topic and return it; None where whoever makes it may not describe it."""
        ...

    def ensure_topic(self, name: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None) -> TopicDescription:
        """Create the topic if it does not exist; return it as it is."""
        ...

    def ensure_topics(self, wanted: Mapping[str, NewTopic]) -> dict[str, TopicDescription]:
        """Create those of these topics that do not exist, by one request; return all as they are."""
        ...

    def delete_topic(self, name: str) -> None: ...

    def create_partitions(self, name: str, total: int) -> None: ...

    def list_topics(self, *, include_internal: bool = False) -> list[str]: ...

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """Raises UnknownName for a topic that does not exist."""
        ...

    def find_topics(self, names: Collection[str]) -> dict[str, TopicDescription]:
        """Those of these topics that exist, by one request."""
        ...

    def topic_configs(self, name: str) -> dict[str, str]:
        """All configs of a topic, defaults included. Takes the right to describe configs, as `changed_topic_configs` does."""
        ...

    def broker_configs(self) -> dict[str, str]:
        """All configs of the broker that leads the cluster; takes the right to describe the cluster's configs."""
        ...

    def changed_topic_configs(self, name: str) -> dict[str, str]:
        """The configs of a topic that were set for it."""
        ...

    def alter_topic_configs(self, name: str, configs: Mapping[str, str | None]) -> None:
        """Set configs of a topic (None: back to the default); the others stay."""
        ...

    def start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...

    def end_offsets(self, partitions: Iterable[TopicPartition], *, read_committed: bool = False) -> dict[TopicPartition, int]:
        """High watermarks, or last stable offsets with `read_committed`."""
        ...

    def offsets_for_time(self, partitions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """First offset whose timestamp is >= the given milliseconds, None when there is none."""
        ...

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Move the log start offset of each partition up to the given offset."""
        ...

    def list_groups(self) -> list[str]: ...

    def describe_group(self, group_id: str) -> GroupDescription: ...

    def delete_group(self, group_id: str) -> None: ...

    def remove_group_members(self, group_id: str, instance_ids: Sequence[str]) -> None:
        """Take static members out of a group now, so that the others need not wait for their session timeouts."""
        ...

    def group_offsets(self, group_id: str, *, is_stable: bool = False) -> dict[TopicPartition, OffsetAndMetadata]:
        """All committed offsets of a group; with `is_stable` waits for open transactions that may commit others."""
        ...

    def set_group_offsets(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Set committed offsets of a group without members (state Empty); refused otherwise."""
        ...

    def request(self, api: str, version: int | None = None, *, node: int | None = None, **fields: Any) -> Any:
        """Send any request of the protocol by name (for tests and tools) to a broker; returns the decoded response."""
        ...


class Log(Protocol):
    """A log: embedded, a logflume broker or an Apache Kafka cluster. Context manager; `close` is idempotent."""

    @property
    def where(self) -> str:
        """The data directory (absolute) or bootstrap address it was opened with; `connect` takes it again."""
        ...

    @property
    def security(self) -> Security | None:
        """How it logs in; None: the data is opened in this process, or reached by the Unix socket of its owner."""
        ...

    def producer(
        self,
        *,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        acks: int = -1,
        linger_ms: int = 5,
        batch_size: int = 262_144,
        compression: str = "none",
        client_id: str = "logflume",
    ) -> Producer: ...

    def join_transaction(self, transaction: OpenTransaction, *, batch_size: int = 262_144) -> Producer:
        """Make a producer that writes into a transaction begun elsewhere: each partition by one of them only."""
        ...

    def consumer(
        self,
        *,
        group_id: str | None = None,
        group_instance_id: str | None = None,
        read_committed: bool = True,
        offset_reset: str = "earliest",
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 1_000,
        max_poll_interval_ms: int = 300_000,
        fetch_max_bytes: int = 8_388_608,
        fetch_max_wait_ms: int = 500,
        client_id: str = "logflume",
        assignment_strategies: Sequence[str | AssignmentStrategy] = ("range", "roundrobin"),
        group_protocol: str = "classic",
        server_assignor: str | None = None,
    ) -> Consumer:
        """`offset_reset`: earliest, latest or none. Offsets are committed only by `commit` or inside a transaction.

        `heartbeat_interval_ms`: how often a member of a classic group says that it lives, and hears of a rebalance; a third of
        `session_timeout_ms` at most.
        """
        ...

    def admin(self) -> Admin: ...

    def close(self) -> None: ...

    def __enter__(self) -> Log: ...

    def __exit__(self, *exc: object) -> None: ...
