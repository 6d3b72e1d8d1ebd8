"""What clients send: bodies as data, bounded in size and checked before anything is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from logflume.sql.properties import PUSH_TOKEN
from logflume.sql.session import Session

from .errors import BAD_REQUEST, TOO_LARGE, RestError

BODY_BYTES_MAX = 4 << 20
DRAINED_BYTES_MAX = 64 << 20
"""How much of a body that is too large is read all the same: who is still sending when the connection closes sees no answer."""
RIGHTS = "logflume.rights"
"""Where the scope of a request has its sender's rights."""
T = TypeVar("T")


class KsqlRequest(msgspec.Struct, frozen=True):
    """The body of /ksql and /query.

    `waitsUntilRead`, which ksqlDB does not have and leaves out: a new query is answered for when it has read what there is.
    """

    ksql: str
    streamsProperties: dict[str, Any] | None = None
    sessionVariables: dict[str, Any] | None = None
    requestProperties: dict[str, Any] | None = None
    commandSequenceNumber: int | None = None
    waitsUntilRead: bool = False


class StreamRequest(msgspec.Struct, frozen=True):
    """The body of /query-stream.

    `tellsRead`, which ksqlDB does not have and leaves out: a query that ends says before its answer how far it has read.
    """

    sql: str
    properties: dict[str, Any] | None = None
    sessionVariables: dict[str, Any] | None = None
    requestProperties: dict[str, Any] | None = None
    tellsRead: bool = False


class CloseRequest(msgspec.Struct, frozen=True):
    """The body of /close-query."""

    queryId: str


class TerminateRequest(msgspec.Struct, frozen=True):
    """The body of /ksql/terminate."""

    deleteTopicList: list[str] = []


class InsertsTarget(msgspec.Struct, frozen=True):
    """The first line of /inserts-stream."""

    target: str
    properties: dict[str, Any] | None = None


async def body_of(request: Request) -> bytes:
    """Return the body of a request. Raises RestError when it is too large."""
    body, size_bytes = bytearray(), 0
    has_more = True
    while has_more and size_bytes <= DRAINED_BYTES_MAX:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part, has_more = message.get("body", b""), message.get("more_body", False)
        size_bytes += len(part)
        if size_bytes <= BODY_BYTES_MAX:
            body += part
    if size_bytes > BODY_BYTES_MAX:
        raise RestError(TOO_LARGE, f"a request holds at most {BODY_BYTES_MAX} bytes")
    return bytes(body)


def decoded(body: bytes | str, type: type[T]) -> T:
    """Return a JSON body as data. Raises RestError with what was expected."""
    try:
        return msgspec.json.decode(body, type=type)
    except (ValueError, RecursionError) as error:
        raise RestError(BAD_REQUEST, f"Invalid JSON request body: {error}") from None


def as_text(properties: Mapping[str, Any] | None) -> dict[str, str]:
    """Return properties as SET would have them: booleans and numbers as text."""
    found = {}
    for name, value in (properties or {}).items():
        if isinstance(value, dict | list):
            raise RestError(BAD_REQUEST, f"the property '{name}' is a text, number or boolean, found {type(value).__name__}")
        if value is not None:
            found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def session_of(
    properties: Mapping[str, Any] | None,
    variables: Mapping[str, Any] | None,
    scope: Scope,
    of_request: Mapping[str, Any] | None = None,
) -> Session:
    """Return the session of one request, with the rights that the guard found. `of_request`: its requestProperties."""
    named = {name.upper(): value for name, value in as_text(variables).items()}
    told = {name: value for name, value in as_text(of_request).items() if name == PUSH_TOKEN}
    return Session(as_text(properties) | told, named, scope[RIGHTS])
