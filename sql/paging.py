"""What does not fit a screen is shown by a pager: $PAGER, or less."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from rich.console import Console

_OPTIONS = {"LESS": "-FRSX"}  # end by itself if one screen does, keep colours, cut long lines, leave what was shown


@contextlib.contextmanager
def paged(console: Console) -> Iterator[None]:
    """Show what is printed inside by the pager where somebody sits at a terminal and it is longer than that."""
    if not (console.is_terminal and console.file is sys.stdout and sys.stdin.isatty() and sys.stdout.isatty()):
        yield
        return
    with console.capture() as captured:
        yield
    text = captured.get()
    if text.count("\n") < console.height or not _page(text):
        console.file.write(text)
        console.file.flush()


def _page(text: str) -> bool:
    """Run the pager; False: there is none."""
    command = os.environ.get("PAGER", "less")
    process = subprocess.Popen(command, shell=True, stdin=subprocess.PIPE, env={**_OPTIONS, **os.environ}, errors="replace")
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):  # left before its end
        process.communicate(text)
    while True:
        with contextlib.suppress(KeyboardInterrupt):  # a pager takes Ctrl-C itself
            return process.wait() != 127
