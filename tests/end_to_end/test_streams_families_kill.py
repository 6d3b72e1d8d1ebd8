"""SIGKILL of applications of every family of operators, and of the broker: outputs and stores are those of an uninterrupted run.

The uninterrupted run is without kernels. Those that are killed have them from the first record on; every second one that comes
back has none, so that each takes over what the other left. The input is there from the beginning, so that its order is one.
LOGFLUME_KILLS=N makes N kills instead of 3, LOGFLUME_RECORDS=N that many records, and all groups by one and three instances.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logflume.log import connect
from logflume.log.interfaces import Log
from logflume.log.records import TopicPartition
from logflume.log.schemas import Column
from logflume.streams.graph import StreamJoin
from logflume.streams.operators.row_log import RowLog
from logflume.streams.operators.rows import Rows
from logflume.streams.operators.stream_join import store_names
from logflume.streams.seams import Plan, SubTopology
from logflume.streams.state import TaskState
from tests.end_to_end.families_app import GROUPS, plan_of, slug
from tests.end_to_end.families_columns import COMPACTED, TOPICS_BETWEEN
from tests.end_to_end.test_streams_kill import Broker, read, wait_for
from tests.streams.running import send_json
from tests.streams.test_operators_engine import HOLDING, THROUGH_TOPICS, TOPICS

KILLS = int(os.environ.get("LOGFLUME_KILLS", "3"))
RECORDS = int(os.environ.get("LOGFLUME_RECORDS", "0"))
PLAIN_RECORDS = {"objects": 1_500, "columns": 3_000, "sql": 3_000}
"""So many that the first kills come before the end."""
PARTITIONS = 3
SHORT_RUNS = (("objects", 1), ("objects", 3), ("columns", 1), ("sql", 3))
RUNS = [(group, count) for group in GROUPS for count in (1, 3)] if RECORDS else SHORT_RUNS
LAST_COUNTS = (*THROUGH_TOPICS, *TOPICS_BETWEEN, *COMPACTED)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    started = Broker(tmp_path / "data")
    started.start()
    yield started
    started.kill()


class Instances:
    """Processes of one run, each with a state directory of its own."""

    def __init__(self, broker: Broker, path: Path, prefix: str, group: str, count: int, *, has_kernels: bool) -> None:
        self._broker, self._path, self._prefix, self._group = broker, path, prefix, group
        self._has_kernels = has_kernels
        self._processes = [self._started(number) for number in range(count)]

    def _started(self, number: int) -> subprocess.Popen[str]:
        place = str(self._path / self._prefix / str(number))
        command = [sys.executable, "-m", "tests.end_to_end.families_app", self._broker.address, place, self._prefix, self._group]
        form = ["kernels"] if self._has_kernels else []
        return subprocess.Popen([*command, *form], stdout=subprocess.PIPE, text=True)

    def wait_until_running(self) -> None:
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"

    def kill(self, number: int) -> None:
        """SIGKILL one, and start it again, in the other form."""
        self._has_kernels = not self._has_kernels
        self._processes[number].kill()
        self._processes[number].wait()
        self._processes[number] = self._started(number)
        process = self._processes[number]
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"

    def stop(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(timeout=60) for process in self._processes] == [0] * len(self._processes)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def fill(log: Log, records: int) -> None:
    numbers, time_ms = random.Random(3), 1000
    rows: dict[str, list[Any]] = {topic: [] for topic in TOPICS}
    for _ in range(records):
        time_ms += numbers.choice([0, 1, 2, 5, 5, 9])
        late_ms = numbers.choice([0, 0, 0, 0, 7, 40])
        rows[numbers.choice(TOPICS)].append((f"k{numbers.randrange(40)}", {"n": numbers.randrange(20)}, time_ms - late_ms))
    for topic in TOPICS:
        log.admin().ensure_topic(topic, partitions=PARTITIONS)
        send_json(log, topic, rows[topic])


def is_done(log: Log, prefix: str, left: dict[str, list[str]]) -> bool:
    """Return whether all applications that are left have taken all that there is for them; takes those out that have.

    `left`: application -> what it lacks; of all, so that a failure names those that are stuck and not those behind them.
    """
    known = set(log.admin().list_topics(include_internal=True))
    for name in list(left):
        left[name] = lacking(log, plan_of(prefix, name), known)
        if not left[name]:
            del left[name]
    return not left


def wait_until_done(log: Log, prefix: str, group: str, *, timeout_s: float) -> None:
    left: dict[str, list[str]] = {name: [] for name in GROUPS[group]}
    inputs = len(read(log, "left"))
    try:
        wait_for(lambda: is_done(log, prefix, left), f"the end of the {prefix} run", timeout_s=timeout_s)
        for name in set(HOLDING) & set(GROUPS[group]):
            wait_for(
                lambda name=name: len(read(log, f"{prefix}-{slug(name)}-out")) == inputs, f"{prefix} {name}", timeout_s=timeout_s
            )
    except AssertionError as error:
        for name in left:
            error.add_note(f"{name}: {log.admin().describe_group(plan_of(prefix, name).application)}; lacks {left[name]}")
        raise


def lacking(log: Log, plan: Plan, known: set[str]) -> list[str]:
    """Return the inputs that an application has not taken whole, with how far it has come."""
    topics = {topic for sub in plan.subtopologies for topic in sub.shared_topics()}
    if topics - known:
        return [f"no topic {topic}" for topic in sorted(topics - known)]
    partitions = [TopicPartition(topic, p) for topic in sorted(topics) for p in range(PARTITIONS)]
    ends, offsets = log.admin().end_offsets(partitions), log.admin().group_offsets(plan.application)
    done = {tp: offsets[tp].offset if tp in offsets else 0 for tp in partitions}
    return [f"{tp.topic}-{tp.partition}: {done[tp]} of {ends[tp]}" for tp in partitions if done[tp] < ends[tp]]


def outputs(log: Log, prefix: str, name: str) -> dict[Any, Any]:
    """Return the committed results by key; of each the last where changes of several keys meet, or the topic is compacted.

    There a key whose last value is null is as one that never was: a session that came and was merged away between two commits is
    not put out at all.
    """
    found: dict[Any, Any] = {}
    for record in read(log, f"{prefix}-{slug(name)}-out"):
        found.setdefault(record.key, []).append((record.value, record.timestamp_ms))
    if name not in LAST_COUNTS:
        return found
    return {key: rows[-1][0] for key, rows in found.items() if rows[-1][0] is not None}


def entries(path: Path, prefix: str, name: str) -> dict[tuple[str, int, bytes], Any]:
    """Return what the stores hold: (store, partition, key) -> state; of each task from where it was last."""
    plan, found = plan_of(prefix, name), {}
    for sub in plan.subtopologies:
        specs = tuple(sub.program.stores)
        for partition in range(PARTITIONS) if specs else ():
            places = sorted((path / prefix).glob(f"*/{slug(name)}/{plan.application}/0/{sub.name}.{partition}"))
            states = [TaskState(each, application=plan.application, task=each.name, specs=specs) for each in places]
            states.sort(key=lambda state: (sum(state.checkpoint.inputs.values()), sum(state.checkpoint.changelogs.values())))
            sides = sides_of(sub)
            for spec in specs if states else ():
                store = states[-1].stores[spec.name]
                if spec.name in sides:
                    found[spec.name, partition, b""] = rows_seen(RowLog(store, sides[spec.name][0]), sides[spec.name][1])
                    continue
                for key, entry in store.range(b"", None):
                    found[spec.name, partition, key] = entry.state
            for state in states:
                state.close()
    return found


def sides_of(sub: SubTopology) -> dict[str, tuple[tuple[Column, ...], int]]:
    """Return the stores of joins of streams: columns of the rows, and how long they are seen."""
    found = {}
    wiring = sub.program.wiring  # type: ignore[attr-defined]
    for operator in wiring.operators.values():
        node = operator.node
        if isinstance(node, StreamJoin):
            keep_ms = node.before_ms + node.after_ms + node.grace_ms
            for store, source in zip(store_names(node), node.inputs, strict=True):
                found[store] = wiring.schema(source).value, keep_ms
    return found


def rows_seen(log: RowLog, keep_ms: int) -> list[Any]:
    """Return key, time, whether it waits, and values of the rows that can be met, or wait: how blocks are cut says nothing."""
    rows: list[Any] = []
    for numbers, keys, times in list(log.start()):
        values = rows_of(log.take(numbers))
        places = zip(numbers.tolist(), keys.objects(), times.tolist(), values, strict=True)
        rows += [(key, time, number in log.marked, repr(value)) for number, key, time, value in places]
    newest = max((time for _, time, _, _ in rows), default=0)
    return sorted(row for row in rows if row[1] > newest - keep_ms or row[2])


def rows_of(rows: Rows) -> list[Any]:
    return list(zip(*(column.objects() for column in rows.columns.values()), strict=True))


@pytest.mark.slow
@pytest.mark.timeout(300 + RECORDS // 50)
@pytest.mark.parametrize(("group", "count"), RUNS)
def test_kills_change_no_output_and_no_store(tmp_path: Path, broker: Broker, group: str, count: int) -> None:
    numbers = random.Random(count)
    with connect(broker.address) as log:
        fill(log, RECORDS or PLAIN_RECORDS[group])
        calm = Instances(broker, tmp_path, "calm", group, 1, has_kernels=False)
        try:
            wait_until_done(log, "calm", group, timeout_s=120.0 + RECORDS / 100)
            calm.stop()
        finally:
            calm.end()
    killed = Instances(broker, tmp_path, "killed", group, count, has_kernels=True)
    try:
        killed.wait_until_running()
        for round in range(KILLS):
            time.sleep(numbers.random() * 1.5)
            if round % 3 == 1:
                broker.kill()
                broker.start()
            else:
                killed.kill(numbers.randrange(count))
        with connect(broker.address) as log:
            wait_until_done(log, "killed", group, timeout_s=120.0 + RECORDS / 100)
            killed.stop()
            for name in GROUPS[group]:
                wanted, found = (outputs(log, prefix, name) for prefix in ("calm", "killed"))
                assert len(wanted) > 2
                assert found == wanted, name
                assert entries(tmp_path, "killed", name) == entries(tmp_path, "calm", name), name
    finally:
        killed.end()
