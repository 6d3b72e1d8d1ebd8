"""SaslHandshake and SaslAuthenticate: handed to the login of the connection that asks."""

from __future__ import annotations

from logflume.log.broker.core import Core
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import RequestContext
from logflume.log.protocol import ErrorCode, messages


def sasl_handshake(core: Core, context: RequestContext, request: messages.SaslHandshakeRequest) -> messages.SaslHandshakeResponse:
    """Choose a mechanism. On a listener without SASL this is ILLEGAL_SASL_STATE, as Apache Kafka has it."""
    if context.login is None:
        return messages.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
    return context.login.handshake(request.mechanism, version=context.api_version)


def sasl_authenticate(
    core: Core, context: RequestContext, request: messages.SaslAuthenticateRequest
) -> messages.SaslAuthenticateResponse | Reply:
    """Take a token of the mechanism."""
    if context.login is None:
        text = "SaslAuthenticate on a listener without SASL, or after the login"
        return messages.SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=text, auth_bytes=b"")
    return context.login.authenticate(request.auth_bytes)
