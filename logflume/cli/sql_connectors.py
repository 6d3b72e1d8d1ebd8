"""Runs the connectors that SQL statements make: the dialect's protocol (`sql/connectors.py`) over the worker of `connect`.

Every process that may run them is a member of one consumer group over the topic of commands, which has one partition: who has it
runs all of them. When that process dies or leaves, another one goes on from the kept offsets.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from logflume.connect import (
    ConnectorConfig,
    Worker,
    check_against_records,
    connector_names,
    fill_in,
    find_connector,
    load_connector,
    made_ready,
    make_topics,
    paused_connectors,
    resume_connector,
)
from logflume.log import InvalidInput, LogflumeError
from logflume.log.interfaces import Consumer, Log
from logflume.sql import ConnectorInfo, ConnectorState, ConnectorTask, command_topic

POLL_S = 0.2
PAUSE_FIRST_S, PAUSE_MAX_S = 1.0, 60.0
STOP_TIMEOUT_S = 60.0
_log = logging.getLogger("logflume.sql")


@dataclass(slots=True)
class _Failure:
    """Why a connector could not be started, and when that is tried again."""

    connector: ConnectorInfo
    error: str
    at_s: float
    pause_s: float


class SqlConnectors:
    """See the module. Thread-safe.

    Invariant: connectors start and stop in one thread, which ends with all of them stopped.
    """

    def __init__(self, log: Log, service: str) -> None:
        self._log, self._service = log, service
        self._worker = Worker(log, ())
        self._wanted: Mapping[str, ConnectorInfo] = {}
        self._running: dict[str, ConnectorInfo] = {}
        self._failures: dict[str, _Failure] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._consumer: Consumer | None = None

    def prepare(self, connector: ConnectorInfo) -> None:
        """Make the topics that a source writes to, so that streams can be made over them at once.

        Raises:
            LogflumeError: all that is wrong with it; nothing was done.
        """
        found = loaded(connector)
        if found.is_source is not connector.is_source:
            kind = "SOURCE" if found.is_source else "SINK"
            raise InvalidInput(f"{found.plugin.name!r} is a {kind.lower()}: write CREATE {kind} CONNECTOR")
        if found.name in paused_connectors(self._log):  # one of its name was paused and dropped
            resume_connector(self._log, found.name)
        if found.is_source:
            make_topics(self._log, found)
        else:
            self._log.admin().describe_topics(found.topics)
            check_against_records(self._log, made_ready(found))

    def plugins(self) -> list[tuple[str, str, str]]:
        """Return (name, SOURCE or SINK, what it does) of what is installed."""
        found = [(name, find_connector(name)) for name in connector_names()]
        return [(name, plugin.kind.upper(), plugin.doc) for name, plugin in found]

    def keep(self, wanted: Mapping[str, ConnectorInfo]) -> None:
        """From now on run these and no others, if this process is the one that does. Does not wait."""
        if wanted == self._wanted:
            return
        self._wanted = dict(wanted)
        if self._thread is None and wanted:
            self._thread = threading.Thread(target=self._run, name="sql-connectors", daemon=True)
            self._thread.start()

    def states(self) -> list[ConnectorState]:
        """Return how those are that run in this process."""
        found = []
        for status in self._worker.status():
            tasks = [ConnectorTask(t.task, t.state.value, t.records, t.broken, t.cause) for t in status.tasks]
            shown = ConnectorState(status.name, status.state.value, tasks, list(status.topics), status.config, status.cause)
            found.append(shown)
        return found + [ConnectorState(name, "FAILED", trace=each.error) for name, each in list(self._failures.items())]

    def close(self) -> None:
        """Stop what runs here; another process takes over."""
        self._stopping.set()
        consumer, thread = self._consumer, self._thread
        if consumer is not None:
            with suppress(LogflumeError):
                consumer.wakeup()
        if thread is not None:
            thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        pause_s = PAUSE_FIRST_S
        while not self._stopping.is_set():
            try:
                self._follow_turns()
            except LogflumeError as error:
                _log.warning("connectors of SQL: %s; trying again in %g s", error, pause_s)
                self._stopping.wait(pause_s)
                pause_s = min(pause_s * 2, PAUSE_MAX_S)
        self._worker.stop()

    def _follow_turns(self) -> None:
        """Be a member of the group; run the connectors while it is this process's turn."""
        topic = command_topic(self._service)
        consumer = self._consumer = self._log.consumer(group_id=f"{self._service}-connectors", offset_reset="latest")
        try:
            consumer.subscribe([topic])
            while not self._stopping.is_set():
                consumer.poll(timeout_s=POLL_S)
                self._fit(self._wanted if consumer.assignment() else {})
        finally:
            self._consumer = None
            self._fit({})
            consumer.close()

    def _fit(self, wanted: Mapping[str, ConnectorInfo]) -> None:
        """Stop connectors that are gone or another by now, start those that are new."""
        for name, connector in list(self._running.items()):
            if wanted.get(name) != connector:
                self._worker.remove(name)
                del self._running[name]
        for name, failure in list(self._failures.items()):
            if wanted.get(name) != failure.connector:
                del self._failures[name]
        for name, connector in wanted.items():
            earlier = self._failures.get(name)
            if name not in self._running and (earlier is None or time.monotonic() >= earlier.at_s):
                self._start(connector, earlier)

    def _start(self, connector: ConnectorInfo, earlier: _Failure | None) -> None:
        try:
            self._worker.add(loaded(connector))
        except LogflumeError as error:
            pause_s = PAUSE_FIRST_S if earlier is None else min(earlier.pause_s * 2, PAUSE_MAX_S)
            self._failures[connector.name] = _Failure(connector, str(error), time.monotonic() + pause_s, pause_s)
            if earlier is None or earlier.error != str(error):
                _log.warning("connector %s: %s; trying again in %g s", connector.name, error, pause_s)
            return
        self._failures.pop(connector.name, None)
        self._running[connector.name] = connector


def loaded(connector: ConnectorInfo) -> ConnectorConfig:
    """Return a connector ready to be started; `${env:NAME}` and `${file:PATH}` of its options are those of this process.

    Raises:
        LogflumeError: everything that is wrong with its options.
    """
    where = f"connector {connector.name}"
    given = {**connector.config, "name": connector.name}
    return load_connector(fill_in(given, environ=os.environ, base=Path.cwd(), where=where))
