"""Table functions: each gives a list of rows for one record."""

from __future__ import annotations

from itertools import product
from typing import Any

from .scalar import Scalar, gives, over, scalar


def explode(items: list[Any]) -> list[Any]:
    return items


def cube_explode(items: list[Any]) -> list[list[Any]]:
    """Every combination of each item or null; an item that is null has one choice only."""
    choices = [(None, item) if item is not None else (None,) for item in items]
    return [list(row) for row in product(*choices)]


FUNCTIONS: tuple[Scalar, ...] = (
    scalar("EXPLODE", "A row for each item of an array.", gives([1, 2], [1, 2]), over("(ARRAY<T>) -> T", explode)),
    scalar(
        "CUBE_EXPLODE",
        "A row for each combination of items and nulls.",
        gives([[None], [1]], [1]),
        over("(ARRAY<T>) -> ARRAY<T>", cube_explode),
    ),
)
