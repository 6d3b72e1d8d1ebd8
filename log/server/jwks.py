"""The public keys of an identity provider (JWKS, RFC 7517): from a file, or from an https URL that the settings allow.

Nothing is fetched from anywhere else: no redirect is followed, an answer is bounded in bytes and time, and a token's own header
never says where to look.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from logflume.log.broker.ports import Offload
from logflume.log.errors import InvalidInput, LogflumeError, TransportError

MAX_BYTES, MAX_KEYS = 1 << 20, 1000
FETCH_TIMEOUT_S = 10.0
FILE_PREFIX = "file://"
_log = logging.getLogger("logflume.logins")


class Jwks:
    """The keys by id. Invariant: `_keys` is what was read last without a fault; what could not be read since is in the log."""

    def __init__(self, source: str, *, allowed: Sequence[str], refresh_ms: int, retry_ms: int, offload: Offload) -> None:
        """Raises InvalidInput: a source that is not allowed; a file that cannot be read or holds no keys."""
        self._source, self._refresh_s, self._retry_s = source, refresh_ms / 1000, retry_ms / 1000
        self._offload = offload
        self._keys: Mapping[str, Any] = {}
        self._read_s: float | None = None
        self._tried_s = float("-inf")
        self._is_reading = self._is_wanted = False
        self.is_file = "://" not in source or source.startswith(FILE_PREFIX)
        if self.is_file:
            self._keys, self._read_s = read_keys(_from_file(source)), time.monotonic()
        else:
            check_url(source, allowed)
        self._stamp = self._file_stamp()

    def find(self, key_id: str) -> Any | None:
        """Return a key; one that is not there is looked for at the next refresh, at most every `retry_ms`."""
        found = self._keys.get(key_id)
        if found is None:
            self._is_wanted = True
        return found

    def refresh(self) -> None:
        """Read the keys again if it is time; call it every few seconds. A fault leaves the old ones."""
        now_s = time.monotonic()
        is_due = self._read_s is None or self._is_wanted or now_s - self._read_s >= self._refresh_s
        is_due = is_due or (self.is_file and self._file_stamp() != self._stamp)
        if is_due and not self._is_reading and now_s - self._tried_s >= self._retry_s:
            self._is_reading, self._is_wanted, self._tried_s, self._stamp = True, False, now_s, self._file_stamp()
            self._offload(lambda: read_keys(_from_file(self._source) if self.is_file else _fetch(self._source))).then(self._take)

    def _take(self, keys: Any) -> None:
        self._is_reading = False
        if isinstance(keys, Exception):
            reason = keys if isinstance(keys, LogflumeError) else type(keys).__name__
            _log.error("the keys of the identity provider keep their old state: %s", reason)
            return
        self._keys, self._read_s = keys, time.monotonic()

    def _file_stamp(self) -> tuple[int, int] | None:
        if not self.is_file:
            return None
        try:
            status = os.stat(self._source.removeprefix(FILE_PREFIX))
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size


def check_url(url: str, allowed: Sequence[str]) -> None:
    """Raise InvalidInput unless keys may be fetched from a URL: https, and named in full in the settings."""
    if url not in allowed:
        expected = "name it in logflume.sasl.oauthbearer.allowed.urls too"
        raise InvalidInput(f"sasl.oauthbearer.jwks.endpoint.url {url[:200]} is not an allowed URL; {expected}")
    if not url.startswith("https://"):
        raise InvalidInput(f"sasl.oauthbearer.jwks.endpoint.url expects https:// or a file, found {url[:200]}")


def read_keys(raw: bytes) -> dict[str, Any]:
    """Return the public keys of a JWKS by id; keys without one and shared secrets are left out. Raises InvalidInput."""
    from joserfc.errors import JoseError
    from joserfc.jwk import import_key

    try:
        listed = json.loads(raw)["keys"]
        if not isinstance(listed, list) or len(listed) > MAX_KEYS:
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise InvalidInput(f"expected a JWKS: a JSON object with at most {MAX_KEYS} keys") from None
    keys: dict[str, Any] = {}
    for each in listed:
        if isinstance(each, dict) and isinstance(each.get("kid"), str) and each.get("kty") in ("RSA", "EC", "OKP"):
            try:
                keys[each["kid"]] = import_key({name: value for name, value in each.items() if name != "d"})
            except (JoseError, ValueError, TypeError):
                _log.warning("the identity provider's key %r cannot be read and is left out", each["kid"][:100])
    if not keys:
        raise InvalidInput("a JWKS without a public key that has an id (kid)")
    return keys


def _from_file(source: str) -> bytes:
    path = source.removeprefix(FILE_PREFIX)
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"sasl.oauthbearer.jwks.endpoint.url: cannot read {path}: {error.strerror or error}") from None
    if len(raw) > MAX_BYTES:
        raise InvalidInput(f"{path} has more than {MAX_BYTES} bytes")
    return raw


def _fetch(url: str) -> bytes:
    """Fetch a URL that was allowed. Raises TransportError."""
    import urllib.error
    import urllib.request

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    try:
        raw, until_s = b"", time.monotonic() + FETCH_TIMEOUT_S
        with urllib.request.build_opener(NoRedirect, urllib.request.ProxyHandler({})).open(
            url, timeout=FETCH_TIMEOUT_S
        ) as answer:
            while len(raw) <= MAX_BYTES and (chunk := answer.read1(65_536)):
                raw += chunk
                if time.monotonic() > until_s:
                    raise TransportError(f"{url} took longer than {FETCH_TIMEOUT_S:g} s")
    except (urllib.error.URLError, OSError) as error:
        raise TransportError(f"{url} cannot be read: {getattr(error, 'reason', error)}") from None
    if len(raw) > MAX_BYTES:
        raise TransportError(f"{url} answers with more than {MAX_BYTES} bytes")
    return raw
