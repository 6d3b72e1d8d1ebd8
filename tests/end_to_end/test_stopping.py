"""A process that waits for a signal ends by it, whichever of its threads the system lets take it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.log._server_process import ServerProcess

PROCESSES = 12
PROGRAM = """
import os, threading
from logflume.cli.stopping import stop_on_signals

stopping = stop_on_signals()

def start_others():
    while True:
        others = [threading.Thread(target=lambda: None) for _ in range(4)]
        for other in others:
            other.start()
        for other in others:
            other.join()

for _ in range(4):
    threading.Thread(target=start_others, daemon=True).start()
print("ready", flush=True)
assert stopping.wait()
assert stopping.wait(0)
os._exit(7)
"""


def test_whoever_waits_for_a_signal_hears_of_it_whichever_thread_takes_it() -> None:
    """With a plain event one process in three waits on for ever: threads that start or end take signals that are for all."""
    processes = [subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        time.sleep(0.2)  # all of them wait
        for process in processes:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(30) for process in processes] == [7] * PROCESSES
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_wait_with_a_time_ends_by_it() -> None:
    program = "from logflume.cli.stopping import Stopping; import time; t = time.monotonic(); assert not Stopping().wait(0.7); "
    subprocess.run([sys.executable, "-c", program + "assert 0.7 <= time.monotonic() - t < 5"], check=True, timeout=60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_starts_is_ended_at_once_though_the_broker_does_not_answer(tmp_path: Path, number: signal.Signals) -> None:
    broker = ServerProcess(str(tmp_path / "log"))
    where = ["--bootstrap", broker.address, "--state-dir", str(tmp_path / "state")]
    try:
        broker.process.send_signal(signal.SIGSTOP)
        worker = subprocess.Popen([sys.executable, "-m", "logflume.cli.worker", *where], stderr=subprocess.DEVNULL)
        try:
            time.sleep(3)  # it asks the broker
            assert worker.poll() is None
            worker.send_signal(number)
            assert worker.wait(20) != 0
        finally:
            worker.kill()
            worker.wait()
    finally:
        broker.process.send_signal(signal.SIGCONT)
        broker.kill()
