"""Pages as a newcomer follows them: their blocks, and somebody who takes one after the other in a directory.

A block with a file's name as its title is that file; one whose title speaks of a terminal goes on beside those that follow; a
`text` block is all that the one before it prints, sooner or later: `sql` and `bash` blocks before it only read, and are repeated.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.sql._notebook import Notebook

from ._warm import warm_commands

NEWLINE, REST = "\n", "…"
ANY_LINES = r"(?:.*\n)*?"
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a page."""

    place: str
    language: str
    title: str
    text: str

    @property
    def is_file(self) -> bool:
        return re.fullmatch(r"[\w.-]+\.\w+", self.title) is not None

    @property
    def is_beside(self) -> bool:
        return "terminal" in self.title

    @property
    def is_cell(self) -> bool:
        return "notebook" in self.title


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page in order."""
    text = page.read_text()
    found = [
        Block(f"{page.name}:{text.count(chr(10), 0, each.start()) + 1}", each[1], each[2] or "", each[3])
        for each in FENCE.finditer(text)
    ]
    assert len(found) * 2 == len(re.findall(r"^```", text, re.MULTILINE)), f"{page} has blocks of no known form"
    return found


def is_shown(expected: str, printed: str) -> bool:
    """Tell whether a page shows all that was printed. `…` stands for anything in a line, as a line for any lines.

    >>> is_shown("a\\n…\\nz …", "a\\nb\\nc\\nz 1")
    True
    >>> is_shown("a", "a b") or is_shown("a", "a\\nb")
    False
    """
    forms = [ANY_LINES if line.strip() == REST else line_form(line) for line in expected.strip("\n").split("\n")]
    return re.fullmatch("".join(forms), f"{printed.strip(NEWLINE)}\n") is not None


def line_form(line: str) -> str:
    """Return what a line looks like that a page shows so; blanks at its end do not count."""
    return re.escape(line.rstrip()).replace(REST, ".*") + r"[ \t]*\n"


@dataclass(slots=True)
class Reader:
    """Somebody who follows a page in a directory.

    `here`: what stands for the page's names of hosts and ports on this machine. `programs`: where `logflume` and `python` are;
    None: those of this environment.
    """

    folder: Path
    here: dict[str, str]
    programs: Path | None = None
    scope: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    notebook: Notebook | None = None
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def follow(self, blocks: list[Block]) -> None:
        for number, block in enumerate(blocks, 1):
            after = blocks[number] if number < len(blocks) else None
            is_output = after is not None and after.language == "text" and not after.is_file
            self.take(block, after.text if after is not None and is_output else "")

    def take(self, block: Block, expected: str) -> None:
        text = block.text
        for name, here in self.here.items():
            text = text.replace(name, here)
        if block.is_file:
            (self.folder / block.title).write_text(text)
        elif block.is_cell:
            self.compare(block, expected, self.run_cell(block, text))
        elif block.language == "python":
            self.compare(block, expected, self.run_python(block, text))
        elif block.language in ("bash", "sql") and block.title != "once, from the sources":
            if block.language == "sql":
                (self.folder / "block.sql").write_text(text)
                text = "logflume sql -f block.sql"
            self.start(text) if block.is_beside else self.run_until(block, text, expected)
        else:
            assert block.language in ("text", "bash"), f"{block.place}: who runs {block.language}?"

    def run_python(self, block: Block, text: str) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.chdir(self.folder):
            exec(compile(text, block.place, "exec"), self.scope)
        return printed.getvalue()

    def run_cell(self, block: Block, text: str) -> str:
        self.notebook = self.notebook or Notebook(self.folder / "notebook")
        with contextlib.chdir(self.folder):
            ran = self.notebook.run(text)
        assert ran.is_done, f"{block.place} failed: {ran.printed}"
        return "\n".join([ran.printed, *ran.shown])

    def compare(self, block: Block, expected: str, printed: str) -> None:
        assert not expected or is_shown(expected, printed), f"{block.place} printed {printed!r}"

    def start(self, text: str) -> None:
        self.running.append(subprocess.Popen(["bash", "-c", f"exec {text}"], stderr=subprocess.DEVNULL, **self.options()))

    def run_until(self, block: Block, text: str, expected: str) -> None:
        """Run a block as printed, except for the server that runs already, until it has printed what is expected."""
        script = "\n".join(line for line in text.splitlines() if not re.fullmatch(r"logflume serve *(#.*)?", line))
        deadline = time.monotonic() + 240
        while True:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, timeout=280, **self.options()
            )
            if done.returncode == 0 and (not expected or is_shown(expected, done.stdout)):
                return
            assert expected, f"{block.place} failed: {done.stdout}{done.stderr}"
            assert time.monotonic() < deadline, f"{block.place} printed {done.stdout}{done.stderr}"

    def options(self) -> dict[str, Any]:
        ours = [warm_commands(), Path(sys.executable).parent] if self.programs is None else [self.programs]
        path = os.pathsep.join([*map(str, ours), os.environ["PATH"]])
        return {
            "cwd": self.folder,
            "stdin": subprocess.DEVNULL,
            "env": {**os.environ, "PATH": path, "LOGFLUME_CONFIG": f"{self.folder}/profiles.toml", "PYTEST_ADDOPTS": ""},
        }

    def stop(self) -> None:
        if self.notebook is not None:
            self.notebook.close()
        for process in self.running:
            process.send_signal(signal.SIGINT)
        for process in self.running:
            try:
                process.wait(60)
            finally:
                process.kill()
                process.wait()
