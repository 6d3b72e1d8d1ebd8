"""Push queries: a topology of its own that runs while someone watches, from the beginning of its topics.

With EMIT SNAPSHOT, CHANGES its rows go through a `Snapshot` first, which gives them once what was there is read.
"""

from __future__ import annotations

import logging
import queue
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from logflume.log import LogflumeError, TopicPartition
from logflume.log.interfaces import Log, OffsetAndMetadata
from logflume.streams.runtime import Engine, EngineOptions, Guarantee, Pipe, forget_application, internal_topics, is_pipe
from logflume.streams.seams import Plan

from . import plan as p
from .first_read import FirstRead
from .forsaken import push_application
from .reach import is_reachable
from .removed import removed_row
from .results import BUFFERED_ROWS_MAX, PushQuery, PushRow, watch_function
from .resuming import Places, Tokens, places_of, with_places
from .running import GONE_TIMEOUT_S, STOP_TIMEOUT_S, compile_topology
from .shared_readers import Follower, SharedReaders, has_reached
from .snapshot import Snapshot, SnapshotMemory
from .topology import build_topology

_log = logging.getLogger("logflume.sql")


def start_push(
    plan: p.QueryPlan,
    log: Log,
    service: str,
    readers: SharedReaders,
    *,
    offset_reset: str = "earliest",
    tokens: Tokens | None = None,
    snapshots: SnapshotMemory | None = None,
) -> PushQuery:
    """Start a push query; one that keeps nothing shares the reader of its topic.

    `tokens`: it tells where it is, and may go on behind what an earlier one told. `snapshots`: a table's rows as they are come
    first, whatever the reset, and take of this until they are read.

    Raises:
        NotSupported: it cannot run yet. LogflumeError: its topics are missing.
        StatementError: it can have no tokens, or the token is not one of it.
    """
    columns = plan.value
    plan = plan if tokens is None else with_places(plan)
    over = threading.Event()
    rows: queue.Queue[PushRow] = queue.Queue(BUFFERED_ROWS_MAX)
    watch = watch_function(rows, over.is_set, removed=removed_row(plan) if plan.kind is p.ResultKind.TABLE else None)
    snapshot = None if snapshots is None else Snapshot(rows, watch, snapshots)
    if snapshot is not None:
        watch, offset_reset = snapshot.watch, "earliest"
    compiled = compile_topology(build_topology(plan, watch=watch), push_application(service))
    topics = sorted({o.source.topic for o in p.operators(plan.root) if isinstance(o, p.Scan)})
    places = None if tokens is None else places_of(topics[0], tokens, log, offset_reset=offset_reset)
    if is_pipe(compiled):
        rows.maxsize = 0  # its reader may not wait inside of a turn, and looks at how many rows wait before each
        running = _followed(Pipe(compiled), rows, log, readers, places, offset_reset, has_snapshot=snapshot is not None)
    else:
        running = _run(compiled, topics, log, offset_reset, has_snapshot=snapshot is not None)

    def stop() -> None:
        over.set()
        if snapshot is not None:
            snapshot.end()
        running.stop()

    def check() -> BaseException | None:
        error = running.check()
        return error if error is not None or snapshot is None else _given(snapshot, running.is_read)

    return PushQuery(
        plan.id,
        columns,
        rows,
        limit=plan.limit,
        check=check,
        stop=stop,
        dropped=running.dropped,
        places=places,
    )


def _given(snapshot: Snapshot, is_read: Callable[[], bool]) -> BaseException | None:
    """Give a snapshot if it is whole; return why it never will be. A log that does not answer now is asked again."""
    try:
        return snapshot.failed(is_read)
    except LogflumeError as error:
        return None if error.is_retriable else error


@dataclass(frozen=True, slots=True)
class _Running:
    """What is asked of a query that runs: why it has ended, to end, what it left out, whether it has read what was there."""

    check: Callable[[], BaseException | None]
    stop: Callable[[], None]
    dropped: Callable[[], Mapping[str, int]]
    is_read: Callable[[], bool]


def _followed(
    pipe: Pipe,
    rows: queue.Queue[PushRow],
    log: Log,
    readers: SharedReaders,
    places: Places | None,
    offset_reset: str,
    *,
    has_snapshot: bool,
) -> _Running:
    """Have a query follow its topic."""
    admin = log.admin()
    (topic,) = admin.describe_topics([pipe.topic]).values()
    partitions = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
    if places is not None:
        starts = places.starts(topic.name)
    else:
        starts = admin.end_offsets(partitions) if offset_reset == "latest" else admin.start_offsets(partitions)
    found = admin.end_offsets(partitions, read_committed=True) if has_snapshot else {}
    ends = {at.partition: end for at, end in found.items()}
    follower = Follower(pipe, rows, {each.partition: offset for each, offset in starts.items()})
    readers.follow(topic.name, topic.topic_id, follower)
    return _Running(
        lambda: follower.failure,
        lambda: readers.leave(topic.topic_id, follower),
        lambda: pipe.dropped,
        lambda: has_reached(follower, ends),
    )


def _run(compiled: Plan, topics: list[str], log: Log, offset_reset: str, *, has_snapshot: bool) -> _Running:
    """Run a query that keeps something as an application of its own, of which nothing is left behind."""
    folder = tempfile.TemporaryDirectory(prefix="logflume-push-", ignore_cleanup_errors=True)
    options = EngineOptions(
        state_dir=Path(folder.name), guarantee=Guarantee.AT_LEAST_ONCE, offset_reset=offset_reset, commit_interval_ms=200
    )
    if offset_reset == "latest":
        admin = log.admin()
        described = admin.describe_topics(topics).values()
        ends = admin.end_offsets([TopicPartition(d.name, number) for d in described for number in range(d.partitions)])
        _start_at(log, compiled.application, ends)
    engine = Engine(compiled, log, options)

    def stop() -> None:
        is_there = is_reachable(log)
        try:
            engine.stop(timeout_s=STOP_TIMEOUT_S if is_there else GONE_TIMEOUT_S)
        finally:
            if is_there:
                try:
                    forget_application(log, options.state_dir, compiled.application, internal_topics(compiled))
                except LogflumeError as error:  # whoever closes it has had its rows
                    _log.warning("what the push query %s left is not removed yet: %s", compiled.application, error)
            folder.cleanup()

    def check() -> BaseException | None:
        return RuntimeError(engine.status().error or "it has ended") if engine.has_ended else None

    try:
        first = FirstRead(log.admin(), compiled) if has_snapshot else None
        engine.start()
    except BaseException:
        folder.cleanup()
        raise
    return _Running(check, stop, lambda: engine.status().dropped, lambda: first is None or not first.left())


def _start_at(log: Log, application: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Fix where an application starts before anybody is told that it runs, so that it has all that is written from then on."""
    consumer = log.consumer(group_id=application)
    try:
        consumer.assign(offsets)
        consumer.commit({partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()})
    finally:
        consumer.close()
