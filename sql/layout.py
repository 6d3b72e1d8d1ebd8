"""Scripts laid out: one clause a line, keywords in capitals, comments and blank lines kept. `logflume sql fmt` prints it.

Only white space and the case of unquoted words change. A statement that would be read differently afterwards, or that is not of
the dialect, stays as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from lark import Tree
from lark.exceptions import LarkError

from .errors import StatementError
from .parser import parse_statement, syntax_tree
from .scripts import check_length

WIDTH_CHARS = 100
_INDENT = 2
_TOKEN = re.compile(
    r"(?P<comment>--[^\n]*|/\*[\s\S]*?(?:\*/|\Z))"
    r"|(?P<string>'(?:[^']|'')*(?:'|\Z))"
    r"|(?P<quoted>\"(?:[^\"]|\"\")*(?:\"|\Z)|`(?:[^`]|``)*(?:`|\Z))"
    r"|(?P<variable>\$\{[A-Za-z_][A-Za-z0-9_]*\})"
    r"|(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![A-Za-z0-9_@]))"
    r"|(?P<word>[A-Za-z0-9_@]+)"
    r"|(?P<sign>->|:=|=>|<=|>=|<>|!=|\|\||\S)"
)
# What stands for ${name} while a statement is parsed: as long as it, and what may stand there.
_STAND_INS = ("v", "1", "'")
_CLAUSES = ("SELECT", "FROM", "WINDOW", "WHERE", "GROUP", "PARTITION", "HAVING", "UNION", "ORDER", "EMIT", "LIMIT", "VALUES")
_JOINS = ("INNER", "LEFT", "RIGHT", "FULL", "OUTER", "JOIN")
_LISTS = ("SELECT", "GROUP", "PARTITION", "ORDER", "VALUES", "WITH")
_OPEN, _CLOSE = ("(", "[", "<"), (")", "]", ">")
_OPERATORS = frozenset(["+", "-", "*", "/", "%", "||", "=", "<>", "!=", "<", "<=", ">", ">=", ":=", "=>"])


@dataclass(frozen=True, slots=True)
class _Token:
    """A piece of a script. `joins`: a bracket behind it is its own; `is_type`: of a type; `lines_before`: line ends up to it."""

    kind: str
    text: str
    start: int
    lines_before: int = 0
    joins: bool = False
    is_type: bool = False
    is_sign_of_number: bool = False

    @property
    def word(self) -> str:
        """The keyword, '' for what is none."""
        return self.text if self.kind == "keyword" else ""


def format_script(text: str, *, width_chars: int = WIDTH_CHARS) -> str:
    """Lay out a script.

    >>> print(format_script("create stream s as select a,b -- both\\nfrom t where a>1 emit changes;"), end="")
    CREATE STREAM s AS
    SELECT a, b -- both
    FROM t
    WHERE a > 1
    EMIT CHANGES;

    Raises:
        SyntaxFault: the script is longer than any that is read.
    """
    check_length(text)
    lines: list[str] = []
    for tokens in _statements(list(_tokens(text))):
        _append_statement(lines, text, tokens, width_chars)
    return "".join(f"{line}\n" for line in lines)


def _tokens(text: str) -> Iterator[_Token]:
    end = 0
    for match in _TOKEN.finditer(text):
        lines = text.count("\n", end, match.start())
        kind = match.lastgroup or ""
        yield _Token(kind, match.group().rstrip() if kind == "comment" else match.group(), match.start(), lines)
        end = match.end()


def _statements(tokens: list[_Token]) -> Iterator[list[_Token]]:
    """Yield the tokens of each statement with its ';'; a comment behind it on its line is of it."""
    current: list[_Token] = []
    for i, token in enumerate(tokens):
        current.append(token)
        follows = i + 1 < len(tokens) and tokens[i + 1].kind == "comment" and tokens[i + 1].lines_before == 0
        is_behind = token.kind == "comment" and len(current) > 1 and current[-2].text == ";" and token.lines_before == 0
        if (token.text == ";" and token.kind == "sign" and not follows) or is_behind:
            yield current
            current = []
    if current:
        yield current


def _append_statement(lines: list[str], text: str, tokens: list[_Token], width_chars: int) -> None:
    """Add the lines of one statement, behind the comments before it; blank lines become one."""
    first = next((i for i, t in enumerate(tokens) if t.kind != "comment"), len(tokens))
    for token in tokens[:first]:
        if lines and token.lines_before > 1:
            lines.append("")
        lines += token.text.split("\n")
    body = tokens[first:]
    if not body:
        return
    if lines and body[0].lines_before > 1:
        lines.append("")
    behind = body[-1] if body[-1].kind == "comment" else None
    if behind is not None:
        body = body[:-1]
    is_closed = body[-1].text == ";"
    inner = body[:-1] if is_closed else body
    if inner:
        found = _laid_out(text, inner, width_chars)
        if found[-1].lstrip().startswith("--") or (inner[-1].kind == "comment" and is_closed):
            found.append("")
        lines += found
        lines[-1] += ";" if is_closed else ""
    if behind is not None:
        lines[-1] += f" {behind.text}"


def _laid_out(text: str, tokens: list[_Token], width_chars: int) -> list[str]:
    """Return the lines of a statement without its ';': laid out where it is read the same, else as they are."""
    source = text[tokens[0].start : tokens[-1].start + len(tokens[-1].text)]
    for stand_in in _STAND_INS if any(t.kind == "variable" for t in tokens) else ("",):
        plain = _without_variables(source, stand_in)
        try:
            before = parse_statement(plain)  # refuses what is nested too deep, too
            roles = _Roles(syntax_tree(plain))
        except (LarkError, StatementError):
            continue
        known = [roles.of(t, tokens[0].start) for t in tokens]
        lines = _layout(_with_signs(known), 0, width_chars)
        laid_out = "\n".join(lines)
        try:
            if (
                _comments(_tokens(laid_out)) == _comments(tokens)
                and parse_statement(_without_variables(laid_out, stand_in)) == before
            ):
                return lines
        except StatementError:
            break
    return source.split("\n")


def _comments(tokens: Iterable[_Token]) -> list[str]:
    return [token.text for token in tokens if token.kind == "comment"]


def _without_variables(text: str, stand_in: str) -> str:
    """Return a text of the same length without `${name}` outside quotes."""

    def replaced(match: re.Match[str]) -> str:
        if match.lastgroup != "variable":
            return match.group()
        length = len(match.group())
        return f"'{'_' * (length - 2)}'" if stand_in == "'" else stand_in * length

    return _TOKEN.sub(replaced, text) if stand_in else text


class _Roles:
    """What the words of a statement are, by where they stand: names, functions, types, else keywords."""

    def __init__(self, tree: Tree[object]) -> None:
        self._names: set[int] = set()
        self._heads: set[int] = set()
        self._types: set[int] = set()
        for node in tree.iter_subtrees():
            start = getattr(node.meta, "start_pos", None)
            if start is None:
                continue
            stop = node.meta.end_pos
            if node.data in ("identifier", "alias", "describe_name", "window_name"):
                self._names.add(start)
            elif str(node.data).startswith("call") and node.data != "calendar":
                self._heads.add(start)
            elif str(node.data).endswith("_type") and node.data != "create_type":
                self._types.update(range(start, stop))
                if node.data == "simple_type":
                    self._heads.add(start)
            elif node.data == "anonymous":
                self._names.update(range(start, stop))

    def of(self, token: _Token, offset: int) -> _Token:
        """Return a token with its role."""
        at = token.start - offset
        is_type = at in self._types
        if token.kind != "word":
            return replace(token, is_type=is_type)
        if at in self._heads:
            return replace(token, text=token.text.upper(), joins=True, is_type=is_type)
        if at in self._names:
            return replace(token, is_type=is_type)
        word = token.text.upper()
        joins = word in ("CAST", "ARRAY", "MAP", "STRUCT", "HEADER")
        return replace(token, kind="keyword", text=word, joins=joins, is_type=is_type)


def _with_signs(tokens: list[_Token]) -> list[_Token]:
    """Mark each + and - that is of one operand."""
    found = list(tokens)
    for i, token in enumerate(tokens):
        before = tokens[i - 1] if i else None
        is_first = before is None or before.kind == "keyword" or before.text in _OPERATORS or before.text in ("(", "[", ",")
        if token.text in ("+", "-") and is_first:
            found[i] = replace(token, is_sign_of_number=True)
    return found


# ------------------------------------------------------------------------------------------------ lines


def _layout(tokens: Sequence[_Token], indent: int, width_chars: int) -> list[str]:
    """Return lines: one where it fits, else split at clauses, at commas, at AND and OR, at WHEN, in brackets."""
    flat = _flat(tokens)
    is_short = "\n" not in flat and indent + len(flat) <= width_chars
    if is_short and not _has_clauses(tokens):
        return [" " * indent + flat]
    for split in (_by_clause, _by_list, _by_word, _by_bracket):
        lines = split(tokens, indent, width_chars)
        if lines:
            return lines
    first, *rest = flat.split("\n")
    return [" " * indent + first, *(" " * (indent + _INDENT) + line for line in rest)]


def _has_clauses(tokens: Sequence[_Token]) -> bool:
    """Tell whether a query stands here, which always has a line a clause."""
    return any(t.word == "SELECT" for t in tokens) and len(_clauses(tokens)) > 1


def _clauses(tokens: Sequence[_Token]) -> list[Sequence[_Token]]:
    """Split at the words that begin a clause, outside brackets."""
    starts = [0]
    has_query = any(t.word == "SELECT" for t, depth in _depths(tokens) if depth == 0)
    for i, (token, depth) in enumerate(_depths(tokens)):
        word, before = token.word, tokens[i - 1].word if i else ""
        if depth or not i or not word:
            continue
        is_clause = word in _CLAUSES and (has_query or word == "VALUES") and not (word == "FROM" and before == "DISTINCT")
        is_join = has_query and word in _JOINS and before not in _JOINS
        is_with = word == "WITH" and not has_query
        if is_clause or is_join or is_with:
            starts.append(i)
    return [tokens[a:b] for a, b in zip(starts, [*starts[1:], len(tokens)], strict=True)]


def _by_clause(tokens: Sequence[_Token], indent: int, width_chars: int) -> list[str]:
    clauses = _clauses(tokens)
    if len(clauses) < 2:
        return []
    return [line for clause in clauses for line in _layout(clause, indent, width_chars)]


def _by_list(tokens: Sequence[_Token], indent: int, width_chars: int) -> list[str]:
    """SELECT a, b: each item on a line below its words."""
    if tokens[0].word not in _LISTS:
        return []
    size = 2 if len(tokens) > 1 and tokens[1].word in ("BY", "DISTINCT") else 1
    items = _split(tokens[size:], ",")
    if len(items) < 2:
        return []
    return [" " * indent + _flat(tokens[:size]), *_items(items, indent + _INDENT, width_chars)]


def _items(items: list[Sequence[_Token]], indent: int, width_chars: int) -> list[str]:
    """Lay out items, each but the last with its comma; a comment behind a comma is of the item before it."""
    lines: list[str] = []
    for i, item in enumerate(items):
        body = item
        while i and body and body[0].kind == "comment" and body[0].lines_before == 0 and len(body) > 1:
            lines[-1] += f" {body[0].text}"
            body = body[1:]
        found = _layout(body, indent, width_chars)
        if i < len(items) - 1:
            if body[-1].kind == "comment":
                found.append(" " * indent)
            found[-1] += ","
        lines += found
    return lines


def _by_word(tokens: Sequence[_Token], indent: int, width_chars: int) -> list[str]:
    """Conditions at AND and OR, CASE at WHEN and ELSE, each on a line of its own below the first."""
    for words in (("OR",), ("AND",), ("WHEN", "ELSE", "END")):
        starts = [0]
        is_between = False
        level = 0
        for i, (token, depth) in enumerate(_depths(tokens)):
            level += (token.word == "CASE") - (token.word == "END" and "END" not in words)
            if depth or (level and "WHEN" not in words):
                continue
            is_between = is_between or token.word == "BETWEEN"
            if token.word in words and i:
                if token.word == "AND" and is_between:
                    is_between = False
                else:
                    starts.append(i)
        if len(starts) > 1 and not (words[0] == "WHEN" and level > 1):
            parts = [tokens[a:b] for a, b in zip(starts, [*starts[1:], len(tokens)], strict=True)]
            head = _layout(parts[0], indent, width_chars)
            inner = (_layout(part, indent + (part[0].word != "END") * _INDENT, width_chars) for part in parts[1:])
            return head + [line for part in inner for line in part]
    return []


def _by_bracket(tokens: Sequence[_Token], indent: int, width_chars: int) -> list[str]:
    """Open the longest bracket: what is in it below, by commas."""
    depths = list(_depths(tokens))
    opens = [i for i, (t, depth) in enumerate(depths) if depth == 0 and t.text in _OPEN and _is_bracket(t)]
    pairs = [(i, next(j for j in range(i + 1, len(tokens)) if depths[j][1] == 0)) for i in opens]
    pairs = [(i, j) for i, j in pairs if j > i + 1]
    if not pairs:
        return []
    start, stop = max(pairs, key=lambda pair: len(_flat(tokens[pair[0] : pair[1]])))
    head, body, rest = tokens[: start + 1], tokens[start + 1 : stop], tokens[stop:]
    if "\n" in _flat(head):
        return []
    lines = [" " * indent + _flat(head), *_items(_split(body, ","), indent + _INDENT, width_chars)]
    return [*lines, *_layout(rest, indent, width_chars)]


def _split(tokens: Sequence[_Token], sign: str) -> list[Sequence[_Token]]:
    """Split at a sign outside brackets, which is left out."""
    cuts = [i for i, (t, depth) in enumerate(_depths(tokens)) if depth == 0 and t.text == sign and t.kind == "sign"]
    return [tokens[a:b] for a, b in zip([0, *(c + 1 for c in cuts)], [*cuts, len(tokens)], strict=True)]


def _depths(tokens: Sequence[_Token]) -> Iterator[tuple[_Token, int]]:
    """Yield each token with how many brackets are open around it; a bracket itself stands outside."""
    depth = 0
    for token in tokens:
        if token.text in _CLOSE and _is_bracket(token):
            depth = max(0, depth - 1)
        yield token, depth
        depth += token.text in _OPEN and _is_bracket(token)


def _is_bracket(token: _Token) -> bool:
    return token.kind == "sign" and (token.text not in ("<", ">") or token.is_type)


def _flat(tokens: Sequence[_Token]) -> str:
    """Write tokens on one line; a line only ends behind a comment that runs to its end."""
    parts: list[str] = []
    before: _Token | None = None
    for token in tokens:
        if before is not None:
            parts.append("\n" if before.text.startswith("--") and before.kind == "comment" else " " * _is_apart(before, token))
        parts.append(token.text)
        before = token
    return "".join(parts)


def _is_apart(before: _Token, token: _Token) -> bool:
    """Tell whether a blank stands between two tokens."""
    if token.kind == "comment" or before.kind == "comment":
        return True
    if token.text in (",", ")", "]", ".", ";", "->") or before.text in ("(", "[", ".", "->") or before.is_sign_of_number:
        return False
    if before.is_type and token.is_type and "<" in (before.text, token.text):
        return False
    if token.is_type and token.text == ">":
        return False
    if token.text == "[":
        return before.kind == "keyword" and not before.joins
    return not (token.text == "(" and before.joins)
