"""Text -> syntax tree with lark (LALR(1), contextual lexer); a failure is a SyntaxFault with position, cause and near match."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources
from typing import Any

from lark import Lark, Token, Tree, UnexpectedCharacters, UnexpectedInput, UnexpectedToken
from lark.exceptions import VisitError
from lark.parsers.lalr_analysis import Shift

from logflume.log import near_matches

from . import ast
from .ast import NOWHERE, Span
from .ast_builder import INT64, AstBuilder
from .errors import SqlError, StatementError, SyntaxFault
from .parser_cache import cached_parser
from .scripts import StatementText, split_script, substitute
from .templates import Scanned, Templates, scan
from .words import RESERVED, STATEMENT_WORDS, TERMINAL_TEXT

# Deeper nesting is refused: every later stage walks the tree by recursion. Levels are counted in the parser's tree, before
# anything recurses: how many of them Python itself can stand depends on who calls.
NESTING_MAX = 200
DEPTH_MAX = 150
# Statements whose trees are kept, and how long they may be: a server looks at each several times, and clients repeat themselves.
KEPT_MAX, KEPT_CHARS_MAX = 256, 4_000
_ALL_EXPECTED_MAX = 8
_SET_MAX = 3


@lru_cache(maxsize=1)
def _grammar() -> Lark:
    text = resources.files(__package__).joinpath("grammar.lark").read_text(encoding="utf-8")
    return cached_parser(text, _build_parser)


def _build_parser(grammar: str) -> Lark:
    return Lark(grammar, parser="lalr", lexer="contextual", propagate_positions=True, maybe_placeholders=True)


def parse_script(text: str, variables: dict[str, str] | None = None) -> list[tuple[StatementText, ast.Statement]]:
    """Parse every statement of a script. Raises SyntaxFault for the first that is wrong."""
    return [(s, parse_statement(s, variables=variables)) for s in split_script(text)]


def parse_statement(source: StatementText | str, *, variables: dict[str, str] | None = None) -> ast.Statement:
    """Parse one statement (a closing ';' is allowed in a plain string).

    >>> parse_statement("SHOW TABLES;")
    Show(what='TABLES', is_extended=False, is_all=False)

    Raises:
        SyntaxFault: with the statement's text and position filled in.
    """
    if isinstance(source, str):
        parts = list(split_script(source))
        if len(parts) != 1:
            raise SyntaxFault(f"expected one statement, found {len(parts)}")
        source = parts[0]
    text = source.text
    try:
        text = substitute(source.text, variables or {})
        statement: ast.Statement = _kept(text) if len(text) <= KEPT_CHARS_MAX else _templates().parsed(text, _build)
    except StatementError as e:
        e.locate(text, first_line=source.line, first_column=source.column)
        raise
    return statement


def syntax_tree(text: str) -> Tree[Any]:
    """Return how the grammar takes one statement apart, with the places of all that is named. Raises lark's errors."""
    return _grammar().parse(text)


def parse_expression(text: str) -> ast.Expression:
    """Parse an expression alone."""
    statement = parse_statement(f"SELECT {text} FROM X")
    assert isinstance(statement, ast.QueryStatement)
    items = statement.query.select
    if len(items) != 1 or items[0].expression is None:
        raise SyntaxFault("expected one expression")
    return items[0].expression


def sole_scanned(script: str) -> Scanned | None:
    """Return the one statement of a script without its literals; None: there are several, or it is none that programs repeat."""
    scanned = scan(script.strip().removesuffix(";").rstrip())
    if scanned is not None and ";" not in scanned.key:
        return scanned
    sources = list(split_script(script))
    return scan(sources[0].text) if len(sources) == 1 else None


def known_statement(scanned: Scanned) -> ast.Statement | None:
    """Return the tree of a statement if nothing is new of it but its literals."""
    return _templates().find(scanned)


@lru_cache(maxsize=1)
def _templates() -> Templates:
    return Templates()


@lru_cache(maxsize=KEPT_MAX)
def _kept(text: str) -> Any:
    return _templates().parsed(text, _build)


def _build(text: str) -> Any:
    depth = deepest = 0
    for ch in text:
        if ch in "([<":
            depth += 1
            deepest = max(deepest, depth)
        elif ch in ")]>":
            depth = max(0, depth - 1)
    if deepest > NESTING_MAX:
        raise SyntaxFault(f"nested {deepest} deep; at most {NESTING_MAX} are allowed")
    try:
        tree = _grammar().parse(text)
        _refuse_deep(tree)
        statement = AstBuilder().transform(tree)
        _refuse_overflow(statement, text)
        return statement
    except VisitError as e:
        if isinstance(e.orig_exc, SqlError):
            raise e.orig_exc from None
        raise
    except UnexpectedInput as e:
        raise _explain(text, e) from None


def _refuse_deep(tree: Tree[Any]) -> None:
    level = [tree]
    for _ in range(DEPTH_MAX):
        level = [child for parent in level for child in parent.children if isinstance(child, Tree)]
        if not level:
            return
    places = [found.meta for found in level if not found.meta.empty]
    span = Span(places[0].start_pos, places[0].end_pos) if places else NOWHERE
    raise SyntaxFault(f"expressions are nested more than {DEPTH_MAX} deep; split the statement in two", span)


def _refuse_overflow(statement: ast.Node, text: str) -> None:
    """Refuse numbers that their type cannot hold; only with its sign is it known whether one fits."""
    todo: list[Any] = [statement]
    while todo:
        value = todo.pop()
        if isinstance(value, tuple):
            todo += value
        elif isinstance(value, ast.DoubleLiteral):
            if math.isinf(value.value):
                raise SyntaxFault(f"Number overflows DOUBLE: {text[value.span.start : value.span.stop]}", value.span)
        elif isinstance(value, ast.IntegerLiteral):
            if value.value not in INT64:
                shown = text[value.span.start : value.span.stop]
                raise SyntaxFault(f"Invalid numeric literal: {shown} does not fit a BIGINT (64 bits)", value.span)
        elif isinstance(value, ast.Node):
            todo += [getattr(value, name) for name in value.__dataclass_fields__ if name != "span"]


def _explain(text: str, error: UnexpectedInput) -> SyntaxFault:
    if isinstance(error, UnexpectedCharacters):
        position = error.pos_in_stream or 0
        found = text[position : position + 1]
        if found in "'\"`":
            return SyntaxFault(f"this {found} is never closed", Span(position, len(text)))
        return SyntaxFault(f"unexpected character {found!r}", Span(position, position + 1))
    if not isinstance(error, UnexpectedToken):
        return SyntaxFault("Syntax Error: unexpected end of the statement", Span(len(text), len(text)))
    token: Token = error.token
    expected = accepted(error) or {str(t) for t in error.expected}
    if token.type == "$END":
        return SyntaxFault(f"Syntax Error: the statement ends too early; expected {_list(expected)}", Span(len(text), len(text)))
    span = Span(token.start_pos or 0, token.end_pos or 0)
    word = str(token)
    if text[: span.start].strip() == "":
        hint = _near(word, STATEMENT_WORDS)
        return SyntaxFault(f"Unknown statement '{word}'{hint}", span)
    inner = re.search(r"\(\s*(SELECT)(?:\s*\*\s*FROM)?\s*\Z", text[: span.start], re.IGNORECASE)
    if inner is not None and "NAME" not in expected:  # SELECT was read as a name
        told = "a query stands in FROM, not in an expression; join it: FROM ... JOIN (SELECT ...) AS name ON ..."
        return SyntaxFault(told, Span(*inner.span(1)))
    keywords = [t for t in expected if t.isalpha() and t not in TERMINAL_TEXT]
    hint = _near(word, keywords)
    if not hint and word.upper() in RESERVED and "NAME" in expected:
        hint = f"; {word.upper()} is a reserved word, write `{word}` to use it as a name"
    if not hint:
        before = re.search(r"([A-Za-z_]+)\s*\Z", text[: span.start])
        if before is not None and before.group(1).upper() not in keywords:
            hint = _near(before.group(1), keywords)
            if hint:
                word, span = before.group(1), Span(before.start(1), before.end(1))
    if not hint and len(expected) <= _SET_MAX:
        return SyntaxFault(f"Syntax Error\n{_wanted(expected, word)}", span)
    return SyntaxFault(f"Syntax Error: unexpected '{word}'; expected {_list(expected)}{hint}", span)


def accepted(error: UnexpectedToken) -> set[str]:
    """Return the tokens that could come instead, by walking the parser's tables with states alone.

    Lark's `accepts` gives the same and copies lexer and values for each token, which costs more than the parsing.
    """
    if error.interactive_parser is None:
        return set()
    state = error.interactive_parser.parser_state
    names = [name for name in state.parse_conf.states[state.position] if name.isupper()]
    return _taken(names, state.state_stack, state.parse_conf)


def _taken(terminals: Sequence[str], stack: Sequence[Any], tables: Any) -> set[str]:
    """Return those of some tokens that are shifted, now or after the reductions that they lead to."""
    actions = tables.states[stack[-1]]
    taken = {name for name in terminals if name in actions and actions[name][0] is Shift}
    by_rule: dict[Any, list[str]] = {}
    for name in terminals:
        if name in actions and name not in taken:
            by_rule.setdefault(actions[name][1], []).append(name)
    for rule, names in by_rule.items():
        left = stack[: len(stack) - len(rule.expansion)]
        after = tables.states[left[-1]][rule.origin.name][1]
        if after == tables.end_state:
            taken |= {name for name in names if name == "$END"}
        else:
            taken |= _taken(names, [*left, after], tables)
    return taken


def _wanted(terminals: set[str], found: str) -> str:
    """Say what one of few tokens was expected, in the words of ksqlDB's parser."""
    names = sorted(_token_name(t) for t in terminals)
    if len(names) == 1:
        return f"missing {names[0]} at '{found}'"
    return f"Expecting {{{', '.join(names)}}}, found '{found}'"


def _token_name(terminal: str) -> str:
    if terminal.endswith("_VALUE") or terminal in ("NAME", "QUOTED", "DIGIT_NAME", "STRING"):
        return terminal
    return f"'{TERMINAL_TEXT.get(terminal, terminal.removesuffix('_WORD'))}'"


def _near(word: str, known: Sequence[str]) -> str:
    near = near_matches(word, known)
    return f"; did you mean {' or '.join(near)}?" if near and word.upper() not in known else ""


def _list(terminals: set[str]) -> str:
    texts = sorted({TERMINAL_TEXT.get(t, t.replace("__ANON", "")) for t in terminals if not t.startswith("__")})
    if len(texts) > _ALL_EXPECTED_MAX and "a name" in texts:
        return "an expression" if "CASE" in texts else "a name"
    if len(texts) > _ALL_EXPECTED_MAX:
        texts = [*texts[:_ALL_EXPECTED_MAX], "..."]
    return " or ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else "".join(texts)
