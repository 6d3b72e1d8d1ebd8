"""One run: families without a kill, then with kills, by one instance and by several, over the same records."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logflume.log import LogflumeError, connect
from logflume.log.interfaces import Log
from logflume.log.records import TopicPartition
from logflume.streams.seams import Plan
from tests.kills._families import FEW_KEYS, plan_of, slug
from tests.kills._inputs import fill
from tests.kills._instances import KINDS, Broker, Instances, Strikes
from tests.kills._results import PARTITIONS, differences, entries, records, unlike
from tests.log._server_process import ServerProcess
from tests.streams.test_operators_engine import HOLDING

BROKER_CONFIGS = ("log.retention.ms=-1",)
"""The records are of 1970."""


def own_broker(path: Path) -> ServerProcess:
    """Start logflume's broker with its data in a folder."""
    return ServerProcess(str(path / "data"), BROKER_CONFIGS)


@dataclass
class Outcome:
    """What came of one family with one number of instances. `differences`: where it differs, in words; empty: it is equal."""

    family: str
    instances: int
    records: int
    strikes: list[str]
    in_time: int
    """How many of the strikes came before the end of the input."""
    differences: list[str]


@dataclass(frozen=True)
class Job:
    """What is run. `counts`: numbers of instances, each a run of its own; `kinds`: what is done to them."""

    families: Sequence[str]
    records: int
    counts: Sequence[int]
    strikes: int
    seed: int
    kinds: Sequence[str] = KINDS
    most_pause_s: float = 1.5
    has_calm_kernels: bool = False

    @property
    def timeout_s(self) -> float:
        return 300.0 + self.records / 250


def run(
    path: Path,
    job: Job,
    *,
    start_broker: Callable[[Path], Broker] = own_broker,
    say: Callable[[str], None] = lambda text: None,
) -> list[Outcome]:
    """Return what came of each family for each number of instances. Logs and states are left in `path`."""
    broker = start_broker(path)
    try:
        begun = time.monotonic()
        with connect(broker.address) as log:
            readable = fill(log, job.families, job.records, job.seed, has_few_keys=all(name in FEW_KEYS for name in job.families))
            calm = Instances(broker.address, path, "calm", job.families, 1, has_kernels=job.has_calm_kernels)
            try:
                wait_until_done(log, "calm", job, readable, calm)
                calm.stop()
            finally:
                calm.end()
        say(f"undisturbed: {time.monotonic() - begun:.0f} s")
        outcomes = []
        for count in job.counts:
            prefix, begun = f"killed{count}", time.monotonic()
            done, in_time, problem = _killed(broker, path, prefix, job, count, readable)
            say(f"{count} instances: {len(done)} strikes, {in_time} before the end, {time.monotonic() - begun:.0f} s")
            for name in job.families:
                found = [problem] if problem else []
                with connect(broker.address) as log:
                    found += differences(log, "calm", prefix, name)
                    if not problem:
                        found += unlike(entries(log, path, "calm", name), entries(log, path, prefix, name))
                outcomes.append(Outcome(name, count, job.records, done, in_time, found))
        return outcomes
    finally:
        broker.kill()


def _killed(broker: Broker, path: Path, prefix: str, job: Job, count: int, readable: int) -> tuple[list[str], int, str]:
    """Run and strike; return what was done, how much of it before the end of the input, and what went wrong if anything."""
    killed, in_time = Instances(broker.address, path, prefix, job.families, count, has_kernels=True), 0
    struck = Strikes(broker, killed, random.Random(job.seed + count), most_pause_s=job.most_pause_s, kinds=job.kinds)
    try:
        killed.wait_until_running()
        for _ in range(job.strikes):
            struck.strike()
            killed.check()
            with connect(broker.address) as log:
                in_time += bool(lacking_of(log, prefix, job.families))
        with connect(broker.address) as log:
            wait_until_done(log, prefix, job, readable, killed)
        killed.stop()
    except (AssertionError, LogflumeError) as error:
        return struck.done, in_time, "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
    else:
        return struck.done, in_time, ""
    finally:
        killed.end()


def wait_until_done(log: Log, prefix: str, job: Job, readable: int, instances: Instances) -> None:
    """Wait until all applications have taken all that there is for them; those that hold records, until they let all go."""
    end, left = time.monotonic() + job.timeout_s, list(job.families)
    while left := lacking_of(log, prefix, left):
        instances.check()
        if time.monotonic() > end:
            error = AssertionError(f"the end of the {prefix} run is not reached in {job.timeout_s:.0f} s")
            for name in left:
                group = log.admin().describe_group(plan_of(prefix, name).application)
                error.add_note(f"{name}: {group}; lacks {_lacking(log, plan_of(prefix, name))}")
            raise error
        time.sleep(0.3)
    for name in set(HOLDING) & set(job.families):
        while (found := sum(1 for _ in records(log, f"{prefix}-{slug(name)}-out"))) < readable:
            assert time.monotonic() < end, f"{prefix} {name}: {found} of {readable}"
            time.sleep(0.5)


def lacking_of(log: Log, prefix: str, families: Sequence[str]) -> list[str]:
    """Return the applications that have not taken all that there is for them."""
    try:
        return [name for name in families if _lacking(log, plan_of(prefix, name))]
    except LogflumeError:  # a broker that is down for a moment
        return list(families)


def _lacking(log: Log, plan: Plan) -> list[str]:
    """Return the inputs that an application has not taken whole, with how far it has come."""
    topics = {topic for sub in plan.subtopologies for topic in sub.shared_topics()}
    known = log.admin().list_topics(include_internal=True)
    if missing := sorted(topics - set(known)):
        return [f"no topic {topic}" for topic in missing]
    partitions = [TopicPartition(topic, p) for topic in sorted(topics) for p in range(PARTITIONS)]
    offsets = log.admin().group_offsets(plan.application)
    ends: dict[Any, int] = log.admin().end_offsets(partitions)
    done = {tp: offsets[tp].offset if tp in offsets else 0 for tp in partitions}
    return [f"{tp.topic}-{tp.partition}: {done[tp]} of {ends[tp]}" for tp in partitions if done[tp] < ends[tp]]
