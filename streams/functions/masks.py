"""Masking of text: letters and digits hidden, all or at one end."""

from __future__ import annotations

from collections.abc import Iterator
from unicodedata import category

from .scalar import Scalar, gives, over, scalar


def _masked(s: str, upper: str | None, lower: str | None, digit: str | None, other: str | None) -> Iterator[str]:
    masks = {"Lu": upper, "Ll": lower, "Nd": digit}
    for ch in s:
        mask = masks.get(category(ch), other)
        yield ch if mask is None else mask[:1]


def _mask(s: str, masks: tuple[str | None, ...]) -> str:
    for each in masks:
        if each is not None and len(each) != 1:
            raise ValueError(f"Invalid mask character. Must be only single character, but was '{each}'")
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

FUNCTIONS: tuple[Scalar, ...] = (
    scalar(
        "MASK",
        "Letters and digits hidden: upper X, lower x, digits n, others -; or by four masks, null leaving a kind as it is.",
        gives("Xx-Xxxx--nnn", "My Test $123"),
        over("(STRING) -> STRING", mask, handles_null=True),
        over(f"(STRING, {_MASKS}) -> STRING", mask, handles_null=True),
    ),
    scalar(
        "MASK_LEFT",
        "The first characters masked.",
        gives("Xx-Xest $123", "My Test $123", 4),
        over("(STRING, INTEGER) -> STRING", mask_left, handles_null=True),
        over(f"(STRING, INTEGER, {_MASKS}) -> STRING", mask_left, handles_null=True),
    ),
    scalar(
        "MASK_RIGHT",
        "The last characters masked.",
        gives("My Test -nnn", "My Test $123", 4),
        over("(STRING, INTEGER) -> STRING", mask_right, handles_null=True),
        over(f"(STRING, INTEGER, {_MASKS}) -> STRING", mask_right, handles_null=True),
    ),
    scalar(
        "MASK_KEEP_LEFT",
        "All but the first characters masked.",
        gives("My Txxx--nnn", "My Test $123", 4),
        over("(STRING, INTEGER) -> STRING", mask_keep_left, handles_null=True),
        over(f"(STRING, INTEGER, {_MASKS}) -> STRING", mask_keep_left, handles_null=True),
    ),
    scalar(
        "MASK_KEEP_RIGHT",
        "All but the last characters masked.",
        gives("Xx-Xxxx-$123", "My Test $123", 4),
        over("(STRING, INTEGER) -> STRING", mask_keep_right, handles_null=True),
        over(f"(STRING, INTEGER, {_MASKS}) -> STRING", mask_keep_right, handles_null=True),
    ),
)
