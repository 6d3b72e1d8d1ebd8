"""What a server behind HTTP is told about who asks: the header Authorization, from its address or the environment."""

from __future__ import annotations

import base64
import os
from urllib.parse import unquote, urlsplit

from logflume.log.errors import InvalidInput

AUTH_VARIABLE = "LOGFLUME_REGISTRY_AUTH"


def credentials_of(address: str, *, variable: str = AUTH_VARIABLE) -> str | None:
    """Return the header Authorization: from the address (`user:password@`), else from this variable of the environment.

    >>> credentials_of("http://ada:a%20secret@127.0.0.1:8081")
    'Basic YWRhOmEgc2VjcmV0'

    Raises:
        InvalidInput: the variable is neither `basic user:password` nor `bearer token`.
    """
    parts = urlsplit(address)
    if parts.username is not None:
        return _basic(unquote(parts.username), unquote(parts.password or ""))
    given = os.environ.get(variable, "")
    scheme, _, rest = given.partition(" ")
    if scheme.lower() == "bearer" and rest:
        return f"Bearer {rest}"
    user, colon, password = rest.partition(":")
    if scheme.lower() == "basic" and colon:
        return _basic(user, password)
    if given:
        raise InvalidInput(f"${variable} is `basic USER:PASSWORD` or `bearer TOKEN`; it is something else")
    return None


def auth_headers(address: str) -> dict[str, str]:
    """Return what requests to a registry have as headers because of `credentials_of`."""
    told = credentials_of(address)
    return {} if told is None else {"Authorization": told}


def _basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
