"""SASL SCRAM-SHA-256 and -512, the server's side (RFC 5802, RFC 7677), as KIP-84 has it; KIP-48's `tokenauth` extension.

Whether a user exists shows nowhere: who does not gets the challenge of a decoy, and the proof that he sends is never right.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from typing import Protocol

from logflume.log.broker.replies import Reply

from .credentials import Mechanism, ScramCredential
from .login import Identity, LoginFailed, Step

MAX_MESSAGE_BYTES = 8192
NONCE_BYTES = 24
_NONCE = re.compile(r"[\x21-\x2b\x2d-\x7e]{1,1024}")
_EXTENSION = re.compile(r"[A-Za-z]+=[^,\0]*")


class Accounts(Protocol):
    """Where an exchange looks for who logs in."""

    def find(self, user: str, mechanism: Mechanism, *, is_token: bool) -> tuple[ScramCredential, Identity | None]:
        """Return a credential and who it stands for; a decoy and None for a user that does not exist."""
        ...


class ScramExchange:
    """One exchange: client-first, server-first, client-final, server-final."""

    __slots__ = (
        "_accounts",
        "_auth_prefix",
        "_credential",
        "_gs2",
        "_identity",
        "_make_nonce",
        "_mechanism",
        "_nonce",
        "_user",
    )

    def __init__(self, mechanism: Mechanism, accounts: Accounts, make_nonce: Callable[[], str]) -> None:
        """`make_nonce` gives the server's half of a nonce: printable, without a comma, never the same again."""
        self._mechanism, self._accounts, self._make_nonce = mechanism, accounts, make_nonce
        self._nonce = self._gs2 = self._auth_prefix = self._user = ""
        self._credential: ScramCredential | None = None
        self._identity: Identity | None = None

    def respond(self, token: bytes) -> Step | Reply:
        if len(token) > MAX_MESSAGE_BYTES:
            raise LoginFailed(f"a SCRAM message of {len(token)} bytes: expected at most {MAX_MESSAGE_BYTES}")
        try:
            text = token.decode("utf-8")
        except UnicodeDecodeError:
            raise LoginFailed("a SCRAM message is UTF-8 text") from None
        return self._first(text) if self._credential is None else self._final(text, self._credential)

    def _first(self, text: str) -> Step:
        self._gs2, bare = _split_gs2(text)
        fields = bare.split(",")
        if len(fields) < 2 or not fields[0].startswith("n=") or not fields[1].startswith("r="):
            raise LoginFailed("expected n=USER,r=NONCE in the first SCRAM message")
        nonce = fields[1][2:]
        if not _NONCE.fullmatch(nonce):
            raise LoginFailed("a nonce has 1 to 1024 printable characters other than a comma")
        if not all(_EXTENSION.fullmatch(part) for part in fields[2:]):
            raise LoginFailed("an extension that is not NAME=VALUE")
        self._user = saslname(fields[0][2:])
        is_token = "tokenauth=true" in fields[2:]
        self._credential, self._identity = self._accounts.find(self._user, self._mechanism, is_token=is_token)
        self._nonce = nonce + self._make_nonce()
        salt = base64.b64encode(self._credential.salt).decode()
        challenge = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._auth_prefix = f"{bare},{challenge}"
        return Step(challenge.encode())

    def _final(self, text: str, credential: ScramCredential) -> Step:
        without_proof, mark, proof_text = text.rpartition(",p=")
        fields = without_proof.split(",")
        if not mark or len(fields) < 2 or not fields[0].startswith("c=") or not fields[1].startswith("r="):
            raise LoginFailed("expected c=BINDING,r=NONCE,p=PROOF in the last SCRAM message")
        if not all(_EXTENSION.fullmatch(part) and not part.startswith("m=") for part in fields[2:]):
            raise LoginFailed("an extension that is not known and must be")
        if _from_base64(fields[0][2:]) != self._gs2.encode():
            raise LoginFailed("the channel binding is not that of the first message")
        if not hmac.compare_digest(fields[1][2:].encode(), self._nonce.encode()):
            raise LoginFailed("the nonce is not the one of this exchange")
        proof = _from_base64(proof_text)
        hash_name = self._mechanism.hash_name
        auth_message = f"{self._auth_prefix},{without_proof}".encode()
        signature = hmac.digest(credential.stored_key, auth_message, hash_name)
        if len(proof) != len(signature):
            raise LoginFailed("a proof of the wrong length")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        is_right = hmac.compare_digest(hashlib.new(hash_name, client_key).digest(), credential.stored_key)
        if not is_right or self._identity is None:
            raise LoginFailed(f"wrong user or password: {self._user!r}")
        verifier = base64.b64encode(hmac.digest(credential.server_key, auth_message, hash_name)).decode()
        return Step(f"v={verifier}".encode(), self._identity)


def random_nonce(random_bytes: Callable[[int], bytes]) -> str:
    return base64.b64encode(random_bytes(NONCE_BYTES)).decode()


def _split_gs2(text: str) -> tuple[str, str]:
    """Return (GS2 header, bare message) of the client's first message. Raises LoginFailed."""
    parts = text.split(",", 2)
    if len(parts) != 3:
        raise LoginFailed("expected n,,n=USER,r=NONCE as the first SCRAM message")
    binding, acting_as, bare = parts
    if binding not in ("n", "y"):
        raise LoginFailed("channel binding is not supported")
    if bare.startswith("m="):
        raise LoginFailed("an extension that is not known and must be")
    if acting_as and (not acting_as.startswith("a=") or f"n={acting_as[2:]}" != bare.split(",", 1)[0]):
        raise LoginFailed("nobody may act as somebody else")
    return f"{binding},{acting_as},", bare


def saslname(text: str) -> str:
    """Return a name without its escapes. Raises LoginFailed.

    >>> saslname("a=2Cb=3D")
    'a,b='
    """
    if "\0" in text or not text:
        raise LoginFailed("a user name is not empty and has no zero character")
    if re.search(r"=(?!2C|3D)", text):
        raise LoginFailed("a user name with an escape other than =2C and =3D")
    return text.replace("=2C", ",").replace("=3D", "=")


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise LoginFailed("a field of a SCRAM message is not base64") from None
