"""The library of functions: lookup by name and choice of the overload. Immutable; a wider one is made with `extended`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TypeVar

from logflume.log import InvalidInput, near_matches
from logflume.log.schemas import ANY, DataType

from . import aggregates, binary, collections, dates, geo, json, masks, nulls, numeric, regexes, table_functions, text, urls
from .aggregate import Aggregate
from .scalar import Scalar
from .signature import LAMBDA_ARGUMENT, UNIT_ARGUMENT, Signature, match_pattern

Variables = dict[str, DataType]
_FAMILIES = (binary, collections, dates, geo, json, masks, nulls, numeric, regexes, text, urls)


@dataclass(frozen=True, slots=True)
class Library:
    """Functions by upper-case name."""

    scalars: Mapping[str, Scalar]
    tables: Mapping[str, Scalar]
    aggregates: Mapping[str, Aggregate]

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted({*self.scalars, *self.tables, *self.aggregates})

    def kind_of(self, name: str) -> str | None:
        """Return 'scalar', 'table' or 'aggregate'; None for an unknown name."""
        if name in self.scalars:
            return "scalar"
        if name in self.tables:
            return "table"
        return "aggregate" if name in self.aggregates else None

    def find(self, name: str) -> Scalar | Aggregate | None:
        """Return the function of a name, whatever its kind."""
        return self.scalars.get(name) or self.tables.get(name) or self.aggregates.get(name)

    def unknown(self, name: str) -> str:
        """Return the message for a name that no function has, with near matches."""
        near = near_matches(name, self.names())
        hint = f"; did you mean {' or '.join(near)}?" if near else "; SHOW FUNCTIONS lists them."
        return f"Can't find any functions with the name '{name}'{hint}"

    def extended(
        self, *, scalars: Iterable[Scalar] = (), tables: Iterable[Scalar] = (), aggregates: Iterable[Aggregate] = ()
    ) -> Library:
        """Return a library with more functions."""
        return Library(
            MappingProxyType({**self.scalars, **_by_name(scalars)}),
            MappingProxyType({**self.tables, **_by_name(tables)}),
            MappingProxyType({**self.aggregates, **_by_name(aggregates)}),
        )


class NoOverload(InvalidInput):
    """A function does not take these arguments, or it is ambiguous what they mean."""

    code = "NO_OVERLOAD"


def choose(name: str, signatures: Sequence[Signature], args: Sequence[DataType]) -> tuple[int, Variables]:
    """Return (index of the signature that fits best, its type variables).

    Fewest and smallest implicit casts first; then not variadic, more fixed parameters, fewer type variables, later variadic.

    Raises:
        NoOverload: none fits, or several fit equally well.
    """
    candidates: list[tuple[tuple[int, ...], int, Variables]] = []
    for index, signature in enumerate(signatures):
        patterns = signature.expand(len(args))
        if patterns is None:
            continue
        variables: Variables = {}
        costs = [match_pattern(p, a, variables) for p, a in zip(patterns, args, strict=True)]
        if any(c is None for c in costs):
            continue
        generics = sum(1 for p in patterns if p.kind in ("var", "any"))
        is_variadic = signature.variadic is not None
        rank = (
            sum(c for c in costs if c is not None),
            int(is_variadic),
            -len(signature.params),
            generics,
            -(signature.variadic or 0),
        )
        candidates.append((rank, index, variables))
    if not candidates:
        raise NoOverload(no_overload_text(name, signatures, args))
    candidates.sort(key=lambda c: (c[0], c[1]))
    best = candidates[0]
    ties = [c for c in candidates if c[0] == best[0]]
    if len(ties) > 1 and any(a == ANY for a in args):
        shown = " and ".join(f"{name}{signatures[c[1]]}" for c in ties)
        raise NoOverload(
            f"Function '{name}' cannot be resolved due to ambiguous method parameters {_types(args)}; {shown} fit; use "
            "CAST on the NULL"
        )
    return best[1], best[2]


def _types(args: Sequence[DataType]) -> str:
    named = {ANY: "null", LAMBDA_ARGUMENT: "LAMBDA", UNIT_ARGUMENT: "INTERVALUNIT"}
    return "(" + ", ".join(named.get(a) or str(a) for a in args) + ")"


def no_overload_text(name: str, signatures: Sequence[Signature], args: Sequence[DataType]) -> str:
    """Say that a function does not take such arguments, and what it takes."""
    alternatives = "\n".join(f"  {name}{s}" for s in signatures)
    return f"Function '{name}' does not accept parameters {_types(args)}.\nValid alternatives are:\n{alternatives}"


_F = TypeVar("_F", Scalar, Aggregate)


def _by_name(functions: Iterable[_F]) -> dict[str, _F]:
    return {function.name: function for function in functions}


@lru_cache(maxsize=1)
def builtin_library() -> Library:
    """Return the functions that come with logflume."""
    return Library(
        MappingProxyType(_by_name(f for family in _FAMILIES for f in family.FUNCTIONS)),
        MappingProxyType(_by_name(table_functions.FUNCTIONS)),
        MappingProxyType(_by_name(aggregates.FUNCTIONS)),
    )
