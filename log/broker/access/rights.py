"""The rights of one principal on one host: what every handler asks before it does something (`RequestContext.may`)."""

from __future__ import annotations

from typing import Protocol

from .words import SUPPORTED, Operation, Resource


class Rights(Protocol):
    """Answers for one principal and host. Cheap enough to be asked for each partition of a request."""

    def allows(self, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether the operation is allowed on the resource of this name."""
        ...

    def allows_some(self, operation: Operation, resource: Resource) -> bool:
        """Whether there is a name of a resource of this type on which the operation is allowed."""
        ...


class _Unrestricted:
    """Everything is allowed."""

    def allows(self, operation: Operation, resource: Resource, name: str) -> bool:
        return True

    def allows_some(self, operation: Operation, resource: Resource) -> bool:
        return True


UNRESTRICTED: Rights = _Unrestricted()
"""The rights of everybody where there is no authorizer."""
SUPER_USER: Rights = _Unrestricted()
"""The rights of super users and of the owner of the data where there is one."""


def allowed_operations(rights: Rights, resource: Resource, name: str) -> int:
    """Return the operations that are allowed, as a bit field by code (`authorized operations`, KIP-430)."""
    return sum(1 << operation for operation in SUPPORTED[resource] if rights.allows(operation, resource, name))
