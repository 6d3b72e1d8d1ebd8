"""Whether the log can be reached, found out at once: the client tries again for a minute, which nobody at a prompt waits for."""

from __future__ import annotations

import socket

from logflume.log import TransportError
from logflume.log.interfaces import Log

CONNECT_TIMEOUT_S = 2.0


def is_reachable(log: Log) -> bool:
    """Tell whether one of the log's addresses takes connections; a directory that is open in this process is always there."""
    try:
        check_reachable(log)
    except TransportError:
        return False
    return True


def check_reachable(log: Log) -> None:
    """Return if one of the log's addresses takes connections.

    Raises:
        TransportError: none does; nothing was asked of it.
    """
    causes = []
    for address in log.where.split(","):
        try:
            _connect(address.strip())
        except OSError as error:
            causes.append(f"{address}: {error.strerror or error}")
        else:
            return
    raise TransportError(f"the log does not answer ({'; '.join(causes)}); is the server running? Nothing was done")


def _connect(address: str) -> None:
    if address.startswith("unix:"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(CONNECT_TIMEOUT_S)
            probe.connect(address.removeprefix("unix:"))
    elif "/" not in address and not address.startswith((".", "~")):
        host, _, port = address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()
