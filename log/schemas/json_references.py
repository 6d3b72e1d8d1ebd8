"""A JSON Schema and those that it refers to as one, in which each `$ref` is a path from its root: `#/$defs/place`.

A schema is referred to by the name that the registry has for it, or by its `$id`, both read beside the `$id` of the one that
refers to it (RFC 3986); a part of a schema by its path, its own `$id` or its `$anchor`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urldefrag, urljoin

_REFERRED = "referred to"


def as_one(schema: Any, others: Mapping[str, Any]) -> Any:
    """Return a schema with others in it, which are told by name. What it refers to and nobody has stays as it is.

    Raises:
        ValueError: it refers to what is no URI.
    """
    if not isinstance(schema, dict):
        return schema
    base = str(schema.get("$id", ""))
    documents: dict[str, tuple[str, Any]] = {"#": (base, schema)}
    for name, other in others.items():
        documents[f"#/{_REFERRED}/{_step(name)}"] = urljoin(base, name), other
    places: dict[str, str] = {}
    for root, (uri, document) in documents.items():
        places |= {_within(uri, named): place for named, place in _named(document, root)} | {uri: root}
    moved = {root: _moved(document, _base(document, uri), places) for root, (uri, document) in documents.items()}
    inner = {name: moved[f"#/{_REFERRED}/{_step(name)}"] for name in others}
    return {**moved["#"], _REFERRED: inner} if inner else moved["#"]


def _step(name: str) -> str:
    """Return a name as a step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _base(document: Any, uri: str) -> str:
    return urljoin(uri, str(document.get("$id", ""))) if isinstance(document, dict) else uri


def _within(uri: str, named: str) -> str:
    return urljoin(uri, named) if urldefrag(named).url else f"{urldefrag(uri).url}{named}"


def _named(schema: Any, place: str) -> Iterator[tuple[str, str]]:
    """Give what a part of a schema is called, and its place: by `$id`, or by `$anchor` as `#anchor`."""
    if isinstance(schema, list):
        for i, each in enumerate(schema):
            yield from _named(each, f"{place}/{i}")
    elif isinstance(schema, dict):
        if isinstance(schema.get("$id"), str):
            yield schema["$id"], place
        if isinstance(schema.get("$anchor"), str):
            yield f"#{schema['$anchor']}", place
        for name, each in schema.items():
            yield from _named(each, f"{place}/{_step(name)}")


def _moved(schema: Any, base: str, places: Mapping[str, str]) -> Any:
    if isinstance(schema, list):
        return [_moved(each, base, places) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {name: _moved(each, base, places) for name, each in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str):
        uri = _within(base, reference)
        document, fragment = urldefrag(uri)
        if uri in places:
            moved["$ref"] = places[uri]
        elif document in places and fragment[:1] in ("", "/"):
            moved["$ref"] = places[document] + fragment
    return moved
