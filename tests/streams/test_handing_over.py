"""Partitions that stay with an instance are processed, and committed, while the group hands over others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import logflume.streams as lf
from logflume.log.interfaces import Consumer, Log
from logflume.streams.runtime import Engine
from logflume.streams.runtime.assigning import Sharing, task_strategy
from logflume.streams.runtime.options import Guarantee
from tests.streams.running import embedded, read, running, until

PARTITIONS = 6


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with embedded(tmp_path / "data") as opened:
        opened.admin().ensure_topic("events", partitions=PARTITIONS)
        yield opened


class Event(msgspec.Struct):
    n: int


def counting() -> lf.App:
    app = lf.App("counting")
    app.stream("events", Event, key=str).group_by_key().aggregate(n=lf.count(), name="kept").to("out")
    return app


def bystander(log: Log) -> Consumer:
    """A member of the group that takes its share of partitions, and joins again only when it is polled."""
    consumer = log.consumer(
        group_id="counting",
        group_instance_id="bystander",
        assignment_strategies=[task_strategy(Sharing({"events": ["events"]}), dict, lambda copies: None)],
        offset_reset="none",
    )
    consumer.subscribe(["events"])
    return consumer


def parts_of(engine: Engine) -> set[int]:
    return {each.partition for task in engine.status().tasks for each in task.inputs}


def counted(log: Log) -> int:
    return len(read(log, "out"))


def feed(log: Log, partitions: set[int]) -> int:
    """Send one record to each of these partitions; return how many."""
    producer = log.producer()
    for partition in partitions:
        producer.send("events", b'{"n": 1}', key=f"k{partition}".encode(), partition=partition)
    producer.close()
    return len(partitions)


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_what_stays_is_not_interrupted_while_the_group_waits_for_a_slow_member(
    log: Log, tmp_path: Path, guarantee: Guarantee
) -> None:
    with running(counting(), log, tmp_path / "a", guarantee=guarantee) as first:
        until(lambda: parts_of(first) == set(range(PARTITIONS)), first)
        slow = bystander(log)
        slow.subscribe(["events"], on_assigned=lambda partitions: [slow.seek(tp, 0) for tp in partitions] and None)
        until(lambda: slow.poll(timeout_s=0.05) is not None and len(slow.assignment()) == PARTITIONS // 2, first)
        until(lambda: len(parts_of(first)) == PARTITIONS // 2, first)
        stays = parts_of(first)
        with running(counting(), log, tmp_path / "b", guarantee=guarantee) as second:
            until(lambda: log.admin().describe_group("counting").state == "PreparingRebalance", first, second)
            wanted = 0
            for _ in range(3):
                wanted += feed(log, stays)
                until(lambda wanted=wanted: counted(log) == wanted, first, second)
            assert parts_of(second) == set(), "the slow member has not joined yet"
            assert log.admin().describe_group("counting").state == "PreparingRebalance"
            until(lambda: slow.poll(timeout_s=0.05) is not None and len(parts_of(second)) == PARTITIONS // 3, first, second)
            slow.close()
            log.admin().remove_group_members("counting", ["bystander"])
            until(lambda: parts_of(first) | parts_of(second) == set(range(PARTITIONS)), first, second)
            wanted += feed(log, set(range(PARTITIONS)))
            until(lambda: counted(log) == wanted, first, second)
            assert first.status().commit.aborts == 0
    counts = [msgspec.json.decode(record.value or b"")["n"] for record in read(log, "out") if record.key in keys(stays)]
    assert sorted(counts) == sorted([1, 2, 3, 4] * len(stays)), "each counted once"


def keys(partitions: set[int]) -> set[bytes | None]:
    return {f"k{partition}".encode() for partition in partitions}
