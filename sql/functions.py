"""The library of functions as statements use it: its faults are faults of the statement."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from logflume.log.schemas import DataType, Kind
from logflume.streams.functions import Library, NoOverload, Scalar, Signature, Unit, choose

from .errors import StatementError

# Whole numbers beside a DECIMAL: the dialect does not say which of their common types is meant.
_AMBIGUOUS = ("greatest", "least")


def choose_overload(name: str, signatures: Sequence[Signature], args: Sequence[DataType]) -> tuple[int, dict[str, DataType]]:
    """Return (index of the signature that fits best, its type variables). Raises StatementError."""
    kinds = {arg.kind for arg in args}
    if name in _AMBIGUOUS and Kind.DECIMAL in kinds and kinds & {Kind.INTEGER, Kind.BIGINT} and Kind.DOUBLE not in kinds:
        shown = ", ".join(map(str, args))
        raise StatementError(
            f"Function '{name}' cannot be resolved due to ambiguous method parameters ({shown}). "
            "They could be taken as DECIMAL or as DOUBLE; CAST them to one of these"
        )
    try:
        return choose(name, signatures, args)
    except NoOverload as error:
        raise StatementError(str(error)) from None


def unknown_function(library: Library, name: str) -> StatementError:
    """Return the error for a name that no function has."""
    return StatementError(f"{library.unknown(name)} Functions of your own come with --functions FILE.")


def example_text(function: Scalar) -> str:
    """Return a function's example as a call and its result; empty where it has none.

    >>> from logflume.streams.functions import builtin_library
    >>> example_text(builtin_library().scalars["SUBSTRING"])
    "SUBSTRING('stream', -3, 2) = 'ea'"
    """
    call = example_call(function)
    return f"{call} = {literal_text(function.example.result)}" if call and function.example is not None else ""


def example_call(function: Scalar) -> str:
    """Return the call of a function's example as SQL, empty where it has none."""
    if function.example is None:
        return ""
    return function.example.sql or f"{function.name}({', '.join(map(literal_text, function.example.args))})"


def literal_text(value: Any) -> str:
    """Write a Python value as an expression of the dialect."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case float() if value - value == 0:
            return f"{value!r}E0" if "e" not in repr(value) else repr(value)
        case float():
            return f"CAST('{value}' AS DOUBLE)".replace("inf", "Infinity").replace("nan", "NaN")
        case int() | Decimal():
            return str(value)
        case str():
            return "'" + value.replace("'", "''") + "'"
        case bytes():
            return f"TO_BYTES('{value.hex()}', 'hex')"
        case datetime.datetime():
            return f"CAST('{value.isoformat()}' AS TIMESTAMP)"
        case datetime.date():
            return f"CAST('{value.isoformat()}' AS DATE)"
        case datetime.time():
            return f"CAST('{value.isoformat()}' AS TIME)"
        case list():
            return f"ARRAY[{', '.join(map(literal_text, value))}]"
        case dict():
            return f"MAP({', '.join(f'{literal_text(k)} := {literal_text(v)}' for k, v in value.items())})"
        case Unit(name):
            return name
    raise TypeError(f"no literal of a {type(value).__name__}")
