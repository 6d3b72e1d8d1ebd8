"""Decides by ACLs, by the rules of Apache Kafka's StandardAuthorizer.

Super users may do everything. Of the ACLs that match resource, principal, host and operation a denial wins, then a permission;
without either, a resource about which no ACL says anything is open exactly if `allow.everyone.if.no.acl.found` is set.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from .acls import Acl
from .rights import SUPER_USER, Rights
from .words import IMPLIED_BY, WILDCARD, Operation, Pattern, Permission, Resource

MAX_CACHED = 10_000
"""Decisions kept per principal and host, and rights kept at all; beyond that they are made anew."""
OWNER = "Owner:local"
"""The principal of connections that only the owner of the data directory can make: this process, and its Unix socket. Whoever
can make them can read and write the files themselves, so they are not restricted; no administrator locks himself out."""

_NO_NAME = "\0"
"""A name that no resource has: what is said of it is said of every resource."""

_log = logging.getLogger("logflume.authorizer")


class AclAuthorizer:
    """The ACLs of a cluster, indexed, and the rights that follow from them.

    Invariant: every `Rights` in `_rights` was made from the present ACLs.
    """

    def __init__(self, acls: Iterable[Acl] = (), *, super_users: Iterable[str] = (), is_open_without_acls: bool = False) -> None:
        self._super_users = frozenset(super_users) | {OWNER}
        self.is_open_without_acls = is_open_without_acls
        self._rights: dict[tuple[str, str], Rights] = {}
        self._exact: dict[tuple[Resource, str], dict[Acl, None]] = {}
        self._prefixed: dict[Resource, dict[str, dict[Acl, None]]] = {}
        self._lengths: dict[Resource, Counter[int]] = {}
        self.add(acls)

    def add(self, acls: Iterable[Acl]) -> None:
        """Let ACLs apply to decisions from now on; one that applies already stays."""
        self._rights = {}
        for acl in acls:
            if acl.pattern is Pattern.PREFIXED:
                by_prefix = self._prefixed.setdefault(acl.resource, {})
                if acl.name not in by_prefix:
                    by_prefix[acl.name] = {}
                    self._lengths.setdefault(acl.resource, Counter())[len(acl.name)] += 1
                by_prefix[acl.name][acl] = None
            else:
                self._exact.setdefault((acl.resource, acl.name), {})[acl] = None

    def remove(self, acls: Iterable[Acl]) -> None:
        """Let ACLs that apply do so no more."""
        self._rights = {}
        for acl in acls:
            if acl.pattern is Pattern.PREFIXED:
                by_prefix = self._prefixed[acl.resource]
                del by_prefix[acl.name][acl]
                if not by_prefix[acl.name]:
                    del by_prefix[acl.name]
                    lengths = self._lengths[acl.resource]
                    lengths[len(acl.name)] -= 1
                    if not lengths[len(acl.name)]:
                        del lengths[len(acl.name)]
            else:
                about = self._exact[acl.resource, acl.name]
                del about[acl]
                if not about:
                    del self._exact[acl.resource, acl.name]

    def rights(self, principal: str, host: str) -> Rights:
        """Return the rights of a principal that comes from a host (an address)."""
        found = self._rights.get((principal, host))
        if found is None:
            if len(self._rights) >= MAX_CACHED:
                self._rights.clear()
            found = SUPER_USER if principal in self._super_users else _AclRights(self, principal, host)
            self._rights[principal, host] = found
        return found

    def about(self, resource: Resource, name: str) -> Iterator[Acl]:
        """Yield the ACLs that have a say about a resource: its own, those of its prefixes, those of `*`."""
        yield from self._exact.get((resource, name), ())
        if name != WILDCARD:
            yield from self._exact.get((resource, WILDCARD), ())
        prefixed = self._prefixed.get(resource)
        if prefixed:
            for length in self._lengths[resource]:
                if length <= len(name):
                    yield from prefixed.get(name[:length], ())

    def of_type(self, resource: Resource) -> Iterator[Acl]:
        """Yield all ACLs about resources of a type."""
        for (kind, _), acls in self._exact.items():
            if kind is resource:
                yield from acls
        for acls in self._prefixed.get(resource, {}).values():
            yield from acls


class _AclRights:
    """See `rights.Rights`: decides by the ACLs of its authorizer, each question once."""

    __slots__ = ("_address", "_authorizer", "_decided", "_host", "_principal")

    def __init__(self, authorizer: AclAuthorizer, principal: str, host: str) -> None:
        self._authorizer, self._principal, self._host = authorizer, principal, host
        self._address: IPv4Address | IPv6Address | None
        try:
            self._address = ip_address(host.partition("%")[0])
        except ValueError:
            self._address = None
        self._address = getattr(self._address, "ipv4_mapped", None) or self._address
        self._decided: dict[tuple[Operation, Resource, str], bool] = {}

    def allows(self, operation: Operation, resource: Resource, name: str) -> bool:
        key = (operation, resource, name)
        decided = self._decided.get(key)
        if decided is None:
            if len(self._decided) >= MAX_CACHED:
                self._decided.clear()
            decided = self._decided[key] = self._decide(operation, resource, name)
            if not decided:
                _log.debug("%s from %s may not %s %s %r", self._principal, self._host, operation.name, resource.name, name)
        return decided

    def _decide(self, operation: Operation, resource: Resource, name: str) -> bool:
        has_acl = is_allowed = False
        for acl in self._authorizer.about(resource, name):
            has_acl = True
            if self._concerns(acl):
                if acl.permission is Permission.DENY and acl.operation in (Operation.ALL, operation):
                    return False
                is_allowed = is_allowed or _permits(acl, operation)
        return is_allowed or (not has_acl and self._authorizer.is_open_without_acls)

    def allows_some(self, operation: Operation, resource: Resource) -> bool:
        if self._decide(operation, resource, _NO_NAME):
            return True
        own = [acl for acl in self._authorizer.of_type(resource) if self._concerns(acl)]
        denied = [acl for acl in own if acl.permission is Permission.DENY and acl.operation in (Operation.ALL, operation)]
        if any(acl.pattern is Pattern.LITERAL and acl.name == WILDCARD for acl in denied):
            return False
        return any(_permits(acl, operation) and not any(_covers(deny, acl) for deny in denied) for acl in own)

    def _concerns(self, acl: Acl) -> bool:
        return self._is_principal(acl.principal) and self._is_host(acl.host)

    def _is_principal(self, principal: str) -> bool:
        if principal == self._principal:
            return True
        return principal == "User:*" and self._principal.startswith("User:")

    def _is_host(self, host: str) -> bool:
        """Whether a host of an ACL is this one: by text, or as an address in whatever form, or as a range that holds it."""
        if host in (WILDCARD, self._host):
            return True
        if self._address is None:
            return False
        try:
            network: IPv4Network | IPv6Network = ip_network(host, strict=False)
        except ValueError:
            return False
        return self._address in network


def _permits(acl: Acl, operation: Operation) -> bool:
    if acl.permission is not Permission.ALLOW:
        return False
    return acl.operation in (Operation.ALL, operation) or acl.operation in IMPLIED_BY.get(operation, ())


def _covers(deny: Acl, allow: Acl) -> bool:
    """Whether the denial takes away everything that the other ACL permits."""
    if deny.pattern is Pattern.PREFIXED:
        return allow.name.startswith(deny.name) and not (allow.pattern is Pattern.LITERAL and allow.name == WILDCARD)
    return allow.pattern is Pattern.LITERAL and allow.name == deny.name
