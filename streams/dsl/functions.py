"""Every function of the library: `lf.functions.substring(col.name, 2)`, or as a method of a value: `col.name.substring(2)`.

Aggregates are here too: `lf.functions.topk(col.amount, 3)`. `dir(lf.functions)` lists all names, and
`help(lf.functions.substring)` shows what one takes, with an example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from logflume.log import UnknownName

from ..functions import Aggregate, Scalar, builtin_library
from .aggregates import LibraryCall
from .fields import Called, Value, lift, lift_lambda


@lru_cache(maxsize=1)
def scalars() -> Mapping[str, Scalar]:
    """Return the scalar functions by the name that the DSL gives them, aliases too."""
    found: dict[str, Scalar] = {}
    for function in builtin_library().scalars.values():
        for name in (function.name.lower(), *function.aliases):
            found[name] = function
    return MappingProxyType(found)


@lru_cache(maxsize=1)
def aggregates() -> Mapping[str, Aggregate]:
    """Return the aggregate functions by the name that the DSL gives them."""
    return MappingProxyType({function.name.lower(): function for function in builtin_library().aggregates.values()})


def call(function: Scalar, name: str, args: tuple[Any, ...]) -> Value:
    """Return a deferred call; Python functions among the arguments are lambdas over the values that they are given."""
    return Called(
        function, name, tuple(lift_lambda(arg) if callable(arg) and not isinstance(arg, Value) else lift(arg) for arg in args)
    )


def method(value: Value, name: str) -> Callable[..., Value] | None:
    """Return a function as a method of a value: the value goes where the function expects its subject; None: no such function."""
    function = scalars().get(name)
    if function is None or not any(overload.signature.params for overload in function.overloads):
        return None

    def bound(*args: Any) -> Value:
        at = len(args) if function.subject == -1 else function.subject
        return call(function, name, (*args[:at], value, *args[at:]))

    return _described(bound, name, function)


def _described(made: Callable[..., Any], name: str, function: Scalar | Aggregate) -> Callable[..., Any]:
    made.__name__ = made.__qualname__ = name
    lines = [function.doc, "", *(f"{name}{overload.signature}" for overload in function.overloads)]
    if isinstance(function, Scalar) and function.example is not None and not function.example.sql:
        lines += ["", f"{name}({', '.join(map(_shown, function.example.args))}) is {function.example.result!r}"]
    made.__doc__ = "\n".join(lines)
    return made


def _shown(value: Any) -> str:
    return repr(getattr(value, "name", value))


def __getattr__(name: str) -> Callable[..., Any]:
    function = scalars().get(name)
    if function is not None:
        found = function
        return _described(lambda *args: call(found, name, args), name, found)
    total = aggregates().get(name)
    if total is not None:
        made = total
        return _described(lambda *args: LibraryCall(made, tuple(map(lift, args))), name, made)
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(str(UnknownName("function", name, [*scalars(), *aggregates()])))


def __dir__() -> list[str]:
    return sorted({*scalars(), *aggregates()})
