"""A text file read in runs of whole rows from any position: the part that CSV and JSON lines share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from logflume.connect.api import I64
from logflume.connect.errors import SourceChanged
from logflume.log import InvalidInput

from .file_block import Start

MAX_ROW_BYTES = 16 << 20
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"PK\x03\x04": "zip"}


class LineFile:
    """An open file. With `is_followed` a last line without a newline is left until it is complete; without, it is a row."""

    def __init__(self, path: str, *, block_bytes: int, is_followed: bool) -> None:
        self._path = path
        self._block_bytes = block_bytes
        self._is_followed = is_followed
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidInput(f"{path}: cannot be read: {error.strerror}") from error
        head = os.pread(self.fd, 4, 0)
        for magic, name in _COMPRESSED.items():
            if head.startswith(magic):
                os.close(self.fd)
                raise InvalidInput(
                    f"{path} is {name}-compressed; unpack it first, a compressed file has no positions to resume from"
                )

    def first_bytes(self, count: int) -> bytes:
        return os.pread(self.fd, count, 0)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def runs(self, start: Start, row_ends: Callable[[bytes], I64]) -> Iterator[tuple[bytes, int, int]]:
        """Yield (bytes of whole rows, their position, the number of their first line) up to the present end.

        Raises:
            InvalidInput: a row is longer than 16 MiB (an unclosed quote makes one of the rest of the file).
            SourceChanged: the file became shorter than what was read of it.
        """
        position, line, wanted = start.position, start.line, self._block_bytes
        while True:
            data = os.pread(self.fd, wanted, position)
            if self.size() < position:
                raise SourceChanged(f"{self._path} was truncated to {self.size()} bytes while it was read at {position}")
            if not data:
                return
            is_rest = len(data) < wanted
            if self._is_followed or not is_rest:
                ends = row_ends(data)
                if not len(ends) and is_rest:
                    return
                if not len(ends):
                    wanted = self._longer(wanted, line)
                    continue
                data = data[: int(ends[-1])]
            yield data, position, line
            position += len(data)
            line += data.count(b"\n")
            wanted = self._block_bytes

    def _longer(self, wanted: int, line: int) -> int:
        if wanted >= MAX_ROW_BYTES:
            raise InvalidInput(
                f"{self._path}, line {line}: a row of more than {MAX_ROW_BYTES} bytes; look for a quote that is not closed"
            )
        return min(wanted * 2, MAX_ROW_BYTES)

    def check_row_start(self, position: int) -> None:
        """Check that a row begins at the position. Raises SourceChanged when the line before it was continued later."""
        if not position or position >= self.size():
            return
        around = os.pread(self.fd, 2, position - 1)
        if around[:1] != b"\n":
            raise SourceChanged(
                f"{self._path}: the last line, read without a newline up to byte {position}, was continued; "
                "set follow = true for a file that still grows"
            )

    def is_replaced(self) -> bool:
        """Return whether the path now names another file, or none."""
        try:
            now = os.stat(self._path)
        except FileNotFoundError:
            return True
        mine = os.fstat(self.fd)
        return (now.st_ino, now.st_dev) != (mine.st_ino, mine.st_dev)

    def close(self) -> None:
        os.close(self.fd)
