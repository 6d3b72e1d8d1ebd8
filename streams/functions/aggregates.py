"""All aggregate functions, by family."""

from __future__ import annotations

from . import collected, offsets, sketches, spread, top, totals
from .aggregate import Aggregate

FUNCTIONS: tuple[Aggregate, ...] = tuple(
    f for family in (totals, spread, collected, sketches, offsets, top) for f in family.FUNCTIONS
)
