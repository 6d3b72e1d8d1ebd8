"""Topologies of every family on one core, without the kernels and with them: stores in memory, without the log around it.

`python -m benchmarks.streams_programs [programs] [--only=NAME,NAME]`; with the log, transactions and disks see
`benchmarks.streams`. Microseconds of CPU a record, the least of a few runs; a task commit after each 20,000 records.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

import logflume.streams as lf
from benchmarks._report import Figure, main
from logflume.log.batch.columns import load_kernels as load_batch_kernels
from logflume.log.collector import ShortCollections
from logflume.log.records import Chunk
from logflume.streams import col
from logflume.streams.kernels import kernel_loader
from logflume.streams.seams import Plan
from logflume.streams.state.store import Store

RECORDS = 100_000
CHUNK = 20_000
REPEATS = 3
START_MS = 1_700_000_000_000
Round = tuple[str, Chunk]


class Click(msgspec.Struct):
    id: int
    user: str
    page: str
    ms: int
    price: float
    ok: bool


class User(msgspec.Struct):
    name: str
    country: str


class Account(msgspec.Struct):
    name: str
    owner: str


class Seen(msgspec.Struct):
    id: int
    page: str


class Sink:
    """Counts outputs that have a value, and takes no problems."""

    def __init__(self) -> None:
        self.records = 0

    def report(self, reason: str, node: str, topic: str, partition: int, offset: int, cause: object) -> None:
        assert reason in ("late", "null_value"), (reason, cause)


# -- inputs ---------------------------------------------------------------------------------------------------------------


def chunked(topic: str, rows: Sequence[tuple[bytes, bytes, int]]) -> list[Round]:
    """Return (key, value, time) as chunks of a topic."""
    parts = [rows[at : at + CHUNK] for at in range(0, len(rows), CHUNK)]
    return [
        (topic, Chunk.from_columns(topic, [k for k, _, _ in part], [v for _, v, _ in part], [t for _, _, t in part]))
        for part in parts
    ]


def clicks(users: int) -> list[Round]:
    """The peers' input: 75 bytes of JSON, 1 ms apart, 1 % set back by up to 5 s."""
    numbers = random.Random(1)
    rows = []
    for i in range(RECORDS):
        user, ok = f"u{numbers.randrange(users):05}", "true" if numbers.random() < 0.9 else "false"
        page, ms, price = numbers.randrange(100), numbers.randrange(1, 501), numbers.random() * 50
        value = f'{{"id":{i},"user":"{user}","page":"p{page}","ms":{ms},"price":{price:.2f},"ok":{ok}}}'
        late_ms = numbers.randrange(5000) if numbers.random() < 0.01 else 0
        rows.append((user.encode(), value.encode(), START_MS + i - late_ms))
    return chunked("clicks", rows)


def users(count: int) -> list[Round]:
    return chunked("users", [(b"u%05d" % i, b'{"name":"n%d","country":"DE"}' % i, 0) for i in range(count)])


def few_users() -> list[Round]:
    return clicks(10_000)


def with_table() -> list[Round]:
    return users(100_000) + clicks(100_000)


def impressions() -> list[Round]:
    """Two impressions 1 ms apart for each click, which comes up to 4 s after its own."""
    numbers = random.Random(1)
    left, right = [], []
    for i in range(RECORDS * 2 // 3):
        value = b'{"id":%d,"page":"p%d"}' % (i, i % 100)
        left.append((b"%d" % i, value, START_MS + i))
        if i % 2 == 0:
            right.append((b"%d" % i, value, START_MS + i + numbers.randrange(4000)))
    right.sort(key=lambda row: row[2])
    found: list[Round] = []
    pairs = zip(chunked("shown", left), chunked("seen", right), strict=False)
    for pair in pairs:
        found += pair
    return found


def two_tables() -> list[Round]:
    """Changes of two tables by turns."""
    numbers = random.Random(1)
    found = []
    for at in range(0, RECORDS, CHUNK):
        topic = "users" if at // CHUNK % 2 else "accounts"
        names = [b"u%05d" % numbers.randrange(20_000) for _ in range(CHUNK)]
        rows = [(name, b'{"name":"n%d","country":"c%d"}' % (at, i % 200), START_MS + at + i) for i, name in enumerate(names)]
        found += chunked(topic, rows)
    return found


def owners() -> list[Round]:
    """Changes of two tables by turns, each row of the one naming a row of the other."""
    numbers = random.Random(1)
    found = []
    for at in range(0, RECORDS, CHUNK):
        times, (topic, letter) = range(START_MS + at, START_MS + at + CHUNK), [("accounts", "a"), ("users", "u")][at // CHUNK % 2]
        names = [f"{letter}{numbers.randrange(20_000):05}" for _ in times]
        member = "country" if topic == "users" else "owner"
        values = [f'{{"name":"n{at}","{member}":"u{numbers.randrange(20_000):05}"}}' for _ in times]
        found += chunked(topic, [(n.encode(), v.encode(), t) for n, v, t in zip(names, values, times, strict=True)])
    return found


# -- topologies -----------------------------------------------------------------------------------------------------------


def grouped(app: lf.App) -> Any:
    return app.stream("clicks", Click).group_by_key()


def t1(app: lf.App) -> Any:
    passing = app.stream("clicks", Click).filter(col.ok & (col.ms > 100))
    return passing.select(col.id, col.user, col.page, price=col.price * 1.2)


def t2(app: lf.App) -> Any:
    return grouped(app).count()


def t3(app: lf.App) -> Any:
    return grouped(app).window(lf.tumbling(seconds=10, grace=lf.seconds(10))).aggregate(n=lf.count(), total=lf.sum(col.price))


def t4(app: lf.App) -> Any:
    return app.stream("clicks", Click).join(app.table("users", User))


def t5(app: lf.App) -> Any:
    shown, seen = app.stream("shown", Seen), app.stream("seen", Seen)
    return shown.join(seen, within=lf.seconds(5), prefix="seen_")


def left_streams(app: lf.App) -> Any:
    shown, seen = app.stream("shown", Seen), app.stream("seen", Seen)
    return shown.left_join(seen, within=lf.seconds(5), prefix="seen_")


def sessions(app: lf.App) -> Any:
    return grouped(app).window(lf.session(lf.seconds(5), grace=lf.seconds(5))).aggregate(n=lf.count(), total=lf.sum(col.price))


def sliding(app: lf.App) -> Any:
    return grouped(app).window(lf.sliding(lf.seconds(5), grace=lf.seconds(5))).aggregate(n=lf.count(), total=lf.sum(col.price))


def suppressed(app: lf.App) -> Any:
    counts = grouped(app).window(lf.tumbling(seconds=10, grace=lf.seconds(10))).count(emit="update")
    return counts.suppress(lf.until_window_closes())


def final(app: lf.App) -> Any:
    return grouped(app).window(lf.tumbling(seconds=10, grace=lf.seconds(10))).count(emit="final")


def table_join(app: lf.App) -> Any:
    return app.table("accounts", User).join(app.table("users", User), prefix="u_")


def table_groups(app: lf.App) -> Any:
    return app.table("users", User).group_by(col.country).count()


def foreign(app: lf.App) -> Any:
    return app.table("accounts", Account).join(app.table("users", User), on=col.owner, prefix="u_")


def reduced(app: lf.App) -> Any:
    return grouped(app).reduce(lambda a, b: b)


def mapped(app: lf.App) -> Any:
    return app.stream("clicks", Click).map_values(lambda c: {"id": c.id, "page": c.page})


def filtered(app: lf.App) -> Any:
    return app.stream("clicks", Click).filter(lambda c: c.ms > 100).select(col.id, col.page)


def added(total: dict[str, Any], click: Click) -> dict[str, Any]:
    return {"n": total["n"] + 1, "total": total["total"] + click.price}


def both(total: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {"n": total["n"] + other["n"], "total": total["total"] + other["total"]}


NOTHING = {"n": 0, "total": 0.0}


def folded(app: lf.App) -> Any:
    return grouped(app).aggregate(NOTHING, added)


def folded_windows(app: lf.App) -> Any:
    return grouped(app).window(lf.tumbling(seconds=10, grace=lf.seconds(10))).aggregate(NOTHING, added)


def folded_sessions(app: lf.App) -> Any:
    window = lf.session(lf.seconds(5), grace=lf.seconds(5))
    return grouped(app).window(window).aggregate(lf.aggregate(NOTHING, added, merge=both))


def folded_held(app: lf.App) -> Any:
    windows = grouped(app).window(lf.tumbling(seconds=10, grace=lf.seconds(10))).aggregate(NOTHING, added, emit="update")
    return windows.suppress(lf.until_window_closes())


def named(row: Any, other: Any) -> dict[str, Any]:
    return {"name": row.name, "country": other.country}


def tables_by_joiner(app: lf.App) -> Any:
    return app.table("accounts", User).join(app.table("users", User), joiner=named)


def foreign_by_joiner(app: lf.App) -> Any:
    return app.table("accounts", Account).join(app.table("users", User), on=col.owner, joiner=named)


def t4_by_joiner(app: lf.App) -> Any:
    return app.stream("clicks", Click).join(app.table("users", User), joiner=lambda c, u: {"id": c.id, "country": u.country})


def t5_by_joiner(app: lf.App) -> Any:
    shown, seen = app.stream("shown", Seen), app.stream("seen", Seen)
    return shown.join(seen, within=lf.seconds(5), joiner=lambda a, b: {"id": a.id, "page": b.page})


@dataclass(frozen=True, slots=True)
class Job:
    """A topology and its input. Budget in microseconds of CPU a record, with the kernels."""

    label: str
    build: Callable[[lf.App], Any]
    rounds: Callable[[], list[Round]]
    budget: float | None = None


JOBS = {
    "t1": Job("T1 filter, project", t1, few_users, 0.4),
    "t2": Job("T2 count, 10 k keys", t2, few_users, 0.3),
    "t3": Job("T3 tumbling count and sum", t3, few_users, 0.9),
    "t4": Job("T4 stream-table join, 100 k keys", t4, with_table, 0.7),
    "t5": Job("T5 stream-stream join", t5, impressions, 1.0),
    "left": Job("stream-stream left join", left_streams, impressions),
    "session": Job("session count and sum", sessions, few_users),
    "sliding": Job("sliding count and sum", sliding, few_users),
    "final": Job("tumbling count at close", final, few_users),
    "suppress": Job("tumbling count, suppressed", suppressed, few_users),
    "tables": Job("table-table join", table_join, two_tables),
    "groups": Job("table grouped and counted", table_groups, two_tables),
    "foreign": Job("foreign-key join", foreign, owners),
    "reduce": Job("reduce by a callable", reduced, few_users, 1.3),
    "fold": Job("aggregate by a callable", folded, few_users, 1.3),
    "fold_windows": Job("tumbling aggregate by a callable", folded_windows, few_users, 1.9),
    "fold_sessions": Job("session aggregate by a callable", folded_sessions, few_users),
    "fold_suppress": Job("tumbling aggregate by a callable, suppressed", folded_held, few_users),
    "t4_joiner": Job("T4 by a joiner", t4_by_joiner, with_table, 1.7),
    "t5_joiner": Job("T5 by a joiner", t5_by_joiner, impressions, 2.0),
    "tables_joiner": Job("table-table join by a joiner", tables_by_joiner, two_tables),
    "foreign_joiner": Job("foreign-key join by a joiner", foreign_by_joiner, owners),
    "map": Job("map_values by a callable", mapped, few_users, 1.4),
    "filter": Job("filter by a callable", filtered, few_users, 1.4),
}


class Running:
    """All sub-topologies of an application; what one writes for another is handed on after each chunk."""

    def __init__(self, plan: Plan) -> None:
        parts = plan.subtopologies
        self.sink, self.stores, self.tasks = Sink(), [], []
        self.readers: dict[str, list[tuple[Any, str]]] = {}
        self.topics: dict[str, str] = {}
        self.waiting: list[tuple[str, Chunk]] = []
        for part in parts:
            stores = {spec.name: Store(spec) for spec in part.program.stores}
            self.stores += list(stores.values())
            task = part.program.bind(stores, self, self.sink)
            self.tasks.append(task)
            self.topics |= {node: output.topic for node, output in part.outputs.items()}
            for node, topic in part.program.sources.items():
                self.readers.setdefault(topic, []).append((task, node))

    def send(self, node: str, keys: Any, values: Any, timestamps_ms: Any, **more: Any) -> None:
        self.send_columns(node, Chunk.from_columns(self.topics[node], list(keys), list(values), list(timestamps_ms)))

    def send_columns(self, node: str, records: Chunk, **more: Any) -> None:
        if self.topics[node] in self.readers:
            self.waiting.append((self.topics[node], records))
        else:
            self.sink.records += int((records.value_sizes >= 0).sum())

    def take(self, topic: str, chunk: Chunk) -> None:
        for task, node in self.readers.get(topic, ()):
            task.process(node, chunk, 0, len(chunk))
        while self.waiting:
            self.take(*self.waiting.pop(0))

    def commit(self) -> None:
        for _ in self.tasks:  # what one sub-topology puts out at its commit, the next one may put out at the same
            for task in self.tasks:
                task.flush()
            while self.waiting:
                self.take(*self.waiting.pop(0))
        for store in self.stores:
            dirty = store.encode_dirty()
            store.expire()
            store.committed(deleted=dirty.deleted())


def planned(build: Callable[[lf.App], Any]) -> Plan:
    """Return a topology as it runs, its results written to a topic."""
    app = lf.App("program")
    made = build(app)
    (made.to_stream() if isinstance(made, lf.Table) else made).to("out")
    return app.plan()


def load_kernels() -> None:
    load_batch_kernels()
    kernel_loader().load("meetings", "chains", "sessions", "sliding", "message_rows")


def us_per_record(plan: Plan, rounds: Sequence[Round]) -> float:
    """Return CPU microseconds a record of one run; tables of `users` that come first are read before."""
    running, rest = Running(plan), list(rounds)
    while rest[0][0] == "users" and rest[-1][0] == "clicks":
        running.take(*rest.pop(0))
        running.commit()
    with ShortCollections().over_batches():  # as `App.run` does
        started = time.process_time()
        for topic, chunk in rest:
            running.take(topic, chunk)
            running.commit()
        spent = (time.process_time() - started) / sum(len(chunk) for _, chunk in rest) * 1e6
    assert running.sink.records > 0
    return spent


def run(build: Callable[[lf.App], Any], rounds: Sequence[Round], *, has_kernels: bool) -> float:
    """Return CPU microseconds a record, the least of a few runs."""
    if has_kernels:
        load_kernels()
    return min(us_per_record(planned(build), rounds) for _ in range(REPEATS))


def measure_programs() -> Iterator[Figure]:
    """CPU a record of each topology, without the kernels and with them."""
    only = [word.partition("=")[2].split(",") for word in sys.argv if word.startswith("--only=")]
    for name, job in JOBS.items():
        if only and name not in only[0]:
            continue
        rounds = job.rounds()
        with kernel_loader().held_back():
            yield Figure(f"{job.label} (without kernels)", run(job.build, rounds, has_kernels=False), "us/record", is_upper=True)
        spent = run(job.build, rounds, has_kernels=True)
        yield Figure(f"{job.label} (with kernels)", spent, "us/record", job.budget, is_upper=True)


if __name__ == "__main__":
    main(measure_programs)
