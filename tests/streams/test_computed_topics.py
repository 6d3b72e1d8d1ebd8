"""Records that say themselves which topic they go to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import logflume.streams as lf
from logflume.log import InvalidInput
from logflume.log.records import TopicPartition
from logflume.streams import col
from logflume.streams.runtime import PoisonRecord
from logflume.streams.testing import TopologyTestDriver
from tests.streams.running import embedded, read, running, send_json, until


def of_kind(value: Any) -> Any:
    return value["kind"]


def shop(topic: Any = of_kind, **options: Any) -> lf.App:
    app = lf.App("shop")
    app.stream("in").to(topic, **options)
    return app


def sent(driver: TopologyTestDriver, *kinds: Any) -> None:
    for number, kind in enumerate(kinds):
        driver.input("in").send({"kind": kind, "n": number}, key=f"k{number}")


@pytest.mark.parametrize("topic", [of_kind, col.kind, col.kind.cast(str), lambda key, value: value["kind"]])
def test_a_record_goes_to_the_topic_that_it_says(topic: Any) -> None:
    driver = TopologyTestDriver(shop(topic))
    sent(driver, "a", "b", "a")
    assert [(r.key, r.value["n"]) for r in driver.output("a").read()] == [("k0", 0), ("k2", 2)]
    assert [r.value["n"] for r in driver.output("b").read()] == [1]


@pytest.mark.parametrize("name", [None, 3, "", "no spaces", "a/b", "..", "x" * 250, "__consumer_offsets", "in", "other"])
def test_a_record_without_a_topic_that_it_may_write_is_refused(name: Any) -> None:
    driver = TopologyTestDriver(shop(topics=["a"]), on_problem="skip")
    sent(driver, "a", name, "a")
    assert driver.problems == {"refused": 1}
    assert [r.value["n"] for r in driver.output("a").read()] == [0, 2]


@pytest.mark.parametrize("name", ["in", "shop-counts-changelog", "shop-in-by-kind-repartition"])
def test_a_record_cannot_name_a_topic_that_the_application_reads_or_keeps_itself(name: str) -> None:
    app = shop()
    app.stream("in").group_by(col.kind.cast(str), name="in-by-kind").count(name="counts")
    driver = TopologyTestDriver(app, on_problem="skip")
    sent(driver, name)
    assert driver.problems == {"refused": 1}


def test_a_function_that_raises_ends_its_records_way_only() -> None:
    driver = TopologyTestDriver(shop(), on_problem="skip")
    driver.input("in").send({"n": 0})
    sent(driver, "a")
    assert driver.problems == {"callable": 1}
    assert len(driver.output("a")) == 1


@pytest.mark.parametrize(
    ("topic", "options", "text"),
    [
        (col.n.cast(int), {}, "expected the name of a topic"),
        (3, {}, "found 3"),
        (lambda: "a", {}, "takes 0 arguments"),
        (of_kind, {"topics": "a"}, "expected a list of topics"),
        ("a", {"topics": ["a"]}, "for a computed one"),
        (of_kind, {"format": "avro"}, "registered by topic"),
    ],
)
def test_what_cannot_be_meant_is_refused(topic: Any, options: Any, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        shop(topic, **options)


def test_a_listed_topic_is_one_that_is_written() -> None:
    with pytest.raises(InvalidInput, match="come back for ever"):
        shop(topics=["a", "in"]).plan()
    with pytest.raises(InvalidInput, match="topics have up to 249"):
        shop(topics=["no spaces"]).plan()
    assert "a, b" in str(shop(topics=["a", "b"]).topology().describe())


def test_windowed_results_go_where_their_keys_say() -> None:
    app = lf.App("windows")
    counts = app.stream("in").group_by_key().window(lf.tumbling(100)).count(emit="update")
    counts.to(lambda key, row: key.key, topics=["k0", "k1"])
    driver = TopologyTestDriver(app)
    sent(driver, "x", "x")
    assert [(r.key.key, r.value["count"]) for r in driver.output("k1").read()] == [("k1", 1)]


def test_on_a_log_topics_that_are_listed_are_made_and_others_are_kept_as_dead_letters(tmp_path: Path) -> None:
    app = shop(topics=["a", "b"], partitions=3)
    with embedded(tmp_path / "log") as log:
        log.admin().create_topic("in", partitions=1)
        send_json(log, "in", [(f"k{n}", {"kind": kind, "n": n}, 1_000 + n) for n, kind in enumerate("abcab")])
        with running(app, log, tmp_path / "state", dead_letter_topic="letters") as engine:
            until(lambda: len(read(log, "letters")) == 1, engine)
            until(lambda: len(read(log, "a")) == 2 and len(read(log, "b")) == 2, engine)
        assert log.admin().describe_topics(["a"])["a"].partitions == 3
        letter = read(log, "letters")[0]
        assert letter.key == b"k2"
        facts = dict(letter.headers)
        assert facts["__streams.errors.reason"] == b"refused"
        assert b"not among topics=['a', 'b']" in (facts["__streams.errors.message"] or b"")


def test_on_a_log_any_topic_that_exists_is_written_and_one_that_comes_later_from_then_on(tmp_path: Path) -> None:
    app = shop()
    app.stream("in").to("a")
    with embedded(tmp_path / "log") as log:
        admin = log.admin()
        admin.create_topic("in", partitions=1)
        admin.create_topic("a", partitions=1)
        rows = [(f"k{n}", {"kind": "ab"[n % 2], "n": n}, 1_000 + n) for n in range(40)]
        send_json(log, "in", rows)
        with running(app, log, tmp_path / "state", dead_letter_topic="letters") as engine:
            until(lambda: len(read(log, "letters")) == 20, engine)
            assert "b" not in admin.list_topics()
            until(lambda: len(read(log, "a")) == 60, engine)
            places = [int((record.key or b"k0")[1:]) for record in read(log, "a")]
            assert places == sorted(places), "records of two sinks of one topic are in the order of their causes"
            admin.create_topic("b", partitions=1)
            number = iter(range(1_000_000))

            def arrives() -> bool:
                send_json(log, "in", [("late", {"kind": "b", "n": next(number)}, 2_000)])
                return bool(read(log, "b"))

            until(arrives, engine)


def test_under_the_setting_to_stop_the_application_stops_with_the_cause(tmp_path: Path) -> None:
    with embedded(tmp_path / "log") as log:
        log.admin().create_topic("in", partitions=1)
        send_json(log, "in", [("k", {"kind": "nowhere", "n": 1}, 1_000)])
        with (
            running(shop(), log, tmp_path / "state", on_problem="stop") as engine,
            pytest.raises(PoisonRecord, match=r"(?s)nowhere.*create it, or list it"),
        ):
            engine.wait()
        assert log.admin().end_offsets([TopicPartition("in", 0)])[TopicPartition("in", 0)] == 1


@pytest.mark.parametrize("key", ["a", "1", "über", 'say "x"'])
def test_text_keys_of_a_function_are_written_as_they_are(key: str) -> None:
    app = lf.App("keys")
    app.stream("in").group_by(lambda value: value["k"], name="by-k").count(emit="update").to("out")
    app.stream("in").map(lambda value: (value["k"], 1)).to("mapped")
    driver = TopologyTestDriver(app)
    driver.input("in").send({"k": key})
    again = lf.App("again")
    again.stream("out", key=str).to("copy")
    reader = TopologyTestDriver(again)
    for topic in ("out", "mapped"):
        written = driver.output(topic).raw[0][0]
        assert written == key.encode()
        reader.process("out", written, b"{}", 0)
    assert [r.key for r in reader.output("copy").read()] == [key, key]


@pytest.mark.parametrize(("key", "written"), [(5, b"5"), ([1, "a"], b'[1,"a"]'), (True, b"true"), (b"raw", b"raw"), (None, None)])
def test_other_keys_of_a_function_are_written_as_json(key: Any, written: bytes | None) -> None:
    app = lf.App("keys")
    app.stream("in").select_key(lambda value: key).to("out")
    driver = TopologyTestDriver(app)
    driver.input("in").send({})
    assert driver.output("out").raw[0][0] == written
