"""All operators, by the class of their node. A module of this package that has a class with a `node_class` is found by that."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from .. import graph as g
from .operator import Operator


@cache
def operators() -> Mapping[type[g.Node], type[Operator[Any]]]:
    """Return the class of operator of each class of node."""
    package = importlib.import_module(__package__)
    found: dict[type[g.Node], type[Operator[Any]]] = {}
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{__package__}.{info.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Operator) and "node_class" in vars(value):
                assert found.get(value.node_class, value) is value, f"two operators for {value.node_class.__name__}"
                found[value.node_class] = value
    return MappingProxyType(found)


def operator_of(node: g.Node) -> Operator[Any]:
    """Return the operator of a node."""
    return operators()[type(node)](node)
