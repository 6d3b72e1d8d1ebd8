"""Functions of URLs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote_plus, unquote, unquote_plus

from .scalar import Scalar, gives, over, scalar

# What Java's form encoder leaves as it is, beside letters and digits.
_SAFE = "*-._"
_BROKEN = re.compile("%(?![0-9A-Fa-f]{2})")
_SCHEME = re.compile(r"([^:/?#]*):")
_SCHEME_NAME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*\Z")
_REFERENCE = re.compile(r"(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?\Z", re.DOTALL)
_ILLEGAL = re.compile(r"""[\s\x00-\x1f\x7f"<>\\^`{|}]""")
_PORT_MAX = 2**31 - 1
_BYTE = "(?:25[0-5]|2[0-4][0-9]|[01]?[0-9]?[0-9])"
_SERVER = re.compile(
    rf"""(?:[^@]*@)?
    (\[[0-9A-Fa-f:.]+(?:%[^\]]*)?\] | (?:{_BYTE}\.){{3}}{_BYTE}
     | (?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)+[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.?
     | [A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.?)
    (?::([0-9]*))?\Z""",
    re.VERBOSE,
)


def encode_param(s: str) -> str:
    return quote_plus(s, safe=_SAFE).replace("~", "%7E")


def decode_param(s: str) -> str:
    if _BROKEN.search(s):
        raise ValueError(f"a % without two hexadecimal digits in {s!r}")
    return unquote_plus(s)


@dataclass(frozen=True, slots=True)
class _Url:
    """The parts of a URI (RFC 2396, with any characters beyond ASCII), decoded; None where there is none."""

    scheme: str | None = None
    host: str | None = None
    port: int | None = None
    path: str | None = None
    query: str | None = None
    fragment: str | None = None


def _parts(url: str) -> _Url:
    """Return the parts of a URI; an address that names no server (a_b, x:99999999999) has no host.

    Raises ValueError: it is not a URI.
    """
    if _ILLEGAL.search(url) or _BROKEN.search(url) or url.count("#") > 1:
        raise ValueError(f"URL input has invalid syntax: {url}")
    scheme, rest = None, url
    found = _SCHEME.match(url)
    if found is not None:
        scheme, rest = found.group(1), url[found.end() :]
        if _SCHEME_NAME.match(scheme) is None or not rest.partition("#")[0]:
            raise ValueError(f"URL input has invalid syntax: {url}")
        if not rest.startswith("/"):  # mailto:me@example.org
            _, sign, behind = rest.partition("#")
            return _Url(scheme, fragment=unquote(behind) if sign else None)
    parts = _REFERENCE.match(rest)
    assert parts is not None
    authority, path, query, fragment = parts.groups()
    if "[" in path or "]" in path:
        raise ValueError(f"URL input has invalid syntax: {url}: a bracket in the path is written %5B or %5D")
    if authority == "" and not path and query is None and fragment is None:
        raise ValueError(f"URL input has invalid syntax: {url}: an authority is expected")
    server = _SERVER.match(authority or "")
    host, port = server.groups() if server is not None else (None, None)
    if port and int(port) > _PORT_MAX:  # no server has such an address
        host, port = None, None
    return _Url(scheme, host, int(port) if port else None, unquote(path), _decoded(query), _decoded(fragment))


def _decoded(text: str | None) -> str | None:
    return None if text is None else unquote(text)


def fragment(url: str) -> str | None:
    return _parts(url).fragment


def host(url: str) -> str | None:
    return _parts(url).host


def path(url: str) -> str | None:
    return _parts(url).path


def port(url: str) -> int | None:
    return _parts(url).port


def protocol(url: str) -> str | None:
    return _parts(url).scheme


def query(url: str) -> str | None:
    return _parts(url).query


def parameter(url: str, name: str) -> str | None:
    """The value of a parameter of the decoded query; null when it is not there."""
    asked = query(url)
    if asked is None:
        return None
    pairs = (part.partition("=") for part in asked.split("&"))
    return next((value for key, _, value in pairs if key == name), None)


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
