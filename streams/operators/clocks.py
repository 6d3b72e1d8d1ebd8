"""The stream time of each input of an operator, which says what is late on it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from logflume.log.records import I64

from ..seams import StateStore


class Clocks:
    """The stream time of each input of an operator. After a restart all begin with that of the store."""

    def __init__(self, inputs: Sequence[str], store: StateStore) -> None:
        self._times = dict.fromkeys(inputs, -1)
        self._store = store

    def start(self) -> None:
        """Begin: the store is restored."""
        self._times = dict.fromkeys(self._times, self._store.stream_time_ms)

    def observe(self, source: str, time: int) -> int:
        """Note a record's time; return the input's stream time."""
        now = max(self._times[source], time)
        self._times[source] = now
        if now > self._store.stream_time_ms:
            self._store.stream_time_ms = now
        return int(now)

    def observe_all(self, source: str, times: I64) -> list[int]:
        """Note the times of records; return the input's stream time at each of them."""
        clocks = np.maximum.accumulate(np.maximum(times, self._times[source]))
        self.observe(source, int(clocks[-1]))
        return clocks.tolist()  # type: ignore[no-any-return]

    def of(self, source: str) -> int:
        """Return the stream time of an input."""
        return int(self._times[source])

    @property
    def latest(self) -> int:
        return int(self._store.stream_time_ms)
