"""The seams inside the broker: request context, replies that come later, and what a coordinator may ask of its surroundings.

Nothing in `log/broker` opens a socket or file, sleeps, or reads a clock of its own (architecture, D2: sans-IO).
Everything runs on one thread (the event loop of the shell), so no locks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from logflume.log.protocol import KafkaError, messages

from .access import UNRESTRICTED, Operation, Resource, Rights
from .access.rights import allowed_operations

ANONYMOUS = "User:ANONYMOUS"
"""The principal of a connection that did not authenticate."""


class Denials(Protocol):
    """Takes note of what was denied; `security.audit.Audit` does."""

    def denied(self, context: RequestContext, operation: Operation, resource: Resource, name: str) -> None: ...


class Session(Protocol):
    """The login of a connection, as the APIs of SASL and of delegation tokens see it; `security.Login` is one."""

    @property
    def is_by_token(self) -> bool: ...

    def handshake(self, mechanism: str, *, version: int) -> messages.SaslHandshakeResponse: ...

    def authenticate(self, token: bytes) -> Reply: ...


class RequestContext(NamedTuple):
    """Who asks and how. `principal` is there from the start; without authentication it is User:ANONYMOUS.

    A named tuple, as one is made for every request. `rights` are those of principal and host; `Handlers.handle` puts them in.
    `port` is the client's, 0 where there is none; `login` is that of the connection, None where there is no SASL;
    `audit` takes note of denials, None where nobody wants to know.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    host: str
    connection_id: int
    principal: str = ANONYMOUS
    listener: str = "PLAINTEXT"
    rights: Rights = UNRESTRICTED
    port: int = 0
    login: Session | None = None
    audit: Denials | None = None

    def may(self, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether who asks may do this to the resource of this name; a denial is noted in the audit log.

        A handler asks before it does or tells anything. Where one of several rights is enough, it asks `rights` for the others.
        """
        is_allowed = self.rights.allows(operation, resource, name)
        if not is_allowed and self.audit is not None:
            self.audit.denied(self, operation, resource, name)
        return is_allowed

    def require(self, operation: Operation, resource: Resource, name: str) -> None:
        """Raise KafkaError (TOPIC_AUTHORIZATION_FAILED or its like) unless `may`."""
        if not self.may(operation, resource, name):
            raise KafkaError(resource.refusal)

    def operations_on(self, resource: Resource, name: str) -> int:
        """Return the operations that are allowed, as a bit field by code (KIP-430)."""
        return allowed_operations(self.rights, resource, name)


NO_RESPONSE = None
"""What a handler returns when nothing is to be sent (acks=0)."""


class CloseConnection:
    """What a handler returns when the only way to report an error is to close the connection (acks=0)."""


CLOSE_CONNECTION = CloseConnection()

Handler = Callable[[RequestContext, Any], Any]
"""Handles one API: takes the decoded request; returns a response message, a `Reply`, NO_RESPONSE or CLOSE_CONNECTION.

Byte fields of a request are copies, but `records` are views of a buffer that is used again once the handler has returned.
"""


class Reply:
    """A response that comes later: a one-shot promise for the single broker thread.

    A handler returns a response message at once, a `Reply` for later, or None for "no response" (acks=0).
    """

    __slots__ = ("_callbacks", "held_bytes", "is_done", "is_long", "value")

    def __init__(self) -> None:
        self.is_done = self.is_long = False
        """`is_long`: it is worked on in slices; the client's next requests wait for it, and it is encoded off this thread. Set
        just before the value it means the latter only."""
        self.held_bytes = 0
        """Bytes of the request that are kept until then: the client's next requests wait while they are too many."""
        self.value: Any = None
        self._callbacks: list[Callable[[Any], None]] = []

    @classmethod
    def of(cls, value: Any) -> Reply:
        """Return a reply that is there already."""
        reply = cls()
        reply.set(value)
        return reply

    def set(self, value: Any) -> None:
        """Complete the reply; a second call is a bug."""
        assert not self.is_done, "a reply is set once"
        self.is_done, self.value = True, value
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(value)

    def then(self, callback: Callable[[Any], None]) -> None:
        """Call back with the value, now if it is there."""
        if self.is_done:
            callback(self.value)
        else:
            self._callbacks.append(callback)


def as_reply(value: Any) -> Reply:
    """Return the value as a reply that is done, or the reply that it is."""
    if isinstance(value, Reply):
        return value
    reply = Reply()
    reply.set(value)
    return reply


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


class Clock(Protocol):
    """Time as the core sees it."""

    def wall_ms(self) -> int: ...

    def monotonic_ms(self) -> int: ...


class Timer(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """Calls back on the broker thread after a delay; a test drives it by hand."""

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer: ...


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """A record of an internal compacted topic; value None is a tombstone."""

    key: bytes
    value: bytes | None
    timestamp_ms: int = -1


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


@dataclass(frozen=True, slots=True)
class ReplayedBatch:
    """A batch of an internal topic as read back. `marker` is None for data, else True for commit and False for abort."""

    base_offset: int
    producer_id: int
    producer_epoch: int
    is_transactional: bool
    marker: bool | None
    records: tuple[JournalRecord, ...]


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
    ) -> Reply:
        """Append a control batch; the reply is set to error code 0 once it is on disk."""
        ...
