"""Who may do what in the registry: users with passwords or tokens, and rights by subject.

Users stand in a file (TOML), one table each, or come from elsewhere: the application asks a `Users` and nothing else.

    [ada]
    password = "..."            # HTTP basic; or token = "..." for a bearer
    read = ["*"]                # subjects, with * and ? as in a shell
    write = ["orders-*"]        # what may be written may be read
    admin = false               # whether the settings of all subjects may be changed, and all the rest
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

from logflume.log.errors import InvalidInput, UnknownName

from .errors import Fault, RegistryError

_FIELDS = {"password": str, "token": str, "read": list, "write": list, "admin": bool}


@dataclass(frozen=True, slots=True)
class Rights:
    """What a user may do; patterns of subjects."""

    user: str
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    is_admin: bool = False

    def may_read(self, subject: str) -> bool:
        return self.is_admin or any(fnmatchcase(subject, each) for each in (*self.read, *self.write))

    def may_write(self, subject: str) -> bool:
        return self.is_admin or any(fnmatchcase(subject, each) for each in self.write)


class Users(Protocol):
    """Knows users by what a request says of its sender."""

    def rights(self, authorization: bytes | None) -> Rights:
        """Return the rights of who sends the header `Authorization`. Raises RegistryError: nobody that is known."""


class UserFile:
    """The users of a file, read once. What is kept of a password or token is its digest."""

    def __init__(self, path: Path) -> None:
        """Raises InvalidInput: it cannot be read, or says what is not understood; names the place."""
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidInput(f"cannot read the users of {path}: {error}") from None
        self._known: dict[bytes, Rights] = {}
        for name, fields in found.items():
            rights = _rights(name, fields, path)
            if "password" in fields:
                self._known[_digest(f"basic {name}:{fields['password']}".encode())] = rights
            if "token" in fields:
                self._known[_digest(f"bearer {fields['token']}".encode())] = rights
        if not self._known:
            raise InvalidInput(f"{path} has no users; a table such as [ada] with password and write makes one")

    def rights(self, authorization: bytes | None) -> Rights:
        given, found = _digest(_credentials(authorization)), None
        for digest, rights in self._known.items():  # all of them, so that the time it takes tells nothing
            if hmac.compare_digest(digest, given):
                found = rights
        if found is None:
            raise RegistryError(Fault.UNAUTHORIZED)
        return found


def _rights(name: str, fields: Any, path: Path) -> Rights:
    if not isinstance(fields, Mapping):
        raise InvalidInput(f"{path}: expected a table [{name}], found {fields!r}")
    for field, value in fields.items():
        if field not in _FIELDS:
            raise UnknownName(f"field of user {name} in {path}", field, _FIELDS)
        is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
        if not isinstance(value, _FIELDS[field]) or (isinstance(value, list) and not is_list):
            raise InvalidInput(f"{path}: {name}.{field} is {value!r}, expected {_FIELDS[field].__name__} of text")
    if not fields.get("password") and not fields.get("token"):
        raise InvalidInput(f"{path}: the user {name} has neither password nor token")
    return Rights(name, tuple(fields.get("read", ())), tuple(fields.get("write", ())), fields.get("admin", False))


def _digest(credentials: bytes) -> bytes:
    return hashlib.sha256(credentials).digest()


def _credentials(authorization: bytes | None) -> bytes:
    """Return what a header says: `basic user:password` or `bearer token`; nothing where it is neither.

    >>> _credentials(b"Basic YWRhOng="), _credentials(b"Bearer x")
    (b'basic ada:x', b'bearer x')
    """
    scheme, _, rest = (authorization or b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return b"bearer " + rest.strip()
    if scheme.lower() != b"basic":
        return b""
    try:
        return b"basic " + base64.b64decode(rest, validate=True)
    except binascii.Error:
        return b""


EVERYTHING = Rights("", is_admin=True)
"""The rights of everybody where no users are set."""


def check(rights: Rights, method: str, kind: str, subject: str | None, *, is_question: bool) -> None:
    """Raise RegistryError unless a request may be answered.

    kind: the first part of its path. subject: the one that it names. is_question: whether it only asks, though it is a POST.
    """
    is_read = method in ("GET", "HEAD") or is_question
    if subject is not None and kind in ("subjects", "compatibility", "config", "mode"):
        allowed = rights.may_read(subject) if is_read else rights.may_write(subject)
    else:
        allowed = is_read or rights.is_admin
    if not allowed:
        raise RegistryError(Fault.DENIED, rights.user, "Read" if is_read else "Write", subject or "*")
