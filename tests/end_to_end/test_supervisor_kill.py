"""`logflume serve` killed one process at a time: the supervisor alone takes all with it, the broker alone comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from logflume.cli.supervisor import Child, Supervisor

from ._command import LOGFLUME, free_port, read_until


def start(data: Path, address: str) -> subprocess.Popen[str]:
    argv = [*LOGFLUME, "serve", "--data", str(data), "--listen", address, "--registry", "off", "--sql", "off"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    read_until(process, "ready; Ctrl-C stops")
    return process


def eventually(condition: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.02)


def children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def produce(address: str, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": address, "log_level": 0, "reconnect.backoff.max.ms": 100})
    failed: list[object] = []
    for number in range(first, first + count):
        producer.produce("t", b"%d" % number, partition=0, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(60) == 0
    assert not failed


def read(address: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "check", "enable.auto.commit": False, "log_level": 0})
    partition = TopicPartition("t", 0, 0)
    _, end = consumer.get_watermark_offsets(partition, timeout=20)
    consumer.assign([partition])
    found: list[int] = []
    while len(found) < end:
        found += [int(message.value()) for message in consumer.consume(1000, timeout=5) if message.error() is None]
    consumer.close()
    return found


@pytest.mark.slow
def test_processes_of_serve_are_killed_one_at_a_time(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    supervisor = start(tmp_path / "data", address)
    try:
        produce(address, 0, 500)
        own = children(supervisor)
        assert len(own) >= 2, "a broker and a worker"
        broker = next(each for each in own if "logflume.log.server" in " ".join(each.cmdline()))
        broker.kill()
        eventually(lambda: any(each.pid not in {old.pid for old in own} for each in children(supervisor)), "no new broker")
        produce(address, 500, 500)

        own = children(supervisor)
        os.kill(supervisor.pid, signal.SIGKILL)
        supervisor.wait()
        eventually(lambda: all(map(is_gone, own)), "a child outlives its supervisor")
        assert supervisor.stdout is not None
        supervisor.stdout.close()

        supervisor = start(tmp_path / "data", address)
        produce(address, 1000, 500)
        assert read(address) == list(range(1500))
        supervisor.send_signal(signal.SIGINT)
        assert supervisor.wait(60) == 0
    finally:
        supervisor.kill()
        supervisor.wait()


ENDING = """
import pathlib, signal, sys, time
own, waits_for = map(pathlib.Path, sys.argv[1:3])

def end(*_):
    own.with_suffix(".asked").touch()
    while not waits_for.exists():
        time.sleep(0.01)
    own.with_suffix(".ended").touch()
    sys.exit()

signal.signal(signal.SIGTERM, end)
own.touch()
while True:
    signal.pause()
"""


def stopped(folder: Path, waits_for: dict[str, str], *, last: str | None = None) -> list[str]:
    """Start children that end once a file is there, stop them, and return what the supervisor said: nothing without a kill."""
    said: list[str] = []
    supervisor = Supervisor(lambda _, line: said.append(line), stop_timeout_s=10)
    for name, other in waits_for.items():
        argv = [sys.executable, "-c", ENDING, str(folder / name), str(folder / other)]
        supervisor.add(Child(name, argv, ends_last=name == last))
    eventually(lambda: all((folder / name).exists() for name in waits_for), "the children start")
    supervisor.stop()
    supervisor.run()
    return said


def test_equal_children_are_stopped_together(tmp_path: Path) -> None:
    """Each ends only when the other one has been asked too: else it is a kill."""
    assert stopped(tmp_path, {"worker-0": "worker-1.asked", "worker-1": "worker-0.asked"}) == []


def test_a_child_that_others_work_with_is_stopped_after_them(tmp_path: Path) -> None:
    """Each of two ends only when the other one has been asked too, and the broker only after both: else it is a kill."""
    waits_for = {"broker": "sql.ended", "engine": "sql.asked", "sql": "engine.asked"}
    assert stopped(tmp_path, waits_for, last="broker") == []
    ended_ns = {name: (tmp_path / f"{name}.ended").stat().st_mtime_ns for name in waits_for}
    asked_ns = (tmp_path / "broker.asked").stat().st_mtime_ns
    assert asked_ns >= max(ended_ns["engine"], ended_ns["sql"])
