"""Binding of expressions: names to columns, operators and functions to their typed form, implicit casts made explicit.

The result is the tree of `streams.expr`, which the operators evaluate. Faults point at the sub-expression that is to blame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from logflume.log import near_matches
from logflume.log.schemas import ANY, BIGINT, BOOLEAN, DOUBLE, INTEGER, STRING, TIMESTAMP, DataType, Kind, array, map_of, struct
from logflume.log.schemas import Column as Col
from logflume.sql import ast
from logflume.sql.errors import StatementError
from logflume.sql.format import expression_text
from logflume.sql.functions import choose_overload, unknown_function
from logflume.sql.types import literal_decimal, resolve_type, show_type
from logflume.streams import expr as x
from logflume.streams.functions import (
    CONCAT_TEXT,
    LAMBDA_ARGUMENT,
    LIKE,
    REQUIRED,
    TIME_KINDS,
    UNIT_ARGUMENT,
    Library,
    Overload,
    Pattern,
    arithmetic_type,
    can_convert,
    common_type,
    fill,
    is_concrete,
    is_numeric,
    match_pattern,
    no_overload_text,
)
from logflume.streams.java_time import UNITS_MS, parse_iso

from .coercion import convert_literal, implicit_cast, operator_mismatch
from .scope import Scope

_COMPARISONS = {
    "=": (x.BinaryOp.EQ, "EQUAL"),
    "<>": (x.BinaryOp.NE, "NOT_EQUAL"),
    "<": (x.BinaryOp.LT, "LESS_THAN"),
    "<=": (x.BinaryOp.LE, "LESS_THAN_OR_EQUAL"),
    ">": (x.BinaryOp.GT, "GREATER_THAN"),
    ">=": (x.BinaryOp.GE, "GREATER_THAN_OR_EQUAL"),
    "IS DISTINCT FROM": (x.BinaryOp.IS_DISTINCT, "IS_DISTINCT_FROM"),
    "IS NOT DISTINCT FROM": (x.BinaryOp.IS_DISTINCT, "IS_NOT_DISTINCT_FROM"),
}
_ARITHMETIC = {
    "+": x.BinaryOp.ADD,
    "-": x.BinaryOp.SUB,
    "*": x.BinaryOp.MUL,
    "/": x.BinaryOp.DIV,
    "%": x.BinaryOp.MOD,
}
_NESTED = (Kind.ARRAY, Kind.MAP, Kind.STRUCT)
_TIME_COLUMNS = frozenset({"ROWTIME", "WINDOWSTART", "WINDOWEND"})


def over_refused(e: ast.Over) -> StatementError:
    """Return the error for a function over rows where there are no rows."""
    reason = "needs all rows: it stands in the SELECT or the QUALIFY of a query that ends, and not in a query in FROM"
    return StatementError(f"{e.call.name} OVER (...) {reason}", e.span)


@dataclass(frozen=True, slots=True)
class Binder:
    """Binds expressions of one clause.

    Attributes:
        clause: SELECT, WHERE, ... for messages.
        substitutions: expressions (with canonical names) that already have a column: group keys and aggregates.
        fixed_now_ms: what UNIX_TIMESTAMP() gives; None for the clock.
        naming: the scope in whose words messages speak, where it is not `scope`.
    """

    scope: Scope
    functions: Library
    types: Mapping[str, DataType]
    clause: str = "SELECT"
    substitutions: Mapping[ast.Expression, x.Expr] = field(default_factory=dict)
    lambdas: Mapping[str, DataType] = field(default_factory=dict)
    fixed_now_ms: int | None = None
    naming: Scope | None = None

    def bind(self, e: ast.Expression) -> x.Expr:
        """Return the typed tree of an expression. Raises StatementError at the part to blame."""
        found = self.substitutions.get(e) if self.substitutions else None
        if found is not None:
            return found
        try:
            return self._bind(e)
        except StatementError as error:
            if error.span == ast.NOWHERE:
                error.span = e.span
            raise

    def _bind(self, e: ast.Expression) -> x.Expr:
        match e:
            case ast.Name():
                return self._name(e)
            case ast.StringLiteral(value):
                return x.Literal(value, STRING)
            case ast.IntegerLiteral(value):
                return x.Literal(value, INTEGER if -(2**31) <= value < 2**31 else BIGINT)
            case ast.DecimalLiteral(text):
                return x.Literal(e.value, literal_decimal(text))
            case ast.DoubleLiteral(value):
                return x.Literal(value, DOUBLE)
            case ast.BooleanLiteral(value):
                return x.Literal(value, BOOLEAN)
            case ast.NullLiteral():
                return x.Literal(None, ANY)
            case ast.Unary():
                return self._unary(e)
            case ast.Binary(op):
                if op in ("AND", "OR"):
                    logical = x.BinaryOp.AND if op == "AND" else x.BinaryOp.OR
                    return x.Binary(logical, self.condition(e.left), self.condition(e.right), BOOLEAN)
                return self._arithmetic(e) if op in _ARITHMETIC else self._concat(e) if op == "||" else self._comparison(e)
            case ast.Between(operand, low, high, is_negated):
                inside = ast.Binary(
                    "AND", ast.Binary(">=", operand, low, span=e.span), ast.Binary("<=", operand, high, span=e.span)
                )
                bound = self.bind(inside)
                return x.Unary(x.UnaryOp.NOT, bound, BOOLEAN) if is_negated else bound
            case ast.InList():
                return self._in(e)
            case ast.Like():
                return self._like(e)
            case ast.SimpleCase(operand, whens, default):
                searched = tuple(
                    ast.When(ast.Binary("=", operand, w.condition, span=w.span), w.result, span=w.span) for w in whens
                )
                return self._case(ast.SearchedCase(searched, default, span=e.span))
            case ast.SearchedCase():
                return self._case(e)
            case ast.Cast(operand, type_name):
                return self._cast(self.bind(operand), resolve_type(type_name, self.types))
            case ast.MakeArray(items):
                if not items:
                    raise StatementError(
                        "Array constructor cannot be empty. Please supply at least one element (see "
                        "https://github.com/confluentinc/ksql/issues/4239)."
                    )
                made = self.coerced(items)
                _refuse_nulls(made, "an array", "elements")
                return x.MakeArray(tuple(made), array(made[0].type))
            case ast.MakeMap(entries):
                if not entries:
                    raise StatementError(
                        "Map constructor cannot be empty. Please supply at least one key value pair (see "
                        "https://github.com/confluentinc/ksql/issues/4239)."
                    )
                keys, values = self.coerced([k for k, _ in entries]), self.coerced([v for _, v in entries])
                _refuse_nulls(keys, "a map", "keys")
                _refuse_nulls(values, "a map", "values")
                return x.MakeMap(tuple(zip(keys, values, strict=True)), map_of(keys[0].type, values[0].type))
            case ast.MakeStruct(entries):
                return self._struct(entries)
            case ast.Subscript():
                return self._subscript(e)
            case ast.Dereference():
                return self._dereference(e)
            case ast.Call():
                return self._call(e)
            case ast.Lambda():
                raise StatementError("a lambda can only be an argument of a function such as TRANSFORM, FILTER or REDUCE")
            case ast.Over():
                raise over_refused(e)
            case ast.AtTimeZone(operand, zone):
                there = (operand, ast.StringLiteral("UTC", span=e.span), ast.StringLiteral(zone, span=e.span))
                return self.bind(ast.Call("CONVERT_TZ", there, span=e.span))
        raise AssertionError(e)

    # -------------------------------------------------------------------------------------------- simple forms

    def _name(self, e: ast.Name) -> x.Expr:
        if e.source is None and e.name in self.lambdas:
            return x.LambdaParam(e.name, self.lambdas[e.name])
        return self.scope.resolve(e, self.clause).expr

    def condition(self, e: ast.Expression) -> x.Expr:
        """Bind an expression that must be BOOLEAN."""
        bound = self.bind(e)
        if bound.type.kind not in (Kind.BOOLEAN, Kind.ANY):
            raise StatementError(
                f"Type error in {self.clause} expression: Should evaluate to boolean but is {self._described(e, bound)} instead.",
                e.span,
            )
        return bound

    def _unary(self, e: ast.Unary) -> x.Expr:
        if e.op == "NOT":
            return x.Unary(x.UnaryOp.NOT, self.condition(e.operand), BOOLEAN)
        operand = self.bind(e.operand)
        if e.op == "IS NULL":
            return x.Unary(x.UnaryOp.IS_NULL, operand, BOOLEAN)
        if e.op == "IS NOT NULL":
            return x.Unary(x.UnaryOp.IS_NOT_NULL, operand, BOOLEAN)
        if not is_numeric(operand.type):
            raise StatementError(
                f"{self._context()}expected a number after '{e.op}', found {self._described(e.operand, operand)}", e.span
            )
        return operand if e.op == "+" else x.Unary(x.UnaryOp.NEG, operand, operand.type)

    def _described(self, e: ast.Expression, bound: x.Expr) -> str:
        return f"{self._text(e)} ({show_type(bound.type)})"

    def _text(self, e: ast.Expression) -> str:
        """Return an expression as messages show it, names as the user knows them."""
        return expression_text((self.naming or self.scope).shown(e))

    def _context(self) -> str:
        return "Invalid Select: " if self.clause == "SELECT" else f"Error in {self.clause} expression: "

    def _arithmetic(self, e: ast.Binary) -> x.Expr:
        left, right = self.bind(e.left), self.bind(e.right)
        if e.op == "+" and left.type == STRING and right.type == STRING:
            return x.Call(CONCAT_TEXT, (left, right), STRING)
        if isinstance(e.left, ast.NullLiteral) or isinstance(e.right, ast.NullLiteral):
            types = " and ".join(
                "null" if isinstance(side, ast.NullLiteral) else show_type(bound.type)
                for side, bound in ((e.left, left), (e.right, right))
            )
            raise StatementError(
                f"{self._context()}Error processing expression: {self._text(e)}. Arithmetic on types {types} are not "
                "supported. CAST(NULL AS ...) is a null of a type",
                e.span,
            )
        if left.type.kind is Kind.ANY and is_numeric(right.type):
            left = replace_type(left, right.type)
        if right.type.kind is Kind.ANY and is_numeric(left.type):
            right = replace_type(right, left.type)
        if not (is_numeric(left.type) and is_numeric(right.type)):
            raise StatementError(
                f"{self._context()}Error processing expression: {self._text(e)}. "
                f"Unsupported arithmetic types. {left.type.kind.name} {right.type.kind.name}; numbers are needed, or two "
                "STRINGs for +",
                e.span,
            )
        if self.lambdas:
            left, right = _required(left), _required(right)
        type = arithmetic_type(e.op, left.type, right.type)
        if type.kind is not Kind.DECIMAL:
            left, right = widen(left, type), widen(right, type)
        return x.Binary(_ARITHMETIC[e.op], left, right, type)

    def _concat(self, e: ast.Binary) -> x.Expr:
        return self._call(ast.Call("CONCAT", (e.left, e.right), span=e.span))

    # -------------------------------------------------------------------------------------------- predicates

    def _comparison(self, e: ast.Binary) -> x.Expr:
        op, word = _COMPARISONS[e.op]
        is_null_safe = op is x.BinaryOp.IS_DISTINCT
        if not is_null_safe and (isinstance(e.left, ast.NullLiteral) or isinstance(e.right, ast.NullLiteral)):
            other = self._text(e.right if isinstance(e.left, ast.NullLiteral) else e.left)
            negation = "NOT " if e.op == "<>" else ""
            types = [
                "NULL" if isinstance(side, ast.NullLiteral) else self.bind(side).type.kind.name for side in (e.left, e.right)
            ]
            raise StatementError(
                f"{self._context()}Comparison with NULL not supported: {f' {e.op} '.join(types)}\nUse 'IS NULL' or 'IS NOT NULL' "
                f"instead. Try: {other} IS {negation}NULL",
                e.span,
            )
        left, right = self._comparable(e.left, e.right)
        if not _can_compare(left.type, right.type, is_equality=op in (x.BinaryOp.EQ, x.BinaryOp.NE) or is_null_safe):
            raise StatementError(
                f"{self._context()}Cannot compare {self._described(e.left, left)} to {self._described(e.right, right)} with "
                f"{word}.",
                e.span,
            )
        bound = x.Binary(op, left, right, BOOLEAN)
        return x.Unary(x.UnaryOp.NOT, bound, BOOLEAN) if e.op == "IS NOT DISTINCT FROM" else bound

    def _comparable(self, left_ast: ast.Expression, right_ast: ast.Expression) -> tuple[x.Expr, x.Expr]:
        """Bind both sides and bring them to one type: numbers widened, text read as the time that the other side is."""
        left, right = self.bind(left_ast), self.bind(right_ast)
        if isinstance(right_ast, ast.StringLiteral):
            right = self._time_literal(left_ast, left.type, right)
        if isinstance(left_ast, ast.StringLiteral):
            left = self._time_literal(right_ast, right.type, left)
        if left.type == STRING and right.type.kind in TIME_KINDS:
            left = x.Cast(left, right.type)
        elif right.type == STRING and left.type.kind in TIME_KINDS:
            right = x.Cast(right, left.type)
        elif {left.type.kind, right.type.kind} == {Kind.DATE, Kind.TIMESTAMP}:
            left, right = (side if side.type == TIMESTAMP else x.Cast(side, TIMESTAMP) for side in (left, right))
        elif left.type != right.type and is_numeric(left.type) and is_numeric(right.type):
            common = common_type(left.type, right.type)
            if common is not None and common.kind is not Kind.DECIMAL:
                left, right = widen(left, common), widen(right, common)
        return left, right

    def _time_literal(self, other: ast.Expression, type: DataType, literal: x.Expr) -> x.Expr:
        assert isinstance(literal, x.Literal)
        if isinstance(other, ast.Name) and other.name in _TIME_COLUMNS and type == BIGINT:
            try:
                return x.Literal(parse_iso(literal.value), BIGINT)
            except ValueError as e:
                raise StatementError(str(e)) from None
        return convert_literal(literal, type) if type.kind in TIME_KINDS else literal

    def _in(self, e: ast.InList) -> x.Expr:
        items = [i for i in e.items if not isinstance(i, ast.NullLiteral)]
        try:
            operand, *choices = self.coerced([e.operand, *items])
        except StatementError as error:
            raise error.within("Invalid Predicate: ") from None
        any_equal = _any_of([x.Binary(x.BinaryOp.EQ, operand, choice, BOOLEAN) for choice in choices])
        return x.Unary(x.UnaryOp.NOT, any_equal, BOOLEAN) if e.is_negated else any_equal

    def _like(self, e: ast.Like) -> x.Expr:
        operand, pattern = self.bind(e.operand), self.bind(e.pattern)
        for side, bound in ((e.operand, operand), (e.pattern, pattern)):
            if bound.type.kind not in (Kind.STRING, Kind.ANY):
                raise StatementError(
                    f"{self._context()}Like condition must be between strings, found {self._described(side, bound)}", side.span
                )
        escape = e.escape
        if e.ignores_case:
            lower = self.functions.scalars["LCASE"].overloads[0]
            operand, pattern = (self._made_call("LCASE", lower, (side,), {}) for side in (operand, pattern))
            escape = None if escape is None else escape.lower()
        matched = x.Call(LIKE, (operand, pattern, x.Literal(escape, STRING)), BOOLEAN)
        return x.Unary(x.UnaryOp.NOT, matched, BOOLEAN) if e.is_negated else matched

    # -------------------------------------------------------------------------------------------- CASE, CAST, constructors

    def _case(self, e: ast.SearchedCase) -> x.Expr:
        conditions: list[x.Expr] = []
        for when in e.whens:
            condition = self.bind(when.condition)
            if condition.type.kind not in (Kind.BOOLEAN, Kind.ANY):
                raise StatementError(
                    f"{self._context()}WHEN operand type should be boolean.\nType for '{self._text(when.condition)}' is "
                    f"{show_type(condition.type)}",
                    when.condition.span,
                )
            conditions.append(condition)
        results = [self.bind(w.result) for w in e.whens]
        default = x.Literal(None, ANY) if e.default is None else self.bind(e.default)
        typed = [r for r in [*results, default] if r.type.kind is not Kind.ANY]
        if not typed:
            raise StatementError("Invalid Case expression. All case branches have NULL type; CAST one of them")
        type = typed[0].type
        for when, bound in zip(e.whens, results, strict=True):
            if bound.type.kind is not Kind.ANY and bound.type != type:
                shown = f"WHEN {self._text(when.condition)} THEN {self._text(when.result)}"
                raise StatementError(
                    f"{self._context()}Invalid Case expression. Type for all 'THEN' clauses should be the same.\nTHEN expression "
                    f"'{shown}' has type: {show_type(bound.type)}.\nPrevious THEN expression(s) type: {show_type(type)}.",
                    when.result.span,
                )
        if e.default is not None and default.type.kind is not Kind.ANY and default.type != type:
            raise StatementError(
                f"{self._context()}Invalid Case expression. Type for the default clause should be the same as for 'THEN' "
                f"clauses.\nTHEN type: {show_type(type)}.\nDEFAULT type: {show_type(default.type)}.",
                e.default.span,
            )
        branches = tuple((c, replace_type(r, type)) for c, r in zip(conditions, results, strict=True))
        return x.Case(branches, replace_type(default, type), type)

    def _cast(self, operand: x.Expr, type: DataType) -> x.Expr:
        if operand.type == type:
            return operand
        if not can_convert(operand.type, type):
            raise StatementError(f"{self._context()}Cast of {show_type(operand.type)} to {show_type(type)} is not supported")
        if isinstance(operand, x.Literal) and operand.value is None:
            return x.Literal(None, type)
        return x.Cast(operand, type)

    def _struct(self, entries: Sequence[tuple[str, ast.Expression]]) -> x.Expr:
        names = [n for n, _ in entries]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise StatementError(f"Duplicate field names found in STRUCT: '{', '.join(twice)}'; name each field once")
        items = tuple((name, self.bind(value)) for name, value in entries)
        return x.MakeStruct(items, struct(*(Col(n, v.type) for n, v in items)))

    def coerced(self, items: Sequence[ast.Expression]) -> list[x.Expr]:
        """Bind expressions to one type: that of the first that is not NULL, widened by the others; literals follow loosely."""
        bound = [self.bind(i) for i in items]
        typed = [i for i, b in enumerate(bound) if b.type.kind is not Kind.ANY]
        if not typed:
            return bound
        common = bound[typed[0]].type
        for i in typed[1:]:
            common = operator_mismatch(common, bound[i], items[i], self._text)
        return [self.as_type(item, b, common) for item, b in zip(items, bound, strict=True)]

    def as_type(self, item: ast.Expression, bound: x.Expr, type: DataType) -> x.Expr:
        """Give a bound expression a type; constructors take it down to their items."""
        if bound.type == type:
            return bound
        match bound:
            case x.Literal():
                return convert_literal(bound, type)
            case x.MakeArray(parts) if type.element is not None and isinstance(item, ast.MakeArray):
                pairs = zip(item.items, parts, strict=True)
                return x.MakeArray(tuple(self.as_type(i, p, type.element) for i, p in pairs), type)
            case x.MakeMap(entries) if type.element is not None and type.key is not None and isinstance(item, ast.MakeMap):
                made = tuple(
                    (self.as_type(ki, k, type.key), self.as_type(vi, v, type.element))
                    for (ki, vi), (k, v) in zip(item.entries, entries, strict=True)
                )
                return x.MakeMap(made, type)
            case x.MakeStruct(fields) if type.kind is Kind.STRUCT and isinstance(item, ast.MakeStruct):
                given = {n: (i, v) for (n, v), (_, i) in zip(fields, item.entries, strict=True)}
                return x.MakeStruct(
                    tuple(
                        (f.name, self.as_type(*given[f.name], f.type) if f.name in given else x.Literal(None, f.type))
                        for f in type.fields
                    ),
                    type,
                )
        return implicit_cast(bound, type)

    # -------------------------------------------------------------------------------------------- access

    def _subscript(self, e: ast.Subscript) -> x.Expr:
        operand, index = self.bind(e.operand), self.bind(e.index)
        if operand.type.kind is Kind.ARRAY and operand.type.element is not None:
            if index.type.kind not in (Kind.INTEGER, Kind.BIGINT):
                raise StatementError(
                    f"{self._context()}an ARRAY is indexed by a whole number, found {self._described(e.index, index)}",
                    e.index.span,
                )
            return x.Index(operand, index, operand.type.element)
        if operand.type.kind is Kind.MAP and operand.type.element is not None and operand.type.key is not None:
            if index.type != operand.type.key:
                raise StatementError(
                    f"{self._context()}a {show_type(operand.type)} is indexed by {show_type(operand.type.key)}, "
                    f"found {self._described(e.index, index)}",
                    e.index.span,
                )
            return x.Index(operand, index, operand.type.element)
        shown = self._text(e)
        is_struct = operand.type.kind is Kind.STRUCT
        inner = expression_text(e.index).strip("'") if is_struct else ""
        hint = (
            f"Use the dereference operator for STRUCTS: {self._text(e.operand)}->{inner}"
            if is_struct
            else "An ARRAY or a MAP has items"
        )
        raise StatementError(f"{self._context()}Subscript expression ({shown}) do not apply to {show_type(operand.type)}. {hint}")

    def _dereference(self, e: ast.Dereference) -> x.Expr:
        operand = self.bind(e.operand)
        if operand.type.kind is not Kind.STRUCT:
            raise StatementError(
                f"{self._context()}Expected STRUCT type, got: {show_type(operand.type)}. '->' takes a field of a STRUCT, found "
                f"{self._described(e.operand, operand)}",
                e.operand.span,
            )
        fields = {f.name: f.type for f in operand.type.fields}
        if e.name not in fields:
            near = near_matches(e.name, fields)
            hint = f" Did you mean {' or '.join(near)}?" if near else f" Its fields are {', '.join(fields)}."
            raise StatementError(f"{self._context()}Could not find field '{e.name}' in '{self._text(e.operand)}'.{hint}")
        return x.FieldAccess(operand, e.name, fields[e.name])

    # -------------------------------------------------------------------------------------------- calls

    def _call(self, e: ast.Call) -> x.Expr:
        found = self.functions.scalars.get(e.name)
        if found is None:
            kind = self.functions.kind_of(e.name)
            if kind == "aggregate":
                raise StatementError(f"{self._context()}the aggregate function {e.name} is not allowed here", e.span)
            if kind == "table":
                raise StatementError(
                    f"{self._context()}the table function {e.name} is only allowed as a SELECT expression of its own", e.span
                )
            raise unknown_function(self.functions, e.name)
        overloads = found.overloads
        if e.is_distinct:
            raise StatementError(f"{self._context()}DISTINCT is for COUNT(DISTINCT ...), {e.name} is not an aggregate", e.span)
        if e.is_star:
            raise StatementError(f"Function '{e.name.lower()}' does not accept parameters (). Only COUNT takes *")
        if e.name == "AS_VALUE" and len(e.args) == 1:
            return self.bind(e.args[0])
        if not e.args and self.fixed_now_ms is not None and e.name == "UNIX_TIMESTAMP":
            return x.Literal(self.fixed_now_ms, BIGINT)
        bound: list[x.Expr | None] = []
        types: list[DataType] = []
        for arg in e.args:
            is_unit = isinstance(arg, ast.Name) and arg.source is None and arg.name in UNITS_MS and self.scope.find(arg) is None
            if isinstance(arg, ast.Lambda) and len(set(arg.params)) != len(arg.params):
                raise StatementError(f"Lambda arguments have duplicates: [{', '.join(arg.params)}]", arg.span)
            if isinstance(arg, ast.Lambda) or is_unit:
                bound.append(None)
                types.append(UNIT_ARGUMENT if is_unit else LAMBDA_ARGUMENT)
            else:
                bound.append(self.bind(arg))
                types.append(bound[-1].type)  # type: ignore[union-attr]
        index, variables = self._choose(e, overloads, types)
        overload = overloads[index]
        patterns = overload.signature.expand(len(types))
        assert patterns is not None
        args: list[x.Expr | x.Lambda] = []
        for pattern, arg, value in zip(patterns, e.args, bound, strict=True):
            if isinstance(arg, ast.Lambda):
                args.append(self._lambda(arg, pattern, variables))
            elif value is None:
                assert isinstance(arg, ast.Name)
                args.append(x.Literal(arg.name, STRING))
            elif not is_concrete(pattern):
                args.append(value)
            else:
                wanted = fill(pattern, variables, [value.type])
                # A decimal is given as it is: a value has a scale of its own, which GREATEST, say, keeps.
                is_decimal = wanted.kind is Kind.DECIMAL and value.type.kind is Kind.DECIMAL
                args.append(value if is_decimal else implicit_cast(value, wanted))
        return self._made_call(e.name, overload, args, variables)

    def _choose(self, e: ast.Call, overloads: Sequence[Overload], types: Sequence[DataType]) -> tuple[int, dict[str, DataType]]:
        lambdas = [len(a.params) for a in e.args if isinstance(a, ast.Lambda)]
        fitting = [
            o for o in overloads if not lambdas or [len(p.parts) - 1 for p in o.signature.params if p.kind == "lambda"] == lambdas
        ]
        if not fitting:
            found = " and ".join(f"a lambda of {n} parameter{'s' if n != 1 else ''}" for n in lambdas)
            alternatives = no_overload_text(e.name.lower(), [o.signature for o in overloads], types)
            raise StatementError(f"{alternatives}\nFound {found}.")
        index, variables = choose_overload(e.name.lower(), [o.signature for o in fitting], types)
        return overloads.index(fitting[index]), variables

    def _lambda(self, e: ast.Lambda, pattern: Pattern, variables: dict[str, DataType]) -> x.Lambda:
        param_types = [fill(p, variables, ()) for p in pattern.parts[:-1]]
        columns = {c.name for c in (*self.scope.columns, *(() if self.naming is None else self.naming.columns))}
        for name in e.params:
            if name in columns:
                raise StatementError(f"Lambda function argument can't be a column name: {name}", e.span)
            if name in self.lambdas:
                raise StatementError(f"Reusing lambda arguments in nested lambda is not allowed: {name}", e.span)
        inner = replace(self, lambdas={**self.lambdas, **dict(zip(e.params, param_types, strict=True))})
        body = inner.bind(e.body)
        result = pattern.parts[-1]
        if match_pattern(result, body.type, variables) is None:
            raise StatementError(
                f"{self._context()}the lambda gives {show_type(body.type)}, expected {show_type(fill(result, variables, ()))}",
                e.body.span,
            )
        return x.Lambda(e.params, implicit_cast(body, fill(result, variables, ())))

    def _made_call(
        self, name: str, overload: Overload, args: Sequence[x.Expr | x.Lambda], variables: dict[str, DataType]
    ) -> x.Expr:
        types = [a.type for a in args if not isinstance(a, x.Lambda)]
        result = overload.result_type(types) if overload.result_type else fill(overload.signature.result, variables, types)
        extra = () if overload.extra is None else overload.extra(types, result)
        constants = tuple(x.Literal(value, ANY) for value in extra)
        return x.Call(overload.function(name), (*args, *constants), result)


def widen(e: x.Expr, type: DataType) -> x.Expr:
    """Return a numeric expression as a wider type; literals at once."""
    if e.type == type:
        return e
    return convert_literal(e, type) if isinstance(e, x.Literal) else x.Cast(e, type)


def replace_type(e: x.Expr, type: DataType) -> x.Expr:
    """Give a NULL literal a type; leave anything else."""
    return x.Literal(None, type) if isinstance(e, x.Literal) and e.value is None else e


def _required(operand: x.Expr) -> x.Expr:
    """In a lambda arithmetic with null is an error: the function around it gives null as a whole, not an item that is null."""
    return operand if isinstance(operand, x.Literal) else x.Call(REQUIRED, (operand,), operand.type)


def _any_of(tests: Sequence[x.Expr]) -> x.Expr:
    """Return whether one of many tests holds, as a tree that is not deep."""
    if len(tests) < 2:
        return tests[0] if tests else x.Literal(False, BOOLEAN)
    half = len(tests) // 2
    return x.Binary(x.BinaryOp.OR, _any_of(tests[:half]), _any_of(tests[half:]), BOOLEAN)


def _refuse_nulls(items: Sequence[x.Expr], what: str, of: str) -> None:
    """An array or map of nothing but NULL literals has no type. `of`: keys, values or elements."""
    if all(item.type.kind is Kind.ANY for item in items):
        one = "key" if of == "keys" else "value"
        raise StatementError(
            f"Cannot construct {what} with all NULL {of} (see https://github.com/confluentinc/ksql/issues/4239). "
            f"As a workaround, you may cast a NULL {one} to the desired type."
        )


def _can_compare(left: DataType, right: DataType, *, is_equality: bool) -> bool:
    if Kind.ANY in (left.kind, right.kind):
        return True
    if left.kind in _NESTED or right.kind in _NESTED:
        return is_equality and left == right
    if is_numeric(left) and is_numeric(right):
        return True
    if left.kind is Kind.BOOLEAN and right.kind is Kind.BOOLEAN:
        return is_equality
    if {left.kind, right.kind} == {Kind.DATE, Kind.TIMESTAMP}:
        return True
    return left.kind is right.kind
