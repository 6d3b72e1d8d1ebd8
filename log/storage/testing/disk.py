"""A simulated disk with a volatile cache: `crash` keeps what was fsynced, and of the rest what chance leaves.

Faults it knows: content that was not synced is lost from some write on, that write torn or filled with zeros; names that were
not synced (created, renamed, removed) each keep the old or the new state; a power cut at the n-th operation; errors and a full
disk on demand. Writes that were not synced may reach the disk in any order; truncations keep theirs.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from logflume.log.batch.header import Buffer
from logflume.log.errors import StorageError
from logflume.log.storage.disk import storage_error

NAME_MAX_BYTES = 255
_REORDERED = 0.3


class PowerCut(BaseException):
    """The simulated machine lost power in the middle of an operation; `crash` comes next."""


@dataclass(slots=True, eq=False)
class _Inode:
    """A file's content as programs see it, what is on the platter, and the writes in between."""

    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    """Writes (position, bytes) and truncations (size, None), oldest first."""

    def apply(self, position: int, data: bytes | None) -> None:
        _apply(self.content, position, data)
        self.pending.append((position, data))

    def sync(self) -> None:
        self.synced = bytes(self.content)
        self.pending.clear()

    def survive(self, rng: random.Random) -> None:
        """Become what a crash leaves: the synced content and some of the pending writes, in order or not, one of them torn."""
        content = bytearray(self.synced)
        if len(self.pending) > 1 and rng.random() < _REORDERED and all(data is not None for _, data in self.pending):
            rng.shuffle(self.pending)
        count = rng.randint(0, len(self.pending))
        for position, data in self.pending[:count]:
            _apply(content, position, data)
        if count < len(self.pending):
            position, data = self.pending[count]
            if data is not None:
                torn = data[: rng.randint(0, len(data))]
                _apply(content, position, torn + bytes(rng.choice((0, len(data) - len(torn)))))
        self.content, self.synced = content, bytes(content)
        self.pending.clear()


def _apply(content: bytearray, position: int, data: bytes | None) -> None:
    if data is None:
        content[position:] = bytes(max(position - len(content), 0))
        return
    content.extend(bytes(max(position - len(content), 0)))
    content[position : position + len(data)] = data


def _check_name(path: str) -> None:
    """Refuse what the file systems of operating systems refuse."""
    if len(path.rpartition("/")[2].encode()) > NAME_MAX_BYTES:
        raise storage_error("make", path, OSError(errno.ENAMETOOLONG, "File name too long"))


def _move(names: dict[str, _Inode | None], source: str, target: str) -> None:
    """Rename a file, or a directory with all that is in it."""
    for path in [path for path in names if path == source or path.startswith(source + "/")]:
        names[target + path[len(source) :]] = names.pop(path)


class SimulatedFile:
    """An open file of a `SimulatedDisk`."""

    def __init__(self, disk: SimulatedDisk, path: str, inode: _Inode) -> None:
        self._disk, self._path, self._inode = disk, path, inode

    @property
    def path(self) -> str:
        return self._path

    def fileno(self) -> int:
        return -1

    def size(self) -> int:
        return len(self._inode.content)

    def read(self, position: int, size_bytes: int) -> bytes:
        return bytes(self._inode.content[position : position + size_bytes])

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        free_bytes = self._disk.capacity_bytes - self._disk.used_bytes()
        growth = max(position + len(data) - len(self._inode.content), 0)
        if growth > free_bytes:
            self._inode.apply(position, data[: len(data) - growth + max(free_bytes, 0)])
            raise storage_error("write to", self._path, OSError(errno.ENOSPC, "No space left on device"))
        self._disk.step("write", self._path)
        self._inode.apply(position, data)

    def truncate(self, size_bytes: int) -> None:
        self._disk.step("truncate", self._path)
        self._inode.apply(size_bytes, None)

    def sync(self) -> None:
        self._disk.step("sync", self._path)
        self._inode.sync()

    def close(self) -> None:
        return


class SimulatedDisk:
    """Implements `Disk` in memory. Names are kept flat; a directory is a name with inode None.

    Attributes:
        steps: how many changing operations were done.
        cut_at_step: raise PowerCut instead of doing that operation; -1 never.
        boots: how often it lost power.
        capacity_bytes: writes beyond it fail with "no space left".
    """

    def __init__(self) -> None:
        self.steps = 0
        self.cut_at_step = -1
        self.capacity_bytes = 1 << 40
        self.boots = 0
        self._failures: dict[str, tuple[int, str]] = {}
        self._renamed_dirs: list[tuple[str, str]] = []
        self._names: dict[str, _Inode | None] = {"/": None}
        self._synced_names: dict[str, _Inode | None] = {"/": None}

    # -- faults

    def fail(self, operation: str, error_number: int = errno.EIO, *, path: str = "") -> None:
        """Let the next `operation` (write, sync, truncate, create, rename, remove, fsync_dir) on a path with this in it fail."""
        self._failures[operation] = error_number, path

    def step(self, operation: str, path: str) -> None:
        """Count a changing operation, and fail it if that was asked for."""
        if self.steps == self.cut_at_step:
            raise PowerCut(f"{operation} {path}")
        self.steps += 1
        error_number, part = self._failures.get(operation, (0, ""))
        if error_number and part in path:
            del self._failures[operation]
            raise storage_error(operation, path, OSError(error_number, errno.errorcode[error_number]))

    def crash(self, rng: random.Random) -> None:
        """Lose power: what was not synced is lost or kept by chance."""
        self.cut_at_step = -1
        self.boots += 1
        self._failures.clear()
        for old, new in self._renamed_dirs:
            if rng.random() < 0.5:
                _move(self._synced_names, old, new)
            else:
                _move(self._names, new, old)
        self._renamed_dirs.clear()
        survivors: dict[str, _Inode | None] = {}
        for path in {**self._synced_names, **self._names}:
            is_old, is_new = path in self._synced_names, path in self._names
            is_same = is_old and is_new and self._synced_names[path] is self._names[path]
            source = self._names if is_same or rng.random() < 0.5 else self._synced_names
            if path in source:
                survivors[path] = source[path]
        # A rename is atomic: a file that did not get its new name still has its old one.
        for path, inode in self._synced_names.items():
            if inode is not None and inode in self._names.values() and inode not in survivors.values():
                survivors[path] = inode
        for path in [path for path in survivors if not self._has_parents(path, survivors)]:
            del survivors[path]
        for inode in {id(inode): inode for inode in survivors.values() if inode is not None}.values():
            inode.survive(rng)
        self._names, self._synced_names = dict(survivors), dict(survivors)

    @staticmethod
    def _has_parents(path: str, names: dict[str, _Inode | None]) -> bool:
        while path != "/":
            path = path.rpartition("/")[0] or "/"
            if path not in names:
                return False
        return True

    def used_bytes(self) -> int:
        return sum(len(inode.content) for inode in self._names.values() if inode is not None)

    def flip_bit(self, path: str, position: int, bit: int) -> None:
        """Damage a file on the platter, unnoticed."""
        inode = self._inode(path)
        inode.content[position] ^= 1 << bit
        inode.sync()

    def cut_file(self, path: str, size_bytes: int) -> None:
        """Shorten a file on the platter, unnoticed."""
        inode = self._inode(path)
        del inode.content[size_bytes:]
        inode.sync()

    def append_bytes(self, path: str, data: bytes) -> None:
        """Lengthen a file on the platter, as an unfinished write would."""
        inode = self._inode(path)
        inode.content += data
        inode.sync()

    def snapshot(self) -> dict[str, bytes | None]:
        """Return the content of every file, None for directories."""
        return {path: None if inode is None else bytes(inode.content) for path, inode in self._names.items()}

    def restore(self, snapshot: dict[str, bytes | None]) -> None:
        """Go back to a snapshot, all of it synced."""
        self._names = {
            path: None if content is None else _Inode(bytearray(content), content) for path, content in snapshot.items()
        }
        self._synced_names = dict(self._names)

    # -- Disk

    def boot_id(self) -> str:
        return f"boot {self.boots}"

    def _inode(self, path: str) -> _Inode:
        inode = self._names.get(path)
        assert inode is not None, f"no file {path}"
        return inode

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        if path not in self._names:
            if not create:
                raise storage_error("open", path, FileNotFoundError(errno.ENOENT, "No such file or directory"))
            _check_name(path)
            self.step("create", path)
            self._names[path] = _Inode()
        return SimulatedFile(self, path, self._inode(path))

    def read_file(self, path: str) -> bytes | None:
        inode = self._names.get(path)
        return None if inode is None else bytes(inode.content)

    def rename(self, source: str, target: str) -> None:
        _check_name(target)
        self.step("rename", source)
        if self.is_dir(source):
            self._renamed_dirs.append((source, target))
        _move(self._names, source, target)

    def remove(self, path: str) -> None:
        if path in self._names:
            self.step("remove", path)
            del self._names[path]

    def remove_tree(self, path: str) -> None:
        for name in [name for name in self._names if name.startswith(path + "/")]:
            self.remove(name)
        self.remove(path)

    def list(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        return sorted(
            name[len(prefix) :]
            for name in self._names
            if name.startswith(prefix) and "/" not in name[len(prefix) :] and name != "/"
        )

    def is_dir(self, path: str) -> bool:
        return path in self._names and self._names[path] is None

    def size(self, path: str) -> int:
        inode = self._names.get(path)
        return -1 if inode is None else len(inode.content)

    def make_dir(self, path: str) -> None:
        _check_name(path)
        parts = path.strip("/").split("/")
        for i in range(len(parts)):
            self._names.setdefault("/" + "/".join(parts[: i + 1]), None)

    def fsync_dir(self, path: str) -> None:
        self.step("fsync_dir", path)
        if path not in self._names:
            raise StorageError(f"cannot fsync {path}: no such directory")
        for source, target in [each for each in self._renamed_dirs if each[1].rpartition("/")[0] == path]:
            _move(self._synced_names, source, target)
            self._renamed_dirs.remove((source, target))
        prefix = path.rstrip("/") + "/"
        for name in [n for n in {**self._names, **self._synced_names} if n.startswith(prefix) and "/" not in n[len(prefix) :]]:
            if name in self._names:
                self._synced_names[name] = self._names[name]
            else:
                self._synced_names.pop(name, None)

    def free_bytes(self, path: str) -> int:
        return self.capacity_bytes - self.used_bytes()

    def total_bytes(self, path: str) -> int:
        return self.capacity_bytes
