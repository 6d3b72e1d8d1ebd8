"""The state directory of one instance of an application: lock, identity, and where each task's database lies.

<state_dir>/<application>/lock            held while an engine runs on it
<state_dir>/<application>/instance.json   format, application, instance id
<state_dir>/<application>/progress.json   how far its tasks had come (`progress.py`)
<state_dir>/<application>/<sub-topology>.<partition>/   RocksDB
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from pathlib import Path
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec

from logflume.log import DataDirLocked, InvalidInput, StorageError

from .progress import Progress

DIRECTORY_FORMAT = 1
_MAX_INSTANCES = 64
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


class Identity(msgspec.Struct, frozen=True):
    """The content of instance.json. `instance_id` makes a restart the same group member and the same transactional id."""

    format: int
    application: str
    instance_id: str


_decode_identity = msgspec.json.Decoder(Identity).decode


class StateDirectory:
    """Holds the lock from construction to `close`."""

    def __init__(self, root: Path, application: str, *, host: str) -> None:
        """Create or open. The id of a new one follows from its path and `host`, so that a lost directory comes back as the same.

        Raises:
            DataDirLocked: all numbers are taken by running instances.
            InvalidInput: the name cannot be a directory, or the directory is another application's or a newer logflume's.
        """
        if not _NAME.fullmatch(application) or application in (".", ".."):
            raise InvalidInput(f"application name {application!r} must be 1 to 200 letters, digits, '.', '_' or '-'")
        self._lock = -1
        for number in range(_MAX_INSTANCES):
            self.path = root / application / str(number)
            self._lock = _try_lock(self.path)
            if self._lock >= 0:
                break
        else:
            raise DataDirLocked(
                f"{_MAX_INSTANCES} instances of {application!r} run in {root}; choose another state_dir for this one"
            )
        try:
            self.identity = self._identity(application, host)
        except BaseException:
            os.close(self._lock)
            raise
        self.progress = Progress(self.path / "progress.json")

    @property
    def instance_id(self) -> str:
        return self.identity.instance_id

    def task_path(self, task: str) -> Path:
        """Return where a task's database lies."""
        assert _NAME.fullmatch(task), task
        return self.path / task

    def tasks(self) -> list[str]:
        """Return the tasks that have a database here."""
        return sorted(entry.name for entry in self.path.iterdir() if entry.is_dir())

    def wipe(self, task: str) -> None:
        """Delete a task's database (it is rebuilt from the changelog)."""
        shutil.rmtree(self.task_path(task), ignore_errors=True)
        self.progress.forget(task)

    def close(self) -> None:
        """Release the lock. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def renew(self, new_id: UUID) -> None:
        """Take another instance id: a copy of this directory, or one of the same path and host name, has it too."""
        self.identity = Identity(DIRECTORY_FORMAT, self.identity.application, new_id.hex[:12])
        if os.fstat(self._lock).st_ino == (self.path / "lock").stat().st_ino:
            self._write(self.identity)

    def _write(self, identity: Identity) -> None:
        partial = self.path / "instance.json.partial"
        with partial.open("wb") as out:
            out.write(msgspec.json.encode(identity))
            out.flush()
            os.fsync(out.fileno())
        partial.rename(self.path / "instance.json")

    def _identity(self, application: str, host: str) -> Identity:
        file = self.path / "instance.json"
        if not file.exists():
            place = uuid5(NAMESPACE_URL, f"file://{host}{self.path.resolve()}")
            identity = Identity(DIRECTORY_FORMAT, application, place.hex[:12])
            self._write(identity)
            return identity
        try:
            found = _decode_identity(file.read_bytes())
        except msgspec.MsgspecError as error:
            raise InvalidInput(f"{file} is not what logflume wrote ({error}); choose another state_dir") from error
        if found.format != DIRECTORY_FORMAT:
            raise InvalidInput(
                f"{file} has format {found.format}, this logflume reads {DIRECTORY_FORMAT}: use the version that wrote it"
            )
        if found.application != application:
            raise InvalidInput(
                f"{self.path} belongs to application {found.application!r}, not {application!r}; choose another state_dir"
            )
        return found


def _try_lock(path: Path) -> int:
    """Return the descriptor of the lock, -1 when another process holds it."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError(f"cannot use {path} for state: {error.strerror}; choose a state_dir that can be written") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return -1
    return lock
