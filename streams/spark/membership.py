"""The driver as a member of the application's consumer group: while it holds all partitions, nobody else runs the application.

Its commits name the member and the generation, so that the broker refuses them once the group has gone on without it. An instance
of the live engine that starts meanwhile joins the same group; the driver gives way to it. A driver that starts while instances
run is refused: they cannot be asked to stop. A driver that was killed is replaced at once by the next one, which has its name in
the group, or by a live instance after the session timeout.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from logflume.log import GroupMetadata, InvalidInput, Log, LogflumeError, TopicPartition, TransactionMustAbort, TransportError
from logflume.log.interfaces import GroupMemberDescription
from logflume.streams.runtime.assigning import Copies, Sharing, task_strategy
from logflume.streams.runtime.closing import within
from logflume.streams.runtime.failures import is_replaced
from logflume.streams.seams import Plan

SESSION_TIMEOUT_MS = 20_000
INSTANCE = "on-spark"
_JOINED_TIMEOUT_S = 60.0
_POLL_EVERY_S = 0.1
_FAREWELL_S = 5.0
_FENCED = frozenset({"PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION"})
"""What a driver may be told whose place another one has taken, among others."""


class RunsElsewhere(LogflumeError):
    """Another instance of the application has started, and goes on where this one has committed."""

    code = "RUNS_ELSEWHERE"


class Member:
    """See the module. A context: joins when it is entered. `metadata` in any thread; a thread of its own stays in the group.

    `partitions`: topic -> how many, of all topics of the application.
    """

    def __init__(self, log: Log, plan: Plan, partitions: Mapping[str, int]) -> None:
        subs = plan.subtopologies
        topics = set().union(*(sub.shared_topics() for sub in subs))
        self._application, self._admin = plan.application, log.admin()
        self._all = {TopicPartition(topic, p) for topic in topics for p in range(partitions[topic])}
        self._instance = f"{plan.application}-{INSTANCE}"
        sharing = Sharing({sub.name: sub.shared_topics() for sub in subs}, frozenset(s.name for s in subs if s.program.stores))
        self._consumer = log.consumer(
            group_id=plan.application,
            group_instance_id=self._instance,
            read_committed=True,
            offset_reset="none",
            session_timeout_ms=SESSION_TIMEOUT_MS,
            assignment_strategies=[task_strategy(sharing, dict, _follow_nobody)],
            client_id=self._instance,
        )
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._problem: LogflumeError | None = None
        self._generation = -1
        self._ids: set[str] = set()
        self._has_lost = False
        self._thread = threading.Thread(target=self._stay, name=f"member-{plan.application}", daemon=True)

    def __enter__(self) -> Self:
        """Join the group.

        Raises:
            InvalidInput: instances of the application run.
        """
        try:
            self._refuse_others()
            self._consumer.subscribe(sorted({tp.topic for tp in self._all}), on_assigned=self._assigned, on_revoked=self._revoked)
            deadline = time.monotonic() + _JOINED_TIMEOUT_S
            while set(self._consumer.assignment()) != self._all:
                self._consumer.poll(timeout_s=_POLL_EVERY_S)
                if time.monotonic() > deadline:
                    raise TransportError(f"the group of {self._application!r} was not joined within {_JOINED_TIMEOUT_S:g} s")
            self._generation = self._consumer.group_metadata().generation
        except BaseException:
            self._leave()
            raise
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        self._leave()

    def metadata(self) -> GroupMetadata:
        """Return who this member is, as a commit says it.

        Raises:
            RunsElsewhere: another instance has started. LogflumeError: what else has ended the membership.
        """
        self.check()
        with self._lock:
            found = self._consumer.group_metadata()
            if self._has_lost:
                self._problem = self._problem or self._why()
        self.check()
        return found

    def check(self) -> None:
        """Raise what has ended the membership, if anything has."""
        if self._problem is not None:
            raise self._problem

    def reason(self, error: LogflumeError) -> LogflumeError:
        """Return what is behind an error: RunsElsewhere if another driver has this one's place, else the error itself."""
        if is_replaced(error):
            return self._replaced()
        if error.code in _FENCED or isinstance(error, TransactionMustAbort):
            with suppress(LogflumeError):
                return self._replaced() if self._has_successor() else error
        return error

    def _replaced(self) -> RunsElsewhere:
        return RunsElsewhere(
            f"another driver of {self._application!r} has started and taken this one's place: it goes on from what was committed "
            "here"
        )

    def _stay(self) -> None:
        while not self._ended.wait(_POLL_EVERY_S) and self._problem is None:
            try:
                with self._lock:
                    self._consumer.poll(timeout_s=0.0)
                    generation = self._consumer.group_metadata().generation
                    self._ids.add(self._consumer.group_metadata().member_id)
                if generation != self._generation or self._has_lost:
                    self._generation = generation
                    self._problem = self._why()
            except LogflumeError as error:
                self._problem = self.reason(error)

    def _why(self) -> LogflumeError | None:
        """Return what has ended the membership, now that the group has changed; None: nothing."""
        others = self._others()
        if others:
            return RunsElsewhere(
                f"another instance of {self._application!r} has started ({others[0]}): it goes on from what was committed here"
            )
        return TransportError(f"the driver of {self._application!r} has lost its place in the group") if self._has_lost else None

    def _members(self) -> Sequence[GroupMemberDescription]:
        is_there = self._application in self._admin.list_groups()
        return self._admin.describe_group(self._application).members if is_there else ()

    def _others(self) -> list[str]:
        return sorted(each.instance_id or each.client_id for each in self._members() if each.instance_id != self._instance)

    def _has_successor(self) -> bool:
        """Return whether a driver that started later has this one's name in the group."""
        self._ids.add(self._consumer.group_metadata().member_id)
        return any(each.instance_id == self._instance and each.member_id not in self._ids for each in self._members())

    def _refuse_others(self) -> None:
        others = self._others()
        if others:
            raise InvalidInput(
                f"application {self._application!r} is running ({', '.join(others)}): stop it, and Spark goes on where it has "
                "come to; an instance that was killed counts until its session timeout is over"
            )

    def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Nothing is read here."""
        for partition in partitions:
            self._consumer.seek(partition, 0)
        self._consumer.pause(partitions)

    def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._has_lost = self._has_lost or bool(partitions)

    def _leave(self) -> None:
        self._ids.add(self._consumer.group_metadata().member_id)
        within(_FAREWELL_S, self._consumer.close, self._take_out)

    def _take_out(self) -> None:
        """Take the name out of the group, where it stays after its consumer, unless it is another driver's by now."""
        if any(each.instance_id == self._instance and each.member_id in self._ids for each in self._members()):
            self._admin.remove_group_members(self._application, [self._instance])


def _follow_nobody(copies: Copies) -> None:
    """Nobody's state is copied here."""
