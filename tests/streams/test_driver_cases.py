"""Recorded cases of Kafka Streams (`_cases.py`): the operators give the same, one record at a time and in batches.

What differs must be exactly what the oracle gives by one of its rules (`oracle.base.Rules`): each is a difference that is chosen
on purpose, named there with its reason. The numbers per family are printed at the end. Of batches a sample is run, all of them
with LOGFLUME_STREAMS_CASES_ALL=1.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from itertools import groupby
from typing import Any

import pytest

from logflume.streams import plan
from logflume.streams.testing import TopologyTestDriver, WindowedKey

from ._case_apps import build
from ._cases import CASES, FAMILIES, by_key, cases, is_without_cases
from .oracle.base import Rules
from .oracle.topology import Topology, key_json
from .running import kernels

__all__ = ["kernels"]

Json = Any


# -- running and comparing ------------------------------------------------------------------------------------------------

RULES = tuple(field.name for field in fields(Rules))


def explained(case: Json, *, batch_size: int = 1) -> str | None:
    """Return the rule, chosen on purpose, by which all that differs in a case does (see `oracle.base.Rules`)."""
    for names in (*((name,) for name in RULES), RULES):
        if not run(expected_by(case, Rules(**dict.fromkeys(names, True))), batch_size=batch_size):
            return names[0] if len(names) == 1 else "several rules"
    return None


def expected_by(case: Json, rules: Rules) -> Json:
    """Return a case with what is to be expected by other rules."""
    oracle = Topology(case, rules)
    oracle.run()
    topics = {
        topic: [{"key": key_json(r.key), "value": r.value, "ts": r.ts} for r in records]
        for topic, records in oracle.outputs.items()
    }
    return {**case, "expect": {"topics": topics, "stores": {name: oracle.rows(name) for name in case["expect"]["stores"]}}}


def driven(case: Json, batch_size: int = 1) -> TopologyTestDriver:
    """Return a driver that was given all steps of a case, up to that many records of one topic at once."""
    driver = TopologyTestDriver(build(case))
    topics = {source["topic"] for source in case["sources"]}
    for topic, steps in groupby(case["steps"], key=lambda step: step.get("topic")):
        if topic is None:
            for step in steps:
                driver.advance(step["advance_wall_clock_ms"])
        elif topic in topics:
            records = [(s["key"], None if s["value"] is None else json.dumps(s["value"]).encode(), s["ts"]) for s in steps]
            for at in range(0, len(records), batch_size):
                driver.input(topic).send_together(records[at : at + batch_size])
    return driver


def run(case: Json, *, batch_size: int = 1) -> list[str]:
    """Return what differs, [] when all is as expected."""
    driver = driven(case, batch_size)
    found = []
    for topic, expected in case["expect"]["topics"].items():
        actual = [{"key": _key(r.key), "value": r.value, "ts": r.timestamp_ms} for r in driver.output(topic).read()]
        wanted = [{name: record[name] for name in ("key", "value", "ts")} for record in expected]
        found += _compare(topic, wanted, actual, is_ordered=case["ordered"])
    kept = {n.get("store", n["id"]): n for n in case["nodes"]} | {s.get("store"): s for s in case["sources"]}
    for store, expected in case["expect"]["stores"].items():
        rows = store_rows(driver, store, kept[store], case)
        missing = [row for row in expected if row not in rows]
        more = [row for row in rows if row not in expected]
        if missing or more or len(rows) != len(expected):
            found.append(f"store {store}: missing {missing}, too many {more}")
    return found


def _key(key: Any) -> Json:
    return {"key": key.key, "start": key.start_ms, "end": key.end_ms} if isinstance(key, WindowedKey) else key


def store_rows(driver: TopologyTestDriver, name: str, node: Json, case: Json) -> list[Json]:
    """Return a store's rows as the cases write them."""
    if node.get("op") in ("process", "process_values"):
        return [{"key": key, "value": value} for key, value in driver.processor_store(name).rows()]
    store = driver.store(name)
    if "versioned_history_ms" in node:
        keys = {step["key"] for step in case["steps"] if "topic" in step}
        times = [None, *(step["ts"] for step in case["steps"] if "topic" in step)]
        looked_up = [store.record(key, as_of=ts) for key in keys if key is not None for ts in times]
        rows = {(row.key, row.timestamp_ms): row for row in looked_up if row is not None}
        return [_store_row(row, node, case) for row in rows.values()]
    found = [_store_row(row, node, case) for row in store.rows()]
    if window_type(node, case) == "session":
        return [{name: value for name, value in row.items() if name != "ts"} for row in found]
    return found


def window_type(node: Json, case: Json) -> str | None:
    """Return what windows an aggregate is over."""
    inputs = [n for n in case["nodes"] if n["id"] in node.get("in", ())]
    return next((n["window"]["type"] for n in inputs if n["op"] == "window"), None)


def _store_row(row: Any, node: Json, case: Json) -> Json:
    value = row.value["count"] if node.get("op") == "count" else row.value
    key = _key(row.key)
    return {**(key if window_type(node, case) else {"key": key}), "value": value, "ts": row.timestamp_ms}


def _compare(topic: str, wanted: list[Json], actual: list[Json], *, is_ordered: bool) -> list[str]:
    if is_ordered:
        return [] if wanted == actual else [f"{topic}: expected {wanted}, found {actual}"]
    expected, found = by_key(wanted), by_key(actual)
    different = [key for key in {**expected, **found} if expected.get(key) != found.get(key)]
    return [f"{topic}, key {key}: expected {expected.get(key)}, found {found.get(key)}" for key in different]


def is_comparable(case: Json, batch_size: int) -> bool:
    """Return whether batches must give what single records give.

    A topic between sub-topologies is worked off a batch later than record by record. That shows where a sub-topology reads
    another topic beside it, and where two of them write to one topic: there the order is open, in Kafka Streams too. And
    schedules by stream time follow the one time of the driver, which is that of the whole batch in another sub-topology; what
    closes leaves with the commit, after the schedules of the record that closed it, also of single records, and is joined with
    what was there at the commit before.
    """
    parts = plan(build(case).topology()).subtopologies
    internal = {output.topic for part in parts for output in part.outputs.values() if output.is_repartition}
    read = [set(part.program.sources.values()) for part in parts]
    written = Counter(topic for part in parts for topic in {output.topic for output in part.outputs.values()})
    is_one_way = all(len(topics) == 1 for topics in read if topics & internal) and max(written.values()) == 1
    follows_time = any(node.get("processor") in ("dedup", "stream_ticker") for node in case["nodes"])
    if follows_time and any("emit" in node for node in case["nodes"]):
        return False
    if batch_size > 1 and any("emit" in node for node in case["nodes"]) and any(n["op"] == "table_join" for n in case["nodes"]):
        return False
    return batch_size == 1 or ((not internal or is_one_way) and not (follows_time and len(parts) > 1))


def outcome(case: Json, *, batch_size: int) -> tuple[str, list[str]]:
    """Return "passed", the rule by which all that differs does, or "failed" and what differs."""
    differences = run(case, batch_size=batch_size)
    if not differences:
        return "passed", []
    rule = explained(case, batch_size=batch_size)
    return rule or "failed", [] if rule else differences


def sampled(family: str, batch_size: int, *, has_kernels: bool) -> list[Json]:
    """Return the cases of a family to be run in this way: single records all, batches a part unless all are asked for."""
    found = [case for case in cases(family) if is_comparable(case, batch_size)]
    ways = [(size, kernels) for kernels in (False, True) for size in BATCH_SIZES if (size, kernels) != (1, False)]
    if has_all or (batch_size == 1 and not has_kernels):
        return found
    return found[ways.index((batch_size, has_kernels)) :: len(ways)]


BATCH_SIZES = (1, 7, 64, 1_000_000)
has_all = "LOGFLUME_STREAMS_CASES_ALL" in os.environ
needs_cases = pytest.mark.skipif(
    is_without_cases(), reason=f"no recorded cases in {CASES}: set LOGFLUME_STREAMS_CASES to their directory"
)


@needs_cases
@pytest.mark.parametrize("kernels", ["without kernels", "with kernels"], indirect=True)
@pytest.mark.parametrize("batch_size", BATCH_SIZES)
@pytest.mark.parametrize("family", FAMILIES)
def test_operators_give_what_kafka_streams_gives(
    family: str, batch_size: int, kernels: str, record_property: Callable[[str, object], None]
) -> None:
    counts: Counter[str] = Counter()
    failures = []
    for case in sampled(family, batch_size, has_kernels=kernels == "with kernels"):
        kind, differences = outcome(case, batch_size=batch_size)
        counts[kind] += 1
        failures += [f"{case['name']}: {difference}" for difference in differences]
    record_property("streams cases", (family, dict(counts)))
    assert failures == []
