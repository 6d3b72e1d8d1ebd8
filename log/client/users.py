"""Whether a name and a password are those of a user of the cluster: for servers of other protocols that have the same users."""

from __future__ import annotations

from .errors import LoginRefused
from .log import connect
from .security import Security
from .where import UNIX_PREFIX, security_of

MECHANISM = "SCRAM-SHA-512"


def check_login(where: str, user: str, password: str, *, timeout_s: float = 10.0) -> bool:
    """Whether a user of the log at an address has this password; his principal is then `User:NAME`. Blocks.

    It logs in there as that user, by SCRAM, so that the password stays in this process. By a broker's Unix socket it works
    whatever its listeners are; at another address as far as the environment or the profile says how to reach it.

    Raises InvalidInput, TransportError: the log cannot be reached.
    """
    if not user or not password or "\0" in user + password:
        return False
    try:
        connect(where, security=security_as(where, user, password), timeout_s=timeout_s).close()
    except LoginRefused:
        return False
    return True


def security_as(where: str, user: str, password: str) -> Security:
    """Return the security with which `connect(where, security=...)` acts as a user, with his rights. Raises InvalidInput."""
    base = {} if where.startswith(UNIX_PREFIX) else dict(security_of(where).settings)
    kept = {name: value for name, value in base.items() if not name.startswith(("sasl.", "security.protocol"))}
    protocol = "SASL_SSL" if base.get("security.protocol", "").upper().endswith("SSL") else "SASL_PLAINTEXT"
    login = {"sasl.mechanism": MECHANISM, "sasl.username": user, "sasl.password": password}
    return Security.from_settings({**kept, "security.protocol": protocol, **login})
