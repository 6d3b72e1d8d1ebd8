"""Follows the command topic: what its commands have made, and the queries and connectors that run because of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from logflume.log import LogflumeError
from logflume.log.interfaces import Log
from logflume.streams.functions import Library
from logflume.streams.runtime import internal_topics
from logflume.streams.seams import Plan

from .applying import Applied, KnownQuery
from .catalog import Catalog
from .command_log import Command, CommandLog, command_topic
from .connectors import Connectors, ConnectorsOf
from .definitions import is_given_away
from .errors import StatementError
from .forsaken import Forsaken
from .recorded import RecordedPlan, check_same, own_topics, recorded_plan
from .running import Checked, Left, RunningQueries, Wanted, application_id, application_of, compile_query
from .table_state import Tables

_log = logging.getLogger("logflume.sql")
SHOWN_CHARACTERS = 500
"""Of a command that cannot be applied."""


class Following:
    """See the module. What changes it holds `lock`; `applied` is replaced as a whole, so that it may be read without.

    Attributes:
        applied: what the commands have made, as of the last one that was read.
        runs_queries: whether queries and connectors run in this process: those queries that are for its `kind` of engine.
        problems: commands that could not be applied, and why.
    """

    def __init__(
        self,
        log: Log,
        service: str,
        functions: Library,
        running: RunningQueries,
        *,
        kind: str,
        runs_queries: bool,
        connectors: ConnectorsOf | None,
    ) -> None:
        self.log, self.service, self.functions, self.runs_queries = log, service, functions, runs_queries
        self.lock = threading.RLock()
        self.applied = Applied()
        self.problems: list[str] = []
        self.tables = Tables()
        self._fitted = Applied()
        self.running, self._kind = running, kind
        self._left: list[Left] = []
        self._in_vain: list[RecordedPlan] = []
        self._forsaken = Forsaken(service)
        self._wanted: dict[str, Wanted] = {}
        self.connectors: Connectors | None = None if connectors is None else connectors(log, service)
        self.commands = CommandLog(log, command_topic(service))

    @property
    def catalog(self) -> Catalog:
        return self.applied.catalog

    def stop_queries(self) -> None:
        """Run no queries any more: somebody else does from now on."""
        with self.lock:
            self.runs_queries = False
            self.running.close()
            if self.connectors is not None:
                self.connectors.keep({})

    def record(self, command: Command, query: Checked | None = None) -> None:
        """Write a command, then apply all up to it: its own, and those of others that came before it."""
        expected = self.commands.next_offset
        offset = self.commands.append(replace(command, expected=expected))
        checked = {} if query is None or command.query_id is None else {command.query_id: query}
        self.catch_up(needed=offset, checked=checked if offset == expected else {})

    def last_command(self, *, at_least: int = -1) -> int:
        """Return the offset of the last command that is applied; before, read what is new unless it is `at_least` that."""
        with self.lock:
            if self.commands.next_offset <= at_least:
                self.catch_up()
            return self.commands.next_offset - 1

    def catch_up(self, *, needed: int | None = None, checked: Mapping[str, Checked] = MappingProxyType({})) -> None:
        """Apply the commands that are new in the topic, then start and stop queries to fit.

        `checked`: queries of these commands by id, where nothing has changed since they were checked.

        Raises:
            LogflumeError: the command at offset `needed` could not be applied. Failures of others are kept in `problems`, except
                those that lost a race when they were made: whoever made them was told then.
        """
        with self.lock:
            self._apply(self.commands.read_new(stop=None if needed is None else needed + 1), needed, checked)

    def follow(self) -> None:
        """Apply the commands that have arrived, then start and stop queries to fit: for the one who calls it over and over.

        Brokers are not asked for commands, and for what is left not under the lock, so that one that is gone holds up nobody who
        wants it: to stop, for one.
        """
        forsaken = self._forsaken_now() if self.runs_queries else []
        with self.lock:
            self._left += [each for each in forsaken if each not in self._left]
            self._apply(self.commands.read_arrived(), None, MappingProxyType({}))

    def _apply(self, commands: Iterator[tuple[int, Command]], needed: int | None, checked: Mapping[str, Checked]) -> None:
        failure: LogflumeError | None = None
        for offset, command in commands:
            before = self.applied
            try:
                self.applied = before.after(command, self.functions)
            except LogflumeError as e:
                failure = e if offset == needed else failure
                if command.expected is None or command.expected == offset:
                    self._problem(offset, command, str(e))
                elif command.plan is not None:
                    self._in_vain.append(command.plan)
            except RecursionError:
                self._problem(offset, command, "nested too deeply")
            if self.runs_queries:
                self._left += self._ended_since(before)
        if self.runs_queries:
            self._fit_queries(checked)
            if self.connectors is not None:
                self.connectors.keep(self.catalog.connectors)
        if failure is not None:
            raise failure

    def _problem(self, offset: int, command: Command, text: str) -> None:
        self.problems.append(f"command {offset} ({command.statement[:SHOWN_CHARACTERS]}): {text}")
        _log.warning("command %d cannot be applied: %s", offset, text)

    def _fit_queries(self, checked: Mapping[str, Checked]) -> None:
        """Stop queries that ended, changed or were paused since they were last fitted; start those that should run."""
        if self.applied is not self._fitted:
            self._stop_changed(self._fitted)
            self._wanted = {q: self._wanted_of(q, known) for q, known in self.applied.queries.items() if self._runs(q)}
        self._left = self.running.forget([*self._left, *self._prepared_in_vain()])
        wanted, known = dict(self._wanted), self.applied.queries
        for query_id, query in checked.items():
            if query_id in wanted:
                again = partial(self.compiled, query_id, known[query_id], query.plan)
                wanted[query_id] = replace(wanted[query_id], compile=again, topics=query.topics)
        self.running.keep(wanted)
        self._fitted = self.applied

    def _forsaken_now(self) -> list[Left]:
        """Return what push queries of servers that are gone left."""
        try:
            return self._forsaken.look(self.log.admin(), time.monotonic())
        except LogflumeError as error:
            _log.warning("what push queries left cannot be looked for yet: %s", error)
            return []

    def _stop_changed(self, before: Applied) -> None:
        """Stop queries that do not go on as they were."""
        queries = self.catalog.queries
        stopped: list[str] = []
        for query_id, known in before.queries.items():
            info, now = before.catalog.queries[query_id], queries.get(query_id)
            is_same = now is not None and now.generation == info.generation
            if is_same and known is self.applied.queries[query_id] and self._runs(query_id):
                continue
            self.tables.forget(query_id)
            stopped.append(query_id)
        self.running.stop(stopped)

    def _ended_since(self, before: Applied) -> list[Left]:
        """Return what the queries left that one command has ended."""
        ended = before.queries.keys() - self.applied.queries.keys()
        return [self._left_by(before.queries[q], application_of(self.service, before.catalog.queries[q])) for q in sorted(ended)]

    def _prepared_in_vain(self) -> list[Left]:
        """Return what queries left that were prepared and lost a race, each once nobody can get its id, and so its topics."""
        past = [plan for plan in self._in_vain if is_given_away(plan.query_id, self.catalog)]
        self._in_vain = [plan for plan in self._in_vain if plan not in past]
        applications = [application_id(self.service, plan.query_id) for plan in past]
        return [Left(plan.query_id, name, partial(own_topics, plan, name)) for plan, name in zip(past, applications, strict=True)]

    def _left_by(self, known: KnownQuery, application: str) -> Left:
        return Left(known.planned.query.id, application, partial(_topics_of, known, application))

    def _runs(self, query_id: str) -> bool:
        """Return whether a query is to run here: it goes on, and is for this kind of engine."""
        query = self.catalog.queries[query_id]
        return query.engine == self._kind and not query.is_paused

    def _wanted_of(self, query_id: str, known: KnownQuery) -> Wanted:
        fitted = self._wanted.get(query_id)
        if fitted is not None and self._fitted.queries.get(query_id) is known:
            return fitted  # a statement costs the same beside hundreds of queries
        query = known.planned.query
        application = application_of(self.service, query)
        load = partial(compile_query, known.planned, application)
        return Wanted(application, partial(self.compiled, query.id, known), load, query.dead_letter_topic)

    def compiled(self, query_id: str, known: KnownQuery, compiled: Plan | None = None) -> Plan:
        """Return a query as it is to run. Raises PlanChanged when it is planned otherwise than it was made."""
        compiled = compiled or compile_query(known.planned, application_of(self.service, known.planned.query))
        if known.recorded is not None:
            check_same(known.recorded, recorded_plan(known.planned, compiled))
        return compiled

    def close(self) -> None:
        """Stop what runs; all of it goes on at the next start."""
        if self.connectors is not None:
            self.connectors.close()
        self.running.close()
        self.commands.close()


def _topics_of(known: KnownQuery, application: str) -> frozenset[str]:
    try:
        return internal_topics(compile_query(known.planned, application))
    except StatementError:
        return frozenset()
