"""The classes of the objects that the stores of a topology may hold: those that its nodes name, and those of their fields."""

from __future__ import annotations

import enum
import typing
from collections.abc import Iterable, Iterator
from typing import Any

from logflume.log.schemas import is_object_class

from .. import graph as g


def classes_of(nodes: Iterable[g.Node]) -> tuple[type[Any], ...]:
    """Return the classes of values and states, in the order in which they are named."""
    found: dict[type[Any], None] = {}
    for node in nodes:
        for named in _named(node):
            _collect(named, found)
    return tuple(found)


def _named(node: g.Node) -> Iterator[Any]:
    if node.schema.value_class is not None:
        yield node.schema.value_class
    if isinstance(node, g.Aggregate | g.TableAggregate):
        others = node.others if isinstance(node, g.Aggregate) else ()
        for aggregations in (node.aggregations, *others):
            for aggregation in aggregations:
                yield from aggregation.aggregator.classes
    if isinstance(node, g.Process):
        for store in node.stores:
            yield from store.classes


def _collect(hint: Any, found: dict[type[Any], None]) -> None:
    """Add a class and the classes of its fields; of other type hints the classes in them."""
    for part in typing.get_args(hint):
        _collect(part, found)
    if not isinstance(hint, type) or hint in found:
        return
    if issubclass(hint, enum.Enum):
        found[hint] = None
    elif is_object_class(hint):
        found[hint] = None
        for field in _field_hints(hint):
            _collect(field, found)


def _field_hints(cls: type[Any]) -> list[Any]:
    try:
        return list(typing.get_type_hints(cls).values())
    except (NameError, TypeError):
        return []
