"""Statements that differ in their literals alone: one is parsed, the others are made of its tree.

Programs send the same INSERT or pull query again and again with other values, and nearly all of its cost is the parser's. The
text without its strings and numbers is the key; a tree is used again only where each literal of it is a node of the tree that
has its value and its place, so that another value cannot mean anything else. Whatever is not certain is parsed.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate
from typing import Any, Generic, NamedTuple, TypeVar

from . import ast
from .ast import Span

KEPT_MAX, KEPT_CHARS_MAX = 256, 100_000
"""How many are kept, and how long all of them may be together: a tree takes up to a hundred times the room of its text."""
TEXT_CHARS_MAX = 1_000_000
_REPEATED = re.compile(r"\s*(?:insert|select)\b", re.IGNORECASE)
_SCANNED = re.compile(
    r"(?P<opaque>`(?:[^`]|``)*`|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*[\s\S]*?\*/)"
    r"|(?P<string>'(?:[^']|'')*')"
    r"|(?<![\w@.$])(?P<number>\d+(?:\.\d+)?)(?![\w@.])"
)
_INT_DIGITS_MAX = 18
_LITERALS = (ast.StringLiteral, ast.IntegerLiteral, ast.DecimalLiteral)
T = TypeVar("T")
_PLAIN = (str, int, float, bool, Decimal, type(None))


class Token(NamedTuple):
    """A literal of a text. kind: STRING, INTEGER or DECIMAL."""

    kind: str
    text: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Scanned:
    """A statement: its text without its literals, and these; the kind of each is part of the text."""

    key: str
    tokens: list[Token]


class _NoTemplate(Exception):
    """This tree cannot be made of the other one."""


class Templates:
    """Keeps trees by their texts without literals. Thread-safe."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Template] = OrderedDict()
        self._kept_chars = 0
        self._lock = threading.Lock()

    def find(self, scanned: Scanned) -> ast.Statement | None:
        """Return the tree of a statement of which all but the literals has been parsed before; None: it has to be parsed."""
        with self._lock:
            template = self._kept.get(scanned.key)
            if template is not None:
                self._kept.move_to_end(scanned.key)
        return None if template is None else template.filled(scanned.tokens)

    def parsed(self, text: str, parse: Callable[[str], ast.Statement]) -> ast.Statement:
        """Return the tree of a statement, parsed if need be; the next one of its kind need not. Raises what `parse` raises."""
        scanned = scan(text)
        found = None if scanned is None else self.find(scanned)
        if found is not None or scanned is None:
            return found or parse(text)
        statement = parse(text)
        self._keep(scanned.key, scanned.tokens, statement)
        return statement

    def _keep(self, key: str, tokens: Sequence[Token], statement: ast.Statement) -> None:
        template = _Template(statement, tokens)
        if len(key) > KEPT_CHARS_MAX // 4 or not template.is_certain():
            return
        with self._lock:
            if self._kept.pop(key, None) is None:
                self._kept_chars += len(key)
            self._kept[key] = template
            while len(self._kept) > KEPT_MAX or self._kept_chars > KEPT_CHARS_MAX:
                self._kept_chars -= len(self._kept.popitem(last=False)[0])


def scan(text: str) -> Scanned | None:
    """Return a statement without its literals, and these; None for one that programs do not repeat."""
    if len(text) > TEXT_CHARS_MAX or _REPEATED.match(text) is None or "\x00" in text:
        return None
    tokens: list[Token] = []
    parts: list[str] = []
    at = 0
    for match in _SCANNED.finditer(text):
        kind = match.lastgroup
        if kind == "opaque":
            continue
        found = match.group()
        if kind == "number":
            kind = "DECIMAL" if "." in found else "INTEGER"
            if kind == "INTEGER" and len(found) > _INT_DIGITS_MAX:
                continue  # stays in the key: it may be too large
        tokens.append(Token("STRING" if kind == "string" else str(kind), found, match.start(), match.end()))
        parts += (text[at : match.start()], "\x00", tokens[-1].kind[0])
        at = match.end()
    parts.append(text[at:])
    return Scanned("".join(parts), tokens)


class Bound(Generic[T]):
    """Keeps what was made of statements by their texts without literals, for what existed then. Thread-safe."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[object, T]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, scanned: Scanned, existing: object) -> T | None:
        """Return what was made of such a statement while `existing` was what it is about."""
        found = self._kept.get(scanned.key)
        return found[1] if found is not None and found[0] is existing else None

    def keep(self, scanned: Scanned, existing: object, made: T) -> None:
        with self._lock:
            self._kept[scanned.key] = existing, made
            self._kept.move_to_end(scanned.key)
            while len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)


class _Template:
    """A tree, and which literals of its text are nodes of it; the others must be as they were."""

    def __init__(self, statement: ast.Statement, tokens: Sequence[Token]) -> None:
        self._statement, self._tokens = statement, tuple(tokens)
        self._stops = [token.stop for token in tokens]
        by_stop = {token.stop: number for number, token in enumerate(tokens)}
        found: set[int] = set()
        _collect(statement, by_stop, self._tokens, found)
        self._by_stop = {token.stop: n for n, token in enumerate(tokens) if n in found}
        self._fixed = tuple((n, token.text) for n, token in enumerate(tokens) if n not in found)

    def is_certain(self) -> bool:
        """Tell whether the tree comes out as it was when its own literals are filled in, and none stands for two things."""
        made = self.filled(self._tokens)
        return made is not None and _same(made, self._statement)

    def filled(self, tokens: Sequence[Token]) -> ast.Statement | None:
        """Return the tree with other literals, each node where it stands in their text; None when that is not certain."""
        if any(tokens[n].text != text for n, text in self._fixed):
            return None
        moves = [0, *accumulate(len(new.text) - len(old.text) for new, old in zip(tokens, self._tokens, strict=True))]
        stops, by_stop = self._stops, self._by_stop

        def moved(span: Span) -> Span:
            # A node may start where the literal before it stops, never inside of one.
            return Span(span.start + moves[bisect_right(stops, span.start)], span.stop + moves[bisect_right(stops, span.stop)])

        def rebuilt(value: Any) -> Any:
            if isinstance(value, _LITERALS):
                number = by_stop.get(value.span.stop)
                if number is not None:
                    return _literal(value, self._tokens[number], tokens[number], moved(value.span))
            if isinstance(value, ast.Node):
                kept = {name: rebuilt(getattr(value, name)) for name in _names(value)}
                return type(value)(**kept, span=moved(value.span))
            if isinstance(value, tuple):
                return tuple([rebuilt(item) for item in value])
            if isinstance(value, Span):
                return moved(value)
            if isinstance(value, _PLAIN):
                return value
            raise _NoTemplate

        try:
            made: ast.Statement = rebuilt(self._statement)
        except (_NoTemplate, RecursionError):
            return None
        return made


def _names(node: ast.Node) -> tuple[str, ...]:
    """Return the fields of a node but its span, which is given by name alone."""
    names: tuple[str, ...] = type(node).__match_args__
    return names


def _collect(value: Any, by_stop: dict[int, int], tokens: Sequence[Token], found: set[int]) -> None:
    """Add the literals that are nodes with their value."""
    if isinstance(value, _LITERALS):
        number = by_stop.get(value.span.stop)
        if number is not None and _stands_for(value, tokens[number]):
            found.add(number)
    elif isinstance(value, ast.Unary) and isinstance(value.operand, ast.IntegerLiteral):
        return  # the negative of 0: that of any other number is a literal of its own
    elif isinstance(value, ast.Node):
        for name in _names(value):
            _collect(getattr(value, name), by_stop, tokens, found)
    elif isinstance(value, tuple):
        for item in value:
            _collect(item, by_stop, tokens, found)


def _stands_for(node: ast.Node, token: Token) -> bool:
    match node:
        case ast.StringLiteral(value):
            return token.kind == "STRING" and value == unquoted(token.text)
        case ast.IntegerLiteral(value):
            return token.kind == "INTEGER" and abs(value) == int(token.text)
        case ast.DecimalLiteral(text):
            return token.kind == "DECIMAL" and text.removeprefix("-") == token.text
    return False


def _literal(node: ast.Node, old: Token, new: Token, span: Span) -> ast.Node:
    """Return a literal with another value. Raises _NoTemplate for the negative of 0, which is no literal."""
    is_negative = node.span.start < old.start
    match node:
        case ast.StringLiteral():
            return ast.StringLiteral(unquoted(new.text), span=span)
        case ast.IntegerLiteral(before):
            value = int(new.text)
            if is_negative and (value == 0 or before == 0):
                raise _NoTemplate
            return ast.IntegerLiteral(-value if is_negative else value, span=span)
    return ast.DecimalLiteral(("-" if is_negative else "") + new.text, span=span)


def unquoted(text: str) -> str:
    """Return the value of a string literal."""
    return text[1:-1].replace("''", "'")


def _same(one: Any, other: Any) -> bool:
    """Tell whether two trees are equal in all, their places too."""
    if isinstance(one, ast.Node):
        return type(one) is type(other) and one.span == other.span and all(
            _same(getattr(one, name), getattr(other, name)) for name in _names(one)
        )  # fmt: skip
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(_same, one, other))
    return bool(type(one) is type(other) and one == other)
