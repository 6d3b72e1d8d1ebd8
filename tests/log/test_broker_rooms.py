"""Rules of the broker's inside that neither mypy nor import-linter can hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

BROKER = Path(__file__).parents[2] / "log" / "broker"


def _functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path in sorted(BROKER.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                yield f"{path.relative_to(BROKER)}:{node.lineno} {node.name}", node


def test_requests_have_their_type() -> None:
    untyped = [
        where
        for where, function in _functions()
        for argument in (*function.args.args, *function.args.kwonlyargs)
        if argument.arg == "request" and isinstance(argument.annotation, ast.Name) and argument.annotation.id == "Any"
    ]
    assert not untyped, "a request is of its message's class, or a MessageBase where it may be of any"
