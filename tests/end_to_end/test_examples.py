"""The examples give what their first lines say, over their data, which comes the way that those lines say too."""

from __future__ import annotations

import heapq
import itertools
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import logflume as lf
from logflume.connect import run_connectors
from logflume.log import Log, Record, TopicPartition, connect

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TEN_MS = 1_709_287_200_000
"""The first of March 2024, ten o'clock: where all of the data begins."""
Given = tuple[str, Any, Any]

CASES: dict[str, list[Given]] = {
    "sessions.py": [("visits", ("ann", TEN_MS), {"clicks": 3, "spent_cents": 500})],
    "fraud.py": [("suspicious", "4711", {"cents": 9900, "bought_in": "LV", "atm": "Oslo 3"})],
    "sensors.py": [
        ("hourly", ("attic", TEN_MS), {"readings": 2, "mean": 25.0, "hottest": 30.0}),
        ("too-late", "attic", {"sensor": "attic", "celsius": 99.0}),
    ],
    "search_table.py": [
        ("searchable", "p1", {"text": "red pen acme", "country": "US"}),
        ("searchable", "p1", {"text": "red pen acme pens", "country": "US"}),
    ],
    "features.py": [
        ("user-features", "ann", {"payments": 1, "total_cents": 100, "mean_cents": 100.0, "largest_cents": 100}),
        ("user-features", "ann", {"payments": 2, "total_cents": 400, "mean_cents": 200.0, "largest_cents": 300}),
    ],
}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    with connect(tmp_path_factory.mktemp("examples") / "data") as opened:
        yield opened


def loaded(log: Log, example: Path, patch: pytest.MonkeyPatch) -> list[Record]:
    """Run the example's command of `connect`; return all records in the order in which an application takes them."""
    patch.chdir(EXAMPLES.parent)
    (command,) = (line for line in example.read_text().splitlines() if line.startswith("logflume connect run "))
    files = [each for each in shlex.split(command) if each.endswith(".toml")]
    topics = [topic for status in run_connectors(log, files, is_once=True) for topic in status.topics]
    consumer = log.consumer()
    by_topic: dict[str, list[Record]] = {topic: [] for topic in topics}
    partitions = [TopicPartition(topic, 0) for topic in topics]
    ends = log.admin().end_offsets(partitions)
    consumer.assign(partitions)
    while any(consumer.position(each) < ends[each] for each in partitions):
        for chunk in consumer.poll(timeout_s=0.5):
            by_topic[chunk.topic] += chunk.records()
    consumer.close()
    runs = [
        [*zip(itertools.accumulate((each.timestamp_ms for each in records), max), itertools.count(), records)]
        for records in by_topic.values()
    ]
    return [record for _, _, record in heapq.merge(*runs, key=lambda entry: entry[0])]


@pytest.mark.parametrize("name", CASES)
def test_an_example_gives_what_it_says(log: Log, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    records = loaded(log, EXAMPLES / name, monkeypatch)
    app = runpy.run_path(str(EXAMPLES / name))["app"]
    driver = lf.TopologyTestDriver(app)
    for each in records:
        driver.process(each.topic, each.key, each.value, each.timestamp_ms)
    found = [
        (
            topic,
            (record.key.key, record.key.start_ms) if hasattr(record.key, "start_ms") else record.key,
            msgspec.to_builtins(record.value),
        )
        for topic in dict.fromkeys(topic for topic, _, _ in CASES[name])
        for record in driver.output(topic).read()
    ]
    assert found == CASES[name]


@pytest.mark.parametrize("name", CASES)
def test_an_example_is_short_and_its_picture_is_of_it(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) <= 60
    app = runpy.run_path(str(EXAMPLES / name))["app"]
    picture = EXAMPLES / "pictures" / name.replace(".py", ".svg")
    assert picture.read_text() == app._repr_svg_() + "\n", f"write what app.topology().describe().svg() gives to {picture}"
