"""Children of a broker: they die with it, whoever kills it, and never work beside the next one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from logflume.log.storage import DataDir, OsDisk

from ._server_process import ServerProcess

KEYS, ROUNDS = 300, 12
SLOW, FAST = "200000", "100000000"


def eventually(condition: Callable[[], object], what: str, *, within_s: float = 30.0) -> None:
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.01)


def compacting_child(server: ServerProcess) -> psutil.Process | None:
    assert server.process is not None
    children = psutil.Process(server.process.pid).children()
    return next((each for each in children if "logflume.log.storage.compact" in " ".join(each.cmdline())), None)


def cleaned_files(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.name.endswith(".cleaned")]


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def last_values(address: str, topic: str) -> dict[bytes, bytes]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "check", "enable.auto.commit": False})
    partition = TopicPartition(topic, 0, 0)
    _, end = consumer.get_watermark_offsets(partition, timeout=10)
    consumer.assign([partition])
    values: dict[bytes, bytes] = {}
    next_offset = 0
    while next_offset < end:
        for message in consumer.consume(1000, timeout=5):
            assert message.error() is None, message.error()
            values[message.key()], next_offset = message.value(), message.offset() + 1
    consumer.close()
    return values


@pytest.mark.slow
def test_a_broker_killed_alone_takes_its_compaction_with_it(tmp_path: Path) -> None:
    server = ServerProcess(str(tmp_path / "data"), ["log.cleaner.backoff.ms=100", f"log.cleaner.io.max.bytes.per.second={SLOW}"])
    admin = AdminClient({"bootstrap.servers": server.address})
    configs = {"cleanup.policy": "compact", "segment.bytes": "1000000", "min.cleanable.dirty.ratio": "0.01"}
    admin.create_topics([NewTopic("table", 1, 1, config=configs)])["table"].result(10)
    producer = Producer({"bootstrap.servers": server.address, "linger.ms": 5})
    for i in range(ROUNDS):
        for key in range(KEYS):
            producer.produce("table", b"%d:" % i + bytes(1000), b"key %d" % key, partition=0)
        assert producer.flush(30) == 0
    directory = tmp_path / "data" / "table-0"
    eventually(lambda: cleaned_files(directory), "no compaction began")
    child = compacting_child(server)
    assert child is not None
    server.kill()
    eventually(lambda: is_gone(child.pid), "the compacting child outlives its broker", within_s=5)

    server.configs = ["log.cleaner.backoff.ms=100", f"log.cleaner.io.max.bytes.per.second={FAST}"]
    server.start()
    before = sum(path.stat().st_size for path in directory.glob("*.log"))
    eventually(lambda: sum(path.stat().st_size for path in directory.glob("*.log")) < before / 2, "nothing was compacted")
    server.kill()
    server.start()
    values = last_values(server.address, "table")
    assert {key: value[:4] for key, value in values.items()} == {b"key %d" % key: b"%d:\0" % (ROUNDS - 1) for key in range(KEYS)}
    assert server.stop() == 0


HOLDER = """
import os, subprocess, sys, time
from logflume.log.storage import DataDir, OsDisk
data = DataDir.open(sys.argv[1], disk=OsDisk())
code = "import sys, time; print('up', flush=True); time.sleep(float(sys.argv[1]))"
child = subprocess.Popen([sys.executable, "-c", code, sys.argv[2]], pass_fds=[data.lock_fd], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_directory_is_not_opened_while_a_child_of_its_dead_holder_lives(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path), "60"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    child_pid = int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()
    assert DataDir.holder(str(tmp_path)) is not None, "the child still holds the lock"
    opened: list[float] = []

    def open_it() -> None:
        with DataDir.open(str(tmp_path), disk=OsDisk()):
            opened.append(time.monotonic())

    thread = threading.Thread(target=open_it)
    thread.start()
    ended_s = time.monotonic()
    with contextlib.suppress(ProcessLookupError):
        os.kill(child_pid, signal.SIGKILL)
    thread.join(30)
    assert opened
    assert opened[0] >= ended_s


STARTER = """
import os, signal, subprocess, sys, time
from logflume.log.children import Lifeline
from logflume.log.storage import DataDir, OsDisk
data, lifeline = DataDir.open(sys.argv[1], disk=OsDisk()), Lifeline()
code = "import os, signal, time; os.kill(os.getpid(), signal.SIGSTOP); time.sleep(120)"
child = subprocess.Popen(
    [sys.executable, "-c", code], env=lifeline.environment(os.environ), pass_fds=[*lifeline.fds, data.lock_fd],
    stdout=subprocess.DEVNULL,
)
print(child.pid, flush=True)
time.sleep(120)
"""


@pytest.mark.parametrize("is_reaped", [True, False], ids=["reaped", "not-reaped"])
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_child_stopped_before_it_asked_to_be_told_of_its_parents_end_does_not_stop_the_next_start(
    tmp_path: Path, is_reaped: bool
) -> None:
    process = subprocess.Popen([sys.executable, "-c", STARTER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child_pid = int(process.stdout.readline())
    try:
        eventually(lambda: psutil.Process(child_pid).status() == psutil.STATUS_STOPPED, "the child does not stop")
        process.kill()
        if is_reaped:
            process.wait()
        else:
            eventually(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE, "the holder lives on")
        with DataDir.open(str(tmp_path), disk=OsDisk()):
            eventually(lambda: is_gone(child_pid), "the child lives on")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child_pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


PARENT = """
import os, subprocess, sys, time
from logflume.log.children import Lifeline
lifeline = Lifeline()
code = '''
import signal, sys, time
from logflume.log.children import end_with_parent
end_with_parent(signal.SIGKILL)
print("up", flush=True)
time.sleep(120)
'''
child = subprocess.Popen(
    [sys.executable, "-c", code], env=lifeline.environment(os.environ), pass_fds=lifeline.fds, stdout=subprocess.PIPE
)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(120)
"""


@pytest.mark.parametrize("is_stopped", [False, True], ids=["running", "stopped"])
def test_a_child_ends_with_a_parent_that_is_killed(is_stopped: bool) -> None:
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child_pid = int(process.stdout.readline())
    if is_stopped:
        os.kill(child_pid, signal.SIGSTOP)
    process.kill()
    process.wait()
    process.stdout.close()
    eventually(lambda: is_gone(child_pid), "the child lives on", within_s=10)


def test_without_a_lifeline_nothing_happens() -> None:
    code = "import signal\nfrom logflume.log.children import end_with_parent\nend_with_parent(signal.SIGKILL)\nprint('here')"
    environment = {name: value for name, value in os.environ.items() if name != "LOGFLUME_LIFELINE"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "here\n"
