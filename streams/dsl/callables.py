"""What a plain function takes and gives: read from its signature, so that any callable can stand where an expression can."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

from logflume.log import InvalidInput


def positional_count(function: Callable[..., Any], default: int) -> int:
    """Return how many positional arguments a callable needs; `default` when it does not say (built-ins).

    >>> positional_count(lambda key, value: value, 1)
    2
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return default
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = sum(1 for p in parameters if p.kind in positional and p.default is p.empty)
    if required == 0 and any(p.kind is p.VAR_POSITIONAL or p.kind in positional for p in parameters):
        return default
    return required


def positional_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the positional arguments of a function. Raises InvalidInput: it does not tell them."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise InvalidInput(f"{function!r} does not tell its arguments: write a lambda") from None
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty)


def expect_arguments(function: Callable[..., Any], allowed: tuple[int, ...], default: int, what: str) -> int:
    """Return the number of positional arguments, one of `allowed`. Raises InvalidInput naming the function otherwise."""
    if not callable(function):
        raise InvalidInput(f"{what} takes an expression or a function, found {function!r}")
    found = positional_count(function, default)
    if found not in allowed:
        name = getattr(function, "__name__", repr(function))
        raise InvalidInput(f"{what}: {name} takes {found} arguments, expected {' or '.join(map(str, allowed))}")
    return found


def returned_type(function: Callable[..., Any]) -> Any:
    """Return the annotated type of the result, Optional taken off; None when there is none."""
    target = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    if inspect.isclass(function):
        return function
    try:
        hint = typing.get_type_hints(target).get("return")
    except (NameError, TypeError, AttributeError):
        return None
    args = [a for a in typing.get_args(hint) if a is not type(None)]
    return args[0] if type(None) in typing.get_args(hint) and len(args) == 1 else hint
