"""A user's mistake in a script, shown with the lines of his own files: the frames of the package and of Python are left out."""

from __future__ import annotations

import os
import runpy
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException
from types import TracebackType

from logflume.log import LogflumeError

_OWN = (str(Path(__file__).parents[2]) + os.sep, sysconfig.get_path("stdlib") + os.sep, "<frozen ")
EVERYTHING = "LOGFLUME_TRACEBACK"
"""The variable that, set to anything, brings whole tracebacks."""


def users_frames(error: BaseException) -> list[FrameSummary]:
    """Return the frames of an error that are neither the package's nor Python's own, outermost first."""
    return [frame for frame in TracebackException.from_exception(error).stack if _is_users(frame)]


def show_shortly() -> None:
    """Let scripts end with the user's lines and one sentence, unless somebody has a hook of his own."""
    if sys.excepthook is sys.__excepthook__ and not os.environ.get(EVERYTHING):
        sys.excepthook = _show


def run_script(file: Path) -> None:
    """Run a user's file as a script. What it raises is shown with its own lines; an error of the package gets a note of one."""
    sys.path.insert(0, str(file.resolve().parent))
    sys.excepthook = sys.__excepthook__  # a command line has put one of its own there
    show_shortly()
    try:
        runpy.run_path(str(file), run_name="__main__")
    except LogflumeError as error:
        frames = users_frames(error)
        if frames:
            error.add_note(f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}")
        raise


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    whole = TracebackException(kind, error, trace)
    is_own = isinstance(error, LogflumeError)
    if is_own and not any(_is_users(frame) for frame in whole.stack):
        sys.__excepthook__(kind, error, trace)
        return
    for each in _chain(whole):
        frames = [frame for frame in each.stack if _is_users(frame)] if is_own else _in_the_script(each.stack)
        each.stack = StackSummary.from_list(frames)
    print("".join(whole.format()), end="", file=sys.stderr)


def _chain(error: TracebackException) -> Iterator[TracebackException]:
    found: TracebackException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def _in_the_script(stack: StackSummary) -> list[FrameSummary]:
    """Return the frames without those by which a script has been started."""
    starts = [place for place, frame in enumerate(stack, 1) if frame.filename == "<frozen runpy>"]
    return stack[starts[-1] :] if starts else stack


def _is_users(frame: FrameSummary) -> bool:
    return not frame.filename.startswith(_OWN)
