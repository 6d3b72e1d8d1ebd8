"""The interface over HTTP, as an ASGI application: find the handler, answer in JSON, forward what only the writer does.

A plain application instead of a framework's: paths are matched before they are decoded (a subject may hold a `/`), and looking a
schema up takes tens of microseconds. Nothing leaves here as an exception: a fault of ours is logged and answered with 50001.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from logflume.log.errors import LogflumeError

from .errors import Fault, RegistryError
from .handlers import Raw, make_router
from .routing import Handler, Request
from .schemas import InvalidSchema
from .service import NotWriter, Service
from .subjects import is_default_context, normalize
from .users import Users, check

if TYPE_CHECKING:
    import httpx

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
FORWARDED = b"x-forward"
OFFSET = b"x-logflume-offset"
FORWARD_TIMEOUT_S = 35.0
ELECTION_WAIT_S = 20.0
ELECTION_PAUSE_S = 0.1
_log = logging.getLogger("logflume.registry")
_encode = msgspec.json.encode

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class _Unreachable(Exception):
    """The writer could not be connected to: nothing was sent, so it can be tried again."""


class RegistryApp:
    """Answers requests for a service. `answered` counts them by (method, status)."""

    def __init__(self, service: Service, *, users: Users | None = None, trusted: ssl.SSLContext | bool = True) -> None:
        """`trusted`: which certificates of other instances are."""
        self.answered: Counter[tuple[str, int]] = Counter()
        self.forwarded = 0
        self._service = service
        self._users = users
        self._trusted = trusted
        self._router = make_router()
        self._client: httpx.AsyncClient | None = None
        self._started_s = time.monotonic()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        method = scope["method"]
        headers: dict[bytes, bytes] = dict(scope["headers"])
        try:
            body = await self._body(headers, receive)
            status, content_type, content, offset = await self._answer(scope, method, headers, body)
        except RegistryError as error:
            status, content_type, offset = error.fault.value.status, MEDIA_TYPE, None
            content = _encode({"error_code": error.fault.value.code, "message": str(error)})
        except Exception:  # the boundary: nothing but an answer leaves here  # noqa: BLE001
            _log.exception("cannot answer %s %s", method, scope["path"][:200])
            status, content_type, offset = 500, MEDIA_TYPE, None
            content = _encode({"error_code": Fault.INTERNAL.value.code, "message": Fault.INTERNAL.value.text})
        self.answered[method, status] += 1
        await _send(send, status, _negotiated(headers, content_type), content, offset, with_body=method != "HEAD")

    async def _answer(
        self, scope: Scope, method: str, headers: Mapping[bytes, bytes], body: bytes
    ) -> tuple[int, str, bytes, int | None]:
        path = scope.get("raw_path") or scope["path"].encode()
        if path == b"/metrics" and method == "GET":
            return 200, "text/plain; version=0.0.4; charset=utf-8", self.metrics().encode(), None
        handler, request = self._router.find(
            "GET" if method == "HEAD" else method, path, scope["query_string"], body, is_forwarded=FORWARDED in headers
        )
        if self._users is not None:
            request = await self._allowed(request, headers)
        try:
            found = handler(self._service, request)
            if inspect.isawaitable(found):
                found = await found
        except NotWriter:
            return await self._elsewhere(handler, request, headers)
        except LogflumeError as error:
            if isinstance(error, RegistryError):
                raise
            if isinstance(error, InvalidSchema):
                raise RegistryError(Fault.INVALID_SCHEMA, str(error)) from error
            raise RegistryError(Fault.STORE, str(error)) from error
        return self._told(found, method)

    async def _allowed(self, request: Request, headers: Mapping[bytes, bytes]) -> Request:
        """Return a request with the rights of who sends it. Raises RegistryError: nobody that is known, or not allowed."""
        assert self._users is not None
        rights = await self._users.rights(headers.get(b"authorization"))
        named = request.arguments[0] if request.arguments else ""
        is_of_all = not named or (request.kind in ("config", "mode") and is_default_context(named))
        subject = None if is_of_all else normalize(named)
        check(rights, request.method, request.kind, subject, is_question=request.is_question)
        return replace(request, rights=rights)

    def _told(self, found: Any, method: str) -> tuple[int, str, bytes, int | None]:
        offset = None if method in ("GET", "HEAD") else self._service.next_offset
        if isinstance(found, Raw):
            return (200 if found.body else 204), found.content_type, found.body, offset
        return 200, MEDIA_TYPE, _encode(found), offset

    async def _elsewhere(
        self, handler: Handler, request: Request, headers: Mapping[bytes, bytes]
    ) -> tuple[int, str, bytes, int | None]:
        """Find the writer, which may be under way, and let it answer; it may turn out to be this instance."""
        deadline_s = time.monotonic() + ELECTION_WAIT_S
        while True:
            address = await self._service.writer_address()
            try:
                if self._service.is_writer:
                    return self._told(await handler(self._service, request), request.method)
                if address is not None and not request.is_forwarded:
                    return await self._forward(address, request, headers)
            except (NotWriter, _Unreachable):
                self._service.forget_writer()
            is_pointless = request.is_forwarded and not self._service.is_becoming_writer
            if is_pointless or time.monotonic() > deadline_s:
                raise NotWriter
            await asyncio.sleep(ELECTION_PAUSE_S)

    async def _forward(
        self, address: str, request: Request, headers: Mapping[bytes, bytes]
    ) -> tuple[int, str, bytes, int | None]:
        """Let the writer answer, and wait until what it wrote is here, so that whoever was answered can read it from us."""
        passed = {"content-type": headers.get(b"content-type", MEDIA_TYPE.encode()).decode("latin-1"), "x-forward": "true"}
        if b"authorization" in headers:
            passed["authorization"] = headers[b"authorization"].decode("latin-1")
        import httpx  # costs a fifth of the start, and most registries never forward

        if self._client is None:
            timeout = httpx.Timeout(FORWARD_TIMEOUT_S, connect=3.0)
            self._client = httpx.AsyncClient(timeout=timeout, trust_env=False, verify=self._trusted)
        try:
            answer = await self._client.request(request.method, address + request.target, content=request.body, headers=passed)
        except httpx.ConnectError as error:
            raise _Unreachable(str(error)) from error
        except httpx.HTTPError as error:
            self._service.forget_writer()
            raise RegistryError(Fault.FORWARDING, f"the writer {address} did not answer: {error!r}; try again") from error
        self.forwarded += 1
        if answer.status_code == 500 and f'"error_code":{Fault.NO_WRITER.value.code}' in answer.text:
            raise NotWriter
        offset = answer.headers.get(OFFSET.decode())
        if offset is not None and offset.isdecimal():
            await self._service.wait_for(int(offset))
        return answer.status_code, answer.headers.get("content-type", MEDIA_TYPE), answer.content, None

    async def _body(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        limit = self._service.settings.max_body_bytes
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared[:20]) > limit:
            raise RegistryError(Fault.BODY_TOO_LARGE, limit)
        if declared == b"0" and b"transfer-encoding" not in headers:
            return b""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise RegistryError(Fault.BODY_TOO_LARGE, limit)
            if not message.get("more_body"):
                return b"".join(parts)

    def metrics(self) -> str:
        """Return the figures for Prometheus."""
        service, state = self._service, self._service.state
        figures = {
            "logflume_registry_is_writer": int(service.is_writer),
            "logflume_registry_offset": service.next_offset,
            "logflume_registry_subjects": len(state.subject_names(deleted=False)),
            "logflume_registry_schemas": state.schemas,
            "logflume_registry_contexts": len(state.contexts) + 1,
            "logflume_registry_unreadable_records_total": state.unreadable,
            "logflume_registry_conflicting_records_total": state.conflicts,
            "logflume_registry_forwarded_requests_total": self.forwarded,
        }
        lines = [f"{name} {value}" for name, value in figures.items()]
        for (method, status), count in sorted(self.answered.items()):
            lines.append(f'logflume_registry_requests_total{{method="{_label(method)}",status="{status}"}} {count}')
        return "\n".join([*lines, ""])


def _label(method: str) -> str:
    return method if method in ("GET", "HEAD", "POST", "PUT", "DELETE") else "other"


def _negotiated(headers: Mapping[bytes, bytes], content_type: str) -> str:
    """Return the content type to name: plain JSON for a client that asks for that and not for the registry's own."""
    if content_type != MEDIA_TYPE:
        return content_type
    accept = headers.get(b"accept", b"")
    return "application/json" if b"application/json" in accept and b"schemaregistry" not in accept else MEDIA_TYPE


async def _send(send: Send, status: int, content_type: str, content: bytes, offset: int | None, *, with_body: bool) -> None:
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(content)).encode())]
    if status == Fault.UNAUTHORIZED.value.status:
        headers.append((b"www-authenticate", b'Basic realm="schema registry"'))
    if offset is not None:
        headers.append((OFFSET, str(offset).encode()))
    with contextlib.suppress(OSError):
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content if with_body else b""})
