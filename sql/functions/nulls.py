"""Functions of nulls and keys."""

from __future__ import annotations

from typing import Any

from .signature import Overload, overload


def coalesce(*values: Any) -> Any:
    """The first argument that is not null."""
    return next((v for v in values if v is not None), None)


def nullif(value: Any, other: Any) -> Any:
    """Null when both are equal, else the first."""
    return None if value is not None and value == other else value


def as_value(value: Any) -> Any:
    return value


OVERLOADS: tuple[Overload, ...] = (
    overload(
        "COALESCE",
        "(T, T...) -> T",
        coalesce,
        handles_null=True,
        doc="The first argument that is not null.",
        spark="coalesce",
        kernel="coalesce",
    ),
    overload(
        "IFNULL",
        "(T, T) -> T",
        coalesce,
        handles_null=True,
        doc="The first argument, the second where it is null.",
        kernel="coalesce",
    ),
    overload(
        "NULLIF", "(T, T) -> T", nullif, handles_null=True, doc="Null where both are equal, else the first.", kernel="nullif"
    ),
    overload("AS_VALUE", "(T) -> T", as_value, handles_null=True, doc="A copy of a key column among the values.", kernel="same"),
)
