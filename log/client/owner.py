"""Reaching a log as the owner of its data: through the Unix socket in a data directory of this machine and this user.

What only the owner may do (`log/broker/security/internal_topics.py`) then works without a password, and ACLs lock nobody out of
his own data.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from logflume.log import interfaces
from logflume.log.errors import LogflumeError

from .log import Log, connect
from .where import UNIX_PREFIX, parse_where


@dataclass(frozen=True, slots=True)
class LocalData:
    """A data directory on this machine that its broker has open, and this user's.

    `address`: its Unix socket, as `connect` takes it.
    """

    directory: Path
    address: str


def local_data(log: interfaces.Log) -> LocalData | None:
    """Return where the data of a log is, None if it is not on this machine, not this user's, or not told.

    What the broker tells is not believed: the directory must be held by a broker of the same cluster, and belong to this user.
    """
    from logflume.log.storage import DataDir

    try:
        told = log.admin().request("DescribeLogDirs", topics=[]).results
        cluster_id = log.admin().request("Metadata", topics=[]).cluster_id
    except LogflumeError:
        return None
    for each in told:
        try:
            holder = DataDir.holder(each.log_dir) if _is_own(each.log_dir) else None
            if holder is None or not holder.address.startswith(UNIX_PREFIX):
                continue
            is_same = DataDir.identity(each.log_dir).get("cluster.id") == cluster_id
            if is_same and _is_own(holder.address.removeprefix(UNIX_PREFIX)):
                return LocalData(Path(each.log_dir), holder.address)
        except LogflumeError:
            continue
    return None


def connect_as_owner(where: str, *, client_id: str = "logflume") -> Log:
    """`connect`, as the owner of the data where this user is that: by the broker's Unix socket, also if an address is given.

    Raises as `connect`.
    """
    log = connect(where, client_id=client_id)
    if isinstance(parse_where(where), Path) or where.startswith(UNIX_PREFIX):
        return log
    found = local_data(log)
    if found is None:
        return log
    try:
        owner = connect(found.address, client_id=client_id)
    except LogflumeError:
        return log
    log.close()
    return owner


def _is_own(path: str) -> bool:
    """Whether a directory or socket belongs to this user."""
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        return False
    return found.st_uid == os.geteuid() and (stat.S_ISDIR(found.st_mode) or stat.S_ISSOCK(found.st_mode))
