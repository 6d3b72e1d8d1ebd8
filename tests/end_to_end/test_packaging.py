"""What is installed is whole: a wheel of a clean checkout runs by itself, and a type checker finds the package from elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("log", "streams", "sql", "connect", "logflume", "src", "pyproject.toml", "README.md", "LICENSE")
PROGRAM = """\
import logflume as lf

app = lf.App("first")
reveal_type(app.stream("a", int).filter(lambda value: value > 1))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_wheel_of_a_clean_checkout_runs_without_the_checkout(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in PARTS:
        if (ROOT / name).is_dir() and not (ROOT / name).is_symlink():
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(ROOT / name, source / name, follow_symlinks=False)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        str(source),
    ]
    subprocess.run(build, check=True, timeout=280, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    program = (
        "import logflume.log.server, logflume.sql as sql; print(sql.__file__); from logflume.cli import main; main(['--help'])"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path, env=environment
    )
    assert done.stdout.startswith(str(tmp_path / "site"))
    assert "logflume topic create" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_type_checker_finds_the_installed_package_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "first.py"],
        capture_output=True, text=True, timeout=380, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert re.search(r"Stream\[(builtins\.)?str, (builtins\.)?int\]", done.stdout), done.stdout
