"""How long a user waits for the command line: `python -m benchmarks.command_line`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from ._report import Figure, main

TRIES = 10


def best_s(*args: str) -> float:
    """Return the shortest of several runs of `logflume ARGS`, in seconds."""
    times = []
    for _ in range(TRIES):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "logflume", *args], check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    return min(times)


def measure_help() -> Iterator[Figure]:
    """The overview, and the help of a command with all its options."""
    yield Figure("logflume --help", best_s("--help"), "s", 0.2, is_upper=True)
    yield Figure("logflume topic create --help", best_s("topic", "create", "--help"), "s")


def measure_embedded() -> Iterator[Figure]:
    """A command that opens a log in its own process, and closes it."""
    with tempfile.TemporaryDirectory() as folder:
        yield Figure("logflume topic list, embedded log", best_s("topic", "list", "--data", f"{folder}/data"), "s")


if __name__ == "__main__":
    main(measure_help, measure_embedded)
