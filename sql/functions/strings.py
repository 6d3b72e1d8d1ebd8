"""Functions of text. Positions count from 1; a negative one counts from the end."""

from __future__ import annotations

import hashlib
import uuid as _uuid
from collections.abc import Iterator
from typing import Any

from .signature import Overload, overload

# What CHR accepts as text: UTF-16 escapes.
_ESCAPE = "\\u"
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


def initcap(s: str) -> str:
    """Capitalise each word; words are separated by blanks."""
    out: list[str] = []
    starts = True
    for ch in s:
        out.append(ch.upper() if starts else ch.lower())
        starts = ch.isspace()
    return "".join(out)


def concat(*parts: Any) -> Any:
    """Join; nulls are left out."""
    present = [p for p in parts if p is not None]
    if not present:
        return None
    return b"".join(present) if isinstance(present[0], bytes) else "".join(present)


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


def instr(s: str, sought: str, position: int = 1, occurrence: int = 1) -> int:
    """Where `sought` is found from `position` on (backwards from a negative one), 0 when it is not."""
    if position == 0 or occurrence < 1:
        return 0
    if position > 0:
        at = position - 2
        for _ in range(occurrence):
            at = s.find(sought, at + 1)
            if at < 0:
                return 0
        return at + 1
    end = len(s) + position
    for _ in range(occurrence):
        at = s.rfind(sought, 0, end + len(sought)) if end >= 0 else -1
        if at < 0:
            return 0
        end = at - 1
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
    """Every `old` by `new`; an empty `old` changes nothing."""
    return s.replace(old, new) if old else s


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
    """Read `k:v,k:v`; null when a delimiter is empty or both are the same. Entries without a pair are left out."""
    if not entries or not pairs or entries == pairs:
        return None
    found = (part.split(pairs) for part in s.split(entries))
    return {p[0]: p[1] for p in found if len(p) > 1 and p[0] != ""}


def chr_code(code: int) -> str | None:
    """The character of a code point, null when there is none."""
    return chr(code) if 0 <= code <= 0x10FFFF else None


def chr_text(escaped: str) -> str | None:
    """Read UTF-16 escapes such as \\u004b; null when it is not one."""
    if len(escaped) < 6 or not escaped.startswith(_ESCAPE):
        return None
    try:
        units = b"".join(int(part, 16).to_bytes(2, "big") for part in escaped.split(_ESCAPE)[1:])
        return units.decode("utf-16-be")
    except (ValueError, OverflowError):
        return None


def md5(s: str) -> str:
    return hashlib.md5(s.encode(), usedforsecurity=False).hexdigest()


def uuid() -> str:
    return str(_uuid.uuid4())


def uuid_from(data: bytes) -> str | None:
    return str(_uuid.UUID(bytes=data)) if len(data) == 16 else None


def _masked(s: str, upper: str | None, lower: str | None, digit: str | None, other: str | None) -> Iterator[str]:
    for ch in s:
        if ch.isupper():
            mask = upper
        elif ch.islower():
            mask = lower
        elif ch.isdigit():
            mask = digit
        else:
            mask = other
        yield ch if mask is None else mask[:1]


def _mask(s: str, masks: tuple[str | None, ...]) -> str:
    upper, lower, digit, other = masks or ("X", "x", "n", "-")
    return "".join(_masked(s, upper, lower, digit, other))


def mask(s: str | None, *masks: str | None) -> str | None:
    """Hide letters and digits: upper X, lower x, digits n, others -; a null mask leaves that kind as it is."""
    return None if s is None else _mask(s, masks)


def mask_left(s: str | None, n: int | None, *masks: str | None) -> str | None:
    return None if s is None or n is None else _mask(s[: _count(n)], masks) + s[_count(n) :]


def mask_right(s: str | None, n: int | None, *masks: str | None) -> str | None:
    if s is None or n is None:
        return None
    cut = max(0, len(s) - _count(n))
    return s[:cut] + _mask(s[cut:], masks)


def mask_keep_left(s: str | None, n: int | None, *masks: str | None) -> str | None:
    return None if s is None or n is None else s[: _count(n)] + _mask(s[_count(n) :], masks)


def mask_keep_right(s: str | None, n: int | None, *masks: str | None) -> str | None:
    if s is None or n is None:
        return None
    cut = max(0, len(s) - _count(n))
    return _mask(s[:cut], masks) + s[cut:]


def _count(n: int) -> int:
    if n < 0:
        raise ValueError(f"the number of characters must not be negative, found {n}")
    return n


_MASKS = "STRING, STRING, STRING, STRING"
_PARTIAL_MASKS = {
    "MASK_LEFT": mask_left,
    "MASK_RIGHT": mask_right,
    "MASK_KEEP_LEFT": mask_keep_left,
    "MASK_KEEP_RIGHT": mask_keep_right,
}

OVERLOADS: tuple[Overload, ...] = (
    overload("LCASE", "(STRING) -> STRING", lcase, doc="Lower case.", kernel="lower"),
    overload("UCASE", "(STRING) -> STRING", ucase, doc="Upper case.", kernel="upper"),
    overload("TRIM", "(STRING) -> STRING", trim, doc="Without blanks at both ends."),
    overload("LEN", "(STRING) -> INTEGER", length, doc="The number of characters or bytes.", kernel="length"),
    overload("LEN", "(BYTES) -> INTEGER", length),
    overload("INITCAP", "(STRING) -> STRING", initcap, doc="Each word with a capital."),
    overload(
        "CONCAT",
        "(STRING...) -> STRING",
        concat,
        handles_null=True,
        doc="Joins its arguments; nulls are left out.",
        kernel="concat",
    ),
    overload("CONCAT", "(BYTES...) -> BYTES", concat, handles_null=True),
    overload(
        "CONCAT_WS", "(STRING, STRING...) -> STRING", concat_ws, handles_null=True, doc="Joins with the separator given first."
    ),
    overload("CONCAT_WS", "(BYTES, BYTES...) -> BYTES", concat_ws, handles_null=True),
    overload("ELT", "(INTEGER, STRING...) -> STRING", elt, handles_null=True, doc="The n-th of the further arguments."),
    overload(
        "FIELD", "(STRING, STRING...) -> INTEGER", field, handles_null=True, doc="The position of the first among the others."
    ),
    overload("INSTR", "(STRING, STRING) -> INTEGER", instr, doc="Where the second text starts in the first; 0: nowhere."),
    overload("INSTR", "(STRING, STRING, INTEGER) -> INTEGER", instr),
    overload("INSTR", "(STRING, STRING, INTEGER, INTEGER) -> INTEGER", instr),
    overload("SUBSTRING", "(STRING, INTEGER) -> STRING", substring, doc="From a position on, at most so many characters."),
    overload("SUBSTRING", "(STRING, INTEGER, INTEGER) -> STRING", substring_length),
    overload("SUBSTRING", "(BYTES, INTEGER) -> BYTES", substring),
    overload("SUBSTRING", "(BYTES, INTEGER, INTEGER) -> BYTES", substring_length),
    overload("REPLACE", "(STRING, STRING, STRING) -> STRING", replace, doc="Every occurrence of the second by the third."),
    overload("LPAD", "(STRING, INTEGER, STRING) -> STRING", lpad, doc="Padded on the left, or cut, to a length."),
    overload("LPAD", "(BYTES, INTEGER, BYTES) -> BYTES", lpad),
    overload("RPAD", "(STRING, INTEGER, STRING) -> STRING", rpad, doc="Padded on the right, or cut, to a length."),
    overload("RPAD", "(BYTES, INTEGER, BYTES) -> BYTES", rpad),
    overload("SPLIT", "(STRING, STRING) -> ARRAY<STRING>", split, doc="Cut at each delimiter."),
    overload("SPLIT", "(BYTES, BYTES) -> ARRAY<BYTES>", split),
    overload("SPLIT_TO_MAP", "(STRING, STRING, STRING) -> MAP<STRING, STRING>", split_to_map, doc="Reads entries and pairs."),
    overload("CHR", "(INTEGER) -> STRING", chr_code, doc="The character of a code point."),
    overload("CHR", "(STRING) -> STRING", chr_text),
    overload("MD5", "(STRING) -> STRING", md5, doc="The MD5 digest as hexadecimal text."),
    overload("UUID", "() -> STRING", uuid, doc="A new random UUID."),
    overload("UUID", "(BYTES) -> STRING", uuid_from),
    overload("MASK", "(STRING) -> STRING", mask, handles_null=True, doc="Letters and digits hidden."),
    overload("MASK", f"(STRING, {_MASKS}) -> STRING", mask, handles_null=True),
    *(overload(name, "(STRING, INTEGER) -> STRING", impl, handles_null=True) for name, impl in _PARTIAL_MASKS.items()),
    *(overload(name, f"(STRING, INTEGER, {_MASKS}) -> STRING", impl, handles_null=True) for name, impl in _PARTIAL_MASKS.items()),
)
