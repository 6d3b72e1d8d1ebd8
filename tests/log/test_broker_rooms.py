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


def test_the_metadata_change_through_one_door() -> None:
    """Only `ClusterState` applies records; nobody puts anything into what it holds (mypy refuses it: they are mappings)."""
    doors, others = [], []
    for path in sorted([*BROKER.rglob("*.py"), *(BROKER.parent / "server").rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                doors += [path.name for name in node.names if name.name == "applied"]
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
            for target in targets:
                holder = target.value if isinstance(target, ast.Subscript | ast.Attribute) else None
                if isinstance(holder, ast.Attribute) and holder.attr in ("cluster", "_cluster"):
                    others.append(f"{path}:{node.lineno}")
    assert doors == ["cluster.py"]
    assert not others
