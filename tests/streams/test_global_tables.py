"""Global tables: each task has all of one, whatever the numbers of partitions, and its rows count from when they come."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import logflume.streams as lf
from logflume.log import Chunk, InvalidInput
from logflume.log.interfaces import Log
from logflume.streams import col
from logflume.streams.runtime import Engine, EngineOptions
from logflume.streams.seams import Plan
from logflume.streams.spark import (
    BackfillPlan,
    LocalRunner,
    OffsetRange,
    estimate_backfill,
    plan_backfill,
    plan_together,
    run_backfill,
    run_together,
)
from logflume.streams.spark.batches import open_batches
from logflume.streams.spark.steps import StepPlan
from tests.streams.running import embedded, read, running, send_json, until, write

HOUR_MS = 3_600_000
PRODUCTS = 12


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with embedded(tmp_path / "data") as opened:
        opened.admin().ensure_topic("orders", partitions=3)
        opened.admin().ensure_topic("products", partitions=4, configs={"cleanup.policy": "compact"})
        yield opened


class Order(msgspec.Struct):
    product: str


class Product(msgspec.Struct):
    title: str


def shop(name: str = "shop", out: str = "out") -> lf.App:
    app = lf.App(name)
    products = app.global_table("products", Product, key=str)
    app.stream("orders", Order, key=str).join(products, on=col.product).to(out)
    return app


def offer(log: Log, title: str, *, time_ms: int = 0) -> None:
    send_json(log, "products", [(f"p{n}", {"title": f"{title}{n}"}, time_ms) for n in range(PRODUCTS)])


def order(log: Log, *, time_ms: int = 1000) -> None:
    """One order of each product, under keys that lie elsewhere."""
    send_json(log, "orders", [(f"o{n}", {"product": f"p{n}"}, time_ms) for n in range(PRODUCTS)])


def titles(log: Log, topic: str = "out") -> list[str]:
    return sorted(msgspec.json.decode(each.value or b"")["title"] for each in read(log, topic))


def named(*titles: str) -> list[str]:
    return sorted(f"{title}{n}" for title in titles for n in range(PRODUCTS))


def tasks(*engines: Engine) -> list[int]:
    return [sum(not task.is_restoring for task in engine.status().tasks) for engine in engines]


def test_a_table_of_other_partitions_is_whole_in_every_task_of_every_instance(log: Log, tmp_path: Path) -> None:
    offer(log, "old")
    with running(shop(), log, tmp_path / "a") as first, running(shop(), log, tmp_path / "b") as second:
        until(lambda: sorted(tasks(first, second)) == [1, 2], first, second)
        order(log)
        until(lambda: len(read(log, "out")) == PRODUCTS, first, second)
        assert titles(log) == named("old"), "it was loaded before the first record"
        offer(log, "new", time_ms=HOUR_MS)
        until(lambda: all(row_titles(engine) == named("new") for engine in (first, second)), first, second)
        order(log)
        until(lambda: len(read(log, "out")) == 2 * PRODUCTS, first, second)
        assert titles(log) == named("old", "new"), "rows do not wait for the streams' time"


def row_titles(engine: Engine) -> list[str]:
    """Return the titles of a table as an instance holds it; each row once, however many tasks have it."""
    return sorted(str(entry.state[0]) for _, entry in engine.store("products").range() if entry.state is not None)


@pytest.mark.parametrize("is_disk_lost", [False, True])
def test_a_table_that_changed_meanwhile_is_as_it_is_now_after_a_restart(log: Log, tmp_path: Path, *, is_disk_lost: bool) -> None:
    offer(log, "old")
    with running(shop(), log, tmp_path / "state") as engine:
        order(log)
        until(lambda: len(read(log, "out")) == PRODUCTS, engine)
    offer(log, "new")
    write(log, "products", [(b"p0", None, 0)])
    if is_disk_lost:
        shutil.rmtree(tmp_path / "state")
    with running(shop(), log, tmp_path / "state") as engine:
        order(log)
        until(lambda: len(read(log, "out")) == 2 * PRODUCTS - 1, engine)
    assert titles(log) == sorted(set(named("old", "new")) - {"new0"})


@pytest.mark.parametrize("is_running", [False, True])
def test_a_table_that_was_made_anew_is_the_new_one(log: Log, tmp_path: Path, *, is_running: bool) -> None:
    """Its offsets say nothing: the new topic has more records in each partition than were read of the old one."""
    offer(log, "old")
    with running(shop(), log, tmp_path / "state") as engine:
        order(log)
        until(lambda: len(read(log, "out")) == PRODUCTS, engine)
        if is_running:
            make_anew(log)
            until(lambda: row_titles(engine) == row_titles_anew(), engine)
    if not is_running:
        make_anew(log)
    with running(shop(), log, tmp_path / "state") as engine:
        order(log)
        until(lambda: len(read(log, "out")) == PRODUCTS + 1, engine)
        assert row_titles(engine) == row_titles_anew()
    assert titles(log) == sorted([*named("old"), "new0"])


def row_titles_anew() -> list[str]:
    return sorted(["new0", *(f"more{n}" for n in range(50))])


def make_anew(log: Log) -> None:
    """Make the table's topic anew, with p0 as the only one of the products."""
    log.admin().delete_topic("products")
    log.admin().ensure_topic("products", partitions=4, configs={"cleanup.policy": "compact"})
    rows = [("p0", "new0"), *((f"q{n}", f"more{n}") for n in range(50))]
    send_json(log, "products", [(key, {"title": title}, 0) for key, title in rows])


def test_rows_that_cannot_be_read_are_counted(log: Log, tmp_path: Path) -> None:
    offer(log, "old")
    send_json(log, "products", [("p1", [1, 2], 0)])
    with running(shop(), log, tmp_path / "state") as engine:
        order(log)
        until(lambda: len(read(log, "out")) >= PRODUCTS - 1, engine)
        assert engine.status().dropped.get("decode", 0) == 3, "once for each of the three tasks that read it"


def test_a_row_from_the_future_moves_no_time(log: Log, tmp_path: Path) -> None:
    offer(log, "old", time_ms=HOUR_MS)
    app = lf.App("windows")
    products = app.global_table("products", Product, key=str)
    joined = app.stream("orders", Order, key=str).join(products, on=col.product)
    joined.group_by_key().window(lf.tumbling(1000)).count(name="counts").to("out")
    with running(app, log, tmp_path / "state") as engine:
        order(log, time_ms=5000)
        until(lambda: len(read(log, "out")) == PRODUCTS, engine)
        assert engine.status().dropped == {}


def test_streams_of_other_partitions_join_one_table_each_in_tasks_of_its_own(log: Log, tmp_path: Path) -> None:
    log.admin().ensure_topic("returns", partitions=2)
    app = shop()
    products = app.global_table("products", Product, key=str)
    app.stream("returns", Order, key=str).join(products, on=col.product).to("back")
    assert [sub.name for sub in app.plan().subtopologies] == ["orders", "returns"]
    assert [part.name for part in app.topology().describe().parts] == ["orders", "returns"]
    offer(log, "old")
    order(log)
    send_json(log, "returns", [(f"o{n}", {"product": f"p{n}"}, 1000) for n in range(PRODUCTS)])
    with running(app, log, tmp_path / "state") as engine:
        until(lambda: len(read(log, "out")) == len(read(log, "back")) == PRODUCTS, engine)
        assert len(engine.status().tasks) == 5
        assert row_titles(engine) == named("old")
    assert titles(log) == named("old")


def test_an_application_of_a_table_that_nothing_joins_is_refused() -> None:
    app = lf.App("alone")
    app.global_table("products", Product, key=str)
    with pytest.raises(InvalidInput, match=r"nothing joins the global table 'products'.*app\.table\(topic, store="):
        app.plan()


@pytest.mark.parametrize("slices", [1, 3])
def test_a_history_has_the_table_as_it_is_at_the_cut_and_goes_on_live_with_what_follows(
    log: Log, slices: int, tmp_path: Path
) -> None:
    offer(log, "first")
    order(log)
    offer(log, "old")
    write(log, "products", [(b"p0", None, 0)])
    planned = plan_backfill(lambda: shop().plan(), log.where)
    offer(log, "after the cut")
    report = run_backfill(planned, LocalRunner(slices=slices))
    assert (report.records, report.results) == (PRODUCTS, PRODUCTS - 1)
    assert titles(log) == sorted(set(named("old")) - {"old0"})
    assert {tp.topic for tp in log.admin().group_offsets("shop")} == {"orders"}
    with running(shop(), log, tmp_path / "state") as engine:
        order(log)
        until(lambda: len(read(log, "out")) == 2 * PRODUCTS - 1, engine)
        offer(log, "new")
        until(lambda: row_titles(engine) == named("new"), engine)
        order(log)
        until(lambda: len(read(log, "out")) == 3 * PRODUCTS - 1, engine)
    assert titles(log) == sorted({*named("old", "after the cut", "new")} - {"old0"})


def test_a_run_that_goes_on_has_the_table_as_it_was_at_its_cut(log: Log, tmp_path: Path) -> None:
    offer(log, "old")
    order(log)

    def planned() -> BackfillPlan:
        return plan_backfill(lambda: shop().plan(), log.where, keep=str(tmp_path / "kept"))

    def fail(reached: str) -> None:
        if reached == "after-job":
            raise InvalidInput("stopped here")

    with pytest.raises(InvalidInput, match="stopped here"):
        run_backfill(planned(), LocalRunner(), failpoint=fail)
    for stage in (tmp_path / "kept").glob("stage-*"):  # so that all is computed again, at the cut that is kept
        shutil.rmtree(stage)
    offer(log, "new")
    order(log)
    assert run_backfill(planned(), LocalRunner()).results == PRODUCTS
    assert titles(log) == named("old")


def test_what_takes_the_place_of_another_has_the_table_of_its_cut_for_what_that_one_has_read_since(
    log: Log, tmp_path: Path
) -> None:
    offer(log, "old")
    order(log)
    run_backfill(plan_backfill(lambda: shop().plan(), log.where), LocalRunner())
    planned = plan_backfill(lambda: shop("newer", "other").plan(), log.where, replaces="shop")
    with running(shop(), log, tmp_path / "state") as engine:
        order(log)
        until(lambda: len(read(log, "out")) == 2 * PRODUCTS, engine)
    offer(log, "new")
    run_backfill(planned, LocalRunner())
    assert titles(log, "other") == named("old", "old")


def test_applications_that_are_computed_together_read_a_table_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(log, "old")
    order(log)
    fetched: list[OffsetRange] = []
    whole = StepPlan.read

    def noted(self: StepPlan, log: Log, wanted: OffsetRange) -> Iterator[Chunk]:
        fetched.append(wanted)
        return whole(self, log, wanted)

    monkeypatch.setattr(StepPlan, "read", noted)
    plans = plan_together([lambda: shop("shop", "out").plan(), lambda: shop("newer", "other").plan()], log.where)
    run_together(plans, LocalRunner())
    assert titles(log) == titles(log, "other") == named("old")
    tasks, partitions = 3, 4
    assert len([each for each in fetched if each.topic == "products"]) == tasks * partitions


def test_what_a_table_costs_is_told_of_each_task(log: Log) -> None:
    offer(log, "old")
    order(log)
    (stage,) = estimate_backfill(plan_backfill(lambda: shop().plan(), log.where), cores=None).stages
    assert stage.topics == ("orders", "products")
    assert stage.records == PRODUCTS + 3 * PRODUCTS


def test_spark_refuses_a_topic_that_is_a_global_table_and_a_stream(log: Log) -> None:
    app = shop()
    app.stream("products", name="changes").to("changed")
    with pytest.raises(InvalidInput, match="topic 'products' is a global table and read as something else too"):
        plan_backfill(app.plan, log.where)


def test_a_table_that_nobody_joins_changes_nothing(log: Log, tmp_path: Path) -> None:
    def load() -> Plan:
        app = lf.App("shop")
        app.global_table("products", Product, key=str)
        app.stream("orders", Order, key=str).to("out")
        return app.plan()

    offer(log, "old")
    order(log)
    planned = plan_backfill(load, log.where)
    assert [stage.topics for stage in estimate_backfill(planned, cores=None).stages] == [("orders",)]
    assert run_backfill(planned, LocalRunner()).results == PRODUCTS
    order(log)
    with open_batches(log, load, LocalRunner().run, tmp_path / "stores", settings=EngineOptions()) as batches:
        assert batches.step() is not None
    order(log)
    engine = Engine(load(), log, EngineOptions(state_dir=tmp_path / "state", commit_interval_ms=20))
    engine.start()
    until(lambda: len(read(log, "out")) == 3 * PRODUCTS, engine)
    engine.stop()
