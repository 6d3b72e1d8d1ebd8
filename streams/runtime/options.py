"""How an application runs: data, validated once."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path

from logflume.log import InvalidInput, UnknownName

from .handlers import Handler, Handlers, OnProblem, OnUncaught, UncaughtHandler, checked


class Guarantee(StrEnum):
    """EXACTLY_ONCE: outputs, changelogs and offsets in one transaction. AT_LEAST_ONCE: in that order, without one."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


class OnGap(StrEnum):
    """What happens when records were deleted by retention before they were read. EARLIEST: counted, then on from the oldest.

    State is never gone on with from a topic that was made anew and whose offsets are gone with it: nothing says that its records
    are not those that the state holds.
    """

    STOP = "stop"
    EARLIEST = "earliest"


def no_failpoint(name: str) -> None:
    """Do nothing: the default of `EngineOptions.failpoint`."""


_RACK_MAX = 249


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Settings of one engine.

    Attributes:
        state_dir: where state lives; each running instance of an application takes a numbered directory of its own in it.
        commit_interval_ms: time from one task commit to the next while there is something to commit, of which at least half is
            left for processing; after a pause the first comes at once.
        commit_bytes: input that makes a task commit due earlier.
        memory_bytes: for all stores of the application together: entries in memory, and RocksDB's cache and write buffers.
        buffered_records_max: per input partition; beyond it fetching that partition pauses.
        offset_reset: where an input without committed offset begins, "earliest" or "latest".
        on_problem: "skip", "stop" or a function of a `Problem` that returns one of them, for records that cannot be decoded
            (`on_decode` where given), processed (`on_process`) or put out (`on_produce`).
        on_uncaught: "stop", "restart" or a function of the error that returns one of them: what an error of the application
            itself does, which would end it.
        dead_letter_topic: where records that cannot be processed are kept, None: only in the log.
        heartbeat_interval_ms: how often the group is told that the instance lives, which hears of a rebalance that way; a third
            of session_timeout_ms at most.
        transaction_timeout_ms: how long an instance that died in the middle of a transaction can hold up readers and successors.
        purge_interval_ms: how often what was processed is deleted from repartition topics.
        instance_id: the name of this instance, which must be its own: a restart is then the same member of the group wherever it
            runs. None: one that follows from the host's name and the state directory's path.
        num_standby_replicas: how many other instances keep a copy of each task's state, which follows its changelog: one of them
            takes over at once when the instance ends.
        rack: where this instance is (a zone, a room): copies are kept in other racks than the task, as far as there are any.
        acceptable_recovery_lag: how many records of its changelogs a copy may lack to be given the task; what moves to an
            instance without such a copy is copied first, and runs where it was meanwhile.
        max_warmup_replicas: how many tasks are copied for that at a time.
        blocked_after_ms: how long one call of a task may last before it is said, with the function and its line, in the log and
            in the status.
        drops: stores that the application kept and shall lose, because the topology has them no more; others stop the start.
        endpoint: "host:port" on which the instance answers what it is doing, and reads of its stores, to other processes (port 0:
            any free one; they find it through the group). None: nowhere. On an address that is not of this machine alone it takes
            `endpoint_certificate`, and a log with users, TLS and logins: those who may read the group are answered.
        endpoint_certificate: a file (PEM) with the certificate of this host and its key, as `logflume cert issue` writes it; the
            log has users.
        endpoint_insecure: answer whoever reaches the endpoint nevertheless, which is said aloud.
        leaves_group: on a graceful stop, hand the partitions to other instances at once.
        failpoint: called with a name at each step of a task commit (before-flush, after-flush, after-produce, after-send-offsets
            or after-log-flush, after-log-commit, before-store-batch, after-store-batch); tests kill the process in it.
    """

    state_dir: Path = Path("data/state")
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    commit_interval_ms: int = 100
    commit_bytes: int = 64 << 20
    memory_bytes: int = 512 << 20
    buffered_records_max: int = 200_000
    offset_reset: str = "earliest"
    on_problem: Handler = OnProblem.SKIP
    on_decode: Handler | None = None
    on_process: Handler | None = None
    on_produce: Handler | None = None
    on_uncaught: UncaughtHandler = OnUncaught.STOP
    on_gap: OnGap = OnGap.STOP
    dead_letter_topic: str | None = None
    instance_id: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 1_000
    transaction_timeout_ms: int = 10_000
    purge_interval_ms: int = 30_000
    num_standby_replicas: int = 0
    rack: str | None = None
    acceptable_recovery_lag: int = 10_000
    max_warmup_replicas: int = 2
    blocked_after_ms: int = 2_000
    drops: tuple[str, ...] = ()
    endpoint: str | None = None
    endpoint_certificate: Path | None = None
    endpoint_insecure: bool = False
    leaves_group: bool = True
    failpoint: Callable[[str], None] = no_failpoint

    @property
    def handlers(self) -> Handlers:
        """Who decides about records that cannot be processed."""
        return Handlers(*(each or self.on_problem for each in (self.on_decode, self.on_process, self.on_produce)))

    def __post_init__(self) -> None:
        self._check_kinds()
        object.__setattr__(self, "state_dir", Path(self.state_dir))
        if self.endpoint_certificate is not None:
            object.__setattr__(self, "endpoint_certificate", Path(self.endpoint_certificate))
        object.__setattr__(self, "drops", (self.drops,) if isinstance(self.drops, str) else tuple(self.drops))
        for name in ("on_problem", "on_decode", "on_process", "on_produce"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, checked(name, value, OnProblem))
        object.__setattr__(self, "on_uncaught", checked("on_uncaught", self.on_uncaught, OnUncaught))
        for name, kind in (("guarantee", Guarantee), ("on_gap", OnGap)):
            value = getattr(self, name)
            if value not in list(kind):
                raise UnknownName(name, str(value), [each.value for each in kind])
            object.__setattr__(self, name, kind(value))
        if self.offset_reset not in ("earliest", "latest"):
            raise InvalidInput(f"offset_reset must be 'earliest' or 'latest', not {self.offset_reset!r}")
        for name in (
            "commit_interval_ms",
            "commit_bytes",
            "memory_bytes",
            "buffered_records_max",
            "session_timeout_ms",
            "heartbeat_interval_ms",
            "purge_interval_ms",
            "blocked_after_ms",
        ):
            if getattr(self, name) <= 0:
                raise InvalidInput(f"{name} must be greater than 0, not {getattr(self, name)}")
        for name, least in (("num_standby_replicas", 0), ("acceptable_recovery_lag", 0), ("max_warmup_replicas", 1)):
            if getattr(self, name) < least:
                raise InvalidInput(f"{name} must be {least} or more, not {getattr(self, name)}")
        if self.rack is not None and not (isinstance(self.rack, str) and 0 < len(self.rack) <= _RACK_MAX):
            raise InvalidInput(f"rack must be a name of 1 to {_RACK_MAX} characters, not {self.rack!r:.100}")
        if self.transaction_timeout_ms <= self.commit_interval_ms:
            raise InvalidInput(
                f"transaction_timeout_ms ({self.transaction_timeout_ms}) must be greater than "
                f"commit_interval_ms ({self.commit_interval_ms}), or transactions would be aborted before they end"
            )

    def _check_kinds(self) -> None:
        """Raise InvalidInput: a setting is not of its kind."""
        for name in ("state_dir", "endpoint_certificate"):
            value = getattr(self, name)
            if not isinstance(value, str | os.PathLike) and (value is not None or name == "state_dir"):
                raise InvalidInput(f"{name} is a path, found {value!r:.100}")
        for name in ("dead_letter_topic", "instance_id", "endpoint"):
            if not isinstance(getattr(self, name), str | None):
                raise InvalidInput(f"{name} is text, found {getattr(self, name)!r:.100}")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and (not isinstance(value, int) or isinstance(value, bool)):
                raise InvalidInput(f"{field.name} is a whole number, found {value!r:.100}")
