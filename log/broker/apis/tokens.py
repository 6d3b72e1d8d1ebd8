"""Delegation tokens (KIP-48, KIP-373): create, renew, expire and describe them, over a connection that logged in by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from logflume.log.broker.access import Operation, Resource
from logflume.log.broker.core import Core
from logflume.log.broker.requests import ANONYMOUS, RequestContext
from logflume.log.broker.security.tokens import DOCUMENT, DelegationToken
from logflume.log.broker.turns.slices import Steps
from logflume.log.errors import StorageError
from logflume.log.protocol import ErrorCode, KafkaError, messages

Response = TypeVar(
    "Response",
    messages.CreateDelegationTokenResponse,
    messages.RenewDelegationTokenResponse,
    messages.ExpireDelegationTokenResponse,
    messages.DescribeDelegationTokenResponse,
)
Described = messages.DescribeDelegationTokenResponse.DescribedDelegationToken
USER = "User"
TOLD_AT_A_TIME = 200
"""Tokens in one slice of the loop's time."""


def create_delegation_token(core: Core, context: RequestContext, request: messages.CreateDelegationTokenRequest) -> Steps:
    """Make a token for who asks, or for somebody whose tokens he may make (CREATE_TOKENS)."""
    return _answer(core, messages.CreateDelegationTokenResponse(), lambda response: _create(core, context, request, response))


def renew_delegation_token(core: Core, context: RequestContext, request: messages.RenewDelegationTokenRequest) -> Steps:
    """Let a token live on, for its owner and renewers."""

    def renew(response: messages.RenewDelegationTokenResponse) -> Steps:
        token = _own_token(core, context, request.hmac)
        period_ms = request.renew_period_ms
        if period_ms < 0:
            period_ms = core.config.number("delegation.token.expiry.time.ms")
        renewed = yield from core.tokens.renew(token, now_ms=core.clock.wall_ms(), period_ms=period_ms)
        response.expiry_timestamp_ms = renewed.expires_ms

    return _answer(core, messages.RenewDelegationTokenResponse(), renew)


def expire_delegation_token(core: Core, context: RequestContext, request: messages.ExpireDelegationTokenRequest) -> Steps:
    """End a token now (a negative period), or later, for its owner and renewers."""

    def expire(response: messages.ExpireDelegationTokenResponse) -> Steps:
        token, now_ms = _own_token(core, context, request.hmac), core.clock.wall_ms()
        if request.expiry_time_period_ms < 0:
            yield from core.tokens.end(token, at_ms=None)
            response.expiry_timestamp_ms = now_ms
        else:
            at_ms = now_ms + request.expiry_time_period_ms
            response.expiry_timestamp_ms = yield from core.tokens.end(token, at_ms=at_ms)

    return _answer(core, messages.ExpireDelegationTokenResponse(), expire)


def describe_delegation_token(core: Core, context: RequestContext, request: messages.DescribeDelegationTokenRequest) -> Steps:
    """List the tokens that are one's own, and those that one may describe; of some owners, or all."""

    def describe(response: messages.DescribeDelegationTokenResponse) -> Steps:
        _check_allowed(core, context)
        yield from core.tokens.forget_ended(core.clock.wall_ms())
        owners = None if request.owners is None else {f"{each.principal_type}:{each.principal_name}" for each in request.owners}
        for number, token in enumerate(core.tokens.all(), start=1):
            if number % TOLD_AT_A_TIME == 0:
                yield None
            if (owners is None or token.owner in owners) and _may_see(core, context, token):
                response.tokens.append(_described(core, token))

    return _answer(core, messages.DescribeDelegationTokenResponse(), describe)


def _answer(core: Core, response: Response, fill: Callable[[Response], Steps]) -> Steps:
    """Return the response filled, or with the error that came of it."""
    try:
        yield from core.cluster.in_turn(DOCUMENT, fill(response))
    except KafkaError as error:
        response.error_code = error.number
    except StorageError:
        response.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return response


def _create(
    core: Core,
    context: RequestContext,
    request: messages.CreateDelegationTokenRequest,
    response: messages.CreateDelegationTokenResponse,
) -> Steps:
    _check_allowed(core, context)
    owner = context.principal
    if request.owner_principal_name:
        owner = f"{request.owner_principal_type or USER}:{request.owner_principal_name}"
    if not _is_user(owner):
        raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE)
    may_for_others = core.authorizer is not None and context.may(Operation.CREATE_TOKENS, Resource.USER, owner)
    if owner != context.principal and not may_for_others:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
    renewers = [f"{each.principal_type}:{each.principal_name}" for each in request.renewers]
    if not all(map(_is_user, renewers)):
        raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE)
    most_ms = core.config.number("delegation.token.max.lifetime.ms")
    token = yield from core.tokens.make(
        owner,
        context.principal,
        renewers,
        now_ms=core.clock.wall_ms(),
        lifetime_ms=min(most_ms, request.max_lifetime_ms) if request.max_lifetime_ms > 0 else most_ms,
        renew_ms=core.config.number("delegation.token.expiry.time.ms"),
    )
    response.principal_type, _, response.principal_name = token.owner.partition(":")
    response.token_requester_principal_type, _, response.token_requester_principal_name = token.requester.partition(":")
    response.issue_timestamp_ms, response.expiry_timestamp_ms = token.issued_ms, token.expires_ms
    response.max_timestamp_ms, response.token_id, response.hmac = token.max_ms, token.token_id, core.tokens.secret_of(token)


def _check_allowed(core: Core, context: RequestContext) -> None:
    """Raise KafkaError unless who asks logged in by himself, and there are tokens at all."""
    if context.principal == ANONYMOUS or not _is_user(context.principal) or (context.login and context.login.is_by_token):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    if not core.tokens.is_enabled:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)


def _own_token(core: Core, context: RequestContext, secret: bytes) -> DelegationToken:
    """Return the token of a secret for its owner or a renewer. Raises KafkaError."""
    _check_allowed(core, context)
    token = core.tokens.by_secret(bytes(secret))
    if token is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    if context.principal not in (token.owner, token.requester, *token.renewers):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
    if token.expires_ms <= core.clock.wall_ms():
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    return token


def _may_see(core: Core, context: RequestContext, token: DelegationToken) -> bool:
    is_own = context.principal in (token.owner, token.requester, *token.renewers)
    if is_own or core.authorizer is None:  # without rules nobody sees what is another's
        return is_own
    if context.may(Operation.DESCRIBE_TOKENS, Resource.USER, token.owner):
        return True
    return context.may(Operation.DESCRIBE, Resource.DELEGATION_TOKEN, token.token_id)


def _described(core: Core, token: DelegationToken) -> Described:
    """Return a token as the answer has it, with its secret: who may see it may use it."""
    described = Described(
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=core.tokens.secret_of(token),
    )
    described.principal_type, _, described.principal_name = token.owner.partition(":")
    described.token_requester_principal_type, _, described.token_requester_principal_name = token.requester.partition(":")
    renewer = messages.DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer
    for each in token.renewers:
        kind, _, name = each.partition(":")
        described.renewers.append(renewer(principal_type=kind, principal_name=name))
    return described


def _is_user(principal: str) -> bool:
    kind, _, name = principal.partition(":")
    return kind == USER and bool(name)
