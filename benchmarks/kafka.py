"""The broker beside Apache Kafka 4.3.1: same clients, same run, same machine.

Run: python -m benchmarks.kafka [produce|confluent|latency|idle] [--records=N] [--json]

Ours acknowledges what is on disk (fsync). Kafka runs twice: as it comes (its acknowledged records are in the page cache) and with
`log.flush.interval.messages=1`, which is equal durability. The budget of each figure of ours is what Kafka did, so the ratio
says how many times better ours is. CPU is that of the broker process, user and system; rates are on the wall, while all processes
share the cores. Where Java or the jars are missing (see tests/log/_kafka_java.py) the budgets are figures recorded on a quiet
machine of 2 cores, and it says so.
"""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks._report import Figure, main
from benchmarks.broker import running_broker
from logflume.log import connect
from tests.log import _kafka_java as kafka

PRODUCER = ("acks=all", "linger.ms=10", "batch.size=65536")
LATENCY_RECORDS, LATENCY_PER_S = 10_000, 1_000
RECORDED = {
    "as it comes": {
        "produce 100 B": 613_000, "produce 100 B, CPU": 0.96, "produce 1 KB": 115_000, "produce 1 KB, CPU": 6.5,
        "consume 100 B": 1_960_000, "consume 100 B, CPU": 0.22, "consume 1 KB": 308_000, "consume 1 KB, CPU": 1.4,
        "confluent produce": 940_000, "confluent produce, CPU": 0.73, "confluent consume": 360_000, "p99": 18, "p99, CPU": 116,
        "idle": 380, "start": 2.2,
    },
    "flushing each append": {
        "produce 100 B": 159_000, "produce 100 B, CPU": 2.85, "produce 1 KB": 28_000, "produce 1 KB, CPU": 21,
        "confluent produce": 330_000, "confluent consume": 1_360_000, "p99": 30, "p99, CPU": 500,
    },
}  # fmt: skip
"""Apache Kafka 4.3.1 on a quiet machine of 2 cores: records/s, CPU s per million records, ms, MB, s."""


def option(name: str, default: int) -> int:
    """Return the number given as --name=N on the command line."""
    found = [word.partition("=")[2] for word in sys.argv[1:] if word.startswith(f"--{name}=")]
    return int(found[-1]) if found else default


@dataclass(frozen=True, slots=True)
class Broker:
    """A running broker."""

    address: str
    process: psutil.Process
    ready_s: float

    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)


Brokers = dict[str, Callable[[], contextlib.AbstractContextManager[Broker]]]
Measures = dict[str, float]


@contextlib.contextmanager
def ours() -> Iterator[Broker]:
    """Run our broker, with fsync."""
    with tempfile.TemporaryDirectory() as folder, running_broker(folder) as (host, port, process, ready_s):
        yield Broker(f"{host}:{port}", process, ready_s)


@contextlib.contextmanager
def theirs(*configs: str) -> Iterator[Broker]:
    """Run Apache Kafka with 1 GB of heap."""
    with tempfile.TemporaryDirectory() as folder:
        begin_s = time.perf_counter()
        running = kafka.KafkaBroker(Path(folder), *configs, options=("-Xms1g", "-Xmx1g", kafka.QUIET))
        try:
            yield Broker(running.address, psutil.Process(running.process.pid), time.perf_counter() - begin_s)
        finally:
            running.stop()


def beside(measure: Callable[[Broker], Measures], units: dict[str, str]) -> Iterator[Figure]:
    """Measure ours, then Kafka both ways, and give ours with each of theirs as the budget."""
    with ours() as broker:
        mine = measure(broker)
    peers: dict[str, Measures] = dict(RECORDED)
    note = " (recorded)"
    if not kafka.missing():
        note = ""
        for name, configs in (("as it comes", ()), ("flushing each append", ("log.flush.interval.messages=1",))):
            with theirs(*configs) as broker:
                peers[name] = measure(broker)
    for what, value in mine.items():
        for name, measures in peers.items():
            if what in measures:
                is_upper = units[what] != "records/s"
                yield Figure(f"{what}, beside Kafka {name}{note}", value, units[what], measures[what], is_upper=is_upper)


def create(broker: Broker, topic: str) -> None:
    with connect(broker.address) as log:
        log.admin().create_topic(topic, partitions=1)


def performance(broker: Broker, topic: str, records: int, size: int, per_s: int, *properties: str) -> tuple[float, float, float]:
    """Run ProducerPerformance: records/s, p99 in ms, CPU seconds of the broker per million records."""
    before_s = broker.cpu_s()
    printed = kafka.run(
        f"{kafka.TOOLS}.ProducerPerformance", "--topic", topic, "--num-records", str(records), "--record-size", str(size),
        "--throughput", str(per_s), "--bootstrap-server", broker.address, "--command-property", *properties,
        options=("-Xmx512m", kafka.QUIET), timeout_s=600,
    )  # fmt: skip
    last = printed.strip().splitlines()[-1]
    rate, p99_ms = re.search(r"([\d.]+) records/sec", last), re.search(r"([\d.]+) ms 99th", last)
    assert rate is not None, printed
    assert p99_ms is not None, printed
    return float(rate.group(1)), float(p99_ms.group(1)), (broker.cpu_s() - before_s) * 1e6 / records


def produce_and_consume(broker: Broker) -> Measures:
    """ProducerPerformance with acks=all, then ConsumerPerformance, 100 B and 1 KB; a tenth of the records before, to warm up."""
    found: Measures = {}
    for name, size, records in (("100 B", 100, option("records", 1_000_000)), ("1 KB", 1000, option("records", 1_000_000) // 5)):
        topic = f"records-{size}"
        create(broker, topic)
        performance(broker, topic, records // 10, size, -1, *PRODUCER)
        found[f"produce {name}"], _, found[f"produce {name}, CPU"] = performance(broker, topic, records, size, -1, *PRODUCER)
        before_s = broker.cpu_s()
        printed = kafka.run(
            f"{kafka.TOOLS}.ConsumerPerformance", "--topic", topic, "--num-records", str(records),
            "--bootstrap-server", broker.address, options=("-Xmx512m", kafka.QUIET), timeout_s=600,
        )  # fmt: skip
        found[f"consume {name}"] = float(printed.strip().splitlines()[-1].split(",")[-1])
        found[f"consume {name}, CPU"] = (broker.cpu_s() - before_s) * 1e6 / records
    return found


def produce() -> Iterator[Figure]:
    """Kafka's own producer and consumer benchmarks."""
    if kafka.missing():
        print(f"ProducerPerformance and ConsumerPerformance left out: {kafka.missing()}", file=sys.stderr)
        return
    units = {}
    for name in ("produce 100 B", "produce 1 KB", "consume 100 B", "consume 1 KB"):
        units |= {name: "records/s", f"{name}, CPU": "s/M"}
    yield from beside(produce_and_consume, units)


def with_confluent(broker: Broker) -> Measures:
    """confluent-kafka in Python, 100 B records, one object each."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    records, value = option("records", 1_000_000) // 2, b"v" * 100
    create(broker, "confluent")
    producer = Producer(
        {"bootstrap.servers": broker.address, "acks": "all", "linger.ms": 5, "queue.buffering.max.messages": records + 1}
    )
    before_s, begin_s = broker.cpu_s(), time.perf_counter()
    for index in range(records):
        producer.produce("confluent", value)
        if index % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0
    produced_s, produced_cpu_s = time.perf_counter() - begin_s, broker.cpu_s() - before_s
    # By default the client rests for a second when a broker has filled its queue, and that would be what is measured.
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": "g", "enable.auto.commit": False, "fetch.queue.backoff.ms": 5}
    )
    consumer.assign([TopicPartition("confluent", 0, 0)])
    begin_s, got = time.perf_counter(), 0
    while got < records:
        got += len(consumer.consume(10_000, timeout=1))
    consumed_s = time.perf_counter() - begin_s
    consumer.close()
    return {
        "confluent produce": records / produced_s,
        "confluent produce, CPU": produced_cpu_s * 1e6 / records,
        "confluent consume": records / consumed_s,
    }


def confluent() -> Iterator[Figure]:
    """confluent-kafka, produce and consume."""
    units = {"confluent produce": "records/s", "confluent produce, CPU": "s/M", "confluent consume": "records/s"}
    yield from beside(with_confluent, units)


def single_records(broker: Broker) -> Measures:
    """1,000 requests a second with one record each, acks=all; the first run warms up."""
    create(broker, "singles")
    alone = ("acks=all", "linger.ms=0", "batch.size=0")
    performance(broker, "singles", 2 * LATENCY_PER_S, 100, LATENCY_PER_S, *alone)
    _, p99_ms, cpu_s = performance(broker, "singles", LATENCY_RECORDS, 100, LATENCY_PER_S, *alone)
    return {"p99": p99_ms, "p99, CPU": cpu_s}


def latency() -> Iterator[Figure]:
    """The 99th percentile at 1,000 single-record requests a second."""
    if kafka.missing():
        print(f"latency left out: {kafka.missing()}", file=sys.stderr)
        return
    yield from beside(single_records, {"p99": "ms", "p99, CPU": "s/M"})


def resting(broker: Broker) -> Measures:
    """Memory once it is ready, and how long that took."""
    return {"idle": broker.process.memory_info().rss / 1e6, "start": broker.ready_s}


def idle() -> Iterator[Figure]:
    """Idle memory and start (Kafka's with formatting its directory)."""
    yield from beside(resting, {"idle": "MB", "start": "s"})


if __name__ == "__main__":
    main(produce, confluent, latency, idle)
