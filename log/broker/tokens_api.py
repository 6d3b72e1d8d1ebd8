"""Delegation tokens (KIP-48): asked for over a connection that authenticated, of which there are none here yet.

The answers are those of Apache Kafka on a PLAINTEXT listener.
"""

from __future__ import annotations

from typing import Any

from logflume.log.protocol import ErrorCode, messages

from .core import Core
from .seams import RequestContext

_NOT_ALLOWED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def create_delegation_token(core: Core, context: RequestContext, request: Any) -> Any:
    """Refuse: who asks did not authenticate."""
    return messages.CreateDelegationTokenResponse(error_code=_NOT_ALLOWED)


def renew_delegation_token(core: Core, context: RequestContext, request: Any) -> Any:
    """Refuse: who asks did not authenticate."""
    return messages.RenewDelegationTokenResponse(error_code=_NOT_ALLOWED)


def expire_delegation_token(core: Core, context: RequestContext, request: Any) -> Any:
    """Refuse: who asks did not authenticate."""
    return messages.ExpireDelegationTokenResponse(error_code=_NOT_ALLOWED)


def describe_delegation_token(core: Core, context: RequestContext, request: Any) -> Any:
    """Refuse: who asks did not authenticate."""
    return messages.DescribeDelegationTokenResponse(error_code=_NOT_ALLOWED)
