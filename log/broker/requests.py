"""A request on its way through the broker: who asks and what he may, and what a handler is.

Everything runs on one thread (the event loop of the shell), so no locks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from logflume.log.protocol import KafkaError, messages

from .access import UNRESTRICTED, Operation, Resource, Rights
from .access.rights import allowed_operations
from .replies import Reply

ANONYMOUS = "User:ANONYMOUS"
"""The principal of a connection that did not authenticate."""


class Denials(Protocol):
    """Takes note of what was denied; `security.audit.Audit` does."""

    def denied(self, context: RequestContext, operation: Operation, resource: Resource, name: str) -> None: ...


class Session(Protocol):
    """The login of a connection, as the APIs of SASL and of delegation tokens see it; `security.Login` is one."""

    @property
    def is_by_token(self) -> bool: ...

    def handshake(self, mechanism: str, *, version: int) -> messages.SaslHandshakeResponse: ...

    def authenticate(self, token: bytes) -> Reply: ...


class RequestContext(NamedTuple):
    """Who asks and how. `principal` is there from the start; without authentication it is User:ANONYMOUS.

    A named tuple, as one is made for every request. `rights` are those of principal and host; `Handlers.handle` puts them in.
    `port` is the client's, 0 where there is none; `login` is that of the connection, None where there is no SASL;
    `audit` takes note of denials, None where nobody wants to know.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    host: str
    connection_id: int
    principal: str = ANONYMOUS
    listener: str = "PLAINTEXT"
    rights: Rights = UNRESTRICTED
    port: int = 0
    login: Session | None = None
    audit: Denials | None = None

    def with_rights(self, rights: Rights, audit: Denials | None) -> RequestContext:
        """Return this with the rights of who asks. Not by `_replace`, which costs every request 1 us."""
        return RequestContext(
            self.api_key,
            self.api_version,
            self.correlation_id,
            self.client_id,
            self.host,
            self.connection_id,
            self.principal,
            self.listener,
            rights,
            self.port,
            self.login,
            audit,
        )

    def may(self, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether who asks may do this to the resource of this name; a denial is noted in the audit log.

        A handler asks before it does or tells anything. Where one of several rights is enough, it asks `rights` for the others.
        """
        is_allowed = self.rights.allows(operation, resource, name)
        if not is_allowed and self.audit is not None:
            self.audit.denied(self, operation, resource, name)
        return is_allowed

    def require(self, operation: Operation, resource: Resource, name: str) -> None:
        """Raise KafkaError (TOPIC_AUTHORIZATION_FAILED or its like) unless `may`."""
        if not self.may(operation, resource, name):
            raise KafkaError(resource.refusal)

    def operations_on(self, resource: Resource, name: str) -> int:
        """Return the operations that are allowed, as a bit field by code (KIP-430)."""
        return allowed_operations(self.rights, resource, name)


NO_RESPONSE = None
"""What a handler returns when nothing is to be sent (acks=0)."""


class CloseConnection:
    """What a handler returns when the only way to report an error is to close the connection (acks=0)."""


CLOSE_CONNECTION = CloseConnection()

Handler = Callable[[RequestContext, Any], Any]
"""Handles one API: takes the decoded request; returns a response message, a `Reply`, NO_RESPONSE or CLOSE_CONNECTION.

Byte fields of a request are copies, but `records` are views of a buffer that is used again once the handler has returned.
"""
