"""The worker: runs connectors, each task in a thread of its own, and says how they are."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType

from logflume.log import ClientClosed, InvalidInput, Log, LogflumeError, TopicPartition, UnknownName

from .errors import ConfigErrors, Problem
from .load import ConnectorConfig
from .meter import Meter
from .pause import PauseGate
from .sink_start import made_ready
from .sink_task import SinkTask
from .source_task import SourceTask, make_topics
from .status import ConnectorStatus, State
from .supervised_task import SupervisedTask
from .wanted import paused_connectors, wanted_states_end

_LOGGER = logging.getLogger("logflume.connect")
_WISHES_S = 0.5
_STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class _Running:
    connector: ConnectorConfig
    tasks: tuple[SupervisedTask, ...]
    pause: PauseGate


class Worker:
    """Runs connectors over one log. Context manager: entering starts them, leaving stops them gracefully.

    Invariant: a connector name runs at most once in a worker; across processes, a source task fences the older one of its
    name, and sink tasks share partitions through the consumer group.
    """

    def __init__(
        self, log: Log, connectors: Iterable[ConnectorConfig], *, is_once: bool = False, max_restarts: int | None = None
    ) -> None:
        """`is_once`: sinks complete at the end their topics have at the start (sources complete by themselves when bounded).

        Raises:
            ConfigErrors: a name is given twice.
        """
        self._log = log
        self._connectors = tuple(connectors)
        self._is_once = is_once
        self._max_restarts = max_restarts
        self._running: dict[str, _Running] = {}
        self._paused: frozenset[str] = frozenset()
        self._stopping = threading.Event()
        self._follower: threading.Thread | None = None
        names = [connector.name for connector in self._connectors]
        for connector in self._connectors:
            if names.count(connector.name) > 1:
                raise ConfigErrors(connector.where, [Problem("name", f"{connector.name!r} is the name of two connectors")])

    def start(self) -> None:
        """Start all connectors. Does not wait for them.

        Raises:
            InvalidInput: a sink's topic does not exist, and no source here writes it.
        """
        for connector in self._connectors:
            if connector.is_source:
                make_topics(self._log, connector)
        for connector in self._connectors:
            self.add(connector)

    def add(self, connector: ConnectorConfig) -> None:
        """Start one more connector."""
        if connector.name in self._running:
            raise ConfigErrors(connector.where, [Problem("name", f"connector {connector.name!r} is running already")])
        if self._follower is None:
            self._paused = paused_connectors(self._log)
            self._follower = threading.Thread(target=self._follow_wishes, name="connect-wanted", daemon=True)
            self._follower.start()
        running = self._prepare(connector)
        self._running[connector.name] = running
        self._fit(running)
        for task in running.tasks:
            task.start()

    def remove(self, name: str) -> None:
        """Stop one connector; its offsets stay."""
        running = self._find(name)
        _stop([running])
        del self._running[name]

    def restart(self, name: str) -> None:
        """Stop and start one connector, after its cause of failure was mended."""
        connector = self._find(name).connector
        self.remove(name)
        self.add(connector)

    def status(self) -> list[ConnectorStatus]:
        """Return the state of each connector, in the order they were added. Never blocks."""
        return [_status(running) for running in list(self._running.values())]

    def wait(self, *, timeout_s: float | None = None) -> bool:
        """Wait until every task has ended (completed, failed or stopped); returns whether they have."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        tasks = [task for running in self._running.values() for task in running.tasks]
        return all(task.join(None if deadline is None else max(deadline - time.monotonic(), 0)) for task in tasks)

    def errors(self) -> list[BaseException]:
        """Return what made tasks fail for good."""
        return [
            task.error
            for running in self._running.values()
            for task in running.tasks
            if task.error is not None and task.status().state is State.FAILED
        ]

    def stop(self) -> None:
        """Stop all connectors after the batch they are at, sinks flushed and offsets committed. Idempotent."""
        self._stopping.set()
        _stop(self._running.values())

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def _find(self, name: str) -> _Running:
        if name not in self._running:
            raise UnknownName("connector", name, self._running)
        return self._running[name]

    def _follow_wishes(self) -> None:
        """Let connectors rest and go on as somebody says, in any process, until this worker stops."""
        seen, told = 0, ""
        while not self._stopping.wait(_WISHES_S):
            try:
                end = wanted_states_end(self._log)
                if end != seen:
                    self._paused = paused_connectors(self._log)
                    seen, told = end, ""
                    for running in list(self._running.values()):
                        self._fit(running)
            except ClientClosed:
                return
            except LogflumeError as error:
                if str(error) != told:
                    _LOGGER.warning("connectors cannot be paused from elsewhere, tried again all the time: %s", error)
                told = str(error)

    def _fit(self, running: _Running) -> None:
        (running.pause.close if running.connector.name in self._paused else running.pause.open)()

    def _prepare(self, connector: ConnectorConfig) -> _Running:
        connector, pause = made_ready(connector), PauseGate()
        count = connector.config.integer("tasks.max")
        ends: Mapping[TopicPartition, int] | None = None
        if not connector.is_source:
            partitions = self._sink_partitions(connector)
            count = min(count, len(partitions))
            ends = self._ends(partitions) if self._is_once else None

        def make(task: int, meter: Meter) -> SourceTask | SinkTask:
            if connector.is_source:
                return SourceTask(self._log, connector, task, count, meter=meter, clock_s=time.monotonic)
            return SinkTask(self._log, connector, task, meter=meter, clock_s=time.monotonic, until_end=ends)

        tasks = tuple(
            SupervisedTask(
                connector.name,
                task,
                partial(make, task),
                secrets=connector.config.secret_texts(),
                pause=pause,
                max_restarts=self._max_restarts,
            )
            for task in range(count)
        )
        return _Running(connector, tasks, pause)

    def _sink_partitions(self, connector: ConnectorConfig) -> list[TopicPartition]:
        try:
            topics = self._log.admin().describe_topics(connector.topics)
        except UnknownName as error:
            raise InvalidInput(f"{connector.where}: topics: {error}") from error
        return [TopicPartition(name, number) for name, topic in topics.items() for number in range(topic.partitions)]

    def _ends(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """The end of each partition that holds anything."""
        admin = self._log.admin()
        starts, ends = admin.start_offsets(partitions), admin.end_offsets(partitions, read_committed=True)
        return {partition: end for partition, end in ends.items() if end > starts[partition]}


def _stop(running: Iterable[_Running]) -> None:
    connectors = list(running)
    for each in connectors:
        for task in each.tasks:
            task.ask_to_stop()
    for each in connectors:
        for task in each.tasks:
            task.join(_STOP_TIMEOUT_S)


def _status(running: _Running) -> ConnectorStatus:
    connector = running.connector
    etas = [eta for eta in (task.eta_s() for task in running.tasks) if eta is not None]
    return ConnectorStatus(
        name=connector.name,
        connector=connector.plugin.name,
        kind=connector.plugin.kind,
        guarantee=connector.plugin.guarantee(connector.config),
        tasks=tuple(task.status() for task in running.tasks),
        topics=connector.topics,
        config=connector.config.shown(),
        eta_s=max(etas) if etas else None,
    )
