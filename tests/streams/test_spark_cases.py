"""Recorded cases (`_cases.py`) as a history: all records at once, through the passes of a Spark job, equal the live operators.

The passes run in this process, as `LocalRunner` has them: record after record, and, where that can be, range by range. Live is
the driver that passes the recorded cases (`test_driver_cases.py`), given the same records in the order in which a task merges its
inputs, with one commit at the end. A sample of each family is run, all of them with LOGFLUME_STREAMS_CASES_ALL=1.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from logflume.log import Log, TopicPartition, connect
from logflume.streams import plan
from logflume.streams.seams import Plan
from logflume.streams.spark import LocalRunner, OffsetRange
from logflume.streams.spark.ranges import reachable
from logflume.streams.spark.rows import RowKind, unpack_headers
from logflume.streams.spark.steps import StepPlan
from logflume.streams.testing import TestOutput, TestRecord, TopologyTestDriver

from ._case_apps import build
from ._cases import FAMILIES, by_key, cases
from .test_driver_cases import has_all, is_comparable, needs_cases

Json = Any
EVERY = 10
RECORDS_PER_RANGE = 5
NOT_IN_SAMPLE = {"fk_join", "mixed", "processor"}
"""Families of whose sample no case is a question to a batch job (`is_history`)."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    with connect(tmp_path_factory.mktemp("cases") / "log") as opened:
        yield opened


def is_history(case: Json) -> bool:
    """Return whether a case is a question to a batch job: no wall clock, an order that is not open."""
    has_clock = any("topic" not in step for step in case["steps"])
    ticks = any("ticker" in str(node.get("processor")) for node in case["nodes"])
    return not (has_clock or ticks) and is_comparable(case, len(case["steps"]) + 1)


def named(case: Json, prefix: str) -> Json:
    """Return a case with topics of its own."""

    def own(part: Json) -> Json:
        return {**part, "topic": f"{prefix}{part['topic']}"}

    return {**case, **{name: [own(part) for part in case[name]] for name in ("sources", "sinks", "steps")}}


def merged(case: Json) -> list[Json]:
    """Return the steps in the order in which a task takes them that finds all of them there: by time, then topic.

    Those of global tables come first.
    """
    tables = {source["topic"] for source in case["sources"] if source["kind"] == "global_table"}
    topics = {source["topic"] for source in case["sources"]} - tables
    queues = {topic: [step for step in case["steps"] if step["topic"] == topic] for topic in sorted(topics)}
    found = [step for step in case["steps"] if step["topic"] in tables]
    while any(queues.values()):
        topic = min((queue[0]["ts"], topic) for topic, queue in queues.items() if queue)[1]
        found.append(queues[topic].pop(0))
    return found


def live(case: Json) -> TopologyTestDriver:
    driver = TopologyTestDriver(build(case), commits_each_record=False)
    for step in merged(case):
        driver.process(step["topic"], *encoded(driver, step), step["ts"])
    driver.commit()
    return driver


def encoded(driver: TopologyTestDriver, step: Json) -> tuple[bytes | None, bytes | None]:
    """Return key and value of a record as bytes."""
    value = None if step["value"] is None else json.dumps(step["value"]).encode()
    return driver.input(step["topic"])._key.encode(step["key"]), value


def computed(log: Log, case: Json, driver: TopologyTestDriver, records_per_range: int | None) -> dict[str, list[TestRecord]]:
    """Return the records that a job over the whole history puts out, of each topic of results."""
    made = plan(build(case).topology())
    topics = sorted({source["topic"] for source in case["sources"]})
    if not log.admin().find_topics(topics[:1]):
        for topic in topics:
            log.admin().create_topic(topic, partitions=1, configs={"retention.ms": "-1"})
        producer = log.producer()
        for step in case["steps"]:
            if step["topic"] in topics:
                key, value = encoded(driver, step)
                producer.send(step["topic"], value, key=key, timestamp_ms=step["ts"])
        producer.close()
    ends = log.admin().end_offsets([TopicPartition(topic, 0) for topic in topics], read_committed=True)
    ranges = {tp: OffsetRange(*tp, 0, end) for tp, end in ends.items()}
    names = {topic for part in made.subtopologies for topic in part.program.sources.values()}
    names |= {out.topic for part in made.subtopologies for out in part.outputs.values()}
    step_plan = StepPlan(lambda: made, reachable(log), ranges, dict.fromkeys(names, 1), {})
    result = LocalRunner(records_per_range).run(step_plan, made, lambda _: None)
    outputs = outputs_of(made, case)
    for batch in result.parts:
        for row in batch.to_pylist():
            if row["kind"] == RowKind.SINK:
                outputs[row["name"]].raw.append((row["key"], row["value"], row["timestamp_ms"], unpack_headers(row["headers"])))
    return {topic: output.read() for topic, output in outputs.items()}


def outputs_of(made: Plan, case: Json) -> dict[str, TestOutput]:
    """Return what reads the results, as the driver does."""
    fresh = TopologyTestDriver(build(case))
    return {sink["topic"]: fresh.output(sink["topic"]) for sink in case["sinks"]}


def shown(records: list[TestRecord]) -> dict[str, list[Json]]:
    """Return the sequence of each key."""
    return by_key([{"key": repr(r.key), "value": r.value, "ts": r.timestamp_ms} for r in records])


@needs_cases
@pytest.mark.parametrize("family", FAMILIES)
def test_a_history_at_once_equals_its_records_live(log: Log, family: str, record_property: Callable[[str, object], None]) -> None:
    counts: Counter[str] = Counter()
    failures = []
    for number, given in enumerate(cases(family)[:: 1 if has_all else EVERY]):
        if not is_history(given):
            counts["not for a batch"] += 1
            continue
        case = named(given, f"{family}-{number}-".replace("_", "-"))
        driver = live(case)
        expected = {sink["topic"]: shown(driver.output(sink["topic"]).read()) for sink in case["sinks"]}
        for size in (None, RECORDS_PER_RANGE):
            found = {topic: shown(records) for topic, records in computed(log, case, driver, size).items()}
            counts["equal" if found == expected else "differs"] += 1
            failures += [] if found == expected else [f"{given['name']}, ranges of {size}: expected {expected}, found {found}"]
    record_property("streams cases on Spark", (family, dict(counts)))
    assert failures == []
    assert counts["equal"] > 0 or family in NOT_IN_SAMPLE, "none of the sample is a question to a batch job"
