"""Steps of a task without Spark: one step equals two steps equals the test driver, whatever the cut."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logflume.log import Chunk, InvalidInput, TopicPartition
from logflume.streams.spark.ranges import OffsetRange, split
from logflume.streams.spark.replay import ChangelogRows, OutputRows, Replay, ReplayInput, TaskEnd, by_own_times
from logflume.streams.spark.source import bounded
from logflume.streams.spark.source_options import parse_options
from logflume.streams.state import Checkpoint
from logflume.streams.testing import TopologyTestDriver

from ._spark_apps import GRACE_MS, WINDOW_MS, make_plan, topology

ORDERS = TopicPartition("orders", 0)
Sent = tuple[int, str, bytes]

orders = st.tuples(
    st.integers(0, 4_000_000),
    st.sampled_from(["a", "b", "c"]),
    st.one_of(
        st.none().map(lambda _: b"{broken"),
        st.integers(0, 99).map(lambda amount: json.dumps({"shop": "x", "item": "i", "amount": amount}).encode()),
        st.floats(0, 100).map(lambda amount: json.dumps({"shop": "x", "item": "i", "amount": amount}).encode()),
    ),
)


def chunks(records: list[Sent], start: int, stop: int, size: int):  # type: ignore[no-untyped-def]
    """Yield records start..stop in chunks of `size`, with their offsets."""
    for at in range(start, stop, size):
        part = records[at : min(at + size, stop)]
        chunk = Chunk.from_columns("orders", [k.encode() for _, k, _ in part], [v for _, _, v in part], [t for t, _, _ in part])
        chunk.partition = 0
        chunk.offsets = chunk.offsets + at
        chunk.next_offset = at + len(part)
        yield chunk


class Result:
    """What steps put out: the newest result and changelog record per key, and the counts."""

    def __init__(self) -> None:
        self.newest: dict[bytes | None, tuple[bytes | None, int]] = {}
        self.changelog: dict[bytes, tuple[bytes | None, int]] = {}
        self.problems: Counter[str] = Counter()
        self.end = Checkpoint()

    def step(self, records: list[Sent], start: int, stop: int, state_dir: Path, size: int, stored: bool = False) -> None:
        """Run one step over records start..stop."""
        plan = make_plan("app", "direct")
        inputs = [ReplayInput(ORDERS, by_own_times(chunks(records, start, stop, size)), stop)]
        before = list(self.changelog.items())

        def rebuild(store: str):  # type: ignore[no-untyped-def]
            assert stored, f"store {store} should have been continued from its directory"
            if before:
                values, times = [v for _, (v, _) in before], [t for _, (_, t) in before]
                yield Chunk.from_columns("changelog", [k for k, _ in before], values, times)

        replay = Replay(plan.subtopologies[0], 0, inputs, "app", state_dir, start=self.end, stored=rebuild, flush_records=7)
        for part in replay:
            match part:
                case OutputRows():
                    self.newest.update((row.key, (row.value, row.timestamp_ms)) for row in part.records.records())
                case ChangelogRows():
                    self.changelog.update(zip(part.keys, zip(part.values, part.timestamps_ms, strict=True), strict=True))
                case TaskEnd():
                    self.end = part.checkpoint
                    self.problems.update(part.problems)


@settings(max_examples=60, deadline=None)
@given(st.lists(orders, max_size=60), st.data())
def test_two_steps_equal_one_and_the_driver(records: list[Sent], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(records)), label="cut")
    loses_state = data.draw(st.booleans(), label="state directory is lost between the steps")
    with TemporaryDirectory() as root:
        whole, halves = Result(), Result()
        whole.step(records, 0, len(records), Path(root, "whole"), 11)
        halves.step(records, 0, cut, Path(root, "first"), 5)
        halves.step(records, cut, len(records), Path(root, "second" if loses_state else "first"), 5, stored=loses_state)
    assert halves.newest == whole.newest
    assert halves.changelog.items() >= whole.changelog.items()
    only_in_halves = [int.from_bytes(key[-8:], "big") for key in halves.changelog.keys() - whole.changelog.keys()]
    stream_time_ms = max(whole.end.store_times_ms.values())
    assert all(start_ms + WINDOW_MS + GRACE_MS <= stream_time_ms for start_ms in only_in_halves), (
        "only expired windows may differ"
    )
    assert halves.problems == whole.problems
    assert halves.end == whole.end
    assert whole.end.inputs == {ORDERS: len(records)}
    driver = TopologyTestDriver(topology("app", "direct"))
    for time_ms, key, value in records:
        driver.process("orders", key.encode(), value, time_ms)
    raw = driver.output("app-out").raw
    assert whole.newest == {key: (value, time_ms) for key, value, time_ms, _ in raw}


def test_a_state_directory_ahead_of_its_start_is_rebuilt(tmp_path: Path) -> None:
    """A step that was run and not committed is run again from the same start."""
    value = json.dumps({"shop": "x", "item": "i", "amount": 50}).encode()
    records = [(n * 1000, "a", value) for n in range(10)]
    once = Result()
    once.step(records, 0, 10, tmp_path, 3)
    again = Result()
    again.step(records, 0, 10, tmp_path, 3, stored=True)
    assert again.newest == once.newest
    assert json.loads(again.newest[next(iter(again.newest))][0] or b"")["orders"] == 10


def test_a_range_is_cut_into_equal_parts_without_gaps() -> None:
    parts = split(OffsetRange("t", 1, 5, 1005), 300)
    assert [len(part) for part in parts] == [250, 250, 250, 250]
    assert (parts[0].start, parts[-1].end) == (5, 1005)
    assert all(a.end == b.start for a, b in pairwise(parts))
    assert split(OffsetRange("t", 0, 7, 7), 10) == []


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (6, 5)])
def test_a_range_that_cannot_be_is_refused(start: int, end: int) -> None:
    with pytest.raises(InvalidInput, match="0 <= start <= end"):
        OffsetRange("t", 0, start, end)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "t"}, 'option "log"'),
        ({"log": "h:1"}, 'option "topic"'),
        ({"log": "h:1", "topic": "t", "startingOffset": "{}"}, "startingOffsets"),
        ({"log": "h:1", "topic": "t", "startingOffsets": "[1]"}, "earliest, latest, or JSON such as"),
        ({"log": "h:1", "topic": "t", "endingOffsets": "{"}, "expects latest, or JSON such as"),
        ({"log": "h:1", "topic": "t", "endingOffsets": "earliest"}, "expects latest, or JSON"),
        ({"log": "h:1", "topic": "t", "startingOffsets": '{"t": {"0": -3}}'}, "-1 for the latest or -2 for the earliest"),
        ({"log": "h:1", "topic": "t", "startingOffsets": '{"u": {"0": 3}}'}, "unknown topic .* of option .startingOffsets"),
        ({"log": "h:1", "topic": "t", "startingOffsets": "latest", "startingTimestamp": "5"}, "not both"),
        ({"log": "h:1", "topic": "t", "endingTimestamp": "yesterday"}, "at least 0"),
        ({"log": "h:1", "topic": "t", "includeHeaders": "yes"}, "true or false"),
        ({"log": "h:1", "topic": "t", "maxRecordsPerPartition": "0"}, "at least 1"),
    ],
)
def test_wrong_options_name_the_fix(options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        parse_options(options)


@given(st.dictionaries(st.sampled_from(["a-0", "a-1", "b-0"]), st.integers(0, 1000), min_size=1), st.integers(1, 500))
def test_a_micro_batch_is_bounded_and_moves(lags: dict[str, int], most: int) -> None:
    start = dict.fromkeys(lags, 100)
    end = {name: 100 + lag for name, lag in lags.items()}
    taken = bounded(start, end, most)
    assert all(start[name] <= taken[name] <= end[name] for name in lags)
    assert sum(taken.values()) - sum(start.values()) == min(most, sum(lags.values()))
    assert any(lags.values()) is False or sum(taken.values()) > sum(start.values())
