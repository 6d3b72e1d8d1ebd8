"""Persistent queries while they run, each by an engine of its own: started, looked into, stopped, and cleaned up after.

Which engine, whoever makes them says: that of streams, or Spark (`on_spark.py`).
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from logflume.log import Admin, InvalidInput, LogflumeError
from logflume.log.interfaces import Log
from logflume.streams import plan
from logflume.streams.graph import Node, Repartition, Topology
from logflume.streams.runtime import (
    Engine,
    EngineOptions,
    EngineState,
    EngineStatus,
    TopicLook,
    TopicMap,
    Watches,
    forget_application,
)
from logflume.streams.seams import Plan

from .catalog import QueryInfo
from .errors import NotSupported, StatementError
from .planner import PlannedQuery
from .reach import is_reachable

FIRST_PAUSE_S, PAUSE_MAX_S = 1.0, 60.0
LOOK_PAUSE_S = 1.0
STOP_TIMEOUT_S, GONE_TIMEOUT_S = 60.0, 0.2
HEARTBEAT_INTERVAL_MS = 3_000
"""Where nothing is given: of hundreds of queries that wait, heartbeats are most of the cost."""
_log = logging.getLogger("logflume.sql")


def application_of(service: str, query: QueryInfo) -> str:
    """Return the name of a query's application, which no other query ever has; as `application_id`."""
    return application_id(service, query.id, query.generation)


@lru_cache(maxsize=1024)
def application_id(service: str, query_id: str, generation: int = 0) -> str:
    """Return the name of a query's application: its group, and the prefix of its internal topics.

    >>> application_id("logflume-sql", "FILL"), application_id("logflume-sql", "FILL", 1)
    ('logflume-sql-FILL', 'logflume-sql-FILL.2')
    """
    again = f".{generation + 1}" if generation else ""  # an id that can be given has no dot
    return f"{service}-{re.sub(r'[^A-Za-z0-9._-]', '_', query_id)}{again}"


def compile_query(query: PlannedQuery, application: str) -> Plan:
    """Compile a persistent query under its application's name; raises as `compile_topology`."""
    return compile_topology(query.topology, application)


def compile_topology(topology: Topology, application: str) -> Plan:
    """Compile a query.

    Raises:
        NotSupported: the streams engine has no way yet to run it.
    """
    try:
        return plan(_under(topology, application))
    except StatementError:
        raise
    except InvalidInput as e:
        raise NotSupported(f"this query ({e})") from e


def _under(topology: Topology, application: str) -> Topology:
    """Return a topology under its application's name; so are its own topics, which no two queries may share."""
    nodes: dict[str, Node] = {}
    for name, node in topology.nodes.items():
        if isinstance(node, Repartition):
            node = replace(node, topic=f"{application}-{node.topic.removeprefix(f'{topology.name}-')}")
        nodes[name] = node
    return replace(topology, name=application, nodes=MappingProxyType(nodes))


@dataclass(slots=True)
class _Failure:
    """Why a query does not run, and when it is tried again. `is_passing`: the log is away, as it may be for one that runs."""

    application: str
    error: str
    at_s: float
    pause_s: float = FIRST_PAUSE_S
    is_passing: bool = False

    def status(self) -> EngineStatus:
        """Return what is said of the query meanwhile."""
        state = EngineState.STARTING if self.is_passing else EngineState.FAILED
        return EngineStatus(self.application, state, "", error=self.error)


class QueryEngine(Protocol):
    """Runs one query. `plan`: what it runs; `has_ended`: by itself, `status` says why."""

    @property
    def plan(self) -> Plan: ...
    @property
    def has_ended(self) -> bool: ...
    def start(self) -> None: ...
    def stop(self, *, timeout_s: float) -> None: ...
    def status(self) -> EngineStatus: ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """A query that is to run, as this application. `compile` refuses one that is planned otherwise than when it was made; `load`
    pickles.

    `letters`: its dead letter topic, if it has one of its own. `topics`: its topics as somebody has just prepared them; None: who
    runs it does.
    """

    application: str
    compile: Callable[[], Plan]
    load: Callable[[], Plan]
    letters: str | None = None
    topics: TopicMap | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """A query that has been checked in full, as the streams runtime runs it, and its topics if they are there already."""

    plan: Plan
    topics: TopicMap | None


@dataclass(frozen=True, slots=True)
class Left:
    """What a query may have left that has ended: the group and the state of its application, and its internal topics.

    `topics` plans the query anew to name them.
    """

    query_id: str
    application: str
    topics: Callable[[], frozenset[str]] = field(compare=False)


@dataclass(frozen=True, slots=True)
class LeftThere:
    """The groups, topics (sorted) and folders of state that there are, whoever they are of."""

    groups: frozenset[str]
    topics: tuple[str, ...]
    folders: frozenset[str]

    @classmethod
    def look(cls, admin: Admin, state_dir: Path) -> LeftThere:
        """Ask for all of them at once. Raises LogflumeError."""
        folders = frozenset(each.name for each in state_dir.iterdir()) if state_dir.is_dir() else frozenset[str]()
        return cls(frozenset(admin.list_groups()), tuple(sorted(admin.list_topics(include_internal=True))), folders)

    def has_any(self, application: str) -> bool:
        """Tell whether anything may be of an application; which topics are its own, only its plan says."""
        at = bisect_left(self.topics, f"{application}-")
        has_topic = at < len(self.topics) and self.topics[at].startswith(f"{application}-")
        return has_topic or application in self.groups or application in self.folders


MakeEngine = Callable[[Plan, Wanted], QueryEngine]
"""Makes what runs a query, which is compiled already."""


def live_engines(log: Log, options: EngineOptions) -> MakeEngine:
    """Return what makes engines of streams, which ask about their topics together and are looked after by one thread."""
    look, watches = TopicLook(log.admin(), monotonic_s=time.monotonic), Watches()  # as engines go by

    def made(plan: Plan, wanted: Wanted) -> Engine:
        letters = wanted.letters or options.dead_letter_topic
        return Engine(plan, log, replace(options, dead_letter_topic=letters), topics=wanted.topics, look=look, watches=watches)

    return made


class RunningQueries:
    """The engines by query id. Not thread-safe: used under the lock of its owner, except `status` and `engine`.

    A query that cannot be started, or has failed, is started again with growing pauses; until then its status says why: FAILED,
    or STARTING while its log is away, which ends by itself.
    """

    def __init__(
        self,
        log: Log,
        options: EngineOptions,
        make: MakeEngine,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log, self._options, self._make, self._monotonic_s = log, options, make, monotonic_s
        self._engines: dict[str, QueryEngine] = {}
        self._failures: dict[str, _Failure] = {}
        self._looks_at_s: dict[Left, float] = {}
        self._ending: dict[str, QueryEngine] = {}
        """Told to stop, and not waited for any longer: a micro-batch may take its time."""

    def keep(self, wanted: Mapping[str, Wanted]) -> None:
        """Start those that should run and do not, each compiled when it is started."""
        for query_id, each in wanted.items():
            if self._is_ending(query_id):
                continue
            engine = self._engines.get(query_id)
            if engine is not None and engine.has_ended:
                error = engine.status().error
                self._engines.pop(query_id)
                if error is not None:
                    self._failed(query_id, each, error)
                engine = None
            failure = self._failures.get(query_id)
            if engine is not None and failure is not None and self._monotonic_s() > failure.at_s + PAUSE_MAX_S:
                self._failures.pop(query_id)  # it has run well for a while: the next failure begins with a short pause
            if engine is None and (failure is None or self._monotonic_s() >= failure.at_s):
                try:
                    self._start(query_id, each)
                except LogflumeError as error:
                    self._failed(query_id, each, str(error), is_passing=error.is_retriable)

    def _start(self, query_id: str, wanted: Wanted) -> None:
        """Start a query. Raises what the engine refuses: missing topics, state that another process holds."""
        engine = self._make(wanted.compile(), wanted)
        engine.start()
        self._engines[query_id] = engine

    def _failed(self, query_id: str, wanted: Wanted, error: str, *, is_passing: bool = False) -> None:
        before = self._failures.get(query_id)
        pause_s = FIRST_PAUSE_S if before is None else min(before.pause_s * 2, PAUSE_MAX_S)
        self._failures[query_id] = _Failure(wanted.application, error, self._monotonic_s() + pause_s, pause_s, is_passing)
        if before is None or before.error != error:
            _log.warning("query %s: %s; trying again in %g s", query_id, error, pause_s)

    def engine(self, query_id: str) -> QueryEngine | None:
        return self._engines.get(query_id)

    def status(self) -> Mapping[str, EngineStatus]:
        """Return what each query is doing, or why it does not run."""
        found = {query_id: engine.status() for query_id, engine in list(self._engines.items())}
        for query_id, failure in list(self._failures.items()):
            found.setdefault(query_id, failure.status())
        return found

    def stop(self, query_ids: Collection[str], *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop queries: all are told, then waited for so long in all; they go on where they were at the next start."""
        engines = {query_id: self._engines.pop(query_id) for query_id in query_ids if query_id in self._engines}
        for query_id in query_ids:
            self._failures.pop(query_id, None)
        deadline_s = self._monotonic_s() + timeout_s
        for is_told in (False, True):
            for engine in engines.values():
                with contextlib.suppress(LogflumeError):
                    engine.stop(timeout_s=max(deadline_s - self._monotonic_s(), 0.0) if is_told else 0.0)
        self._ending = {query_id: engine for query_id, engine in (self._ending | engines).items() if not engine.has_ended}

    def _is_ending(self, query_id: str) -> bool:
        return query_id in self._ending and not self._ending[query_id].has_ended

    def forget(self, left: Sequence[Left]) -> list[Left]:
        """Remove what queries left, each unless somebody still runs it, here or elsewhere; return what is not removed yet.

        Looks for each once a second, for all of them at once; where that fails, it looks again.
        """
        now_s = self._monotonic_s()
        due = {each for each in left if not self._is_ending(each.query_id) and now_s >= self._looks_at_s.get(each, 0.0)}
        if not due:
            return list(left)
        self._looks_at_s |= dict.fromkeys(due, now_s + LOOK_PAUSE_S)
        try:
            there = LeftThere.look(self._log.admin(), self._options.state_dir)
        except (LogflumeError, OSError) as error:
            _log.warning("what ended queries left cannot be looked for yet: %s", error)
            return list(left)
        removed = {each for each in due if self._is_removed(each, there)}
        for each in removed:
            del self._looks_at_s[each]
        return [each for each in left if each not in removed]

    def _is_removed(self, left: Left, there: LeftThere) -> bool:
        if not there.has_any(left.application):
            return True
        admin = self._log.admin()
        try:
            if left.application in there.groups and admin.describe_group(left.application).members:
                return False
            forget_application(self._log, self._options.state_dir, left.application, left.topics().intersection(there.topics))
        except LogflumeError as error:
            _log.warning("what the query %s left is not removed yet: %s", left.query_id, error)
            return False
        return True

    def close(self) -> None:
        """Stop all; they go on at the next start. A log that is gone is not waited for: nothing can be committed to it."""
        timeout_s = STOP_TIMEOUT_S if is_reachable(self._log) else GONE_TIMEOUT_S
        self.stop(list(self._engines), timeout_s=timeout_s)
