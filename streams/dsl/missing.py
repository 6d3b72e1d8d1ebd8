"""What is said of an attribute that does not exist: near matches, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterable

from logflume.log import UnknownName


class UnknownAttribute(UnknownName, AttributeError):  # type: ignore[misc]  # `name` is a str in both that matter
    """There is no such method, function or column."""


def missing(owner: str, name: str, known: Iterable[str], *, hint: str = "") -> AttributeError:
    """Return the error for attribute `name` of `owner`; one that Python itself asks for (`__x__`) gets a plain one.

    >>> str(missing("Stream", "filer", ["filter", "map"]))
    "unknown attribute of Stream 'filer'; did you mean 'filter'?"
    """
    if name.startswith("_"):
        return AttributeError(name)
    error = UnknownAttribute(f"attribute of {owner}", name, [each for each in known if not each.startswith("_")])
    if hint:
        error.args = (f"{error.args[0]}; {hint}",)
    return error
