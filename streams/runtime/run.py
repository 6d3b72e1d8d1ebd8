"""Runs one application as the process' main business: signals, a progress line, an orderly end."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

from logflume.log.collector import ShortCollections
from logflume.log.interfaces import Log
from logflume.streams.seams import Plan

from .engine import Engine
from .options import EngineOptions
from .problems import HINTS
from .status import EngineState, EngineStatus, LeftOut

_LINE_EVERY_S = 0.5
_WRITE_EVERY_S = 30.0
_STOP_TIMEOUT_S = 20.0
"""With the closing that follows it is less than the half minute after which Kubernetes kills."""


def run_app(
    plan: Plan,
    log: Log,
    options: EngineOptions | None = None,
    *,
    out: TextIO | None = None,
    on_status: Callable[[EngineStatus], None] | None = None,
    until: Callable[[EngineStatus], bool] | None = None,
) -> EngineStatus:
    """Run until SIGINT or SIGTERM (in the main thread), until `until` says so, or until it fails; return the last status.

    A second signal kills at once: nothing committed is lost by that either. On a terminal (`out`, stderr by default) one line
    shows what happens; elsewhere a line is written at each change of state, and every 30 s. The last one is written. `on_status`
    takes the place of the line.

    Raises:
        LogflumeError: what made the application fail, or keeps it from starting.
    """
    engine = Engine(plan, log, options)
    stopping = threading.Event()
    show = on_status or _Line(out or sys.stderr)
    with _signals(stopping), ShortCollections().over_batches():
        engine.start()
        try:
            while not stopping.wait(_LINE_EVERY_S) and not engine.has_ended:
                status = engine.status()
                show(status)
                if until is not None and until(status):
                    break
        finally:
            status = engine.status()
            engine.stop(timeout_s=_STOP_TIMEOUT_S)
    if isinstance(show, _Line):
        show.end(status)
    return status


def describe_status(status: EngineStatus) -> str:
    """Return a status as one line.

    >>> describe_status(EngineStatus("delays", EngineState.RUNNING, "i", records_in=1500, records_in_per_s=750.0, lag_records=3))
    'delays running: 0 tasks, 1,500 in (750/s), 0 out (0/s), lag 3'
    """
    lag = "unknown" if status.lag_records is None else f"{status.lag_records:,}"
    parts = [
        f"{len(status.tasks)} task{'' if len(status.tasks) == 1 else 's'}",
        f"{status.records_in:,} in ({status.records_in_per_s:,.0f}/s)",
        f"{status.records_out:,} out ({status.records_out_per_s:,.0f}/s)",
        f"lag {lag}",
    ]
    parts += [f"{status.repartitioned:,} through repartition topics"] if status.repartitioned else []
    left_out = [f"{count:,} {reason}" for reason, count in sorted(status.dropped.items()) if count]
    parts += [f"left out: {', '.join(left_out)}"] if left_out else []
    if status.restore_remaining_records:
        rate = status.restore_records_per_s
        left = f", {rate:,.0f} a second, {status.restore_remaining_records / rate:,.0f} s to go" if rate else ""
        parts.append(f"{status.restore_remaining_records:,} to restore{left}")
    if status.blocked:
        parts.append(f"{status.blocked.task} for {status.blocked.lasted_s:,.0f} s in {status.blocked.where}")
    return f"{status.application} {status.state}: {', '.join(parts)}"


def _explained(place: LeftOut) -> str:
    hint = f": {HINTS[place.reason]}" if place.reason in HINTS else ""
    return f"  {place}{hint}{f'; the first: {place.first}' if place.first else ''}"


class _Line:
    """The progress line: rewritten in place on a terminal, written now and then elsewhere."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._calls = 0
        self._told: EngineState | None = None

    def __call__(self, status: EngineStatus) -> None:
        if self._is_terminal:
            self._out.write(f"\r\x1b[2K{describe_status(status)}")
            self._out.flush()
        elif status.state is not self._told or self._calls % int(_WRITE_EVERY_S / _LINE_EVERY_S) == 0:
            self._out.write(f"{describe_status(status)}\n")
            self._out.flush()
        self._calls, self._told = self._calls + 1, status.state

    def end(self, status: EngineStatus) -> None:
        """Write the last line, and why records were left out."""
        lines = [describe_status(status), *map(_explained, status.left_out)]
        self._out.write("\r\x1b[2K" * self._is_terminal + "\n".join(lines) + "\n")
        self._out.flush()


@contextmanager
def _signals(stopping: threading.Event) -> Iterator[None]:
    """Set `stopping` at the first SIGINT or SIGTERM and let the second have its usual effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = (signal.SIGINT, signal.SIGTERM)
    before = {name: signal.getsignal(name) for name in names}

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()
        for name in names:
            signal.signal(name, before[name])

    for name in names:
        signal.signal(name, stop)
    try:
        yield
    finally:
        for name in names:
            signal.signal(name, before[name])
