"""What is said of an attribute that does not exist: near matches."""

from __future__ import annotations

from collections.abc import Iterable

from logflume.log import UnknownName


class UnknownAttribute(UnknownName, AttributeError):  # type: ignore[misc]  # `name` is a str in both that matter
    """There is no such method or function."""


def missing(owner: str, name: str, known: Iterable[str]) -> AttributeError:
    """Return the error for attribute `name` of `owner`; one that Python itself asks for (`__x__`) gets a plain one.

    >>> str(missing("Stream", "filer", ["filter", "map"]))
    "unknown attribute of Stream 'filer'; did you mean 'filter'?"
    """
    if name.startswith("_"):
        return AttributeError(name)
    return UnknownAttribute(f"attribute of {owner}", name, [each for each in known if not each.startswith("_")])
