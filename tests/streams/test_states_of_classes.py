"""States that are objects: what the driver holds, and what an engine writes, restores and goes on from, is the same."""

from __future__ import annotations

import enum
import shutil
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest

import logflume.streams as lf
from logflume.log import InvalidInput, UnknownName
from logflume.log.schemas import ANY, Column
from logflume.streams.seams import Entry
from logflume.streams.state.codec import EntryCodec
from logflume.streams.testing import TopologyTestDriver
from tests.streams.running import embedded, read, running, send_json, until


class Mood(enum.Enum):
    CALM = 1
    BUSY = 2


class Struct(msgspec.Struct):
    total: int = 0
    mood: Mood = Mood.CALM


@dataclass
class Inner:
    last: int


@dataclass
class Outer:
    total: int = 0
    inner: Inner | None = None
    seen: set[int] = field(default_factory=set)


class Pair(NamedTuple):
    total: int = 0
    count: int = 0


class Model(pydantic.BaseModel):
    total: int = 0


def add_struct(state: Struct, value: Any) -> Struct:
    return Struct(state.total + value["n"], Mood.BUSY)


def add_outer(state: Outer, value: Any) -> Outer:
    return Outer(state.total + value["n"], Inner(value["n"]), {*state.seen, value["n"]})


def add_mood(state: Mood, value: Any) -> Mood:
    return Mood.BUSY if value["n"] > 2 else state


CASES: dict[str, tuple[Any, Callable[[Any, Any], Any], Callable[[Any], Any]]] = {
    "struct": (Struct, add_struct, lambda s: [s.total, s.mood.name]),
    "dataclass": (Outer, add_outer, lambda o: [o.total, o.inner.last, sorted(o.seen)]),
    "named tuple": (Pair, lambda p, v: Pair(p.total + v["n"], p.count + 1), lambda p: [p.total, p.count]),
    "pydantic": (Model, lambda m, v: Model(total=m.total + v["n"]), lambda m: m.total),
    "counter": (Counter, lambda c, v: c + Counter({v["n"] % 2: 1}), lambda c: sorted(c.most_common())),
    "deque": (lambda: deque(maxlen=2), lambda d, v: deque([*d, v["n"]], d.maxlen), lambda d: [d.maxlen, *d]),
    "enum": (Mood.CALM, add_mood, lambda m: m.name),
    "in a list": (list, lambda states, v: [*states[-2:], (v["n"], {"x": v["n"]})], lambda states: states[-1][1]["x"]),
}


def make() -> lf.App:
    app = lf.App("states")
    grouped = app.stream("in").group_by_key()
    for case, (init, add, shown) in CASES.items():
        name = case.replace(" ", "-")
        grouped.aggregate(init, add, name=name, emit="update").map_values(shown).to(f"out-{name}", partitions=1)
    return app


def topics() -> list[str]:
    return [f"out-{case.replace(' ', '-')}" for case in CASES]


def test_states_survive_a_restart_with_the_disk_and_without(tmp_path: Path) -> None:
    driver = TopologyTestDriver(make())
    for n in range(6):
        driver.input("in").send({"n": n}, key="k", timestamp_ms=n)
    expected = {topic: [value for _, value, _, _ in driver.output(topic).raw] for topic in topics()}
    assert {len(values) for values in expected.values()} == {6}
    with embedded(tmp_path / "log") as log:
        log.admin().create_topic("in", partitions=1)
        for part in range(3):
            send_json(log, "in", [("k", {"n": n}, n) for n in (2 * part, 2 * part + 1)])
            with running(make(), log, tmp_path / "state") as engine:
                until(lambda part=part: all(len(read(log, topic)) == 2 * part + 2 for topic in topics()), engine)
            if part == 1:
                shutil.rmtree(tmp_path / "state")
        assert {topic: [record.value for record in read(log, topic)] for topic in topics()} == expected


def test_rows_without_a_class_are_states_too() -> None:
    app = lf.App("rows")
    rows = app.stream("in").select(n=lf.col.n.cast(int), name=lf.col.name.cast(str))
    rows.group_by_key().reduce(lambda a, b: a if a.n > b.n else b, name="s", emit="update").map_values(lambda r: r.name).to("out")
    driver = TopologyTestDriver(app)
    for n, name in ((2, "b"), (1, "a"), (3, "c")):
        driver.input("in").send({"n": n, "name": name}, key="k")
    assert [r.value for r in driver.output("out").read()] == ["b", "b", "c"]


def test_a_reducer_of_typed_values_keeps_them() -> None:
    app = lf.App("typed")
    app.stream("in", Struct).group_by_key().reduce(lambda a, b: Struct(a.total + b.total), name="s", emit="update").to("out")
    driver = TopologyTestDriver(app)
    for _ in range(3):
        driver.input("in").send(Struct(total=2), key="k")
    assert driver.store("s").get("k") == Struct(total=6)


def test_a_class_that_nothing_names_is_refused_in_the_driver_as_in_the_engine() -> None:
    app = lf.App("unnamed")
    app.stream("in").group_by_key().aggregate(dict, lambda state, value: {"x": Inner(value["n"])}, name="s").to("out")
    driver = TopologyTestDriver(app)
    with pytest.raises(InvalidInput, match=r"Annotate the function's result \(def add\(aggregate, value\) -> Inner\)"):
        driver.input("in").send({"n": 1}, key="k")


def test_a_function_that_says_what_it_gives_names_its_classes() -> None:
    def add(state: dict[str, Inner], value: Any) -> dict[str, Inner]:
        return {**state, "x": Inner(value["n"])}

    add.__annotations__["return"] = dict[str, Inner]
    app = lf.App("named")
    app.stream("in").group_by_key().aggregate(dict, add, name="s").to("out")
    driver = TopologyTestDriver(app)
    driver.input("in").send({"n": 1}, key="k")
    assert driver.store("s").get("k") == {"x": Inner(1)}


def test_what_cannot_be_made_again_is_refused() -> None:
    app = lf.App("factory")
    app.stream("in").group_by_key().aggregate(lambda: defaultdict(int), lambda state, value: state, name="s").to("out")
    with pytest.raises(InvalidInput, match=r"store 's': .*collections.defaultdict cannot be stored"):
        TopologyTestDriver(app).input("in").send({"n": 1}, key="k")


def test_processors_name_the_class_of_their_values() -> None:
    class Keeping(lf.Processor):
        def init(self, context: lf.Context) -> None:
            super().init(context)
            self.kept = context.store("kept")

        def process(self, record: lf.Record) -> None:
            found = self.kept.get(record.key) or Pair()
            self.kept.put(record.key, Pair(found.total + record.value["n"], found.count + 1))

    app = lf.App("processor")
    app.stream("in").process(Keeping, lf.key_value_store("kept", value=Pair)).to("out")
    driver = TopologyTestDriver(app)
    for n in (1, 2):
        driver.input("in").send({"n": n}, key="k")
    assert driver.processor_store("kept").get("k") == Pair(3, 2)


def test_written_state_brings_in_no_class() -> None:
    columns = (Column("state", ANY),)
    written = EntryCodec(columns, [Pair]).encode(Entry((Pair(1, 2),), 0))
    assert written is not None
    assert EntryCodec(columns, [Pair]).decode(written).state == (Pair(1, 2),)
    with pytest.raises(UnknownName, match="of the state that the topology names"):
        EntryCodec(columns, [Struct]).decode(written)


def test_a_class_that_has_grown_reads_older_states_with_its_defaults() -> None:
    class Older(NamedTuple):
        total: int
        gone: int

    columns = (Column("state", ANY),)
    Older.__module__, Older.__qualname__ = Pair.__module__, Pair.__qualname__
    written = EntryCodec(columns, [Older]).encode(Entry((Older(5, 7),), 0))
    assert EntryCodec(columns, [Pair]).decode(written or b"").state == (Pair(5, 0),)
