"""Every stateful operator on a real log: stopped and started again, with its disk and without, it gives what the driver gives.

Keys are spread over one partition here, so that the order of the records, and with it lateness, is one.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logflume.streams as lf
from logflume.log.interfaces import Log
from logflume.log.records import Record
from logflume.streams.testing import TopologyTestDriver
from tests.streams.running import embedded, read, running, until, write

TOPICS = ("left", "right")
Row = tuple[str, str, Any, int]


class Numbered(lf.Processor):
    """Counts the records of a key, and lets the counts out each 100 ms of event time."""

    def init(self, context: lf.Context) -> None:
        super().init(context)
        self.seen = context.store("seen")
        context.schedule(100, self.tick)

    def process(self, record: lf.Record) -> None:
        self.seen.put(record.key, (self.seen.get(record.key) or 0) + 1)

    def tick(self, now_ms: int) -> None:
        for key, count in self.seen.items():
            self.context.forward(lf.Record(key, count, now_ms))


class Held(lf.Processor):
    """Lets each record go at the next tick of the wall clock, in the order in which they came."""

    def init(self, context: lf.Context) -> None:
        super().init(context)
        self.held = context.store("held")
        context.schedule(1, self.tick, time=lf.Time.WALL_CLOCK)

    def process(self, record: lf.Record) -> None:
        waiting = self.held.get(record.key) or []
        self.held.put(record.key, [*waiting, (record.value, record.timestamp_ms)])

    def tick(self, now_ms: int) -> None:
        for key, waiting in self.held.items():
            self.held.delete(key)
            for value, at_ms in waiting:
                self.context.forward(lf.Record(key, value, at_ms))


class Running(lf.Processor):
    """The sum of a key so far, beside the value; none of them is kept for a key whose sum is a multiple of 7."""

    def init(self, context: lf.Context) -> None:
        super().init(context)
        self.sums = context.store("sums")

    def process(self, record: lf.Record) -> None:
        total = (self.sums.get(record.key) or 0) + record.value["n"]
        self.sums.put(record.key, total if total % 7 else None)
        self.context.forward(record.with_value({**record.value, "total": total}))


def both(left: Any, right: Any) -> Any:
    return [left, right]


def _sessions(app: lf.App) -> Any:
    grouped = app.stream("left").group_by_key().window(lf.session(40, grace=20))
    return grouped.aggregate(lf.aggregate(list, lambda a, v: [*a, v["n"]], merge=lambda a, b: a + b), name="s", emit="update")


def _sliding(app: lf.App) -> Any:
    return app.stream("left").group_by_key().window(lf.sliding(30, grace=10)).count(name="s", emit="update")


def _final_sessions(app: lf.App) -> Any:
    return app.stream("left").group_by_key().window(lf.session(30)).count(name="s", emit="final")


def _cogroup(app: lf.App) -> Any:
    first, second = (app.stream(topic).group_by_key() for topic in TOPICS)
    grouped = first.cogroup(lambda a, v: a + v["n"]).cogroup(second, lambda a, v: a - v["n"])
    return grouped.window(lf.tumbling(50, grace=50)).aggregate(0, name="s", emit="update")


def _streams(app: lf.App) -> Any:
    first, second = (app.stream(topic) for topic in TOPICS)
    return first.outer_join(second, both, within=15, grace=5, name="j")


def _tables(app: lf.App) -> Any:
    first, second = (app.table(topic) for topic in TOPICS)
    return first.outer_join(second, both, name="j")


def _foreign(app: lf.App) -> Any:
    first, second = (app.table(topic) for topic in TOPICS)
    return first.left_join(second, both, on=lambda row: f"k{row['n'] % 5}", name="j")


def _groups(app: lf.App) -> Any:
    grouped = app.table("left").group_by(lambda row: f"g{row['n'] % 3}", key=str, name="groups")
    return grouped.aggregate(lf.aggregate(0, lambda a, row: a + row["n"], subtract=lambda a, row: a - row["n"]), name="s")


def _suppress(app: lf.App) -> Any:
    counts = app.stream("left").group_by_key().window(lf.tumbling(40, grace=10)).count(name="s", emit="update")
    return counts.suppress(lf.until_window_closes(), name="held")


def _versions(app: lf.App) -> Any:
    return app.stream("left").join(app.table("right", history=500), both, grace=20, name="j")


def _as_of(app: lf.App) -> Any:
    return app.stream("left").left_join(app.table("right", history=50), both, name="j")


def _rows_called(app: lf.App) -> Any:
    rows = app.table("left").filter(lambda row: row["n"] % 4 != 0)
    return rows.map_values(lambda key, row: {"n": row["n"] * 2, "key": key}, store="doubled")


def _processed_values(app: lf.App) -> Any:
    return app.stream("left").process_values(Running, lf.key_value_store("sums"), name="running")


def _ticking(app: lf.App) -> Any:
    return app.stream("left").process(Held, lf.key_value_store("held"), key=str, name="holding")


def _processor(app: lf.App) -> Any:
    return app.stream("left").process(Numbered, lf.key_value_store("seen"), key=str, name="numbered")


def _deduplicate(app: lf.App) -> Any:
    return app.stream("left").deduplicate(within=60, grace=30)


def _distinct(app: lf.App) -> Any:
    return app.stream("left").distinct(lambda value: f"n{value['n'] % 50}", key=str)


def _expiring(app: lf.App) -> Any:
    return app.stream("left").group_by_key().count(name="s", emit="update", ttl=40)


def _calendar(app: lf.App) -> Any:
    shifted = app.stream("left", timestamp=lf.record_time * 2_000_000)
    return shifted.group_by_key().window(lf.calendar("day", zone="Europe/Berlin", grace=3_600_000)).count(name="s", emit="final")


def _late(app: lf.App) -> Any:
    return app.stream("left").group_by_key().window(lf.tumbling(10)).count(name="s").late()


def _top(app: lf.App) -> Any:
    return app.stream("left").group_by_key().top_n(3, by=lf.col.n.cast(int), name="s", emit="update")


def _top_rows(app: lf.App) -> Any:
    return (
        app.table("left").group_by(lambda row: f"g{row['n'] % 3}", key=str, name="groups").top_n(3, lf.col.n.cast(int), name="s")
    )


async def _asked(value: Any) -> Any:
    await asyncio.sleep(0.002 * (value["n"] % 3))
    return {"asked": value["n"]}


def _async(app: lf.App) -> Any:
    return app.stream("left").map_async(_asked, limit=16)


def _unordered(app: lf.App) -> Any:
    return app.stream("left").map_async(_asked, limit=16, ordered=False).group_by_key().count(name="s")


def _batches(app: lf.App) -> Any:
    numbers = app.stream("left").select(n=lf.col.n.cast(float))
    return numbers.map_batches(lambda table: {"root": table["n"] ** 0.5}, {"root": float}, form="numpy")


APPS: dict[str, Callable[[lf.App], Any]] = {
    "sessions": _sessions, "sliding": _sliding, "final sessions": _final_sessions, "cogroup": _cogroup, "streams": _streams,
    "tables": _tables, "foreign keys": _foreign, "groups": _groups, "suppress": _suppress, "versions": _versions,
    "processor": _processor, "deduplicate": _deduplicate, "distinct": _distinct, "expiring": _expiring,
    "calendar": _calendar, "late": _late, "top": _top, "top rows": _top_rows, "async": _async,
    "unordered": _unordered, "batches": _batches, "as of": _as_of, "rows called": _rows_called,
    "processed values": _processed_values, "ticking": _ticking,
}  # fmt: skip
THROUGH_TOPICS = ("foreign keys", "groups", "distinct", "top rows", "unordered")
"""Those of which only the last value of each key is one: on their way through internal topics changes of several keys meet."""

HOLDING = ("ticking",)
"""Those that put out each record of the left topic once, some time after they took it."""


def make(name: str) -> lf.App:
    app = lf.App("operators")
    found = APPS[name](app)
    (found.to_stream() if isinstance(found, lf.Table) else found).to("out", partitions=1)
    return app


def rounds(count: int) -> list[list[Row]]:
    """Return records of both topics, those of a topic in order of time or a little late."""
    numbers, time, found = random.Random(7), 0, []
    for _ in range(count):
        rows: list[Row] = []
        for _ in range(60):
            time += numbers.choice([0, 1, 2, 5, 5, 9, 30])
            rows.append((numbers.choice(TOPICS), f"k{numbers.randrange(5)}", {"n": numbers.randrange(20)}, time))
        found.append(rows)
    return found


def send(log: Log, rows: list[Row]) -> None:
    for topic in TOPICS:
        write(log, topic, [(key.encode(), json.dumps(value).encode(), time) for t, key, value, time in rows if t == topic])


def driven(name: str, parts: list[list[Row]]) -> list[Any]:
    driver = TopologyTestDriver(make(name))
    for rows in parts:
        for topic, key, value, time in sorted(rows, key=lambda row: (row[3], row[0])):
            if topic in driver_topics(driver):
                driver.input(topic).send(value, key=key, timestamp_ms=time)
    driver.advance(1)
    return [(k, v, time) for k, v, time, _ in driver.output("out").raw]


def driver_topics(driver: TopologyTestDriver) -> set[str]:
    return {topic for topic in TOPICS if topic in driver.inputs}


def by_key(rows: list[Any], *, is_last: bool) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, value, time in rows:
        parsed = None if value is None else json.loads(value)
        found.setdefault(key, []).append((parsed, time))
    return {key: values[-1][0] if is_last else values for key, values in found.items()}


def results(log: Log) -> list[Any]:
    return [_row(record) for record in read(log, "out")]


def _row(record: Record) -> Any:
    return record.key, record.value, record.timestamp_ms


@pytest.mark.parametrize("name", APPS)
def test_restarts_and_lost_disks_change_nothing(name: str, tmp_path: Path) -> None:
    parts, is_last = rounds(4), name in THROUGH_TOPICS
    expected = by_key(driven(name, parts), is_last=is_last)
    with embedded(tmp_path / "data") as log:
        for topic in TOPICS:
            log.admin().ensure_topic(topic, partitions=1)
        for number, rows in enumerate(parts):
            send(log, rows)
            with running(make(name), log, tmp_path / "state") as engine:
                wanted = by_key(driven(name, parts[: number + 1]), is_last=is_last)
                until(lambda wanted=wanted: by_key(results(log), is_last=is_last) == wanted, engine)
            if number == 1:
                shutil.rmtree(tmp_path / "state")
        assert by_key(results(log), is_last=is_last) == expected
