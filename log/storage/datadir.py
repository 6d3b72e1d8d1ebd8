"""A data directory: one holder at a time, its identity, and the partitions in it (architecture, D3).

<data dir>/.lock               held by flock while open, also by children that write to it; its text names the holder
<data dir>/meta.properties     version, cluster.id, node.id, and a checksum over them
<data dir>/<topic>-<partition> one log each; `<the first of that>.<32 hex digits>-delete` once given up

It and what is in it are its owner's alone (mode 0700): it holds what ACLs keep from others.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import NamedTuple

from crc32c import crc32c

from logflume.log.children import kill_orphans
from logflume.log.errors import CorruptLog, DataDirLocked, StorageError

from .checkpoint import FILE_NAME as CHECKPOINT_FILE
from .checkpoint import unpack_checkpoint
from .config import LogConfig
from .disk import Disk, OsDisk, storage_error, write_atomically
from .opening import METADATA_FILE, open_log, topic_id_of
from .partition import PartitionLog
from .statefiles import EPOCHS_FILE

META_FILE = "meta.properties"
LOCK_FILE = ".lock"
VERSION = 1
CHECKSUM = "crc32c"
LOCK_WAIT_S, _LOCK_POLL_S = 10.0, 0.02
"""How long the lock of a process that died is waited for: its children, which inherited it, are about to end, or are ended."""
BEGIN_EMPTY = "begin-empty"
"""A file that an operator puts into a partition's directory to say that its records are given up."""
_NAME_MAX_BYTES = 255
_LOG_FILES = frozenset((METADATA_FILE, CHECKPOINT_FILE, EPOCHS_FILE))
_LOG_DIRECTORY = re.compile(r"([A-Za-z0-9._-]{1,249})-(0|[1-9][0-9]{0,8})")
_DELETED = re.compile(r".*\.[0-9a-f]{32}-delete")
_log = logging.getLogger("logflume.storage")
_HARMLESS = frozenset((LOCK_FILE, "lost+found", META_FILE + ".tmp"))


class Holder(NamedTuple):
    """Who holds a data directory: process id, and where it listens (Unix socket path or host:port, "" if it does not)."""

    pid: int
    address: str


class DataDir:
    """An open data directory. Context manager. Made by `DataDir.open`.

    Invariant: while it exists this process holds the lock.
    """

    def __init__(self, path: str, disk: Disk, lock_fd: int, *, cluster_id: str, node_id: int) -> None:
        self.path = path
        self.cluster_id = cluster_id
        self.node_id = node_id
        self._disk = disk
        self._lock_fd = lock_fd

    @classmethod
    def open(cls, path: str, *, disk: Disk, address: str = "", cluster_id: str | None = None, node_id: int = 1) -> DataDir:
        """Lock the directory (made if missing) and read or write its identity.

        Raises:
            DataDirLocked: another process holds it; the message and `DataDir.holder` say which and where it listens.
            StorageError: of a newer version, of another cluster or node, or not a logflume directory (and not empty).
        """
        path = os.path.abspath(path)
        _make_dir_durably(disk, path)
        _refuse_foreign(disk, path)
        _make_private(path)
        lock_fd = _lock(path)
        try:
            _write_holder(lock_fd, address)
            properties = _read_meta(disk, path)
            if properties is None:
                properties = _create_meta(disk, path, cluster_id, node_id)
            _check_meta(path, properties, cluster_id, node_id)
            _remove_deleted(disk, path)
        except BaseException:
            os.close(lock_fd)
            raise
        return cls(path, disk, lock_fd, cluster_id=properties["cluster.id"], node_id=int(properties["node.id"]))

    @staticmethod
    def holder(path: str) -> Holder | None:
        """Return who holds the directory now, None if nobody does."""
        try:
            fd = os.open(os.path.join(path, LOCK_FILE), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error("open", os.path.join(path, LOCK_FILE), error) from error
        try:
            return None if _try_lock(fd) else _read_holder(fd)
        finally:
            os.close(fd)

    @staticmethod
    def identity(path: str) -> Mapping[str, str]:
        """Return what a directory says of itself without locking it: `cluster.id` and `node.id`; {} if it says nothing."""
        return _read_meta(OsDisk(), os.path.abspath(path)) or {}

    @property
    def lock_fd(self) -> int:
        """The lock file: a child that inherits it holds the directory as long as it lives."""
        return self._lock_fd

    def set_address(self, address: str) -> None:
        """Tell others where the holder listens (written to the lock file)."""
        _write_holder(self._lock_fd, address)

    def partitions(self) -> dict[tuple[str, int], str]:
        """Return (topic, partition) -> directory for every directory that has the name of a log."""
        found = {}
        for name in self._disk.list(self.path):
            match = _LOG_DIRECTORY.fullmatch(name)
            if match and self._disk.is_dir(f"{self.path}/{name}"):
                found[match[1], int(match[2])] = f"{self.path}/{name}"
        return found

    def open_partition(
        self, topic: str, partition: int, *, topic_id: str | None, config: LogConfig, now_ms: int, is_new: bool
    ) -> PartitionLog:
        """Open the log of a partition; a new one is made durably (directory fsync).

        Raises:
            CorruptLog: not new, and there is no log; or as `open_log`.
            StorageError: new, and there is a log with records; or as `open_log`.
        """
        directory = self._directory(topic, partition)
        if is_new:
            self._make_way(directory)
        else:
            self._require_log(directory)
        return open_log(directory, disk=self._disk, config=config, now_ms=now_ms, topic_id=topic_id)

    def _make_way(self, directory: str) -> None:
        """Remove what an unfinished creation left where a new log is to be."""
        if holds_records(self._disk, directory):
            raise StorageError(f"{directory}: expected no log where a new one is to begin, found records; move it out of the way")
        if self._disk.is_dir(directory):
            self._delete(directory)

    def _require_log(self, directory: str) -> None:
        """Raise CorruptLog unless there is a log, or somebody said that it is to begin anew."""
        names = self._disk.list(directory)
        if any(name.endswith(".log") for name in names):
            return
        if BEGIN_EMPTY in names:
            self._disk.remove(f"{directory}/{BEGIN_EMPTY}")
            return
        found = "no segment in it" if self._disk.is_dir(directory) else "no such directory"
        raise CorruptLog(
            f"{directory}: expected the log of a partition, found {found}: its records are missing; restore the directory from a "
            f"copy; or give the records up: delete the topic, or put an empty file {BEGIN_EMPTY} into the directory"
        )

    def delete_partition(self, log: PartitionLog) -> None:
        """Close the log without a checkpoint, rename its directory durably, then remove it."""
        log.abandon()
        self._delete(log.directory)

    def delete_directory(self, topic: str, partition: int, *, topic_id: str) -> None:
        """Delete the log of a partition that is not open; nothing if there is none, or one of another topic id."""
        directory = self._directory(topic, partition)
        if self._disk.is_dir(directory) and topic_id_of(self._disk, directory) in (None, topic_id):
            self._delete(directory)

    def holds_records(self, topic: str, partition: int) -> bool:
        """Say whether there is a log with records, now or before they were deleted."""
        return holds_records(self._disk, self._directory(topic, partition))

    def remove_unfinished(self, topic: str, partition: int) -> bool:
        """Remove an empty log; False if it is not a log at all, which stays. Raises StorageError."""
        directory = self._directory(topic, partition)
        names = [name for name in self._disk.list(directory) if not name.endswith(".tmp")]
        if any(name not in _LOG_FILES and not name.endswith((".log", ".snapshot", "index")) for name in names):
            return False
        self._delete(directory)
        return True

    def _directory(self, topic: str, partition: int) -> str:
        return f"{self.path}/{topic}-{partition}"

    def _delete(self, directory: str) -> None:
        suffix = f".{uuid.uuid4().hex}-delete"
        name = os.path.basename(directory)[: _NAME_MAX_BYTES - len(suffix)]
        doomed = f"{self.path}/{name}{suffix}"
        self._disk.rename(directory, doomed)
        self._disk.fsync_dir(self.path)
        self._disk.remove_tree(doomed)

    def close(self) -> None:
        """Give up the lock. Partitions are closed by their users. Idempotent."""
        fd, self._lock_fd = self._lock_fd, -1
        if fd >= 0:
            os.ftruncate(fd, 0)
            os.close(fd)

    def __enter__(self) -> DataDir:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def holds_records(disk: Disk, directory: str) -> bool:
    """Say whether a directory holds a log that has, or had, records; one that cannot be read is taken to."""
    if any(name.endswith(".log") and disk.size(f"{directory}/{name}") > 0 for name in disk.list(directory)):
        return True
    path = f"{directory}/{CHECKPOINT_FILE}"
    try:
        checkpoint = unpack_checkpoint(disk.read_file(path), path)
    except StorageError:
        return True
    return checkpoint is not None and checkpoint.recovery_point > 0


def _remove_deleted(disk: Disk, path: str) -> None:
    """Remove what was given up; what cannot be removed stays until the next start."""
    for name in disk.list(path):
        if _DELETED.fullmatch(name) and disk.is_dir(f"{path}/{name}"):
            try:
                disk.remove_tree(f"{path}/{name}")
            except StorageError as error:
                _log.error("a deleted log stays for now: %s", error)


def _make_dir_durably(disk: Disk, path: str) -> None:
    """Make the directory and what is missing above it, and make those names durable: a lost name loses all that is below."""
    missing = []
    above = path
    while not disk.is_dir(above) and os.path.dirname(above) != above:
        missing.append(above)
        above = os.path.dirname(above)
    disk.make_dir(path)
    for made in missing:
        disk.fsync_dir(os.path.dirname(made))


def _make_private(path: str) -> None:
    """Take the directory's rights away from everybody but its owner; say so where that cannot be done."""
    try:
        mode = os.stat(path).st_mode
        if mode & 0o077:
            os.chmod(path, mode & 0o700)
    except OSError as error:
        _log.warning("%s is open to other users of this machine and cannot be closed to them: %s", path, error.strerror)


def _lock(path: str) -> int:
    lock_path = os.path.join(path, LOCK_FILE)
    try:
        fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise storage_error("open", lock_path, error) from error
    end_s = time.monotonic() + LOCK_WAIT_S
    while not _try_lock(fd):
        holder = _read_holder(fd)
        if time.monotonic() < end_s and not _is_running(holder.pid):
            kill_orphans(holder.pid, lock_path)
            time.sleep(_LOCK_POLL_S)
            continue
        os.close(fd)
        raise DataDirLocked(_why_locked(path, holder))
    return fd


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_running(pid: int) -> bool:
    """Say whether there is such a process; True if that cannot be told.

    One that has ended, but whose parent has not asked for its end yet, is not running: it has let go of its files.
    """
    if pid <= 0:
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Linux only. A process of which only the first thread has ended runs on, and has others."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0]
        return state in (b"Z", b"X") and len(os.listdir(f"/proc/{pid}/task")) <= 1
    except (OSError, IndexError):
        return False


def _why_locked(path: str, holder: Holder) -> str:
    if not _is_running(holder.pid):
        return f"{path} is in use by a child of process {holder.pid}, which has ended; end that child"
    where = f", which listens at {holder.address}" if holder.address else ""
    return f"{path} is in use by process {holder.pid}{where}; connect to that, stop it, or use another directory"


def _write_holder(fd: int, address: str) -> None:
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n{address}\n".encode(), 0)


def _read_holder(fd: int) -> Holder:
    pid, _, address = os.pread(fd, 4096, 0).decode(errors="replace").partition("\n")
    return Holder(int(pid) if pid.isdigit() else -1, address.strip())


def _read_meta(disk: Disk, path: str) -> dict[str, str] | None:
    content = disk.read_file(f"{path}/{META_FILE}")
    if content is None:
        return None
    lines = [line for line in content.decode(errors="replace").splitlines() if line.strip() and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _refuse_foreign(disk: Disk, path: str) -> None:
    """Refuse, before anything is written, a directory that holds other things and no identity."""
    names = disk.list(path)
    foreign = [name for name in names if name not in _HARMLESS]
    if foreign and META_FILE not in names:
        raise StorageError(
            f"{path} is not a logflume data directory (no {META_FILE}) and is not empty (found {foreign[0]!r}); "
            "use an empty or new directory"
        )


def _create_meta(disk: Disk, path: str, cluster_id: str | None, node_id: int) -> dict[str, str]:
    properties = {
        "version": str(VERSION),
        "cluster.id": cluster_id or urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode(),
        "node.id": str(node_id),
    }
    properties[CHECKSUM] = _checksum(properties)
    content = "# logflume\n" + "".join(f"{key}={value}\n" for key, value in properties.items())
    write_atomically(disk, f"{path}/{META_FILE}", content.encode())
    return properties


def _checksum(properties: Mapping[str, str]) -> str:
    """Return the CRC-32C of all properties but the checksum itself, in one fixed form, as hex."""
    content = sorted(item for item in properties.items() if item[0] != CHECKSUM)
    return f"{crc32c(repr(content).encode()):08x}"


def _check_meta(path: str, properties: dict[str, str], cluster_id: str | None, node_id: int) -> None:
    for key in ("version", "cluster.id", "node.id"):
        if key not in properties or (key != "cluster.id" and not properties[key].isdigit()):
            raise StorageError(f"{path}/{META_FILE}: expected a value for {key}; restore this file from a copy")
    if int(properties["version"]) > VERSION:
        raise StorageError(
            f"{path} was written by a newer version of logflume (format {properties['version']}, this one knows {VERSION}); "
            "upgrade logflume"
        )
    if properties.get(CHECKSUM) != _checksum(properties):
        raise StorageError(
            f"{path}/{META_FILE} is damaged: expected the {CHECKSUM} {_checksum(properties)}, found {properties.get(CHECKSUM)}; "
            "restore this file from a copy"
        )
    if cluster_id is not None and properties["cluster.id"] != cluster_id:
        raise StorageError(f"{path} belongs to cluster {properties['cluster.id']}, not {cluster_id}; use the right directory")
    if int(properties["node.id"]) != node_id:
        raise StorageError(f"{path} belongs to node {properties['node.id']}, not {node_id}; use the right directory or node id")
