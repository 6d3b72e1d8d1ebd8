"""Functions of URLs."""

from __future__ import annotations

from urllib.parse import SplitResult, parse_qsl, quote_plus, unquote_plus, urlsplit

from .signature import Overload, overload

# What Java's form encoder leaves as it is, beside letters and digits.
_SAFE = "*-._"


def encode_param(s: str) -> str:
    return quote_plus(s, safe=_SAFE).replace("~", "%7E")


def decode_param(s: str) -> str:
    return unquote_plus(s, errors="strict")


def _split(url: str) -> SplitResult:
    if any(ch.isspace() for ch in url):
        raise ValueError(f"a blank in the URL {url!r}")
    return urlsplit(url)


def fragment(url: str) -> str | None:
    return unquote_plus(_split(url).fragment.replace("+", "%2B")) or None


def host(url: str) -> str | None:
    parts = _split(url)
    found = parts.netloc.rpartition("@")[2]
    return found.rpartition(":")[0] or found or None if ":" in found and not found.endswith("]") else found or None


def path(url: str) -> str:
    return _split(url).path


def port(url: str) -> int | None:
    return _split(url).port


def protocol(url: str) -> str | None:
    return _split(url).scheme or None


def query(url: str) -> str | None:
    return _split(url).query or None


def parameter(url: str, name: str) -> str | None:
    """The value of a query parameter, decoded; null when it is not there."""
    pairs = parse_qsl(_split(url).query, keep_blank_values=True)
    return next((value for key, value in pairs if key == name), None)


OVERLOADS: tuple[Overload, ...] = (
    overload("URL_ENCODE_PARAM", "(STRING) -> STRING", encode_param, doc="Text as a URL parameter."),
    overload("URL_DECODE_PARAM", "(STRING) -> STRING", decode_param, doc="A URL parameter as text."),
    overload("URL_EXTRACT_FRAGMENT", "(STRING) -> STRING", fragment),
    overload("URL_EXTRACT_HOST", "(STRING) -> STRING", host),
    overload("URL_EXTRACT_PATH", "(STRING) -> STRING", path),
    overload("URL_EXTRACT_PORT", "(STRING) -> INTEGER", port),
    overload("URL_EXTRACT_PROTOCOL", "(STRING) -> STRING", protocol),
    overload("URL_EXTRACT_QUERY", "(STRING) -> STRING", query),
    overload("URL_EXTRACT_PARAMETER", "(STRING, STRING) -> STRING", parameter, doc="The value of a query parameter."),
)
