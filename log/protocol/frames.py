"""Frames: the size prefix, request headers (v0 to v2) and response headers (v0, v1) around the messages.

Header versions follow KIP-482: request header v2 and response header v1 (tagged fields) for flexible versions. Exceptions:
ApiVersions responses always have header v0 (KIP-511), and the client id stays a string with an int16 length.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, NamedTuple

from logflume.log.errors import DecodeError

from . import codec, tables
from .decoders import Malformed, read_uvarint, skip_tag
from .errors import ErrorCode

API_VERSIONS_KEY = 18
_REQUEST = struct.Struct(">hhih")
_RESPONSE = struct.Struct(">ii")
_SIZE = struct.Struct(">i")


class RequestHeader(NamedTuple):
    """The header of a request. `client_id` is None for null."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def decode_request_header(frame: memoryview) -> tuple[RequestHeader, int]:
    """Return the header at the start of a frame (without its size) and the position of the body.

    Of an API or version that the tables do not hold, the part of the header that all versions share is returned.

    Raises DecodeError.
    """
    try:
        api_key, version, correlation_id, size = _REQUEST.unpack_from(frame, 0)
        pos = _REQUEST.size
        client_id = None
        if size >= 0:
            if size > len(frame) - pos:
                raise Malformed(f"a client id of {size} bytes, {len(frame) - pos} are left")
            client_id = str(frame[pos : pos + size], "utf-8")
            pos += size
        if (api_key, version) in flexible_requests():
            pos = _skip_tags(frame, pos) if frame[pos] else pos + 1
    except (Malformed, struct.error, IndexError, UnicodeDecodeError) as error:
        raise DecodeError(f"malformed request header: {error}") from error
    return RequestHeader(api_key, version, correlation_id, client_id), pos


def decode_response(frame: memoryview, api_key: int, version: int, *, is_exact: bool = True) -> Any:
    """Return the message of a response frame (without its size); the correlation id is its first int32, see `correlation_id`.

    An ApiVersions response of a version the broker does not know comes with a v0 body, which is tried then. `is_exact` as in
    `codec.decode_response`.

    Raises DecodeError.
    """
    pos = 4
    if api_key == API_VERSIONS_KEY:
        body = frame[pos:]
        is_refused = len(body) >= 2 and body[0] == 0 and body[1] == ErrorCode.UNSUPPORTED_VERSION
        return codec.decode_response(api_key, 0 if is_refused else version, body, is_exact=is_exact)
    try:
        if (api_key, version) in flexible_responses():
            pos = _skip_tags(frame, pos)
    except (Malformed, struct.error, IndexError) as error:
        raise DecodeError(f"malformed response header: {error}") from error
    return codec.decode_response(api_key, version, frame[pos:], is_exact=is_exact)


def correlation_id(frame: memoryview) -> int:
    """Return the correlation id of a response frame (without its size). Raises DecodeError."""
    try:
        value: int = _SIZE.unpack_from(frame, 0)[0]
    except struct.error as error:
        raise DecodeError(f"malformed response header: {error}") from error
    return value


def request_frame(message: Any, version: int, correlation_id: int, client_id: str | None) -> list[Any]:
    """Return the buffers of a request frame, size prefix included; the first is a bytearray."""
    name = b"" if client_id is None else client_id.encode()
    out = bytearray(4)
    out += _REQUEST.pack(message.api_key, version, correlation_id, -1 if client_id is None else len(name))
    out += name
    if (message.api_key, version) in flexible_requests():
        out.append(0)
    return _with_size(codec.encode(message, version, out), out)


def response_frame(message: Any, version: int, correlation_id: int) -> list[Any]:
    """Return the buffers of a response frame, size prefix included; the first is a bytearray.

    Large records are elements of their own, as the objects that were put into the message.
    """
    out = bytearray(_RESPONSE.pack(0, correlation_id))
    if (message.api_key, version) in flexible_responses():
        out.append(0)
    return _with_size(codec.encode(message, version, out), out)


def unsupported_api_versions_frame(correlation_id: int, response: Any) -> list[Any]:
    """Return the answer to an ApiVersions request of an unknown version: a v0 body with error 35 (KIP-511)."""
    response.error_code = ErrorCode.UNSUPPORTED_VERSION
    return response_frame(response, 0, correlation_id)


@cache
def flexible_requests() -> frozenset[tuple[int, int]]:
    """Return the (API key, version) whose requests have header v2."""
    return frozenset(
        (key, version)
        for key in tables.api_names().values()
        for version in range(tables.api(key).request.flexible.first, tables.api(key).request.flexible.last + 1)
    )


@cache
def flexible_responses() -> frozenset[tuple[int, int]]:
    """Return the (API key, version) whose responses have header v1; ApiVersions is never among them."""
    return frozenset(each for each in flexible_requests() if each[0] != API_VERSIONS_KEY)


def _with_size(parts: list[Any], out: bytearray) -> list[Any]:
    _SIZE.pack_into(out, 0, sum(map(len, parts)) - 4)
    return parts


def _skip_tags(frame: memoryview, pos: int) -> int:
    count, pos = read_uvarint(frame, pos)
    if count > (len(frame) - pos) // 2:
        raise Malformed(f"{count} tagged fields, {len(frame) - pos} bytes are left")
    for _ in range(count):
        _, pos = read_uvarint(frame, pos)
        pos = skip_tag(frame, pos)
    return pos
