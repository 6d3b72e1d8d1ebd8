"""How an aggregate function is declared: a signature, which arguments are constants, and what makes its Aggregator. Data only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from logflume.log.schemas import DataType
from logflume.streams.graph import Aggregator

from .signature import Signature, parse_signature

# (argument types without the constants, the constants' values) -> aggregator
Make = Callable[[Sequence[DataType], Sequence[Any]], Aggregator]


@dataclass(frozen=True, slots=True)
class AggregateOverload:
    """One variation of an aggregate.

    Attributes:
        constants: how many of the last arguments are literals that set the aggregate up; -k: all behind the first k.
        limit_property: a session property whose number is given to `make` as a further constant.
        has_undo: whether it works over tables.
    """

    name: str
    signature: Signature
    make: Make
    constants: int = 0
    has_undo: bool = False
    doc: str = ""
    limit_property: str | None = None


def aggregate(
    name: str,
    signature: str,
    make: Make,
    *,
    constants: int = 0,
    has_undo: bool = False,
    doc: str = "",
    limit_property: str | None = None,
) -> AggregateOverload:
    """Declare an overload from a signature's text."""
    return AggregateOverload(name, parse_signature(signature), make, constants, has_undo, doc, limit_property)
