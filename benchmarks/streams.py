"""Topologies T1 to T5 over JSON and T1 over Avro, with the kernels and without them; T2 exactly-once beside at-least-once, and by
one and two workers; the restart after SIGKILL with 1 GB of state.

Run: python -m benchmarks.streams [stateless|avro|count|regrouped|windows|join|changing|pairs|guarantees|workers|restart]
[--records=N] [--state-mb=N] [--json]

A broker in a process of its own; the application in another, from its first task to the last record committed, outputs and
changelogs included (exactly-once, acks after fsync); loading code and kernels is start-up and left out. The figure is records per
second of CPU of the application (user and system, all threads), so that it says what one core does whoever else is running; the
wall time is given beside it. Both read the same input, one after the other, over the same broker. The input:
4 partitions, key = user, 75 bytes of JSON, times rising by 1 ms a record, 1 % of them set back by up to 5 s.
"""

from __future__ import annotations

import base64
import io
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import psutil

from benchmarks._report import Figure, main
from benchmarks.broker import running_broker
from logflume.log import connect
from logflume.log.batch.columns import load_kernels
from logflume.log.collector import ShortCollections
from logflume.log.interfaces import Log
from logflume.log.records import Chunk, TopicPartition
from logflume.log.schemas import FormatSpec, registry_at
from logflume.streams import App, col, count, seconds, sum, tumbling
from logflume.streams.kernels import kernel_loader
from logflume.streams.runtime import Engine, EngineOptions, EngineState, Guarantee

WITH_KERNELS, WITHOUT, AT_LEAST_ONCE = "with-kernels", "without-kernels", "at-least-once"
PARTITIONS = 4
TURNS = 3
BLOCK = 50_000
PEERS_CPU_S = {"stateless": 8.9, "count": 10.1, "windows": 21.1, "join": 11.0, "pairs": 20.1}
"""Kafka Streams 4.3.1, exactly-once v2, CPU seconds per million records on such a machine."""


class Event(msgspec.Struct):
    """One input record."""

    id: int
    user: str
    page: str
    ms: int
    price: float
    ok: bool


class Shown(msgspec.Struct):
    """An impression, or the click on it, of T5."""

    id: int
    page: str


class User(msgspec.Struct):
    """A row of the table of T4."""

    name: str
    country: str


AVRO = FormatSpec("AVRO", registry="mock://benchmark")
AVRO_REGISTRY = registry_at(AVRO.registry)
AVRO_SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Event",
        "fields": [
            {"name": name, "type": type}
            for name, type in zip(Event.__struct_fields__, ("long", "string", "string", "long", "double", "boolean"), strict=True)
        ],
    }
)


def option(name: str, default: int) -> int:
    """Return the number given as --name=N on the command line."""
    found = [word.partition("=")[2] for word in sys.argv[1:] if word.startswith(f"--{name}=")]
    return int(found[-1]) if found else default


def stateless(name: str, address: str) -> App:
    app = App(name, log=address)
    events = app.stream("events", Event, key=str)
    events.filter(col.ok & (col.ms > 100)).select(col.id, col.user, col.ms, gross=col.price * 1.2).to(f"{name}-out")
    return app


def stateless_avro(name: str, address: str) -> App:
    app = App(name, log=address)
    AVRO_REGISTRY.register("events-value", "AVRO", AVRO_SCHEMA)
    events = app.stream("events", Event, key=str, format=AVRO)
    chosen = events.filter(col.ok & (col.ms > 100))
    chosen.select(col.id, col.user, col.ms, gross=col.price * 1.2).to(f"{name}-out", format=AVRO)
    return app


def count_per_user(name: str, address: str) -> App:
    app = App(name, log=address)
    app.stream("events", Event, key=str).group_by_key().count().to(f"{name}-out")
    return app


def windows(name: str, address: str) -> App:
    app = App(name, log=address)
    grouped = app.stream("events", Event, key=str).group_by_key().window(tumbling(seconds(10), grace=seconds(10)))
    grouped.aggregate(n=count(), total=sum(col.price)).to(f"{name}-out")
    return app


def join(name: str, address: str) -> App:
    app = App(name, log=address)
    events, users = app.stream("events", Event, key=str), app.table("users", User, key=str)
    events.join(users).to(f"{name}-out")
    return app


def pairs(name: str, address: str) -> App:
    app = App(name, log=address)
    shown, seen = app.stream("shown", Shown, key=str), app.stream("seen", Shown, key=str)
    shown.join(seen, within=seconds(5), prefix="seen_").to(f"{name}-out")
    return app


def regrouped(name: str, address: str) -> App:
    app = App(name, log=address)
    app.stream("events", Event, key=str).group_by(col.user).count().to(f"{name}-out")
    return app


APPS: dict[str, Callable[[str, str], App]] = {
    "stateless": stateless,
    "avro": stateless_avro,
    "count": count_per_user,
    "windows": windows,
    "join": join,
    "changing": join,
    "regrouped": regrouped,
    "pairs": pairs,
}


def avro_values(values: Sequence[bytes]) -> list[bytes]:
    """Return JSON events as Avro."""
    schema_id = AVRO_REGISTRY.register("events-value", "AVRO", AVRO_SCHEMA)
    parsed, out, made = fastavro.parse_schema(json.loads(AVRO_SCHEMA)), io.BytesIO(), []
    for value in values:
        out.seek(0)
        out.truncate()
        fastavro.schemaless_writer(out, parsed, msgspec.json.decode(value))
        made.append(b"\0" + schema_id.to_bytes(4, "big") + out.getvalue())
    return made


def fill(log: Log, topic: str, records: int, users: int, *, is_avro: bool = False) -> None:
    """Write the events."""
    log.admin().ensure_topic(topic, partitions=PARTITIONS)
    rng, producer = random.Random(1), log.producer(linger_ms=20)
    for start in range(0, records, BLOCK):
        ids = range(start, min(start + BLOCK, records))
        names = [f"u{rng.randrange(users):05}" for _ in ids]
        values = [
            b'{"id":%d,"user":"%s","page":"p%d","ms":%d,"price":%.2f,"ok":%s}'
            % (i, name.encode(), i % 50, rng.randrange(1, 501), rng.random() * 50, b"true" if rng.random() < 0.9 else b"false")
            for i, name in zip(ids, names, strict=True)
        ]
        values = avro_values(values) if is_avro else values
        times = [1_700_000_000_000 + i - (rng.randrange(5000) if rng.random() < 0.01 else 0) for i in ids]
        producer.send_chunk(topic, Chunk.from_columns(topic, [name.encode() for name in names], values, times))
    producer.flush()
    producer.close()


def fill_users(log: Log, users: int, *, changes: int = 0) -> None:
    """Write the table of T4, then so many changes of it, which come as the events do."""
    log.admin().ensure_topic("users", partitions=PARTITIONS, configs={"cleanup.policy": "compact"})
    producer = log.producer(linger_ms=20)
    for start in range(0, users + changes, BLOCK):
        numbers = range(start, min(start + BLOCK, users + changes))
        names = [b"u%05d" % (i % users) for i in numbers]
        values = [b'{"name":"user %s","country":"c%d"}' % (name, i % 200) for i, name in zip(numbers, names, strict=True)]
        times = [1 if i < users else 1_700_000_000_000 + i - users for i in numbers]
        producer.send_chunk("users", Chunk.from_columns("users", names, values, times))
    producer.flush()
    producer.close()


def fill_pairs(log: Log, records: int) -> None:
    """Write two impressions for each click, which comes up to 4 s after its own."""
    rng, producer = random.Random(1), log.producer(linger_ms=20)
    times = [1_700_000_000_000 + i for i in range(records * 2 // 3)]
    clicks = sorted((at + rng.randrange(4000), i) for i, at in enumerate(times) if i % 2 == 0)
    for topic, rows in (("shown", list(zip(times, range(len(times)), strict=True))), ("seen", clicks)):
        log.admin().ensure_topic(topic, partitions=PARTITIONS)
        for start in range(0, len(rows), BLOCK):
            part = rows[start : start + BLOCK]
            values = [b'{"id":%d,"page":"p%d"}' % (i, i % 50) for _, i in part]
            producer.send_chunk(topic, Chunk.from_columns(topic, [b"%d" % i for _, i in part], values, [at for at, _ in part]))
    producer.flush()
    producer.close()


def run(name: str, records: int, ways: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Run one topology over a fresh broker, each way in a fresh process; return what each cost."""
    users = 100_000 if name == "join" else 10_000
    costs: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as scratch, running_broker(f"{scratch}/data") as (host, port, process, _):
        with connect(f"{host}:{port}") as log:
            if name == "pairs":
                fill_pairs(log, records)
            else:
                fill(log, "events", records, users, is_avro=name == "avro")
            if name in ("join", "changing"):
                fill_users(log, users, changes=records if name == "changing" else 0)
        for way in ways:
            before = process.cpu_times()
            place = [f"{host}:{port}", f"{scratch}/{way}"]
            command = [sys.executable, "-m", "benchmarks.streams", "--child", name, way, *place]
            cost: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
            after = process.cpu_times()
            cost["broker_cpu_s"] = after.user + after.system - before.user - before.system
            costs[way] = cost
    return costs


def child(name: str, way: str, address: str, state_dir: str) -> None:
    """Run an application one way until everything is read and committed; print what it cost."""
    load_for(way)
    print(json.dumps(cost_of(APPS[name](f"{name}-{way}", address), way, address, state_dir)))


def worker(name: str, address: str, state_dir: str) -> None:
    """Be one of several workers: say when all is loaded, begin when told to, print what it cost."""
    load_for(WITH_KERNELS)
    print("loaded", flush=True)
    sys.stdin.readline()
    print(json.dumps(cost_of(count_per_user(name, address), WITH_KERNELS, address, state_dir)))


def load_for(way: str) -> None:
    """Load the kernels, or keep them out."""
    load_kernels()
    if way == WITHOUT:
        kernel_loader().stay_out()
    else:
        kernel_loader().load("meetings", "chains", "sessions", "sliding", "message_rows")


def cost_of(app: App, way: str, address: str, state_dir: str) -> dict[str, Any]:
    """Run an application until everything is read and committed; return what that cost from its first task on."""
    guarantee = Guarantee.AT_LEAST_ONCE if way == AT_LEAST_ONCE else Guarantee.EXACTLY_ONCE
    with connect(address) as log, ShortCollections().over_batches():  # as `App.run` does
        engine = Engine(app.plan(), log, EngineOptions(state_dir=Path(state_dir), guarantee=guarantee))
        engine.start()
        while engine.status().state is not EngineState.RUNNING:
            time.sleep(0.005)
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        while engine.status().lag_records != 0 and not engine.has_ended:
            time.sleep(0.05)
        engine.stop()
        status = engine.status()
        cost = {"cpu_s": time.process_time() - cpu_s, "wall_s": time.perf_counter() - wall_s, "records": status.records_in}
        return cost | {"out": status.records_out, "commit_ms": status.commit.latency_p50_ms}


def topology(name: str, label: str, budgets: Mapping[str, float]) -> Iterator[Figure]:
    """Measure one topology in the ways that have a budget (0: none, for information)."""
    records = option("records", 2_000_000)
    costs = run(name, records, list(budgets))
    for way, cost in costs.items():
        rate = records / cost["cpu_s"]
        what = f"{label} ({way.replace('-', ' ')})"
        yield Figure(f"{what}: records per CPU second", rate, "records/s", budgets[way] or None)
        yield Figure(f"{what}: wall", records / cost["wall_s"], "records/s")
        yield Figure(f"{what}: CPU per million, broker beside it", cost["broker_cpu_s"] / records * 1e6, "s")
        yield Figure(f"{what}: task commit, p50", cost["commit_ms"], "ms")
        if name in PEERS_CPU_S:
            yield Figure(f"{what}: Kafka Streams takes this many times the CPU", PEERS_CPU_S[name] / (1e6 / rate), "times")
    if WITH_KERNELS in costs and WITHOUT in costs:
        ratio = costs[WITHOUT]["cpu_s"] / costs[WITH_KERNELS]["cpu_s"]
        yield Figure(f"{label}: without kernels it takes this many times the CPU", ratio, "times")


def measure_stateless() -> Iterator[Figure]:
    return topology("stateless", "T1 filter, project", {WITH_KERNELS: 2_500_000, WITHOUT: 800_000})


def measure_avro() -> Iterator[Figure]:
    """T1 over Avro beside T1 over JSON, in turns: it is to be no dearer. One run may be a third dearer than the next."""
    records, ways = option("records", 2_000_000), (WITH_KERNELS,)
    turns = [{name: run(name, records, ways)[WITH_KERNELS]["cpu_s"] for name in ("avro", "stateless")} for _ in range(TURNS)]
    avro, plain = (statistics.median(turn[name] for turn in turns) for name in ("avro", "stateless"))
    yield Figure("T1 over Avro (with kernels): records per CPU second", records / avro, "records/s", 2_500_000)
    yield Figure("T1 over Avro: times the CPU of JSON", avro / plain, "times", 1.0, is_upper=True)


def measure_count() -> Iterator[Figure]:
    return topology("count", "T2 count per key, 10 k keys", {WITH_KERNELS: 3_333_333, WITHOUT: 700_000})


def measure_regrouped() -> Iterator[Figure]:
    return topology("regrouped", "T2 through a repartition topic", {WITH_KERNELS: 0, WITHOUT: 0})


def measure_windows() -> Iterator[Figure]:
    return topology("windows", "T3 tumbling count and sum", {WITH_KERNELS: 1_111_111, WITHOUT: 350_000})


def measure_join() -> Iterator[Figure]:
    return topology("join", "T4 stream-table join, 100 k keys", {WITH_KERNELS: 1_428_571, WITHOUT: 300_000})


def measure_changing() -> Iterator[Figure]:
    return topology("changing", "T4, 10 k keys, for each event a change of the table", {WITH_KERNELS: 0})


def measure_pairs() -> Iterator[Figure]:
    return topology("pairs", "T5 stream-stream join", {WITH_KERNELS: 1_000_000})


def measure_guarantees() -> Iterator[Figure]:
    """T2 exactly-once beside at-least-once, in turns."""
    records = option("records", 2_000_000)
    turns = [run("count", records, (AT_LEAST_ONCE, WITH_KERNELS)) for _ in range(TURNS)]
    for what, keys in {"application": ("cpu_s",), "application and broker": ("cpu_s", "broker_cpu_s")}.items():
        plain, exact = (
            statistics.median(math.fsum(turn[way][key] for key in keys) for turn in turns)
            for way in (AT_LEAST_ONCE, WITH_KERNELS)
        )
        label = f"T2 exactly-once: times the CPU of at-least-once, {what}"
        yield Figure(label, exact / plain, "times", 1.2 if keys == ("cpu_s",) else None, is_upper=True)


def measure_workers() -> Iterator[Figure]:
    """T2 by one worker, then by two that begin together, over one input: what both do at a time, by the clock.

    The broker has the same cores: of two, what it takes is not there for a second worker.
    """
    records = option("records", 4_000_000)
    with tempfile.TemporaryDirectory() as scratch, running_broker(f"{scratch}/data") as (host, port, process, _):
        address, rates = f"{host}:{port}", {}
        with connect(address) as log:
            fill(log, "events", records, 10_000)
        for workers in (1, 2):
            before = process.cpu_times()
            costs = [json.loads(line) for line in run_workers(workers, address, f"{scratch}/state-{workers}")]
            after = process.cpu_times()
            rates[workers] = records / max(cost["wall_s"] for cost in costs)
            used_s = math.fsum(cost["cpu_s"] for cost in costs)
            broker_s = after.user + after.system - before.user - before.system
            label = f"T2 by {workers} worker{'s' * (workers > 1)}"
            yield Figure(f"{label}: wall", rates[workers], "records/s")
            yield Figure(f"{label}: CPU of the workers", used_s, "s")
            yield Figure(f"{label}: CPU of the broker", broker_s, "s")
    yield Figure("T2 by 2 workers: times the records of one", rates[2] / rates[1], "times", 1.8)
    yield Figure("  two cores that are never idle would give", 2 * records / (used_s + broker_s) / rates[1], "times")


def run_workers(workers: int, address: str, state_dir: str) -> list[str]:
    """Start workers of one application, let them begin once all have loaded their code; return what each printed at its end."""
    command = [sys.executable, "-m", "benchmarks.streams", "--worker", f"count-{workers}", address]
    started = [
        subprocess.Popen([*command, f"{state_dir}/{number}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(workers)
    ]
    for each in started:
        assert each.stdout is not None
        assert each.stdout.readline() == "loaded\n"
    for each in started:
        assert each.stdin is not None
        each.stdin.write("begin\n")
        each.stdin.flush()
    return [each.communicate()[0] for each in started]


def measure_restart() -> Iterator[Figure]:
    """SIGKILL an application with a large store, start it again, and wait for the first output after that."""
    size_mb = option("state-mb", 1000)
    with tempfile.TemporaryDirectory() as scratch, running_broker(f"{scratch}/data") as (host, port, _, _):
        address, state_dir = f"{host}:{port}", Path(scratch) / "state"
        with connect(address) as log:
            log.admin().ensure_topic("rows", partitions=PARTITIONS, configs={"cleanup.policy": "compact"})
            log.admin().ensure_topic("asks", partitions=PARTITIONS)
            producer, start = log.producer(linger_ms=20), 0
            rng = random.Random(1)
            for start in range(0, size_mb * 1000, 10_000):
                keys = [b"k%08d" % i for i in range(start, start + 10_000)]
                values = [b'{"name":"%s","country":"c"}' % base64.b64encode(rng.randbytes(720)) for _ in keys]
                producer.send_chunk("rows", Chunk.from_columns("rows", keys, values, [1] * len(keys)))
            producer.flush()
            first = start_child("big", address, state_dir)
            await_output(log, producer, 1)
            await_table(log)
            await_output(log, producer, 2)  # its commit comes after the state of those before was written
            os.kill(first.pid, signal.SIGKILL)
            first.wait()
            on_disk = sum_of_sizes(state_dir)
            began_s = time.perf_counter()
            second = start_child("big", address, state_dir)
            await_output(log, producer, 3)
            took_s, used = time.perf_counter() - began_s, psutil.Process(second.pid).cpu_times()
            second.kill()
            second.wait()
    yield Figure(f"restart after SIGKILL, {on_disk / 1e6:,.0f} MB on disk, to the first output", took_s, "s", 2.0, is_upper=True)
    yield Figure("the same, CPU", used.user + used.system, "s")


def big(address: str) -> App:
    app = App("big", log=address)
    app.stream("asks", Event, key=str).join(app.table("rows", User, key=str)).to("answers")
    return app


def start_child(name: str, address: str, state_dir: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "benchmarks.streams", "--serve", name, address, str(state_dir)])


def serve(address: str, state_dir: str) -> None:
    """Run the application with the large store until killed."""
    big(address).run(state_dir=Path(state_dir))


def await_output(log: Log, producer: Any, wanted: int) -> None:
    """Ask for one row and wait until its answer is committed; `wanted` answers in all."""
    value = b'{"id":1,"user":"u","page":"p","ms":1,"price":1.0,"ok":true}'
    producer.send("asks", value, key=b"k%08d" % (wanted * 7), timestamp_ms=2).result(timeout=60)
    consumer = log.consumer()
    while "answers" not in log.admin().list_topics():
        time.sleep(0.01)
    consumer.assign([TopicPartition("answers", partition) for partition in range(PARTITIONS)])
    found = 0
    while found < wanted:
        for chunk in consumer.poll(timeout_s=1.0):
            found += len(chunk)
    consumer.close()


def await_table(log: Log) -> None:
    """Wait until the whole table has been read: what is left of it would be work after a restart, not the restart's."""
    admin = log.admin()
    ends = admin.end_offsets([TopicPartition("rows", partition) for partition in range(PARTITIONS)])
    while any((at := admin.group_offsets("big").get(each)) is None or at.offset < end for each, end in ends.items()):
        time.sleep(0.1)


def sum_of_sizes(path: Path) -> int:
    total = 0
    for file in path.rglob("*"):
        if file.is_file():
            total += file.stat().st_size
    return total


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(*sys.argv[sys.argv.index("--child") + 1 :])
    elif "--worker" in sys.argv:
        worker(*sys.argv[sys.argv.index("--worker") + 1 :])
    elif "--serve" in sys.argv:
        serve(*sys.argv[sys.argv.index("--serve") + 2 :])
    else:
        main(
            measure_stateless,
            measure_avro,
            measure_count,
            measure_regrouped,
            measure_windows,
            measure_join,
            measure_changing,
            measure_pairs,
            measure_guarantees,
            measure_workers,
            measure_restart,
        )
