"""The client's side of SASL: PLAIN (RFC 4616), SCRAM (RFC 5802, RFC 7677), OAUTHBEARER (RFC 7628) and GSSAPI (RFC 4752).

An exchange is a generator that yields tokens and is sent the broker's; it raises LoginRefused if the broker is not to be trusted.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import re
from collections.abc import Callable, Generator

from logflume.log.errors import InvalidInput

from .errors import LoginRefused
from .security import Security

Exchange = Generator[bytes, bytes, None]
"""Yields the client's tokens, is sent the broker's; ends when the client is satisfied."""
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 1_000_000
"""Of SCRAM: fewer are not safe, more would keep the client busy at a broker's whim."""
_BEARER = re.compile(r"[A-Za-z0-9._~+/-]+=*")


def exchange_of(security: Security, *, host: str, random_bytes: Callable[[int], bytes] = os.urandom) -> Exchange:
    """Return the exchange that the settings ask for; secrets are read now. Raises InvalidInput.

    `host`: the broker's, whose service a ticket of Kerberos is for.
    """
    if security.mechanism == "GSSAPI":
        from .kerberos import kerberos

        return kerberos(security, host)
    if security.mechanism == "OAUTHBEARER":
        return bearer(token_of(security))
    user, password = security.username, security.secret("sasl.password")
    if not user or not password:
        raise InvalidInput("sasl.username or sasl.password is empty")
    if security.mechanism == "PLAIN":
        return plain(user, password)
    hash_name = "sha256" if security.mechanism == "SCRAM-SHA-256" else "sha512"
    nonce = base64.b64encode(random_bytes(24)).decode()
    return scram(user, password, hash_name, nonce, is_token=security.is_delegated)


def advance(exchange: Exchange, answer: bytes | None) -> bytes | None:
    """Hand over the broker's answer (None to begin); return the next token, None at the end."""
    try:
        return next(exchange) if answer is None else exchange.send(answer)
    except StopIteration:
        return None


def plain(user: str, password: str) -> Exchange:
    """User and password in one token."""
    if "\0" in user + password:
        raise InvalidInput("sasl.username and sasl.password have no zero character")
    yield f"\0{user}\0{password}".encode()


def scram(user: str, password: str, hash_name: str, nonce: str, *, is_token: bool = False) -> Exchange:
    """Proves the password without sending it, and that the broker knows it too. `is_token`: of a delegation token (KIP-48)."""
    name = user.replace("=", "=3D").replace(",", "=2C")
    first = f"n={name},r={nonce}{',tokenauth=true' if is_token else ''}"
    challenge = _text((yield b"n,," + first.encode()))
    fields = _fields(challenge)
    combined, iterations = fields.get("r", ""), fields.get("i", "")
    if not combined.startswith(nonce) or len(combined) == len(nonce):
        raise LoginRefused("the broker's nonce is not an answer to the client's")
    if not iterations.isdecimal() or len(iterations) > 7 or not MIN_ITERATIONS <= int(iterations) <= MAX_ITERATIONS:
        raise LoginRefused(f"the broker asks for {iterations[:20]!r} iterations, expected {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), _unbase64(fields.get("s", "")), int(iterations))
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    without_proof = f"c=biws,r={combined}"
    auth_message = f"{first},{challenge},{without_proof}".encode()
    signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), auth_message, hash_name)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    verifier = _unbase64(_fields(_text((yield f"{without_proof},p={proof}".encode()))).get("v", ""))
    expected = hmac.digest(hmac.digest(salted, b"Server Key", hash_name), auth_message, hash_name)
    if not hmac.compare_digest(verifier, expected):
        raise LoginRefused("the broker does not know the password: it is not the one that it should be")


def bearer(token: str) -> Exchange:
    """A token of an identity provider; a broker that refuses it says why."""
    if not _BEARER.fullmatch(token):
        raise InvalidInput("the token of OAUTHBEARER is empty or has characters that a token has not")
    problem = yield f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    if problem:
        yield b"\x01"
        raise LoginRefused(f"the broker refused the token: {problem[:200]!r}")


def token_of(security: Security) -> str:
    """Return a token: from the callback, the settings, or the provider's token endpoint. Raises InvalidInput, LoginRefused."""
    if security.token is not None:
        return security.token()
    token = security.secret("sasl.oauthbearer.token")
    return token or _fetch_token(security)


def _fetch_token(security: Security) -> str:
    """Ask a token endpoint with the client's own credentials (RFC 6749, section 4.4)."""
    from urllib.error import URLError
    from urllib.parse import quote, urlencode, urlsplit
    from urllib.request import Request, urlopen

    url = security.settings["sasl.oauthbearer.token.endpoint.url"]
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")):
        raise InvalidInput(f"sasl.oauthbearer.token.endpoint.url expects https://, found {parts.scheme}://")
    client_id = security.settings.get("sasl.oauthbearer.client.id", "")
    secret = security.secret("sasl.oauthbearer.client.secret")
    form = {"grant_type": "client_credentials"}
    if scope := security.settings.get("sasl.oauthbearer.scope"):
        form["scope"] = scope
    credentials = base64.b64encode(f"{quote(client_id)}:{quote(secret)}".encode()).decode()
    request = Request(url, data=urlencode(form).encode(), headers={"Authorization": f"Basic {credentials}"})
    try:
        with urlopen(request, timeout=10) as answer:
            return str(json.loads(answer.read(1 << 20))["access_token"])
    except (URLError, OSError) as error:
        raise LoginRefused(f"the token endpoint {url} cannot be asked: {getattr(error, 'reason', error)}") from None
    except (ValueError, KeyError, TypeError):
        raise LoginRefused(f"the token endpoint {url} answered without an access_token") from None


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise LoginRefused("the broker's token is not text") from None


def _fields(text: str) -> dict[str, str]:
    return {part[0]: part[2:] for part in text.split(",") if part[1:2] == "="}


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise LoginRefused("the broker's token is not what SCRAM expects") from None
