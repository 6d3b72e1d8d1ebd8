"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554). What is secret goes in and never comes out."""

from __future__ import annotations

from collections import Counter

from logflume.log.broker.core import Core
from logflume.log.broker.requests import RequestContext
from logflume.log.broker.security.credentials import (
    AT_A_TIME,
    DOCUMENT,
    MAX_USERS,
    Mechanism,
    ScramCredential,
    check_user,
    make_credential,
    mechanism_of,
)
from logflume.log.broker.turns.slices import Steps
from logflume.log.errors import LogflumeError
from logflume.log.protocol import ErrorCode, KafkaError, detail_of, messages


def describe_user_scram_credentials(
    core: Core, context: RequestContext, request: messages.DescribeUserScramCredentialsRequest
) -> Steps:
    """List mechanisms and iterations of users; of all without names."""
    response = messages.DescribeUserScramCredentialsResponse(error_message=None)
    credentials = core.users.credentials
    times = Counter([user.name for user in request.users or ()] or credentials.keys())
    for number, (name, count) in enumerate(times.items(), start=1):
        if number % AT_A_TIME == 0:
            yield None
        result = response.DescribeUserScramCredentialsResult(user=name, error_message=None)
        response.results.append(result)
        if count > 1:
            result.error_code = ErrorCode.DUPLICATE_RESOURCE
            result.error_message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name[:100]}"
        elif name not in credentials:
            result.error_code = ErrorCode.RESOURCE_NOT_FOUND
            result.error_message = f"Attempt to describe a user credential that does not exist: {name[:100]}"
        else:
            result.credential_infos = [
                response.CredentialInfo(mechanism=mechanism, iterations=credential.iterations)
                for mechanism, credential in sorted(credentials[name].items())
            ]
    return response


def alter_user_scram_credentials(
    core: Core, context: RequestContext, request: messages.AlterUserScramCredentialsRequest
) -> Steps:
    """Delete, set and replace credentials; each user succeeds or fails alone, and may be named once."""
    return (yield from core.cluster.in_turn(DOCUMENT, _alter(core, request)))


def _alter(core: Core, request: messages.AlterUserScramCredentialsRequest) -> Steps:
    response = messages.AlterUserScramCredentialsResponse()
    old = core.users.credentials
    changed: dict[str, dict[Mechanism, ScramCredential]] = {}
    users = len(old)
    times = Counter([*(change.name for change in request.deletions), *(change.name for change in request.upsertions)])
    deletions = {deletion.name: deletion for deletion in request.deletions}
    upsertions = {upsertion.name: upsertion for upsertion in request.upsertions}
    for number, (name, count) in enumerate(times.items(), start=1):
        result = response.AlterUserScramCredentialsResult(user=name, error_message=None)
        response.results.append(result)
        own = dict(old.get(name, {}))
        try:
            if count > 1:
                raise KafkaError(ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")
            if name in deletions:
                _delete(own, deletions[name])
            else:
                _set(own, upsertions[name], is_full=name not in old and users >= MAX_USERS)
            changed[name] = own
            users += (name not in old) - (not own)
        except KafkaError as error:
            result.error_code, result.error_message = error.number, detail_of(error)
        if number % AT_A_TIME == 0:
            yield None
    if changed:
        try:
            yield from core.users.change(changed)
        except LogflumeError as error:
            for result in response.results:
                if not result.error_code:
                    result.error_code, result.error_message = ErrorCode.KAFKA_STORAGE_ERROR, detail_of(error)
    return response


def _delete(
    own: dict[Mechanism, ScramCredential], deletion: messages.AlterUserScramCredentialsRequest.ScramCredentialDeletion
) -> None:
    """Raises KafkaError."""
    check_user(deletion.name)
    mechanism = mechanism_of(deletion.mechanism)
    if mechanism not in own:
        raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
    del own[mechanism]


def _set(
    own: dict[Mechanism, ScramCredential],
    upsertion: messages.AlterUserScramCredentialsRequest.ScramCredentialUpsertion,
    *,
    is_full: bool,
) -> None:
    """Raises KafkaError."""
    check_user(upsertion.name)
    mechanism = mechanism_of(upsertion.mechanism)
    credential = make_credential(mechanism, upsertion.iterations, upsertion.salt, upsertion.salted_password)
    if is_full:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"this cluster keeps credentials of at most {MAX_USERS} users")
    own[mechanism] = credential
