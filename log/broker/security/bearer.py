"""SASL OAUTHBEARER (RFC 7628, KIP-255, KIP-768): a signed token (JWT, RFC 7519) of an identity provider says who it is.

What is missing is refused: a token needs a key id, a signature of a key that the provider publishes, issuer, audience, end and
subject. Only signatures by private keys count: neither `none` nor a shared secret is ever an algorithm here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from logflume.log.broker.ports import Keys

from .login import Identity, LoginFailed, Step

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
MAX_TOKEN_BYTES = 16 * 1024
MAX_SUBJECT_CHARS = 256
_FIRST = re.compile(rb"[ny],(a=[^,\x01]{0,1024})?,\x01((?:[A-Za-z]{1,64}=[^\x01]*\x01){1,32})\x01")
_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token must be. `scopes`: all of them must be in the token; `skew_s`: by how much clocks may differ."""

    issuer: str
    audiences: Collection[str]
    scopes: Collection[str] = ()
    skew_s: int = 30
    subject_claim: str = "sub"
    scope_claim: str = "scope"


class BearerExchange:
    """One exchange: a token, and where it is refused the reason, which the client takes note of with one more message."""

    __slots__ = ("_keys", "_now_s", "_refusal", "_rules")

    def __init__(self, rules: TokenRules, keys: Keys, now_s: Callable[[], float]) -> None:
        self._rules, self._keys, self._now_s = rules, keys, now_s
        self._refusal: LoginFailed | None = None

    def respond(self, token: bytes) -> Step:
        if self._refusal is not None:
            raise self._refusal
        acting_as, text = parse_first(token)
        try:
            identity = judge(text, self._rules, self._keys, self._now_s())
            if acting_as and f"User:{acting_as}" != identity.principal:
                raise LoginFailed("a token stands for its subject only")
        except LoginFailed as error:
            self._refusal = error
            return Step(json.dumps({"status": "invalid_token"}).encode())
        return Step(b"", identity)


def parse_first(message: bytes) -> tuple[str, str]:
    """Return (who it acts as, token) of the client's first message. Raises LoginFailed."""
    match = _FIRST.fullmatch(message)
    if match is None:
        raise LoginFailed("expected n,,auth=Bearer TOKEN as the message of OAUTHBEARER")
    try:
        pairs = [pair.partition("=")[::2] for pair in match[2].decode().rstrip("\x01").split("\x01")]
        acting_as = (match[1] or b"a=")[2:].decode()
    except UnicodeDecodeError:
        raise LoginFailed("a message of OAUTHBEARER is UTF-8 text") from None
    given = [value for name, value in pairs if name == "auth"]
    scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN_BYTES:
        raise LoginFailed(f"expected one auth=Bearer TOKEN of at most {MAX_TOKEN_BYTES} bytes")
    return acting_as, token


def judge(text: str, rules: TokenRules, keys: Keys, now_s: float) -> Identity:
    """Return who a token stands for. Raises LoginFailed, which never shows the token."""
    from joserfc import jws
    from joserfc.errors import JoseError

    if not _TOKEN.fullmatch(text):
        raise LoginFailed("a token that is no signed JWT")
    try:
        header = jws.extract_compact(text.encode()).headers()
        key_id, algorithm = header.get("kid"), header.get("alg")
        if algorithm not in ALGORITHMS:
            raise LoginFailed(f"a token signed by {str(algorithm)[:20]!r}; expected one of {', '.join(ALGORITHMS)}")
        if not isinstance(key_id, str) or not key_id:
            raise LoginFailed("a token without a key id (kid)")
        key = keys.find(key_id)
        if key is None:
            raise LoginFailed("a token signed by a key that the provider does not publish")
        claims = json.loads(jws.deserialize_compact(text, key, algorithms=[algorithm]).payload)
    except (JoseError, ValueError, TypeError, KeyError) as error:
        raise LoginFailed(f"a token that cannot be read, or whose signature is wrong ({type(error).__name__})") from None
    if not isinstance(claims, dict):
        raise LoginFailed("a token without claims")
    return _judge_claims(claims, rules, now_s)


def _judge_claims(claims: Mapping[str, Any], rules: TokenRules, now_s: float) -> Identity:
    if claims.get("iss") != rules.issuer:
        raise LoginFailed("a token of another issuer")
    audience = claims.get("aud")
    named = [audience] if isinstance(audience, str) else audience if isinstance(audience, list) else []
    if not any(isinstance(each, str) and each in rules.audiences for each in named):
        raise LoginFailed("a token for another audience")
    end_s = _time(claims, "exp")
    if end_s is None or end_s + rules.skew_s <= now_s:
        raise LoginFailed("a token that has ended, or without an end")
    for claim in ("nbf", "iat"):
        begin_s = _time(claims, claim)
        if begin_s is not None and begin_s - rules.skew_s > now_s:
            raise LoginFailed(f"a token that begins later ({claim})")
    scope = claims.get(rules.scope_claim, ())
    scopes = scope.split() if isinstance(scope, str) else [each for each in scope if isinstance(each, str)]
    missing = [each for each in rules.scopes if each not in scopes]
    if missing:
        raise LoginFailed(f"a token without the scope {missing[0]}")
    subject = claims.get(rules.subject_claim)
    if not isinstance(subject, str) or not 1 <= len(subject) <= MAX_SUBJECT_CHARS or not subject.isprintable():
        raise LoginFailed(f"a token without a name in {rules.subject_claim}")
    return Identity(f"User:{subject}", expires_ms=int((end_s + rules.skew_s) * 1000))


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    """Return a claim that is a time, None without it. Raises LoginFailed."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e11:
        raise LoginFailed(f"a token whose {name} is no time")
    return float(value)
