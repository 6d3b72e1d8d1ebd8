"""What a processor can do: forward to a named child; keep windows, sessions, versions and times in lasting stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

import logflume.streams as lf
from logflume.log import InvalidInput
from logflume.streams.testing import TopologyTestDriver
from tests.streams.running import embedded, read, running, send_json, until


class Sorting(lf.Processor):
    """Gives odd numbers to "odd", even ones to "even", deletions and zeros to both, and what is no number to nobody there is."""

    def process(self, record: lf.Record) -> None:
        if not record.value:
            self.context.forward(record)
        else:
            child = "text" if isinstance(record.value, str) else "odd" if record.value % 2 else "even"
            self.context.forward(record, child=child)


def sorted_apart() -> lf.App:
    app = lf.App("sorting")
    odd, even = app.stream("in").process(Sorting, key=str, children=["odd", "even"])
    odd.to("odd")
    even.group_by_key().count(name="evens", emit="update").to("even")
    return app


@pytest.mark.parametrize("at_once", [1, 7])
def test_a_record_goes_to_the_child_that_is_named_or_to_all(at_once: int) -> None:
    driver = TopologyTestDriver(sorted_apart(), on_problem="skip")
    rows = [("a", value, number) for number, value in enumerate([1, 2, None, 3, 0, "x", 4])]
    for at in range(0, len(rows), at_once):
        driver.input("in").send_together(rows[at : at + at_once])
    assert [record.value for record in driver.output("odd").read()] == [1, None, 3, 0]
    assert [record.value["count"] for record in driver.output("even").read()] == [1, 2, 3], "null values are not counted"
    assert driver.problems == Counter({"callable": 1, "null_value": 1})


def test_children_are_names_each_once() -> None:
    stream = lf.App("a").stream("in")
    for children in ("odd", ["odd", "odd"], [""], [3]):
        with pytest.raises(InvalidInput, match="takes names, each once"):
            stream.process(Sorting, children=children)  # type: ignore[call-overload]


class Forwarding(lf.Processor):
    """Forwards what a function makes of each record."""

    def __init__(self, make: Callable[[lf.Record], Any]) -> None:
        self.make = make

    def process(self, record: lf.Record) -> None:
        self.context.forward(self.make(record))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda record: "text", "takes a lf.Record"),
        (lambda record: record.with_timestamp("yesterday"), "whole ms since 1970, found 'yesterday'"),
        (lambda record: record.with_timestamp(1.5), "found 1.5"),
        (lambda record: record.with_timestamp(-1), "found -1"),
        (lambda record: record.with_timestamp(1 << 63), "found 9223372036854775808"),
        (lambda record: lf.Record("k", 1, 0, (("name", "text"),)), "pairs, found ('name', 'text')"),
        (lambda record: lf.Record("k", 1, 0, ("name",)), "found 'name'"),
        (lambda record: lf.Record("k", 1, 0, ((b"name", b""),)), "found (b'name', b'')"),
        (lambda record: record.with_key("ab"), "a key of ['user', 'page'] as a tuple, found 'ab'"),
        (lambda record: record.with_key(("a",)), "found ('a',)"),
        (lambda record: record.with_key({"user": "a", "page": 1}), "found {'user': 'a', 'page': 1}"),
    ],
)
def test_what_is_no_record_is_left_out_where_it_is_forwarded(make: Callable[[lf.Record], Any], told: str, tmp_path: Path) -> None:
    app = lf.App("forwarding")
    app.stream("in").process(lambda: Forwarding(make), key={"user": str, "page": int}).to("out")
    with embedded(tmp_path / "log") as log:
        log.admin().ensure_topic("in")
        send_json(log, "in", [("k", 1, 0)])
        with running(app, log, tmp_path / "state") as engine:
            until(lambda: engine.status().dropped == {"callable": 1}, engine)
            (left_out,) = engine.status().left_out
        assert told in left_out.first
        assert "in Forwarding.process" in left_out.first
        assert read(log, "out") == []


def test_a_key_of_several_columns_is_forwarded_as_it_came() -> None:
    app = lf.App("forwarding")
    key = {"user": str, "page": int}
    app.stream("in", key=key).process(lambda: Forwarding(lambda record: record), key=key).to("out")
    driver = TopologyTestDriver(app)
    driver.input("in").send({}, key=("ann", 1))
    driver.input("in").send({}, key=("bob", None))
    assert [record.key for record in driver.output("out").read()] == [{"user": "ann", "page": 1}, {"user": "bob", "page": None}]


@pytest.mark.parametrize("make", [lambda: Unready(), lambda: Unready(1), lambda: 7])  # type: ignore[call-arg]
def test_a_processor_that_cannot_begin_is_named(make: Callable[[], Any]) -> None:
    app = lf.App("unready")
    app.stream("in").process(make, name="broken").to("out")
    with pytest.raises(InvalidInput, match=r"broken: (its processor could not begin|expected a lf.Processor)"):
        TopologyTestDriver(app).input("in").send({}, key="k")


class Unready(lf.Processor):
    def __init__(self, number: int) -> None:
        self.number = number

    def init(self, context: lf.Context) -> None:
        raise ValueError("not yet")

    def process(self, record: lf.Record) -> None: ...


class Asked(lf.Processor):
    """Calls what the value names on its store, and forwards what that gives."""

    def init(self, context: lf.Context) -> None:
        super().init(context)
        self.rows = context.store("rows")

    def process(self, record: lf.Record) -> None:
        call, *given = record.value
        found = getattr(self.rows, call)(record.key, *given) if call != "items" else self.rows.items(*given)
        is_plain = found is None or isinstance(found, bool | int | str)
        self.context.forward(record.with_value({"found": found if is_plain else [list(each) for each in found]}))


def asking(store: Any) -> lf.App:
    app = lf.App("asking")
    app.stream("in").process_values(Asked, store, name="asked").to("out", partitions=1)
    return app


CALLS: dict[str, tuple[Any, list[tuple[str, list[Any], int, Any]]]] = {
    "windows": (
        lf.window_store("rows", 100),
        [
            ("a", ["put", "x", 10], 10, True),
            ("a", ["put", "y", 60], 60, True),
            ("ab", ["put", "other", 60], 60, True),
            ("a", ["get", 10], 60, "x"),
            ("a", ["windows"], 60, [[10, "x"], [60, "y"]]),
            ("a", ["windows", 11, 60], 60, [[60, "y"]]),
            ("a", ["get", 10], 110, None),  # 100 ms behind: it has expired
            ("a", ["put", "late", 10], 110, False),
            ("a", ["items"], 110, [[["a", 60], "y"], [["ab", 60], "other"]]),
            ("a", ["put", None, 60], 110, True),
            ("a", ["windows"], 110, []),
        ],
    ),
    "sessions": (
        lf.session_store("rows", 100),
        [
            ("a", ["put", "x", 10, 20], 20, True),
            ("a", ["put", "y", 40, 90], 90, True),
            ("a", ["get", 10, 20], 90, "x"),
            ("a", ["get", 11, 20], 90, None),
            ("a", ["sessions", 15, 40], 90, [[10, 20, "x"], [40, 90, "y"]]),
            ("a", ["sessions", 21, 100], 90, [[40, 90, "y"]]),
            ("a", ["put", None, 40, 90], 90, True),
            ("a", ["items"], 90, [[["a", 10, 20], "x"]]),
            ("a", ["items"], 120, []),
            ("a", ["put", "z", 40, 90], 120, True),
            ("a", ["put", "late", 10, 20], 120, False),
            ("a", ["put", "long", 10, 120], 120, True),
            ("a", ["put", "short", 60, 120], 120, True),
            ("a", ["put", None, 50, 120], 120, True),
            ("a", ["sessions"], 120, [[10, 120, "long"], [40, 90, "z"], [60, 120, "short"]]),
            ("a", ["put", None, 10, 120], 120, True),
            ("a", ["get", 60, 120], 120, "short"),
        ],
    ),
    "versions": (
        lf.versioned_store("rows", 100),
        [
            ("a", ["put", "x", 10], 10, True),
            ("a", ["put", "z", 50], 50, True),
            ("a", ["put", "y", 30], 50, True),
            ("a", ["versions"], 50, [[10, "x"], [30, "y"], [50, "z"]]),
            ("a", ["get"], 50, "z"),
            ("a", ["put", None, 60], 60, True),
            ("a", ["get"], 60, None),
            ("a", ["put", "late", 59], 160, False),
        ],
    ),
    "times": (
        lf.key_value_store("rows"),
        [
            ("a", ["put", "x"], 10, None),
            ("ab", ["put", "y"], 20, None),
            ("b", ["put", "z"], 20, None),
            ("a", ["time_of"], 30, 10),
            ("c", ["time_of"], 30, None),
            ("a", ["items", "ab"], 30, [["ab", "y"], ["b", "z"]]),
        ],
    ),
}


@pytest.mark.parametrize("at_once", [1, 100])
@pytest.mark.parametrize("kind", CALLS)
def test_stores_by_kind(kind: str, at_once: int) -> None:
    store, calls = CALLS[kind]
    driver = TopologyTestDriver(asking(store))
    rows = [(key, value, time_ms) for key, value, time_ms, _ in calls]
    for at in range(0, len(rows), at_once):
        driver.input("in").send_together(rows[at : at + at_once])
    assert [record.value["found"] for record in driver.output("out").read()] == [wanted for *_, wanted in calls]


@pytest.mark.parametrize("kind", CALLS)
def test_stores_go_on_after_a_restart(kind: str, tmp_path: Path) -> None:
    store, calls = CALLS[kind]
    half = len(calls) // 2
    with embedded(tmp_path / "data") as log:
        log.admin().ensure_topic("in", partitions=1)
        for number, part in enumerate((calls[:half], calls[half:])):
            send_json(log, "in", [(key, value, time_ms) for key, value, time_ms, _ in part])
            place = tmp_path / str(number)  # the second finds no disk: its state comes from the changelog
            with running(asking(store), log, place) as engine:
                until(lambda part=part, number=number: len(read(log, "out")) == number * half + len(part), engine)
        found = [record.value for record in read(log, "out")]
    driver = TopologyTestDriver(asking(store))
    driver.input("in").send_together([(key, value, time_ms) for key, value, time_ms, _ in calls])
    assert found == [value for _, value, _, _ in driver.output("out").raw]


def test_keys_by_prefix() -> None:
    class Listing(lf.Processor):
        def process(self, record: lf.Record) -> None:
            rows = self.context.store("rows")
            rows.put(record.key, record.timestamp_ms, timestamp_ms=7)
            assert rows.time_of(record.key) == 7
            self.context.forward(record.with_value([key for key, _ in rows.items(prefix=record.value)]))

    app = lf.App("listing")
    app.stream("in").process_values(Listing, lf.key_value_store("rows")).to("out")
    driver = TopologyTestDriver(app)
    for key, prefix in (("a", "a"), ("ab", "a"), ("aé", "a"), ("b", "a"), ("b", "b"), ("b", "")):
        driver.input("in").send(prefix, key=key)
    found = [record.value for record in driver.output("out").read()]
    assert found == [["a"], ["a", "ab"], ["a", "ab", "aé"], ["a", "ab", "aé"], ["b"], ["a", "ab", "aé", "b"]]


@pytest.mark.parametrize(("key", "prefix"), [(bytes, b"a"), (int, "1"), (object, "a"), (str, 1)])
def test_only_keys_that_are_kept_as_texts_are_asked_for_by_prefix(key: Any, prefix: Any) -> None:
    class Listing(lf.Processor):
        def process(self, record: lf.Record) -> None:
            with pytest.raises(InvalidInput, match="a prefix is a text"):
                list(self.context.store("rows").items(prefix=prefix))
            self.context.forward(record)

    app = lf.App("listing")
    app.stream("in").process_values(Listing, lf.key_value_store("rows", key=key)).to("out")
    driver = TopologyTestDriver(app)
    driver.input("in").send("a", key="a")
    assert len(driver.output("out").read()) == 1


@pytest.mark.parametrize("make", [lf.window_store, lf.session_store, lf.versioned_store])
def test_stores_for_a_time_need_one(make: Any) -> None:
    with pytest.raises(InvalidInput, match="a time above 0"):
        make("rows", 0)


def test_windows_of_a_processor_are_those_of_a_dict() -> None:
    """Random puts, deletions and reads; the model keeps what is younger than the retention."""
    numbers, model = Random(5), dict[tuple[str, int], int]()
    driver, now_ms, wanted = TopologyTestDriver(asking(lf.window_store("rows", 50))), 0, list[Any]()
    rows = list[tuple[str, Any, int]]()
    for number in range(400):
        now_ms += numbers.choice((0, 0, 1, 3, 20))
        key, start_ms = numbers.choice(("a", "ab", "b")), max(0, now_ms - numbers.randrange(80))
        model = {place: value for place, value in model.items() if place[1] > now_ms - 50}
        if numbers.random() < 0.6:
            value = None if numbers.random() < 0.2 else number
            rows.append((key, ["put", value, start_ms], now_ms))
            wanted.append(start_ms > now_ms - 50)
            if wanted[-1]:
                model[key, start_ms] = number
                if value is None:
                    del model[key, start_ms]
        else:
            rows.append((key, ["windows", start_ms], now_ms))
            wanted.append(sorted([at, v] for (k, at), v in model.items() if k == key and at >= start_ms))
    for at in range(0, len(rows), 9):
        driver.input("in").send_together(rows[at : at + 9])
    assert [record.value["found"] for record in driver.output("out").read()] == wanted


class Keeping(lf.Processor):
    """Puts the time of each record into a store of each kind."""

    def process(self, record: lf.Record) -> None:
        at, store = record.timestamp_ms, self.context.store
        store("latest").put(record.key, {"at": at})
        store("tens").put(record.key, at, at // 10 * 10)
        store("visits").put(record.key, at, at, at + 5)
        store("known").put(record.key, at, at)


KEPT: dict[str, list[Any]] = {
    "latest": [("a", {"at": 12}), ("ab", {"at": 40})],
    "tens": [(("a", 0, 1), 1), (("a", 10, 11), 12), (("ab", 40, 41), 40)],
    "visits": [(("a", 1, 6), 1), (("a", 12, 17), 12), (("ab", 40, 45), 40)],
    "known": [("a", 12), ("ab", 40)],
}


def keeping(log: Any = None) -> lf.App:
    app = lf.App("keeping", log=log)
    hour = lf.hours(1)
    stores = (
        lf.key_value_store("latest"), lf.window_store("tens", hour), lf.session_store("visits", hour),
        lf.versioned_store("known", hour),
    )  # fmt: skip
    app.stream("in").process(Keeping, *stores).to("out")
    return app


def check_kept(store: Callable[[str], Any]) -> None:
    for name, rows in KEPT.items():
        assert [(row.key, row.value) for row in store(name).rows()] == rows
        for key, value in rows:
            assert store(name).get(key if isinstance(key, str) else lf.WindowedKey(*key)) == value
    for name in ("tens", "visits"):
        assert [(tuple(row.key), row.value) for row in store(name).windows("a")] == KEPT[name][:2]
        assert [row.value for row in store(name).rows(from_ms=15, to_ms=40)] == ([40] if name == "tens" else [12, 40])
    assert store("visits").get(lf.WindowedKey("a", 2, 6)) is None
    assert [row.key for row in store("latest").rows("ab")] == ["ab"]
    assert store("known").get("a", as_of=5) == 1


def test_stores_of_a_processor_are_read_like_tables(tmp_path: Path) -> None:
    records = [("a", {}, 1), ("a", {}, 12), ("ab", {}, 40)]
    driver = TopologyTestDriver(keeping())
    driver.input("in").send_together(records)
    check_kept(driver.store)
    with embedded(tmp_path / "log") as log:
        log.admin().create_topic("in", partitions=1)
        send_json(log, "in", records)
        app = keeping(log)
        with running(app, log, tmp_path / "state", endpoint="127.0.0.1:0") as engine, ExitStack() as queries:
            found = {name: queries.enter_context(app.query(name, timeout_s=60)) for name in KEPT}
            until(lambda: len(found["known"].rows()) == 2, engine)
            check_kept(lambda name: found[name])
            changes = {name: [row.key for row in islice(found[name].follow(), len(KEPT[name]))] for name in KEPT}
            assert changes == {name: [key for key, _ in rows] for name, rows in KEPT.items()}


def test_a_table_of_sessions_is_read_by_key() -> None:
    app = lf.App("sessions")
    counted = app.stream("in").group_by_key().window(lf.session(10)).count()
    counted.to_stream().to_table(store="again").to("out")
    driver = TopologyTestDriver(app)
    driver.input("in").send_together([("a", {}, 1), ("ab", {}, 1), ("a", {}, 20)])
    assert [tuple(row.key) for row in driver.store("again").windows("a")] == [("a", 1, 1), ("a", 20, 20)]
