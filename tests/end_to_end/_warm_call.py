"""Asks the process of `_warm.py` for a fork that runs a command, and waits for it; as a script it is `logflume` for a shell.

It loads next to nothing, as it is itself started each time.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import sys


def call(path: str, args: list[str], files: dict[int, int], *, timeout_s: float | None = None) -> int:
    """Run a command here and in this environment; return its exit code, -N after signal N.

    `files`: its open files, the standard streams among them, each with the descriptor here that it is.

    Raises:
        TimeoutError: it was killed, as it took too long.
    """
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(path)
        asked = json.dumps({"args": args, "files": list(files), "cwd": os.getcwd(), "env": dict(os.environ)}).encode()
        socket.send_fds(peer, [struct.pack(">I", len(asked))], list(files.values()))
        peer.sendall(asked)
        if timeout_s is None:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda number, _: peer.sendall(bytes([number])))
        peer.settimeout(timeout_s)
        answer = peer.recv(4)
        assert len(answer) == 4, "the process that commands are forked of is gone"
        return int(struct.unpack(">i", answer)[0])


if __name__ == "__main__":
    substituted = [int(number) for each in sys.argv[2:] for number in re.findall(r"/dev/fd/(\d+)", each)]  # of `<(...)`
    code = call(sys.argv[1], sys.argv[2:], {number: number for number in (0, 1, 2, *substituted)})
    raise SystemExit(code if code >= 0 else 128 - code)
