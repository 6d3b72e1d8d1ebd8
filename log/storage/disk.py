"""The file system as storage sees it: a small protocol, and the real one.

All of storage goes through `Disk`, so that tests can tear, lose and reorder what was not fsynced and fail any call
(`testing/disk.py`). Every failure is a `StorageError` that names the path; a full disk is `DiskFull`.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from typing import Protocol

from logflume.log.batch.header import Buffer
from logflume.log.errors import StorageError

from .errors import DiskFull

_BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"


class File(Protocol):
    """An open file. Closed by `close`, or once nobody refers to it: a slice being sent keeps its file open."""

    @property
    def path(self) -> str: ...

    def fileno(self) -> int:
        """The descriptor, for sendfile."""
        ...

    def size(self) -> int: ...

    def read(self, position: int, size_bytes: int) -> bytes:
        """Read up to `size_bytes` at `position`; fewer only at the end of the file."""
        ...

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers one after the other at `position`. After an error any part of them may be in the file."""
        ...

    def truncate(self, size_bytes: int) -> None: ...

    def sync(self) -> None:
        """fdatasync: content and size are on disk on return. May be called from another thread."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """Directories and names. Names become durable by `fsync_dir` of their directory."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; with `create` make it if it is missing."""
        ...

    def read_file(self, path: str) -> bytes | None:
        """Return the content, None if there is no such file."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing the target atomically."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; a missing one is no error."""
        ...

    def remove_tree(self, path: str) -> None: ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; [] if it does not exist."""
        ...

    def is_dir(self, path: str) -> bool: ...

    def size(self, path: str) -> int:
        """Bytes of a file, -1 if it does not exist."""
        ...

    def make_dir(self, path: str) -> None:
        """Make a directory and its parents; an existing one is no error."""
        ...

    def fsync_dir(self, path: str) -> None: ...

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int:
        """Size of the file system that holds the path."""
        ...

    def boot_id(self) -> str:
        """What changes when the machine loses power: unsynced writes may then have reached the disk out of order."""
        ...


def write_atomically(disk: Disk, path: str, content: bytes) -> None:
    """Replace a small file so that a crash leaves the old or the new content: temporary file, fsync, rename, directory fsync."""
    write_whole(disk, path, content)
    disk.fsync_dir(os.path.dirname(path))


def write_whole(disk: Disk, path: str, content: bytes) -> None:
    """As `write_atomically`, but which of the two contents a crash leaves is not known before the directory is synced."""
    temporary = path + ".tmp"
    try:
        write_plainly(disk, temporary, content, is_synced=True)
    except StorageError:
        disk.remove(temporary)
        raise
    disk.rename(temporary, path)


def write_plainly(disk: Disk, path: str, content: bytes, *, is_synced: bool = False) -> None:
    """Write a whole file in place; a crash may leave any part of it, so its reader has to know its checksum."""
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
        file.write(0, [content])
        if is_synced:
            file.sync()
    finally:
        file.close()


def storage_error(action: str, path: str, error: OSError) -> StorageError:
    """Turn an OSError into the storage error that names what was tried on which path."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(
            f"cannot {action} {path}: no space left on the device; free some, or lower retention.ms or retention.bytes"
        )
    return StorageError(f"cannot {action} {path}: {error.strerror or error}")


class OsFile:
    """A file of the operating system."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: str, fd: int) -> None:
        self._path, self._fd = path, fd

    @property
    def path(self) -> str:
        return self._path

    def fileno(self) -> int:
        return self._fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, position: int, size_bytes: int) -> bytes:
        try:
            data = os.pread(self._fd, size_bytes, position)
            while len(data) < size_bytes:
                more = os.pread(self._fd, size_bytes - len(data), position + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise storage_error("read", self._path, error) from error
        return data

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        left = sum(map(len, buffers))
        try:
            written = os.pwritev(self._fd, buffers, position)
            if written == left:
                return
            data = memoryview(b"".join(buffers))
            while written < left:
                written += os.pwrite(self._fd, data[written:], position + written)
        except OSError as error:
            raise storage_error("write to", self._path, error) from error

    def truncate(self, size_bytes: int) -> None:
        try:
            os.ftruncate(self._fd, size_bytes)
        except OSError as error:
            raise storage_error("truncate", self._path, error) from error

    def sync(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise storage_error("fsync", self._path, error) from error

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class OsDisk:
    """The file system of the operating system."""

    __slots__ = ()

    def open(self, path: str, *, create: bool = False) -> OsFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            return OsFile(path, os.open(path, flags, 0o600))
        except OSError as error:
            raise storage_error("open", path, error) from error

    def read_file(self, path: str) -> bytes | None:
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error("read", path, error) from error

    def rename(self, source: str, target: str) -> None:
        try:
            os.replace(source, target)
        except OSError as error:
            raise storage_error(f"rename {source} to", target, error) from error

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error("remove", path, error) from error

    def remove_tree(self, path: str) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error("remove", path, error) from error

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise storage_error("list", path, error) from error

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return -1
        except OSError as error:
            raise storage_error("stat", path, error) from error

    def make_dir(self, path: str) -> None:
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise storage_error("make", path, error) from error

    def fsync_dir(self, path: str) -> None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise storage_error("fsync", path, error) from error

    def free_bytes(self, path: str) -> int:
        try:
            return shutil.disk_usage(path).free
        except OSError as error:
            raise storage_error("stat", path, error) from error

    def total_bytes(self, path: str) -> int:
        try:
            return shutil.disk_usage(path).total
        except OSError as error:
            raise storage_error("stat", path, error) from error

    def boot_id(self) -> str:
        try:
            with open(_BOOT_ID_FILE) as file:
                return file.read().strip()
        except OSError:
            return ""
