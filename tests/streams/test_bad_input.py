"""Input that nobody meant: each kind has a result that the documents name, and nothing is left out uncounted."""

from __future__ import annotations

import datetime
import json
import struct
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

import logflume.streams as lf
from logflume.log import InvalidInput, TopicPartition
from logflume.log.schemas import check_nesting
from logflume.log.schemas.json_format import NESTING_MAX
from logflume.streams import col
from logflume.streams.testing import TopologyTestDriver
from tests.streams.running import embedded, kernels, read, running, send_json, until, write

__all__ = ["kernels"]

LAST_MS = (1 << 63) - 1
YEAR_9999_MS = 253_402_300_799_999


class Counted(msgspec.Struct):
    n: int


Build = Callable[[lf.Stream], Any]
OPERATORS: dict[str, Build] = {
    "filter": lambda s: s.filter(col.n >= 0),
    "tumbling": lambda s: s.group_by_key().window(lf.tumbling(hours=1)).count(emit="update"),
    "hopping": lambda s: s.group_by_key().window(lf.hopping(hours=1, advance=lf.minutes(30))).count(emit="update"),
    "session": lambda s: s.group_by_key().window(lf.session(hours=1)).count(emit="update"),
    "sliding": lambda s: s.group_by_key().window(lf.sliding(hours=1)).count(emit="update"),
    "unlimited": lambda s: s.group_by_key().window(lf.unlimited()).count(emit="update"),
    "calendar": lambda s: s.group_by_key().window(lf.calendar("month", zone="Europe/Berlin")).count(emit="update"),
    "expiring": lambda s: s.group_by_key().count(emit="update", ttl=lf.hours(1)),
    "once": lambda s: s.deduplicate(within=lf.hours(1)),
    "self join": lambda s: s.join(s, lambda a, b: a, within=lf.hours(1)),
    "table": lambda s: s.to_table(store="t"),
    "held": lambda s: s.group_by_key().count(emit="update").suppress(lf.until_time_limit(lf.hours(1))),
}


def driver_of(build: Build) -> TopologyTestDriver:
    app = lf.App("bad")
    made = build(app.stream("in"))
    (made.to_stream() if isinstance(made, lf.Table) else made).to("out")
    return TopologyTestDriver(app, on_problem="skip")


@pytest.mark.parametrize("name", OPERATORS)
def test_times_at_the_ends_of_time_stop_no_operator(name: str) -> None:
    driver = driver_of(OPERATORS[name])
    for time in (-1, 0, YEAR_9999_MS, LAST_MS - 1, LAST_MS, 5):
        driver.input("in").send({"n": 1}, key="k", timestamp_ms=time)
    assert driver.problems["negative_time"] == 1
    assert driver.problems["expression"] == (3 if name == "calendar" else 0)
    is_never_late = name in ("filter", "unlimited", "self join", "table", "held", "calendar")
    assert driver.problems["late"] == (0 if is_never_late else 1)
    assert len(driver.output("out").read()) >= 1


def test_an_engine_takes_times_at_the_ends_of_time_as_the_driver_does(tmp_path: Path) -> None:
    any_time = {"message.timestamp.after.max.ms": str(LAST_MS)}
    times = (0, YEAR_9999_MS, 1 << 62, LAST_MS - 1, LAST_MS, 5)
    with embedded(tmp_path / "log") as log, ExitStack() as apps:
        for topic in ("in", *(f"{name.replace(' ', '-')}-out" for name in OPERATORS)):
            log.admin().create_topic(topic, partitions=1, configs=any_time)
        send_json(log, "in", [("k", {"n": 1}, time) for time in times])
        for name, build in OPERATORS.items():
            driver = driver_of(build)
            for time in times:
                driver.input("in").send({"n": 1}, key="k", timestamp_ms=time)
            app = lf.App(name.replace(" ", "-"))
            made = build(app.stream("in"))
            (made.to_stream() if isinstance(made, lf.Table) else made).to(f"{app.name}-out")
            engine = apps.enter_context(running(app, log, tmp_path / "state", endpoint=None))
            until(lambda e=engine: e.status().lag_records == 0, engine)
            until(lambda a=app.name, d=driver: len(read(log, f"{a}-out")) == len(d.output("out")), engine)
            wanted = [(key, value, time) for key, value, time, _ in driver.output("out").raw]
            assert [(r.key, r.value, r.timestamp_ms) for r in read(log, f"{app.name}-out")] == wanted, name
            assert {reason: n for reason, n in engine.status().dropped.items() if n} == driver.problems, name


@pytest.mark.parametrize("name", [name for name in OPERATORS if name not in ("filter", "self join")])
def test_a_record_without_a_key_is_counted_where_one_is_needed(name: str) -> None:
    driver = driver_of(OPERATORS[name])
    driver.input("in").send({"n": 1}, timestamp_ms=0)
    assert driver.problems == {"null_key": 1}


@pytest.mark.parametrize("count", [1, 200])
def test_the_least_integer_goes_through_functions_and_aggregates_as_in_java(count: int) -> None:
    app = lf.App("bad")
    rows = app.stream("in", msgspec.defstruct("Row", [("i", int)]), key=str).group_by_key()
    rows.aggregate(top=lf.max(col.i.abs()), least=lf.min(col.i), total=lf.sum(col.i), emit="update").to("out")
    driver = TopologyTestDriver(app)
    driver.input("in").send_together([("k", {"i": -(1 << 63)}, 0), ("k", {"i": 7}, 0)] * count)
    total = (7 - (1 << 63)) * count
    wrapped = (total + (1 << 63)) % (1 << 64) - (1 << 63)
    assert driver.output("out").read()[-1].value == {"top": 7, "least": -(1 << 63), "total": wrapped}


HUGE = 1 << 70


def test_a_number_that_is_no_bigint_does_not_become_one() -> None:
    for build, wanted in (
        (lambda s: s.select(n=col.n.cast(int)), [{"n": None}, {"n": 7}, {"n": None}]),
        (lambda s: s.select(n=col.n.cast(int) + 1), [{"n": None}, {"n": 8}, {"n": None}]),
        (lambda s: s.group_by_key().aggregate(n=lf.max(col.n.cast(int)), emit="update"), [{"n": None}, {"n": 7}, {"n": 7}]),
        (lambda s: s.select(n=col.n.cast(float)), [{"n": float(HUGE)}, {"n": 7.0}, {"n": float(1 << 63)}]),
    ):
        driver = driver_of(build)
        for n in (HUGE, 7, 1 << 63):
            driver.input("in").send({"n": n}, key="k")
        assert [record.value for record in driver.output("out").read()] == wanted
        assert driver.problems["expression"] == (0 if wanted[0]["n"] else 2)


@pytest.mark.parametrize("at", [col.at, col.at.cast(int), col.at.cast(str)])
def test_event_times_that_are_none_are_counted(at: Any) -> None:
    app = lf.App("times")
    app.stream("in", timestamp=at).to("out")
    driver = TopologyTestDriver(app, on_problem="skip")
    for found in (5, "7", "text", HUGE, None, [1], -1):
        driver.input("in").send({"at": found}, key="k", timestamp_ms=1)
    assert [record.timestamp_ms for record in driver.output("out").read()] == [5, 7]
    assert driver.problems == {"expression": 4, "negative_time": 1}


def test_the_event_time_may_be_a_day_and_is_no_flag() -> None:
    days = msgspec.defstruct("Days", [("day", datetime.date), ("flag", bool)])
    app = lf.App("times")
    app.stream("in", days, timestamp=col.day).to("out")
    driver = TopologyTestDriver(app)
    driver.input("in").send(b'{"day":"1970-01-03","flag":true}')
    assert driver.output("out").read()[0].timestamp_ms == 2 * 86_400_000
    with pytest.raises(InvalidInput, match="is BOOLEAN, expected ms since 1970"):
        lf.App("times").stream("in", days, timestamp=col.flag)


def deep(levels: int, opening: str, closing: str) -> bytes:
    return b'{"n":' + (opening * levels).encode() + b"1" + (closing * levels).encode() + b"}"


@pytest.mark.parametrize("levels", [NESTING_MAX, 900, 10_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.filter(col.x.is_null()), lambda s: s.map_values(lambda v: v), lambda s: s.select(n=col.n),
        lambda s: s.group_by_key().reduce(lambda a, b: b), lambda s: s.to_table(store="t"),
    ],
)  # fmt: skip
def test_values_nested_too_deeply_are_counted_wherever_they_go(build: Build, opening: str, closing: str, levels: int) -> None:
    driver = driver_of(build)
    driver.input("in").send(deep(levels, opening, closing), key="k")
    driver.input("in").send({"n": 1}, key="k")
    assert driver.problems == {"decode": 1}
    assert len(driver.output("out")) == 1


def test_what_is_just_not_too_deep_goes_through_a_state_and_brackets_in_texts_do_not_count() -> None:
    driver = driver_of(lambda s: s.group_by_key().reduce(lambda a, b: b))
    value = deep(NESTING_MAX - 1, "[", "]")
    driver.input("in").send(value, key="k")
    assert json.loads(driver.output("out").raw[-1][1] or b"") == json.loads(value)
    check_nesting(b'{"text":"' + b"[" * 10_000 + b'\\"["}')
    check_nesting(b"[" + b",".join([b"[]"] * 10_000) + b"]")


def test_an_aggregate_that_nests_without_end_says_so() -> None:
    driver = driver_of(lambda s: s.group_by_key().aggregate(list, lambda a, v: [a], name="s"))
    with pytest.raises(InvalidInput, match="keep it flatter"):
        driver.input("in").send_together([("k", {"n": 1}, 0)] * 10_000)


def test_a_value_of_very_many_fields_is_taken() -> None:
    driver = driver_of(lambda s: s.map_values(lambda value: {"first": value["c0"], "count": len(value)}))
    driver.input("in").send({f"c{i}": i for i in range(100_000)}, key="k")
    assert driver.output("out").read()[0].value == {"first": 0, "count": 100_000}


@pytest.mark.slow
def test_a_class_of_very_many_fields_is_read_for_those_that_are_used() -> None:
    wide = msgspec.defstruct("Wide", [(f"c{i}", int) for i in range(100_000)])
    app = lf.App("wide")
    app.stream("in", wide).filter(col.c5 == 5).select(last=col.c99999).to("out")
    driver = TopologyTestDriver(app)
    driver.input("in").send(json.dumps({f"c{i}": i for i in range(100_000)}).encode())
    assert driver.output("out").read()[0].value == {"last": 99_999}


def counting() -> lf.App:
    app = lf.App("partitions")
    app.stream("in").group_by_key().count(name="counts", emit="update").to("out")
    return app


def test_another_number_of_partitions_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with embedded(tmp_path / "log") as log:
        log.admin().create_topic("in", partitions=1)
        send_json(log, "in", [("k", 1, 0)])
        with running(counting(), log, tmp_path / "state") as engine:
            until(lambda: len(read(log, "out")) == 1, engine)
        log.admin().create_partitions("in", 2)
        with (
            pytest.raises(InvalidInput, match=r"has 1 partitions, the topology needs 2.*reset the application"),
            running(counting(), log, tmp_path / "state"),
        ):
            raise AssertionError("it starts")
        assert log.admin().end_offsets([TopicPartition("partitions-counts-changelog", 0)])


def test_inputs_of_a_join_need_the_same_number_of_partitions(tmp_path: Path) -> None:
    app = lf.App("unequal")
    app.stream("in").join(app.table("rows"), lambda a, b: a).to("out")
    with embedded(tmp_path / "log") as log:
        log.admin().create_topic("in", partitions=2)
        log.admin().create_topic("rows", partitions=3)
        with (
            pytest.raises(InvalidInput, match=r"in has 2, rows has 3; repartition one of them"),
            running(app, log, tmp_path / "state"),
        ):
            raise AssertionError("it starts")


@pytest.mark.parametrize("kernels", ["without kernels", "with kernels"], indirect=True)
@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        (int, [struct.pack(">q", 7)], [b"abc", b""]),
        (float, [struct.pack(">d", 0.5)], [b"abc"]),
        (str, [b"plain", "ü".encode(), b"", b'"'], [b"\xff", b"\xc3", b"a\xe2\x82"]),
        (bytes, [b"\xff", b""], []),
    ],
)
def test_a_key_that_cannot_be_decoded_leaves_the_record_out_though_nothing_reads_it(
    key: type[Any], good: list[bytes], bad: list[bytes], kernels: str
) -> None:
    app = lf.App("bad")
    app.stream("in", key=key).filter(col.n > 0).to("out")
    driver = TopologyTestDriver(app, on_problem="skip")
    keys = [*good, *bad, None, *good * 60, *bad]
    driver.input("in").send_together([(each, b'{"n":1}', 0) for each in keys])
    driver.input("in").send_together([(each, b'{"n":1}', 0) for each in good * 60])
    assert [raw[0] for raw in driver.output("out").raw] == [*(each for each in keys if each not in bad), *good * 60]
    assert driver.problems == ({"decode": 2 * len(bad)} if bad else {})


def test_a_null_leaves_the_records_beside_it_what_they_are(tmp_path: Path) -> None:
    """A count by a column needs no column of the value behind the topic between, which is there all the same."""
    app = lf.App("beside")
    app.stream("in", Counted).group_by(col.n).aggregate(count=lf.count()).to("out")
    with embedded(tmp_path / "log") as log:
        log.admin().ensure_topic("in", partitions=1)
        write(log, "in", [(b"k", b'{"n":3}', 1000), (b"k", None, 1000), (b"k", b'{"n":3}', 1000)])
        with running(app, log, tmp_path / "state") as engine:
            until(lambda: read(log, "out"), engine)
            assert read(log, "out")[-1].value == b'{"count":2}'
