"""ARCHITECTURE's file map is the tree: each name in it is there, each folder of the package is in it, of the log each file.

The maps are the tables with a column `file`. A name without a folder is a neighbour of the name before it in its row, `.../` is
the folder of the row above, and in the tables of SQL names begin at `sql/`.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("connect", "log", "logflume", "sql", "streams")
BASES = {"## sql": "sql", "## connect": "connect"}
"""Where names begin that have no folder, by the section."""
_NAME = re.compile(r"`([\w./<>*]*(?:/|\.(?:py|pyi|c|api|tsv|lark)))`")


def _tree() -> set[str]:
    """The files of the package, by their paths; links would show them twice."""
    found = set()
    for part in PARTS:
        for folder, folders, names in os.walk(ROOT / part):
            folders[:] = [each for each in folders if each != "__pycache__" and not os.path.islink(os.path.join(folder, each))]
            found |= {Path(folder, name).relative_to(ROOT).as_posix() for name in names}
    return found


def _cells(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, where names begin, cell) of the columns `file`."""
    column, base = None, ""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("## "):
            base = next((folder for title, folder in BASES.items() if line.startswith(title)), "")
        cells = [cell.strip() for cell in line.split("|")[1:-1]] if line.startswith("|") else []
        if not cells:
            column = None
        elif "file" in cells:
            column = cells.index("file")
        elif column is not None and not cells[0].startswith("---"):
            yield number, base, cells[column]


def _named(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, path or pattern) of each name in the maps."""
    above = ""
    for number, base, cell in _cells(text):
        here = base
        for name in _NAME.findall(cell):
            if name.startswith(".../"):
                path = posixpath.join(above, name.removeprefix(".../"))
            elif name.split("/")[0] in (*PARTS, "examples", "tests"):
                path = name
                above = posixpath.dirname(path.rstrip("/"))
            else:
                path = posixpath.join(here, name)
            here = posixpath.dirname(path.rstrip("/")) or here
            yield number, re.sub(r"<\w+>", "*", path)


def _holds(path: str, file: str) -> bool:
    """Whether a name of the map is that file, or a folder that has it."""
    if path.endswith("/"):
        return file.startswith(path)
    return path == file or ("*" in path and posixpath.dirname(path) == posixpath.dirname(file) and fnmatch.fnmatch(file, path))


@pytest.fixture(scope="module")
def named() -> list[tuple[int, str]]:
    found = list(_named((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")))
    assert len(found) > 300, "the maps are not read as what they are"
    return found


def test_what_the_map_names_is_in_the_tree(named: list[tuple[int, str]]) -> None:
    tree = _tree() | {path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").glob("*")}
    gone = [f"line {number}: {path}" for number, path in named if not any(_holds(path, file) for file in tree)]
    assert not gone, "ARCHITECTURE.md names what is not there"


def test_the_map_names_the_tree(named: list[tuple[int, str]]) -> None:
    modules = {file for file in _tree() if file.endswith(".py") and not file.endswith("__init__.py")}
    missing = {file for file in modules if not any(_holds(path, file) for _, path in named)}
    folders = {posixpath.dirname(file) for file in missing} - {posixpath.dirname(file) for file in modules - missing}
    lost = sorted(folders) + sorted(file for file in missing if file.startswith("log/"))
    assert not lost, "add a row, or a name to a row, in ARCHITECTURE.md"
