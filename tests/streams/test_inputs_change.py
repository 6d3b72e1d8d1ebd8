"""Inputs that are deleted, made anew or extended while they are read, and clocks that jump."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import logflume.streams as lf
from logflume.log.interfaces import Log, OffsetAndMetadata
from logflume.log.records import TopicPartition
from logflume.streams.runtime import Engine, EngineOptions, StreamsError
from tests.streams.running import embedded, read, running, until, write


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with embedded(tmp_path / "data") as opened:
        opened.admin().ensure_topic("in")
        yield opened


def counting() -> lf.App:
    app = lf.App("inputs")
    app.stream("in", str, key=str).group_by_key().aggregate(n=lf.count(), name="n").to("out")
    return app


def send(log: Log, key: bytes, count: int) -> None:
    write(log, "in", [(key, b"x", i) for i in range(count)])


def counts(log: Log) -> dict[bytes | None, int]:
    return {record.key: msgspec.json.decode(record.value or b"")["n"] for record in read(log, "out")}


def make_anew(log: Log, partitions: int = 1) -> None:
    log.admin().delete_topic("in")
    log.admin().ensure_topic("in", partitions=partitions)


def test_an_input_that_is_deleted_ends_the_application_with_the_cause(log: Log, tmp_path: Path) -> None:
    send(log, b"a", 3)
    with running(counting(), log, tmp_path / "state") as engine:
        until(lambda: counts(log) == {b"a": 3}, engine)
        log.admin().delete_topic("in")
        with pytest.raises(StreamsError, match=r"was deleted while it was read: .*'in'"):
            engine.wait(timeout_s=60)


@pytest.mark.parametrize("on_gap", ["stop", "earliest"])
@pytest.mark.parametrize("is_running", [True, False])
def test_an_input_that_is_made_anew_is_not_taken_for_the_old_one(log: Log, tmp_path: Path, is_running: bool, on_gap: str) -> None:
    """Offsets of the old topic would skip the records of the new one, or wait behind its end for ever.

    With the topic its offsets went, so whatever `on_gap` says nobody knows that its records are not those that the state holds.
    """
    send(log, b"a", 3)
    told = r"made anew.*group reset inputs --topic in --to beginning.*streams reset FILE"
    with running(counting(), log, tmp_path / "state", on_gap=on_gap) as engine:
        until(lambda: counts(log) == {b"a": 3}, engine)
        if is_running:
            make_anew(log)
            with pytest.raises(StreamsError, match=told):
                engine.wait(timeout_s=60)
    if not is_running:
        make_anew(log)
    send(log, b"b", 2)
    with running(counting(), log, tmp_path / "state", on_gap=on_gap) as engine, pytest.raises(StreamsError, match=told):
        engine.wait(timeout_s=60)
    log.admin().set_group_offsets("inputs", {TopicPartition("in", 0): OffsetAndMetadata(0)})
    with running(counting(), log, tmp_path / "state") as engine:
        until(lambda: counts(log) == {b"a": 3, b"b": 2}, engine)
        send(log, b"a", 1)
        until(lambda: counts(log) == {b"a": 4, b"b": 2}, engine)


@pytest.mark.parametrize("on_gap", ["stop", "earliest"])
def test_offsets_of_a_topic_of_the_same_name_are_not_gone_on_from(log: Log, tmp_path: Path, on_gap: str) -> None:
    send(log, b"a", 3)
    with running(counting(), log, tmp_path / "state") as engine:
        until(lambda: counts(log) == {b"a": 3}, engine)
    offsets = log.admin().group_offsets("inputs")
    make_anew(log)
    send(log, b"b", 5)
    log.admin().set_group_offsets("inputs", offsets)
    with running(counting(), log, tmp_path / "state", on_gap=on_gap) as engine:
        if on_gap == "earliest":
            until(lambda: counts(log) == {b"a": 3, b"b": 5}, engine)
        else:
            with pytest.raises(StreamsError, match="made anew: offset 3 that was reached in in-0"):
                engine.wait(timeout_s=60)


def test_state_of_before_a_reset_is_rebuilt(log: Log, tmp_path: Path) -> None:
    """An instance that was away meanwhile: its place in the changelog lies within the new one, and was that of the old one."""
    send(log, b"a", 3)
    with running(counting(), log, tmp_path / "away") as engine:
        until(lambda: counts(log) == {b"a": 3}, engine)
    log.admin().delete_group("inputs")
    log.admin().delete_topic("inputs-n-changelog")
    log.admin().delete_records({TopicPartition("in", 0): 3})
    send(log, b"a", 1)
    with running(counting(), log, tmp_path / "here") as engine:
        until(lambda: counts(log) == {b"a": 1}, engine)
        send(log, b"b", 5)
        until(lambda: counts(log) == {b"a": 1, b"b": 5}, engine)
        send(log, b"b", 1)
        until(lambda: counts(log) == {b"a": 1, b"b": 6}, engine)
    with running(counting(), log, tmp_path / "away") as engine:
        send(log, b"a", 1)
        until(lambda: counts(log) == {b"a": 2, b"b": 6}, engine)


def test_more_partitions_of_an_input_with_state_behind_it_end_the_application(log: Log, tmp_path: Path) -> None:
    send(log, b"a", 3)
    with running(counting(), log, tmp_path / "state") as engine:
        until(lambda: counts(log) == {b"a": 3}, engine)
        log.admin().create_partitions("in", 3)
        with pytest.raises(StreamsError, match="3 partitions now, 1 when the application started"):
            engine.wait(timeout_s=60)


@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0])
def test_a_wall_clock_that_jumps_loses_nothing(log: Log, tmp_path: Path, jump_s: float) -> None:
    jumped = 0.0
    options = EngineOptions(state_dir=tmp_path / "state", commit_interval_ms=20)
    engine = Engine(counting().plan(), log, options, wall_s=lambda: time.time() + jumped)
    engine.start()
    try:
        send(log, b"a", 3)
        until(lambda: counts(log) == {b"a": 3}, engine)
        jumped = jump_s
        send(log, b"a", 2)
        until(lambda: counts(log) == {b"a": 5}, engine)
    finally:
        engine.stop()
    with running(counting(), log, tmp_path / "state") as again:
        send(log, b"a", 1)
        until(lambda: counts(log) == {b"a": 6}, again)
