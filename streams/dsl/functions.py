"""The scalar functions behind the methods of `Value`, as the compilers see them."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from logflume.log import InvalidInput
from logflume.log.schemas import ANY, BIGINT, BOOLEAN, DOUBLE, STRING, DataType, Kind

from ..expr import Function

_NUMBERS = (Kind.INTEGER, Kind.BIGINT, Kind.DECIMAL, Kind.DOUBLE)
_SIZED = (Kind.STRING, Kind.BYTES, Kind.ARRAY, Kind.MAP)


def lower(text: str) -> str:
    return text.lower()


def upper(text: str) -> str:
    return text.upper()


def strip(text: str) -> str:
    return text.strip()


def contains(text: str, part: str) -> bool:
    return part in text


def starts_with(text: str, start: str) -> bool:
    return text.startswith(start)


def ends_with(text: str, end: str) -> bool:
    return text.endswith(end)


FUNCTIONS = MappingProxyType(
    {
        "abs": Function("abs", abs, kernel="abs"),
        "round": Function("round", round),
        "length": Function("length", len, kernel="length"),
        "lower": Function("lower", lower, kernel="lower"),
        "upper": Function("upper", upper, kernel="upper"),
        "strip": Function("strip", strip),
        "contains": Function("contains", contains, kernel="contains"),
        "starts_with": Function("starts_with", starts_with, kernel="starts_with"),
        "ends_with": Function("ends_with", ends_with, kernel="ends_with"),
    }
)


def result_type(name: str, args: tuple[DataType, ...], text: Any) -> DataType:
    """Return the type that a function gives for these arguments. Raises InvalidInput for a type that does not fit."""
    first = args[0]
    if name in ("abs", "round"):
        _expect(first, _NUMBERS, "a number", text)
        return DOUBLE if name == "round" and first.kind is Kind.DOUBLE else first
    if name == "length":
        _expect(first, _SIZED, "text or a collection", text)
        return BIGINT
    for arg in args:
        _expect(arg, (Kind.STRING,), "text (STRING)", text)
    return BOOLEAN if name in ("contains", "starts_with", "ends_with") else STRING


def _expect(type: DataType, kinds: tuple[Kind, ...], wanted: str, text: Any) -> None:
    if type.kind not in kinds and type != ANY:
        raise InvalidInput(f"`{text!r}` needs {wanted}, found {type}; cast it if that is meant")
