"""Table functions: each gives a list of rows for one record."""

from __future__ import annotations

from itertools import product
from typing import Any

from .scalar import Scalar, gives, over, scalar

CUBE_MAX_ITEMS = 20
"""A million rows for one record."""


def explode(items: list[Any]) -> list[Any]:
    return items


def cube_explode(items: list[Any]) -> list[list[Any]]:
    """Every combination of each item or null; an item that is null has one choice only.

    Raises ValueError: more items than CUBE_MAX_ITEMS, each of which doubles the rows.
    """
    if len(items) > CUBE_MAX_ITEMS:
        raise ValueError(f"cube_explode: too many columns ({len(items)}); max is {CUBE_MAX_ITEMS}")
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
