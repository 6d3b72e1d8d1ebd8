"""Who may do what in the registry: users with passwords or tokens, and rights by subject.

Users stand in a file (TOML), one table each. Who has neither password nor token there is a user of the cluster: the broker knows
the password. The application asks a `Users` and nothing else.

    [ada]
    password = "..."            # HTTP basic; or token = "..." for a bearer; without both: the broker is asked
    read = ["*"]                # subjects, with * and ? as in a shell
    write = ["orders-*"]        # what may be written may be read
    admin = false               # whether the settings of all subjects may be changed, and all the rest

    ["*"]                       # all other users of the cluster
    read = ["*"]
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import math
import time
import tomllib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

from logflume.log.errors import InvalidInput, LogflumeError, UnknownName

from .errors import Fault, RegistryError

OTHERS = "*"
"""The table of all users of the cluster that have none of their own."""
LOGIN_KEPT_S = 60.0
MAX_LOGGED_IN = 1_000
MAX_LOGINS = 4
"""Passwords that the broker is asked about at a time."""
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

    async def rights(self, authorization: bytes | None) -> Rights:
        """Return the rights of who sends the header `Authorization`. Raises RegistryError: nobody that is known."""


Login = Callable[[str, str], bool]
"""Whether a user of the cluster has a password; may block."""


class UserFile:
    """The users of a file, read once. What is kept of a password or token is its digest.

    What the broker said of a password counts for a minute; so long one that was changed may still be taken.
    """

    def __init__(self, path: Path, *, login: Login | None = None, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        """`login`: asks the broker; None: there are no users of the cluster.

        Raises:
            InvalidInput: the file cannot be read, or says what is not understood; names the place.
        """
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidInput(f"cannot read the users of {path}: {error}") from None
        self._known: dict[bytes, Rights] = {}
        self._of_cluster: dict[str, Rights] = {}
        self._login, self._monotonic_s = login, monotonic_s
        self._asking = asyncio.Semaphore(MAX_LOGINS)
        self._logged_in: OrderedDict[bytes, float] = OrderedDict()
        for name, fields in found.items():
            rights = _rights(name, fields, path, has_login=login is not None)
            if "password" not in fields and "token" not in fields:
                self._of_cluster[name] = rights
            if "password" in fields:
                self._known[_digest(f"basic {name}:{fields['password']}".encode())] = rights
            if "token" in fields:
                self._known[_digest(f"bearer {fields['token']}".encode())] = rights
        if not self._known and not self._of_cluster:
            raise InvalidInput(f"{path} has no users; a table such as [ada] with password and write makes one")

    async def rights(self, authorization: bytes | None) -> Rights:
        credentials = _credentials(authorization)
        given, found = _digest(credentials), None
        for digest, rights in self._known.items():  # all of them, so that the time it takes tells nothing
            if hmac.compare_digest(digest, given):
                found = rights
        if found is None:
            found = await self._rights_in_cluster(credentials, given)
        if found is None:
            raise RegistryError(Fault.UNAUTHORIZED)
        return found

    async def _rights_in_cluster(self, credentials: bytes, digest: bytes) -> Rights | None:
        """Return the rights of a user of the cluster; None: there is none of that name and password."""
        scheme, _, rest = credentials.partition(b" ")
        user, _, password = rest.decode(errors="replace").partition(":")
        named = self._of_cluster.get(user) or self._of_cluster.get(OTHERS)
        if scheme != b"basic" or named is None or self._login is None or user == OTHERS:
            return None
        if self._monotonic_s() - self._logged_in.get(digest, -math.inf) > LOGIN_KEPT_S:
            async with self._asking:
                try:
                    is_right = await asyncio.to_thread(self._login, user, password)
                except LogflumeError as error:
                    raise RegistryError(Fault.STORE, f"the broker cannot be asked who {user[:100]!r} is: {error}") from None
            if not is_right:
                return None
            self._logged_in[digest] = self._monotonic_s()
            self._logged_in.move_to_end(digest)
            while len(self._logged_in) > MAX_LOGGED_IN:
                self._logged_in.popitem(last=False)
        return replace(named, user=user)


def _rights(name: str, fields: Any, path: Path, *, has_login: bool) -> Rights:
    if not isinstance(fields, Mapping):
        raise InvalidInput(f"{path}: expected a table [{name}], found {fields!r}")
    for field, value in fields.items():
        if field not in _FIELDS:
            raise UnknownName(f"field of user {name} in {path}", field, _FIELDS)
        is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
        if not isinstance(value, _FIELDS[field]) or (isinstance(value, list) and not is_list):
            raise InvalidInput(f"{path}: {name}.{field} is {value!r}, expected {_FIELDS[field].__name__} of text")
    given = [field for field in ("password", "token") if field in fields]
    if any(not fields[field] for field in given) or (not given and not has_login):
        raise InvalidInput(f"{path}: the user {name} has neither password nor token")
    if given and name == OTHERS:
        raise InvalidInput(f"{path}: [{OTHERS!r}] stands for users of the cluster; it has neither password nor token")
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
