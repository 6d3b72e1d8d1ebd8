"""Comparison of actual with expected values: exact, with the few equivalences that the case format defines."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

DOUBLE_TOLERANCE = 1e-6
"""How far doubles of binary formats may be off."""


def difference(actual: Any, expected: Any, path: str = "$", *, tolerance: float | None = None) -> str | None:
    """Return the first difference, None when there is none.

    Objects: same number of fields, names exact then upper-case. Numbers: whole ones by value, decimals by value and scale. null
    equals only null. `tolerance`: decimals are doubles and may differ by that much.
    """
    if expected is None or actual is None:
        return None if actual is None and expected is None else f"{path}: expected {_show(expected)}, found {_show(actual)}"
    if isinstance(actual, Mapping):
        return _objects(actual, expected, path, tolerance)
    if isinstance(actual, list):
        return _arrays(actual, expected, path, tolerance)
    if _equal(actual, expected, tolerance):
        return None
    return f"{path}: expected {_show(expected)}, found {_show(actual)}"


def _objects(actual: Mapping[str | None, Any], expected: Any, path: str, tolerance: float | None) -> str | None:
    if not isinstance(expected, Mapping):
        return f"{path}: expected {_show(expected)}, found an object {_show(actual)}"
    if len(actual) != len(expected):
        return f"{path}: expected the fields {list(expected)}, found {list(actual)}"
    upper = {k.upper(): v for k, v in actual.items() if k is not None}
    for name, value in expected.items():
        found = actual[name] if name in actual else upper.get(name.upper())
        problem = difference(found, value, f"{path}.{name}", tolerance=tolerance)
        if problem:
            return problem
    return None


def _arrays(actual: list[Any], expected: Any, path: str, tolerance: float | None) -> str | None:
    if not isinstance(expected, list):
        return f"{path}: expected {_show(expected)}, found an array {_show(actual)}"
    if len(actual) != len(expected):
        return f"{path}: expected {len(expected)} items, found {len(actual)}: {_show(actual)}"
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        problem = difference(a, e, f"{path}[{i}]", tolerance=tolerance)
        if problem:
            return problem
    return None


def _equal(actual: Any, expected: Any, tolerance: float | None) -> bool:
    if isinstance(actual, bool) or isinstance(expected, bool):
        return actual is expected
    if isinstance(actual, int):
        return isinstance(expected, int | Decimal) and int(expected) == actual
    if isinstance(actual, float):
        return isinstance(expected, int | Decimal) and abs(actual - float(expected)) <= DOUBLE_TOLERANCE
    if isinstance(actual, Decimal):
        return _equal_decimal(actual, expected, tolerance)
    if isinstance(actual, str):
        if isinstance(expected, Decimal):
            return actual == str(expected)
        return isinstance(expected, str) and actual == expected
    if isinstance(actual, bytes):
        return bool(base64.b64encode(actual).decode() == expected)
    return False


def _same_number(actual: Decimal, text: str) -> bool:
    """Equal in value and scale, leading zeros apart (`005.4` is 5.4)."""
    try:
        number = Decimal(text)
    except ArithmeticError:
        return False
    return actual == number and actual.as_tuple().exponent == number.as_tuple().exponent


def _equal_decimal(actual: Decimal, expected: Any, tolerance: float | None) -> bool:
    if isinstance(expected, str):
        return _same_number(actual, expected)
    if not isinstance(expected, int | Decimal):
        return False
    if tolerance is not None:
        return abs(float(actual) - float(expected)) <= tolerance
    exponent = actual.as_tuple().exponent
    assert isinstance(exponent, int)
    if isinstance(expected, int):
        return exponent >= 0 and actual == expected
    return bool(actual == expected and exponent == expected.as_tuple().exponent)


def _show(value: Any) -> str:
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= 200 else text[:197] + "..."
