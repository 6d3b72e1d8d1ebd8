"""Which addresses are of this machine alone, and what may be served on others: pages for users, over TLS, or by an order."""

from __future__ import annotations

import ipaddress
import logging

from .errors import InvalidInput

TLS_ADVICE = "`logflume cert issue NAME --host HOST` makes the file that --tls-certificate and --tls-key take"
_log = logging.getLogger("logflume.server")


def is_loopback(host: str) -> bool:
    """Tell whether an address is this machine's alone.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_exposed(
    what: str, host: str, *, has_users: bool, has_tls: bool, advice: str, is_insecure: bool = False, order: str = "--insecure"
) -> None:
    """Let pages be served on an address of this machine; on others for users over TLS, or if somebody says so.

    Args:
        what: which pages, as `the schema registry`; `advice`: the one command that mends it.
        is_insecure: serve them nevertheless, and say it aloud; `order`: by what one says so.

    Raises InvalidInput.
    """
    lacks = " and no ".join(name for name, has in (("users", has_users), ("TLS", has_tls)) if not has)
    if not lacks or is_loopback(host):
        return
    where = host or "every address"
    if not is_insecure:
        raise InvalidInput(
            f"{what} on {where} would be open to strangers: it has no {lacks}. {advice}; or listen on 127.0.0.1, or say that "
            f"it is meant ({order})"
        )
    _log.warning("insecure: %s on %s has no %s; whoever reaches it may use it, or listen", what, where, lacks)
