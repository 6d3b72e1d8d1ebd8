"""Functions of text and bytes. Positions count from 1; a negative one counts from the end."""

from __future__ import annotations

import hashlib
import re
import uuid as _uuid
from typing import Any

from .scalar import Scalar, gives, over, scalar
from .text_columns import (
    concat_columns,
    concat_text_columns,
    contains_columns,
    ends_columns,
    instr_columns,
    length_columns,
    lower_columns,
    lpad_columns,
    replace_columns,
    rpad_columns,
    split_columns,
    starts_columns,
    substring_columns,
    trim_columns,
    upper_columns,
)

# What CHR accepts as text: UTF-16 escapes.
_ESCAPE = "\\u"
_ESCAPES = re.compile(r"\\([0-3]?[0-7]{1,2})|\\u+\+?([0-9A-Fa-f]{4})|\\(.?)|([^\\]+)", re.DOTALL)
_CONTROLS = {"b": "\b", "n": "\n", "t": "\t", "f": "\f", "r": "\r"}
PAD_MAX_CHARS = 10_000_000


def lcase(s: str) -> str:
    return s.lower()


def ucase(s: str) -> str:
    return s.upper()


def trim(s: str) -> str:
    """Remove characters up to blank at both ends, as Java does."""
    return s.strip("".join(map(chr, range(0x21))))


def length(s: Any) -> int:
    return len(s)


def contains(s: str, part: str) -> bool:
    return part in s


def starts_with(s: str, start: str) -> bool:
    return s.startswith(start)


def ends_with(s: str, end: str) -> bool:
    return s.endswith(end)


def initcap(s: str) -> str:
    """Capitalise each word; words are separated by blanks, and those before the first are left out."""
    out: list[str] = []
    starts = True
    for ch in s.lstrip(" \t\n\v\f\r"):
        out.append(ch.upper() if starts else ch.lower())
        starts = ch.isspace()
    return "".join(out)


def concat(*parts: str | None) -> str:
    """Join; nulls are left out, and nothing is left of nulls alone."""
    return "".join([p for p in parts if p is not None])


def concat_bytes(*parts: bytes | None) -> bytes:
    """As `concat`, for BYTES."""
    return b"".join([p for p in parts if p is not None])


def concat_text(left: str, right: str) -> str:
    return left + right


def concat_ws(separator: Any, *parts: Any) -> Any:
    """Join with a separator; null parts are left out, a null separator gives null."""
    return None if separator is None else separator.join([p for p in parts if p is not None])


def elt(n: int | None, *args: str | None) -> str | None:
    """The n-th of the arguments, null when there is none."""
    return args[n - 1] if n is not None and 1 <= n <= len(args) else None


def field(s: str | None, *args: str | None) -> int:
    """The position of the text among the arguments, 0 when it is not there."""
    return args.index(s) + 1 if s is not None and s in args else 0


def instr(s: str | None, sought: str | None, position: int | None = 1, occurrence: int | None = 1) -> int | None:
    """Where `sought` is found from `position` on, 0 when it is not; so for null texts.

    From a negative position backwards: what is found ends there or before.
    """
    if position is None or occurrence is None:
        return None
    if s is None or sought is None or position == 0 or abs(position) > len(s) or occurrence < 1:
        return 0
    if position > 0:
        at = position - 2
        for _ in range(occurrence):
            at = s.find(sought, at + 1)
            if at < 0:
                return 0
        return at + 1
    end = len(s) + position + 1
    for _ in range(occurrence):
        at = s.rfind(sought, 0, end) if end >= len(sought) else -1
        if at < 0:
            return 0
        end = at - 1 + len(sought)
    return at + 1


def substring(s: Any, position: int) -> Any:
    start = _start(len(s), position)
    return s[start:]


def substring_length(s: Any, position: int, count: int) -> Any:
    start = _start(len(s), position)
    return s[start : max(start, min(len(s), start + count))]


def _start(size: int, position: int) -> int:
    if position < 0:
        return max(0, size + position)
    return min(size, max(0, position - 1))


def replace(s: str, old: str, new: str) -> str:
    """Every `old` by `new`; an empty `old` is found before, between and behind all characters."""
    return s.replace(old, new)


def lpad(s: Any, size: int, pad: Any) -> Any:
    """Pad on the left to `size`, cut beyond it; null for a negative size or an empty pad."""
    if size < 0 or not pad:
        return None
    return (_padding(size - len(s), pad) + s)[:size] if len(s) < size else s[:size]


def rpad(s: Any, size: int, pad: Any) -> Any:
    if size < 0 or not pad:
        return None
    return (s + _padding(size - len(s), pad))[:size]


def _padding(size: int, pad: Any) -> Any:
    if size > PAD_MAX_CHARS:
        raise ValueError(f"padding of {size} is beyond {PAD_MAX_CHARS}")
    return (pad * (size // len(pad) + 1))[: max(size, 0)]


def split(s: Any, delimiter: Any) -> list[Any]:
    """Cut at each delimiter; an empty one cuts between all characters."""
    if delimiter:
        return list(s.split(delimiter))
    if not s:
        return [s]
    return [s[i : i + 1] for i in range(len(s))]


def split_to_map(s: str, entries: str, pairs: str) -> dict[str, str] | None:
    """Read `k:v,k:v`; null when a delimiter is empty or both are the same. Entries that are no pair are left out."""
    if not entries or not pairs or entries == pairs:
        return None
    found = (part.split(pairs) for part in s.split(entries))
    return {p[0]: p[1] for p in found if len(p) > 1}


def chr_code(code: int) -> str | None:
    """The character of a code point, null when there is none."""
    return chr(code) if 0 <= code <= 0x10FFFF else None


def chr_text(escaped: str) -> str | None:
    """Read text that begins with a UTF-16 escape such as \\u004b, and other escapes of Java; null when it does not.

    Raises ValueError: an escape without four hexadecimal digits.
    """
    if len(escaped) < 6 or not escaped.startswith(_ESCAPE):
        return None
    units = "".join(_unescaped(match) for match in _ESCAPES.finditer(escaped))
    return units.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")


def _unescaped(match: re.Match[str]) -> str:
    octal, unit, other, plain = match.groups()
    if octal is not None:
        return chr(int(octal, 8))
    if unit is not None:
        return chr(int(unit, 16))
    if other == "u":
        raise ValueError(f"four hexadecimal digits are expected behind {match.group()!r}")
    return _CONTROLS.get(other, other) if other is not None else plain


def md5(s: str) -> str:
    return hashlib.md5(s.encode(), usedforsecurity=False).hexdigest()


def uuid() -> str:
    return str(_uuid.uuid4())


def uuid_from(data: bytes) -> str | None:
    return str(_uuid.UUID(bytes=data)) if len(data) == 16 else None


CONCAT_TEXT = over("(STRING, STRING) -> STRING", concat_text, columns=concat_text_columns, kernel="concat").function("CONCAT")

FUNCTIONS: tuple[Scalar, ...] = (
    scalar(
        "LCASE",
        "Lower case.",
        gives("abc", "aBC"),
        over("(STRING) -> STRING", lcase, columns=lower_columns, kernel="lower"),
        aliases=("lower",),
    ),
    scalar(
        "UCASE",
        "Upper case.",
        gives("ABC", "aBc"),
        over("(STRING) -> STRING", ucase, columns=upper_columns, kernel="upper"),
        aliases=("upper",),
    ),
    scalar(
        "TRIM",
        "Without blanks at both ends.",
        gives("ab", "  ab "),
        over("(STRING) -> STRING", trim, columns=trim_columns),
        aliases=("strip",),
    ),
    scalar(
        "LEN",
        "The number of characters, bytes or items.",
        gives(5, "hello"),
        over("(STRING) -> INTEGER", length, columns=length_columns, kernel="length"),
        over("(BYTES) -> INTEGER", length, columns=length_columns),
        over("(ARRAY<T>) -> INTEGER", length),
        over("(MAP<K, V>) -> INTEGER", length),
        aliases=("length",),
    ),
    scalar(
        "CONTAINS",
        "Whether the second text is in the first.",
        gives(True, "stream", "re"),
        over("(STRING, STRING) -> BOOLEAN", contains, columns=contains_columns, kernel="contains"),
    ),
    scalar(
        "STARTS_WITH",
        "Whether the first text begins with the second.",
        gives(True, "stream", "str"),
        over("(STRING, STRING) -> BOOLEAN", starts_with, columns=starts_columns, kernel="starts_with"),
    ),
    scalar(
        "ENDS_WITH",
        "Whether the first text ends with the second.",
        gives(True, "stream", "am"),
        over("(STRING, STRING) -> BOOLEAN", ends_with, columns=ends_columns, kernel="ends_with"),
    ),
    scalar("INITCAP", "Each word with a capital.", gives("The Quick Fox", "the qUICK fox"), over("(STRING) -> STRING", initcap)),
    scalar(
        "CONCAT",
        "Joins its arguments; nulls are left out.",
        gives("ab", "a", None, "b"),
        over("(STRING...) -> STRING", concat, handles_null=True, columns=concat_columns, kernel="concat"),
        over("(BYTES...) -> BYTES", concat_bytes, handles_null=True, columns=concat_columns),
    ),
    scalar(
        "CONCAT_WS",
        "Joins with the separator given first; nulls are left out.",
        gives("a-b", "-", "a", None, "b"),
        over("(STRING, STRING...) -> STRING", concat_ws, handles_null=True),
        over("(BYTES, BYTES...) -> BYTES", concat_ws, handles_null=True),
    ),
    scalar(
        "ELT",
        "The n-th of the further arguments.",
        gives("b", 2, "a", "b"),
        over("(INTEGER, STRING...) -> STRING", elt, handles_null=True),
    ),
    scalar(
        "FIELD",
        "The position of the first among the others, 0 when it is none of them.",
        gives(2, "b", "a", "b"),
        over("(STRING, STRING...) -> INTEGER", field, handles_null=True),
    ),
    scalar(
        "INSTR",
        "Where the second text starts in the first, from a position on and for the n-th time; 0: nowhere.",
        gives(5, "corporate floor", "or", 3),
        over("(STRING, STRING) -> INTEGER", instr, columns=instr_columns, handles_null=True),
        over("(STRING, STRING, INTEGER) -> INTEGER", instr, handles_null=True),
        over("(STRING, STRING, INTEGER, INTEGER) -> INTEGER", instr, handles_null=True),
    ),
    scalar(
        "SUBSTRING",
        "From a position on, at most so many characters.",
        gives("ea", "stream", -3, 2),
        over("(STRING, INTEGER) -> STRING", substring, columns=substring_columns),
        over("(STRING, INTEGER, INTEGER) -> STRING", substring_length, columns=substring_columns),
        over("(BYTES, INTEGER) -> BYTES", substring),
        over("(BYTES, INTEGER, INTEGER) -> BYTES", substring_length),
    ),
    scalar(
        "REPLACE",
        "Every occurrence of the second by the third.",
        gives("b-n-n-", "banana", "a", "-"),
        over("(STRING, STRING, STRING) -> STRING", replace, columns=replace_columns),
    ),
    scalar(
        "LPAD",
        "Padded on the left, or cut, to a length.",
        gives("007", "7", 3, "0"),
        over("(STRING, INTEGER, STRING) -> STRING", lpad, columns=lpad_columns),
        over("(BYTES, INTEGER, BYTES) -> BYTES", lpad),
    ),
    scalar(
        "RPAD",
        "Padded on the right, or cut, to a length.",
        gives("xab", "x", 3, "ab"),
        over("(STRING, INTEGER, STRING) -> STRING", rpad, columns=rpad_columns),
        over("(BYTES, INTEGER, BYTES) -> BYTES", rpad),
    ),
    scalar(
        "SPLIT",
        "Cut at each delimiter.",
        gives(["a", "", "b"], "a,,b", ","),
        over("(STRING, STRING) -> ARRAY<STRING>", split, columns=split_columns),
        over("(BYTES, BYTES) -> ARRAY<BYTES>", split),
    ),
    scalar(
        "SPLIT_TO_MAP",
        "Reads entries and pairs, separated by the second and third text.",
        gives({"a": "1", "b": "2"}, "a:1/b:2", "/", ":"),
        over("(STRING, STRING, STRING) -> MAP<STRING, STRING>", split_to_map),
    ),
    scalar(
        "CHR",
        "The character of a code point, or of a UTF-16 escape.",
        gives("A", 65),
        over("(INTEGER) -> STRING", chr_code),
        over("(STRING) -> STRING", chr_text),
    ),
    scalar(
        "MD5",
        "The MD5 digest as hexadecimal text.",
        gives("0cc175b9c0f1b6a831c399e269772661", "a"),
        over("(STRING) -> STRING", md5),
    ),
    scalar(
        "UUID",
        "A new random UUID, or that of 16 bytes.",
        gives("00000000-0000-0000-0000-0000000000ff", b"\0" * 15 + b"\xff"),
        over("() -> STRING", uuid),
        over("(BYTES) -> STRING", uuid_from),
    ),
)
