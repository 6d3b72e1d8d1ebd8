"""Whether whatever one JSON Schema accepts is accepted by another, as far as rules can tell (the rules: `json_rules.py`).

Schemas may be recursive. A pair that is under way is taken for compatible; if that turns out wrong the whole is compared again
with what was found, until nothing new is. The number of steps is bounded: schemas can be written whose comparison would
never end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import re2

from logflume.log.registry.schemas import InvalidSchema
from logflume.log.registry.schemas.json_schema import JsonNode, JsonSchema
from logflume.log.registry.schemas.json_text import dump

from . import json_keywords as keywords
from .difference import Difference
from .json_keywords import Change
from .json_rules import COMPATIBLE, COMPATIBLE_IF_LENIENT, DESCRIPTIONS

MAX_STEPS = 200_000
_ABSENT: Any = object()


def differences(reader: JsonSchema, writer: JsonSchema, *, policy: str = "STRICT") -> list[Difference]:
    """Return why `reader` does not accept what `writer` accepts; [] when it does."""
    compatible = COMPATIBLE_IF_LENIENT if policy == "LENIENT" else COMPATIBLE
    found = []
    for rule, path in changes(reader, writer, policy=policy):
        if rule not in compatible:
            place = ("#/" + "/".join(path)).replace("{}", "{ }")
            template = DESCRIPTIONS.get(rule, "")
            found.append(
                Difference(rule, place, template.format(place=place.replace("{", "{{").replace("}", "}}")) if template else "")
            )
    return found


def changes(reader: JsonSchema, writer: JsonSchema, *, policy: str = "STRICT") -> list[Change]:
    """Return all differences from `writer` to `reader`, also those that do no harm."""
    compatible = COMPATIBLE_IF_LENIENT if policy == "LENIENT" else COMPATIBLE
    known: dict[tuple[int, int], list[Change]] = {}
    budget = _Budget(MAX_STEPS)
    while True:
        comparison = _Comparison(reader, writer, compatible, known, budget)
        found = comparison.compare(writer.root, reader.root)
        broken = comparison.broken()
        if not comparison.assumed or broken.keys() == known.keys():
            return found
        known = broken


class _Budget:
    """How much a comparison may still do, over all its passes: pairs looked at, and differences passed on."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def take(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise InvalidSchema(f"two JSON Schemas are compared in at most {MAX_STEPS} steps; these need more")


class _Comparison:
    """One pass. `old` nodes are the writer's, `new` ones the reader's."""

    def __init__(
        self,
        reader: JsonSchema,
        writer: JsonSchema,
        compatible: frozenset[str],
        known: Mapping[tuple[int, int], list[Change]],
        budget: _Budget,
    ) -> None:
        self.assumed = False
        self._old, self._new = writer.builder, reader.builder
        self._compatible = compatible
        self._known = known
        self._done: dict[tuple[int, int], list[Change]] = {}
        self._under_way: set[tuple[int, int]] = set()
        self._kept: list[JsonNode] = []
        self._budget = budget

    def broken(self) -> dict[tuple[int, int], list[Change]]:
        """Return the pairs that are not compatible."""
        return {pair: found for pair, found in self._done.items() if not self._is_fine(found)}

    def compare(self, old: JsonNode | None, new: JsonNode | None) -> list[Change]:
        if old is None or new is None:
            return [] if old is new else [("SCHEMA_ADDED" if old is None else "SCHEMA_REMOVED", ())]
        pair = (id(old), id(new))
        if pair in self._done:
            self._budget.take(1 + len(self._done[pair]))
            return self._done[pair]
        if pair in self._under_way:
            self.assumed = True
            return self._known.get(pair, [])
        self._budget.take(1)
        self._under_way.add(pair)
        found = list(dict.fromkeys(self._compare(old, new)))
        self._budget.take(len(found))
        self._under_way.discard(pair)
        self._kept += [old, new]  # a pair is known by its nodes' addresses, so they must not be given to others
        self._done[pair] = found
        return found

    def _is_fine(self, found: Iterable[Change]) -> bool:
        return all(rule in self._compatible for rule, _ in found)

    def _compare(self, old: JsonNode, new: JsonNode) -> list[Change]:
        shortcut = self._through_a_combination(old, new)
        if shortcut is not None:
            return shortcut
        if old.kind != new.kind:
            is_bytes = old.raw.get("connect.type") == "bytes" == new.raw.get("connect.type")
            return [] if old.kind == "false" or new.kind == "empty" or is_bytes else [("TYPE_CHANGED", ())]
        return [*keywords.notes(old, new), *self._by_kind(old, new)]

    def _by_kind(self, old: JsonNode, new: JsonNode) -> list[Change]:
        match old.kind:
            case "string":
                return [*keywords.limits(old, new), *keywords.pattern(old, new)]
            case "number":
                return [*keywords.limits(old, new), *keywords.multiple(old, new), *keywords.wholeness(old, new)]
            case "const":
                same = dump(old.raw["const"]) == dump(new.raw["const"])
                return [] if same else [("ENUM_ARRAY_CHANGED", ("const",))]
            case "enum":
                return keywords.enum(old, new)
            case "combined":
                return self._combined(old, new)
            case "not":
                inner = self.compare(self._new.inside(new, new.raw["not"]), self._old.inside(old, old.raw["not"]))
                return [("NOT_TYPE_NARROWED" if self._is_fine(inner) else "NOT_TYPE_EXTENDED", ("not",))]
            case "object":
                return self._object(old, new)
            case "array":
                return self._array(old, new)
            case "conditional":
                same = all(dump(old.raw.get(name)) == dump(new.raw.get(name)) for name in ("if", "then", "else"))
                return [] if same else [("TYPE_CHANGED", ())]
        return []

    def _through_a_combination(self, old: JsonNode, new: JsonNode) -> list[Change] | None:
        """Compare with one part of a combination, where one is enough; None when no part is."""
        if old.kind != "combined" and new.kind == "combined":
            is_single = len(new.parts) == 1
            if is_single or new.criterion in ("anyOf", "oneOf"):
                for part in new.parts:
                    found = self.compare(old, part)
                    if self._is_fine(found):
                        return found if is_single else [*found, ("SUM_TYPE_EXTENDED", ())]
        elif old.kind == "combined" and new.kind != "combined":
            is_single = len(old.parts) == 1
            if is_single or old.criterion == "allOf":
                for part in old.parts:
                    found = self.compare(part, new)
                    if self._is_fine(found):
                        return found if is_single else [*found, ("PRODUCT_TYPE_NARROWED", ())]
        return None

    def _combined(self, old: JsonNode, new: JsonNode) -> list[Change]:
        made = keywords.criteria(old, new)
        if "COMBINED_TYPE_CHANGED" in (rule for rule, _ in made):
            return made
        olds, news = _distinct(old.parts), _distinct(new.parts)
        if len(olds) < len(news):
            made.append(("PRODUCT_TYPE_EXTENDED" if new.criterion == "allOf" else "SUM_TYPE_EXTENDED", ()))
        elif len(olds) > len(news):
            made.append(("PRODUCT_TYPE_NARROWED" if old.criterion == "allOf" else "SUM_TYPE_NARROWED", ()))
        edges: dict[int, dict[int, list[Change]]] = {}
        for n, each in enumerate(olds):
            for m, other in enumerate(news):
                found = self.compare(each, other)
                if self._is_fine(found):
                    edges.setdefault(n, {})[m] = found
        matched = _matching(edges)
        for m, n in matched.items():
            made += _below((old.criterion, str(n)), edges[n][m])
        if len(matched) < min(len(olds), len(news)):
            made.append(("COMBINED_TYPE_SUBSCHEMAS_CHANGED", ()))
        return made

    # objects

    def _object(self, old: JsonNode, new: JsonNode) -> list[Change]:
        return [
            *_below(("properties",), self._properties(old, new)),
            *_below(("required",), keywords.required(old, new)),
            *keywords.limits(old, new),
            *_below(("additionalProperties",), self._additional(old, new, "additionalProperties", "ADDITIONAL_PROPERTIES")),
            *_below(("unevaluatedProperties",), self._unevaluated(old, new, "unevaluatedProperties", "UNEVALUATED_PROPERTIES")),
            *_below(("dependencies",), self._dependencies(old, new)),
        ]

    def _properties(self, old: JsonNode, new: JsonNode) -> list[Change]:
        olds, news = keywords.named(old, "properties"), keywords.named(new, "properties")
        made: list[Change] = []
        for name in dict.fromkeys((*olds, *news)):
            if name not in news:
                found = self._removed(self._old.inside(old, olds[name]), self._partial(self._new, new, name), new, "PROPERTY")
            elif name not in olds:
                found = self._added_property(old, new, name)
            else:
                found = self.compare(self._old.inside(old, olds[name]), self._new.inside(new, news[name]))
            made += _below((name,), found)
        return made

    def _removed(self, gone: JsonNode, partial: JsonNode | None, new: JsonNode, what: str) -> list[Change]:
        """Judge what only the old schema names: may the new one still meet it?"""
        if keywords.is_open(new):
            return [(f"{what}_REMOVED_FROM_OPEN_CONTENT_MODEL", ())]
        if partial is not None:
            found = self.compare(gone, partial)
            how = "IS_COVERED" if self._is_fine(found) else "NOT_COVERED"
            return [*found, (f"{what}_REMOVED_{how}_BY_PARTIALLY_OPEN_CONTENT_MODEL", ())]
        if gone.kind == "false":
            return [(f"{what}_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL", ())]
        return [(f"{what}_REMOVED_FROM_CLOSED_CONTENT_MODEL", ())]

    def _added_property(self, old: JsonNode, new: JsonNode, name: str) -> list[Change]:
        raw = keywords.named(new, "properties")[name]
        added = self._new.inside(new, raw)
        has_default = "default" in added.raw or (isinstance(raw, dict) and "default" in raw)
        need = "OPTIONAL" if name not in keywords.names(new, "required") else "REQUIRED"
        with_default = "_WITH_DEFAULT" if need == "REQUIRED" and has_default else ""
        if keywords.is_open(old):
            if added.kind == "empty":
                return [("PROPERTY_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL", ())]
            return [(f"{need}_PROPERTY{with_default}_ADDED_TO_OPEN_CONTENT_MODEL", ())]
        made: list[Change] = []
        partial = self._partial(self._old, old, name)
        if partial is not None:
            found = self.compare(partial, added)
            how = "IS_COVERED" if self._is_fine(found) else "NOT_COVERED"
            made = [*found, (f"PROPERTY_ADDED_{how}_BY_PARTIALLY_OPEN_CONTENT_MODEL", ())]
        return [*made, (f"{need}_PROPERTY{with_default}_ADDED_TO_UNOPEN_CONTENT_MODEL", ())]

    def _partial(self, builder: Any, node: JsonNode, name: str) -> JsonNode | None:
        """Return the schema that a partly open object has for a property that it does not name."""
        for pattern, raw in keywords.named(node, "patternProperties").items():
            if _matches(pattern, name):
                found: JsonNode = builder.inside(node, raw)
                return found
        return self._rest(builder, node, "additionalProperties", "unevaluatedProperties")

    def _rest(self, builder: Any, node: JsonNode, additional: str, unevaluated: str) -> JsonNode | None:
        raw = node.raw.get(additional, _ABSENT)
        if isinstance(raw, dict):
            found: JsonNode = builder.inside(node, raw)
            return found
        raw = node.raw.get(unevaluated, _ABSENT)
        if isinstance(raw, dict) and raw:
            found = builder.inside(node, raw)
            return found
        return None

    def _additional(self, old: JsonNode, new: JsonNode, keyword: str, rule: str) -> list[Change]:
        was, is_ = old.raw.get(keyword, True), new.raw.get(keyword, True)
        if (was is False) != (is_ is False):
            return [(f"{rule}_ADDED" if was is False else f"{rule}_REMOVED", ())]
        if isinstance(was, bool) and isinstance(is_, bool):
            return []
        if isinstance(was, bool):
            return [(f"{rule}_NARROWED", ())]
        if isinstance(is_, bool):
            return [(f"{rule}_EXTENDED", ())]
        return self.compare(self._old.inside(old, was), self._new.inside(new, is_))

    def _unevaluated(self, old: JsonNode, new: JsonNode, keyword: str, rule: str) -> list[Change]:
        was, is_ = old.raw.get(keyword, _ABSENT), new.raw.get(keyword, _ABSENT)
        if was is _ABSENT and is_ is _ABSENT:
            return []
        if was is _ABSENT or is_ is _ABSENT:
            present, absent = (is_, "REMOVED NARROWED") if was is _ABSENT else (was, "ADDED EXTENDED")
            closed, partly = absent.split()
            return [(f"{rule}_{closed if present is False else partly}", ())]
        if (was is False) != (is_ is False):
            return [(f"{rule}_ADDED" if was is False else f"{rule}_REMOVED", ())]
        old_open, new_open = was is True or was == {}, is_ is True or is_ == {}
        if old_open != new_open:
            return [(f"{rule}_NARROWED" if old_open else f"{rule}_EXTENDED", ())]
        return self.compare(self._old.inside(old, was), self._new.inside(new, is_))

    def _dependencies(self, old: JsonNode, new: JsonNode) -> list[Change]:
        made: list[Change] = []
        olds, news = _required_with(old), _required_with(new)
        for name in dict.fromkeys((*olds, *news)):
            rule = keywords.set_change(olds.get(name), news.get(name))
            if rule:
                made.append((f"DEPENDENCY_ARRAY_{rule}", (name,)))
        old_schemas, new_schemas = _schemas_with(old), _schemas_with(new)
        for name in dict.fromkeys((*old_schemas, *new_schemas)):
            if name not in new_schemas:
                made.append(("DEPENDENCY_SCHEMA_REMOVED", (name,)))
            elif name not in old_schemas:
                made.append(("DEPENDENCY_SCHEMA_ADDED", (name,)))
            else:
                found = self.compare(self._old.inside(old, old_schemas[name]), self._new.inside(new, new_schemas[name]))
                made += _below((name,), found)
        return made

    # arrays

    def _array(self, old: JsonNode, new: JsonNode) -> list[Change]:
        old_all, new_all = _all_items(old), _all_items(new)
        items = self.compare(
            None if old_all is _ABSENT else self._old.inside(old, old_all),
            None if new_all is _ABSENT else self._new.inside(new, new_all),
        )
        return [
            *_below(("items",), items),
            *self._items(old, new),
            *_below(("additionalItems",), self._additional(_tail(old), _tail(new), "additionalItems", "ADDITIONAL_ITEMS")),
            *_below(("unevaluatedItems",), self._unevaluated(old, new, "unevaluatedItems", "UNEVALUATED_ITEMS")),
            *keywords.limits(old, new),
            *keywords.uniqueness(old, new),
        ]

    def _items(self, old: JsonNode, new: JsonNode) -> list[Change]:
        olds, news = _item_list(old), _item_list(new)
        made: list[Change] = []
        for n in range(max(len(olds), len(news))):
            place = (f"items/{n}",)
            if n >= len(news):
                partial = self._rest(self._new, _tail(new), "additionalItems", "unevaluatedItems")
                made += _below(place, self._removed(self._old.inside(old, olds[n]), partial, _tail(new), "ITEM"))
            elif n >= len(olds):
                made += _below(place, self._added_item(_tail(old), self._new.inside(new, news[n])))
            else:
                made += _below(place, self.compare(self._old.inside(old, olds[n]), self._new.inside(new, news[n])))
        return made

    def _added_item(self, old: JsonNode, added: JsonNode) -> list[Change]:
        if keywords.is_open(old):
            return [(f"ITEM{'_WITH_EMPTY_SCHEMA' if added.kind == 'empty' else ''}_ADDED_TO_OPEN_CONTENT_MODEL", ())]
        partial = self._rest(self._old, old, "additionalItems", "unevaluatedItems")
        if partial is None:
            return [("ITEM_ADDED_TO_CLOSED_CONTENT_MODEL", ())]
        found = self.compare(partial, added)
        how = "IS_COVERED" if self._is_fine(found) else "NOT_COVERED"
        return [*found, (f"ITEM_ADDED_{how}_BY_PARTIALLY_OPEN_CONTENT_MODEL", ())]


def _below(path: tuple[str, ...], found: Iterable[Change]) -> list[Change]:
    return [(rule, (*path, *rest)) for rule, rest in found]


def _distinct(parts: Iterable[JsonNode]) -> list[JsonNode]:
    by_text = {(each.kind, each.criterion, each.is_integer, dump(each.raw)): each for each in parts}
    return list(by_text.values())


def _matching(edges: Mapping[int, Mapping[int, list[Change]]]) -> dict[int, int]:
    """Return a largest matching of a bipartite graph, right to left (augmenting paths)."""
    taken: dict[int, int] = {}

    def augment(n: int, seen: set[int]) -> bool:
        for m in edges.get(n, ()):
            if m not in seen:
                seen.add(m)
                if m not in taken or augment(taken[m], seen):
                    taken[m] = n
                    return True
        return False

    for n in edges:
        augment(n, set())
    return taken


def _matches(pattern: str, name: str) -> bool:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.search(pattern, name, options) is not None
    except re2.error:
        return False


def _required_with(node: JsonNode) -> dict[str, set[str]]:
    found = {name: set(each) for name, each in keywords.named(node, "dependencies").items() if isinstance(each, list)}
    return {**found, **{name: set(each) for name, each in keywords.named(node, "dependentRequired").items()}}


def _schemas_with(node: JsonNode) -> dict[str, Any]:
    found = {name: each for name, each in keywords.named(node, "dependencies").items() if isinstance(each, dict | bool)}
    return {**found, **keywords.named(node, "dependentSchemas")}


def _all_items(node: JsonNode) -> Any:
    """Return the schema of all items of an array that has none by place."""
    found = node.raw.get("items", _ABSENT)
    return _ABSENT if isinstance(found, list) or "prefixItems" in node.raw else found


def _item_list(node: JsonNode) -> list[Any]:
    return keywords.names(node, "prefixItems") if "prefixItems" in node.raw else keywords.names(node, "items")


def _tail(node: JsonNode) -> JsonNode:
    """Return an array with what it says of further items as `additionalItems`, the way of the older drafts."""
    if "prefixItems" not in node.raw:
        return node
    raw = {name: value for name, value in node.raw.items() if name not in ("items", "additionalItems")}
    if "items" in node.raw:
        raw["additionalItems"] = node.raw["items"]
    return JsonNode(node.kind, raw, node.resolver)
