"""Generated expressions give what a tiny tree-walking evaluator gives, on random typed trees and rows."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from logflume.log.schemas import BIGINT, BOOLEAN, DOUBLE, INTEGER, STRING, DataType, Kind
from logflume.streams.exact import ExpressionWriter, Fragment, Namespace
from logflume.streams.expr import (
    Binary,
    BinaryOp,
    Call,
    Case,
    Cast,
    ColumnRef,
    Expr,
    Function,
    Literal,
    Side,
    Unary,
    UnaryOp,
)

COLUMNS = {
    "i": INTEGER,
    "j": INTEGER,
    "n": BIGINT,
    "m": BIGINT,
    "x": DOUBLE,
    "y": DOUBLE,
    "b": BOOLEAN,
    "c": BOOLEAN,
    "s": STRING,
    "t": STRING,
}
VALUES = {
    Kind.INTEGER: st.one_of(st.integers(-3, 3), st.integers(-(2**31), 2**31 - 1)),
    Kind.BIGINT: st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1)),
    Kind.DOUBLE: st.one_of(st.sampled_from([0.0, -0.0, 1.5, -2.0, math.inf, math.nan]), st.floats()),
    Kind.BOOLEAN: st.booleans(),
    Kind.STRING: st.text("ab'\\\n", max_size=3),
}
NUMBERS = (INTEGER, BIGINT, DOUBLE)
ARITHMETIC = (BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.DIV, BinaryOp.MOD, BinaryOp.FLOOR_DIV, BinaryOp.FLOOR_MOD)
COMPARISONS = (BinaryOp.EQ, BinaryOp.NE, BinaryOp.LT, BinaryOp.LE, BinaryOp.GT, BinaryOp.GE, BinaryOp.IS_DISTINCT)


def shout(text: str) -> str:
    return text.upper() + "!"


def touchy(text: str) -> str:
    if "a" in text:
        raise ValueError("no a")
    return text


def or_else(text: str | None) -> str:
    return "none" if text is None else text


FUNCTIONS = (Function("shout", shout), Function("touchy", touchy), Function("or_else", or_else, handles_null=True))


@st.composite
def trees(draw: Any, type: DataType, depth: int) -> Expr:
    """Draw a tree of the type."""
    if depth == 0:
        if draw(st.booleans()):
            return ColumnRef(Side.VALUE, draw(st.sampled_from([n for n, t in COLUMNS.items() if t == type])), type)
        return Literal(draw(st.one_of(st.none(), VALUES[type.kind])), type)
    below = depth - 1
    if draw(st.integers(0, 5)) == 0:
        branches = draw(st.lists(st.tuples(trees(BOOLEAN, below), trees(type, below)), min_size=1, max_size=2))
        return Case(tuple(branches), draw(trees(type, below)), type)
    match type.kind:
        case Kind.BOOLEAN:
            return draw(_conditions(below))
        case Kind.STRING:
            return draw(_texts(below))
    return draw(_numbers(type, below))


@st.composite
def _conditions(draw: Any, depth: int) -> Expr:
    choice = draw(st.integers(0, 3))
    if choice == 0:
        op = draw(st.sampled_from([UnaryOp.NOT, UnaryOp.IS_NOT_TRUE]))
        return Unary(op, draw(trees(BOOLEAN, depth)), BOOLEAN)
    if choice == 1:
        op = draw(st.sampled_from([UnaryOp.IS_NULL, UnaryOp.IS_NOT_NULL]))
        return Unary(op, draw(trees(draw(st.sampled_from([*NUMBERS, STRING, BOOLEAN])), depth)), BOOLEAN)
    if choice == 2:
        op = draw(st.sampled_from([BinaryOp.AND, BinaryOp.OR]))
        return Binary(op, draw(trees(BOOLEAN, depth)), draw(trees(BOOLEAN, depth)), BOOLEAN)
    left, right = draw(st.sampled_from([(a, b) for a in NUMBERS for b in NUMBERS] + [(STRING, STRING)]))
    return Binary(draw(st.sampled_from(COMPARISONS)), draw(trees(left, depth)), draw(trees(right, depth)), BOOLEAN)


@st.composite
def _texts(draw: Any, depth: int) -> Expr:
    choice = draw(st.integers(0, 2))
    if choice == 0:
        return Binary(BinaryOp.ADD, draw(trees(STRING, depth)), draw(trees(STRING, depth)), STRING)
    if choice == 1:
        return Cast(draw(trees(draw(st.sampled_from([INTEGER, BIGINT, BOOLEAN])), depth)), STRING)
    return Call(draw(st.sampled_from(FUNCTIONS)), (draw(trees(STRING, depth)),), STRING)


@st.composite
def _numbers(draw: Any, type: DataType, depth: int) -> Expr:
    choice = draw(st.integers(0, 3))
    if choice == 0:
        return Unary(UnaryOp.NEG, draw(trees(type, depth)), type)
    if choice == 1 and type is not INTEGER:
        return Cast(draw(trees(INTEGER, depth)), type)
    operands = [t for t in NUMBERS if NUMBERS.index(t) <= NUMBERS.index(type)]
    left = draw(st.sampled_from(operands))
    right = type if left != type else draw(st.sampled_from(operands))
    op = BinaryOp.TRUE_DIV if type is DOUBLE and choice == 2 else draw(st.sampled_from(ARITHMETIC))
    return Binary(op, draw(trees(left, depth)), draw(trees(right, depth)), type)


# -- the meaning, as simply as it can be written ----------------------------------------------------------------------------


def evaluate(tree: Any, row: dict[str, Any]) -> Any:
    match tree:
        case ColumnRef():
            return row[tree.name]
        case Literal():
            return tree.value
        case Unary(UnaryOp.NOT, operand):
            return {True: False, False: True, None: None}[evaluate(operand, row)]
        case Unary(UnaryOp.IS_NOT_TRUE, operand):
            return evaluate(operand, row) is not True
        case Unary(UnaryOp.IS_NULL, operand):
            return evaluate(operand, row) is None
        case Unary(UnaryOp.IS_NOT_NULL, operand):
            return evaluate(operand, row) is not None
        case Unary(UnaryOp.NEG, operand):
            value = evaluate(operand, row)
            return None if value is None else wrap(-value, tree.type)
        case Binary(BinaryOp.AND | BinaryOp.OR, left, right):
            decides = tree.op is BinaryOp.OR
            first = evaluate(left, row)
            if first is decides:
                return decides
            second = evaluate(right, row)
            return decides if second is decides else None if None in (first, second) else not decides
        case Binary():
            return _evaluate_binary(tree, row)
        case Cast():
            value = evaluate(tree.operand, row)
            return None if value is None else _cast(value, tree.type)
        case Case():
            for condition, result in tree.branches:
                if evaluate(condition, row) is True:
                    return evaluate(result, row)
            return evaluate(tree.default, row)
        case Call():
            if tree.function.handles_null:
                return tree.function.impl(*(_evaluate_or_null(arg, row) for arg in tree.args))
            args = [evaluate(arg, row) for arg in tree.args]
            return None if None in args else tree.function.impl(*args)
    raise AssertionError(tree)


def _evaluate_or_null(tree: Any, row: dict[str, Any]) -> Any:
    """Of what takes nulls an argument that fails is null."""
    try:
        return evaluate(tree, row)
    except (ArithmeticError, ValueError):
        return None


def _evaluate_binary(tree: Binary, row: dict[str, Any]) -> Any:
    left = evaluate(tree.left, row)
    if tree.op is BinaryOp.IS_DISTINCT:
        return left != evaluate(tree.right, row)
    if left is None:
        return False if tree.op in COMPARISONS else None
    right = evaluate(tree.right, row)
    if right is None:
        return False if tree.op in COMPARISONS else None
    match tree.op:
        case BinaryOp.EQ:
            return left == right
        case BinaryOp.NE:
            return left != right
        case BinaryOp.LT:
            return left < right
        case BinaryOp.LE:
            return left <= right
        case BinaryOp.GT:
            return left > right
        case BinaryOp.GE:
            return left >= right
    return wrap(_calculate(tree.op, left, right, tree.type), tree.type)


def _calculate(op: BinaryOp, left: Any, right: Any, type: DataType) -> Any:
    is_double = type is DOUBLE
    match op:
        case BinaryOp.ADD:
            return left + right
        case BinaryOp.SUB:
            return left - right
        case BinaryOp.MUL:
            return left * right
    if is_double and right == 0:
        if op in (BinaryOp.MOD, BinaryOp.FLOOR_MOD) or left == 0 or math.isnan(left):
            return math.nan
        return math.copysign(math.inf, float(left)) * math.copysign(1.0, float(right))
    match op:
        case BinaryOp.TRUE_DIV:
            return float(left) / float(right)
        case BinaryOp.DIV:
            return float(left) / float(right) if is_double else int_quotient(left, right)
        case BinaryOp.MOD:
            if is_double:
                return math.nan if math.isinf(left) else math.fmod(left, right)
            return left - right * int_quotient(left, right)
        case BinaryOp.FLOOR_DIV:
            return float(left) // float(right) if is_double else left // right
    return float(left) % float(right) if is_double else left % right


def int_quotient(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left >= 0) == (right >= 0) else -quotient


def wrap(value: Any, type: DataType) -> Any:
    bits = {Kind.INTEGER: 32, Kind.BIGINT: 64}.get(type.kind)
    if bits is None:
        return value
    return (value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def _cast(value: Any, type: DataType) -> Any:
    if type is DOUBLE:
        return float(value)
    if type is STRING:
        return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
    return value


# -- the comparison ---------------------------------------------------------------------------------------------------------

ROWS = st.fixed_dictionaries({name: st.one_of(st.none(), VALUES[type.kind]) for name, type in COLUMNS.items()})


def outcome(run: Any) -> Any:
    """Return the value with its class, or that it failed; NaN by its name."""
    try:
        value = run()
    except (ArithmeticError, ValueError):
        return "failed"
    return (type(value).__name__, "nan" if isinstance(value, float) and math.isnan(value) else value)


def find(ref: ColumnRef) -> Fragment:
    return Fragment(f"row_{ref.name}", is_atom=True)


FAILING = Call(FUNCTIONS[2], (Call(FUNCTIONS[1], (Literal("a", STRING),), STRING),), STRING)


@example(FAILING, [dict.fromkeys(COLUMNS)])
@settings(max_examples=150, deadline=None)
@given(st.sampled_from([*NUMBERS, BOOLEAN, STRING]).flatmap(lambda type: trees(type, 2)), st.lists(ROWS, min_size=1, max_size=3))
def test_generated_code_equals_the_evaluator(tree: Expr, rows: list[dict[str, Any]]) -> None:
    namespace = Namespace()
    value = ExpressionWriter(namespace).value(tree, find)
    truth = ExpressionWriter(namespace, prefix="q").predicate(tree, find)
    names = ", ".join(f"row_{name}" for name in COLUMNS)
    scope = dict(namespace.values)
    compiled = eval(f"lambda {names}: {value.code}", scope)
    passes = eval(f"lambda {names}: {truth.code}", scope)
    for row in rows:
        arguments = [row[name] for name in COLUMNS]
        expected = outcome(lambda row=row: evaluate(tree, row))
        found = outcome(lambda arguments=arguments: compiled(*arguments))
        assert found == expected, value.code
        if expected == "failed":
            assert value.can_fail
        elif expected[1] is None:
            assert value.is_nullable
        if tree.type is BOOLEAN and expected != "failed":
            assert passes(*arguments) is (expected[1] is True)


def test_arithmetic_wraps_at_its_width() -> None:
    one, big = Literal(1, INTEGER), Literal(2**31 - 1, INTEGER)
    assert evaluated(Binary(BinaryOp.ADD, big, one, INTEGER)) == -(2**31)
    assert evaluated(Binary(BinaryOp.ADD, Literal(2**63 - 1, BIGINT), one, BIGINT)) == -(2**63)


def test_integers_divide_towards_zero_and_doubles_as_ieee() -> None:
    assert evaluated(Binary(BinaryOp.DIV, Literal(-7, BIGINT), Literal(2, BIGINT), BIGINT)) == -3
    assert evaluated(Binary(BinaryOp.MOD, Literal(-7, BIGINT), Literal(2, BIGINT), BIGINT)) == -1
    assert evaluated(Binary(BinaryOp.DIV, Literal(-1.0, DOUBLE), Literal(0.0, DOUBLE), DOUBLE)) == -math.inf


def evaluated(tree: Expr) -> Any:
    namespace = Namespace()
    return eval(f"(lambda: {ExpressionWriter(namespace).value(tree, find).code})()", dict(namespace.values))
