"""Regular expressions and LIKE. The syntax is Python's, which agrees with Java's for what is usual."""

from __future__ import annotations

import re
from functools import lru_cache

from .signature import Overload, overload


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace("(?<", "(?P<").replace("(?P<=", "(?<=").replace("(?P<!", "(?<!"))


def regexp_extract(pattern: str, text: str, group: int = 0) -> str | None:
    """The first match, or one group of it; null when nothing matches."""
    found = _compiled(pattern).search(text)
    return found.group(group) if found and group <= found.re.groups else None


def regexp_extract_all(pattern: str, text: str, group: int = 0) -> list[str] | None:
    """All matches, or one group of each; null when there is no such group."""
    compiled = _compiled(pattern)
    return [m.group(group) for m in compiled.finditer(text)] if group <= compiled.groups else None


def regexp_replace(text: str, pattern: str, replacement: str) -> str:
    """Every match replaced; $1 stands for a group."""
    return _compiled(pattern).sub(_template(replacement), text)


@lru_cache(maxsize=256)
def _template(replacement: str) -> str:
    return re.sub(r"\$(\d)", r"\\g<\1>", replacement.replace("\\", "\\\\"))


def regexp_split_to_array(text: str, pattern: str) -> list[str]:
    """Cut at each match; an empty pattern cuts between all characters."""
    if not pattern:
        return list(text) if text else [""]
    parts: list[str] = []
    start = 0
    for match in _compiled(pattern).finditer(text):
        if match.end() > match.start():
            parts.append(text[start : match.start()])
            start = match.end()
    return [*parts, text[start:]]


@lru_cache(maxsize=256)
def _like(pattern: str, escape: str | None) -> re.Pattern[str]:
    out: list[str] = []
    characters = iter(pattern)
    for ch in characters:
        if ch == escape:
            out.append(re.escape(next(characters, "")))
        elif ch == "%":
            out.append(".*")
        else:
            out.append("." if ch == "_" else re.escape(ch))
    return re.compile("".join(out), re.DOTALL)


def like(text: str, pattern: str, escape: str | None = None) -> bool:
    """SQL LIKE over the whole text: % any run, _ one character."""
    return _like(pattern, escape).fullmatch(text) is not None


def like_or_false(text: str | None, pattern: str | None, escape: str | None = None) -> bool:
    """LIKE as a comparison: false when an operand is null."""
    return text is not None and pattern is not None and like(text, pattern, escape)


OVERLOADS: tuple[Overload, ...] = (
    overload(
        "REGEXP_EXTRACT", "(STRING, STRING) -> STRING", regexp_extract, doc="The first match of a pattern, or a group of it."
    ),
    overload("REGEXP_EXTRACT", "(STRING, STRING, INTEGER) -> STRING", regexp_extract),
    overload("REGEXP_EXTRACT_ALL", "(STRING, STRING) -> ARRAY<STRING>", regexp_extract_all, doc="All matches of a pattern."),
    overload("REGEXP_EXTRACT_ALL", "(STRING, STRING, INTEGER) -> ARRAY<STRING>", regexp_extract_all),
    overload(
        "REGEXP_REPLACE", "(STRING, STRING, STRING) -> STRING", regexp_replace, doc="Every match of the second by the third."
    ),
    overload("REGEXP_SPLIT_TO_ARRAY", "(STRING, STRING) -> ARRAY<STRING>", regexp_split_to_array, doc="Cut at each match."),
)
