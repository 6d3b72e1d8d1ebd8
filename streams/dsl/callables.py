"""What a plain function takes and gives: read from its signature, so that any callable can stand where an expression can."""

from __future__ import annotations

import inspect
import typing
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from logflume.log import InvalidInput
from logflume.log.schemas import ANY, DataType

from ..functions.casts import convert


class BrokenContract(InvalidInput):
    """A plain function returned something else than its operator takes."""

    code = "BROKEN_CONTRACT"


@dataclass(frozen=True, slots=True)
class Pair:
    """Calls a function that returns one (key, value) pair; its key becomes one of the type `key`."""

    function: Callable[..., Any]
    key: DataType

    def __call__(self, *args: Any) -> Any:
        return _checked_pair(self.function, self.function(*args), self.key, "a (key, value) pair")


@dataclass(frozen=True, slots=True)
class Pairs:
    """Calls a function that returns (key, value) pairs; their keys become those of the type `key`."""

    function: Callable[..., Any]
    key: DataType

    def __call__(self, *args: Any) -> list[Any]:
        items = _checked_items(self.function, self.function(*args), "(key, value) pairs")
        return [_checked_pair(self.function, item, self.key, "(key, value) pairs") for item in items]


@dataclass(frozen=True, slots=True)
class Items:
    """Calls a function that returns values."""

    function: Callable[..., Any]

    def __call__(self, *args: Any) -> list[Any]:
        return _checked_items(self.function, self.function(*args), "an iterable of values")


def _checked_pair(function: Callable[..., Any], result: Any, type: DataType, wanted: str) -> Any:
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise BrokenContract(f"{where(function)} must return {wanted}, found {result!r:.100}")
    if type == ANY:
        return result
    key, value = result
    try:
        return convert(key, ANY, type), value
    except (ValueError, ArithmeticError) as error:
        raise BrokenContract(f"{where(function)} must return {wanted} whose key is {type}, found {key!r:.100}: {error}") from None


def _checked_items(function: Callable[..., Any], result: Any, wanted: str) -> list[Any]:
    if result is None or isinstance(result, str | bytes | Mapping) or not isinstance(result, Iterable):
        raise BrokenContract(f"{where(function)} must return {wanted}, found {result!r:.100}")
    return list(result)


def where(function: Callable[..., Any]) -> str:
    """Return a callable's name and where it is written, for messages."""
    name = getattr(function, "__name__", type(function).__name__)
    code = getattr(function, "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else str(name)


_CHANGES_IN_PLACE = (list, dict, set, bytearray, deque)


def refuse_in_place(function: Callable[..., Any], what: str) -> None:
    """Refuse `list.append` and its like as an aggregator: they return nothing, so that nothing would be kept."""
    owner, name = getattr(function, "__objclass__", None), getattr(function, "__name__", "")
    if isinstance(owner, type) and issubclass(owner, _CHANGES_IN_PLACE) and name in _RETURNS_NOTHING:
        raise InvalidInput(
            f"{what}: {owner.__name__}.{name} changes its object and returns nothing; return the next aggregate: "
            "lambda aggregate, value: [*aggregate, value]"
        )


_RETURNS_NOTHING = frozenset({"append", "extend", "add", "update", "insert", "appendleft", "remove", "discard", "clear", "sort"})


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
