"""Runs the `logflume` command in real processes."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ._warm import warm_socket
from ._warm_call import call

LOGFLUME = [sys.executable, "-m", "logflume"]
LOOK_EVERY_S = 0.1
"""Where a look is a command: it should not take the time of what is waited for."""


def free_port() -> int:
    """Return a loopback port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(*args: str, stdin: str = "", code: int = 0, timeout_s: float = 90) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own (`_warm.py`); it must end with the exit code."""
    with tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        given.write(stdin)
        given.seek(0)
        files = {0: given.fileno(), 1: out.fileno(), 2: err.fileno()}
        returned = call(warm_socket(), list(args), files, timeout_s=timeout_s)
        out.seek(0)
        err.seek(0)
        done = subprocess.CompletedProcess(args, returned, out.read(), err.read())
    assert done.returncode == code, done.stdout + done.stderr
    return done


def run_cold(*args: str, stdin: str = "", code: int = 0, timeout_s: float = 90) -> subprocess.CompletedProcess[str]:
    """Run a command as `run` does, in a process that loads all it needs itself."""
    done = subprocess.run([*LOGFLUME, *args], input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@contextmanager
def serving(
    data: Path, *options: str, folder: Path | None = None, command: Sequence[str] = LOGFLUME
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run `logflume serve`; give its address and process once it is ready; it must end cleanly.

    Several run at once in the tests, so a registry and a SQL server, whose ports are fixed by default, are there only when
    `options` ask for them. `folder`: where it runs, unless it is here. `command`: of another environment.
    """
    address = f"127.0.0.1:{free_port()}"
    options = options if "--registry" in options else ("--registry", "off", *options)
    options = options if "--sql" in options else ("--sql", "off", *options)
    argv = [*command, "serve", "--data", str(data), "--listen", address, *options]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder)
    try:
        read_until(process, "ready; Ctrl-C stops")
        yield address, process
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """Return the first line of the output that holds these words."""
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return line
    raise AssertionError(f"the process ended without saying {words!r}")


def wait_until(condition: Callable[[], object], *, timeout_s: float = 60) -> None:
    """Return when the condition is true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
