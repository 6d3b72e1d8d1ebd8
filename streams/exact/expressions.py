"""Expression tree -> Python source: the exact form, which is the meaning of every expression.

An expression becomes one Python expression; temporaries are bound by `:=`. Operands are evaluated from left to right and no
further once the result is known (a null operand, AND, OR, CASE). The generated text only names locals, helpers and constants that
were registered in a `Namespace`, so it can be read and run anywhere.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from logflume.log import InvalidInput
from logflume.log.schemas import DOUBLE, DataType, Kind

from .. import expr as e
from ..functions import arithmetic
from ..functions.casts import make_cast

_NESTING_MAX = 20
"""Levels of an expression in one function: Python takes 200 nested parentheses, and a level has a few."""

_INTEGERS = (Kind.INTEGER, Kind.BIGINT)
_WRAP = {Kind.INTEGER: ("wrap32", 2**31), Kind.BIGINT: ("wrap64", 2**63)}
_COMPARE = {
    e.BinaryOp.LT: "<",
    e.BinaryOp.LE: "<=",
    e.BinaryOp.GT: ">",
    e.BinaryOp.GE: ">=",
}
_DOUBLE_HELPERS = {
    e.BinaryOp.DIV: "divide_doubles",
    e.BinaryOp.TRUE_DIV: "divide_doubles",
    e.BinaryOp.MOD: "remainder_doubles",
    e.BinaryOp.FLOOR_DIV: "floor_divide_doubles",
    e.BinaryOp.FLOOR_MOD: "floor_remainder_doubles",
}
_INTEGER_HELPERS = {e.BinaryOp.DIV: "divide_integers", e.BinaryOp.MOD: "remainder_integers"}
_PYTHON_SYMBOLS = {
    e.BinaryOp.ADD: "+",
    e.BinaryOp.SUB: "-",
    e.BinaryOp.MUL: "*",
    e.BinaryOp.DIV: "/",
    e.BinaryOp.TRUE_DIV: "/",
    e.BinaryOp.FLOOR_DIV: "//",
    e.BinaryOp.FLOOR_MOD: "%",
    e.BinaryOp.MOD: "%",
}


@dataclass(frozen=True, slots=True)
class Fragment:
    """A piece of Python that gives a value.

    Attributes:
        code: a Python expression, in parentheses unless it is an atom or a call.
        is_nullable: whether it can be None.
        can_fail: whether it can raise.
        is_atom: a name or constant, to be repeated freely.
    """

    code: str
    is_nullable: bool = True
    can_fail: bool = False
    is_atom: bool = False


@dataclass(slots=True)
class Namespace:
    """The globals of generated code: helpers, constants and callables by a readable, unique name.

    Attributes:
        values: name -> value.
        is_taken: whether a name belongs to the function being written, so that a global must not have it.
    """

    values: dict[str, Any] = field(default_factory=dict)
    is_taken: Callable[[str], bool] = lambda name: False

    def add(self, hint: str, value: Any) -> str:
        """Register a value and return its name: the hint, or the hint with a number when another value has it."""
        base = identifier(hint)
        name, number = base, 1
        while self.is_taken(name) or (name in self.values and self.values[name] is not value):
            number += 1
            name = f"{base}_{number}"
        self.values[name] = value
        return name


def identifier(text: str) -> str:
    """Return a Python name made from any text.

    >>> identifier("dep delay")
    'dep_delay'
    """
    name = re.sub(r"\W", "_", text, flags=re.ASCII) or "_"
    return f"_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name


Resolve = Callable[[e.ColumnRef], Fragment]


class ExpressionWriter:
    """Compiles expressions of one generated function. `resolve` says where a column is found; temporaries are numbered."""

    def __init__(self, namespace: Namespace, *, prefix: str = "t") -> None:
        self._namespace = namespace
        self._prefix = prefix
        self._count = 0

    def value(self, expr: e.Expr | e.Lambda, resolve: Resolve) -> Fragment:
        """Return code for the value of an expression, None when it is null."""
        return _Expression(self._namespace, resolve, self._temporary).value(expr)

    def predicate(self, expr: e.Expr, resolve: Resolve) -> Fragment:
        """Return code for a condition: true where the expression is True, false where it is False or null."""
        return _Expression(self._namespace, resolve, self._temporary).truth(expr)

    def _temporary(self) -> str:
        self._count += 1
        return f"{self._prefix}{self._count}"


def _operands(expr: e.Expr, op: e.BinaryOp) -> list[e.Expr]:
    """Return the operands of a chain of AND or OR, however it is grouped, in order."""
    found: list[e.Expr] = []
    todo = [expr]
    while todo:
        each = todo.pop()
        if isinstance(each, e.Binary) and each.op is op:
            todo += [each.right, each.left]
        else:
            found.append(each)
    return found


class _Expression:
    """One expression being compiled."""

    def __init__(self, namespace: Namespace, resolve: Resolve, temporary: Callable[[], str]) -> None:
        self._namespace, self._resolve, self._temporary = namespace, resolve, temporary
        self._params: dict[str, str] = {}
        self._height = 0

    def value(self, expr: e.Expr | e.Lambda) -> Fragment:
        """Return code for a value. The inner part of what is nested deep is a function of its own: Python bounds nesting."""
        beside, self._height = self._height, 0
        found = self._coded(expr)
        height = self._height + 1
        if height > _NESTING_MAX and not found.is_atom and not isinstance(expr, e.Lambda):
            found, height = self._outlined(found), 0
        self._height = max(beside, height)
        return found

    def _outlined(self, fragment: Fragment) -> Fragment:
        """Return a call of a new function that has the code of a fragment."""
        tree = ast.parse(fragment.code, mode="eval")
        named = {node.id: node.ctx for node in ast.walk(tree) if isinstance(node, ast.Name)}
        own = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        own |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        given = sorted(n for n in named if n not in own and n not in self._namespace.values and not hasattr(builtins, n))
        function = eval(f"lambda {', '.join(given)}: {fragment.code}", self._namespace.values)
        name = self._namespace.add("part", function)
        return replace(fragment, code=f"{name}({', '.join(given)})")

    def _coded(self, expr: e.Expr | e.Lambda) -> Fragment:
        match expr:
            case e.ColumnRef():
                return self._resolve(expr)
            case e.Literal():
                return self._literal(expr.value)
            case e.Unary():
                return self._unary(expr)
            case e.Binary():
                return self._binary(expr)
            case e.Call():
                return self._call(expr)
            case e.Cast():
                return self._cast(expr)
            case e.Case():
                return self._case(expr)
            case e.FieldAccess():
                return self._field(expr)
            case e.Index():
                return self._index(expr)
            case e.MakeArray():
                return self._collect([self.value(item) for item in expr.items], "[", "]")
            case e.MakeMap():
                return self._map(expr)
            case e.MakeStruct():
                parts = [f"{name!r}: {self._attempted(self.value(item)).code}" for name, item in expr.items]
                return Fragment(f"{{{', '.join(parts)}}}", is_nullable=False)
            case e.Lambda():
                return self._lambda(expr)
            case e.LambdaParam():
                return Fragment(self._params[expr.name], is_atom=True)
            case e.PyCall():
                return self._python(expr)

    def truth(self, expr: e.Expr) -> Fragment:
        """Return code that is exactly True or False, null counting as False."""
        found = self.value(expr)
        if isinstance(expr, e.Literal):
            return Fragment("True" if expr.value is True else "False", is_nullable=False, is_atom=True)
        if isinstance(expr, e.PyCall | e.LambdaParam) or _type(expr).kind is Kind.ANY:
            return Fragment(f"bool({found.code})", is_nullable=False, can_fail=True)
        return found if not found.is_nullable else Fragment(f"({found.code} is True)", False, found.can_fail)

    def _literal(self, value: Any) -> Fragment:
        if value is None:
            return Fragment("None", is_atom=True)
        if value.__class__ in (bool, int, str, bytes) or (value.__class__ is float and math.isfinite(value)):
            text = repr(value)
            return Fragment(f"({text})" if text.startswith("-") else text, is_nullable=False, is_atom=True)
        return Fragment(self._namespace.add("constant", value), is_nullable=False, is_atom=True)

    def _helper(self, name: str) -> str:
        return self._namespace.add(name, getattr(arithmetic, name))

    def _guard(self, operands: list[Fragment], build: Callable[[list[str]], str], on_null: str, *, can_fail: bool) -> Fragment:
        """Return `build(operands)` after a test for null of each nullable operand, in order."""
        names, tests = [], []
        last_nullable = max((i for i, f in enumerate(operands) if f.is_nullable), default=-1)
        for i, operand in enumerate(operands):
            name = operand.code
            if operand.is_nullable:
                if not operand.is_atom:
                    name = self._temporary()
                    tests.append(f"({name} := {operand.code}) is None")
                else:
                    tests.append(f"{name} is None")
            elif operand.can_fail and i < last_nullable:
                name = self._temporary()
                tests.append(f"({name} := {operand.code}) is None")
            names.append(name)
        code = build(names)
        fails = can_fail or any(f.can_fail for f in operands)
        if not tests:
            return Fragment(f"({code})", is_nullable=False, can_fail=fails)
        unique = list(dict.fromkeys(tests))
        if on_null == "False":
            opposite = [test.removesuffix("is None") + "is not None" for test in unique]
            return Fragment(f"({' and '.join(opposite)} and {code})", is_nullable=False, can_fail=fails)
        return Fragment(f"({on_null} if {' or '.join(unique)} else {code})", can_fail=fails)

    def _unary(self, expr: e.Unary) -> Fragment:
        if expr.op is e.UnaryOp.IS_NOT_TRUE:
            inner = self.truth(expr.operand)
            return Fragment(f"(not {inner.code})", is_nullable=False, can_fail=inner.can_fail)
        if expr.op is e.UnaryOp.NOT:
            inner = self._logical(expr.operand)
            return self._guard([inner], lambda n: f"not {n[0]}", "None", can_fail=inner.can_fail)
        operand = self.value(expr.operand)
        if expr.op in (e.UnaryOp.IS_NULL, e.UnaryOp.IS_NOT_NULL) and not (operand.is_nullable or operand.can_fail):
            return Fragment(str(expr.op is e.UnaryOp.IS_NOT_NULL), is_nullable=False, is_atom=True)
        if expr.op is e.UnaryOp.IS_NULL:
            return Fragment(f"({operand.code} is None)", is_nullable=False, can_fail=operand.can_fail)
        if expr.op is e.UnaryOp.IS_NOT_NULL:
            return Fragment(f"({operand.code} is not None)", is_nullable=False, can_fail=operand.can_fail)
        kind = expr.type.kind
        return self._guard([operand], lambda n: self._wrapped(f"-{n[0]}", kind), "None", can_fail=kind is Kind.ANY)

    def _binary(self, expr: e.Binary) -> Fragment:
        op = expr.op
        if op in (e.BinaryOp.AND, e.BinaryOp.OR):
            return self._connective(op is e.BinaryOp.AND, [self._logical(operand) for operand in _operands(expr, op)])
        left, right = self.value(expr.left), self.value(expr.right)
        is_unsure = Kind.ANY in (_type(expr.left).kind, _type(expr.right).kind)
        if op is e.BinaryOp.IS_DISTINCT:
            return Fragment(f"({left.code} != {right.code})", False, left.can_fail or right.can_fail or is_unsure)
        if op is e.BinaryOp.EQ:
            return self._equals(left, right, is_unsure)
        if op is e.BinaryOp.NE:
            return self._boolean_guard(left, right, "!=", is_unsure)
        if op in _COMPARE:
            return self._boolean_guard(left, right, _COMPARE[op], is_unsure)
        return self._arithmetic(expr, left, right)

    def _logical(self, expr: e.Expr) -> Fragment:
        """Return code that is True, False or null."""
        is_boolean = _type(expr).kind is Kind.BOOLEAN and not isinstance(expr, e.PyCall | e.LambdaParam)
        return self.value(expr) if is_boolean else self.truth(expr)

    def _connective(self, is_and: bool, parts: list[Fragment]) -> Fragment:
        """Return code of AND or OR: what decides does, in order, also where others are null; else null if one is."""
        can_fail = any(part.can_fail for part in parts)
        if not any(part.is_nullable for part in parts):
            return Fragment(f"({(' and ' if is_and else ' or ').join(part.code for part in parts)})", False, can_fail)
        tests, nulls = [], []
        for part in parts:
            code = part.code
            if part.is_nullable:
                name = self._temporary()
                nulls.append(f"{name} is None")
                code = f"({name} := {code})"
            tests.append(code if not is_and else f"{code} is False" if part.is_nullable else f"not {code}")
        return Fragment(
            f"({not is_and} if {' or '.join(tests)} else None if {' or '.join(nulls)} else {is_and})", can_fail=can_fail
        )

    def _boolean_guard(self, left: Fragment, right: Fragment, symbol: str, is_unsure: bool) -> Fragment:
        wrap = (lambda code: f"bool({code})") if is_unsure else (lambda code: code)
        return self._guard([left, right], lambda n: wrap(f"{n[0]} {symbol} {n[1]}"), "False", can_fail=is_unsure)

    def _equals(self, left: Fragment, right: Fragment, is_unsure: bool) -> Fragment:
        """Null equals nothing: one test is enough, and none when one side is never null and evaluating it cannot fail."""
        if not is_unsure and (not left.is_nullable or (not right.is_nullable and not right.can_fail)):
            return Fragment(f"({left.code} == {right.code})", False, left.can_fail or right.can_fail)
        return self._boolean_guard(left, right, "==", is_unsure)

    def _arithmetic(self, expr: e.Binary, left: Fragment, right: Fragment) -> Fragment:
        op, kind = expr.op, expr.type.kind
        kinds = (_type(expr.left).kind, _type(expr.right).kind)
        symbol = _PYTHON_SYMBOLS[op]
        if kind is Kind.DECIMAL:
            operator = arithmetic.decimal_operator(op.value, expr.type)
            name = self._namespace.add(f"decimal_{op.name.lower()}", operator)
            return self._guard([left, right], lambda n: f"{name}({n[0]}, {n[1]})", "None", can_fail=True)
        if kind is Kind.DOUBLE and op in _DOUBLE_HELPERS:
            helper = self._helper(_DOUBLE_HELPERS[op])
            return self._guard([left, right], lambda n: f"{helper}({n[0]}, {n[1]})", "None", can_fail=False)
        if kind is Kind.DOUBLE:

            def build(names: list[str]) -> str:
                a, b = (f"float({n})" if k is Kind.DECIMAL else n for n, k in zip(names, kinds, strict=True))
                return f"{a} {symbol} {b}"

            return self._guard([left, right], build, "None", can_fail=False)
        if kind in _INTEGERS and op in _INTEGER_HELPERS:
            helper = self._helper(_INTEGER_HELPERS[op])
            return self._guard([left, right], lambda n: self._wrapped(f"{helper}({n[0]}, {n[1]})", kind), "None", can_fail=True)
        can_fail = kind is Kind.ANY or op not in (e.BinaryOp.ADD, e.BinaryOp.SUB, e.BinaryOp.MUL)
        return self._guard([left, right], lambda n: self._wrapped(f"{n[0]} {symbol} {n[1]}", kind), "None", can_fail=can_fail)

    def _wrapped(self, code: str, kind: Kind) -> str:
        if kind not in _WRAP:
            return code
        name, bound = _WRAP[kind]
        result = self._temporary()
        return f"({result} if {-bound} <= ({result} := {code}) <= {bound - 1} else {self._helper(name)}({result}))"

    def _call(self, expr: e.Call) -> Fragment:
        function = self._namespace.add(expr.function.name.lower(), expr.function.impl)
        args = [self.value(arg) for arg in expr.args]
        if expr.function.handles_null:
            args = [self._attempted(arg) for arg in args]
            return Fragment(f"{function}({', '.join(a.code for a in args)})", can_fail=True)
        guarded = self._guard(args, lambda n: f"{function}({', '.join(n)})", "None", can_fail=True)
        return replace(guarded, is_nullable=True)

    def _lambda(self, expr: e.Lambda) -> Fragment:
        before = dict(self._params)
        self._params |= {name: identifier(f"p_{name}") for name in expr.params}
        params = ", ".join(self._params[name] for name in expr.params)
        body = self.value(expr.body)
        self._params = before
        return Fragment(f"(lambda {params}: {body.code})", is_nullable=False)

    def _cast(self, expr: e.Cast) -> Fragment:
        operand, source = self.value(expr.operand), _type(expr.operand)
        convert = make_cast(source, expr.type)
        if convert is None:
            return operand
        if source.kind in _INTEGERS and expr.type == DOUBLE:
            return self._guard([operand], lambda n: f"float({n[0]})", "None", can_fail=False)
        name = self._namespace.add(f"cast_{source.kind}_to_{expr.type.kind}".lower(), convert)
        return self._guard([operand], lambda n: f"{name}({n[0]})", "None", can_fail=True)

    def _case(self, expr: e.Case) -> Fragment:
        parts, fragments = [], []
        for condition, result in expr.branches:
            test, value = self.truth(condition), self.value(result)
            parts.append(f"{value.code} if {test.code} else ")
            fragments += [replace(test, is_nullable=False), value]
        default = self.value(expr.default)
        fragments.append(default)
        code = f"({''.join(parts)}{default.code})"
        return Fragment(code, any(f.is_nullable for f in fragments), any(f.can_fail for f in fragments))

    def _field(self, expr: e.FieldAccess) -> Fragment:
        operand = self.value(expr.operand)
        if _type(expr.operand).kind is Kind.STRUCT:
            found = self._guard([operand], lambda n: f"{n[0]}[{expr.name!r}]", "None", can_fail=True)
        else:
            helper = self._helper("field_of")
            found = self._guard([operand], lambda n: f"{helper}({n[0]}, {expr.name!r})", "None", can_fail=True)
        return replace(found, is_nullable=True)

    def _index(self, expr: e.Index) -> Fragment:
        operands = [self.value(expr.operand), self.value(expr.index)]
        match _type(expr.operand).kind:
            case Kind.ARRAY:
                helper = self._helper("array_item")
                found = self._guard(operands, lambda n: f"{helper}({n[0]}, {n[1]})", "None", can_fail=False)
            case Kind.MAP:
                found = self._guard(operands, lambda n: f"{n[0]}.get({n[1]})", "None", can_fail=True)
            case _:
                helper = self._helper("item_of")
                found = self._guard(operands, lambda n: f"{helper}({n[0]}, {n[1]})", "None", can_fail=True)
        return replace(found, is_nullable=True)

    def _map(self, expr: e.MakeMap) -> Fragment:
        parts = [self.value(part) for item in expr.items for part in item]
        return replace(self._collect(parts, f"{self._helper('make_map')}(", ")"), is_nullable=False)

    def _collect(self, parts: list[Fragment], opening: str, closing: str) -> Fragment:
        code = f"{opening}{', '.join(self._attempted(p).code for p in parts)}{closing}"
        return Fragment(code, is_nullable=False)

    def _attempted(self, part: Fragment) -> Fragment:
        """Return a part whose failure is a null in its place, not that of the whole: an item, an argument that may be null."""
        if not part.can_fail or part.is_atom:
            return part
        return Fragment(f"{self._helper('attempt')}(lambda: {part.code})")

    def _python(self, expr: e.PyCall) -> Fragment:
        function = self._namespace.add(
            getattr(expr.function, "__name__", "function").replace("<lambda>", "function"), expr.function
        )
        args = expr.args or (e.ColumnRef(e.Side.VALUE, e.WHOLE, expr.type),)
        return Fragment(f"{function}({', '.join(self.value(a).code for a in args)})", can_fail=True)


def _type(expr: e.Expr | e.Lambda) -> DataType:
    if isinstance(expr, e.Lambda):
        raise InvalidInput("a lambda is only allowed as an argument of a function")
    return expr.type
