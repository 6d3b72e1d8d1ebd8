"""The client's side of SASL GSSAPI with Kerberos V5 (RFC 4752), by MIT's library (the package `gssapi`, `logflume[gssapi]`)."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from logflume.log.errors import InvalidInput

from .errors import LoginRefused
from .security import Security

_NO_LAYER = 1


def kerberos(security: Security, host: str) -> Generator[bytes, bytes, None]:
    """Log in to a service of a host: with the keytab of the settings, else with the ticket that `kinit` has got.

    Each step may wait for the realm's authority (KDC). Raises InvalidInput, LoginRefused.
    """
    import gssapi

    service = security.settings.get("sasl.kerberos.service.name", "kafka")
    try:
        target = gssapi.Name(f"{service}@{host}", gssapi.NameType.hostbased_service)
        flags = gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity
        context = gssapi.SecurityContext(name=target, creds=_credentials(gssapi, security), usage="initiate", flags=flags)
        token = context.step()
        while not context.complete:
            token = context.step((yield token))
        message = context.unwrap((yield token or b"")).message
        if len(message) != 4 or not message[0] & _NO_LAYER:
            raise LoginRefused("the broker asks for a layer of GSSAPI; there is none here: TLS is what encrypts")
        yield context.wrap(bytes((_NO_LAYER, 0, 0, 0)), False).message
    except gssapi.exceptions.GSSError as error:
        raise LoginRefused(f"Kerberos, {service}@{host}: {error.gen_message()[:300]}") from None


def _credentials(gssapi: Any, security: Security) -> Any:
    """Return the credentials of the settings, None for what `kinit` has got. Raises InvalidInput."""
    keytab, principal = (security.settings.get(f"sasl.kerberos.{name}", "") for name in ("keytab", "principal"))
    name = gssapi.Name(principal, gssapi.NameType.kerberos_principal) if principal else None
    if not keytab:
        return gssapi.Credentials(usage="initiate", name=name) if name else None
    try:
        store = {"client_keytab": f"FILE:{keytab}", "ccache": f"MEMORY:logflume {principal} {keytab}"}
        return gssapi.Credentials(usage="initiate", name=name, store=store)
    except gssapi.exceptions.GSSError as error:
        text = error.gen_message()[:300]
        raise InvalidInput(f"sasl.kerberos.keytab: no ticket for {principal or 'its principal'} by {keytab}: {text}") from None
