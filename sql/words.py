"""The words of the dialect: reserved ones, and how a terminal of the grammar is called in messages, and lists of names."""

from __future__ import annotations

from collections.abc import Sequence

# Cannot name a source, column or alias without quotes.
RESERVED = frozenset(
    [
        "AND",
        "AS",
        "BETWEEN",
        "BY",
        "CASE",
        "CAST",
        "CREATE",
        "CROSS",
        "DELETE",
        "DESCRIBE",
        "DISTINCT",
        "DROP",
        "ELSE",
        "END",
        "EXISTS",
        "FALSE",
        "FROM",
        "FULL",
        "GROUP",
        "HAVING",
        "IN",
        "INNER",
        "INSERT",
        "INTO",
        "IS",
        "JOIN",
        "LEFT",
        "LIKE",
        "LIMIT",
        "LIST",
        "NOT",
        "NULL",
        "ON",
        "OR",
        "OUTER",
        "PARTITION",
        "PRINT",
        "RIGHT",
        "SELECT",
        "STREAM",
        "TABLE",
        "THEN",
        "TO",
        "TRUE",
        "UNSET",
        "VALUES",
        "WHEN",
        "WHERE",
        "WINDOW",
        "WITH",
        "WITHIN",
    ]
)

# First words of statements: what a typo at the start of a statement is compared with.
STATEMENT_WORDS = (
    *("SELECT", "CREATE", "INSERT", "DROP", "SHOW", "LIST", "DESCRIBE", "EXPLAIN", "PRINT", "TERMINATE", "PAUSE", "RESUME"),
    *("SET", "UNSET", "DEFINE", "UNDEFINE", "ALTER", "ASSERT", "RUN"),
)

# Terminals whose name does not read as what one would write.
TERMINAL_TEXT = {
    "NAME": "a name",
    "QUOTED": "a quoted name",
    "DIGIT_NAME": "a name",
    "STRING": "a 'string'",
    "INTEGER_VALUE": "a whole number",
    "DECIMAL_VALUE": "a number",
    "FLOAT_VALUE": "a number",
    "LAMBDA_HEAD": "a lambda",
    "STRING_WORD": "STRING",
    "COMPARISON": "a comparison",
    "NOT_EQUAL": "<>",
    "EQUAL": "=",
    "LESSTHAN": "<",
    "MORETHAN": ">",
    "LPAR": "(",
    "RPAR": ")",
    "LSQB": "[",
    "RSQB": "]",
    "COMMA": ",",
    "DOT": ".",
    "PLUS": "+",
    "MINUS": "-",
    "STAR": "*",
    "SLASH": "/",
    "PERCENT": "%",
    "ARROW": "->",
    "BARS": "||",
    "ASSIGN": ":=",
    "$END": "the end of the statement",
}


def joined_names(names: Sequence[str], word: str) -> str:
    """Write names as a list that ends in a word.

    >>> joined_names(["A", "B", "C"], "and")
    'A, B and C'
    """
    return f" {word} ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
