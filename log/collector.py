"""Python's collector of cyclic garbage in a broker's or engine's process: it never has everybody wait for long.

A full collection looks at every object there is, with the interpreter's lock held: 70 ms in the middle of a request of 100,000
elements, the more the more groups, topics and ACLs a broker keeps. So after one that took long, what survived it is left out of
later ones. Reference counts free those objects as ever; cycles among them stay until they are all looked at once more, every
hour at most.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

LONG_S = 0.005
LOOK_AGAIN_S = 3600.0
BATCH_OBJECTS = 20_000
"""Objects made until the young ones are looked at, where records are taken in batches: in the midst of one all are in use."""


class ShortCollections:
    """Leaves out of collections what made one long. Is one of `gc.callbacks` from `install` on."""

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter, long_s: float = LONG_S) -> None:
        self._clock, self._long_s = clock, long_s
        self._began_s = self._looked_s = clock()

    def install(self) -> None:
        """Begin, with what there is now left out: modules and the state that was read from disk."""
        gc.collect()
        gc.freeze()
        gc.callbacks.append(self)

    @contextmanager
    def over_batches(self) -> Iterator[None]:
        """Be installed for a while, in which batches of many records are taken."""
        before = gc.get_threshold()
        gc.set_threshold(BATCH_OBJECTS, *before[1:])
        self.install()
        try:
            yield
        finally:
            gc.callbacks.remove(self)
            gc.unfreeze()
            gc.set_threshold(*before)

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        if info["generation"] < 2:
            return
        now_s = self._clock()
        if phase == "start":
            if now_s - self._looked_s >= LOOK_AGAIN_S:
                gc.unfreeze()
                self._looked_s = now_s
            self._began_s = now_s
        elif now_s - self._began_s >= self._long_s:
            gc.freeze()
