"""Reading record headers as columns. Headers arrive as a list of {KEY, VALUE}."""

from __future__ import annotations

from typing import Any


def last_header(headers: list[dict[str, Any]] | None, key: str) -> bytes | None:
    """Return the value of the last header of a key, None when there is none."""
    for header in reversed(headers or ()):
        if header["KEY"] == key:
            value: bytes | None = header["VALUE"]
            return value
    return None
