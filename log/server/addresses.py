"""Where a broker listens: `host:port`, `[v6]:port`, `:port`, or `unix:/path/to/socket`."""

from __future__ import annotations

import hashlib
import os
import tempfile
from typing import NamedTuple

from logflume.log.errors import InvalidInput
from logflume.log.loopback import is_loopback

UNIX_PREFIX = "unix:"
MAX_UNIX_PATH_BYTES = 107
WILDCARDS = ("", "0.0.0.0", "::")


class Address(NamedTuple):
    """A TCP address, or a Unix socket as host `unix:/path` and port 0."""

    host: str
    port: int

    @property
    def unix_path(self) -> str | None:
        return self.host.removeprefix(UNIX_PREFIX) if self.host.startswith(UNIX_PREFIX) else None

    @property
    def is_loopback(self) -> bool:
        """Whether nobody on another machine reaches it."""
        return self.unix_path is not None or is_loopback(self.host)

    def __str__(self) -> str:
        if self.unix_path is not None:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse an address. Raises InvalidInput.

    >>> parse_address("127.0.0.1:9092")
    Address(host='127.0.0.1', port=9092)
    """
    if text.startswith(UNIX_PREFIX):
        path = text.removeprefix(UNIX_PREFIX)
        if not path or len(path.encode()) > MAX_UNIX_PATH_BYTES:
            raise InvalidInput(f"a Unix socket path has 1 to {MAX_UNIX_PATH_BYTES} bytes, found {len(path.encode())}: {path!r}")
        return Address(text, 0)
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise InvalidInput(f"expected HOST:PORT or unix:PATH, found {text!r}")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


def unix_socket_path(data_dir: str) -> str:
    """Return where the broker of a data directory has its Unix socket: in it, or among temporary files if that is too long."""
    path = os.path.join(os.path.abspath(data_dir), "broker.sock")
    if len(path.encode()) <= MAX_UNIX_PATH_BYTES:
        return path
    name = hashlib.sha256(os.path.realpath(data_dir).encode()).hexdigest()[:24]
    return os.path.join(tempfile.gettempdir(), f"logflume-{os.getuid()}-{name}.sock")
