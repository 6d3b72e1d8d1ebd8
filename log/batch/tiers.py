"""When the compiled kernels are used: after a number of records has been coded, loaded in the background, or on request.

Loading takes 0.5 s (importing numba, reading its cache), which a short command must not pay.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import threading
from pathlib import Path
from types import ModuleType

from logflume.log.compiled import importing

_WARM_UP_RECORDS = 20_000


class KernelTier:
    """Loads `kernels.py` once. Invariant: `_module` is set once, after its compilation is complete. Thread-safe."""

    def __init__(self) -> None:
        self._module: ModuleType | None = None
        self._seen_records = 0
        self._lock = threading.Lock()
        self._is_started = importlib.util.find_spec("numba") is None

    def kernels(self, records: int) -> ModuleType | None:
        """Return the kernels if they are loaded; count `records` as coded, and begin to load them once it pays."""
        if self._module is None and not self._is_started:
            self._seen_records += records
            if self._seen_records >= _WARM_UP_RECORDS:
                self._is_started = True
                threading.Thread(target=self.load, name="logflume-kernels", daemon=True).start()
        return self._module

    def stay_out(self) -> None:
        """Load no kernels by itself: for a process that reads much once, when it starts."""
        self._is_started = True

    def load(self) -> bool:
        """Load the kernels now, blocking; False without numba."""
        with self._lock:
            if self._module is None and importlib.util.find_spec("numba") is not None:
                with importing(Path(__file__).with_name("kernels.py")):
                    self._module = importlib.import_module(f"{__package__}.kernels")
            return self._module is not None


@functools.cache
def kernel_tier() -> KernelTier:
    """Return the tier of this process."""
    return KernelTier()
