"""README as a newcomer follows it: its blocks in order, in an empty directory, with nothing but what it prints."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ._command import LOGFLUME, serving

README = Path(__file__).resolve().parents[2] / "README.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(section: str) -> list[tuple[str, str]]:
    """Return (language, text) of the blocks of a section."""
    text = README.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found = BLOCK.findall(text)
    assert found, f"README has no section {section!r} with blocks"
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty directory with README's first command running in it, on ports of its own."""
    with serving(tmp_path / "data"):
        yield tmp_path


def shell(folder: Path, lines: str, *, may_fail: bool = False) -> str:
    """Run a block as printed, except for the server that runs already; `logflume` is that of this environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script = "\n".join(line for line in lines.splitlines() if not line.startswith("logflume serve"))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        capture_output=True, text=True, timeout=100, check=False, cwd=folder, stdin=subprocess.DEVNULL,
        env={**os.environ, "PATH": path},
    )  # fmt: skip
    assert may_fail or done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def eventually(folder: Path, command: str, wanted: str) -> None:
    """Repeat a command until it prints what is wanted."""
    deadline = time.monotonic() + 120
    while wanted not in (found := shell(folder, command, may_fail=True)):
        assert time.monotonic() < deadline, found


@pytest.mark.slow
@pytest.mark.timeout(300)  # a dozen processes, each of which a busy machine takes seconds to start
def test_the_first_blocks_of_readme_do_what_they_say(folder: Path) -> None:
    start = blocks("Start")[0][1]
    assert '"key": "a", "value": "1"' in shell(folder, start)
    (_, topics), (language, program) = blocks("A topology")
    shell(folder, topics)
    assert language == "python"
    (folder / "app.py").write_text(program)
    subprocess.run([sys.executable, "-c", "import app; app.app.topology()"], check=True, timeout=60, cwd=folder)
    running = subprocess.Popen([*LOGFLUME, "run", "app.py"], cwd=folder, stderr=subprocess.DEVNULL)
    try:
        eventually(folder, "logflume consume delays", '"mean_delay":20.5')
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0
    finally:
        running.kill()
        running.wait()
    ((_, statements),) = blocks("SQL over the same topics")
    (folder / "first.sql").write_text(statements)
    assert "Table DAILY created" in shell(folder, "logflume sql -f first.sql")
    eventually(folder, "logflume sql -e \"SELECT k, flights, mean_delay FROM daily WHERE k = 'UA';\"", "UA\t1\t20.5")
