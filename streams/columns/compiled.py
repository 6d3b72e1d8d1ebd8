"""The kernels that exist only compiled, once they are loaded: in the background, never waited for."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType

from ..kernels.tier import compiled_tier

_found: list[Kernels] = []


@dataclass(frozen=True, slots=True, eq=False)
class Kernels:
    """JSON rows, texts, entries of aggregates, rows of tables."""

    json: ModuleType
    texts: ModuleType
    slots: ModuleType
    tables: ModuleType


def kernels() -> Kernels | None:
    """Return the kernels if they are loaded."""
    if _found:
        return _found[0]
    json = compiled_tier().kernels(0)
    if json is None:
        return None
    package = json.__name__.rpartition(".")[0]
    texts, slots, tables = (importlib.import_module(f"{package}.{name}") for name in ("texts", "slots", "table_slots"))
    _found.append(Kernels(json, texts, slots, tables))
    return _found[0]


def observe(records: int) -> None:
    """Count records as taken, and begin to load the kernels once it pays."""
    if not _found:
        compiled_tier().kernels(records)
