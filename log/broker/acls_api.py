"""CreateAcls, DescribeAcls, DeleteAcls (KIP-140, KIP-290). ACLs are kept with the cluster's metadata and apply at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from logflume.log.errors import LogflumeError
from logflume.log.protocol import ErrorCode, KafkaError, detail_of, messages

from .access.acls import MAX_ACLS, Acl, new_acl, new_filter
from .access.store import load_acls, store_acls
from .core import Core
from .seams import RequestContext

NO_AUTHORIZER = "No Authorizer is configured on the broker: set authorizer.class.name"


def describe_acls(core: Core, context: RequestContext, request: Any) -> Any:
    """List the ACLs that a filter selects, by resource."""
    response = messages.DescribeAclsResponse(error_message=None)
    try:
        _require_authorizer(core)
        wanted = new_filter(
            request.resource_type_filter,
            request.resource_name_filter,
            request.pattern_type_filter,
            request.principal_filter,
            request.host_filter,
            request.operation,
            request.permission_type,
        )
    except KafkaError as error:
        response.error_code, response.error_message = error.number, detail_of(error)
        return response
    by_resource: dict[tuple[int, str, int], list[Acl]] = {}
    for acl in load_acls(core.cluster):
        if wanted.selects(acl):
            by_resource.setdefault((acl.resource, acl.name, acl.pattern), []).append(acl)
    response.resources = [
        response.DescribeAclsResource(
            resource_type=resource,
            resource_name=name,
            pattern_type=pattern,
            acls=[
                response.AclDescription(
                    principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission
                )
                for acl in acls
            ],
        )
        for (resource, name, pattern), acls in by_resource.items()
    ]
    return response


def create_acls(core: Core, context: RequestContext, request: Any) -> Any:
    """Add ACLs; each succeeds or fails alone, and one that is there already succeeds."""
    response = messages.CreateAclsResponse()
    old = load_acls(core.cluster)
    new = dict.fromkeys(old)
    for asked in request.creations:
        result = response.AclCreationResult(error_message=None)
        response.results.append(result)
        try:
            _require_authorizer(core)
            acl = new_acl(
                asked.resource_type,
                asked.resource_name,
                asked.resource_pattern_type,
                asked.principal,
                asked.host,
                asked.operation,
                asked.permission_type,
            )
            if len(new) >= MAX_ACLS and acl not in new:
                raise KafkaError(ErrorCode.POLICY_VIOLATION, f"this cluster keeps at most {MAX_ACLS} ACLs; use prefixed ones")
        except KafkaError as error:
            result.error_code, result.error_message = error.number, detail_of(error)
            continue
        new[acl] = None
    if len(new) > len(old):
        error_after = _store(core, new)
        for result in response.results:
            if error_after is not None and not result.error_code:
                result.error_code, result.error_message = ErrorCode.KAFKA_STORAGE_ERROR, str(error_after)
    return response


def delete_acls(core: Core, context: RequestContext, request: Any) -> Any:
    """Remove the ACLs that each filter selects, and tell which they were."""
    response = messages.DeleteAclsResponse()
    left = dict.fromkeys(load_acls(core.cluster))
    gone: set[Acl] = set()
    for asked in request.filters:
        result = response.DeleteAclsFilterResult(error_message=None)
        response.filter_results.append(result)
        try:
            _require_authorizer(core)
            wanted = new_filter(
                asked.resource_type_filter,
                asked.resource_name_filter,
                asked.pattern_type_filter,
                asked.principal_filter,
                asked.host_filter,
                asked.operation,
                asked.permission_type,
            )
        except KafkaError as error:
            result.error_code, result.error_message = error.number, detail_of(error)
            continue
        selected = [acl for acl in left if wanted.selects(acl)]
        gone.update(selected)
        result.matching_acls = [_deleted(response, acl) for acl in selected]
    error_after = _store(core, [acl for acl in left if acl not in gone]) if gone else None
    if error_after is not None:
        for result in response.filter_results:
            result.matching_acls = []
            result.error_code, result.error_message = ErrorCode.KAFKA_STORAGE_ERROR, str(error_after)
    return response


def _deleted(response: Any, acl: Acl) -> Any:
    return response.DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=acl.resource,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def _require_authorizer(core: Core) -> None:
    if core.authorizer is None:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)


def _store(core: Core, acls: Iterable[Acl]) -> LogflumeError | None:
    """Keep the ACLs, durably, then let them apply; return the error that kept that from happening."""
    kept = tuple(acls)
    try:
        store_acls(core.cluster, kept)
    except LogflumeError as error:
        return error
    assert core.authorizer is not None
    core.authorizer.set_acls(kept)
    return None
