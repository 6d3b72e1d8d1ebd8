"""Both forms of every function and cast: what the form over columns gives, unless it is unsure, is what the exact one gives."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logflume.log.schemas import (
    BIGINT,
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    INTEGER,
    STRING,
    TIME,
    TIMESTAMP,
    DataType,
    Kind,
    array,
    decimal,
)
from logflume.log.schemas import map_of as maps
from logflume.streams.expr import Function
from logflume.streams.functions import (
    NotHeld,
    apply_columns,
    builtin_library,
    can_convert,
    exact_rows,
    from_pair,
    make_cast,
    to_pair,
)
from logflume.streams.functions.cast_columns import cast_columns
from logflume.streams.functions.scalar import Overload, Scalar
from logflume.streams.functions.signature import Pattern, fill

pytest.importorskip("pyarrow")

TEXTS = st.one_of(
    st.text("aB1 ,.%_-\u00e9\u00df\u03a3\u0130\U0001f600\t\n", max_size=6),
    st.sampled_from(
        [
            "",
            "12",
            "-3.50",
            "1.5d",
            "true",
            "2020-01-02",
            "2020-02-30",
            "2020-02-29 10:11:12.345",
            "2020-02-29 10:11:62.345",
            "29 Feb 2024",
            "12:34",
            " 7 ",
            "+5",
            "NaN",
            "1e400",
            "\u1fb3",
            "\u0149",
        ]
    ),
)
MOMENTS = st.one_of(st.integers(-(10**13), 10**14), st.integers(-(2**63), 2**63 - 1), st.sampled_from([0, -1, 86_400_000]))
VALUES: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.BOOLEAN: st.booleans(),
    Kind.INTEGER: st.integers(-(2**31), 2**31 - 1) | st.integers(-5, 5) | st.just(-(2**31)),
    Kind.BIGINT: st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5) | st.just(-(2**63)),
    Kind.DOUBLE: st.floats() | st.sampled_from([0.0, -0.0, 0.5, -0.5, 2.5, -2.5, 1e15 + 0.5, 2.0**62, 2.0**63]),
    Kind.DECIMAL: st.decimals(Decimal("-9999.99"), Decimal("9999.99"), places=2),
    Kind.STRING: TEXTS,
    Kind.BYTES: st.binary(max_size=5),
    Kind.DATE: st.integers(-800_000, 3_000_000),
    Kind.TIME: st.integers(0, 86_399_999),
    Kind.TIMESTAMP: MOMENTS,
}
# Constants that people write, by position; with them most forms over columns hold a call.
TEXT_CONSTANTS = (
    ["a", "a+", "B1"],
    ["a", ",", "yyyy-MM-dd", "yyyy-MM-dd HH:mm:ss.SSS", "HH:mm", "%a%", "_B%"],
    ["UTC", "-"],
    ["-"],
)
TYPES = (BOOLEAN, INTEGER, BIGINT, DOUBLE, decimal(6, 2), STRING, BYTES, DATE, TIME, TIMESTAMP)
UNITS = st.sampled_from(["DAYS", "HOURS", "MILLISECOND", "YEARS"])
TEXTS_PAIR = object()
USUAL: dict[str, list[Any]] = {
    "STRING": ["a", "yyyy-MM-dd", "HH:mm:ss", "yyyy-MM-dd HH:mm:ss.SSS", "UTC"],
    "UNIT": ["DAYS"], "T": [3], "BYTES": [b"a"], "INTEGER": [3],
}  # fmt: skip
COLUMNS_OF: dict[str, tuple[list[Any], DataType]] = {
    **{str(t): ([1, None], t) for t in (INTEGER, BIGINT, DATE, TIME, TIMESTAMP)},
    "DOUBLE": ([1.5, None], DOUBLE), "STRING": (["a", None], STRING), "T": ([1, None], BIGINT), "BYTES": ([b"a"], BYTES),
    "ARRAY<T>": ([[1], None], array(BIGINT)),
}  # fmt: skip
FORMS = [
    pytest.param(function, form, id=f"{function.name}{form.signature}")
    for function in builtin_library().scalars.values()
    for form in function.overloads
    if form.columns is not None
]


def values_of(type: DataType) -> st.SearchStrategy[Any]:
    if type.kind is Kind.ARRAY:
        assert type.element is not None
        return st.lists(st.none() | values_of(type.element), max_size=3)
    if type.kind is Kind.MAP:
        assert type.element is not None
        return st.dictionaries(st.sampled_from(["a", "b", "1"]), st.none() | values_of(type.element), max_size=3)
    return VALUES[type.kind]


def concrete(pattern: Pattern, variables: dict[str, DataType]) -> DataType:
    return decimal(6, 2) if pattern.kind == "decimal" else fill(pattern, variables, ())


def usual(at: int, type: DataType) -> st.SearchStrategy[Any]:
    """Constants that people write at a position."""
    if type == STRING:
        return st.sampled_from(TEXT_CONSTANTS[min(at, 3)])
    return st.integers(-3, 5) if type == INTEGER else values_of(type)


@st.composite
def calls(draw: st.DrawFn, function: Scalar, form: Overload) -> tuple[list[Any], list[DataType | None]]:
    """Arguments of a form: a list of values for a column, or a bare constant; and their types (None: a time unit)."""
    count = draw(st.integers(1, 6))
    variables = {name: draw(st.sampled_from(TYPES)) for name in "TKV"}
    patterns = form.signature.expand(
        len(form.signature.params) + draw(st.integers(0, 2) if form.signature.variadic is not None else st.just(0))
    )
    assert patterns is not None
    is_usual = draw(st.booleans())
    at = function.subject % len(patterns) if is_usual else draw(st.integers(0, len(patterns) - 1))
    arguments: list[Any] = []
    types: list[DataType | None] = []
    for i, pattern in enumerate(patterns):
        if pattern.kind == "unit":
            arguments.append(draw(UNITS))
            types.append(None)
            continue
        type = concrete(pattern, variables)
        types.append(type)
        rows = st.none() | values_of(type)
        if i == at or (not is_usual and draw(st.booleans())):
            arguments.append(draw(st.lists(rows, min_size=count, max_size=count)))
        else:
            arguments.append((draw(usual(i, type) if is_usual else rows),))
    if all(isinstance(a, tuple | str) for a in arguments):
        arguments[-1] = [arguments[-1][0]] * count
    return arguments, types


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or (left == right and math.copysign(1, left) == math.copysign(1, right))
    return type(left) is type(right) and left == right


def exact(function: Function, row: Sequence[Any]) -> tuple[bool, Any]:
    """Return (whether it failed, the value)."""
    try:
        return False, exact_rows(function, [[v] for v in row])[0]
    except (ValueError, ArithmeticError):
        return True, None


@pytest.mark.parametrize(("scalar", "form"), FORMS)
def test_the_form_over_columns_is_the_exact_one(scalar: Scalar, form: Overload) -> None:
    function = form.function(scalar.name)

    @settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(calls(scalar, form))
    def agrees(call: tuple[list[Any], list[DataType | None]]) -> None:
        arguments, types = call
        count = next(len(a) for a in arguments if isinstance(a, list))
        given_columns = [
            to_pair(a, t) if isinstance(a, list) and t is not None else a[0] if isinstance(a, tuple) else a
            for a, t in zip(arguments, types, strict=True)
        ]
        try:
            values, valid, unsure = apply_columns(function, given_columns)
        except NotHeld:
            return
        result = result_type(form, [t for t in types if t is not None])
        found = from_pair((values, valid), result)
        assert len(found) == count
        for i in range(count):
            if unsure is not None and unsure[i]:
                continue
            failed, expected = exact(
                function, [a[i] if isinstance(a, list) else a[0] if isinstance(a, tuple) else a for a in arguments]
            )
            assert not failed, f"row {i}: the exact form fails, the other gives {found[i]!r}"
            assert same(found[i], expected), f"row {i}: {found[i]!r} for {expected!r}"

    agrees()


@pytest.mark.parametrize(("scalar", "form"), FORMS)
def test_the_form_over_columns_holds_a_usual_call(scalar: Scalar, form: Overload) -> None:
    """Its subject is a column, all else constants that people write."""
    count = len(form.signature.params)
    subject = scalar.subject % count
    choices = [[TEXTS_PAIR] if i == subject else USUAL.get(str(p), [3]) for i, p in enumerate(form.signature.params)]
    for chosen in product(*choices):
        column = to_pair(*COLUMNS_OF[str(form.signature.params[subject])])
        with suppress(NotHeld):
            apply_columns(form.function(scalar.name), [column if c is TEXTS_PAIR else c for c in chosen])
            return
    pytest.fail("no usual call is held")


def result_type(form: Overload, types: list[DataType]) -> DataType:
    variables: dict[str, DataType] = {}
    patterns = [
        p
        for p in form.signature.expand(len(types) + len([p for p in form.signature.params if p.kind == "unit"])) or ()
        if p.kind != "unit"
    ]
    for pattern, type in zip(patterns, types, strict=True):
        if pattern.kind == "var":
            variables[pattern.name] = type
        for part in pattern.parts:
            variables.setdefault(part.name, type.element or type)
    return fill(form.signature.result, variables, types)


CASTS = [
    pytest.param(source, target, id=f"{source} to {target}")
    for source in (*TYPES, array(STRING), maps(STRING, INTEGER))
    for target in (*TYPES, array(INTEGER))
    if source != target and can_convert(source, target)
]


@pytest.mark.parametrize(("source", "target"), CASTS)
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_cast_over_columns_is_the_exact_one(source: DataType, target: DataType, data: st.DataObject) -> None:
    form = cast_columns(source, target)
    if form is None:
        return
    rows = data.draw(st.lists(st.none() | values_of(source), min_size=1, max_size=8))
    values, more, *rest = form(to_pair(rows, source))
    found = from_pair((values, more), target)
    convert = make_cast(source, target)
    for i, row in enumerate(rows):
        if row is None or (rest and rest[0] is not None and rest[0][i]):
            continue
        expected = row if convert is None else convert(row)
        assert same(found[i], expected), f"{row!r}: {found[i]!r} for {expected!r}"


def test_every_form_pickles() -> None:
    for function in builtin_library().scalars.values():
        for form in function.overloads:
            made = form.function(function.name)
            assert pickle.loads(pickle.dumps(made)) == made
