"""Functions of nulls and keys."""

from __future__ import annotations

from typing import Any

from .null_columns import coalesce_columns, nullif_columns
from .numeric_columns import same_columns
from .scalar import Scalar, gives, over, scalar


def coalesce(*values: Any) -> Any:
    """The first argument that is not null."""
    return next((v for v in values if v is not None), None)


def nullif(value: Any, other: Any) -> Any:
    """Null when both are equal, else the first."""
    return None if value is not None and value == other else value


def as_value(value: Any) -> Any:
    return value


FUNCTIONS: tuple[Scalar, ...] = (
    scalar(
        "COALESCE",
        "The first argument that is not null.",
        gives("a", None, "a", "b"),
        over("(T, T...) -> T", coalesce, handles_null=True, columns=coalesce_columns, kernel="coalesce"),
    ),
    scalar(
        "IFNULL",
        "The first argument, the second where it is null.",
        gives(2, None, 2),
        over("(T, T) -> T", coalesce, handles_null=True, columns=coalesce_columns, kernel="coalesce"),
    ),
    scalar(
        "NULLIF",
        "Null where both are equal, else the first.",
        gives(1, 1, 2),
        over("(T, T) -> T", nullif, handles_null=True, columns=nullif_columns, kernel="nullif"),
    ),
    scalar(
        "AS_VALUE",
        "A copy of a key column among the values.",
        gives("k", "k"),
        over("(T) -> T", as_value, handles_null=True, columns=same_columns, kernel="same"),
    ),
)
