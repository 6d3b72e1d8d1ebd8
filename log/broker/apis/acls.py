"""CreateAcls, DescribeAcls, DeleteAcls (KIP-140, KIP-290). ACLs are kept with the cluster's metadata and apply at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice

from logflume.log.broker.access.acls import MAX_ACLS, Acl, AclFilter, new_acl, new_filter
from logflume.log.broker.core import Core
from logflume.log.broker.replies import Refusable
from logflume.log.broker.requests import RequestContext
from logflume.log.broker.security.acl_store import DOCUMENT, AclStore
from logflume.log.broker.turns.slices import Steps
from logflume.log.errors import LogflumeError
from logflume.log.protocol import ErrorCode, KafkaError, detail_of, messages

NO_AUTHORIZER = "No Authorizer is configured on the broker: set authorizer.class.name"
JUDGED_AT_A_TIME, ANSWERS_AT_A_TIME = 5_000, 1_000
"""ACLs that a filter is asked about, and that are told or made, in one slice of the loop's time."""


def describe_acls(core: Core, context: RequestContext, request: messages.DescribeAclsRequest) -> Steps:
    """List the ACLs that a filter selects, by resource."""
    response = messages.DescribeAclsResponse(error_message=None)
    try:
        store = _require_authorizer(core)
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
    selected = yield from _selected(wanted, store.all())
    by_resource: dict[tuple[int, str, int], messages.DescribeAclsResponse.DescribeAclsResource] = {}
    for number, acl in enumerate(selected, start=1):
        of_resource = by_resource.get((acl.resource, acl.name, acl.pattern))
        if of_resource is None:
            of_resource = by_resource[acl.resource, acl.name, acl.pattern] = response.DescribeAclsResource(
                resource_type=acl.resource, resource_name=acl.name, pattern_type=acl.pattern
            )
        of_resource.acls.append(
            response.AclDescription(
                principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission
            )
        )
        if number % ANSWERS_AT_A_TIME == 0:
            yield None
    response.resources = list(by_resource.values())
    return response


def _selected(wanted: AclFilter, acls: Collection[Acl]) -> Steps:
    """Return a list of those ACLs that a filter selects; they must not change meanwhile."""
    only_one = wanted.only_one()
    if only_one is not None:
        return [only_one] if only_one in acls else []
    selected: list[Acl] = []
    left = iter(acls)
    while part := list(islice(left, JUDGED_AT_A_TIME)):
        selected += [acl for acl in part if wanted.selects(acl)]
        if len(part) == JUDGED_AT_A_TIME:
            yield None
    return selected


def create_acls(core: Core, context: RequestContext, request: messages.CreateAclsRequest) -> Steps:
    """Add ACLs; each succeeds or fails alone, and one that is there already succeeds."""
    return (yield from core.cluster.in_turn(DOCUMENT, _create(core, request)))


def _create(core: Core, request: messages.CreateAclsRequest) -> Steps:
    response = messages.CreateAclsResponse()
    old = core.acls.all() if core.acls else {}
    new: dict[Acl, None] = {}
    for number, asked in enumerate(request.creations, start=1):
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
            if acl not in old:
                if len(old) + len(new) >= MAX_ACLS and acl not in new:
                    raise KafkaError(ErrorCode.POLICY_VIOLATION, f"this cluster keeps at most {MAX_ACLS} ACLs; use prefixed ones")
                new[acl] = None
        except KafkaError as error:
            result.error_code, result.error_message = error.number, detail_of(error)
        if number % ANSWERS_AT_A_TIME == 0:
            yield None
    if new:
        try:
            yield from _require_authorizer(core).change(added=new)
        except LogflumeError as error:
            _fail((result for result in response.results if not result.error_code), error)
    return response


def delete_acls(core: Core, context: RequestContext, request: messages.DeleteAclsRequest) -> Steps:
    """Remove the ACLs that each filter selects, and tell which they were; each ACL is told once."""
    return (yield from core.cluster.in_turn(DOCUMENT, _delete(core, request)))


def _delete(core: Core, request: messages.DeleteAclsRequest) -> Steps:
    response = messages.DeleteAclsResponse()
    left = core.acls.all() if core.acls else {}
    gone: list[Acl] = []
    for number, asked in enumerate(request.filters, start=1):
        if number % ANSWERS_AT_A_TIME == 0:
            yield None
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
        selected = yield from _selected(wanted, left)
        gone += selected
        for told, acl in enumerate(selected, start=1):
            del left[acl]
            result.matching_acls.append(_deleted(acl))
            if told % ANSWERS_AT_A_TIME == 0:
                yield None
    if gone:
        try:
            yield from _require_authorizer(core).change(removed=gone)
        except LogflumeError as error:
            for result in response.filter_results:
                result.matching_acls = []
            _fail(response.filter_results, error)
    return response


def _deleted(acl: Acl) -> messages.DeleteAclsResponse.DeleteAclsMatchingAcl:
    return messages.DeleteAclsResponse.DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=acl.resource,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def _require_authorizer(core: Core) -> AclStore:
    if core.acls is None:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    return core.acls


def _fail(results: Iterable[Refusable], error: LogflumeError) -> None:
    for result in results:
        result.error_code, result.error_message = ErrorCode.KAFKA_STORAGE_ERROR, str(error)
