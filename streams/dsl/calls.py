"""Deferred calls of the library's functions -> typed calls: the overload is chosen by the types of the arguments.

Python's whole numbers are BIGINT, where the library asks for INTEGER in places: a constant counts as INTEGER if it fits, and a
BIGINT column is taken where only an INTEGER would do. An argument of which no type is known (ANY) leaves the choice to run time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from logflume.log import InvalidInput
from logflume.log.schemas import ANY, BIGINT, INTEGER, STRING, DataType, Kind, array, map_of

from .. import expr as e
from ..functions import NoOverload, Overload, builtin_library, can_convert, choose, convert, make_cast
from ..functions.signature import LAMBDA_ARGUMENT, UNIT_ARGUMENT, Pattern, fill, is_concrete, match_pattern
from ..java_time import UNITS_MS
from ..texts import type_of
from . import fields as f

Bind = Callable[..., e.Expr]
Variables = dict[str, DataType]


def bind_call(value: f.Called, scope: Any, bind: Bind) -> e.Expr:
    """Return the typed call of a deferred one.

    Raises:
        InvalidInput: no form of the function takes these arguments; lists those that there are.
    """
    name, forms = value.name, value.function.overloads
    bound = [None if isinstance(arg, f.Lambda) else bind(arg, scope) for arg in value.args]
    types = [LAMBDA_ARGUMENT if b is None else narrow(b) for b in bound]
    units = [i for i, b in enumerate(bound) if _is_unit(forms, i, b)]
    for i in units:
        types[i] = UNIT_ARGUMENT
    if any(b is not None and b.type == ANY and not _is_null(b) for b in bound):
        return _dynamic(value, scope, bind, bound)
    index, variables = _choose(name, forms, types, value)
    form = forms[index]
    patterns = form.signature.expand(len(types))
    assert patterns is not None
    args: list[e.Expr | e.Lambda] = []
    for i, (pattern, arg, made) in enumerate(zip(patterns, value.args, bound, strict=True)):
        if made is None:
            assert isinstance(arg, f.Lambda)
            args.append(_lambda(arg, pattern, variables, scope, bind))
        elif i in units:
            assert isinstance(made, e.Literal)
            args.append(e.Literal(made.value.upper(), STRING))
        else:
            args.append(_as(made, types[i], pattern, variables))
    known = [a.type for a in args if not isinstance(a, e.Lambda)]
    result = form.result_type(known) if form.result_type else fill(form.signature.result, variables, known)
    extra = () if form.extra is None else form.extra(known, result)
    return e.Call(form.function(value.function.name), (*args, *(e.Literal(constant, ANY) for constant in extra)), result)


def _is_null(expr: e.Expr) -> bool:
    return isinstance(expr, e.Literal) and expr.value is None


def narrow(expr: e.Expr) -> DataType:
    """Return the type of an argument; INTEGER for a whole constant that fits."""
    is_small = isinstance(expr, e.Literal) and type(expr.value) is int and -(2**31) <= expr.value < 2**31
    return INTEGER if is_small and expr.type == BIGINT else expr.type


def _is_unit(forms: tuple[Overload, ...], at: int, bound: e.Expr | None) -> bool:
    if not isinstance(bound, e.Literal) or not isinstance(bound.value, str) or bound.value.upper() not in UNITS_MS:
        return False
    return any(len(o.signature.params) > at and o.signature.params[at].kind == "unit" for o in forms)


def _choose(name: str, forms: tuple[Overload, ...], types: list[DataType], value: f.Called) -> tuple[int, Variables]:
    """Return the form and its type variables; a second look takes BIGINT for INTEGER."""
    lambdas = [len(a.params) for a in value.args if isinstance(a, f.Lambda)]
    fitting = [o for o in forms if [len(p.parts) - 1 for p in o.signature.params if p.kind == "lambda"] == lambdas] or list(forms)
    signatures = [o.signature for o in fitting]
    try:
        index, variables = choose(name, signatures, types)
    except NoOverload:
        if BIGINT not in types[1:]:
            raise
        index, variables = choose(name, signatures, [types[0], *(INTEGER if t == BIGINT else t for t in types[1:])])
    return forms.index(fitting[index]), variables


def _as(expr: e.Expr, type: DataType, pattern: Pattern, variables: Variables) -> e.Expr:
    """Return an argument as its parameter's type."""
    return cast_to(expr, fill(pattern, variables, [type]) if is_concrete(pattern) else type)


def cast_to(expr: e.Expr, wanted: DataType) -> e.Expr:
    """Return an argument as a type; what differs only in the width of whole numbers stays as it is."""
    if expr.type == wanted or wanted.kind is Kind.ANY:
        return expr
    if isinstance(expr, e.Literal):
        try:
            return e.Literal(None if expr.value is None else convert(expr.value, expr.type, wanted), wanted)
        except (ValueError, ArithmeticError) as error:
            raise InvalidInput(f"{expr.value!r} is not a {wanted}: {error}") from None
    if wanted == INTEGER and expr.type == BIGINT:
        return expr
    return e.Cast(expr, wanted) if can_convert(expr.type, wanted) else expr


def _lambda(value: f.Lambda, pattern: Pattern, variables: Variables, scope: Any, bind: Bind) -> e.Lambda:
    params = [fill(p, variables, ()) for p in pattern.parts[:-1]]
    if len(params) != len(value.params):
        raise InvalidInput(f"expected a function of {len(params)} arguments, found one of {len(value.params)}")
    body = bind(value.body, replace(scope, lambdas={**scope.lambdas, **dict(zip(value.params, params, strict=True))}))
    result = pattern.parts[-1]
    if body.type != ANY and match_pattern(result, body.type, variables) is None:
        raise InvalidInput(f"`{value.body!r}` gives {body.type}, expected {fill(result, variables, ())}")
    wanted = fill(result, variables, ())
    is_same = wanted in (body.type, ANY) or body.type == ANY
    return e.Lambda(value.params, body if is_same else e.Cast(body, wanted))


# ------------------------------------------------------------------------------------------------ types known at run time


def _dynamic(value: f.Called, scope: Any, bind: Bind, bound: list[e.Expr | None]) -> e.Expr:
    args: list[e.Expr | e.Lambda] = []
    for arg, made in zip(value.args, bound, strict=True):
        if made is not None:
            args.append(made)
        else:
            assert isinstance(arg, f.Lambda)
            types = {**scope.lambdas, **dict.fromkeys(arg.params, ANY)}
            args.append(e.Lambda(arg.params, bind(arg.body, replace(scope, lambdas=types))))
    results = {fill(o.signature.result, {}, ()) for o in value.function.overloads if o.result_type is None}
    concrete = [o for o in value.function.overloads if is_concrete(o.signature.result) and o.signature.result.kind == "type"]
    type = results.pop() if len(results) == 1 and len(concrete) == len(value.function.overloads) else ANY
    return e.Call(e.Function(value.name, ByValue(value.function.name), handles_null=True), tuple(args), type)


@dataclass(frozen=True, slots=True)
class ByValue:
    """A function whose form is chosen by the classes of its arguments, call by call."""

    name: str

    def __call__(self, *args: Any) -> Any:
        types = tuple([LAMBDA_ARGUMENT if callable(arg) else value_type(arg) for arg in args])
        form, wanted, extra = _form_of(self.name, types)
        if not form.handles_null and None in args:
            return None
        cast = [arg if change is None or arg is None else change(arg) for arg, change in zip(args, wanted, strict=True)]
        return form.impl(*cast, *extra)


@lru_cache(maxsize=1024)
def _form_of(name: str, types: tuple[DataType, ...]) -> tuple[Overload, tuple[Any, ...], tuple[Any, ...]]:
    """Return the form for types, the cast of each argument, and the form's constants. Raises ValueError: there is none."""
    function = builtin_library().scalars[name]
    try:
        index, variables = choose(name.lower(), [o.signature for o in function.overloads], types)
    except NoOverload as error:
        raise ValueError(str(error)) from None
    form = function.overloads[index]
    patterns = form.signature.expand(len(types)) or ()
    casts: list[Any] = []
    for pattern, type in zip(patterns, types, strict=True):
        wanted = fill(pattern, variables, [type]) if type != LAMBDA_ARGUMENT and is_concrete(pattern) else type
        casts.append(None if wanted == type or ANY in (wanted, type) else make_cast(type, wanted))
    result = form.result_type(types) if form.result_type else fill(form.signature.result, variables, types)
    return form, tuple(casts), () if form.extra is None else form.extra(types, result)


def value_type(value: Any) -> DataType:
    """Return the column type of a Python value, of its items too; ANY where none fits."""
    if isinstance(value, list):
        return array(_common([value_type(v) for v in value]))
    if isinstance(value, dict):
        return map_of(STRING, _common([value_type(v) for v in value.values()]))
    if type(value) is int and -(2**31) <= value < 2**31:
        return INTEGER
    return type_of(value)


def _common(types: list[DataType]) -> DataType:
    from ..functions.types import common_type

    found = ANY
    for type in types:
        found = common_type(found, type) or ANY
    return found
