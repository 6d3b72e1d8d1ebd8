"""Log lines about what clients do wrong: at most one a second and address, the rest counted and told with the next one.

Who sends rubbish as fast as he can must not fill the disk with lines about it. Pure: the clock is an argument.
"""

from __future__ import annotations

import logging
from typing import Any

from .ports import Clock

PAUSE_MS = 1000
MAX_ADDRESSES = 10_000
"""Addresses remembered; beyond that the one that was complained of longest ago is told of and forgotten."""


class Complaints:
    """Invariant: `_told` is in the order of the last line about each address; holds (when, lines left out since)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: dict[str, tuple[int, int]] = {}
        self.left_out = 0
        """Lines that were not written, in all."""

    def say(self, log: logging.Logger, level: int, host: str, text: str, *args: Any, exc_info: bool = False) -> None:
        """Log a line about an address, unless there was one within the last second; that one is counted."""
        if not log.isEnabledFor(level):
            return
        now_ms = self._clock.monotonic_ms()
        told_ms, left_out = self._told.get(host, (now_ms - PAUSE_MS, 0))
        if now_ms - told_ms < PAUSE_MS:
            self._told[host] = told_ms, left_out + 1
            self.left_out += 1
            return
        more = f" ({left_out} more lines about {host} were left out before)" if left_out else ""
        log.log(level, text + more.replace("%", "%%"), *args, exc_info=exc_info)
        self._told.pop(host, None)
        self._told[host] = now_ms, 0
        if len(self._told) > MAX_ADDRESSES:
            self._forget(log, next(iter(self._told)))

    def settle(self, log: logging.Logger) -> None:
        """Tell what was left out about addresses of which nothing was heard since; call it every few seconds."""
        now_ms = self._clock.monotonic_ms()
        for host in [host for host, (told_ms, _) in self._told.items() if now_ms - told_ms >= PAUSE_MS]:
            self._forget(log, host)

    def _forget(self, log: logging.Logger, host: str) -> None:
        _, left_out = self._told.pop(host)
        if left_out:
            log.warning("%d more lines about %s were left out", left_out, host)
