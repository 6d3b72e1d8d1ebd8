"""For every family of operators: computed over [start, cut) and then live equals live over all, results and what is left out.

The records are late, out of order, at the same time, null and broken (`test_spark_slices.make_records`).
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from logflume.log import Log, TopicPartition, key_partition
from logflume.streams.runtime import Engine, EngineOptions
from logflume.streams.spark import LocalRunner, plan_backfill, run_backfill

from . import _family_apps as families
from . import _slice_apps as sliced
from .running import embedded, read, until
from .test_spark_slices import PARTITIONS, make_records, send

RECORDS = 160
CUT = 100
SEED = 7
STREAMS = (
    "inner", "ungraced", "left", "outer", "ungraced-outer", "self", "two-readings", "looked-up", "row-before", "global",
    "global-left", *families.STREAMS,
)  # fmt: skip
"""Kinds whose results are a stream: all of them are compared. Of a table the newest of each key: live commits more often.

Of joins on a foreign key without the time: it says which of both rows came last to whoever answers, which no input does."""
_numbers = count()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    with embedded(tmp_path_factory.mktemp("families") / "log") as opened:
        yield opened


def partition_of_key(key: bytes | None) -> int:
    """Return one partition for all records of a key, where whoever looks for a row of a table looks."""
    return 0 if key is None else key_partition(key, PARTITIONS)


class Case:
    """A kind of application over topics of its own."""

    def __init__(self, log: Log, kind: str, folder: Path) -> None:
        self.log, self.kind, self.folder = log, kind, folder
        self._make = families.make_plan if kind in families.TABLES + families.STREAMS + families.FOREIGN else sliced.make_plan
        self.data = f"data{next(_numbers)}"
        self.topics = f"{self.data}-sales", f"{self.data}-refunds"
        for topic in self.topics:
            log.admin().create_topic(topic, partitions=PARTITIONS, configs={"retention.ms": "-1"})

    def run(self, name: str) -> Counter[str]:
        """Run an application to the end of what is there; return what it left out by reason."""
        plan = self._make(name, self.kind, *self.topics)
        engine = Engine(plan, self.log, EngineOptions(state_dir=self.folder / name, commit_interval_ms=20))
        sources = {topic for sub in plan.subtopologies for topic in sub.shared_topics()}

        def is_done() -> bool:
            admin = self.log.admin()
            there = [topic for topic in sources if admin.find_topics([topic])]
            every = [TopicPartition(topic, p) for topic in there for p in range(PARTITIONS)]
            at = admin.group_offsets(name)  # first: what is read puts out records for the next stage
            ends = admin.end_offsets(every, read_committed=True)
            return all(not end or (tp in at and at[tp].offset >= end) for tp, end in ends.items())

        engine.start()
        try:
            until(is_done, engine)
            return Counter(engine.status().dropped)
        finally:
            engine.stop()

    def backfill(self, name: str) -> Counter[str]:
        """Compute the history of an application and hand it over; return what is left out."""
        planned = plan_backfill(partial(self._make, name, self.kind, *self.topics), self.log.where)
        return Counter(run_backfill(planned, LocalRunner()).problems)

    def results(self, name: str) -> object:
        records = [(record.key, record.value, record.timestamp_ms) for record in read(self.log, f"{name}-out")]
        if self.kind in families.FOREIGN:
            return {key: value for key, value in {key: value for key, value, _ in records}.items() if value is not None}
        return Counter(records) if self.kind in STREAMS else {key: of for key, *of in records}


@pytest.mark.parametrize("kind", [*sliced.JOINS, *sliced.OTHERS, *families.TABLES, *families.STREAMS, *families.FOREIGN])
def test_computed_and_then_live_equals_live(log: Log, kind: str, tmp_path: Path) -> None:
    case = Case(log, kind, tmp_path)
    batch, live = f"{case.data}-batch", f"{case.data}-live"
    records = [(*sent[:4], partition_of_key(sent[2]), sent[5]) for sent in make_records(SEED, RECORDS)]
    send(log, case.data, records[:CUT])
    left_out = case.run(live)
    computed = case.backfill(batch)
    assert computed == left_out
    assert case.results(batch) == case.results(live)
    if kind.startswith("global"):
        shutil.rmtree(tmp_path / live)  # rows that cannot be read are counted whenever a table is loaded
    send(log, case.data, records[CUT:])
    assert computed + case.run(batch) == left_out + case.run(live)
    assert case.results(batch) == case.results(live)
    assert case.results(live)
