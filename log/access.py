"""Who there is, who may do what and how much: users, ACLs and quotas of a cluster, over an `Admin`.

For a logflume broker or an Apache Kafka cluster. Each function blocks; raises KafkaError where the broker refuses
(SECURITY_DISABLED without an authorizer) and InvalidInput for words that mean nothing.

    from logflume.log import access, connect
    with connect("localhost:9092") as log:
        rule = access.AclRule("topic", "flights", "User:alice", "read")
        access.create_acls(log.admin(), [rule])
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

from .broker.access.words import CLUSTER_NAME, Operation, Pattern, Permission, Resource
from .broker.quotas.entities import ENTITY_TYPES
from .broker.security.credentials import Mechanism
from .errors import InvalidInput, UnknownName
from .interfaces import Admin
from .protocol import KafkaError, messages

if TYPE_CHECKING:
    _MatchingAcl = messages.DeleteAclsResponse.DeleteAclsMatchingAcl

ANY = "any"
CLUSTER = CLUSTER_NAME
"""The name of the one resource of type cluster."""
USER_ITERATIONS = 8192
MIN_PASSWORD_CHARS = 8
_SALT_BYTES = 16
_EXACT, _DEFAULT = 0, 1
_E = TypeVar("_E", bound=IntEnum)


@dataclass(frozen=True, slots=True)
class AclRule:
    """One ACL, in lower-case words: topic, group, cluster, transactional_id, ...; read, write, ...; literal or prefixed."""

    resource: str
    name: str
    principal: str
    operation: str
    pattern: str = "literal"
    permission: str = "allow"
    host: str = "*"


@dataclass(frozen=True, slots=True)
class AclSelection:
    """Which ACLs: those that agree with all that is given. `pattern` match: all that have a say about `name`."""

    resource: str = ANY
    name: str | None = None
    principal: str | None = None
    operation: str = ANY
    pattern: str = ANY
    permission: str = ANY
    host: str | None = None


@dataclass(frozen=True, slots=True)
class QuotaEntry:
    """The quotas of one entity. `entity`: user, client-id or ip -> name, None for the default of that kind."""

    entity: Mapping[str, str | None]
    quotas: Mapping[str, float]


def create_acls(admin: Admin, rules: Sequence[AclRule]) -> None:
    """Create ACLs; one that is there already stays. Raises KafkaError for the first that is refused; others may be created."""
    creation = messages.CreateAclsRequest.AclCreation
    creations = [
        creation(
            resource_type=_code(Resource, rule.resource, "resource"),
            resource_name=rule.name,
            resource_pattern_type=_code(Pattern, rule.pattern, "pattern"),
            principal=rule.principal,
            host=rule.host,
            operation=_code(Operation, rule.operation, "operation"),
            permission_type=_code(Permission, rule.permission, "permission"),
        )
        for rule in rules
    ]
    for result in admin.request("CreateAcls", creations=creations).results:
        _check(result.error_code, result.error_message)


def list_acls(admin: Admin, selection: AclSelection | None = None) -> list[AclRule]:
    """Return the ACLs of a selection, all without one; sorted by resource and name."""
    response = admin.request("DescribeAcls", **_filter(selection or AclSelection()))
    _check(response.error_code, response.error_message)
    found = [_rule(each, acl) for each in response.resources for acl in each.acls]
    return sorted(found, key=lambda rule: (rule.resource, rule.name, rule.principal, rule.operation))


def delete_acls(admin: Admin, selection: AclSelection) -> list[AclRule]:
    """Delete the ACLs of a selection; return them."""
    asked = messages.DeleteAclsRequest.DeleteAclsFilter(**_filter(selection))
    (result,) = admin.request("DeleteAcls", filters=[asked]).filter_results
    _check(result.error_code, result.error_message)
    for acl in result.matching_acls:
        _check(acl.error_code, acl.error_message)
    return [_rule(acl, acl) for acl in result.matching_acls]


def _filter(selection: AclSelection) -> dict[str, Any]:
    """Return a selection as the fields of a request."""
    return {
        "resource_type_filter": _code(Resource, selection.resource, "resource"),
        "resource_name_filter": selection.name,
        "pattern_type_filter": _code(Pattern, selection.pattern, "pattern"),
        "principal_filter": selection.principal,
        "host_filter": selection.host,
        "operation": _code(Operation, selection.operation, "operation"),
        "permission_type": _code(Permission, selection.permission, "permission"),
    }


def _rule(
    resource: messages.DescribeAclsResponse.DescribeAclsResource | _MatchingAcl,
    acl: messages.DescribeAclsResponse.AclDescription | _MatchingAcl,
) -> AclRule:
    """Return an ACL of a response; what it is on may stand apart from it."""
    return AclRule(
        _word(Resource, resource.resource_type),
        resource.resource_name,
        acl.principal,
        _word(Operation, acl.operation),
        _word(Pattern, resource.pattern_type),
        _word(Permission, acl.permission_type),
        acl.host,
    )


def set_quotas(
    admin: Admin, entity: Mapping[str, str | None], changes: Mapping[str, float | None], *, is_dry_run: bool = False
) -> None:
    """Set quotas of an entity (None: remove); the others stay.

    Args:
        entity: user, client-id or ip -> name, None for the default of that kind; user and client-id may go together.
        changes: producer_byte_rate, consumer_byte_rate (bytes/s), request_percentage, controller_mutation_rate
            (partitions/s); for an ip connection_creation_rate (1/s).
    """
    request = messages.AlterClientQuotasRequest
    entry = request.EntryData(
        entity=[request.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[request.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in changes.items()],
    )
    (result,) = admin.request("AlterClientQuotas", entries=[entry], validate_only=is_dry_run).entries
    _check(result.error_code, result.error_message)


def list_quotas(admin: Admin, entity: Mapping[str, str | None] | None = None) -> list[QuotaEntry]:
    """Return the quotas of all entities, or of those that have these parts (None: the default of a kind)."""
    component = messages.DescribeClientQuotasRequest.ComponentData
    components = [
        component(entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name)
        for kind, name in (entity or {}).items()
    ]
    response = admin.request("DescribeClientQuotas", components=components)
    _check(response.error_code, response.error_message)
    return [
        QuotaEntry(
            {
                part.entity_type: part.entity_name
                for part in sorted(entry.entity, key=lambda p: ENTITY_TYPES.index(p.entity_type))
            },
            {value.key: value.value for value in entry.values},
        )
        for entry in response.entries or ()
    ]


def set_password(admin: Admin, user: str, password: str) -> None:
    """Add a user, or give him a new password: for SCRAM-SHA-256 and -512, and with them PLAIN. The password stays here.

    Raises InvalidInput: a name or password that cannot be.
    """
    if not user or not user.isprintable() or len(user) > 256:
        raise InvalidInput(f"a user's name has 1 to 256 printable characters, found {user[:80]!r}")
    if len(password) < MIN_PASSWORD_CHARS or "\0" in password:
        raise InvalidInput(f"a password has at least {MIN_PASSWORD_CHARS} characters")
    request = messages.AlterUserScramCredentialsRequest
    for mechanism in Mechanism:  # one request each: a user is named once in a request
        salt = os.urandom(_SALT_BYTES)
        salted = hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, USER_ITERATIONS)
        upsertion = request.ScramCredentialUpsertion(
            name=user, mechanism=mechanism, iterations=USER_ITERATIONS, salt=salt, salted_password=salted
        )
        _check_users(admin.request("AlterUserScramCredentials", deletions=[], upsertions=[upsertion]))


def delete_user(admin: Admin, user: str) -> None:
    """Take a user's passwords away; who is connected with them is refused from now on. Raises UnknownName."""
    known = list_users(admin)
    if user not in known:
        raise UnknownName("user", user, known)
    request = messages.AlterUserScramCredentialsRequest
    for name in known[user]:
        mechanism = next(each for each in Mechanism if each.sasl_name == name)
        deletion = request.ScramCredentialDeletion(name=user, mechanism=mechanism)
        _check_users(admin.request("AlterUserScramCredentials", deletions=[deletion], upsertions=[]))


def list_users(admin: Admin) -> dict[str, list[str]]:
    """Return the users with their mechanisms."""
    response = admin.request("DescribeUserScramCredentials", users=None)
    _check(response.error_code, response.error_message)
    return {
        result.user: [Mechanism(info.mechanism).sasl_name for info in result.credential_infos]
        for result in sorted(response.results, key=lambda each: each.user)
    }


def _check_users(response: messages.AlterUserScramCredentialsResponse) -> None:
    for result in response.results:
        _check(result.error_code, result.error_message)


def _code(kind: type[_E], word: str, what: str) -> int:
    """Return the code of a word. Raises UnknownName."""
    known = {member.name.lower(): member for member in kind if member.value}
    found = known.get(word.lower().replace("-", "_"))
    if found is None:
        raise UnknownName(what, word, known)
    return int(found)


def _word(kind: type[IntEnum], code: int) -> str:
    return kind(code).name.lower() if code in kind._value2member_map_ else str(code)


def _check(error_code: int, message: str | None) -> None:
    if error_code:
        raise KafkaError(error_code, message)
