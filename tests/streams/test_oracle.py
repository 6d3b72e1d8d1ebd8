"""The oracle gives what Kafka Streams gave, for every recorded case: topics, order, stores."""

from __future__ import annotations

import pytest

from ._cases import CASES, FAMILIES, by_key, cases, is_without_cases
from .oracle.functions import Json, text
from .oracle.topology import Topology, key_json


def differences(case: Json) -> list[str]:
    topology = Topology(case)
    topology.run()
    found = []
    for topic, expected in case["expect"]["topics"].items():
        wanted = [{name: record[name] for name in ("key", "value", "ts")} for record in expected]
        actual = [{"key": key_json(r.key), "value": r.value, "ts": r.ts} for r in topology.outputs[topic]]
        if (actual != wanted) if case["ordered"] else (by_key(actual) != by_key(wanted)):
            found.append(f"{topic}: expected {wanted}, found {actual}")
    for store, expected in case["expect"]["stores"].items():
        rows = topology.rows(store)
        if sorted(map(text, rows)) != sorted(map(text, expected)):
            found.append(f"store {store}: expected {expected}, found {rows}")
    return found


@pytest.mark.skipif(is_without_cases(), reason=f"no recorded cases in {CASES}: set LOGFLUME_STREAMS_CASES to their directory")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_oracle_gives_what_kafka_streams_gave(family: str) -> None:
    assert [f"{case['name']}: {found}" for case in cases(family) for found in differences(case)] == []
