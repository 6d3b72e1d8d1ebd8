"""A small client of a registry's REST interface, for commands and tools: one request at a time, errors as they are told."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import httpx

from logflume.log.errors import InvalidInput, LogflumeError, TransportError

TIMEOUT_S = 40.0


class Refused(LogflumeError):
    """The registry refused a request. `status` is HTTP's, `error_code` the registry's."""

    code = "REGISTRY_REFUSED"

    def __init__(self, status: int, error_code: int, message: str) -> None:
        super().__init__(f"{message} ({error_code})")
        self.status, self.error_code = status, error_code


AUTH_VARIABLE = "LOGFLUME_REGISTRY_AUTH"


class _Bearer(httpx.Auth):
    def __init__(self, token: str) -> None:
        self._token = token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response]:
        request.headers["Authorization"] = f"Bearer {self._token}"
        yield request


def credentials_of(address: str, *, variable: str = AUTH_VARIABLE) -> httpx.Auth | None:
    """Return what a server is told about us: what its address says (`user:password@`), else this variable of the environment.

    Raises:
        InvalidInput: the variable is neither `basic user:password` nor `bearer token`.
    """
    parts = urlsplit(address)
    if parts.username is not None:
        return httpx.BasicAuth(unquote(parts.username), unquote(parts.password or ""))
    given = os.environ.get(variable, "")
    scheme, _, rest = given.partition(" ")
    if scheme.lower() == "bearer" and rest:
        return _Bearer(rest)
    user, colon, password = rest.partition(":")
    if scheme.lower() == "basic" and colon:
        return httpx.BasicAuth(user, password)
    if given:
        raise InvalidInput(f"${variable} is `basic USER:PASSWORD` or `bearer TOKEN`; it is something else")
    return None


class RegistryClient:
    """Speaks to any registry with Confluent's interface. Context manager."""

    def __init__(self, address: str) -> None:
        """`address`: `http://host:port` or `host:port`, with user:password@ where the registry asks for that."""
        self.address = address if "://" in address else f"http://{address}"
        auth = credentials_of(self.address)
        self._http = httpx.Client(auth=auth, base_url=self.address, timeout=httpx.Timeout(TIMEOUT_S, connect=5.0))

    def __enter__(self) -> RegistryClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.close()

    def call(
        self, method: str, *path: str, body: Mapping[str, Any] | None = None, query: Mapping[str, str | int] | None = None
    ) -> Any:
        """Return the answer of one request; `path` in segments, each escaped.

        Raises:
            Refused: the registry's own refusal.
            TransportError: it could not be reached.
        """
        target = "/" + "/".join(quote(part, safe="") for part in path)
        headers = {"Accept": "application/vnd.schemaregistry.v1+json"}
        try:
            answer = self._http.request(method, target, json=body, params=query, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise TransportError(f"no registry answers at {self.address}: {error}; --registry names another") from error
        if answer.is_success:
            return answer.json() if answer.content else None
        try:
            told = answer.json()
            raise Refused(answer.status_code, int(told["error_code"]), str(told["message"]))
        except (ValueError, KeyError, TypeError):
            raise Refused(answer.status_code, answer.status_code, answer.text[:500] or answer.reason_phrase) from None
