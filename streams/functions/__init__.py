"""The library of functions, aggregates and casts that DSL, SQL, pull queries, INSERT VALUES, operators and Spark share."""

from .aggregate import Aggregate, AggregateOverload, State, results_of
from .casts import can_convert, convert, make_cast, to_text
from .columns import NotHeld, apply_columns, exact_rows, from_pair, to_pair
from .lookup import Library, NoOverload, builtin_library, choose
from .scalar import Overload, Scalar

__all__ = [
    "Aggregate",
    "AggregateOverload",
    "Library",
    "NoOverload",
    "NotHeld",
    "Overload",
    "Scalar",
    "State",
    "apply_columns",
    "builtin_library",
    "can_convert",
    "choose",
    "convert",
    "exact_rows",
    "from_pair",
    "make_cast",
    "results_of",
    "to_pair",
    "to_text",
]
