"""Functions that only conformance cases call: they say which overload was chosen, or fail when told to."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from typing import Any

from logflume.log.schemas import BIGINT, STRING, Column, DataType, array, java_double_text, struct
from logflume.streams.functions import Library, Make, Scalar, builtin_library, over, over_all
from logflume.streams.functions.aggregate import aggregate
from logflume.streams.functions.scalar import scalar
from logflume.streams.graph import Aggregator


def named(name: str, *args: Any) -> str:
    """Tell the name of the overload."""
    return name


def struct_field(value: dict[str, Any]) -> Any:
    return value["A"]


def make_struct() -> dict[str, Any]:
    return {"A": "foo"}


def fail(*args: Any) -> Any:
    raise ValueError("You called a bad function")


def fail_if(is_wanted: bool) -> int:
    if is_wanted:
        fail()
    return 0


def when_condition(result: Any, is_wanted: bool) -> Any:
    """Fail when evaluated although it should not be."""
    if not is_wanted:
        raise ValueError("evaluated although it should not be")
    return result


class _Alternating:
    """Gives null on every other call, first on the first."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, text: str) -> str | None:
        self.calls += 1
        return None if self.calls % 2 else text


def texts(*args: Any) -> list[str]:
    """Each argument as text; a lone one, or maps and lists, by their first item."""
    return [_text(a) for a in args]


def lone(value: Any) -> list[Any]:
    return [value]


def _text(value: Any) -> str:
    if isinstance(value, dict) and list(value) == ["k"]:
        value = value["k"]
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return java_double_text(value)
    if isinstance(value, Decimal):
        return format(value.quantize(Decimal(1).scaleb(-10)), "f")
    if isinstance(value, dict):
        return "Struct{" + ",".join(f"{k}={v}" for k, v in value.items()) + "}"
    return str(value)


def throwing(is_wanted: bool) -> list[bool]:
    if is_wanted:
        raise ValueError("You asked me to throw")
    return [is_wanted]


def _first_field(types: Sequence[DataType]) -> DataType:
    return types[0].fields[0].type if types[0].fields else STRING


def _struct_type(types: Sequence[DataType]) -> DataType:
    return struct(Column("A", STRING))


# ------------------------------------------------------------------------------------------------ aggregates


def sum_first(state: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    return (state[0] + value,)


def sum_lengths(state: tuple[Any, ...], value: str) -> tuple[Any, ...]:
    return (state[0] + len(value),)


def first(state: tuple[Any, ...]) -> Any:
    return state[0]


def _sum(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    zero: Any = 0.0 if str(types[0]) == "DOUBLE" else 0
    return Aggregator("TEST_UDAF", types[0], (Column("SUM", types[0]),), (zero,), sum_first, first)


def _sum_of_lengths(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    start = len(constants[0]) if constants else 0
    return Aggregator("TEST_UDAF", BIGINT, (Column("SUM", BIGINT),), (start,), sum_lengths, first)


def collect_first(state: tuple[Any, ...], value: Any, *more: Any) -> tuple[Any, ...]:
    """Collect the first argument where none is null."""
    return state if value is None or any(m is None for m in more) else ([*state[0], value],)


def _collect(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
    type = array(types[0])
    return Aggregator("OBJ_COL_ARG", type, (Column("ITEMS", type),), ([],), collect_first, first, skips_null=False)


def add_arguments(state: tuple[Any, ...], *args: Any) -> tuple[Any, ...]:
    """Add numbers and the lengths of texts; nulls add nothing."""
    return (state[0] + sum(_weight(arg) for arg in args),)


def _weight(arg: Any) -> int:
    return len(arg) if isinstance(arg, str) else int(arg or 0)


def _adding(name: str) -> Make:
    """Make an aggregate that adds up its arguments, starting with its constants."""

    def make(types: Sequence[DataType], constants: Sequence[Any]) -> Aggregator:
        start = sum(_weight(c) for c in constants)
        return Aggregator(name, BIGINT, (Column("SUM", BIGINT),), (start,), add_arguments, first, skips_null=False)

    return make


_TEST_UDF = {
    "(INTEGER, STRING) -> STRING": "doStuffIntString",
    "(BIGINT, STRING) -> STRING": "doStuffLongString",
    "(BIGINT, BIGINT, STRING) -> STRING": "doStuffLongLongString",
    "(BIGINT...) -> STRING": "doStuffLongVarargs",
}

_BAD = (over("(INTEGER) -> INTEGER", fail), over("(BOOLEAN) -> INTEGER", fail_if))

SCALARS: tuple[Scalar, ...] = (
    scalar(
        "TEST_UDF", "", None,
        *(over(signature, partial(named, name)) for signature, name in _TEST_UDF.items()),
        over("(STRUCT) -> ANY", struct_field, result_type=_first_field),
        over("() -> STRUCT", make_struct, result_type=_struct_type),
    ),
    scalar("WHENCONDITION", "", None, over("(BOOLEAN, BOOLEAN) -> BOOLEAN", when_condition)),
    scalar("WHENRESULT", "", None, over("(INTEGER, BOOLEAN) -> INTEGER", when_condition)),
)  # fmt: skip
_SEVEN = ("{0}INTEGER{1}", "{0}BIGINT{1}", "{0}DOUBLE{1}", "{0}BOOLEAN{1}", "{0}STRING{1}", "{0}DECIMAL{1}", "{0}STRUCT{1}")


def _all(prefix: str, suffix: str) -> str:
    return ", ".join(p.format(prefix, suffix) for p in _SEVEN)


TABLES: tuple[Scalar, ...] = (
    scalar(
        "TEST_UDTF", "", None,
        over(f"({_all('', '')}) -> STRING", texts), over(f"({_all('ARRAY<', '>')}) -> STRING", texts),
        over(f"({_all('MAP<STRING, ', '>')}) -> STRING", texts), over("(INTEGER) -> INTEGER", lone),
    ),
    scalar("THROWING_UDTF", "", None, over("(BOOLEAN) -> BOOLEAN", throwing)),
)  # fmt: skip

AGGREGATES = (
    aggregate(
        "TEST_UDAF", "",
        *(over_all(f"({t}) -> {t}", _sum) for t in ("INTEGER", "BIGINT", "DOUBLE")),
        over_all("(STRING) -> BIGINT", _sum_of_lengths), over_all("(STRING, STRING) -> BIGINT", _sum_of_lengths, constants=1),
    ),
    aggregate("VAR_ARG", "", over_all("(BIGINT, STRING...) -> BIGINT", _adding("VAR_ARG"))),
    aggregate(
        "MID_VAR_ARG", "", over_all("(BIGINT, STRING..., INTEGER, INTEGER) -> BIGINT", _adding("MID_VAR_ARG"), constants=2)
    ),
    aggregate("MULTI_ARG", "", over_all("(BIGINT, STRING, INTEGER, STRING...) -> BIGINT", _adding("MULTI_ARG"), constants=-2)),
    aggregate(
        "FOUR_ARG", "",
        over_all("(BIGINT, STRING, STRING, STRING, INTEGER, STRING...) -> BIGINT", _adding("FOUR_ARG"), constants=-4),
    ),
    aggregate(
        "FIVE_ARG", "",
        over_all("(BIGINT, STRING, STRING, STRING, INTEGER, INTEGER, STRING...) -> BIGINT", _adding("FIVE_ARG"), constants=-5),
    ),
    aggregate("GENERIC_VAR_ARG", "", over_all("(T, INTEGER, V...) -> ARRAY<T>", _collect)),
    aggregate("OBJ_COL_ARG", "", over_all("(INTEGER, ANY...) -> ARRAY<INTEGER>", _collect)),
)  # fmt: skip


def case_library() -> Library:
    """Return the built-in functions and those of the cases; one that counts its calls starts anew."""
    bad = scalar("BAD_UDF", "", None, *_BAD, over("(STRING) -> STRING", _Alternating()))
    return builtin_library().extended(scalars=(*SCALARS, bad), tables=TABLES, aggregates=AGGREGATES)
