"""What is said of an attribute or an argument that does not exist: near matches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, wraps
from inspect import signature
from typing import Any

from logflume.log import UnknownName, near_matches


class UnknownAttribute(UnknownName, AttributeError):  # type: ignore[misc]  # `name` is a str in both that matter
    """There is no such method or function."""


def missing(owner: str, name: str, known: Iterable[str], *, elsewhere: str = "") -> AttributeError:
    """Return the error for attribute `name` of `owner`; one that Python itself asks for (`__x__`) gets a plain one.

    `elsewhere`: how one comes to what does have it; said instead of near matches.

    >>> str(missing("Stream", "filer", ["filter", "map"]))
    "unknown attribute 'filer' of Stream; did you mean 'filter'?"
    """
    if name.startswith("_"):
        return AttributeError(name)
    near_to = [] if elsewhere else [each for each in known if not each.startswith("_")]
    error = UnknownAttribute(f"attribute of {owner}", name, near_to)
    if elsewhere:
        error.args = (f"{error}; {elsewhere}",)
    return error


@cache
def suggesting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose TypeError for an unknown keyword names the near one.

    >>> def window(*, minutes: int = 0) -> int: return minutes
    >>> suggesting(window)(minute=1)
    Traceback (most recent call last):
    TypeError: window() has no argument 'minute'; did you mean 'minutes'?
    """
    known = [each.name for each in signature(function).parameters.values() if each.kind is not each.POSITIONAL_ONLY]
    takes_all = any(each.kind is each.VAR_KEYWORD for each in signature(function).parameters.values())

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        unknown = () if takes_all else [name for name in options if name not in known]
        if unknown:
            near = near_matches(unknown[0], known)
            hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known)}"
            raise TypeError(f"{function.__name__}() has no argument {unknown[0]!r}; {hint}")
        return function(*args, **options)

    return call
