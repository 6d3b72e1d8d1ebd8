"""Outputs that their topic does not take: handled like any other bad record; one of them never holds up the application."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import logflume.streams as lf
from logflume.log import Chunk, LogflumeError
from logflume.log.interfaces import Log
from logflume.streams import col
from logflume.streams.runtime import Engine, EngineOptions, EngineState, Guarantee, PoisonRecord, StreamsError, writer
from logflume.streams.runtime.problems import Place
from logflume.streams.runtime.rules import TopicRules, rules_of
from tests.streams.running import embedded, read, running, send_json, until

COUNT = 300
GUARANTEES = list(Guarantee)


class Order(msgspec.Struct):
    n: int
    at: int = 0
    size: int = 0


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with embedded(tmp_path / "data") as opened:
        opened.admin().ensure_topic("orders", partitions=1, configs={"message.timestamp.after.max.ms": str(1 << 62)})
        yield opened


@pytest.fixture(params=["rules known", "rules unknown"])
def rules(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the topics' rules known beforehand, and as where nobody may ask for them."""
    if request.param == "rules unknown":
        monkeypatch.setattr(writer, "rules_of", lambda configs: TopicRules())


def grow(order: Order) -> dict[str, Any]:
    return {"n": order.n, "padding": "x" * order.size}


def passing_on(log: Log) -> lf.App:
    """Orders go on as they are: with the time that they state, and as many bytes as they ask for."""
    app = lf.App("passing")
    app.stream("orders", Order, timestamp=col.at).map_values(grow).to("out")
    return app


def orders(bad: dict[int, dict[str, int]], *, start: int = 0) -> list[tuple[str, dict[str, int], int]]:
    now_ms = time.time_ns() // 1_000_000
    return [("k", {"n": n, "at": now_ms, "size": 0} | bad.get(n, {}), now_ms) for n in range(start, start + COUNT)]


def numbers(log: Log, topic: str) -> list[int]:
    return [msgspec.json.decode(record.value or b"")["n"] for record in read(log, topic)]


def bad_orders() -> dict[int, dict[str, int]]:
    ahead_ms = time.time_ns() // 1_000_000 + 48 * 3_600_000
    return {7: {"at": ahead_ms}, 8: {"size": 3_000_000}, 150: {"at": ahead_ms}, 299: {"size": 1_100_000}}


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.usefixtures("rules")
def test_refused_outputs_go_to_the_dead_letters_and_the_rest_goes_on(log: Log, tmp_path: Path, guarantee: Guarantee) -> None:
    bad = bad_orders()
    with running(passing_on(log), log, tmp_path / "state", guarantee=guarantee, dead_letter_topic="dead") as engine:
        send_json(log, "orders", orders(bad))
        until(lambda: engine.status().lag_records == 0 and len(read(log, "dead")) == len(bad), engine)
        send_json(log, "orders", orders({}, start=COUNT))
        until(lambda: len(read(log, "out")) == 2 * COUNT - len(bad), engine)
        assert engine.status().dropped == {"refused": len(bad)}
        assert engine.status().state is EngineState.RUNNING
    assert numbers(log, "out") == [n for n in range(2 * COUNT) if n not in bad]
    letters = {msgspec.json.decode(r.value or b"")["n"]: dict(r.headers) for r in read(log, "dead")}
    assert sorted(letters) == sorted(bad)
    assert letters[7]["__streams.errors.reason"] == b"refused"
    assert letters[7]["__streams.errors.topic"] == b"out"
    assert b"ahead" in (letters[7]["__streams.errors.message"] or b"") or b"later" in (
        letters[7]["__streams.errors.message"] or b""
    )


@pytest.mark.usefixtures("rules")
def test_a_refused_output_stops_the_application_with_the_cause_when_told_so(log: Log, tmp_path: Path) -> None:
    send_json(log, "orders", orders({5: {"size": 3_000_000}}))
    with running(passing_on(log), log, tmp_path / "state", on_problem="stop") as engine:
        with pytest.raises(PoisonRecord, match=r"'out'.*bytes"):
            engine.wait(timeout_s=60)
        assert engine.status().state is EngineState.FAILED


@pytest.mark.usefixtures("rules")
def test_a_record_without_a_key_for_a_compacted_topic_is_refused_alone(log: Log, tmp_path: Path) -> None:
    log.admin().ensure_topic("out", configs={"cleanup.policy": "compact"})
    now_ms = time.time_ns() // 1_000_000
    send_json(log, "orders", [(None if n % 100 == 50 else "k", {"n": n, "at": now_ms}, now_ms) for n in range(COUNT)])
    with running(passing_on(log), log, tmp_path / "state") as engine:
        until(lambda: len(read(log, "out")) == COUNT - 3, engine)
        until(lambda: engine.status().dropped == {"refused": 3}, engine)
    assert numbers(log, "out") == [n for n in range(COUNT) if n % 100 != 50]


def test_a_limit_that_is_raised_counts_from_then_on(log: Log, tmp_path: Path) -> None:
    log.admin().ensure_topic("out", configs={"max.message.bytes": "1000"})
    with running(passing_on(log), log, tmp_path / "state") as engine:
        send_json(log, "orders", orders({3: {"size": 5000}}))
        until(lambda: engine.status().dropped == {"refused": 1}, engine)
        log.admin().alter_topic_configs("out", {"max.message.bytes": "10000"})

        def is_taken() -> bool:
            send_json(log, "orders", orders({COUNT: {"size": 5000}}, start=COUNT)[:1])
            return COUNT in numbers(log, "out")

        until(is_taken, engine)


def test_times_ahead_pass_changelogs_and_repartition_topics(log: Log, tmp_path: Path) -> None:
    app = lf.App("ahead")
    grouped = app.stream("orders", Order, timestamp=col.at).group_by(col.n % 3, name="by-n")
    grouped.window(lf.tumbling(days=1)).count(name="per_day")
    day_ms = (time.time_ns() // 1_000_000 // 86_400_000 + 3) * 86_400_000
    with running(app, log, tmp_path / "state") as engine:
        send_json(log, "orders", orders({n: {"at": day_ms + n} for n in range(COUNT)}))
        store = engine.store("per_day")
        until(lambda: sorted(e.state for _, e in store.range()) == [(COUNT // 3,)] * 3, engine)
        assert engine.status().dropped == {}


def test_state_too_large_for_its_changelog_stops_with_the_store_named(log: Log, tmp_path: Path) -> None:
    app = lf.App("large")
    app.stream("orders", Order).group_by_key().aggregate(str, lambda text, order: text + "x" * order.size, name="texts")
    send_json(log, "orders", orders({n: {"size": 1_000_000} for n in range(20)}))
    with running(app, log, tmp_path / "state") as engine, pytest.raises(StreamsError, match=r"large-texts-changelog.*entry of"):
        engine.wait(timeout_s=60)


def test_an_output_topic_that_is_deleted_ends_the_application_with_its_name(log: Log, tmp_path: Path) -> None:
    with running(passing_on(log), log, tmp_path / "state") as engine:
        send_json(log, "orders", orders({}))
        until(lambda: len(read(log, "out")) == COUNT, engine)
        log.admin().delete_topic("out")
        send_json(log, "orders", orders({}, start=COUNT))
        with pytest.raises(LogflumeError, match="'out'"):
            engine.wait(timeout_s=90)
        assert engine.status().state is EngineState.FAILED


class Growing(Counter[Place]):
    """Counts that grow while somebody goes through them, as those of the engine's thread may."""

    def items(self) -> Any:
        for number, item in enumerate(super().items()):
            yield item
            self[Place("count", f"topic-{number}", "late")] += 1


def test_status_does_not_mind_counts_that_grow_meanwhile(log: Log, tmp_path: Path) -> None:
    engine = Engine(passing_on(log).plan(), log, EngineOptions(state_dir=tmp_path / "state"))
    engine._dropped_before = Growing({Place("count", "orders", "late"): 2, Place("count", "orders", "null_key"): 3})
    assert engine.status().dropped == {"late": 2, "null_key": 3}


def test_what_was_learnt_of_a_record_with_headers_leaves_out_no_smaller_ones() -> None:
    headed = Chunk.from_columns("out", [b"k"], [bytes(200)], [1], headers=[(("name", bytes(100)),)])
    rules = TopicRules().learned("MESSAGE_TOO_LARGE", headed, 0, 1)
    assert rules.refused(headed, 1)
    assert rules.refused(Chunk.from_columns("out", [b"k"], [bytes(290)], [1]), 1) == []


def test_what_is_as_large_as_its_topic_allows_is_written(log: Log) -> None:
    log.admin().create_topic("sized", partitions=1, configs={"max.message.bytes": "300"})
    rules = rules_of(log.admin().topic_configs("sized"))
    for headers in ((), (("name", bytes(60)), ("none", None)), (("name", bytes(180)),), (("n", None),) * 70):
        for size in (*range(40), *range(120, 170), *range(205, 240)):
            chunk = Chunk.from_columns("sized", [b"k" * 7], [bytes(size)], [1], headers=[headers])
            refused = rules.refused(chunk, 1)
            with log.producer() as producer:
                error = producer.send_chunk("sized", chunk).exception(60)
            assert (error is not None) == bool(refused), (size, headers, error)
