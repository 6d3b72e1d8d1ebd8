"""The Nexmark queries in SQL, all of them, give what a batch computation of the same rows gives."""

from __future__ import annotations

import pytest

from benchmarks.nexmark.events import Events, make_events
from benchmarks.nexmark.running import expected, is_equal
from benchmarks.nexmark.sql_running import run
from benchmarks.nexmark.statements import QUERIES


@pytest.fixture(scope="module")
def events() -> Events:
    return make_events(500)


def test_there_are_all_of_them() -> None:
    assert list(QUERIES) == [f"q{number}" for number in range(23)]


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_gives_what_a_batch_computation_gives(name: str, events: Events) -> None:
    found, wanted = run(name, events), expected(name, events)
    assert wanted
    assert is_equal(found, wanted)
