"""The Nexmark queries give what a batch computation of the same rows gives."""

from __future__ import annotations

import json

import pytest

from benchmarks.nexmark.events import Events, make_events
from benchmarks.nexmark.queries import QUERIES
from benchmarks.nexmark.running import expected, run


@pytest.fixture(scope="module")
def events() -> Events:
    return make_events(1000)


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_gives_what_a_batch_computation_gives(name: str, events: Events) -> None:
    found, wanted = run(name, events), expected(name, events)
    assert wanted
    if isinstance(wanted, dict):
        assert found == wanted
    else:
        assert sorted(map(_text, found)) == sorted(map(_text, wanted))


def _text(row: object) -> str:
    return json.dumps(row if isinstance(row, dict) else {f: getattr(row, f) for f in row.__struct_fields__}, sort_keys=True)  # type: ignore[attr-defined]
