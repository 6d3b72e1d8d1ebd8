"""When kernels are used: after a number of records, once they are loaded in the background.

Loading takes 0.5 s from numba's cache and some seconds without it; until then, and without numba, the exact
forms do everything.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

_WARM_UP_RECORDS = 50_000


class CompiledTier:
    """Loads the kernels once. Invariant: `_module` is set once, after its compilation is complete. Thread-safe."""

    def __init__(self) -> None:
        self._module: ModuleType | None = None
        self._more: dict[str, ModuleType | None] = {}
        self._seen_records = 0
        self._lock = threading.Lock()
        self._is_held_back = False
        self._is_started = importlib.util.find_spec("numba") is None

    def kernels(self, records: int) -> ModuleType | None:
        """Return the kernels if they are loaded; count `records` as processed, and begin to load them once it pays."""
        if self._is_held_back:
            return None
        if self._module is None and not self._is_started:
            self._seen_records += records
            if self._seen_records >= _WARM_UP_RECORDS:
                self._is_started = True
                threading.Thread(target=self.load, name="logflume-streams-kernels", daemon=True).start()
        return self._module

    def more(self, name: str) -> ModuleType | None:
        """Return kernels that not everybody needs, once all others are loaded; the first call begins to load them."""
        if self._is_held_back or self._module is None:
            return None
        if name not in self._more:
            self._more[name] = None
            threading.Thread(target=self.load, args=(name,), name=f"logflume-streams-{name}", daemon=True).start()
        return self._more[name]

    def stay_out(self) -> None:
        """Load no kernels, unless they are loaded already: to compare, or to save memory."""
        self._is_started = True

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Do without the kernels for a while, though they are loaded: to compare with what is computed without them."""
        self._is_held_back = True
        try:
            yield
        finally:
            self._is_held_back = False

    def load(self, *more: str) -> bool:
        """Load the kernels now, blocking, and more of them by name; False without numba."""
        with self._lock:
            if self._module is None and importlib.util.find_spec("numba") is not None:
                for name in ("texts", "table_slots", "slots"):
                    importlib.import_module(f"{__package__}.{name}")
                self._module = importlib.import_module(f"{__package__}.json_rows")
            for name in more if self._module is not None else ():
                self._more[name] = importlib.import_module(f"{__package__}.{name}")
            return self._module is not None


@functools.cache
def compiled_tier() -> CompiledTier:
    """Return the tier of this process."""
    return CompiledTier()
