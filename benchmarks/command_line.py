"""How long a user waits for the command line: `python -m benchmarks.command_line`."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

from logflume.cli import COMMANDS

from ._report import Figure, main

TRIES = 10
HELP_TRIES = 5
MAX_IMPORT_S = 0.25


def best_s(*args: str, tries: int = TRIES, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the least that one of several runs of `logflume ARGS` took, in seconds of the clock."""
    times = []
    for _ in range(tries):
        started = clock()
        subprocess.run([sys.executable, "-m", "logflume", *args], check=True, capture_output=True)
        times.append(clock() - started)
    return min(times)


def cpu_of_children_s() -> float:
    """Return the CPU seconds of all processes that have ended: what the import of a command takes, whatever else runs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure_help() -> Iterator[Figure]:
    """The overview, and the help of a command with all its options."""
    yield Figure("logflume --help", best_s("--help"), "s", 0.2, is_upper=True)
    yield Figure("logflume topic create --help", best_s("topic", "create", "--help"), "s")


def measure_imports() -> Iterator[Figure]:
    """What each command imports, with Python itself."""
    for command in COMMANDS:
        used_s = best_s(command, "--help", tries=HELP_TRIES, clock=cpu_of_children_s)
        yield Figure(f"logflume {command} --help", used_s, "s CPU", MAX_IMPORT_S, is_upper=True)


def measure_embedded() -> Iterator[Figure]:
    """A command that opens a log in its own process, and closes it."""
    with tempfile.TemporaryDirectory() as folder:
        run = ("topic", "list", "--data", f"{folder}/data")
        subprocess.run([sys.executable, "-m", "logflume", "topic", "create", "words", "--data", f"{folder}/data"], check=True)
        yield Figure("logflume topic list, embedded log", best_s(*run), "s")
        yield Figure("logflume topic list, embedded log", best_s(*run, clock=cpu_of_children_s), "s CPU")


if __name__ == "__main__":
    main(measure_help, measure_imports, measure_embedded)
