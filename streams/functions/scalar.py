"""What a scalar function is: one object with its name, documentation, example, and a form per kind of argument. Data only.

Every caller shares it: the DSL, SQL, pull queries, INSERT VALUES, the operators and Spark.

A form has one exact meaning over one row, `impl`, and where it pays a form over columns, `columns`:

    columns(*arguments) -> (values, valid) or (values, valid, unsure)

An argument is a constant (a Python value of its column type, None for null), or a pair (values, valid): `values` a numpy array
for BOOLEAN (bool), INTEGER, BIGINT, DATE, TIME, TIMESTAMP (int64) and DOUBLE (float64), a pyarrow Array for everything else;
`valid` a bool array, False where it is null, or None where nothing is. What `values` holds at a null does not count. At least one
argument is a pair. The result is a pair of the result type; `unsure` marks the rows of which the form is not certain, or which
fail: those are computed again by `impl`. A form raises `NotHeld` when these arguments are not for it (a pattern that varies by
row). Unless the function `handles_null`, the form need not look at nulls: its result is null where an argument is.
`columns.apply_columns` calls a form by these rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from logflume.log.schemas import DataType

from ..expr import Function
from .signature import Signature, parse_signature

ColumnForm = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Overload:
    """One form of a function.

    Attributes:
        impl: importable callable over Python values; what `extra` returns is given to it after the arguments.
        result_type: computes the type from the argument types where the pattern cannot say it.
        handles_null: it is called with nulls too; otherwise a null argument gives null without a call.
        extra: (argument types, result type) -> constants, e.g. a scale.
        columns: the form over columns (see the module), or None.
        kernel: an exact numba equivalent's name, or None.
    """

    signature: Signature
    impl: Callable[..., Any]
    result_type: Callable[[Sequence[DataType]], DataType] | None = None
    handles_null: bool = False
    extra: Callable[[Sequence[DataType], DataType], tuple[Any, ...]] | None = None
    columns: ColumnForm | None = None
    kernel: str | None = None

    def function(self, name: str) -> Function:
        """Return the form as an expression refers to it."""
        return Function(name.lower(), self.impl, self.handles_null, self.kernel, self.columns)


@dataclass(frozen=True, slots=True)
class Example:
    """Arguments as Python values and what the function gives for them; `sql`: the call where literals do not say it."""

    args: tuple[Any, ...]
    result: Any
    sql: str = ""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A scalar function.

    Attributes:
        name: as SQL writes it; the DSL uses it in lower case.
        doc: what it gives, in one line.
        subject: which argument the DSL's method form puts before the dot.
        aliases: further names of the DSL's method.
    """

    name: str
    doc: str
    example: Example | None
    overloads: tuple[Overload, ...]
    subject: int = 0
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unit:
    """A bare time unit as an example's argument."""

    name: str


def gives(result: Any, *args: Any, sql: str = "") -> Example:
    """Declare an example: the result first, then the arguments."""
    return Example(args, result, sql)


def scalar(
    name: str, doc: str, example: Example | None, *overloads: Overload, subject: int = 0, aliases: tuple[str, ...] = ()
) -> Scalar:
    """Declare a function."""
    return Scalar(name, doc, example, overloads, subject, aliases)


def over(
    signature: str,
    impl: Callable[..., Any],
    *,
    result_type: Callable[[Sequence[DataType]], DataType] | None = None,
    handles_null: bool = False,
    extra: Callable[[Sequence[DataType], DataType], tuple[Any, ...]] | None = None,
    columns: ColumnForm | None = None,
    kernel: str | None = None,
) -> Overload:
    """Declare a form from a signature's text."""
    return Overload(parse_signature(signature), impl, result_type, handles_null, extra, columns, kernel)
