"""One topic read in several ways: each record goes all its way from one source before the next, in batches of any size."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest

import logflume.streams as lf
from logflume.sql import Catalog, plan_query
from logflume.sql.binding.context import Context
from logflume.sql.definitions import apply_definition
from logflume.sql.parser import parse_statement
from logflume.streams import col
from logflume.streams.testing import TopologyTestDriver
from tests.streams.running import embedded, kernels, read, running, send_json, until

__all__ = ["kernels"]
KEYS = "abc"
BOTH = pytest.mark.parametrize("kernels", ["without kernels", "with kernels"], indirect=True)


class Order(msgspec.Struct):
    cents: int


class Place(msgspec.Struct):
    city: str | None = None


def readings(first: str) -> lf.App:
    """Join a stream with the table of its own topic; `first`: which of both was made first."""
    app = lf.App(f"{first}-first")
    if first == "stream":
        orders = app.stream("orders", Order, name="each")
        newest = app.table("orders", Order, name="newest")
    else:
        newest = app.table("orders", Order, name="newest")
        orders = app.stream("orders", Order, name="each")
    orders.left_join(newest, prefix="row_").to("out")
    return app


def expected(first: str, rows: list[tuple[str, int]]) -> list[tuple[str, int, int | None]]:
    """Return (key, cents, cents of the row that is found), row by row."""
    newest: dict[str, int] = {}
    found = []
    for key, cents in rows:
        found.append((key, cents, newest.get(key) if first == "stream" else cents))
        newest[key] = cents
    return found


def random_rows(count: int) -> list[tuple[str, int]]:
    numbers = Random(count)
    return [(numbers.choice(KEYS), cents) for cents in range(count)]


@BOTH
@pytest.mark.parametrize("size", [1, 7, 64, 300])
@pytest.mark.parametrize("first", ["stream", "table"])
def test_a_stream_finds_the_row_before_or_its_own_by_what_was_made_first(first: str, size: int, kernels: str) -> None:
    rows = random_rows(300)
    driver = TopologyTestDriver(readings(first))
    sent = [(key, {"cents": cents}, 1000) for key, cents in rows]
    for at in range(0, len(sent), size):
        driver.input("orders").send_together(sent[at : at + size])
    found = [(r.key, r.value["cents"], r.value["row_cents"]) for r in driver.output("out").read()]
    assert found == expected(first, rows)


@BOTH
@pytest.mark.parametrize("size", [1, 300])
def test_what_two_readings_write_to_one_topic_is_in_the_order_of_records_then_of_readings(size: int, kernels: str) -> None:
    app = lf.App("twice")
    late = app.stream("orders", Order, name="as-orders").select(cents=col.cents)
    app.stream("orders", name="as-json").select(cents=col.cents.cast(int) + 1000).to("out")
    late.to("out")
    driver = TopologyTestDriver(app)
    sent = [("k", {"cents": cents}, 1000) for cents in range(300)]
    for at in range(0, len(sent), size):
        driver.input("orders").send_together(sent[at : at + size])
    found = [record.value["cents"] for record in driver.output("out").read()]
    assert found == [each for cents in range(300) for each in (cents, cents + 1000)]


@BOTH
@pytest.mark.parametrize("size", [1, 300])
def test_a_stream_joined_with_the_table_of_its_topic_in_sql_finds_the_row_before(size: int, kernels: str) -> None:
    catalog = Catalog()
    for text in (
        "CREATE STREAM EACH (K STRING KEY, CENTS INT) WITH (KAFKA_TOPIC='orders', VALUE_FORMAT='JSON')",
        "CREATE TABLE NEWEST (K STRING PRIMARY KEY, CENTS INT) WITH (KAFKA_TOPIC='orders', VALUE_FORMAT='JSON')",
    ):
        catalog = apply_definition(parse_statement(text), Context(catalog))
    query = "CREATE STREAM O AS SELECT E.K, E.CENTS, N.CENTS AS BEFORE FROM EACH E LEFT JOIN NEWEST N ON E.K = N.K"
    rows = random_rows(300)
    driver = TopologyTestDriver(plan_query(query, catalog))
    sent = [(key, {"CENTS": cents}, 1000) for key, cents in rows]
    for at in range(0, len(sent), size):
        driver.input("orders").send_together(sent[at : at + size])
    found = [(r.key, r.value["E_CENTS"], r.value["BEFORE"]) for r in driver.output("O").read()]
    assert found == expected("stream", rows)


def test_a_record_that_one_reading_refuses_goes_on_in_the_other(tmp_path: Path) -> None:
    app = lf.App("kinds", dead_letter_topic="dead")
    app.stream("mixed", Order, name="orders").to("orders-out")
    app.stream("mixed", Place, name="places").filter(col.city.is_not_null()).to("places-out")
    with embedded(tmp_path / "log") as log:
        log.admin().ensure_topic("mixed", partitions=1)
        send_json(log, "mixed", [("a", {"cents": 1}, 0), ("b", {"city": "Rome"}, 1), ("c", {"cents": 2, "city": "Oslo"}, 2)])
        with running(app, log, tmp_path / "state", dead_letter_topic="dead") as engine:
            until(lambda: len(read(log, "places-out")) == 2 and len(read(log, "orders-out")) == 2, engine)
            told = until(lambda: engine.status().left_out, engine)
        assert [(each.node, each.reason, each.records) for each in told] == [("orders", "decode", 1)]
        assert [record.key for record in read(log, "dead")] == [b"b"]


def test_a_topic_is_a_global_table_and_a_stream(tmp_path: Path) -> None:
    app = lf.App("both")
    everyone = app.global_table("people", name="everyone")
    app.stream("people", name="each").join(everyone, on=col.boss.cast(str), prefix="boss_").select(
        name=col.name.cast(str), boss=col.boss_name.cast(str)
    ).to("out")
    app.stream("people", name="again").group_by_key().count(name="seen").to("seen")
    people = {"p1": ("Ann", "p3"), "p2": ("Bo", "p1"), "p3": ("Cy", "p3")}
    with embedded(tmp_path / "log") as log:
        log.admin().ensure_topic("people", partitions=3)
        send_json(log, "people", [(key, {"name": name, "boss": boss}, 0) for key, (name, boss) in people.items()])
        with running(app, log, tmp_path / "state") as engine:
            until(lambda: len(read(log, "out")) == 3 and len(read(log, "seen")) == 3, engine)
        found = [msgspec.json.decode(record.value or b"") for record in read(log, "out")]
    assert sorted((each["name"], each["boss"]) for each in found) == [("Ann", "Cy"), ("Bo", "Ann"), ("Cy", "Cy")]
