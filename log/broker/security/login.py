"""The login of one connection: SaslHandshake, SaslAuthenticate, and again before the session ends (KIP-43, KIP-152, KIP-368).

Pure: what a mechanism decides is its `Exchange`'s, time comes from a clock, and work that takes long is handed to `Offload`.
A login that failed is answered after a pause and its connection is closed, so that guessing costs time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from logflume.log.broker.ports import Clock, Timers
from logflume.log.broker.replies import Reply, as_reply
from logflume.log.errors import LogflumeError
from logflume.log.protocol import ErrorCode, messages

SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36
BEFORE_LOGIN = frozenset({SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE})
"""The API keys that are legal before a login."""
MAX_STEPS = 8
"""Tokens of one login; the longest mechanism needs three."""
MAX_LABELS = 32


class LoginFailed(LogflumeError):
    """A login was refused. The message goes to the client: it says nothing about which users there are."""

    code = "LOGIN_FAILED"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who logged in.

    Attributes:
        principal: as `User:alice`.
        expires_ms: wall time at which the credentials end, None for never.
        is_valid: whether the credentials are still those of the login; asked at each request, so it must be cheap.
        is_by_token: by a delegation token, which may not ask for further ones.
    """

    principal: str
    expires_ms: int | None = None
    is_valid: Callable[[], bool] = field(default=lambda: True, compare=False)
    is_by_token: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """What a mechanism says to a token: a challenge, and at the end of the exchange who it was."""

    challenge: bytes
    identity: Identity | None = None


class Exchange(Protocol):
    """The server's side of one exchange of a mechanism."""

    def respond(self, token: bytes) -> Step | Reply:
        """Answer the client's token; a `Reply` is set to a Step or an exception. Raises LoginFailed."""
        ...


class LoginCounts:
    """Logins of a broker by (mechanism, outcome): `ok` or `failed`."""

    def __init__(self) -> None:
        self.by_outcome: Counter[tuple[str, str]] = Counter()

    def count(self, mechanism: str, outcome: str) -> None:
        key = (mechanism or "none", outcome)
        if key in self.by_outcome or len(self.by_outcome) < MAX_LABELS:
            self.by_outcome[key] += 1


@dataclass(frozen=True, slots=True)
class LoginPolicy:
    """What the logins of a listener have in common.

    Attributes:
        mechanisms: name -> a new exchange.
        max_reauth_ms: how long a session lasts, 0 for as long as the credentials.
        failed_delay_ms: pause before a refusal is told.
        told: called with (host, mechanism, "", reason) of each refusal, and (host, mechanism, principal, None) of each login.
    """

    mechanisms: Mapping[str, Callable[[], Exchange]]
    clock: Clock
    timers: Timers
    counts: LoginCounts
    max_reauth_ms: int = 0
    failed_delay_ms: int = 100
    told: Callable[[str, str, str, str | None], None] = lambda host, mechanism, principal, reason: None


class _State(Enum):
    NEW = 1
    CHOSEN = 2
    DONE = 3
    FAILED = 4


class Login:
    """Invariant: `principal` is that of the last login that succeeded, else the one it began with."""

    __slots__ = ("_exchange", "_host", "_identity", "_mechanism", "_policy", "_session_end_ms", "_state", "_steps", "expects_raw",
                 "is_required", "principal")  # fmt: skip

    def __init__(self, policy: LoginPolicy, *, principal: str, host: str, is_required: bool = True) -> None:
        """`principal`: who it is until it logs in; `is_required`: nothing but a login is served until then."""
        self._policy, self._host = policy, host
        self.principal, self.is_required = principal, is_required
        self.expects_raw = False
        """The next frame is a bare token: what follows a SaslHandshake of version 0."""
        self._state = _State.NEW
        self._exchange: Exchange | None = None
        self._identity: Identity | None = None
        self._mechanism = ""
        self._session_end_ms: int | None = None
        self._steps = 0

    @property
    def is_by_token(self) -> bool:
        """Whether a delegation token was the credential."""
        return self._identity is not None and self._identity.is_by_token

    @property
    def is_failed(self) -> bool:
        """The login was refused: the connection ends with the answer."""
        return self._state is _State.FAILED

    @property
    def is_waiting(self) -> bool:
        """Nobody has logged in yet who must."""
        return self.is_required and self._identity is None

    def refusal(self, api_key: int) -> str | None:
        """Return why a request may not be handled now, None if it may."""
        if self._identity is None:
            return "a request before the login" if self.is_required and api_key not in BEFORE_LOGIN else None
        if not self._identity.is_valid():
            return f"the credentials of {self.principal} were changed or deleted"
        end_ms = self._session_end_ms
        if end_ms is not None and api_key not in BEFORE_LOGIN and self._policy.clock.monotonic_ms() >= end_ms:
            return f"the session of {self.principal} has ended; log in again (connections.max.reauth.ms)"
        return None

    def handshake(self, mechanism: str, *, version: int) -> messages.SaslHandshakeResponse:
        """Answer SaslHandshake: which mechanism follows."""
        known = sorted(self._policy.mechanisms)
        if not self._may_begin():
            return messages.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
        make = self._policy.mechanisms.get(mechanism)
        if make is None or (self._identity is not None and mechanism != self._mechanism):
            self._state = _State.FAILED
            self._fail_count(mechanism if make else "", f"mechanism {mechanism[:50]!r} is not enabled")
            return messages.SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=known)
        self._exchange, self._mechanism, self._state, self._steps = make(), mechanism, _State.CHOSEN, 0
        self.expects_raw = version == 0
        return messages.SaslHandshakeResponse(mechanisms=known)

    def authenticate(self, token: bytes) -> Reply:
        """Answer a token of the client: a reply set to a SaslAuthenticate response."""
        reply = Reply()
        reply.is_long = True
        if self._state is not _State.CHOSEN or self._exchange is None:
            reply.set(_refused(ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate without a SaslHandshake before it"))
            self._state = _State.FAILED
            return reply
        self._steps += 1
        try:
            if self._steps > MAX_STEPS:
                raise LoginFailed("too many tokens")
            outcome: Any = self._exchange.respond(token)
        except LoginFailed as error:
            outcome = error
        as_reply(outcome).then(lambda step: self._take(step, reply))
        return reply

    def _may_begin(self) -> bool:
        if self._state is _State.NEW:
            return True
        return self._state is _State.DONE and self._session_end_ms is not None

    def _take(self, step: Any, reply: Reply) -> None:
        identity = step.identity if isinstance(step, Step) else None
        if identity is not None and self._identity is not None and identity.principal != self.principal:
            step = LoginFailed("a session cannot go on as somebody else")
        if not isinstance(step, Step):
            reason = str(step) if isinstance(step, LoginFailed) else f"{type(step).__name__} in the mechanism"
            self._fail(reason, reply)
            return
        lifetime_ms = self._accept(step.identity) if step.identity is not None else 0
        reply.set(
            messages.SaslAuthenticateResponse(auth_bytes=step.challenge, session_lifetime_ms=lifetime_ms, error_message=None)
        )

    def _accept(self, identity: Identity) -> int:
        """Take over who it is; return how long the session lasts, 0 for ever."""
        clock = self._policy.clock
        self._identity, self.principal, self._state = identity, identity.principal, _State.DONE
        self._exchange, self.expects_raw = None, False
        ends = [self._policy.max_reauth_ms] if self._policy.max_reauth_ms > 0 else []
        if identity.expires_ms is not None:
            ends.append(max(1, identity.expires_ms - clock.wall_ms()))
        self._session_end_ms = clock.monotonic_ms() + min(ends) if ends else None
        self._policy.counts.count(self._mechanism, "ok")
        self._policy.told(self._host, self._mechanism, self.principal, None)
        return min(ends) if ends else 0

    def _fail(self, reason: str, reply: Reply) -> None:
        self._state, self._exchange = _State.FAILED, None
        mechanism = self._mechanism
        self._fail_count(mechanism, reason)
        text = f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
        response = _refused(ErrorCode.SASL_AUTHENTICATION_FAILED, text)
        delay_ms = self._policy.failed_delay_ms
        if delay_ms > 0:
            self._policy.timers.call_later(delay_ms, lambda: reply.set(response))
        else:
            reply.set(response)

    def _fail_count(self, mechanism: str, reason: str) -> None:
        self._policy.counts.count(mechanism, "failed")
        self._policy.told(self._host, mechanism, "", reason)


def _refused(code: ErrorCode, text: str) -> Any:
    return messages.SaslAuthenticateResponse(error_code=code, error_message=text, auth_bytes=b"")
