"""Decoders of a class are made when its module is loaded: two threads that have msgspec look at one class for the first time at
once crash the interpreter (0.22)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = [file for part in ("log", "streams", "sql", "connect", "logflume/cli") for file in sorted((ROOT / part).rglob("*.py"))]
PLAIN = {"int", "str", "float", "bool", "bytes", "dict", "list", "tuple", "None", "Headers"}
ONE_THREAD = {"log/registry/requests.py", "sql/rest/requests.py"}
"""Where the class is an argument: both are called by their server's loop alone."""


def made_late(tree: ast.Module) -> Iterator[int]:
    """Yield the lines on which something is decoded to a class that is given with the call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("decode", "convert"):
            for given in node.keywords:
                names = {each.id for each in ast.walk(given.value) if isinstance(each, ast.Name)}
                if given.arg == "type" and names - PLAIN:
                    yield node.lineno


def test_no_decoder_of_a_class_is_made_by_who_decodes() -> None:
    found = [
        f"{name}:{line}"
        for file in FILES
        if (name := file.relative_to(ROOT).as_posix()) not in ONE_THREAD
        for line in made_late(ast.parse(file.read_text()))
    ]
    assert found == [], "make it at the module's level: `decode = msgspec.json.Decoder(Class).decode`"


@pytest.mark.parametrize(
    ("text", "lines"),
    [("msgspec.json.decode(b, type=Checkpoint)", [1]), ("x = 1\nmsgspec.convert(b, type=dict[str, Row])", [2]),
     ("msgspec.json.decode(b, type=dict[str, int])", []), ("data.decode()", [])],
)  # fmt: skip
def test_such_calls_are_found(text: str, lines: list[int]) -> None:
    assert list(made_late(ast.parse(text))) == lines


THREADS = """
import sys, threading
from logflume.log.storage.checkpoint import Checkpoint, SegmentInfo, pack_checkpoint, unpack_checkpoint
sys.setswitchinterval(1e-6)
data = pack_checkpoint(Checkpoint(1, 0, 0, [SegmentInfo(0, 0, 0, 0, 0, 0, 0, 0)]))
begin = threading.Barrier(8)
def read():
    begin.wait()
    unpack_checkpoint(data, "checkpoint")
threads = [threading.Thread(target=read) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
"""


def test_checkpoints_are_first_read_by_several_threads_at_once() -> None:
    for _ in range(5):
        subprocess.run([sys.executable, "-c", THREADS], check=True, timeout=60, cwd=ROOT)
