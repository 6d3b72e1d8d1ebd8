"""What the text given to `connect` means, decided by its form alone.

| text | meaning |
|---|---|
| `host:9092`, `host:9092,other:9092`, `[::1]:9092` | bootstrap addresses of a logflume broker or an Apache Kafka cluster |
| `profile:NAME` | what a profile says (`logflume profile`): addresses and how to log in there |
| `unix:/path/to/socket` | the Unix socket of a logflume broker |
| a `pathlib.Path`, or text with a `/`, or starting with `.` or `~` | a data directory |

Anything else, such as a host without a port, is refused rather than guessed.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from logflume.log.errors import InvalidInput

from .profiles import PREFIX, default_profile, default_security, named_profile
from .security import Security
from .wire import Address

_HOST_PORT = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[^\s:/,\[\]]+)):(?P<port>\d{1,5})\Z")
UNIX_PREFIX = "unix:"
_DEFAULT_BROKER = ("127.0.0.1", 9092)


def default_where() -> str:
    """Return where the log is when nobody says; directories absolute.

    That is $LOGFLUME_BOOTSTRAP, else $LOGFLUME_PROFILE, else $LOGFLUME_DATA, else the profile in use, else `./data`.
    """
    found = os.environ.get("LOGFLUME_BOOTSTRAP")
    if found:
        return found
    data = os.environ.get("LOGFLUME_DATA")
    profile = os.environ.get("LOGFLUME_PROFILE") or (default_profile() if not data else "")
    return PREFIX + profile if profile else os.path.abspath(data or "data")


def default_broker() -> str:
    """Return HOST:PORT where brokers listen without being told, if one does; else nothing."""
    try:
        socket.create_connection(_DEFAULT_BROKER, timeout=0.5).close()
    except OSError:
        return ""
    return "{}:{}".format(*_DEFAULT_BROKER)


def parse_where(where: str | os.PathLike[str]) -> Path | tuple[Address, ...]:
    """Return the data directory or the bootstrap addresses.

    Raises:
        InvalidInput: neither; says what was expected.

    >>> parse_where("localhost:9092")
    (Address(host='localhost', port=9092, path=''),)
    >>> parse_where("./data")
    PosixPath('data')
    """
    if not isinstance(where, str):
        return Path(where).expanduser()
    if where.startswith(UNIX_PREFIX):
        return (Address(path=where.removeprefix(UNIX_PREFIX)),)
    if where.startswith(PREFIX):
        return parse_where(named_profile(where.removeprefix(PREFIX)).bootstrap)
    addresses = [_parse_address(part.strip()) for part in where.split(",")]
    if all(addresses):
        return tuple(a for a in addresses if a is not None)
    if any(addresses):
        wrong = next(part.strip() for part, found in zip(where.split(","), addresses, strict=True) if found is None)
        raise InvalidInput(f"expected host:port in each part of a list of brokers, found {wrong!r} in {where!r}")
    if where.startswith((".", "~")) or "/" in where or os.sep in where:
        return Path(where).expanduser()
    raise InvalidInput(
        f"expected host:port (of a broker) or a path such as ./data (of a data directory), found {where!r}{_hint(where)}"
    )


def security_of(where: str | os.PathLike[str]) -> Security:
    """Return how to log in there when nobody says: as its profile does, else the environment. Raises InvalidInput."""
    if isinstance(where, str) and where.startswith(PREFIX):
        return named_profile(where.removeprefix(PREFIX)).security()
    return default_security()


def parse_address(text: str) -> Address:
    """Return one address as brokers write it: `host:port` or `unix:/path`. Raises InvalidInput."""
    found = parse_where(text)
    if isinstance(found, Path) or len(found) != 1:
        raise InvalidInput(f"expected host:port or unix:/path, found {text!r}")
    return found[0]


def text_of(addresses: Sequence[Address]) -> str:
    """Return addresses as they would be given to `connect`."""
    return ",".join(map(str, addresses))


def _parse_address(text: str) -> Address | None:
    match = _HOST_PORT.match(text)
    if match is None or int(match["port"]) > 65_535:
        return None
    return Address(match["v6"] or match["host"], int(match["port"]))


def _hint(where: str) -> str:
    if not where:
        return ""
    if ":" in where:
        return "; the port is a number up to 65535"
    return f"; did you mean {where + ':9092'!r} or {'./' + where!r}?"
