"""The console: one page that the server itself gives to a browser. It asks the endpoints that programs ask, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

from starlette.responses import Response

from .accepted import accepted

FILES = {"console.css": "text/css", "console.js": "text/javascript"}
_HEADERS = {
    # Of its own files alone: nothing is loaded from elsewhere, no value or name brings anything that runs, no page frames it.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def is_asked(headers: Mapping[str, str]) -> bool:
    """Tell whether a browser asks for a page; a program that asks for the same path is shown where `/info` is, as ksqlDB does."""
    wanted = headers.get("accept", "")
    return "text/html" in wanted and accepted(wanted, ("text/html",)) is not None


def page() -> Response:
    return _answer("console.html", "text/html")


def file_of(name: str) -> Response | None:
    """Return a file that the page asks for, None when there is none of that name."""
    return _answer(name, FILES[name]) if name in FILES else None


def _answer(name: str, media_type: str) -> Response:
    return Response(_content(name), headers=_HEADERS, media_type=media_type)


@cache
def _content(name: str) -> bytes:
    return resources.files(__package__).joinpath(name).read_bytes()
