"""SASL PLAIN (RFC 4616): user and password in one token. Only as safe as the connection: use it over TLS."""

from __future__ import annotations

from collections.abc import Mapping

from logflume.log.broker.ports import Offload
from logflume.log.broker.replies import Reply

from .credentials import Mechanism
from .login import Identity, LoginFailed, Step
from .users import MAX_PASSWORD_BYTES, Users, fits, static_fits

MAX_NAME_BYTES = 1024


class PlainExchange:
    """One exchange: a token, an answer."""

    __slots__ = ("_offload", "_passwords", "_users")

    def __init__(self, users: Users, passwords: Mapping[str, str], offload: Offload) -> None:
        """`passwords`: of users that stand in the settings, by name; those count before the cluster's users."""
        self._users, self._passwords, self._offload = users, passwords, offload

    def respond(self, token: bytes) -> Step | Reply:
        user, password = parse_plain(token)
        if user in self._passwords:
            if not static_fits(password, user, self._passwords):
                raise LoginFailed(f"wrong password of {user!r}")
            return Step(b"", Identity(f"User:{user}"))
        found = self._users.best_credential(user)
        if found is None:
            mechanism, credential = Mechanism.SHA_512, self._users.decoy(user, Mechanism.SHA_512)
        else:
            mechanism, credential = found
        reply = Reply()

        def judge(is_right: object) -> None:
            if is_right is not True:
                reply.set(LoginFailed(f"wrong user or password: {user!r}"))
                return
            reply.set(Step(b"", self._users.identity(user, mechanism, credential)))

        self._offload(lambda: fits(password, mechanism, credential)).then(judge)
        return reply


def parse_plain(token: bytes) -> tuple[str, bytes]:
    """Return (user, password) of a token. Raises LoginFailed."""
    parts = token.split(b"\0")
    if len(parts) != 3:
        raise LoginFailed(f"expected a PLAIN token of 3 parts, found {len(parts)}")
    try:
        acting_as, user = parts[0].decode(), parts[1].decode()
        parts[2].decode()
    except UnicodeDecodeError:
        raise LoginFailed("a PLAIN token is UTF-8 text") from None
    if not 1 <= len(parts[1]) <= MAX_NAME_BYTES or not 1 <= len(parts[2]) <= MAX_PASSWORD_BYTES:
        raise LoginFailed("a PLAIN token without a user or password, or with one that is too long")
    if acting_as not in ("", user):
        raise LoginFailed(f"{user!r} may not act as {acting_as!r}")
    return user, parts[2]
