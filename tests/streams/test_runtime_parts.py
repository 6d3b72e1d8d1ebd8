"""Parts of the runtime without a log: problems, offset metadata, options, status lines."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logflume.log import InvalidInput
from logflume.log.interfaces import OffsetAndMetadata
from logflume.log.records import Chunk, Record, TopicPartition
from logflume.streams.graph import TimeWindow
from logflume.streams.runtime import EngineOptions, EngineState, EngineStatus, Handlers, OnProblem, PoisonRecord, describe_status
from logflume.streams.runtime.outputs import TaskOutputs
from logflume.streams.runtime.pace import MAX_RECORDS, MIN_RECORDS, ROUND_S, Pace
from logflume.streams.runtime.positions import read_times, to_offsets
from logflume.streams.runtime.problems import TaskProblems
from logflume.streams.runtime.session import whole_tasks
from logflume.streams.runtime.topics import changelog_configs
from logflume.streams.runtime.writer import by_inner_key
from logflume.streams.seams import OutputTopic
from logflume.streams.state import Checkpoint, SegmentLayout
from logflume.streams.state.trimming import ChangelogTimes
from tests.streams.handmade import join_plan

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def test_times_travel_with_the_committed_offsets() -> None:
    checkpoint = Checkpoint({B: 7, A: 3}, {A: 100, B: 90}, {"counts": 5}, {"counts": 95})
    offsets = to_offsets(checkpoint, {})
    assert {tp: offset.offset for tp, offset in offsets.items()} == {A: 3, B: 7}
    times = read_times(offsets)
    assert times.inputs_ms == {A: 100, B: 90}
    assert times.stores_ms == {"counts": 95}


def test_foreign_offset_metadata_counts_as_none_and_long_one_is_shortened() -> None:
    assert read_times({A: OffsetAndMetadata(3, "reset by hand")}).inputs_ms == {}
    many = {f"store-{i:04}-{'x' * 50}": i for i in range(200)}
    offsets = to_offsets(Checkpoint({A: 3}, {A: 100}, {}, many), {})
    assert len(offsets[A].metadata) < 4096
    assert read_times(offsets).inputs_ms == {A: 100}


def test_bad_records_are_counted_logged_with_their_place_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "logflume.streams")
    problems = TaskProblems("t.0", handlers=Handlers.all(OnProblem.SKIP), keeps_letters=True)
    problems.chunks = [Chunk.from_columns("a", [b"k"] * 30, [b"v%d" % i for i in range(30)], [5] * 30, partition=0)]
    for offset in range(30):
        problems.report("decode", "source", "a", 0, offset, "expected a number, found 'x'")
    problems.report("late", "window", "a", 0, 3, "window closed")
    assert problems.counts == {"decode": 30, "late": 1}
    letters = problems.take_letters()
    assert [letter.value for letter in letters] == [b"v%d" % i for i in range(30)]
    assert dict(letters[7].headers)["__streams.errors.offset"] == b"7"
    assert dict(letters[7].headers)["__streams.errors.reason"] == b"decode"
    assert problems.take_letters() == []
    assert "a-0 offset 3 left out (decode): expected a number" in caplog.text
    assert len([r for r in caplog.records if "decode" in r.message]) == 10


def test_a_bad_record_stops_the_task_when_told_so() -> None:
    problems = TaskProblems("t.0", handlers=Handlers.all(OnProblem.STOP), keeps_letters=False)
    problems.report("late", "window", "a", 0, 3, "window closed")
    with pytest.raises(PoisonRecord, match="a-0 offset 4"):
        problems.report("decode", "source", "a", 0, 4, "not JSON")


def test_topics_that_records_name_are_counted_in_one_place() -> None:
    problems = TaskProblems("t.0", handlers=Handlers.all(OnProblem.SKIP), keeps_letters=False)
    for number in range(100):
        record = Record(f"named-{number}", 0, -1, 5, b"k", b"v")
        problems.refused("route", record.topic, record, "no such topic", is_computed=True)
    assert {tuple(place): count for place, count in problems.places.items()} == {("route", "", "refused"): 100}
    assert "'named-0'" in next(iter(problems.samples.values()))


def test_outputs_of_an_unknown_node_are_a_bug_that_is_named() -> None:
    outputs = TaskOutputs({"out": OutputTopic("t")})
    with pytest.raises(InvalidInput, match="'nowhere'"):
        outputs.send("nowhere", [b"k"], [b"v"], [1])


def test_headers_stay_aligned_when_only_some_records_have_them() -> None:
    outputs = TaskOutputs({"out": OutputTopic("t")})
    outputs.send("out", [b"a"], [b"1"], [1])
    outputs.send("out", [b"b"], [b"2"], [2], headers=[(("h", b"x"),)])
    outputs.send("out", [b"c"], [b"3"], [3])
    assert outputs.take()[0].chunk().headers() == [(), (("h", b"x"),), ()]


def test_columns_and_objects_leave_in_the_order_they_came() -> None:
    outputs = TaskOutputs({"out": OutputTopic("t")})
    columns = Chunk.from_columns("t", [b"b", None], [b"2", None], [2, 3], headers=[(), (("h", b"x"),)])
    outputs.send("out", [b"a"], [b"1"], [1])
    outputs.send_columns("out", columns)
    outputs.send("out", [b"c"], [b"4"], [4])
    outputs.send_columns("out", columns.take(np.array([1, 0])))
    taken = outputs.take()[0]
    found = taken.chunk()
    assert len(taken) == len(found) == 6
    assert found.keys() == [b"a", b"b", None, b"c", None, b"b"]
    assert found.values() == [b"1", b"2", None, b"4", None, b"2"]
    assert found.timestamps_ms.tolist() == [1, 2, 3, 4, 3, 2]
    assert found.headers() == [(), (), (("h", b"x"),), (), (("h", b"x"),), ()]
    assert outputs.take() == []


def test_windowed_keys_go_where_their_inner_key_goes() -> None:
    keys = [b"user-%d" % i for i in range(50)]
    plain = Chunk.from_columns("t", keys, keys, [1] * 50)
    windowed = Chunk.from_columns("t", [key + (60_000).to_bytes(8, "big") for key in keys], keys, [1] * 50)
    by_plain = {key: p for p, part in _partitions(plain, 5) for key in part.values()}
    by_windowed = {key: p for p, part in by_inner_key(windowed, 5, 8) for key in part.values()}
    assert by_plain == by_windowed
    assert sum(len(part) for _, part in by_inner_key(windowed, 5, 8)) == 50
    assert [p for p, _ in by_inner_key(windowed, 1, 8)] == [0]


def _partitions(chunk: Chunk, partitions: int) -> list[tuple[int, Chunk]]:
    """Partition by the whole key, by padding it so that the inner key is what was the key."""
    keys = [(key or b"") + bytes(8) for key in chunk.keys()]  # noqa: SIM118 - a chunk is no dict
    padded = Chunk.from_columns("t", keys, chunk.values(), chunk.timestamps_ms)
    return by_inner_key(padded, partitions, 8)


def test_changelogs_are_compacted_and_keep_what_no_window_has_outlived() -> None:
    assert changelog_configs(None)["cleanup.policy"] == "compact"
    configs = changelog_configs(TimeWindow(size_ms=3_600_000, advance_ms=3_600_000, grace_ms=600_000))
    assert (configs["cleanup.policy"], configs["retention.ms"]) == ("compact,delete", "-1")


@given(st.lists(st.tuples(st.integers(0, 50_000_000), st.integers(1, 100)), max_size=60), st.integers(1, 7))
def test_only_windows_that_have_expired_are_cut_from_a_changelog(commits: list[tuple[int, int]], ask_every: int) -> None:
    """Each commit writes some records of windows up to its time; what is cut off never holds a window that is alive."""
    layout = SegmentLayout(TimeWindow(size_ms=1_000_000, advance_ms=1_000_000, grace_ms=500_000))
    times = ChangelogTimes(layout, [])
    starts: list[int] = []
    stream_time_ms = cut = 0
    for number, (time_ms, count) in enumerate(commits, 1):
        stream_time_ms = max(stream_time_ms, time_ms)
        starts += [time_ms - time_ms % 1_000_000] * count
        times.note(stream_time_ms, len(starts))
        assert len(times.marks) <= 6 + ask_every
        if number % ask_every == 0:
            found = times.expired(stream_time_ms)
            assert found == 0 or cut < found <= len(starts)
            cut = max(cut, found)
            assert all(start < layout.oldest_alive(stream_time_ms) for start in starts[:cut])
    if commits:
        times.note(200_000_000, len(starts) + 1)
        assert times.expired(200_000_000) == len(starts), "nothing is kept for good"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"offset_reset": "none"}, "offset_reset must be"),
        ({"guarantee": "exactly_onec"}, "did you mean 'exactly_once'"),
        ({"commit_interval_ms": 0}, "greater than 0"),
        ({"transaction_timeout_ms": 50}, "transaction_timeout_ms"),
    ],
)
def test_settings_that_cannot_be_right_are_refused(setting: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        EngineOptions(state_dir=Path("x"), **setting)  # type: ignore[arg-type]


def test_a_status_line_names_what_was_left_out() -> None:
    status = EngineStatus("app", EngineState.RESTORING, "i", dropped={"late": 2}, restore_remaining_records=1000)
    assert describe_status(status).endswith("lag unknown, left out: 2 late, 1,000 to restore")
    going = replace(status, restore_records_per_s=50.0)
    assert describe_status(going).endswith("1,000 to restore, 50 a second, 20 s to go")


def test_rounds_become_shorter_while_records_are_slow_and_longer_while_full_ones_are_quick() -> None:
    pace = Pace()
    for _ in range(20):
        pace.took(pace.records, 3.0)
    assert pace.records == MIN_RECORDS
    pace.took(pace.records - 1, 0.001)
    assert pace.records == MIN_RECORDS, "what there was does not say how quick a full round would be"
    for _ in range(20):
        pace.took(pace.records, 0.01)
    assert pace.records == MAX_RECORDS
    pace.took(MAX_RECORDS, ROUND_S)
    assert pace.records == MAX_RECORDS


def test_a_task_begins_once_all_that_it_reads_is_assigned() -> None:
    (joining,) = join_plan().subtopologies
    left, right = sorted(set(joining.program.sources.values()))
    both = {left: 2, right: 2}
    every = [TopicPartition(topic, number) for topic in both for number in range(2)]
    assert whole_tasks(joining, every, both) == [0, 1]
    assert whole_tasks(joining, every[:3], both) == [0]
    assert whole_tasks(joining, every[:2], both) == []
    assert whole_tasks(joining, [*every, TopicPartition(left, 2)], {**both, left: 3}) == [0, 1, 2]
