"""Speaks to a registry of the tests over HTTP."""

from __future__ import annotations

import json
from typing import Any

import httpx

RECORD = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "id", "type": "long"}]}


class Rest:
    """Calls one registry; each call gives (status, answer)."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.client = httpx.Client(base_url=address, timeout=40, trust_env=False)

    def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        answer = self.client.request(method, path, content=None if body is None else json.dumps(body).encode())
        return answer.status_code, answer.json() if answer.content else None

    def ok(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer of a call that must succeed."""
        status, answer = self(method, path, body)
        assert status in (200, 204), answer
        return answer

    def code(self, method: str, path: str, body: Any = None) -> tuple[int, int]:
        """Return status and error code of a call that must fail."""
        status, answer = self(method, path, body)
        assert status >= 400, answer
        assert answer["message"]
        return status, answer["error_code"]

    def register(self, subject: str, schema: Any, **more: Any) -> int:
        """Register a schema, a text or a JSON value; return its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return int(self.ok("POST", f"/subjects/{subject}/versions", {"schema": text, **more})["id"])


def order(*fields: dict[str, Any]) -> dict[str, Any]:
    """Return the record of an order with more fields."""
    return {**RECORD, "fields": [*RECORD["fields"], *fields]}
