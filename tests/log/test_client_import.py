"""Importing the log, and using it without records, loads none of the heavy libraries."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("numpy", "numba", "pyarrow", "pandas", "asyncio")


def loaded_after(program: str) -> set[str]:
    report = f"{program}\nimport sys; print(*[m for m in {HEAVY} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True, timeout=60)
    return set(run.stdout.split())


def test_importing_the_facade_loads_next_to_nothing() -> None:
    assert loaded_after("import logflume.log; logflume.log.LogflumeError") == set()


def test_administration_needs_no_numpy() -> None:
    program = """
import tempfile
from logflume.log import TopicPartition, connect
with tempfile.TemporaryDirectory() as folder, connect(folder + "/data") as log:
    log.admin().create_topic("t")
    log.producer().send("t", b"x").result(20)
    assert log.admin().end_offsets([TopicPartition("t", 0)]) == {TopicPartition("t", 0): 1}
"""
    assert loaded_after(program) <= {"asyncio"}


def test_every_name_of_the_facade_exists() -> None:
    loaded_after("import logflume.log as l\nassert all(getattr(l, name) is not None for name in l.__all__)")
    loaded_after("import logflume.log.schemas as s\nassert all(getattr(s, name) is not None for name in s.__all__)")
