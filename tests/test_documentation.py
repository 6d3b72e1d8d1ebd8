"""What the documents say is true of the tree: docstring examples run, and every file that a document names exists."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import logflume

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
NAMED_FILE = re.compile(
    r"`((?:logflume|log|streams|sql|connect|examples|tests|benchmarks|scripts)/[\w./-]+\.(?:py|sh|toml|sql|lark|md))`"
)


PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))


def module_names() -> Iterator[str]:
    """Every module of the package, once, without `__main__` modules (importing those runs them)."""
    for info in pkgutil.walk_packages(logflume.__path__, "logflume."):
        if not info.name.endswith("__main__"):
            yield info.name


@pytest.mark.parametrize("name", sorted(module_names()))
def test_docstring_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert failed == 0


@pytest.mark.parametrize("document", [*DOCUMENTS, *PAGES])
def test_files_that_a_document_names_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    missing = [path for path in NAMED_FILE.findall(text) if not (ROOT / path).exists()]
    assert missing == []


def test_every_docstring_example_is_collected() -> None:
    names = set(module_names())
    assert {"logflume.log.errors", "logflume.cli.serve", "logflume.streams.graph"} <= names


def test_help_of_the_command_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    from logflume.cli import COMMANDS, main

    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert name in text
        assert command.summary in text
        assert (ROOT / "logflume" / "cli" / f"{command.module}.py").exists()


def test_an_unknown_command_names_the_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    from logflume.cli import main

    assert main(["topci"]) == 2
    assert "did you mean 'topic'" in capsys.readouterr().err
