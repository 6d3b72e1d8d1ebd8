"""When kernels are used: after a number of records, once they are loaded in the background; nothing waits for them.

Loading takes 0.5 s from numba's cache, which a child process fills where it is empty (`compiling.py`); until then, and without
numba, the exact forms do everything.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

from logflume.log.compiled import importing

from .compiling import compile_apart, source_of

_WARM_UP_RECORDS = 50_000
_ALWAYS = ("json_rows", "texts", "slots", "table_slots")


@dataclass(frozen=True, slots=True, eq=False)
class Kernels:
    """JSON rows, texts, entries of aggregates, rows of tables."""

    json: ModuleType
    texts: ModuleType
    slots: ModuleType
    tables: ModuleType


class KernelLoader:
    """Loads the kernels once. Invariant: `_kernels` is set once, after its compilation is complete. Thread-safe."""

    def __init__(self, *, compile_first: Callable[[Collection[str]], object] = compile_apart) -> None:
        """`compile_first`: called before kernels are loaded in the background."""
        self._compile_first = compile_first
        self._kernels: Kernels | None = None
        self._more: dict[str, ModuleType | None] = {}
        self._seen_records = 0
        self._lock = threading.Lock()
        self._is_held_back = False
        self._is_started = importlib.util.find_spec("numba") is None

    def loaded(self) -> Kernels | None:
        """Return the kernels if they are loaded."""
        return None if self._is_held_back else self._kernels

    def observe(self, records: int) -> None:
        """Count records as taken, and begin to load the kernels once it pays."""
        if self._is_started or self._is_held_back:
            return
        self._seen_records += records
        if self._seen_records >= _WARM_UP_RECORDS:
            self._is_started = True
            threading.Thread(target=self._load_behind, name="logflume-streams-kernels", daemon=True).start()

    def more(self, name: str) -> ModuleType | None:
        """Return kernels that not everybody needs, once all others are loaded; the first call begins to load them."""
        if self.loaded() is None:
            return None
        if name not in self._more:
            self._more[name] = None
            threading.Thread(target=self._load_behind, args=(name,), name=f"logflume-streams-{name}", daemon=True).start()
        return self._more[name]

    def stay_out(self) -> None:
        """Load no kernels, unless they are loaded already: to compare, or to save memory."""
        self._is_started = True

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Do without the kernels for a while, though they are loaded: to compare with what is computed without them."""
        before, self._is_held_back = self._is_held_back, True
        try:
            yield
        finally:
            self._is_held_back = before

    def _load_behind(self, *more: str) -> None:
        """Load while the engine goes on: what has to be compiled is compiled apart."""
        self._compile_first(more or _ALWAYS)
        self.load(*more)

    def load(self, *more: str) -> bool:
        """Load the kernels now, blocking, and more of them by name; False without numba."""
        with self._lock:
            if self._kernels is None and importlib.util.find_spec("numba") is not None:
                self._kernels = Kernels(*map(_import, _ALWAYS))
            for name in more if self._kernels is not None else ():
                self._more[name] = _import(name)
            return self._kernels is not None


def _import(name: str) -> ModuleType:
    with importing(source_of(name)):
        return importlib.import_module(f"{__package__}.{name}")


@functools.cache
def kernel_loader() -> KernelLoader:
    """Return the loader of this process."""
    return KernelLoader()


def loaded_kernels() -> Kernels | None:
    """Return the kernels if they are loaded."""
    return kernel_loader().loaded()


def more_kernels(name: str) -> ModuleType | None:
    """Return kernels that not everybody needs (`avro_rows`, `meetings`), once loaded; the first call begins to load them."""
    return kernel_loader().more(name)


def observe(records: int) -> None:
    """Count records as taken, and begin to load the kernels once it pays."""
    kernel_loader().observe(records)
