"""Rows of stores by range, prefix and time: the same of the driver's stores and of a running application's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import logflume.streams as lf
from logflume.log import InvalidInput
from logflume.streams.rows import Within
from logflume.streams.testing import TopologyTestDriver
from tests.streams.running import embedded, running, send_json, until

RECORDS = [("a", {}, 5), ("ab", {}, 12), ("b", {}, 14), ("a", {}, 25), ("ä", {}, 31), ("a", {}, 33)]


def counting(log: Any = None) -> lf.App:
    app = lf.App("ranges", log=log)
    grouped = app.stream("in", key=str).group_by_key()
    grouped.count(name="all")
    grouped.window(lf.tumbling(10, grace=100)).count(name="windows")
    grouped.window(lf.session(9, grace=100)).count(name="sessions")
    return app


ASKED: list[tuple[str, list[Any], dict[str, Any], list[Any]]] = [
    ("all", [], {}, ["a", "ab", "b", "ä"]),
    ("all", ["a", "b"], {}, ["a", "ab"]),
    ("all", ["ab"], {}, ["ab", "b", "ä"]),
    ("all", [None, "ab"], {}, ["a"]),
    ("all", [], {"prefix": "a"}, ["a", "ab"]),
    ("all", [], {"prefix": "ä"}, ["ä"]),
    ("all", [], {"prefix": ""}, ["a", "ab", "b", "ä"]),
    ("windows", [], {"from_ms": 10, "to_ms": 20}, [("ab", 10, 20), ("a", 20, 30), ("b", 10, 20)]),
    ("windows", ["a", "ab"], {}, [("a", 0, 10), ("a", 20, 30), ("a", 30, 40)]),
    ("windows", [], {"prefix": "a", "to_ms": 10}, [("a", 0, 10), ("ab", 10, 20)]),
    ("sessions", [], {"from_ms": 14, "to_ms": 28}, [("a", 25, 33), ("b", 14, 14)]),
    ("sessions", ["ab", "c"], {}, [("ab", 12, 12), ("b", 14, 14)]),
]  # fmt: skip


def keys(rows: list[Any]) -> list[Any]:
    return sorted((row.key if isinstance(row.key, str) else tuple(row.key) for row in rows), key=repr)


def wrong(read: Any) -> list[Any]:
    """Return what is asked for and found differently; `read(store)` gives the rows of a store."""
    found = [(store, args, options, keys(read(store).rows(*args, **options))) for store, args, options, _ in ASKED]
    return [(each, wanted) for each, (*_, wanted) in zip(found, ASKED, strict=True) if each[3] != sorted(wanted, key=repr)]


def test_a_drivers_stores_are_read_by_range_prefix_and_time() -> None:
    driver = TopologyTestDriver(counting())
    driver.input("in").send_together(RECORDS)
    assert wrong(driver.store) == []
    windows, sessions = driver.store("windows"), driver.store("sessions")
    assert keys(windows.windows("a", from_ms=1, to_ms=20)) == [("a", 20, 30)]
    assert keys(sessions.windows("a", from_ms=6, to_ms=24)) == []
    assert keys(sessions.windows("a", from_ms=5, to_ms=25)) == [("a", 25, 33), ("a", 5, 5)]


def test_all_reads_see_the_same_sliding_windows() -> None:
    app = lf.App("sliding")
    app.stream("in", key=str).group_by_key().window(lf.sliding(4, grace=1)).count(name="counts")
    driver = TopologyTestDriver(app)
    driver.input("in").send_together([("ab", {}, 24), ("b", {}, 33)])
    store = driver.store("counts")
    for read in (
        store.rows(),
        store.rows("a", "c"),
        store.rows(prefix="a") + store.rows(prefix="b"),
        store.windows("ab") + store.windows("b"),
        store.within(Within(limit=1)),
    ):
        assert keys(read) == [("b", 29, 33)]


def test_a_running_applications_stores_are_read_by_range_prefix_and_time(tmp_path: Path) -> None:
    with embedded(tmp_path / "data") as log:
        log.admin().ensure_topic("in", partitions=2)
        send_json(log, "in", RECORDS)
        app = counting(log)
        with running(app, log, tmp_path / "state", endpoint="127.0.0.1:0") as engine:
            until(lambda: engine.status().tasks and engine.status().lag_records == 0, engine)
            queries = {store: app.query(store) for store in ("all", "windows", "sessions")}
            until(lambda: len(queries["sessions"].rows()) == 5, engine)
            assert wrong(queries.__getitem__) == []
            assert keys(queries["windows"].windows("a", from_ms=1, to_ms=20)) == [("a", 20, 30)]
            for query in queries.values():
                query.close()


@pytest.mark.parametrize(
    ("store", "options", "told"),
    [
        ("all", {"from_ms": 1}, "the store has no windows"),
        ("all", {"prefix": "a", "stop": "b"}, "by a prefix, or by start and stop"),
        ("all", {"prefix": 3}, "a prefix is a text"),
        ("numbers", {"prefix": "3"}, "kept as texts"),
    ],
)
def test_what_cannot_be_asked_is_refused(store: str, options: Any, told: str) -> None:
    app = counting()
    app.table("rows", key=int, store="numbers")
    with pytest.raises(InvalidInput, match=told):
        TopologyTestDriver(app).store(store).rows(**options)


@pytest.mark.parametrize(
    ("store", "key", "as_of", "told"),
    [
        ("windows", "a", None, r"windows\(key\) gives them, get\(lf.WindowedKey\(key, start_ms, end_ms\)\) one of them"),
        ("sessions", "a", None, "a row for each of a key's.*; found 'a'"),
        ("all", lf.WindowedKey("a", 0, 1), None, "the keys have no windows"),
        ("all", "a", 5, "as_of is for tables with history"),
    ],
)
def test_a_row_is_asked_for_by_its_own_kind_of_key(store: str, key: Any, as_of: int | None, told: str) -> None:
    driver = TopologyTestDriver(counting())
    driver.input("in").send({}, key="a", timestamp_ms=5)
    assert driver.store("windows").get(lf.WindowedKey("a", 0, 10)) == {"count": 1}
    assert driver.store("sessions").get(lf.WindowedKey("a", 5, 5)) == {"count": 1}
    with pytest.raises(InvalidInput, match=told):
        driver.store(store).get(key, as_of=as_of)
