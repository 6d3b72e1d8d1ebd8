"""A driver of SQL's queries on Spark, beside a test or in a process of its own; its micro-batches run there, without Spark."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from logflume.log import Log, connect
from logflume.sql.on_spark import RunQuery, drive_queries
from logflume.streams.functions import Library
from logflume.streams.runtime import EngineOptions
from logflume.streams.seams import Plan
from logflume.streams.spark import BatchDone, LocalRunner
from logflume.streams.spark.batches import Batches, open_batches
from logflume.streams.spark.continuous import keep_on


def in_this_process(log: Log, failpoint: Callable[[str], None] = lambda _: None) -> RunQuery:
    """Return what runs micro-batches without Spark."""

    def run(
        load_plan: Callable[[], Plan],
        state_root: Path,
        stopping: threading.Event,
        on_batch: Callable[[BatchDone], None],
        dead_letter_topic: str | None,
    ) -> None:
        def take(batches: Batches) -> None:
            while not stopping.wait(0.01):
                done = batches.step()
                if done is not None:
                    on_batch(done)

        settings: Any = {"settings": EngineOptions(dead_letter_topic=dead_letter_topic), "failpoint": failpoint}
        keep_on(partial(open_batches, log, load_plan, LocalRunner().run, state_root, **settings), take, stopping)

    return run


@contextmanager
def driven(
    log: Log, folder: Path, failpoint: Callable[[str], None] = lambda _: None, *, functions: Library | None = None
) -> Iterator[None]:
    """Run a driver beside."""
    stopping = threading.Event()
    work = partial(drive_queries, log.where, in_this_process(log, failpoint), stopping, state_dir=folder, functions=functions)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(60)
        assert not thread.is_alive()


@contextmanager
def driving(where: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a driver in a process of its own."""
    process = subprocess.Popen([sys.executable, "-m", __name__, where, str(folder)], stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.communicate(timeout=60)


if __name__ == "__main__":
    with connect(sys.argv[1]) as opened, driven(opened, Path(sys.argv[2])):
        sys.stdin.read()
