"""One ACL and one filter over ACLs, as Kafka's admin clients send them; what is refused; how they are kept."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from ipaddress import ip_network
from typing import Any, TypeVar

from logflume.log.protocol import ErrorCode, KafkaError

from .words import CLUSTER_NAME, WILDCARD, Operation, Pattern, Permission, Resource

MAX_ACLS = 50_000
MAX_NAME_CHARS = 4096
_E = TypeVar("_E", bound=IntEnum)


@dataclass(frozen=True, slots=True)
class Acl:
    """Allows or denies one principal (`User:alice`, `User:*`) an operation on resources, from a host: `*`, an address, a CIDR."""

    resource: Resource
    name: str
    pattern: Pattern
    principal: str
    host: str
    operation: Operation
    permission: Permission


def new_acl(resource: int, name: str, pattern: int, principal: str, host: str, operation: int, permission: int) -> Acl:
    """Return an ACL from what a client sent. Raises KafkaError INVALID_REQUEST, INVALID_PRINCIPAL_TYPE."""
    made = Acl(
        _concrete(Resource, resource, {Resource.UNKNOWN, Resource.ANY}, "resource type"),
        name,
        _concrete(Pattern, pattern, {Pattern.UNKNOWN, Pattern.ANY, Pattern.MATCH}, "pattern type"),
        principal,
        host,
        _concrete(Operation, operation, {Operation.UNKNOWN, Operation.ANY}, "operation"),
        _concrete(Permission, permission, {Permission.UNKNOWN, Permission.ANY}, "permission"),
    )
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "an ACL needs a resource name; '*' stands for all")
    if made.resource is Resource.CLUSTER and name != CLUSTER_NAME:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"the only name of the cluster resource is {CLUSTER_NAME!r}, found {name[:100]!r}"
        )
    if max(len(name), len(principal), len(host)) > MAX_NAME_CHARS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"names in an ACL have at most {MAX_NAME_CHARS} characters")
    _check_principal(principal)
    _check_host(host)
    return made


def _concrete(kind: type[_E], code: int, only_in_filters: set[_E], what: str) -> _E:
    found = kind._value2member_map_.get(code)
    if isinstance(found, kind) and found not in only_in_filters:
        return found
    known = [member for member in kind if member not in only_in_filters]
    names = ", ".join(f"{member.value} ({member.name.lower()})" for member in known)
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"{what} {code} of an ACL: expected {names}")


def _check_principal(principal: str) -> None:
    kind, colon, name = principal.partition(":")
    if not (kind and colon and name):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"principal {principal[:100]!r}: expected type and name, for example User:alice"
        )


def _check_host(host: str) -> None:
    if host != WILDCARD and "/" in host:
        try:
            ip_network(host, strict=False)
        except ValueError as error:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"host {host[:100]!r}: expected '*', an address, or a range like 10.0.0.0/8 ({error})"
            ) from None
    if not host:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "an ACL needs a host; '*' stands for all")


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Selects ACLs; None and ANY select all. Pattern MATCH selects every ACL that has a say about the name."""

    resource: Resource
    name: str | None
    pattern: Pattern
    principal: str | None
    host: str | None
    operation: Operation
    permission: Permission

    def selects(self, acl: Acl) -> bool:
        return (
            self.resource in (Resource.ANY, acl.resource)
            and self._selects_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def only_one(self) -> Acl | None:
        """Return the one ACL that could be selected, None if there may be several."""
        if self.name is None or self.principal is None or self.host is None:
            return None
        if self.pattern in (Pattern.ANY, Pattern.MATCH):
            return None
        if Resource.ANY is self.resource or Operation.ANY is self.operation or Permission.ANY is self.permission:
            return None
        return Acl(self.resource, self.name, self.pattern, self.principal, self.host, self.operation, self.permission)

    def _selects_name(self, acl: Acl) -> bool:
        if self.pattern in (Pattern.LITERAL, Pattern.PREFIXED) and self.pattern is not acl.pattern:
            return False
        if self.name is None or self.name == acl.name:
            return True
        if self.pattern is not Pattern.MATCH:
            return False
        if acl.pattern is Pattern.PREFIXED:
            return self.name.startswith(acl.name)
        return acl.name == WILDCARD


def new_filter(
    resource: int, name: str | None, pattern: int, principal: str | None, host: str | None, operation: int, permission: int
) -> AclFilter:
    """Return a filter from what a client sent. Raises KafkaError INVALID_REQUEST."""
    return AclFilter(
        _concrete(Resource, resource, {Resource.UNKNOWN}, "resource type"),
        name,
        _concrete(Pattern, pattern, {Pattern.UNKNOWN}, "pattern type"),
        principal,
        host,
        _concrete(Operation, operation, {Operation.UNKNOWN}, "operation"),
        _concrete(Permission, permission, {Permission.UNKNOWN}, "permission"),
    )


def acl_to_json(acl: Acl) -> list[Any]:
    """Return the ACL as a list: codes by their names, so that the file can be read by people."""
    return [
        acl.permission.name,
        acl.principal,
        acl.host,
        acl.operation.name,
        acl.resource.name,
        acl.pattern.name,
        acl.name,
    ]


def acl_from_json(value: list[Any]) -> Acl:
    """Raises KeyError, ValueError: not what `acl_to_json` wrote."""
    permission, principal, host, operation, resource, pattern, name = value
    return Acl(Resource[resource], name, Pattern[pattern], principal, host, Operation[operation], Permission[permission])
