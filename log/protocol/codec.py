"""Encodes and decodes the messages of the protocol in every version, in both directions.

Coders are generated at first use and kept. The functions here turn every way in which bytes or values do not fit a
message into one error each: DecodeError for bytes, InvalidInput for values.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

from logflume.log.errors import DecodeError, InvalidInput

from . import tables
from .decoders import Decoder, Malformed, TooMany, make_decoder
from .encoders import Encoder, make_encoder
from .errors import ErrorCode, KafkaError
from .messages import message_class, message_table

Buffer = bytes | bytearray | memoryview


ANY_NUMBER = 2**63


class TooManyElements(DecodeError):
    """The arrays of a message have more elements than the caller would have decoded."""

    code = "TOO_MANY_ELEMENTS"


def decode_request(api_key: int, version: int, body: memoryview, *, max_elements: int = ANY_NUMBER) -> Any:
    """Decode the body of a request (after its header). `records` are views of `body`.

    Bytes after the message are ignored, as Apache Kafka does: librdkafka 2.x sends some after Metadata.

    Raises:
        KafkaError: UNSUPPORTED_VERSION, the API or version is not in the tables.
        DecodeError: the bytes do not have the form of the message.
        TooManyElements: all its arrays together have more than `max_elements`.
    """
    return _decode(_request_decoder(api_key, version), body, api_key, version, max_elements)[0]


def decode_response(api_key: int, version: int, body: memoryview, *, is_exact: bool = True) -> Any:
    """Decode the body of a response (after its header); raises as `decode_request`.

    `is_exact` False takes bytes after the message as well, which some brokers send and other clients ignore.
    """
    decoder = _response_decoder(api_key, version)
    return _decode_all(decoder, body, api_key, version) if is_exact else _decode(decoder, body, api_key, version)[0]


def decode_data(name: str, version: int, body: Buffer, *, may_go_on: bool = False) -> Any:
    """Decode a message that travels inside others, such as `ConsumerProtocolSubscription`; raises DecodeError.

    `may_go_on`: bytes may follow, as in a later version of a message that begins with this one.
    """
    decoder, view = _decoder(name, version), memoryview(body)
    return _decode(decoder, view, -1, version)[0] if may_go_on else _decode_all(decoder, view, -1, version)


def encode_data(message: Any, version: int) -> bytes:
    """Encode a message that travels inside others, without its version; raises InvalidInput."""
    return b"".join(encode(message, version, bytearray()))


def encode(message: Any, version: int, out: bytearray) -> list[Any]:
    """Encode a message after what is in `out`; return the buffers to send, `out` first.

    Records of 1 KiB and more are handed on as they are (zero-copy), so they must not change until they are sent.

    Raises InvalidInput: a value does not fit its field.
    """
    parts: list[Any] = []
    try:
        parts.append(_encoder(type(message).__name__, version)(message, out, parts))
    except (struct.error, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidInput(
            f"{type(message).__name__} version {version}: a field has a value that does not fit: {error}"
        ) from error
    return parts


def request_table(api_key: int) -> tables.Message:
    """Return the table of an API's request. Raises KafkaError UNSUPPORTED_VERSION for an unknown key."""
    return _table(api_key).request


@cache
def _encoder(name: str, version: int) -> Encoder:
    message = message_table(name)
    _check_version(message, version)
    return make_encoder(message, version, message_class(name))


@cache
def _decoder(name: str, version: int) -> Decoder:
    message = message_table(name)
    _check_version(message, version)
    return make_decoder(message, version, message_class(name))


@cache
def _request_decoder(api_key: int, version: int) -> Decoder:
    return _decoder(_table(api_key).request.name, version)


@cache
def _response_decoder(api_key: int, version: int) -> Decoder:
    return _decoder(_table(api_key).response.name, version)


def _table(api_key: int) -> tables.Api:
    try:
        return tables.api(api_key)
    except InvalidInput as error:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"API key {api_key} is not known") from error


def _check_version(message: tables.Message, version: int) -> None:
    if version not in message.versions:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{message.name} version {version} is not supported; expected {message.versions.first} to {message.versions.last}",
        )


def _decode(decoder: Decoder, body: memoryview, api_key: int, version: int, max_elements: int = ANY_NUMBER) -> tuple[Any, int]:
    try:
        return decoder(body, 0, max_elements)
    except TooMany as error:
        raise TooManyElements(f"message of API key {api_key} version {version}: {error}") from error
    except (Malformed, struct.error, IndexError, UnicodeDecodeError) as error:
        raise DecodeError(f"malformed message of API key {api_key} version {version}: {error}") from error


def _decode_all(decoder: Decoder, body: memoryview, api_key: int, version: int) -> Any:
    """Decode a message that must fill `body`."""
    message, pos = _decode(decoder, body, api_key, version)
    if pos != len(body):
        raise DecodeError(f"malformed message of API key {api_key} version {version}: expected {pos} bytes, found {len(body)}")
    return message
