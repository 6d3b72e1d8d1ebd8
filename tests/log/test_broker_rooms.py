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


def test_parts_of_messages_have_their_types() -> None:
    """Where messages are read and written nothing is `Any`, nor a collection of it, but what a `Reply` or a buffer may be."""
    untyped = [
        f"{where}({argument.arg})"
        for where, function in _functions()
        if where.startswith(
            ("apis/", "groups/apis/", "groups/streams/records", "groups/streams/topology", "share/", "transactions/apis/")
        )
        for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        if argument.arg not in ("records", "prepared", "outcome", "value") and _is_loose(argument.annotation)
    ]
    assert not untyped, "expected a class of log/protocol/messages.pyi, or Refusable where it may be of several"


def test_the_client_names_the_messages_that_it_reads() -> None:
    """Requests are `MessageBase` where any may be sent, answers and their parts have their classes."""
    client = BROKER.parent / "client"
    untyped = [
        f"{path.name}: {node.name}({argument.arg})"
        for path in (*sorted(client.glob("*.py")), BROKER.parent / "access.py", BROKER.parent / "own_rights.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        if argument.arg in ("request", "message", "response", "answer", "topic", "topics", "member", "acl", "resource")
        and _is_loose(argument.annotation)
    ]
    assert not untyped, "expected MessageBase, or a class of log/protocol/messages.pyi"


def _is_loose(annotation: ast.expr | None) -> bool:
    """Whether it is Any or a collection of Any; what a function that is handed over takes and returns is its own affair."""
    if isinstance(annotation, ast.Name):
        return annotation.id == "Any"
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.value, ast.Name) and annotation.value.id == "Callable":
        return False
    return annotation is not None and any(
        map(_is_loose, (each for each in ast.iter_child_nodes(annotation) if isinstance(each, ast.expr)))
    )


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
