"""Whatever part of the package is imported first, by a worker of Spark or by a test alone, it can be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PARTS = sorted(
    f"logflume.{'.'.join(found.parent.relative_to(ROOT).parts)}"
    for part in ("log", "streams", "sql", "connect")
    for found in (ROOT / part).rglob("__init__.py")
)
FORKED = """
import os, sys, traceback
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            __import__(name)
        except BaseException as error:
            print(name, repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize("room", ["log", "streams", "sql", "connect"])
def test_each_part_can_be_the_first(room: str) -> None:
    parts = [name for name in PARTS if name.split(".")[1] == room]
    assert parts
    done = subprocess.run([sys.executable, "-c", FORKED, *parts], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.returncode) == ("", 0), done.stdout + done.stderr
