"""Recorded cases of Kafka Streams (`_cases.py`): the operators give the same, one record at a time and in batches.

What differs must be exactly what the oracle gives by one of its rules (`oracle.base.Rules`): each is a difference that is chosen
on purpose, named there with its reason. Run as a program this prints the numbers per family.
"""

from __future__ import annotations

import json
from collections import Counter
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

Json = Any


# -- running and comparing ------------------------------------------------------------------------------------------------

RULES = tuple(field.name for field in fields(Rules))


def explained(case: Json) -> str | None:
    """Return the rule, chosen on purpose, by which all that differs in a case does (see `oracle.base.Rules`)."""
    for names in (*((name,) for name in RULES), RULES):
        if not run(expected_by(case, Rules(**dict.fromkeys(names, True)))):
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
        return [_store_row(row, node) for row in rows.values()]
    found = [_store_row(row, node) for row in store.rows()]
    if is_session(node, case):
        return [{name: value for name, value in row.items() if name != "ts"} for row in found]
    return found


def is_session(node: Json, case: Json) -> bool:
    """Return whether an aggregate is over sessions."""
    inputs = [n for n in case["nodes"] if n["id"] in node.get("in", ())]
    return any(n.get("window", {}).get("type") == "session" for n in inputs)


def _store_row(row: Any, node: Json) -> Json:
    value = row.value["count"] if node.get("op") == "count" else row.value
    key = _key(row.key)
    return {**(key if isinstance(key, dict) else {"key": key}), "value": value, "ts": row.timestamp_ms}


def _compare(topic: str, wanted: list[Json], actual: list[Json], *, is_ordered: bool) -> list[str]:
    if is_ordered:
        return [] if wanted == actual else [f"{topic}: expected {wanted}, found {actual}"]
    expected, found = by_key(wanted), by_key(actual)
    different = [key for key in {**expected, **found} if expected.get(key) != found.get(key)]
    return [f"{topic}, key {key}: expected {expected.get(key)}, found {found.get(key)}" for key in different]


def run_family(family: str) -> tuple[Counter[str], list[str]]:
    """Return how many cases passed, differ by which rule, or failed; and what failed."""
    counts: Counter[str] = Counter()
    failures = []
    for case in cases(family):
        differences = run(case)
        rule = explained(case) if differences else "passed"
        counts[rule or "failed"] += 1
        if rule is None:
            failures += [f"{case['name']}: {difference}" for difference in differences]
    return counts, failures


needs_cases = pytest.mark.skipif(
    is_without_cases(), reason=f"no recorded cases in {CASES}: set LOGFLUME_STREAMS_CASES to their directory"
)


@needs_cases
@pytest.mark.parametrize("family", FAMILIES)
def test_operators_give_what_kafka_streams_gives(family: str) -> None:
    counts, failures = run_family(family)
    assert failures == []
    assert counts["passed"] > 0


@needs_cases
@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [7, 64])
@pytest.mark.parametrize("family", FAMILIES)
def test_batches_of_any_size_give_what_single_records_give(family: str, batch_size: int) -> None:
    """Of topologies without internal topics: behind those, batches meet in another order."""
    rules = Rules(**dict.fromkeys(RULES, True))
    for case in cases(family):
        parts = plan(build(case).topology()).subtopologies
        if any(output.is_repartition for part in parts for output in part.outputs.values()):
            continue
        differences = run(case, batch_size=batch_size)
        assert not differences or not run(expected_by(case, rules), batch_size=batch_size), (case["name"], differences)


if __name__ == "__main__":
    for family in FAMILIES:
        counts, failures = run_family(family)
        print(f"{family:30}", ", ".join(f"{count:3} {kind}" for kind, count in sorted(counts.items())))
        for failure in failures[:2]:
            print("   ", failure[:1500])
