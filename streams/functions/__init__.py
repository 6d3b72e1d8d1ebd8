"""The library of functions, aggregates and casts that DSL, SQL, pull queries, INSERT VALUES, operators and Spark share."""

from .aggregate import Aggregate, AggregateOverload, Make, State, over_all, results_of
from .arithmetic import (
    attempt,
    decimal_operator,
    divide_doubles,
    divide_integers,
    remainder_doubles,
    remainder_integers,
    wrap32,
    wrap64,
)
from .casts import can_convert, convert, make_cast
from .columns import NotHeld, apply_columns, exact_rows, from_pair, to_pair
from .exact_distinct import count_distinct
from .headers import last_header
from .lookup import Library, NoOverload, builtin_library, choose, no_overload_text
from .nulls import REQUIRED
from .regexes import LIKE
from .regexes import compiled as compiled_pattern
from .scalar import Overload, Scalar, Unit, over
from .signature import LAMBDA_ARGUMENT, UNIT_ARGUMENT, Pattern, Signature, fill, is_concrete, match_pattern
from .text import CONCAT_TEXT
from .types import NUMERIC, TIME_KINDS, arithmetic_type, as_decimal, can_cast_implicitly, common_type, is_numeric

__all__ = [
    "Aggregate",
    "AggregateOverload",
    "CONCAT_TEXT",
    "LAMBDA_ARGUMENT",
    "LIKE",
    "Library",
    "Make",
    "NUMERIC",
    "NoOverload",
    "NotHeld",
    "Overload",
    "Pattern",
    "REQUIRED",
    "Scalar",
    "Signature",
    "State",
    "TIME_KINDS",
    "UNIT_ARGUMENT",
    "Unit",
    "apply_columns",
    "arithmetic_type",
    "as_decimal",
    "attempt",
    "builtin_library",
    "can_cast_implicitly",
    "can_convert",
    "choose",
    "common_type",
    "compiled_pattern",
    "convert",
    "count_distinct",
    "decimal_operator",
    "divide_doubles",
    "divide_integers",
    "exact_rows",
    "fill",
    "from_pair",
    "is_concrete",
    "is_numeric",
    "last_header",
    "make_cast",
    "match_pattern",
    "no_overload_text",
    "over",
    "over_all",
    "remainder_doubles",
    "remainder_integers",
    "results_of",
    "to_pair",
    "wrap32",
    "wrap64",
]
