"""Functions of bytes and encodings: hex, utf8, ascii, base64."""

from __future__ import annotations

import base64
import re
import struct

from .scalar import Scalar, gives, over, scalar

_NO_BASE64 = re.compile("[^A-Za-z0-9+/_-]")
_HEX = re.compile("(?:[0-9A-Fa-f]{2})*")
_OF_URLS = str.maketrans("-_", "+/")
_ORDERS = {"BIG_ENDIAN": ">", "LITTLE_ENDIAN": "<"}


def to_bytes(text: str, encoding: str) -> bytes:
    """Read text of an encoding; in base64 what is no digit of it, such as a line break, is left out.

    Raises ValueError: an unknown encoding, or text that is not of it.
    """
    match encoding.lower():
        case "hex":
            return _bytes_of_hex(text)
        case "utf8":
            return text.encode()
        case "ascii":
            return text.encode("ascii", "replace")
        case "base64":
            return _bytes_of_base64(text)
    raise ValueError(f"unknown encoding {encoding!r}; expected hex, utf8, ascii or base64")


def from_bytes(data: bytes, encoding: str) -> str:
    """Write bytes in an encoding."""
    match encoding.lower():
        case "hex":
            return data.hex().upper()
        case "utf8":
            return data.decode("utf-8", "replace")
        case "ascii":
            return data.decode("ascii", "replace")
        case "base64":
            return base64.b64encode(data).decode()
    raise ValueError(f"unknown encoding {encoding!r}; expected hex, utf8, ascii or base64")


def encode(text: str, source: str, target: str) -> str:
    """Text of one encoding in another; hexadecimal output is lower-case.

    Hexadecimal input may be written 0x01 or X'01'; in base64 what is no digit of it is left out.

    Raises ValueError: both encodings are the same, one is unknown, or the text is not of it.
    """
    if source.lower() == target.lower():
        raise ValueError(f"expected two different encodings of hex, utf8, ascii and base64, found {source!r} twice")
    written = from_bytes(to_bytes(_hex_digits(text) if source.lower() == "hex" else text, source), target)
    return written.lower() if target.lower() == "hex" else written


def _bytes_of_hex(digits: str) -> bytes:
    if _HEX.fullmatch(digits) is None:
        raise ValueError(f"expected an even number of hexadecimal digits, found {digits!r}")
    return bytes.fromhex(digits)


def _bytes_of_base64(text: str) -> bytes:
    digits = _NO_BASE64.sub("", text.partition("=")[0]).translate(_OF_URLS)
    digits = digits[:-1] if len(digits) % 4 == 1 else digits
    return base64.b64decode(digits + "=" * (-len(digits) % 4))


def _hex_digits(text: str) -> str:
    if text.startswith("0x"):
        return "0" * (len(text) % 2) + text[2:]
    return text[2:-1] if text[:2] in ("X'", "x'") and len(text) > 2 and text.endswith("'") else text


def _number(data: bytes, code: str, size: int, order: str) -> int | float:
    sign = _ORDERS.get(order.upper())
    if sign is None:
        raise ValueError(f"unknown byte order {order!r}; expected BIG_ENDIAN or LITTLE_ENDIAN")
    if len(data) != size:
        raise ValueError(f"expected {size} bytes, found {len(data)}")
    number: int | float = struct.unpack(sign + code, data)[0]
    return number


def int_from_bytes(data: bytes, order: str = "BIG_ENDIAN") -> int:
    return int(_number(data, "i", 4, order))


def bigint_from_bytes(data: bytes, order: str = "BIG_ENDIAN") -> int:
    return int(_number(data, "q", 8, order))


def double_from_bytes(data: bytes, order: str = "BIG_ENDIAN") -> float:
    return float(_number(data, "d", 8, order))


FUNCTIONS: tuple[Scalar, ...] = (
    scalar(
        "TO_BYTES",
        "Text of an encoding (hex, utf8, ascii, base64) as bytes.",
        gives(b"Hi", "4869", "hex"),
        over("(STRING, STRING) -> BYTES", to_bytes),
    ),
    scalar(
        "FROM_BYTES", "Bytes as text of an encoding.", gives("Hi", b"Hi", "utf8"), over("(BYTES, STRING) -> STRING", from_bytes)
    ),
    scalar(
        "ENCODE",
        "Text of the second encoding in the third.",
        gives("Hi", "4869", "hex", "utf8"),
        over("(STRING, STRING, STRING) -> STRING", encode),
    ),
    scalar(
        "INT_FROM_BYTES",
        "4 bytes as a number; BIG_ENDIAN or LITTLE_ENDIAN.",
        gives(65280, b"\0\0\xff\0"),
        over("(BYTES) -> INTEGER", int_from_bytes),
        over("(BYTES, STRING) -> INTEGER", int_from_bytes),
    ),
    scalar(
        "BIGINT_FROM_BYTES",
        "8 bytes as a number; BIG_ENDIAN or LITTLE_ENDIAN.",
        gives(1, b"\0\0\0\0\0\0\0\1"),
        over("(BYTES) -> BIGINT", bigint_from_bytes),
        over("(BYTES, STRING) -> BIGINT", bigint_from_bytes),
    ),
    scalar(
        "DOUBLE_FROM_BYTES",
        "8 bytes as an IEEE 754 number; BIG_ENDIAN or LITTLE_ENDIAN.",
        gives(1.0, b"\x3f\xf0\0\0\0\0\0\0"),
        over("(BYTES) -> DOUBLE", double_from_bytes),
        over("(BYTES, STRING) -> DOUBLE", double_from_bytes),
    ),
)
