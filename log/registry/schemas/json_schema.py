"""JSON Schema (drafts 4 to 2020-12) as nodes: each subschema has one kind, whatever keywords spell it.

What says several things at once (a type and an enum, two types) is a combination of nodes that say one each, so that comparing
needs no cases for spellings. `$ref` is followed by the `referencing` library with the rules of the schema's own draft; nothing is
fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jsonschema.exceptions
import jsonschema.validators
import referencing
import referencing.exceptions
import referencing.jsonschema
from jsonschema import FormatChecker

from . import json_text
from .parsed import InvalidSchema, Limits, Resolved

_DEFAULT_DRAFT = jsonschema.validators.Draft7Validator
_UNKNOWN_DRAFT: Any = object()
_BASE = "urn:logflume:schema"
_NO_FORMATS = FormatChecker(formats=())
_MAX_REF_CHAIN = 64

_SAID_BY = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": (
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains"),
        *("minContains", "maxContains", "unevaluatedItems"),
    ),
    "object": (
        *("properties", "required", "minProperties", "maxProperties", "dependencies", "dependentRequired"),
        *("dependentSchemas", "patternProperties", "additionalProperties", "propertyNames", "unevaluatedProperties"),
    ),
}
"""Keywords that speak of values of one type, and so tell the type when it is not named."""
_CRITERIA = ("allOf", "anyOf", "oneOf")
_ONE_SCHEMA = (
    *("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"),
    *("unevaluatedItems", "unevaluatedProperties"),
)
_MANY_SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED_SCHEMAS = ("properties", "patternProperties", "definitions", "$defs", "dependencies", "dependentSchemas")


@dataclass(slots=True, eq=False)
class JsonNode:
    """One subschema. `raw` holds its keywords; `parts` the nodes of a combination, whose `criterion` is allOf, anyOf or oneOf."""

    kind: str
    raw: dict[str, Any]
    resolver: Any
    criterion: str = ""
    parts: tuple[JsonNode, ...] = ()
    is_integer: bool = False


@dataclass(slots=True, eq=False)
class JsonSchema:
    """A document, with what its references resolve in."""

    document: Any
    root: JsonNode
    builder: Builder

    def field_names(self) -> Iterable[str]:
        named = self.document.get("properties") if isinstance(self.document, dict) else None
        return list(named) if isinstance(named, dict) else []


def parse(text: str, resolved: Sequence[Resolved], *, limits: Limits) -> JsonSchema:
    """Return a schema's nodes. Raises InvalidSchema: no schema of its draft, or a reference that leads nowhere."""
    document = json_text.load(text, what="a JSON Schema")
    _check_shape(document, limits)
    draft = _draft(document)
    try:
        draft.check_schema(document, format_checker=_NO_FORMATS)
    except jsonschema.exceptions.SchemaError as error:
        place = "/".join(map(str, error.absolute_path))
        raise InvalidSchema(f"{error.message[:500]} at #/{place}") from error
    registry: Any = referencing.Registry()
    for each in resolved:
        found = json_text.load(each.text, what=f"the JSON Schema referred to as {each.name!r}")
        _check_shape(found, limits)
        resource = _resource(found, referencing.jsonschema.specification_with(_draft(found).META_SCHEMA["$schema"]))
        names = {each.name, str(found.get("$id") or found.get("id") or each.name) if isinstance(found, dict) else each.name}
        registry = registry.with_resources((name, resource) for name in names)
    specification = referencing.jsonschema.specification_with(draft.META_SCHEMA["$schema"])
    resource = _resource(document, specification)
    base = resource.id() or _BASE
    registry = registry.with_resource(base, resource)
    builder = Builder(registry, specification, frozenset(each.name for each in resolved), limits)
    try:
        resolver = registry.resolver(base)
        builder.check_references(document, resolver)
        return JsonSchema(document, builder.node(document, resolver), builder)
    except (referencing.exceptions.Unresolvable, referencing.exceptions.NoSuchAnchor) as error:
        raise InvalidSchema(f"Unresolved $ref {getattr(error, 'ref', error)!r}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidSchema(f"a reference or $id cannot be read: {error}") from error


def _draft(document: Any) -> Any:
    named = document.get("$schema") if isinstance(document, dict) else None
    if named is None:
        return _DEFAULT_DRAFT
    if not isinstance(named, str):
        raise InvalidSchema(f"expected a text as $schema, found {named!r}")
    found: Any = jsonschema.validators.validator_for(document, default=_UNKNOWN_DRAFT)
    if found is _UNKNOWN_DRAFT:
        raise InvalidSchema(f"unknown $schema {named[:200]!r}; expected draft-04, -06, -07, 2019-09 or 2020-12")
    return found


def _resource(document: Any, specification: Any) -> Any:
    return specification.create_resource(document)


def _check_shape(document: Any, limits: Limits) -> None:
    """Refuse a document that is too deep or too big to be walked, before anybody walks it."""
    if not isinstance(document, dict | bool):
        raise InvalidSchema(f"expected a JSON Schema to be an object, true or false, found {json_text.dump(document)[:100]}")
    level, nodes = [document], 0
    for _ in range(2 * limits.depth):
        level = [child for each in level for child in _children(each)]
        nodes += len(level)
        if nodes > limits.nodes:
            raise InvalidSchema(f"a JSON Schema has at most {limits.nodes} parts")
        if not level:
            return
    raise InvalidSchema(f"a JSON Schema is nested at most {2 * limits.depth} deep")


def _children(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


@dataclass(slots=True, eq=False)
class Builder:
    """Makes nodes of the subschemas of one document, each once."""

    registry: Any
    specification: Any
    names: frozenset[str]
    limits: Limits
    _made: dict[int, tuple[Any, JsonNode]] = field(default_factory=dict)

    def node(self, value: Any, resolver: Any) -> JsonNode:
        """Return the node of a subschema, references followed."""
        value, resolver = self._follow(value, resolver)
        known = self._made.get(id(value))
        if known is not None and isinstance(value, dict):
            return known[1]
        made = self._make(value, resolver)
        if isinstance(value, dict):
            self._made[id(value)] = (value, made)
        return made

    def inside(self, parent: JsonNode, value: Any) -> JsonNode:
        """Return the node of a keyword's value in another node."""
        return self.node(value, self._within(parent.resolver, value))

    def check_references(self, value: Any, resolver: Any) -> None:
        """Look every reference up. Raises what the library raises for one that leads nowhere."""
        for inner, its in self._subschemas(value, resolver):
            if isinstance(inner, dict) and isinstance(inner.get("$ref"), str):
                self._lookup(inner["$ref"], its)

    def _subschemas(self, value: Any, resolver: Any) -> Iterator[tuple[Any, Any]]:
        yield value, resolver
        if not isinstance(value, dict):
            return
        within = [value[name] for name in _ONE_SCHEMA if isinstance(value.get(name), dict | bool)]
        within += [each for name in _MANY_SCHEMAS if isinstance(value.get(name), list) for each in value[name]]
        within += [each for name in _NAMED_SCHEMAS if isinstance(value.get(name), dict) for each in value[name].values()]
        for each in within:
            yield from self._subschemas(each, self._within(resolver, each))

    def _within(self, resolver: Any, value: Any) -> Any:
        return resolver.in_subresource(_resource(value, self.specification)) if isinstance(value, dict) else resolver

    def _lookup(self, ref: str, resolver: Any) -> tuple[Any, Any]:
        """Return what a reference names: as it is written if that is a known name, else relative to where it stands."""
        name = ref.partition("#")[0]
        found = None
        if name in self.names:
            try:
                found = resolver.lookup(ref)
            except referencing.exceptions.Unresolvable:
                found = self.registry.resolver(name).lookup(ref[len(name) :])
        else:
            found = resolver.lookup(ref)
        return found.contents, found.resolver

    def _follow(self, value: Any, resolver: Any) -> tuple[Any, Any]:
        for _ in range(_MAX_REF_CHAIN):
            if not isinstance(value, dict) or not isinstance(value.get("$ref"), str) or self._is_beside(value):
                return value, resolver
            value, resolver = self._lookup(value["$ref"], resolver)
        raise InvalidSchema(f"a $ref leads over at most {_MAX_REF_CHAIN} others to a schema")

    def _is_beside(self, value: dict[str, Any]) -> bool:
        """Whether a reference stands beside keywords that count too, as they do since 2019-09."""
        if self.specification.name in ("draft-04", "draft-06", "draft-07", "draft-03"):
            return False
        counting = {"type", "enum", "const", "not", "if", *_CRITERIA, *(name for names in _SAID_BY.values() for name in names)}
        return not counting.isdisjoint(value)

    def _make(self, value: Any, resolver: Any) -> JsonNode:
        if not isinstance(value, dict):
            return JsonNode("false" if value is False else "empty", {}, resolver)
        parts = list(self._said(value, resolver))
        if not parts:
            return JsonNode("empty", value, resolver)
        if len(parts) == 1:
            return parts[0]
        return JsonNode("combined", value, resolver, "allOf", tuple(parts))

    def _said(self, value: dict[str, Any], resolver: Any) -> Iterator[JsonNode]:
        """Give a node for each thing that a subschema says."""
        if isinstance(value.get("$ref"), str):
            yield self.node({"$ref": value["$ref"]}, resolver)
        if "enum" in value:
            yield JsonNode("enum", value, resolver)
        if "const" in value:
            yield JsonNode("const", value, resolver)
        for criterion in _CRITERIA:
            if isinstance(value.get(criterion), list):
                parts = tuple(self.node(each, self._within(resolver, each)) for each in value[criterion])
                yield JsonNode("combined", value, resolver, criterion, parts)
        if "not" in value:
            yield JsonNode("not", value, resolver)
        if "if" in value:
            yield JsonNode("conditional", value, resolver)
        named = value.get("type")
        if isinstance(named, list):
            parts = tuple(self._typed(each, value, resolver) for each in named)
            yield JsonNode("combined", value, resolver, "anyOf", parts)
        elif isinstance(named, str):
            yield self._typed(named, value, resolver)
        else:
            for kind, names in _SAID_BY.items():
                if any(name in value for name in names):
                    yield JsonNode(kind, value, resolver)

    def _typed(self, name: str, value: dict[str, Any], resolver: Any) -> JsonNode:
        if name == "integer":
            return JsonNode("number", value, resolver, is_integer=True)
        return JsonNode(name, value, resolver)
