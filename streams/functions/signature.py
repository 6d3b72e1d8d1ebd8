"""Signatures of functions: patterns of types, matching with type variables, and the choice among overloads.

A signature reads like `(ARRAY<T>, INTEGER) -> T`. In it a single letter is a type variable, ANY matches everything, DECIMAL any
precision, STRUCT any fields, UNIT a bare time unit, `(A, B) => C` a lambda; `...` after a parameter lets it come any number of
times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from logflume.log.schemas import (
    ANY,
    BIGINT,
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    INTEGER,
    STRING,
    TIME,
    TIMESTAMP,
    DataType,
    Kind,
    array,
    decimal,
    map_of,
)  # fmt: skip

from .types import NUMERIC, TIME_KINDS, as_decimal, can_cast_implicitly, common_type

# What an argument is while its type is not known by itself.
LAMBDA_ARGUMENT = DataType(Kind.ANY, precision=-1)
UNIT_ARGUMENT = DataType(Kind.ANY, precision=-2)

_NAMED = {str(t): t for t in (BOOLEAN, INTEGER, BIGINT, DOUBLE, STRING, BYTES, DATE, TIME, TIMESTAMP)}
_TOKEN = re.compile(r"\s*(=>|->|\.\.\.|[A-Za-z_]+|[(),<>])")


@dataclass(frozen=True, slots=True)
class Pattern:
    """kind: 'type' (exact `type`), 'decimal', 'struct', 'any', 'unit', 'var' (`name`), 'array', 'map', 'lambda'.

    `parts`: element types; of a lambda its parameters and result.
    """

    kind: str
    type: DataType | None = None
    name: str = ""
    parts: tuple[Pattern, ...] = ()

    def __str__(self) -> str:
        match self.kind:
            case "type":
                return str(self.type)
            case "array":
                return f"ARRAY<{self.parts[0]}>"
            case "map":
                return f"MAP<{self.parts[0]}, {self.parts[1]}>"
            case "lambda":
                return f"({', '.join(map(str, self.parts[:-1]))}) => {self.parts[-1]}"
            case "var":
                return self.name
        return self.kind.upper()


@dataclass(frozen=True, slots=True)
class Signature:
    """`variadic`: index of the parameter that may come any number of times, or None."""

    params: tuple[Pattern, ...]
    variadic: int | None
    result: Pattern

    def __str__(self) -> str:
        shown = [f"{p}{'...' if i == self.variadic else ''}" for i, p in enumerate(self.params)]
        return f"({', '.join(shown)}) -> {self.result}"

    def expand(self, count: int) -> tuple[Pattern, ...] | None:
        """Return the patterns for `count` arguments, None if that many do not fit."""
        if self.variadic is None:
            return self.params if count == len(self.params) else None
        extra = count - (len(self.params) - 1)
        if extra < 0:
            return None
        i = self.variadic
        return (*self.params[:i], *([self.params[i]] * extra), *self.params[i + 1 :])


def parse_signature(text: str) -> Signature:
    """Read a signature.

    >>> str(parse_signature("(STRING, T...) -> ARRAY<T>"))
    '(STRING, T...) -> ARRAY<T>'
    """
    tokens = [m.group(1) for m in _TOKEN.finditer(text)]
    position = 0
    variadic: int | None = None

    def peek() -> str:
        return tokens[position] if position < len(tokens) else ""

    def take(expected: str | None = None) -> str:
        nonlocal position
        token = peek()
        assert expected is None or token == expected, (text, token, expected)
        position += 1
        return token

    def pattern() -> Pattern:
        if peek() == "(":
            params = tuple(listed())
            take("=>")
            return Pattern("lambda", parts=(*params, pattern()))
        word = take()
        if word == "ARRAY":
            take("<")
            element = pattern()
            take(">")
            return Pattern("array", parts=(element,))
        if word == "MAP":
            take("<")
            key = pattern()
            take(",")
            value = pattern()
            take(">")
            return Pattern("map", parts=(key, value))
        if word in ("DECIMAL", "STRUCT", "ANY", "UNIT"):
            return Pattern(word.lower())
        if word in _NAMED:
            return Pattern("type", _NAMED[word])
        assert len(word) == 1, (text, word)
        return Pattern("var", name=word)

    def listed() -> Iterator[Pattern]:
        nonlocal variadic
        take("(")
        index = 0
        while peek() != ")":
            yield pattern()
            if peek() == "...":
                take()
                variadic = index
            index += 1
            if peek() == ",":
                take()
        take(")")

    params = tuple(listed())
    take("->")
    return Signature(params, variadic, pattern())


# A match costs nothing where types are equal; implicit casts and NULLs cost more, so that the nearest overload wins.
_NULL_COST = 1


def match_pattern(pattern: Pattern, actual: DataType, variables: dict[str, DataType]) -> int | None:
    """Return what it costs to give `actual` where `pattern` stands, None if it cannot; binds `variables`."""
    match pattern.kind:
        case "any":
            return 0
        case "unit":
            return 0 if actual == UNIT_ARGUMENT else None
        case "lambda":
            return 0 if actual == LAMBDA_ARGUMENT else None
    if actual in (LAMBDA_ARGUMENT, UNIT_ARGUMENT):
        return None
    if pattern.kind == "var":
        return _match_variable(pattern.name, actual, variables)
    if actual == ANY:
        return _NULL_COST
    match pattern.kind:
        case "type":
            assert pattern.type is not None
            return _cast_cost(actual, pattern.type)
        case "decimal":
            if actual.kind is Kind.DECIMAL:
                return 0
            return (
                10 + NUMERIC.index(Kind.DECIMAL) - NUMERIC.index(actual.kind)
                if actual.kind in (Kind.INTEGER, Kind.BIGINT)
                else None
            )
        case "struct":
            return 0 if actual.kind is Kind.STRUCT else None
        case "array":
            return (
                match_pattern(pattern.parts[0], actual.element, variables)
                if actual.element and actual.kind is Kind.ARRAY
                else None
            )
        case "map":
            if actual.kind is not Kind.MAP or actual.key is None or actual.element is None:
                return None
            key = match_pattern(pattern.parts[0], actual.key, variables)
            value = match_pattern(pattern.parts[1], actual.element, variables)
            return None if key is None or value is None else key + value
    raise AssertionError(pattern)


def _match_variable(name: str, actual: DataType, variables: dict[str, DataType]) -> int | None:
    bound = variables.get(name)
    if bound is None or bound == ANY:
        variables[name] = actual
        return 1 if actual == ANY else 0
    if bound == actual:
        return 0
    if actual == ANY:
        return 1
    common = common_type(bound, actual)
    if common is None and can_cast_implicitly(actual, bound):
        return 20
    if common is None and can_cast_implicitly(bound, actual):
        common = actual
    if common is None:
        return None
    variables[name] = common
    return 5


def _cast_cost(actual: DataType, wanted: DataType) -> int | None:
    if actual == wanted:
        return 0
    if not can_cast_implicitly(actual, wanted):
        return None
    if actual.kind in NUMERIC and wanted.kind in NUMERIC:
        return 10 + NUMERIC.index(wanted.kind) - NUMERIC.index(actual.kind)
    return 20 + (TIME_KINDS.index(wanted.kind) if wanted.kind in TIME_KINDS else 5)


def is_concrete(pattern: Pattern) -> bool:
    """Tell whether a pattern names one type once its argument is known, so that the argument can be cast to it."""
    if pattern.kind in ("any", "struct"):
        return False
    return all(p.kind != "decimal" and is_concrete(p) for p in pattern.parts)


def fill(pattern: Pattern, variables: dict[str, DataType], args: Sequence[DataType]) -> DataType:
    """Return the type a pattern stands for once its variables are known (ANY for those that are not)."""
    match pattern.kind:
        case "type":
            assert pattern.type is not None
            return pattern.type
        case "var":
            return variables.get(pattern.name, ANY)
        case "array":
            return array(fill(pattern.parts[0], variables, args))
        case "map":
            return map_of(fill(pattern.parts[0], variables, args), fill(pattern.parts[1], variables, args))
        case "decimal":
            exact = [a for a in args if a.kind is Kind.DECIMAL] or [as_decimal(a) for a in args if a.kind in NUMERIC]
            return exact[0] if exact else decimal(38, 0)
        case "struct":
            return next((a for a in args if a.kind is Kind.STRUCT), ANY)
    return ANY
