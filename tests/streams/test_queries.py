"""Stores read from outside while their application runs: by key, window and scan, whichever instance has them; and changes."""

from __future__ import annotations

import json
import time
import urllib.request
from contextlib import closing
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

import logflume.streams as lf
from logflume.log import InvalidInput, TopicPartition, UnknownName, connect
from logflume.log.page_door import Asker
from logflume.log.schemas import BIGINT, Column
from logflume.streams import col, count, sum
from logflume.streams.query import StoreQuery
from logflume.streams.rows import WindowedKey
from logflume.streams.runtime import Engine, EngineOptions, StoreUnavailable, instances, peers, statuses
from logflume.streams.runtime.peers import Peers, StorePlace
from logflume.streams.runtime.reads import Answer, Ask, Held, answer
from logflume.streams.seams import Entry
from logflume.streams.state import EntryCodec, TaskState
from tests.streams.running import embedded, running, send_json, until

HERE = "127.0.0.1:0"
USERS = [f"user{i}" for i in range(40)]


class Order(msgspec.Struct):
    ms: int
    amount: int


def orders(name: str = "orders-app", log: object = None) -> lf.App:
    app = lf.App(name, log=log)  # type: ignore[arg-type]
    stream = app.stream("orders", Order, key=str)
    stream.group_by_key().aggregate(n=count(), spent=sum(col.amount), name="totals").to("totals-out")
    stream.group_by_key().window(lf.tumbling(lf.seconds(10), retention=lf.hours(1))).aggregate(n=count(), name="per-window").to(
        "windows-out"
    )
    return app


def test_any_instance_answers_for_all_keys_typed(tmp_path: Path) -> None:
    with embedded(tmp_path / "data") as log:
        log.admin().ensure_topic("orders", partitions=3)
        send_json(log, "orders", [(user, {"ms": i, "amount": i}, i * 1000) for i, user in enumerate(USERS * 2)])
        app = orders(log=log)
        one, two = (running(app, log, tmp_path / f"state{i}", endpoint=HERE, instance_id=f"i{i}") for i in range(2))
        with one as first, two as second, app.query("totals") as totals, app.query("per-window") as windows:
            until(lambda: first.status().tasks and second.status().tasks, first, second)
            until(lambda: first.status().lag_records == 0 and second.status().lag_records == 0, first, second)
            until(lambda: len(totals.rows()) == len(USERS), first, second)
            assert {row.key: row.value for row in totals.rows()} == {
                user: {"n": 2, "spent": 2 * i + 40} for i, user in enumerate(USERS)
            }
            assert totals.get("user7") == {"n": 2, "spent": 54}
            assert totals.get("nobody") is None
            assert totals.lag_records == 0
            assert [(row.key, row.value) for row in windows.windows("user7")] == [
                (WindowedKey("user7", 0, 10_000), {"n": 1}),
                (WindowedKey("user7", 40_000, 50_000), {"n": 1}),
            ]
            assert windows.get(WindowedKey("user7", 40_000, 50_000)) == {"n": 1}
            at = instances(log.admin(), app.name)
            assert len(at) == 2
            assert sorted(status["instance_id"] for _, status in statuses(at, Asker(None))) == ["i0", "i1"]


def test_a_partition_that_moves_is_found_again(tmp_path: Path) -> None:
    with embedded(tmp_path / "data") as log:
        log.admin().ensure_topic("orders", partitions=2)
        send_json(log, "orders", [(user, {"ms": i, "amount": 1}, i) for i, user in enumerate(USERS)])
        app = orders(log=log)
        with app.query("totals") as totals:
            with running(app, log, tmp_path / "one", endpoint=HERE) as engine:
                until(lambda: engine.status().lag_records == 0, engine)
                until(lambda: len(totals.rows()) == len(USERS), engine)
            with running(app, log, tmp_path / "two", endpoint=HERE):
                assert {row.key for row in totals.rows()} == set(USERS)
        with (
            StoreQuery(app.topology(), "totals", log, timeout_s=0.2) as alone,
            pytest.raises(StoreUnavailable, match="partitions"),
        ):
            alone.get("user1")


def test_copies_answer_for_an_instance_that_has_gone_if_they_are_good_enough(tmp_path: Path) -> None:
    with embedded(tmp_path / "data") as log:
        log.admin().ensure_topic("orders", partitions=2)
        send_json(log, "orders", [(user, {"ms": i, "amount": 1}, i) for i, user in enumerate(USERS)])
        app, stays = orders(log=log), {"endpoint": HERE, "num_standby_replicas": 1, "leaves_group": False}
        one, two = (running(app, log, tmp_path / f"state{i}", instance_id=f"i{i}", **stays) for i in range(2))
        with two as second, app.query("totals", acceptable_lag=0) as totals, app.query("totals", timeout_s=0.1) as newest:
            with one as first:
                both = (first, second)
                until(lambda: all(each.status().tasks and each.status().standbys for each in both), *both)
                # Who runs a task answers for it, as long as there is somebody.
                until(lambda: len(totals.rows()) == len(USERS) and totals.copy_lags == {}, *both)
                until(lambda: all(copy.lag_records == 0 for each in both for copy in each.status().standbys), *both)
                has_copies = {int(copy.name[-1]) for copy in second.status().standbys}
            assert {row.key for row in totals.rows()} == set(USERS)
            assert totals.copy_lags == dict.fromkeys(has_copies, 0)
            assert totals.get("user7") == {"n": 1, "spent": 1}
            with pytest.raises(StoreUnavailable, match="partitions"):
                newest.rows()


def test_a_partition_that_is_on_its_way_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has given a task up answers that it has none of it: that is no page of rows."""
    codec = EntryCodec((Column("n", BIGINT),))
    row = b"k", codec.encode(Entry((1,), 5)) or b""
    answers = iter([Answer([], []), Answer([row], [Held(0, 5, 1, 0)])])
    monkeypatch.setattr(peers, "_ask", lambda *_: next(answers))
    monkeypatch.setattr(peers, "addresses", lambda _: {TopicPartition("orders", 0): "127.0.0.1:1"})
    place = StorePlace("a", "totals", ("orders",), 1, codec)
    admin = SimpleNamespace(group_offsets=lambda _: {})
    asked = Peers(place, cast(Any, admin), timeout_s=60, monotonic_s=lambda: 0.0, sleep=lambda _: None)
    assert [key for key, _ in asked.range(b"", None)] == [b"k"]


def test_who_has_taken_a_task_over_answers_for_it_though_there_is_a_copy_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    runs_at = {"now": "old"}

    def ask(address: str, asked: Ask, _: object) -> Answer | None:
        if address == "gone":
            return None
        if address == runs_at["now"]:
            return Answer([], [Held(0, 5, 1, 0)])
        return Answer([], [Held(0, 5, 1, 0, copy_lag_records=0)] if asked.copy_lag_max is not None else [])

    def known(_: object) -> dict[TopicPartition, str]:
        return {TopicPartition("orders", 0): committed_at["now"], TopicPartition("orders", 1): "old"}

    committed_at = dict(runs_at)
    monkeypatch.setattr(peers, "_ask", ask)
    monkeypatch.setattr(peers, "addresses", known)
    place = StorePlace("a", "totals", ("orders",), 1, EntryCodec((Column("n", BIGINT),)), copy_lag_max=0)
    admin = SimpleNamespace(group_offsets=lambda _: {})
    asked = Peers(place, cast(Any, admin), timeout_s=0, monotonic_s=lambda: 0.0, sleep=lambda _: None)

    def has_copy_answered() -> bool:
        asked.get(b"k")
        return asked.held[0].copy_lag_records is not None

    assert not has_copy_answered()
    runs_at["now"] = "new"
    assert has_copy_answered(), "who runs it now has not said so yet"
    committed_at["now"] = "new"
    assert not has_copy_answered()
    runs_at["now"] = committed_at["now"] = "gone"
    assert has_copy_answered()


def test_a_copy_that_lacks_too_much_does_not_answer(tmp_path: Path) -> None:
    (sub,) = orders().plan().subtopologies
    with closing(TaskState(tmp_path, application="a", task="t", specs=tuple(sub.program.stores))) as state:
        copies = {0: (state.reader("totals"), 6), 1: (state.reader("totals"), 5)}
        asked = {most: answer(Ask("totals", [0, 1], b"k", copy_lag_max=most), {}, {}, copies) for most in (None, 0, 5, 6)}
        assert {most: [each.partition for each in found.held] for most, found in asked.items()} == {
            None: [], 0: [], 5: [1], 6: [0, 1],
        }  # fmt: skip


def test_a_snapshot_goes_over_into_changes(tmp_path: Path) -> None:
    with embedded(tmp_path / "data") as log:
        log.admin().ensure_topic("orders", partitions=2)
        send_json(log, "orders", [(user, {"ms": i, "amount": 1}, i) for i, user in enumerate(USERS)])
        app = orders(log=log)
        with running(app, log, tmp_path / "state", endpoint=HERE) as engine, app.query("totals") as totals:
            until(lambda: engine.status().lag_records == 0, engine)
            until(lambda: len(totals.rows()) == len(USERS), engine)
            changes = totals.follow()
            snapshot = {row.key: row.value["n"] for row in islice(changes, len(USERS))}
            assert snapshot == dict.fromkeys(USERS, 1)
            for n in (2, 3):
                send_json(log, "orders", [("user3", {"ms": 1, "amount": 1}, 100 + n)])
                seen = next(row for row in changes if row.value["n"] == n)
                assert seen.key == "user3"


def test_changes_made_while_the_rows_are_read_are_not_lost(tmp_path: Path) -> None:
    with embedded(tmp_path / "data") as log:
        log.admin().ensure_topic("orders", partitions=2)
        send_json(log, "orders", [(user, {"ms": i, "amount": 1}, i) for i, user in enumerate(USERS)])
        app = orders(log=log)
        with running(app, log, tmp_path / "state", endpoint=HERE) as engine, app.query("totals") as totals:
            until(lambda: len(totals.rows()) == len(USERS), engine)
            changes = totals.follow()
            rows = {row.key: row.value["n"] for row in islice(changes, 1)}
            send_json(log, "orders", [(user, {"ms": i, "amount": 1}, 100 + i) for i, user in enumerate(USERS)])
            until(lambda: all(row.value["n"] == 2 for row in totals.rows()), engine)
            for row in changes:
                rows[row.key] = row.value["n"]
                if rows == dict.fromkeys(USERS, 2):
                    break


def test_what_an_instance_does_is_told_as_json_and_metrics(tmp_path: Path) -> None:
    with embedded(tmp_path / "data") as log:
        log.admin().ensure_topic("orders", partitions=1)
        send_json(log, "orders", [("a", {"ms": 1, "amount": 2}, 1), ("b", {"ms": 1, "amount": 2}, 2)])
        app = orders(log=log)
        with running(app, log, tmp_path / "state", endpoint=HERE) as engine:
            until(lambda: engine.status().lag_records == 0 and engine.status().records_out == 4, engine)
            (at,) = until(lambda: instances(log.admin(), app.name), engine)
            with urllib.request.urlopen(f"http://{at}/metrics") as page:
                text = page.read().decode()
            labels = f'{{application="orders-app",instance_id="{engine.status().instance_id}"}}'
            assert f"logflume_streams_records_in_total{labels} 2.0" in text
            assert f"logflume_streams_records_out_total{labels} 4.0" in text
            assert 'topic="orders",partition="0"} 0.0' in text or 'partition="0"' in text
            with urllib.request.urlopen(f"http://{at}/status") as page:
                status = json.loads(page.read())
            assert status["state"] == "running"
            assert status["tasks"][0]["nodes"]["orders"] == 2
            assert status["tasks"][0]["inputs"][0]["lag_ms"] == 0


def test_a_store_is_waited_for_until_its_application_has_begun(tmp_path: Path) -> None:
    """Before that the topics of its own that it reads are not there."""
    with embedded(tmp_path / "data") as log:
        log.admin().ensure_topic("orders")
        app = lf.App("begins", log=log)
        app.stream("orders", Order, key=str).group_by(col.amount).count(name="amounts")
        send_json(log, "orders", [("ann", {"ms": 0, "amount": 7}, 0)])
        with pytest.raises(StoreUnavailable, match=r"has no topic begins-orders-by-amount-repartition; does the application run"):
            app.query("amounts", timeout_s=0.1)
        waited = []
        engine = Engine(app.plan(), log, EngineOptions(state_dir=tmp_path / "state", commit_interval_ms=20, endpoint=HERE))

        def begin(pause_s: float) -> None:
            if not waited:
                engine.start()
            waited.append(pause_s)
            time.sleep(pause_s)

        try:
            with StoreQuery(app.topology(), "amounts", log, timeout_s=60, sleep=begin) as amounts:
                until(lambda: amounts.get(7) == {"count": 1}, engine)
        finally:
            engine.stop()
        assert waited


def test_what_cannot_be_asked_is_refused(tmp_path: Path) -> None:
    with connect(str(tmp_path / "data")) as log:
        log.admin().ensure_topic("orders", partitions=1)
        app = orders(log=log)
        with pytest.raises(UnknownName, match="totals"):
            app.query("total")
        with pytest.raises(InvalidInput, match="acceptable_lag"):
            app.query("totals", acceptable_lag=-1)
        with pytest.raises(InvalidInput, match="host:port"), running(app, log, tmp_path / "state", endpoint="nonsense"):
            raise AssertionError("it runs")
