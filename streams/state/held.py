"""What objects take of memory: they themselves, and all that they alone lead to."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

_SHARED = (type, ModuleType, FunctionType, BuiltinFunctionType)
_MAX_OBJECTS = 2_000
_GRAIN_BYTES = 16
"""Python's allocator rounds up to it."""


def held_bytes(objects: Iterable[Any]) -> int:
    """Return about how many bytes objects and what they hold take, each once. Classes, functions and modules are everybody's.

    Of large structures the first objects without others in them stand for what was not looked at.

    >>> held_bytes([("a" * 1000, [1.5, 2.5])]) > 1000
    True
    """
    waiting, seen, found, leaves = list(objects), dict[int, Any](), 0, list[int]()
    at = 0
    while at < len(waiting) and len(seen) < _MAX_OBJECTS:
        each = waiting[at]
        at += 1
        if id(each) in seen or isinstance(each, _SHARED):
            continue
        seen[id(each)] = each
        size_bytes = -(-sys.getsizeof(each) // _GRAIN_BYTES) * _GRAIN_BYTES
        found += size_bytes
        inside = gc.get_referents(each) or _untracked(each)
        waiting += inside
        if not inside:
            leaves.append(size_bytes)
    return found + (len(waiting) - at) * sum(leaves) // max(1, len(leaves))


def _untracked(each: Any) -> list[Any]:
    """Return the fields of a Struct that the collector does not look into."""
    return [getattr(each, name) for name in getattr(type(each), "__struct_fields__", ())]
