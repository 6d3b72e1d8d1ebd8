"""What the keywords of one node of a JSON Schema, without those below it, say of a change."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from logflume.log.registry.schemas.json_schema import JsonNode
from logflume.log.registry.schemas.json_text import dump

Change = tuple[str, tuple[str, ...]]
"""A rule and the path, relative to the pair that was compared."""
_LIMITS = {
    "string": (("maxLength", "MAX_LENGTH"), ("minLength", "MIN_LENGTH")),
    "number": (
        *(("maximum", "MAXIMUM"), ("minimum", "MINIMUM")),
        *(("exclusiveMaximum", "EXCLUSIVE_MAXIMUM"), ("exclusiveMinimum", "EXCLUSIVE_MINIMUM")),
    ),
    "array": (
        *(("maxItems", "MAX_ITEMS"), ("minItems", "MIN_ITEMS")),
        *(("maxContains", "MAX_CONTAINS"), ("minContains", "MIN_CONTAINS")),
    ),
    "object": (("maxProperties", "MAX_PROPERTIES"), ("minProperties", "MIN_PROPERTIES")),
}
_NOTES = (("title", "TITLE_CHANGED"), ("description", "DESCRIPTION_CHANGED"), ("default", "DEFAULT_CHANGED"))


def notes(old: JsonNode, new: JsonNode) -> list[Change]:
    """Compare what only tells a reader: id, title, description, default."""
    made: list[Change] = []
    if (old.raw.get("$id") or old.raw.get("id")) != (new.raw.get("$id") or new.raw.get("id")):
        made.append(("ID_CHANGED", ()))
    made += [(rule, ()) for name, rule in _NOTES if dump(old.raw.get(name)) != dump(new.raw.get(name))]
    return made


def _number(raw: Mapping[str, Any], name: str) -> Decimal | None:
    found = raw.get(name)
    if found is True and name.startswith("exclusive"):  # draft 4: whether the other limit is exclusive
        found = raw.get(name.removeprefix("exclusive").lower())
    return None if found is None or isinstance(found, bool) or not isinstance(found, int | float) else Decimal(str(found))


def limits(old: JsonNode, new: JsonNode) -> list[Change]:
    """Compare lengths, sizes and bounds."""
    made: list[Change] = []
    for name, rule in _LIMITS[old.kind]:
        was, is_ = _number(old.raw, name), _number(new.raw, name)
        if was is None and is_ is None:
            continue
        if was is None:
            made.append((f"{rule}_ADDED", (name,)))
        elif is_ is None:
            made.append((f"{rule}_REMOVED", (name,)))
        elif was != is_:
            made.append((f"{rule}_INCREASED" if was < is_ else f"{rule}_DECREASED", (name,)))
    return made


def pattern(old: JsonNode, new: JsonNode) -> list[Change]:
    """Compare what strings must match."""
    was, is_ = old.raw.get("pattern"), new.raw.get("pattern")
    if was == is_:
        return []
    how = "ADDED" if was is None else "REMOVED" if is_ is None else "CHANGED"
    return [(f"PATTERN_{how}", ("pattern",))]


def multiple(old: JsonNode, new: JsonNode) -> list[Change]:
    """Compare what numbers must be multiples of."""
    was, is_ = _number(old.raw, "multipleOf"), _number(new.raw, "multipleOf")
    if was == is_:
        return []
    if was is None:
        how = "ADDED"
    elif is_ is None:
        how = "REMOVED"
    elif _divides(was, is_):
        how = "EXPANDED"
    elif _divides(is_, was):
        how = "REDUCED"
    else:
        how = "CHANGED"
    return [(f"MULTIPLE_OF_{how}", ("multipleOf",))]


def _divides(part: Decimal, whole: Decimal) -> bool:
    """Whether a number is known to be a multiple of another; not beyond the digits that are counted with."""
    try:
        return part != 0 and whole % part == 0
    except InvalidOperation:
        return False


def wholeness(old: JsonNode, new: JsonNode) -> list[Change]:
    """Compare whether numbers are whole."""
    if old.is_integer == new.is_integer:
        return []
    return [("TYPE_EXTENDED" if old.is_integer else "TYPE_NARROWED", ())]


def enum(old: JsonNode, new: JsonNode) -> list[Change]:
    """Compare the values that are allowed."""
    how = set_change({dump(each) for each in old.raw["enum"]}, {dump(each) for each in new.raw["enum"]})
    return [(f"ENUM_ARRAY_{how}", ("enum",))] if how else []


def set_change(old: set[str] | None, new: set[str] | None) -> str:
    """Name how a set of names changed, "" if it did not."""
    if old == new:
        return ""
    if old is None or new is None:
        return "ADDED" if old is None else "REMOVED"
    return "EXTENDED" if new > old else "NARROWED" if old > new else "CHANGED"


def criteria(old: JsonNode, new: JsonNode) -> list[Change]:
    """Compare how many of the combined schemas must hold."""
    if old.criterion == new.criterion:
        return []
    old_single, new_single = len(old.parts) == 1, len(new.parts) == 1
    is_wider = (
        new.criterion == "anyOf"
        or (old_single and new_single)
        or (old_single and new.criterion == "oneOf")
        or (new_single and old.criterion == "allOf")
    )
    return [("COMBINED_TYPE_EXTENDED" if is_wider else "COMBINED_TYPE_CHANGED", ())]


def named(node: JsonNode, keyword: str) -> dict[str, Any]:
    """Return the value of a keyword that is an object, {} if it is none."""
    found = node.raw.get(keyword)
    return found if isinstance(found, dict) else {}


def names(node: JsonNode, keyword: str) -> list[str]:
    """Return the value of a keyword that is an array, [] if it is none."""
    found = node.raw.get(keyword)
    return found if isinstance(found, list) else []


def required(old: JsonNode, new: JsonNode) -> list[Change]:
    """Compare which properties must be there."""
    made: list[Change] = []
    olds, news = named(old, "properties"), named(new, "properties")
    was_required, is_required = set(names(old, "required")), set(names(new, "required"))
    for name in olds:
        if name not in news or (name in was_required) == (name in is_required):
            continue
        if name in was_required:
            made.append(("REQUIRED_ATTRIBUTE_REMOVED", (name,)))
        else:
            has_default = isinstance(news[name], dict) and "default" in news[name]
            made.append((f"REQUIRED_ATTRIBUTE{'_WITH_DEFAULT' if has_default else ''}_ADDED", (name,)))
    return made


def is_open(node: JsonNode) -> bool:
    """Whether an object or array takes whatever it does not name."""
    array = node.kind == "array"
    if node.raw.get("additionalItems" if array else "additionalProperties", True) is not True:
        return False
    if not array and named(node, "patternProperties"):
        return False
    return node.raw.get("unevaluatedItems" if array else "unevaluatedProperties", True) in (True, {})


def uniqueness(old: JsonNode, new: JsonNode) -> list[Change]:
    """Compare whether items are all different."""
    was, is_ = old.raw.get("uniqueItems") is True, new.raw.get("uniqueItems") is True
    return [] if was == is_ else [("UNIQUE_ITEMS_REMOVED" if was else "UNIQUE_ITEMS_ADDED", ("uniqueItems",))]
