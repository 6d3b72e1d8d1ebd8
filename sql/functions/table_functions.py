"""Table functions: each gives a list of rows for one record."""

from __future__ import annotations

from itertools import product
from typing import Any

from .signature import Overload, overload


def explode(items: list[Any]) -> list[Any]:
    return items


def cube_explode(items: list[Any]) -> list[list[Any]]:
    """Every combination of each item or null; an item that is null has one choice only."""
    choices = [(None, item) if item is not None else (None,) for item in items]
    return [list(row) for row in product(*choices)]


OVERLOADS: tuple[Overload, ...] = (
    overload("EXPLODE", "(ARRAY<T>) -> T", explode, doc="A row for each item of an array."),
    overload("CUBE_EXPLODE", "(ARRAY<T>) -> ARRAY<T>", cube_explode, doc="A row for each combination of items and nulls."),
)
