"""Changelogs restored as files, a part at a time: the state is what it was, also when the process is killed in the midst."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from logflume.log.interfaces import Log
from logflume.log.records import Chunk
from logflume.streams.runtime import Engine, restore
from logflume.streams.state import Checkpoint, DiskMemory, Store, TaskState
from tests.streams._instance_process import passing_on
from tests.streams.running import embedded, read, running, until, write

PARTITIONS = 3
PART_BYTES = 8_000
ROUNDS = [[b"k%03d" % (n * step % 701) for n in range(700)] for step in (1, 3, 5)]
RECORDS = sum(map(len, ROUNDS))
KILLED_PARTS = 2
KILLED = f"""
import os, signal, sys
from logflume.streams.state import DiskMemory, TaskState
from tests.streams._instance_process import main

parts, restore = [], TaskState.restore

def restore_some(*given):
    restore(*given)
    parts.append(given)
    if len(parts) == {KILLED_PARTS}:
        os.kill(os.getpid(), signal.SIGKILL)

DiskMemory.gather_bytes = {PART_BYTES}
TaskState.restore = restore_some
main(*sys.argv[1:])
"""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """A log with an application that has counted and lost its disk."""
    with embedded(tmp_path / "data") as opened:
        opened.admin().ensure_topic("in", partitions=PARTITIONS)
        with running(passing_on(), opened, tmp_path / "lost") as engine:
            for number, keys in enumerate(ROUNDS, 1):
                send(opened, keys)
                until(lambda wanted=number: len(read(opened, "out")) >= wanted * len(ROUNDS[0]), engine)
        shutil.rmtree(tmp_path / "lost")
        yield opened


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Restore in small parts; the sizes of those so far."""
    sizes: list[int] = []
    restore = TaskState.restore

    def noted(self: TaskState, store: Store, chunk: Chunk, checkpoint: Checkpoint) -> None:
        sizes.append(len(chunk))
        restore(self, store, chunk, checkpoint)

    monkeypatch.setattr(DiskMemory, "gather_bytes", PART_BYTES)
    monkeypatch.setattr(TaskState, "restore", noted)
    return sizes


def send(log: Log, keys: list[bytes]) -> None:
    write(log, "in", [(key, b"v", n) for n, key in enumerate(keys)])


def counts(log: Log) -> Counter[Any]:
    return Counter((record.key, msgspec.json.decode(record.value or b"")["count"]) for record in read(log, "out"))


def check_state(log: Log, engine: Engine) -> None:
    """Check the stores, then that counting goes on from them."""
    expected = Counter(key for keys in ROUNDS for key in keys)
    until(lambda: engine.status().tasks and engine.status().lag_records == 0, engine)
    found = {key: entry.state[0] for key, entry in engine.store("counts").range() if entry.state}
    assert found == expected
    send(log, ROUNDS[0])
    until(lambda: len(read(log, "out")) >= 4 * len(ROUNDS[0]), engine)
    expected += Counter(ROUNDS[0])
    assert counts(log) == Counter((key, n) for key, total in expected.items() for n in range(1, total + 1))


def test_state_that_is_restored_in_parts_is_what_it_was(log: Log, tmp_path: Path, parts: list[int]) -> None:
    with running(passing_on(), log, tmp_path / "state") as engine:
        check_state(log, engine)
    assert sum(parts) == RECORDS


def test_a_kill_in_the_midst_loses_no_part_and_takes_up_where_the_last_one_ended(
    log: Log, tmp_path: Path, parts: list[int]
) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "data"), str(tmp_path / "state")]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with running(passing_on(), log, tmp_path / "state") as engine:
        check_state(log, engine)
    assert 0 < sum(parts) < RECORDS


def test_a_restore_that_an_open_transaction_holds_back_says_so(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(restore, "_REPORT_EVERY_S", 0.05)
    monkeypatch.setattr(restore, "_WAITS_S", 0.2)
    topic = "passing-counts-changelog"
    producer = log.producer(transactional_id="lost")
    producer.init_transactions(transaction_timeout_ms=600_000)
    producer.begin_transaction()
    producer.send(topic, b"never committed", key=b"lost", partition=1)
    producer.flush()
    with running(passing_on(), log, tmp_path / "state") as engine:
        until(lambda: f"of {topic}-1: an open transaction holds back" in caplog.text, engine)
        assert "logflume txn hanging" in caplog.text
        producer.abort_transaction()
        check_state(log, engine)
    producer.close()
