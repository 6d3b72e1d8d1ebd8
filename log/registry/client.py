"""A small client of a registry's REST interface, for commands and tools: one request at a time, errors as they are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx

from logflume.log.errors import LogflumeError, TransportError

from .credentials import auth_headers

TIMEOUT_S = 40.0


class Refused(LogflumeError):
    """The registry refused a request. `status` is HTTP's, `error_code` the registry's."""

    code = "REGISTRY_REFUSED"

    def __init__(self, status: int, error_code: int, message: str) -> None:
        super().__init__(f"{message} ({error_code})")
        self.status, self.error_code = status, error_code


class RegistryClient:
    """Speaks to any registry with Confluent's interface. Context manager."""

    def __init__(self, address: str) -> None:
        """`address`: `http://host:port` or `host:port`, with user:password@ where the registry asks for that."""
        self.address = address if "://" in address else f"http://{address}"
        headers = auth_headers(self.address)
        self._http = httpx.Client(headers=headers, base_url=self.address, timeout=httpx.Timeout(TIMEOUT_S, connect=5.0))

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
