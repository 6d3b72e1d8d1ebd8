"""What holds for every command: an example in its help, JSON where there is something to tell."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from logflume.cli import COMMANDS

from ._command import run

OPTION = re.compile(r"--?[a-zA-Z]")
SPEAKS_LINES = {
    ("serve",),
    ("registry", "serve"),
    ("sql", "serve"),
    ("secure", "init"),
    ("schema", "classes"),
    ("sql", "fmt"),
    ("sql", "functions"),
    ("sql", "migrate", "new"),
    ("sql", "migrate", "validate"),
}
"""What runs until it is stopped, and what prints files to keep, has no result to print as JSON."""


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and subcommand, by its path."""
    for name, command in COMMANDS.items():
        yield from leaves((name,), get_command(importlib.import_module(f"logflume.cli.{command.module}").app))


def leaves(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    subcommands = getattr(command, "commands", None)
    if not subcommands:
        yield path, command
    for name, each in (subcommands or {}).items():
        yield from leaves((*path, name), each)


EVERY = dict(commands())


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_every_command_has_an_example_that_it_takes(path: tuple[str, ...]) -> None:
    examples = [line.strip() for line in (EVERY[path].help or "").splitlines() if line.strip().startswith("Example: ")]
    assert examples, f"{' '.join(path)} --help has no example"
    for example in examples:
        words = shlex.split(example.removeprefix("Example: ").partition(" | ")[2] or example.removeprefix("Example: "))
        words = words[words.index("logflume") :]
        assert tuple(words[1 : 1 + len(path)]) == path
        options = {word.partition("=")[0] for word in words[1 + len(path) :] if OPTION.match(word)}
        known = {name for parameter in EVERY[path].params for name in parameter.opts + parameter.secondary_opts}
        assert options <= known | {"--profile"}


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_every_command_with_something_to_tell_tells_it_as_json(path: tuple[str, ...]) -> None:
    assert any("--json" in parameter.opts for parameter in EVERY[path].params) != (path in SPEAKS_LINES)


def test_lists_leave_out_what_applications_keep_for_themselves(tmp_path: object) -> None:
    data = f"{tmp_path}/data"
    for name in ("flights", "app-COUNT-changelog", "app-BY-KEY-repartition"):
        assert f'"created": "{name}"' in run("topic", "create", name, "--json", "--data", data).stdout
    assert run("topic", "list", "--data", data).stdout.splitlines()[1:] == ["flights\t1\t0"]
    assert "app-COUNT-changelog\t1\t0" in run("topic", "list", "--internal", "--data", data).stdout
    assert '"deleted": "flights"' in run("topic", "delete", "flights", "--json", "--data", data).stdout


def test_an_option_of_a_connector_is_called_required_only_where_it_is() -> None:
    lines = [json.loads(line) for line in run("connect", "describe", "file-source", "--json").stdout.splitlines()]
    assert {each["option"] for each in lines if each["default"] == "required"} == {"name", "connector", "topic", "file"}


DURATIONS = [
    (path, param.opts[0])
    for path, command in EVERY.items()
    for param in command.params
    if param.type.name.startswith("float") and path != ("archive",)  # which refuses 0 too: test_backfill_app.py
]


@pytest.mark.parametrize("number", ["nan", "inf", "1e300", "-1"])
@pytest.mark.parametrize(("path", "option"), DURATIONS, ids=str)
def test_a_duration_is_a_number_of_seconds(path: tuple[str, ...], option: str, number: str) -> None:
    arguments = ["x" for param in EVERY[path].params if param.param_type_name == "argument"]
    assert option in run(*path, *arguments, f"{option}={number}", code=2).stderr
