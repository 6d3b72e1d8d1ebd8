"""Counting many keys with little memory: what the process takes, and how it goes on after SIGKILL, with its disk and without.

Run: python -m benchmarks.many_keys [--keys=N] [--memory-mb=N] [--json]

Broker, application and this process are three processes; exactly-once, every write on disk. The input names each key once, in an
order that has nothing to do with that of the keys. Memory is the largest resident size of the application's process, interpreter
and libraries (about 180 MB) included; a restart is from starting the process to the first output after it, with its CPU time
beside it (which does not depend on who else is running). With an empty disk the state is restored from its changelog; what one
core restores is the keys by the CPU time beyond that of a restart with the disk, as start-up is in both.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from benchmarks._report import Figure, main
from benchmarks.broker import running_broker
from benchmarks.streams import option
from logflume.log import connect
from logflume.log.interfaces import Log
from logflume.log.records import Chunk, TopicPartition
from logflume.streams import App, count

PARTITIONS = 4
_BLOCK = 50_000
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Seen(msgspec.Struct):
    n: int


def app(address: str) -> App:
    made = App("keys", log=address)
    made.stream("in", Seen, key=str).group_by_key().aggregate(n=count(), name="counts").to("out")
    return made


def measure() -> Iterator[Figure]:
    """Count `--keys` (10 M) keys with `--memory-mb` (512) for stores, then kill and restart."""
    keys, memory_mb = option("keys", 10_000_000), option("memory-mb", 512)
    with tempfile.TemporaryDirectory() as scratch, running_broker(f"{scratch}/data") as (host, port, _, _):
        address = f"{host}:{port}"
        with connect(address) as log:
            log.admin().ensure_topic("in", partitions=PARTITIONS)
            fill(log, keys)
            command = [sys.executable, "-m", "benchmarks.many_keys", "--serve", address, f"{scratch}/state", str(memory_mb)]
            first = subprocess.Popen(command)
            wait_for(log, keys)
            fill(log, 1)
            wait_for(log, keys + 1)
            resident_mb, cpu_s = peak_mb(first.pid), cpu_seconds(first.pid)
            os.kill(first.pid, signal.SIGKILL)
            first.wait()
            took_s, again_s = restart(log, command, keys + 2)
            shutil.rmtree(f"{scratch}/state")
            restored_s, restored_cpu_s = restart(log, command, keys + 3)
    label = f"{keys:,} keys, {memory_mb} MB for stores"
    yield Figure(f"{label}: largest resident size", resident_mb, "MB")
    yield Figure(f"{label}: CPU a key", cpu_s / keys * 1e6, "us")
    yield Figure(f"{label}: restart after SIGKILL to the first output", took_s, "s", 2.0, is_upper=True)
    yield Figure(f"{label}: restart, CPU", again_s, "s")
    yield Figure(f"{label}: restart with an empty disk to the first output", restored_s, "s")
    yield Figure(f"{label}: restored, by CPU", keys / max(restored_cpu_s - again_s, 0.01), "entries/s", 1_500_000)


def restart(log: Log, command: Sequence[str], wanted: int) -> tuple[float, float]:
    """Send a record, start the application, wait for the output, kill it; return the seconds until then, and those of CPU."""
    fill(log, 1)
    began_s = time.perf_counter()
    started = subprocess.Popen(command)
    wait_for(log, wanted)
    took_s, cpu_s = time.perf_counter() - began_s, cpu_seconds(started.pid)
    started.kill()
    started.wait()
    return took_s, cpu_s


def fill(log: Log, keys: int) -> None:
    """Send each key once."""
    producer = log.producer(linger_ms=20)
    order = np.random.default_rng(1).permutation(keys)
    for start in range(0, keys, _BLOCK):
        names = [b"user-%010d" % number for number in order[start : start + _BLOCK].tolist()]
        producer.send_chunk("in", Chunk.from_columns("in", names, [b'{"n":1}'] * len(names), [1] * len(names)))
    producer.flush()
    producer.close()


def wait_for(log: Log, wanted: int) -> None:
    """Wait until so many results are committed."""
    partitions = [TopicPartition("out", partition) for partition in range(PARTITIONS)]
    while "out" not in log.admin().list_topics():
        time.sleep(0.01)
    consumer = log.consumer()
    consumer.assign(partitions)
    found = 0
    while found < wanted:
        found += sum(map(len, consumer.poll(timeout_s=1.0)))
    consumer.close()


def peak_mb(pid: int) -> float:
    """Return the largest resident size so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far, user and system, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def serve(address: str, state_dir: str, memory_mb: str) -> None:
    """Run the application until killed."""
    app(address).run(state_dir=Path(state_dir), memory_bytes=int(memory_mb) << 20)


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve(*sys.argv[sys.argv.index("--serve") + 1 :])
    else:
        main(measure)
