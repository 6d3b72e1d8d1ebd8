"""Push queries: a topology of its own that runs while someone watches, from the beginning of its topics."""

from __future__ import annotations

import queue
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from logflume.log import TopicPartition
from logflume.log.interfaces import Log
from logflume.streams.runtime import Engine, EngineOptions, Guarantee, forget_application, internal_topics

from . import plan as p
from .reach import is_reachable
from .results import PushQuery, PushRow
from .resuming import Tokens, places_of, start_at, with_places
from .running import GONE_TIMEOUT_S, STOP_TIMEOUT_S, compile_topology
from .topology import build_topology

# Rows that wait for a reader; beyond it the query waits.
BUFFERED_ROWS_MAX = 10_000
_PUT_WAIT_S = 0.5


def watch_function(
    rows: queue.Queue[PushRow], is_over: Callable[[], bool], *, has_removals: bool = False
) -> Callable[[Any, Any, int], None]:
    """Return what the topology calls for each row: it queues the row, and waits while the reader is slow.

    A record without a value is the removal of a row in a table's changes, and no row of a stream.
    """

    def watch(key: Any, value: Any, timestamp_ms: int) -> None:
        if value is None and not has_removals:
            return
        row = PushRow((), timestamp_ms, True) if value is None else PushRow(tuple(value), timestamp_ms)
        while not is_over():
            try:
                rows.put(row, timeout=_PUT_WAIT_S)
            except queue.Full:
                continue
            return

    return watch


def _ends(log: Log, topics: list[str]) -> dict[TopicPartition, int]:
    admin = log.admin()
    described = admin.describe_topics(topics).values()
    return admin.end_offsets([TopicPartition(d.name, number) for d in described for number in range(d.partitions)])


def start_push(
    plan: p.QueryPlan, log: Log, service: str, *, offset_reset: str = "earliest", tokens: Tokens | None = None
) -> PushQuery:
    """Start a push query. `tokens`: it tells where it is, and may go on behind what an earlier one told.

    Raises:
        NotSupported: it cannot run yet. LogflumeError: its topics are missing.
        StatementError: it can have no tokens, or the token is not one of it.
    """
    places = None
    columns = plan.value
    topics = sorted({o.source.topic for o in p.operators(plan.root) if isinstance(o, p.Scan)})
    if tokens is not None:
        plan = with_places(plan)
        places = places_of(topics[0], tokens, log, offset_reset=offset_reset)
    rows: queue.Queue[PushRow] = queue.Queue(BUFFERED_ROWS_MAX)
    over = [False]
    watch = watch_function(rows, lambda: over[0], has_removals=plan.kind is p.ResultKind.TABLE)
    application = f"{service}-push-{uuid.uuid4().hex[:12]}"
    compiled = compile_topology(build_topology(plan, watch=watch), application)
    folder = tempfile.TemporaryDirectory(prefix="logflume-push-", ignore_cleanup_errors=True)
    options = EngineOptions(
        state_dir=Path(folder.name),
        guarantee=Guarantee.AT_LEAST_ONCE,
        # Where a start is fixed, a partition without one is newer than it: all of its records are.
        offset_reset=offset_reset if places is None else "earliest",
        commit_interval_ms=200,
    )
    if places is not None:
        start_at(log, application, places.starts(topics[0]))
    elif offset_reset == "latest":
        start_at(log, application, _ends(log, topics))
    engine = Engine(compiled, log, options)

    def stop() -> None:
        over[0] = True
        is_there = is_reachable(log)
        try:
            engine.stop(timeout_s=STOP_TIMEOUT_S if is_there else GONE_TIMEOUT_S)
        finally:
            if is_there:
                forget_application(log, options.state_dir, application, internal_topics(compiled))
            folder.cleanup()

    def check() -> BaseException | None:
        if not engine.has_ended:
            return None
        status = engine.status()
        return RuntimeError(status.error or "it has ended")

    try:
        engine.start()
    except BaseException:
        folder.cleanup()
        raise
    return PushQuery(
        plan.id,
        columns,
        rows,
        limit=plan.limit,
        check=check,
        stop=stop,
        dropped=lambda: engine.status().dropped,
        places=places,
    )
