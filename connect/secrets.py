"""Secrets that cannot be printed by accident: a wrapper whose text is `****`, and a redactor for text made elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "****"
_URL_PASSWORD = re.compile(r"(?P<head>[A-Za-z][A-Za-z0-9+.-]*://[^/\s:@]*):(?P<password>[^/\s]*)@")


class Secret:
    """A secret value. `reveal()` is the only way to its text; str, repr and format give `****`.

    >>> secret = Secret("hunter2")
    >>> f"{secret} {secret!r}", secret.reveal()
    ('**** ****', 'hunter2')
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the secret itself."""
        return self._text

    def __repr__(self) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a secret is not pickled; pass the option's name and read it where it is used")


def mask_url(text: str) -> str:
    """Return the text with the password of every URL in it replaced.

    >>> mask_url("postgresql://ann:s3cret@db/x")
    'postgresql://ann:****@db/x'
    """
    return _URL_PASSWORD.sub(rf"\g<head>:{MASK}@", text)


def url_passwords(text: str) -> list[str]:
    """Return the passwords inside the URLs of a text."""
    return [match["password"] for match in _URL_PASSWORD.finditer(text) if match["password"]]


def redact(text: str, secrets: Iterable[str]) -> str:
    """Return the text with every secret in it replaced by `****`; URL passwords always are.

    >>> redact("login s3cret failed", ["s3cret"])
    'login **** failed'
    """
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return mask_url(text)
