"""The kernels that exist only compiled, once they are loaded: in the background, never waited for."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from ..kernels.tier import compiled_tier


@dataclass(frozen=True, slots=True, eq=False)
class Kernels:
    """JSON rows, texts, entries of aggregates, rows of tables."""

    json: ModuleType
    texts: ModuleType
    slots: ModuleType
    tables: ModuleType


def kernels() -> Kernels | None:
    """Return the kernels if they are loaded."""
    json = compiled_tier().kernels(0)
    return None if json is None else _kernels(json.__name__.rpartition(".")[0])


@cache
def _kernels(package: str) -> Kernels:
    return Kernels(*(importlib.import_module(f"{package}.{name}") for name in ("json_rows", "texts", "slots", "table_slots")))


def wire_kernels(name: str) -> ModuleType | None:
    """Return the kernels of a binary form, `avro_rows` or `proto_rows`, once loaded; the first call begins to load them."""
    return compiled_tier().more(name)


def observe(records: int) -> None:
    """Count records as taken, and begin to load the kernels once it pays."""
    compiled_tier().kernels(records)
