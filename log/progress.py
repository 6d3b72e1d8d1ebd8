"""What somebody who waits is told: where work is, how fast it goes and how long it will take.

On one line of a terminal, now and then a line where there is none, or as JSON.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

_TERMINAL_EVERY_S, _TERMINAL_FIRST_S = 0.1, 0.5
_PIPE_EVERY_S = 5.0
_ERASE = "\r\x1b[K"


class ProgressLine:
    """A line that is written over on a terminal, and printed every 5 s elsewhere; work that is done sooner says nothing.

    `as_json`: each is an object, on a terminal too.
    """

    def __init__(self, out: TextIO, *, as_json: bool = False, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._out, self._monotonic_s, self._as_json = out, monotonic_s, as_json
        self._is_terminal = out.isatty() and not as_json
        self._what, self._since_s, self._since = "", 0.0, 0
        self._every_s = _TERMINAL_EVERY_S if self._is_terminal else _PIPE_EVERY_S
        self._is_shown = False
        self.begin()

    def begin(self) -> None:
        """Begin to wait anew."""
        self._next_s = self._monotonic_s() + (_TERMINAL_FIRST_S if self._is_terminal else _PIPE_EVERY_S)

    def show(self, what: str, done: int, total: int) -> None:
        """Say that `done` of `total` (0: not known) are done, if it is time to."""
        now = self._monotonic_s()
        if what != self._what or done < self._since:
            self._what, self._since_s, self._since = what, now, done
        if now < self._next_s:
            return
        self._next_s = now + self._every_s
        rate = (done - self._since) / (now - self._since_s) if now > self._since_s else 0.0
        left_s = (total - done) / rate if total and rate else None
        if self._as_json:
            told = {"at": what, "done": done, "total": total or None, "per_second": round(rate, 3), "seconds_left": left_s}
            text = json.dumps(told)
        else:
            of = f" of {total:,} ({done * 100 // total} %)" if total else ""
            speed = f", {rate:,.1f}/s" if rate else ""
            left = "" if left_s is None else f", {left_s:,.0f} s left"
            text = f"{what} {done:,}{of}{speed}{left}"
        self._out.write(f"{_ERASE}{text}" if self._is_terminal else f"{text}\n")
        self._out.flush()
        self._is_shown = True

    def end(self) -> None:
        """Leave a terminal as it was."""
        if self._is_shown and self._is_terminal:
            self._out.write(_ERASE)
            self._out.flush()
        self._is_shown = False

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()
