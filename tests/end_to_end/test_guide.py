"""The guide as a newcomer follows it: every block of every page, in order, in a directory where `logflume serve` runs.

A block with a file's name as its title is that file; one whose title speaks of a terminal goes on beside those that follow; a
`text` block is what the one before it prints, sooner or later: `sql` and `bash` blocks before it only read, and are repeated.
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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ._command import free_port, serving

DOCS = Path(__file__).resolve().parents[2] / "docs"
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
DEFAULT_ADDRESS, SECURED_PORT = "127.0.0.1:9092", "9093"
DEFAULT_REGISTRY = "http://127.0.0.1:8081"
PAGES = sorted(path.name for path in DOCS.glob("*.md"))
LIVE = ("```bash", "```sql", '"./data"', DEFAULT_ADDRESS)


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


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page in order."""
    text = (DOCS / page).read_text()
    found = [
        Block(f"{page}:{text.count(chr(10), 0, each.start()) + 1}", each[1], each[2] or "", each[3])
        for each in FENCE.finditer(text)
    ]
    assert len(found) * 2 == len(re.findall(r"^```", text, re.MULTILINE)), f"{page} has blocks of no known form"
    return found


@dataclass(slots=True)
class Reader:
    """Somebody who follows a page in a directory."""

    folder: Path
    address: str
    scope: dict[str, Any]
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    secured_port: str = field(default_factory=lambda: str(free_port()))

    def follow(self, blocks: list[Block]) -> None:
        for number, block in enumerate(blocks, 1):
            after = blocks[number] if number < len(blocks) else None
            self.take(block, after.text if after is not None and after.language == "text" else "")

    def take(self, block: Block, expected: str) -> None:
        text = block.text.replace(DEFAULT_ADDRESS, self.address).replace(SECURED_PORT, self.secured_port)
        text = text.replace(DEFAULT_REGISTRY, os.environ.get("LOGFLUME_REGISTRY", DEFAULT_REGISTRY))
        if block.is_file:
            (self.folder / block.title).write_text(text)
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

    def compare(self, block: Block, expected: str, printed: str) -> None:
        assert expected.strip() in printed, f"{block.place} printed {printed!r}"

    def start(self, text: str) -> None:
        self.running.append(subprocess.Popen(["bash", "-c", f"exec {text}"], stderr=subprocess.DEVNULL, **self.options()))

    def run_until(self, block: Block, text: str, expected: str) -> None:
        """Run a block as printed, except for the server that runs already, until it has printed what is expected."""
        script = "\n".join(line for line in text.splitlines() if line.strip() != "logflume serve")
        deadline = time.monotonic() + 120
        while True:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, timeout=100, **self.options()
            )
            if done.returncode == 0 and expected.strip() in done.stdout:
                return
            assert expected, f"{block.place} failed: {done.stdout}{done.stderr}"
            assert time.monotonic() < deadline, f"{block.place} printed {done.stdout}{done.stderr}"

    def options(self) -> dict[str, Any]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {
            "cwd": self.folder,
            "stdin": subprocess.DEVNULL,
            "env": {**os.environ, "PATH": path, "LOGFLUME_CONFIG": f"{self.folder}/profiles.toml"},
        }

    def stop(self) -> None:
        for process in self.running:
            process.send_signal(signal.SIGINT)
        for process in self.running:
            try:
                process.wait(60)
            finally:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """An empty directory with the guide's first command running in it, on ports of its own."""
    folder, registry = tmp_path_factory.mktemp("guide"), f"127.0.0.1:{free_port()}"
    with pytest.MonkeyPatch.context() as patch, serving(folder / "data", "--registry", registry) as (address, _):
        patch.setenv("LOGFLUME_REGISTRY", f"http://{registry}")
        yield folder, address


@pytest.mark.slow
@pytest.mark.timeout(400)  # processes that a busy machine takes seconds to start
@pytest.mark.parametrize("page", [page for page in PAGES if any(sign in (DOCS / page).read_text() for sign in LIVE)])
def test_the_blocks_of_a_page_do_what_they_say(server: tuple[Path, str], page: str) -> None:
    folder, address = server
    reader = Reader(folder, address, {"__name__": "__main__"})
    try:
        reader.follow(blocks_of(page))
    finally:
        reader.stop()


@pytest.mark.parametrize("page", [page for page in PAGES if not any(sign in (DOCS / page).read_text() for sign in LIVE)])
def test_the_blocks_of_a_page_that_needs_no_server(tmp_path: Path, page: str) -> None:
    Reader(tmp_path, DEFAULT_ADDRESS, {"__name__": "__main__"}).follow(blocks_of(page))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_guide_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, cwd=DOCS.parent, env=environment)
    assert done.returncode == 0, done.stderr
    pages = {path.name: path.read_text() for path in tmp_path.glob("*.html")}
    assert {page.replace(".md", ".html") for page in PAGES} <= set(pages)
    assert "parquet-sink" in pages["connector-options.html"]
    assert "tumbling" in pages["api.html"]
    for name, text in pages.items():
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="(https?:[^"]+)"|<link[^>]* href="(https?:[^"]+)"', text)
        assert loaded == [], name
