"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554). What is secret goes in and never comes out."""

from __future__ import annotations

from collections import Counter
from typing import Any

from logflume.log.errors import LogflumeError
from logflume.log.protocol import ErrorCode, KafkaError, detail_of, messages

from .access.scram import MAX_USERS, check_user, load_credentials, make_credential, mechanism_of, store_credentials
from .core import Core
from .seams import RequestContext


def describe_user_scram_credentials(core: Core, context: RequestContext, request: Any) -> Any:
    """List mechanisms and iterations of users; of all without names."""
    response = messages.DescribeUserScramCredentialsResponse(error_message=None)
    credentials = load_credentials(core.cluster)
    times = Counter(user.name for user in request.users or ()) or Counter(credentials.keys())
    for name, count in times.items():
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


def alter_user_scram_credentials(core: Core, context: RequestContext, request: Any) -> Any:
    """Delete, set and replace credentials; each user succeeds or fails alone, and may be named once."""
    response = messages.AlterUserScramCredentialsResponse()
    old = load_credentials(core.cluster)
    new = {user: dict(own) for user, own in old.items()}
    times = Counter(change.name for change in (*request.deletions, *request.upsertions))
    deletions = {deletion.name: deletion for deletion in request.deletions}
    upsertions = {upsertion.name: upsertion for upsertion in request.upsertions}
    for name, count in times.items():
        result = response.AlterUserScramCredentialsResult(user=name, error_message=None)
        response.results.append(result)
        try:
            if count > 1:
                raise KafkaError(ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")
            if name in deletions:
                _delete(new, deletions[name])
            else:
                _set(new, upsertions[name])
        except KafkaError as error:
            result.error_code, result.error_message = error.number, detail_of(error)
    if new != old:
        try:
            store_credentials(core.cluster, new)
        except LogflumeError as error:
            for result in response.results:
                if not result.error_code:
                    result.error_code, result.error_message = ErrorCode.KAFKA_STORAGE_ERROR, detail_of(error)
    return response


def _delete(credentials: dict[str, Any], deletion: Any) -> None:
    """Raises KafkaError."""
    check_user(deletion.name)
    mechanism = mechanism_of(deletion.mechanism)
    own = credentials.get(deletion.name, {})
    if mechanism not in own:
        raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
    del own[mechanism]
    if not own:
        del credentials[deletion.name]


def _set(credentials: dict[str, Any], upsertion: Any) -> None:
    """Raises KafkaError."""
    check_user(upsertion.name)
    mechanism = mechanism_of(upsertion.mechanism)
    credential = make_credential(mechanism, upsertion.iterations, upsertion.salt, upsertion.salted_password)
    if upsertion.name not in credentials and len(credentials) >= MAX_USERS:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"this cluster keeps credentials of at most {MAX_USERS} users")
    credentials.setdefault(upsertion.name, {})[mechanism] = credential
