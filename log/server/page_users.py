"""Who may see the broker's HTTP pages: the users of the cluster, by HTTP basic authentication (RFC 7617) over TLS.

A login here is one of SASL PLAIN: told, counted, delayed and audited like any other. With ACLs it takes the right to describe
the cluster. On a loopback address without TLS of its own there are no users, as for plain listeners.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Any

from logflume.log.broker.access import CLUSTER_NAME, Operation, Resource
from logflume.log.broker.core import Core
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import ANONYMOUS
from logflume.log.broker.security import Login, LoginPolicy
from logflume.log.broker.security.listener_settings import SSL, ListenerSettings
from logflume.log.broker.settings.lookup import BrokerConfig
from logflume.log.http_login import Verdict, basic_credentials

from .addresses import Address
from .listeners import PAGES_LISTENER, has_page_key
from .tls import ListenerTls


class PageUsers:
    """Judges requests for pages."""

    def __init__(self, core: Core, policy: LoginPolicy) -> None:
        self._core, self._policy = core, policy

    async def judge(self, authorization: str, host: str) -> Verdict:
        """Return whether the sender of a request may see everything; `authorization`: the header, "" without."""
        token = plain_token(authorization)
        if token is None:
            return Verdict.UNKNOWN
        login = Login(self._policy, principal=ANONYMOUS, host=host)
        login.handshake("PLAIN", version=1)
        answer = await _value(login.authenticate(token))
        if answer.error_code:
            return Verdict.UNKNOWN
        authorizer = self._core.authorizer
        if authorizer is None or authorizer.rights(login.principal, host).allows(
            Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME
        ):
            return Verdict.WELCOME
        return Verdict.FORBIDDEN


def page_tls(config: BrokerConfig, address: Address) -> ListenerTls | None:
    """Return the TLS of the pages: none on a loopback address, unless its own is set, or where the broker has no key.

    Raises InvalidInput.
    """
    settings = ListenerSettings(config, PAGES_LISTENER, SSL)
    if not has_page_key(settings, address):
        return None
    tls = ListenerTls(settings)
    tls.refresh(time.time())
    return tls


def server_context(tls: ListenerTls) -> ssl.SSLContext:
    """Return the context to listen with; each handshake goes on with the newest one."""
    first = tls.context

    def renewed(sock: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        sock.context = tls.context

    first.sni_callback = renewed
    return first


def plain_token(authorization: str) -> bytes | None:
    """Return the token of PLAIN for a header, None if it is none of basic authentication.

    >>> plain_token("Basic YWRhOnNlY3JldA==")
    b'\\x00ada\\x00secret'
    """
    found = basic_credentials(authorization)
    return b"\0" + b"\0".join(found) if found else None


async def _value(reply: Reply) -> Any:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    reply.then(lambda value: None if future.done() else future.set_result(value))
    return await future
