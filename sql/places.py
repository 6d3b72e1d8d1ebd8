"""Where the SQL engine keeps what is not in the log: the state of its queries, and the sockets of its workers."""

from __future__ import annotations

import hashlib
import os
import tempfile
from enum import StrEnum
from pathlib import Path

from logflume.log import local_data
from logflume.log.interfaces import Log

MAX_SOCKET_PATH_BYTES = 107


class Role(StrEnum):
    """Why a process runs queries: it is there for that, or nobody else is; or it is there for those on Spark."""

    WORKER = "pull"
    GUEST = "guest"
    DRIVER = "spark"


def default_state_dir(where: str) -> Path:
    """Return where queries started from here keep their state: in the data directory, or per server below the home directory."""
    if "/" in where or where.startswith((".", "~")):
        return Path(where).expanduser() / "engine" / "sql"
    name = "".join(ch if ch.isalnum() or ch in ".-" else "_" for ch in where)
    return Path.home() / ".local" / "share" / "logflume" / name / "sql"


def socket_stem(log: Log, service: str, role: Role = Role.WORKER) -> Path:
    """Return what the paths of the Unix sockets of a service's workers (or others) begin with; `-<process id>.sock` follows.

    They are in the data directory, which is its owner's alone; of a log elsewhere, below the home directory. Where that is too
    long for a socket, they are among temporary files under a name that says whose they are.
    """
    local = local_data(log)
    folder = local.directory / "engine" if local else default_state_dir(log.where).parent
    stem = folder / f"{service}-{role}"
    if len(os.fsencode(stem)) + len("-4194304.sock") <= MAX_SOCKET_PATH_BYTES:
        return stem
    name = hashlib.sha256(os.fsencode(stem)).hexdigest()[:24]
    return Path(tempfile.gettempdir()) / f"logflume-{os.getuid()}-{name}"
