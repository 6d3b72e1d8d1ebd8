"""Paths of the interface to handlers: a tree of path segments, matched before they are decoded.

Segments are split at `/` and only then decoded, so that a subject may hold a `/` (sent as `%2F`). A path under `/contexts/NAME/`
means the same without it, inside that context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote

from .errors import Fault, RegistryError
from .subjects import DEFAULT_CONTEXT, Subject, parse_subject
from .users import EVERYTHING, Rights

_PLACE = "*"


@dataclass(frozen=True, slots=True)
class Request:
    """One request: `arguments` are the decoded segments where the path has a place for them, `kind` is its first segment."""

    method: str
    target: str
    kind: str
    arguments: Sequence[str]
    query: dict[str, list[str]]
    body: bytes
    is_forwarded: bool = False
    rights: Rights = EVERYTHING

    @property
    def is_question(self) -> bool:
        """Whether it changes nothing, though it may be a POST: which version is this, and would it be compatible."""
        return self.method == "POST" and (
            self.kind == "compatibility"
            or (
                self.kind == "subjects"
                and len(self.arguments) == 1
                and not self.target.partition("?")[0].rstrip("/").endswith("/versions")
            )
        )

    def flag(self, name: str) -> bool:
        """Return whether a parameter is `true`."""
        found = self.query.get(name)
        return found is not None and found[-1].lower() == "true"

    def text(self, name: str, default: str = "") -> str:
        found = self.query.get(name)
        return default if found is None else found[-1]

    def number(self, name: str, default: int) -> int:
        found = self.query.get(name)
        if found is None:
            return default
        try:
            return int(found[-1][:20])
        except ValueError:
            raise RegistryError(Fault.INVALID_VALUE, f"expected a number as {name}, found {found[-1][:50]!r}") from None


Handler = Callable[[Any, Request], Any]


@dataclass(slots=True)
class _Node:
    children: dict[str, _Node] = field(default_factory=dict)
    handlers: dict[str, Handler] = field(default_factory=dict)


class Router:
    """Routes are added once, by pattern: `/subjects/*/versions`."""

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, method: str, pattern: str, handler: Handler) -> None:
        node = self._root
        for part in pattern.strip("/").split("/"):
            node = node.children.setdefault(part, _Node()) if part else node
        node.handlers[method] = handler

    def find(self, method: str, raw_path: bytes, query: bytes, body: bytes, *, is_forwarded: bool) -> tuple[Handler, Request]:
        """Return the handler and the request. Raises RegistryError: no such path, or not with this method."""
        path = raw_path.decode("latin-1")
        parts = [part for part in path.strip("/").split("/") if part]
        context = DEFAULT_CONTEXT
        if len(parts) > 2 and parts[0] == "contexts":
            context = parse_subject(_context_prefix(unquote(parts[1]))).context
            parts = parts[2:]
        node, arguments = self._root, []
        for part in parts:
            child = node.children.get(part)
            if child is None:
                child = node.children.get(_PLACE)
                arguments.append(unquote(part))
            if child is None:
                raise RegistryError(Fault.PATH_NOT_FOUND, path[:200])
            node = child
        handler = node.handlers.get(method)
        if handler is None:
            raise RegistryError(Fault.METHOD_NOT_ALLOWED if node.handlers else Fault.PATH_NOT_FOUND, path[:200])
        found = parse_qs(query.decode("latin-1"), keep_blank_values=True, max_num_fields=100) if query else {}
        if context != DEFAULT_CONTEXT:
            arguments, found = _inside(context, parts, arguments, found)
        target = path + (f"?{query.decode('latin-1')}" if query else "")
        return handler, Request(method, target, parts[0] if parts else "", arguments, found, body, is_forwarded)


def _context_prefix(name: str) -> str:
    """Return a context's name as the prefix of a subject.

    >>> _context_prefix(".eu"), _context_prefix(":.eu:"), _context_prefix("eu")
    (':.eu:', ':.eu:', ':.eu:')
    """
    bare = name.strip(":")
    return f":{bare if bare.startswith('.') else '.' + bare}:"


def _inside(
    context: str, parts: list[str], arguments: list[str], query: dict[str, list[str]]
) -> tuple[list[str], dict[str, list[str]]]:
    """Return arguments and query as they are meant inside a context: what names a subject gets its prefix."""

    def within(text: str) -> str:
        found = parse_subject(text)
        return text if found.context != DEFAULT_CONTEXT else str(Subject(context, found.name))

    if parts[0] in ("subjects", "config", "mode"):
        if arguments:
            arguments = [within(arguments[0]), *arguments[1:]]
        elif parts[0] == "subjects":
            query = {**query, "subjectPrefix": [within(query.get("subjectPrefix", [""])[-1])]}
        else:
            arguments = [within("")]
    elif parts[0] == "compatibility" and arguments:
        arguments = [within(arguments[0]), *arguments[1:]]
    elif parts[0] == "schemas":
        name = "subject" if len(parts) > 1 else "subjectPrefix"
        query = {**query, name: [within(query.get(name, [""])[-1])]}
    return arguments, query
