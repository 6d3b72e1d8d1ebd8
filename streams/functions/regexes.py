"""Regular expressions and LIKE, by RE2: in time linear in the text for each match, whatever the pattern.

Java's syntax, which the dialect had, but for what cannot be bounded or RE2 does not have: no look-around, back-references,
possessive or atomic groups (an error that says so); `$` is the end of the text only, not also before its last line break.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from .regex_columns import like_columns, regexp_extract_columns
from .scalar import Scalar, gives, over, scalar

PATTERN_MAX_CHARS = 4_096
MEMORY_BYTES = 8 << 20
MATCHES_MAX = 1_000_000

_REPLACEMENT = re.compile(r"\\(.)|\$(\d)|\$\{([A-Za-z][A-Za-z0-9]*)\}|([\\$])|([^\\$]+)", re.DOTALL)
_SPECIAL = re.compile(r"[%_]")


@lru_cache(maxsize=256)
def compiled(pattern: str) -> Any:
    """Return the compiled pattern. Raises ValueError: it is not one, or too big."""
    import re2

    if len(pattern) > PATTERN_MAX_CHARS:
        raise ValueError(f"a regular expression of at most {PATTERN_MAX_CHARS} characters is expected, found {len(pattern)}")
    options = re2.Options()
    options.max_mem, options.log_errors = MEMORY_BYTES, False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        cause = error.args[0] if error.args else error
        reason = cause.decode(errors="replace") if isinstance(cause, bytes) else str(cause)
        raise ValueError(f"the regular expression {pattern[:80]!r} is not one of RE2: {reason}") from None


def _matches(pattern: str, text: str) -> list[Any]:
    found: list[Any] = []
    for match in compiled(pattern).finditer(text):
        found.append(match)
        if len(found) > MATCHES_MAX:
            raise ValueError(f"more than {MATCHES_MAX} matches of {pattern[:80]!r}")
    return found


def regexp_extract(pattern: str, text: str, group: int = 0) -> str | None:
    """The first match, or one group of it; null when nothing matches."""
    expression = compiled(pattern)
    if not 0 <= group <= expression.groups:
        return None
    match = expression.search(text)
    return match.group(group) if match else None


def regexp_extract_all(pattern: str, text: str, group: int = 0) -> list[str] | None:
    """All matches, or one group of each; null when there is no such group."""
    if not 0 <= group <= compiled(pattern).groups:
        return None
    return [match.group(group) for match in _matches(pattern, text)]


def regexp_replace(text: str, pattern: str, replacement: str) -> str:
    """Every match replaced; $1 and ${name} stand for a group, a backslash takes the next character as it is."""
    pieces = _replacement(replacement)
    expression = compiled(pattern)
    for piece in pieces:
        if isinstance(piece, int) and piece > expression.groups:
            raise ValueError(f"the replacement names group {piece}; {pattern[:80]!r} has {expression.groups}")
    out: list[str] = []
    end = 0
    for match in _matches(pattern, text):
        out.append(text[end : match.start()])
        out.extend(piece[1] if isinstance(piece, tuple) else match.group(piece) or "" for piece in pieces)
        end = match.end()
    return "".join(out) + text[end:]


@lru_cache(maxsize=256)
def _replacement(text: str) -> tuple[int | str | tuple[str, str], ...]:
    """Return the pieces of a replacement: a group by number or name, or ('text', characters)."""
    pieces: list[int | str | tuple[str, str]] = []
    for match in _REPLACEMENT.finditer(text):
        escaped, number, name, stray, plain = match.groups()
        if stray is not None:
            raise ValueError(f"the replacement {text[:80]!r} has a {stray!r} without a group behind it; write \\{stray}")
        if number is not None:
            pieces.append(int(number))
        elif name is not None:
            pieces.append(name)
        else:
            pieces.append(("text", escaped if escaped is not None else plain))
    return tuple(pieces)


def regexp_split_to_array(text: str, pattern: str) -> list[str]:
    """Cut at each match; a pattern that may be empty cuts between all characters, and leaves no empty parts at the end."""
    if not pattern:
        return list(text) if text else [""]
    may_be_empty = any(True for _ in _matches(pattern, ""))
    parts: list[str] = []
    start = 0
    for match in _matches(pattern, text):
        if match.end() > match.start() or (may_be_empty and start < match.start() < len(text)):
            parts.append(text[start : match.start()])
            start = match.end()
    parts.append(text[start:])
    while may_be_empty and len(parts) > 1 and not parts[-1]:
        parts.pop()
    return parts


def like_pieces(pattern: str, escape: str | None) -> tuple[tuple[str, str], ...]:
    """Return the parts of a LIKE pattern: ('text', characters), ('%', '') and ('_', '')."""
    pieces: list[tuple[str, str]] = []
    characters = iter(pattern)
    for ch in characters:
        if ch == escape:
            pieces.append(("text", next(characters, "")))
        elif ch in "%_":
            pieces.append((ch, ""))
        else:
            pieces.append(("text", ch))
    return tuple(pieces)


@lru_cache(maxsize=256)
def _like(pattern: str, escape: str | None) -> Any:
    out = [".*" if kind == "%" else "." if kind == "_" else re.escape(text) for kind, text in like_pieces(pattern, escape)]
    return compiled("(?s)" + "".join(out))


def like(text: str, pattern: str, escape: str | None = None) -> bool:
    """SQL LIKE over the whole text: % any run, _ one character."""
    if escape is None:
        body = pattern.strip("%")
        if not _SPECIAL.search(body):
            return _plain_like(text, body, pattern)
    return _like(pattern, escape).fullmatch(text) is not None


def _plain_like(text: str, body: str, pattern: str) -> bool:
    """Patterns with % at the ends only."""
    if not body:
        return bool(pattern) or not text
    is_open_left, is_open_right = pattern[0] == "%", pattern[-1] == "%"
    if is_open_left and is_open_right:
        return body in text
    if is_open_left:
        return text.endswith(body)
    return text.startswith(body) if is_open_right else text == body


def like_or_false(text: str | None, pattern: str | None, escape: str | None = None) -> bool:
    """LIKE as a comparison: false when an operand is null."""
    return text is not None and pattern is not None and like(text, pattern, escape)


LIKE = over("(STRING, STRING, STRING) -> BOOLEAN", like_or_false, handles_null=True, columns=like_columns).function("LIKE")

FUNCTIONS: tuple[Scalar, ...] = (
    scalar(
        "REGEXP_EXTRACT",
        "The first match of a pattern, or a group of it.",
        gives("bob", "([a-z]+)@", "bob@x", 1),
        over("(STRING, STRING) -> STRING", regexp_extract, columns=regexp_extract_columns),
        over("(STRING, STRING, INTEGER) -> STRING", regexp_extract),
        subject=1,
    ),
    scalar(
        "REGEXP_EXTRACT_ALL",
        "All matches of a pattern, or a group of each.",
        gives(["1", "22"], "[0-9]+", "a1b22"),
        over("(STRING, STRING) -> ARRAY<STRING>", regexp_extract_all),
        over("(STRING, STRING, INTEGER) -> ARRAY<STRING>", regexp_extract_all),
        subject=1,
    ),
    scalar(
        "REGEXP_REPLACE",
        "Every match of the second by the third; $1 is a group.",
        gives("05/2024", "2024-05", "([0-9]+)-([0-9]+)", "$2/$1"),
        over("(STRING, STRING, STRING) -> STRING", regexp_replace),
    ),
    scalar(
        "REGEXP_SPLIT_TO_ARRAY",
        "Cut at each match of a pattern.",
        gives(["a", "b"], "a12b", "[0-9]+"),
        over("(STRING, STRING) -> ARRAY<STRING>", regexp_split_to_array),
    ),
)
