"""From produce to committed output: a filter at a steady rate, exactly-once, every write on disk.

Run: python -m benchmarks.latency [--records-per-s=N] [--seconds=N] [--json]

Broker, application and this process are three processes. A record carries the time at which it was handed to the producer; what
is measured is until a read_committed consumer has its result. The producer's own acknowledgement stands beside it: what one write
to the log costs on this machine; and how many cores each process took meanwhile, and how many nobody took: on a machine without
any left over, what is measured is who waits for a core.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from benchmarks._report import Figure, main
from benchmarks.broker import running_broker
from benchmarks.many_keys import cpu_seconds
from benchmarks.streams import option
from logflume.log import connect
from logflume.log.interfaces import Log
from logflume.log.records import TopicPartition
from logflume.streams import App, col

PARTITIONS = 4
_WARM_S = 12.0


class Ping(msgspec.Struct):
    id: int
    sent_us: int


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds of processes, and of nobody, until a time of the clock."""

    at_s: float
    cpu_s: dict[str, float]

    @classmethod
    def now(cls, pids: Mapping[str, int]) -> Usage:
        seconds = {name: cpu_seconds(pid) for name, pid in pids.items()} | {"left over": psutil.cpu_times().idle}
        return cls(time.perf_counter(), seconds)

    def since(self, before: Usage) -> dict[str, float]:
        """Return how many cores each had on average."""
        return {name: (cpu_s - before.cpu_s[name]) / (self.at_s - before.at_s) for name, cpu_s in self.cpu_s.items()}


def app(address: str) -> App:
    made = App("latency", log=address)
    made.stream("pings", Ping, key=str).filter(col.id >= 0).to("pongs")
    return made


def measure(commit_interval_ms: int | None, budget_ms: float | None) -> Iterator[Figure]:
    """Measure one setting (None: the default)."""
    rate, seconds = option("records-per-s", 10_000), option("seconds", 12)
    with tempfile.TemporaryDirectory() as scratch, running_broker(f"{scratch}/data") as (host, port, broker, _):
        address = f"{host}:{port}"
        with connect(address) as log:
            for topic in ("pings", "pongs"):
                log.admin().ensure_topic(topic, partitions=PARTITIONS)
            command = [sys.executable, "-m", "benchmarks.latency", "--serve", address, f"{scratch}/state"]
            child = subprocess.Popen([*command, str(commit_interval_ms or 0)])
            acknowledged: list[float] = []
            feeding = threading.Thread(target=feed, args=(log, rate, seconds + _WARM_S, acknowledged))
            feeding.start()
            pids = {"broker": broker.pid, "application": child.pid, "producer and reader": os.getpid()}
            before, delays = None, []
            for delay in observe(log, rate, seconds):
                before = before or Usage.now(pids)
                delays.append(delay)
            usage = Usage.now(pids)
            delays.sort()
            feeding.join()
            child.kill()
            child.wait()
    label = f"commit interval {commit_interval_ms or 'default'}, {rate:,} records/s"
    if before is None or not acknowledged:
        raise SystemExit(
            f"{label}: no result of what was sent after {_WARM_S:.0f} s of warming up came within {_WARM_S + seconds * 3:.0f} s; "
            "the machine is too busy for this rate: give --records-per-s= less, or --seconds= more"
        )
    for name, cores in usage.since(before).items():
        yield Figure(f"{label}: {name}", cores, "cores")
    acknowledged.sort()
    yield Figure(f"{label}: acknowledged, p50", acknowledged[len(acknowledged) // 2] * 1e3, "ms")
    yield Figure(f"{label}: acknowledged, p99", acknowledged[len(acknowledged) * 99 // 100] * 1e3, "ms")
    yield Figure(f"{label}: output, p50", delays[len(delays) // 2], "ms")
    yield Figure(f"{label}: output, p99", delays[len(delays) * 99 // 100], "ms", budget_ms, is_upper=True)


def feed(log: Log, rate: int, seconds: float, acknowledged: list[float]) -> None:
    """Produce at a steady rate, every 2 ms what is due."""
    producer = log.producer()
    begin_s, sent = time.perf_counter(), 0
    while (now_s := time.perf_counter()) < begin_s + seconds:
        while sent < (now_s - begin_s) * rate:
            value = b'{"id":%d,"sent_us":%d}' % (sent, time.time_ns() // 1000)
            future = producer.send("pings", value, key=b"k%d" % (sent % 1000))
            if sent % 1000 == 0:
                then_s = time.perf_counter()
                future.add_done_callback(lambda _, then_s=then_s: acknowledged.append(time.perf_counter() - then_s))
            sent += 1
        time.sleep(0.002)
    producer.close()


def observe(log: Log, rate: int, seconds: float) -> Iterator[float]:
    """Yield the delay of each result in ms, after the warm-up."""
    consumer = log.consumer(read_committed=True)
    consumer.assign([TopicPartition("pongs", partition) for partition in range(PARTITIONS)])
    first, last = rate * _WARM_S, rate * (seconds + _WARM_S - 1)
    decode, seen, end_s = msgspec.json.Decoder(Ping).decode, 0, time.perf_counter() + _WARM_S + seconds * 3
    while seen < last - 1 and time.perf_counter() < end_s:
        for chunk in consumer.poll(timeout_s=1.0):
            now_us = time.time_ns() // 1000
            for value in chunk.values():
                ping = decode(value or b"")
                seen = max(seen, ping.id)
                if first <= ping.id < last:
                    yield (now_us - ping.sent_us) / 1000
    consumer.close()


def measure_default() -> Iterator[Figure]:
    return measure(None, None)


def measure_ten() -> Iterator[Figure]:
    return measure(10, 30.0)


def serve(address: str, state_dir: str, commit_interval_ms: str) -> None:
    """Run the application until killed."""
    interval = int(commit_interval_ms)
    app(address).run(state_dir=Path(state_dir), **({"commit_interval_ms": interval} if interval else {}))


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve(*sys.argv[sys.argv.index("--serve") + 1 :])
    else:
        main(measure_ten, measure_default)
