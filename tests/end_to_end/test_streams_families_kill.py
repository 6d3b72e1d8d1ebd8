"""A short run of what `make kills` does: SIGKILL of applications of every family and of their broker, disks lost or damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kills._families import GROUPS
from tests.kills._run import Job, run

RUNS = [
    ("objects", 1, 1_500, ("kill", "broker_killed", "damage")),
    ("objects", 3, 1_500, ("kill", "lose", "leave")),
    ("columns", 1, 3_000, ("kill", "damage", "broker_killed")),
    ("sql", 3, 3_000, ("kill", "broker_killed", "damage")),
]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("group", "count", "records", "kinds"), RUNS)
def test_kills_change_no_output_and_no_store(
    tmp_path: Path, group: str, count: int, records: int, kinds: tuple[str, ...]
) -> None:
    job = Job(GROUPS[group], records, [count], len(kinds), seed=count, kinds=kinds, most_pause_s=1.0)
    outcomes = run(tmp_path, job)
    assert [each.family for each in outcomes] == list(GROUPS[group])
    assert {each.family: each.differences for each in outcomes if each.differences} == {}
