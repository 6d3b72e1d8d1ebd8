"""Which mechanisms a listener has, and the policy of its logins, from its settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Protocol

from logflume.log.broker.complaints import Complaints
from logflume.log.broker.ports import Clock, Keys, Offload, TicketAcceptor, Timers
from logflume.log.broker.settings.lookup import BrokerConfig
from logflume.log.errors import InvalidInput
from logflume.log.extras import require

from .audit import Audit
from .bearer import BearerExchange, TokenRules
from .credentials import Mechanism, ScramCredential
from .jaas import parse_jaas, plain_passwords
from .kerberos import SETTING, KerberosExchange, LocalRules
from .listener_settings import ListenerSettings
from .login import Exchange, Identity, LoginCounts, LoginPolicy
from .plain import PlainExchange
from .scram import ScramExchange, random_nonce
from .tokens import DelegationTokens
from .users import Users

SCRAM = {mechanism.sasl_name: mechanism for mechanism in Mechanism}
OAUTHBEARER, GSSAPI = "OAUTHBEARER", "GSSAPI"
KNOWN = ("PLAIN", *SCRAM, OAUTHBEARER, GSSAPI)
Told = Callable[[str, str, str, str | None], None]
"""Called with (host, mechanism, principal, reason or None) of each login."""
_OAUTH = "sasl.oauthbearer."
_SERVICE = "sasl.kerberos.service.name"
_log = logging.getLogger("logflume.logins")


@dataclass(frozen=True, slots=True)
class Provider:
    """What the mechanisms of a listener ask others for: the keys of its identity provider, its own Kerberos key and realm."""

    keys: Keys | None = None
    acceptor: TicketAcceptor | None = None
    realm: str = ""


@dataclass(frozen=True, slots=True)
class KerberosKey:
    """Which key of which keytab is a listener's: `principal` "" for any of the service, `keytab` "" for the machine's."""

    service: str
    principal: str
    keytab: str


class Surroundings(Protocol):
    """What logins need of the broker; `Core` has it."""

    @property
    def users(self) -> Users: ...

    @property
    def tokens(self) -> DelegationTokens: ...

    @property
    def config(self) -> BrokerConfig: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def timers(self) -> Timers: ...

    @property
    def offload(self) -> Offload: ...

    @property
    def random_bytes(self) -> Callable[[int], bytes]: ...


class UserAccounts:
    """The cluster's users and delegation tokens as SCRAM asks for them."""

    def __init__(self, core: Surroundings) -> None:
        self._core = core

    def find(self, user: str, mechanism: Mechanism, *, is_token: bool) -> tuple[ScramCredential, Identity | None]:
        users, tokens = self._core.users, self._core.tokens
        if is_token:
            token = tokens.by_id(user) if tokens.is_enabled else None
            if token is None or token.expires_ms <= self._core.clock.wall_ms():
                return users.decoy(user, mechanism), None
            identity = Identity(
                token.owner,
                expires_ms=token.expires_ms,
                is_valid=lambda: tokens.by_id(user) is not None,
                is_by_token=True,
            )
            return tokens.credential(token, mechanism), identity
        credential = users.credential(user, mechanism)
        if credential is None:
            return users.decoy(user, mechanism), None
        return credential, users.identity(user, mechanism, credential)


def login_policy(
    core: Surroundings, settings: ListenerSettings, counts: LoginCounts, told: Told, *, provider: Provider
) -> LoginPolicy:
    """Return the policy of a listener's logins. Raises as `check_mechanisms`."""
    return LoginPolicy(
        _mechanisms(core, settings, provider),
        core.clock,
        core.timers,
        counts,
        max_reauth_ms=settings.number("connections.max.reauth.ms"),
        failed_delay_ms=settings.number("connection.failed.authentication.delay.ms"),
        told=told,
    )


def teller(complaints: Complaints, audit: Audit | None) -> Told:
    """Return what takes note of logins: the log, at most one line a second and address, and the audit log, all of them."""

    def told(host: str, mechanism: str, principal: str, reason: str | None) -> None:
        if audit is not None:
            audit.logged_in(host, mechanism, principal, reason)
        if reason is None:
            _log.debug("%s logged in from %s by %s", principal, host, mechanism)
        else:
            text = "a login from %s by %s failed: %s"
            complaints.say(_log, logging.WARNING, host, text, host, mechanism or "an unknown mechanism", reason)

    return told


def owner_policy(core: Surroundings, counts: LoginCounts, told: Told) -> LoginPolicy:
    """Return the policy of the owner's socket, where a process may log in as a user on his behalf."""
    makers: dict[str, Callable[[], Exchange]] = {"PLAIN": partial(PlainExchange, core.users, {}, core.offload)}
    for name, mechanism in SCRAM.items():
        makers[name] = partial(ScramExchange, mechanism, UserAccounts(core), partial(random_nonce, core.random_bytes))
    delay_ms = core.config.number("connection.failed.authentication.delay.ms")
    return LoginPolicy(makers, core.clock, core.timers, counts, failed_delay_ms=delay_ms, told=told)


def check_mechanisms(settings: ListenerSettings) -> list[str]:
    """Return the names of a listener's mechanisms. Raises InvalidInput: there is no such one, or its settings do not fit."""
    asked = settings.parts("sasl.enabled.mechanisms")
    unknown = [name for name in asked if name not in KNOWN]
    if unknown or not asked:
        expected = f"sasl.enabled.mechanisms expects some of {', '.join(KNOWN)}"
        raise InvalidInput(f"listener {settings.name}: {expected}; found {', '.join(unknown)[:200] or 'none'}")
    if "PLAIN" in asked:
        _plain_passwords(settings)
    if OAUTHBEARER in asked:
        token_rules(settings)
    if GSSAPI in asked:
        kerberos_key(settings)
        local_rules(settings, "")
    return asked


def token_rules(settings: ListenerSettings) -> TokenRules:
    """Return what tokens of a listener must be. Raises InvalidInput: what every token is checked for is not set."""
    needed = [_OAUTH + name for name in ("jwks.endpoint.url", "expected.issuer", "expected.audience")]
    missing = [name for name in needed if not settings.text(name, mechanism=OAUTHBEARER)]
    if missing:
        raise InvalidInput(f"listener {settings.name}: OAUTHBEARER needs {' and '.join(missing)}; no token is taken unchecked")
    require("joserfc", extra="oauth", what=f"listener {settings.name}: OAUTHBEARER")

    def text(name: str) -> str:
        return settings.text(_OAUTH + name, mechanism=OAUTHBEARER)

    return TokenRules(
        text("expected.issuer"),
        frozenset(part.strip() for part in text("expected.audience").split(",") if part.strip()),
        tuple(text("scope").replace(",", " ").split()),
        int(text("clock.skew.seconds")),
        text("sub.claim.name"),
        text("scope.claim.name"),
    )


def kerberos_key(settings: ListenerSettings) -> KerberosKey:
    """Return which key a listener has, as Kafka's settings tell it. Raises InvalidInput."""
    what = f"listener {settings.name}: {GSSAPI}"
    if find_spec("gssapi") is None:
        text = f"{what} needs MIT Kerberos and gssapi: pip install 'logflume[gssapi]'; or set sasl.enabled.mechanisms to others"
        raise InvalidInput(text)
    text = settings.text("sasl.jaas.config", mechanism=GSSAPI)
    options = parse_jaas(text, setting="sasl.jaas.config") if text else {}
    named = {name for name in (settings.text(_SERVICE, mechanism=GSSAPI), options.get("serviceName", "")) if name}
    if len(named) != 1:
        found = " and ".join(sorted(named)) or "none"
        raise InvalidInput(
            f"{what} needs one name of its service, as {_SERVICE}=kafka; found {found}; or set sasl.enabled.mechanisms to others"
        )
    return KerberosKey(named.pop(), options.get("principal", ""), options.get("keyTab", ""))


def local_rules(settings: ListenerSettings, realm: str) -> LocalRules:
    """Return how principals become users on a listener. Raises InvalidInput."""
    return LocalRules(settings.text(SETTING, mechanism=GSSAPI), realm=realm)


def _mechanisms(core: Surroundings, settings: ListenerSettings, provider: Provider) -> Mapping[str, Callable[[], Exchange]]:
    makers: dict[str, Callable[[], Exchange]] = {}
    for name in check_mechanisms(settings):
        if name == "PLAIN":
            makers[name] = partial(PlainExchange, core.users, _plain_passwords(settings), core.offload)
        elif name == OAUTHBEARER:
            assert provider.keys is not None, "a listener with OAUTHBEARER has the keys of its provider"
            makers[name] = partial(BearerExchange, token_rules(settings), provider.keys, lambda: core.clock.wall_ms() / 1000)
        elif name == GSSAPI:
            assert provider.acceptor is not None, "a listener with GSSAPI has a key"
            makers[name] = partial(KerberosExchange, provider.acceptor, local_rules(settings, provider.realm), core.offload)
        else:
            makers[name] = partial(ScramExchange, SCRAM[name], UserAccounts(core), partial(random_nonce, core.random_bytes))
    return makers


def _plain_passwords(settings: ListenerSettings) -> Mapping[str, str]:
    text = settings.text("sasl.jaas.config", mechanism="PLAIN")
    return plain_passwords(parse_jaas(text, setting="sasl.jaas.config")) if text else {}
