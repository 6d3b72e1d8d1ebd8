"""The judgements of the workers that churn: histories that must be refused, and sound ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from logflume.log import TopicPartition

from ._attributes import attributes, check_attributes
from ._churn import TableWriter, TopicChurner, Trimmer
from ._history import At

T0 = At("table", 0)


def no_writer(_: object) -> Any:
    raise AssertionError("nothing is written here")


def kinds(worker: Any, log: Any, records: list[tuple[int, str]]) -> set[str]:
    return {anomaly.kind for anomaly in worker.anomalies(log, {T0: records})}


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ([(1, "a|2"), (2, "b|1")], set()),
        ([(1, "a|2"), (2, "b|1"), (3, "a|in doubt")], set()),
        ([(2, "b|1"), (3, "a|in doubt")], set()),
        ([(0, "a|1"), (2, "b|1")], {"lost-write"}),
        ([(1, "a|2")], {"lost-write"}),
        ([(1, "a|2"), (2, "b|1"), (3, "c|9")], {"unknown-value"}),
        ([(1, "a|1"), (2, "b|1")], {"inconsistent-offsets"}),
    ],
)
def test_a_table_keeps_the_last_acknowledged_value_of_each_key(records: list[tuple[int, str]], found: set[str]) -> None:
    worker = TableWriter("w", "table", 1, no_writer, pause_s=0)
    worker.tried = {"a|1", "a|2", "b|1", "a|in doubt"}
    worker.acked = {(T0, 0): "a|1", (T0, 1): "a|2", (T0, 2): "b|1"}
    assert kinds(worker, None, records) == found


@pytest.mark.parametrize(
    ("begin", "records", "found"),
    [
        (1, [(1, "1"), (2, "2")], set()),
        (2, [(2, "2")], set()),
        (1, [(2, "2")], {"lost-write"}),
        (0, [(0, "0"), (1, "1"), (2, "2")], {"deleted-records-back"}),
    ],
)
def test_what_is_deleted_stays_so_and_the_rest_is_there(begin: int, records: list[tuple[int, str]], found: set[str]) -> None:
    admin = SimpleNamespace(start_offsets=lambda _: {TopicPartition(*T0): begin})
    log = SimpleNamespace(admin=lambda: admin)
    worker = Trimmer("w", "table", 1, no_writer, log, pause_s=0)  # type: ignore[arg-type]
    worker.tried = {"0", "1", "2"}
    worker.acked = {(T0, offset): str(offset) for offset in range(3)}
    worker._low = {T0: 1}
    assert kinds(worker, log, records) == found


def test_topics_and_configs_are_as_acknowledged() -> None:
    configs = {"kept": {"retention.ms": "7"}, "back": {}, "stale": {"retention.ms": "1"}}
    admin = SimpleNamespace(list_topics=lambda: list(configs), changed_topic_configs=lambda name: configs[name])
    log: Any = SimpleNamespace(admin=lambda: admin)
    worker = TopicChurner("w", log, pause_s=0)
    worker._known = {"kept": "7", "deleted": None}
    assert kinds(worker, log, []) == set()
    for known, kind in (({"gone": "7"}, "topic"), ({"back": None}, "topic"), ({"stale": "2"}, "config")):
        worker._known = known  # type: ignore[assignment]
        assert kinds(worker, log, []) == {kind}


def test_a_record_with_another_key_header_or_time_is_refused() -> None:
    key, headers, timestamp_ms = attributes("k|1")
    check_attributes("k|1", key, headers, timestamp_ms)
    for wrong in ((b"x", headers, timestamp_ms), (key, [], timestamp_ms), (key, headers, timestamp_ms + 1)):
        with pytest.raises(AssertionError, match="came with"):
            check_attributes("k|1", *wrong)
