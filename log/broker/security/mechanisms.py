"""Which mechanisms a listener has, and the policy of its logins, from its settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from logflume.log.errors import InvalidInput

from ..access.scram import Mechanism, ScramCredential
from ..complaints import Complaints
from ..core import Core
from .jaas import parse_jaas, plain_passwords
from .listener_settings import ListenerSettings
from .login import Exchange, Identity, LoginCounts, LoginPolicy
from .plain import PlainExchange
from .scram import ScramExchange, random_nonce
from .users import Users

SCRAM = {mechanism.sasl_name: mechanism for mechanism in Mechanism}
KNOWN = ("PLAIN", *SCRAM)
_log = logging.getLogger("logflume.logins")


class UserAccounts:
    """The cluster's users as SCRAM asks for them."""

    def __init__(self, users: Users) -> None:
        self._users = users

    def find(self, user: str, mechanism: Mechanism, *, is_token: bool) -> tuple[ScramCredential, Identity | None]:
        credential = None if is_token else self._users.credential(user, mechanism)
        if credential is None:
            return self._users.decoy(user, mechanism), None
        return credential, self._users.identity(user, mechanism, credential)


def login_policy(core: Core, settings: ListenerSettings, counts: LoginCounts, complaints: Complaints) -> LoginPolicy:
    """Return the policy of a listener's logins. Raises InvalidInput: no such mechanism, or settings that do not fit."""
    return LoginPolicy(
        _mechanisms(core, settings),
        core.clock,
        core.timers,
        counts,
        max_reauth_ms=settings.number("connections.max.reauth.ms"),
        failed_delay_ms=settings.number("connection.failed.authentication.delay.ms"),
        told=_teller(complaints),
    )


def _teller(complaints: Complaints) -> Callable[[str, str, str, str | None], None]:
    def told(host: str, mechanism: str, principal: str, reason: str | None) -> None:
        if reason is None:
            _log.debug("%s logged in from %s by %s", principal, host, mechanism)
        else:
            text = "a login from %s by %s failed: %s"
            complaints.say(_log, logging.WARNING, host, text, host, mechanism or "an unknown mechanism", reason)

    return told


def owner_policy(core: Core, counts: LoginCounts, complaints: Complaints) -> LoginPolicy:
    """Return the policy of the owner's socket, where a process may log in as a user on his behalf."""
    makers: dict[str, Callable[[], Exchange]] = {"PLAIN": partial(PlainExchange, core.users, {}, core.offload)}
    for name, mechanism in SCRAM.items():
        makers[name] = partial(ScramExchange, mechanism, UserAccounts(core.users), partial(random_nonce, core.random_bytes))
    delay_ms = core.config.number("connection.failed.authentication.delay.ms")
    return LoginPolicy(makers, core.clock, core.timers, counts, failed_delay_ms=delay_ms, told=_teller(complaints))


def check_mechanisms(settings: ListenerSettings) -> list[str]:
    """Return the names of a listener's mechanisms. Raises InvalidInput: there is no such one, or its settings do not fit."""
    asked = settings.parts("sasl.enabled.mechanisms")
    unknown = [name for name in asked if name not in KNOWN]
    if unknown or not asked:
        expected = f"sasl.enabled.mechanisms expects some of {', '.join(KNOWN)}"
        raise InvalidInput(f"listener {settings.name}: {expected}; found {', '.join(unknown)[:200] or 'none'}")
    if "PLAIN" in asked:
        _plain_passwords(settings)
    return asked


def _mechanisms(core: Core, settings: ListenerSettings) -> Mapping[str, Callable[[], Exchange]]:
    makers: dict[str, Callable[[], Exchange]] = {}
    for name in check_mechanisms(settings):
        if name == "PLAIN":
            makers[name] = partial(PlainExchange, core.users, _plain_passwords(settings), core.offload)
        else:
            makers[name] = partial(ScramExchange, SCRAM[name], UserAccounts(core.users), partial(random_nonce, core.random_bytes))
    return makers


def _plain_passwords(settings: ListenerSettings) -> Mapping[str, str]:
    text = settings.text("sasl.jaas.config", mechanism="PLAIN")
    return plain_passwords(parse_jaas(text, setting="sasl.jaas.config")) if text else {}
