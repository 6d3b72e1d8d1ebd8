"""Functions of URLs."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, quote_plus, unquote, unquote_plus, urlsplit

from .scalar import Scalar, gives, over, scalar

# What Java's form encoder leaves as it is, beside letters and digits.
_SAFE = "*-._"
_BROKEN = re.compile("%(?![0-9A-Fa-f]{2})")


def encode_param(s: str) -> str:
    return quote_plus(s, safe=_SAFE).replace("~", "%7E")


def decode_param(s: str) -> str:
    if _BROKEN.search(s):
        raise ValueError(f"a % without two hexadecimal digits in {s!r}")
    return unquote_plus(s, errors="strict")


def _split(url: str) -> SplitResult:
    if any(ch.isspace() for ch in url):
        raise ValueError(f"a blank in the URL {url!r}")
    return urlsplit(url)


def fragment(url: str) -> str | None:
    return unquote(_split(url).fragment) or None


def host(url: str) -> str | None:
    parts = _split(url)
    found = parts.netloc.rpartition("@")[2]
    return found.rpartition(":")[0] or found or None if ":" in found and not found.endswith("]") else found or None


def path(url: str) -> str:
    return unquote(_split(url).path)


def port(url: str) -> int | None:
    return _split(url).port


def protocol(url: str) -> str | None:
    return _split(url).scheme or None


def query(url: str) -> str | None:
    return unquote(_split(url).query) or None


def parameter(url: str, name: str) -> str | None:
    """The value of a parameter of the decoded query; null when it is not there."""
    pairs = (part.partition("=") for part in (query(url) or "").split("&"))
    return next((value for key, sign, value in pairs if key == name and (key or sign)), None)


_URL = "https://me@logs.example.org:8080/a/b?c=d%20e#f"

FUNCTIONS: tuple[Scalar, ...] = (
    scalar("URL_ENCODE_PARAM", "Text as a URL parameter.", gives("a+b%26", "a b&"), over("(STRING) -> STRING", encode_param)),
    scalar("URL_DECODE_PARAM", "A URL parameter as text.", gives("a b&", "a+b%26"), over("(STRING) -> STRING", decode_param)),
    scalar("URL_EXTRACT_FRAGMENT", "What is behind # in a URL.", gives("f", _URL), over("(STRING) -> STRING", fragment)),
    scalar("URL_EXTRACT_HOST", "The host of a URL.", gives("logs.example.org", _URL), over("(STRING) -> STRING", host)),
    scalar("URL_EXTRACT_PATH", "The path of a URL.", gives("/a/b", _URL), over("(STRING) -> STRING", path)),
    scalar(
        "URL_EXTRACT_PORT", "The port of a URL, null where it names none.", gives(8080, _URL), over("(STRING) -> INTEGER", port)
    ),
    scalar("URL_EXTRACT_PROTOCOL", "The protocol of a URL.", gives("https", _URL), over("(STRING) -> STRING", protocol)),
    scalar("URL_EXTRACT_QUERY", "What is behind ? in a URL.", gives("c=d e", _URL), over("(STRING) -> STRING", query)),
    scalar(
        "URL_EXTRACT_PARAMETER",
        "The value of a query parameter, decoded.",
        gives("d e", _URL, "c"),
        over("(STRING, STRING) -> STRING", parameter),
    ),
)
