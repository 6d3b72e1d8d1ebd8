"""What pages that ask who their reader is have in common: the verdict, and the name and password of a request (RFC 7617)."""

from __future__ import annotations

import base64
import binascii
from enum import Enum

MAX_CREDENTIALS_CHARS = 4096


class Verdict(Enum):
    """What is said to whom asks for a page, as the status of HTTP."""

    WELCOME = 200
    UNKNOWN = 401
    FORBIDDEN = 403
    BUSY = 503


def basic_credentials(authorization: str) -> tuple[bytes, bytes] | None:
    """Return name and password of a header, None if it is none of basic authentication.

    >>> basic_credentials("Basic YWRhOnNlY3JldA==")
    (b'ada', b'secret')
    """
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() != "basic" or len(credentials) > MAX_CREDENTIALS_CHARS:
        return None
    try:
        user, colon, password = base64.b64decode(credentials.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (user, password) if colon else None
