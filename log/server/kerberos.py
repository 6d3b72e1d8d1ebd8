"""The broker's Kerberos key and the contexts it accepts, by MIT's library (`gssapi`). No network: a ticket is checked alone."""

from __future__ import annotations

import os
from typing import Any

from logflume.log.broker.security import LoginFailed
from logflume.log.broker.security.listener_settings import ListenerSettings
from logflume.log.broker.security.mechanisms import GSSAPI, kerberos_key
from logflume.log.errors import InvalidInput


class KeytabAcceptor:
    """Accepts tickets for one service. The keytab is read anew at each login, so that a new key needs no restart."""

    def __init__(self, *, service: str, principal: str, keytab: str, listener: str) -> None:
        """`principal`: of the broker, "" for any of the service; `keytab`: "" for the machine's. Raises InvalidInput."""
        import gssapi

        what = f"listener {listener}: {GSSAPI}"
        if keytab and not os.access(keytab, os.R_OK):
            raise InvalidInput(f"{what}: cannot read the keytab {keytab}; make one with ktadd, readable for this user")
        try:
            name = gssapi.Name(principal or service, _name_type(gssapi, is_principal=bool(principal)))
            store = {"keytab": f"FILE:{keytab}"} if keytab else None
            self._credentials = gssapi.Credentials(usage="accept", name=name, store=store, mechs=[gssapi.MechType.kerberos])
        except gssapi.exceptions.GSSError as error:
            where = keytab or "the machine's keytab ($KRB5_KTNAME)"
            raise InvalidInput(f"{what}: no key of {principal or service} in {where}: {error.gen_message()[:300]}") from None

    def begin(self) -> KeytabContext:
        return KeytabContext(self._credentials)


class KeytabContext:
    """One context, of one connection."""

    def __init__(self, credentials: Any) -> None:
        import gssapi

        self._error = gssapi.exceptions.GSSError
        self._context = gssapi.SecurityContext(creds=credentials, usage="accept")
        self._context.__DEFER_STEP_ERRORS__ = False  # a refusal is one at once, not at the next message

    def accept(self, token: bytes) -> bytes:
        try:
            return self._context.step(token) or b""
        except self._error as error:
            raise LoginFailed(f"the ticket was refused: {error.gen_message()[:300]}") from None

    def initiator(self) -> str | None:
        return str(self._context.initiator_name) if self._context.complete else None

    def wrap(self, message: bytes) -> bytes:
        try:
            return bytes(self._context.wrap(message, False).message)
        except self._error as error:
            raise LoginFailed(f"a message cannot be signed: {error.gen_message()[:300]}") from None

    def unwrap(self, message: bytes) -> bytes:
        try:
            return bytes(self._context.unwrap(message).message)
        except self._error as error:
            raise LoginFailed(f"a message whose signature is wrong: {error.gen_message()[:300]}") from None


def open_acceptor(settings: ListenerSettings) -> KeytabAcceptor | None:
    """Return the key of a listener with GSSAPI, None for another. Raises InvalidInput: there is no such key."""
    if not settings.has_sasl or GSSAPI not in settings.parts("sasl.enabled.mechanisms"):
        return None
    key = kerberos_key(settings)
    return KeytabAcceptor(service=key.service, principal=key.principal, keytab=key.keytab, listener=settings.name)


def default_realm() -> str:
    """Return the realm of this machine, "" where none is configured."""
    import gssapi

    try:
        name = gssapi.Name("anybody", gssapi.NameType.kerberos_principal).canonicalize(gssapi.MechType.kerberos)
        return str(name).rpartition("@")[2]
    except gssapi.exceptions.GSSError:
        return ""


def _name_type(gssapi: Any, *, is_principal: bool) -> Any:
    return gssapi.NameType.kerberos_principal if is_principal else gssapi.NameType.hostbased_service
