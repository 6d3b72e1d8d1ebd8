"""Processes of the `logflume` command that need not load anything first: forks of one that has loaded it all.

Some hundred commands of the tests are as many processes, each with its own arguments, directory, environment, files and exit
code, as a shell would start them; only what Python loads for them is loaded once. `test_start_up.py` sees what a cold start
loads.

`python _warm.py SOCKET` is that one process; `_warm_call.py` is what a shell calls: signals go on to the fork, and when the
caller is gone the fork is killed.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CALL = Path(__file__).with_name("_warm_call.py")
MAX_FILES = 32
MODULES = (
    "logflume.cli.backfill", "logflume.cli.common", "logflume.cli.connect", "logflume.cli.consume", "logflume.cli.produce",
    "logflume.cli.run", "logflume.cli.schema", "logflume.cli.secure", "logflume.cli.sql", "logflume.cli.topic",
    "logflume.connect", "logflume.connect.connectors.file_source", "logflume.log.access", "logflume.log.batch.columns",
    "logflume.log.client.probe", "logflume.log.operations", "logflume.log.registry.client", "logflume.log.server.embedded",
    "logflume.sql.batch", "logflume.sql.rest", "logflume.streams.runtime",
)  # fmt: skip


@functools.cache
def warm_socket() -> str:
    """Return where the one process listens; it is started when it is first asked for, and ends with this one."""
    folder = tempfile.TemporaryDirectory(prefix="warm-")
    path = f"{folder.name}/socket"
    process = subprocess.Popen([sys.executable, __file__, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(5) == b"ready"
    atexit.register(folder.cleanup)
    atexit.register(process.kill)
    return path


@functools.cache
def warm_commands() -> Path:
    """Return a folder for PATH whose `logflume` is such a fork."""
    command = Path(warm_socket()).parent / "logflume"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {CALL} {warm_socket()} "$@"\n')
    command.chmod(0o755)
    return command.parent


def serve(path: str) -> None:
    """Fork a command for each that asks, until standard input ends; in a fork, run it and end the process."""
    for module in MODULES:
        importlib.import_module(module)
    wake, signalled = socket.socketpair()
    for end in (wake, signalled):
        end.setblocking(False)
    signal.set_wakeup_fd(signalled.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: those who asked pass theirs on
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    os.write(1, b"ready")
    running: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        for file in (listener, wake, sys.stdin):
            selector.register(file, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    return
                if key.fileobj is wake:
                    wake.recv(4096)
                    _tell_ends(running, selector)
                elif key.fileobj is listener:
                    peer, _ = listener.accept()
                    pid = _forked(peer)
                    running[pid] = peer
                    selector.register(peer, selectors.EVENT_READ, pid)
                elif key.data in running:
                    _pass_on(key, selector)


def _forked(peer: socket.socket) -> int:
    """Take a command and fork: return the fork's id here; in the fork run the command, then end."""
    head, files, _, _ = socket.recv_fds(peer, 4, MAX_FILES)
    (size,) = struct.unpack(">I", head)
    asked = b""
    while len(asked) < size:
        asked += peer.recv(size - len(asked))
    pid = os.fork()
    if pid == 0:
        raise SystemExit(_run_as(json.loads(asked), files))
    for file in files:
        os.close(file)
    return pid


def _run_as(asked: dict[str, Any], files: list[int]) -> int:
    """Be the process that was asked for, to its exit code."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in zip(asked["files"], files, strict=True):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115 as long as it runs
    sys.argv = ["logflume", *asked["args"]]
    from logflume.cli import main

    return main()


def _tell_ends(running: dict[int, socket.socket], selector: selectors.BaseSelector) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        peer = running.pop(pid)
        if peer in selector.get_map():
            selector.unregister(peer)
        with peer:
            try:
                peer.sendall(struct.pack(">i", os.waitstatus_to_exitcode(status)))
            except OSError:
                continue  # who asked is gone


def _pass_on(key: selectors.SelectorKey, selector: selectors.BaseSelector) -> None:
    """Send the fork the signals that its caller was sent; kill it when the caller is gone."""
    peer = key.fileobj
    assert isinstance(peer, socket.socket)
    try:
        numbers = peer.recv(16)
    except OSError:
        numbers = b""
    for number in numbers or bytes([signal.SIGKILL]):
        os.kill(key.data, number)  # it is not yet waited for: `_tell_ends` takes it from the selector then
    if not numbers:
        selector.unregister(peer)


if __name__ == "__main__":
    serve(sys.argv[1])
