"""What an Accept header takes (RFC 9110, 12.5.1): media types and ranges, the wanted first, those of `q=0` refused."""

from __future__ import annotations

from collections.abc import Collection


def accepted(header: str | None, offered: Collection[str]) -> str | None:
    """Return which of the media types that are offered is wanted most, None: none of them.

    Ties go by the order of the header, within a range like `*/*` by that of `offered`. A `q` that is no number counts as 1.

    >>> accepted("text/html;q=0.5, application/*", ["text/html", "application/json"])
    'application/json'
    >>> accepted("*/*, text/html;q=0", ["text/html", "application/json"])
    'application/json'
    >>> accepted("text/html;q=0", ["text/html"])
    """
    ranges = [_quality(part) for part in ("*/*" if header is None else header).split(",")]
    best: tuple[float, int] | None = None
    found = None
    for each in offered:
        fitting = [(_precision(name), q, -place) for place, (name, q) in enumerate(ranges) if _fits(name, each)]
        _, q, place = max(fitting, default=(0, 0.0, 0))
        if q > 0 and (best is None or (q, place) > best):
            best, found = (q, place), each
    return found


def _quality(part: str) -> tuple[str, float]:
    name, *parameters = (each.strip().lower() for each in part.split(";"))
    for each in parameters:
        if each.startswith("q="):
            try:
                return name, float(each[2:])
            except ValueError:
                pass
    return name, 1.0


def _precision(name: str) -> int:
    return 0 if name == "*/*" else 1 if name.endswith("/*") else 2


def _fits(name: str, media_type: str) -> bool:
    return name in ("*/*", media_type) or (name.endswith("/*") and media_type.startswith(name[:-1]))
