"""Queries that Spark runs for good (`SET 'engine' = 'spark'`): a driver follows the catalog and keeps those running that it has.

The catalog says what runs a query; where that is Spark, servers and shells leave it to a driver (`logflume sql on-spark`). Its
position is what its group has committed, whoever runs it: so PAUSE, `SET 'engine'` and RESUME move it to Spark and back.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from logflume.log import Admin, LogflumeError, connect_as_owner
from logflume.streams.runtime import EngineState, EngineStatus, members_of
from logflume.streams.seams import Plan

from .places import Role, default_state_dir

if TYPE_CHECKING:
    from logflume.streams.functions import Library
    from logflume.streams.spark import BatchDone

    from .running import Wanted

LOOK_EVERY_S = 0.2
_log = logging.getLogger("logflume.sql")


class RunQuery(Protocol):
    """Runs a query's micro-batches until `stopping` is set, or to the end of what is there; blocks."""

    def __call__(
        self,
        load_plan: Callable[[], Plan],
        state_root: Path,
        stopping: threading.Event,
        on_batch: Callable[[BatchDone], None],
        dead_letter_topic: str | None,
    ) -> None: ...


class SparkQuery:
    """One query on Spark, as `running.QueryEngine`: `run` in a thread of its own. Status is as of the last micro-batch.

    `gave_way`: why it has ended, if another instance took its place in the group.
    """

    def __init__(self, run: RunQuery, state_dir: Path, plan: Plan, wanted: Wanted) -> None:
        self.plan, self._run, self._wanted = plan, run, wanted
        self._state_root = state_dir / plan.application
        self._stopping = threading.Event()
        self._records, self._results = 0, 0
        self._behind: int | None = None
        self._dropped: Counter[str] = Counter()
        self._error: str | None = None
        self.gave_way: str | None = None
        self._thread = threading.Thread(target=self._work, name=f"on-spark-{plan.application}", daemon=True)

    def start(self) -> None:
        """Start its thread; what it cannot do is in `status`."""
        self._thread.start()

    def stop(self, *, timeout_s: float) -> None:
        """Let the micro-batch under way end, and none follow."""
        self._stopping.set()
        self._thread.join(timeout_s)

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def status(self) -> EngineStatus:
        state = EngineState.FAILED if self._error is not None else EngineState.STOPPED if self.has_ended else EngineState.RUNNING
        return EngineStatus(
            self.plan.application,
            state,
            "spark",
            records_in=self._records,
            records_out=self._results,
            dropped=dict(self._dropped),
            lag_records=self._behind,
            error=self._error,
        )

    def _work(self) -> None:
        try:
            self._run(self._wanted.load, self._state_root, self._stopping, self._took, self._wanted.letters)
        except Exception as error:  # whatever ends a query is told, and it is tried again  # noqa: BLE001
            from logflume.streams.spark import RunsElsewhere

            self._error = str(error) or type(error).__name__
            if isinstance(error, RunsElsewhere):
                self.gave_way = self._error
            if not isinstance(error, LogflumeError):
                _log.exception("query %s on Spark", self.plan.application)

    def _took(self, done: BatchDone) -> None:
        self._records += done.records
        self._results += done.results
        self._dropped.update(done.problems)
        self._behind = done.behind


class SparkQueries:
    """Makes the queries of a driver, as `running.MakeEngine`. One that gave way waits until its group has no member any more.

    A driver that starts takes the place of one that has died; of two that live, the one before would take it back, for ever.
    """

    def __init__(self, admin: Admin, run: RunQuery, state_dir: Path) -> None:
        self._admin, self._run, self._state_dir = admin, run, state_dir
        self._made: dict[str, SparkQuery] = {}

    def __call__(self, plan: Plan, wanted: Wanted) -> SparkQuery:
        """Return what runs a query. Raises RunsElsewhere while another instance does."""
        before = self._made.get(plan.application)
        if before is not None and before.gave_way is not None and members_of(self._admin, plan.application):
            from logflume.streams.spark import RunsElsewhere

            raise RunsElsewhere(before.gave_way)
        made = self._made[plan.application] = SparkQuery(self._run, self._state_dir, plan, wanted)
        return made


def driver_status(admin: Admin, application: str, told: Iterable[EngineStatus] = ()) -> EngineStatus:
    """Return what a process that is not the driver knows of a query on Spark: whether a driver is there, and how far it is.

    `told`: what drivers of this machine say, of which one has it; what one elsewhere has counted is not known.
    """
    committed = admin.group_offsets(application)
    ends = admin.end_offsets(committed, read_committed=True)
    lag = sum(max(end - committed[tp].offset, 0) for tp, end in ends.items()) if committed else None
    said = {each.state: each for each in told}
    if EngineState.RUNNING not in said and members_of(admin, application):
        return EngineStatus(application, EngineState.RUNNING, "", lag_records=lag)
    for state in (EngineState.RUNNING, EngineState.FAILED):
        if state in said:
            return replace(said[state], lag_records=lag)
    missing = "no driver runs it now (logflume sql on-spark); a driver that is up says why"
    return EngineStatus(application, EngineState.STARTING, "", lag_records=lag, error=missing)


def drive_queries(
    where: str,
    run: RunQuery,
    stopping: threading.Event,
    *,
    state_dir: Path | None = None,
    functions: Library | None = None,
    until_end: bool = False,
    on_status: Callable[[Mapping[str, EngineStatus]], None] = lambda _: None,
) -> None:
    """Keep the queries of a log that are to run on Spark running until `stopping` is set; follow what statements change.

    Args:
        state_dir: where their state is between micro-batches; all executors see it.
        functions: what statements may call; the built-in ones without.
        until_end: return when `run` has returned for each.
        on_status: told again and again what they do.

    Raises:
        LogflumeError: the log cannot be opened, or its commands cannot be read at the start; or a query has failed, `until_end`.
    """
    from .engine import SqlEngine
    from .pull_service import PullService

    folder = state_dir or default_state_dir(where) / "on-spark"
    with (
        connect_as_owner(where) as log,
        SqlEngine(log, folder, on_spark=run, library=functions) as engine,
        PullService(engine, log, role=Role.DRIVER),
    ):
        while not stopping.wait(LOOK_EVERY_S):
            status = engine.holders.local_status()
            on_status(status)
            if until_end:
                failed = [f"{query_id}: {each.error}" for query_id, each in status.items() if each.error is not None]
                if failed:
                    raise LogflumeError("; ".join(failed))
                if all(each.state is EngineState.STOPPED for each in status.values()):
                    return
            try:
                if not until_end:
                    engine.following.follow()
            except LogflumeError as error:
                _log.warning("commands cannot be read: %s; trying again", error)
