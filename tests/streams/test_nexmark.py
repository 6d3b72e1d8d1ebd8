"""The Nexmark queries give what a batch computation of the same rows gives."""

from __future__ import annotations

import pytest

import logflume.streams as lf
from benchmarks.nexmark.events import Events, make_events
from benchmarks.nexmark.queries import QUERIES
from benchmarks.nexmark.running import chunks, expected, is_equal, run
from benchmarks.streams_programs import Running


@pytest.fixture(scope="module")
def events() -> Events:
    return make_events(1000)


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_gives_what_a_batch_computation_gives(name: str, events: Events) -> None:
    found, wanted = run(name, events), expected(name, events)
    assert wanted
    assert is_equal(found, wanted)


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_takes_the_rows_as_records_without_a_problem(name: str, events: Events) -> None:
    app = lf.App("nexmark")
    made = QUERIES[name](app)
    (made.to_stream() if isinstance(made, lf.Table) else made).to("out")
    running = Running(app.plan())
    for topic, chunk in chunks(events):
        running.take(topic, chunk)
    running.commit()
    assert running.sink.records > 0
