"""How long it takes from a command to the first record in a task, beside an empty job of PySpark."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._report import Figure

from .session import broker, fill

if TYPE_CHECKING:
    from collections.abc import Iterable

TURNS = 3
MORE_S = 2.0
ROOT = Path(__file__).resolve().parents[2]
OURS = """
from benchmarks.spark.apps import noting
app = noting({folder!r})
if __name__ == "__main__":
    app.run()
"""
EMPTY = """
from pyspark.sql import SparkSession

def look(rows):
    from benchmarks.spark.apps import note_time
    note_time({folder!r})
    yield from rows

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.range(1000).mapInArrow(look, "id long").count()
"""


def measure_start() -> Iterable[Figure]:
    """From the command to the first record in a Python task, wall and CPU; the least of TURNS, in turn."""
    with broker() as (log, where):
        fill(log, 10_000, 2)
        command = ["-m", "logflume", "backfill", "FILE", "--master", "local[2]", "--bootstrap", where]
        empty, ours = zip(*((begun(EMPTY, ["FILE"]), begun(OURS, command)) for _ in range(TURNS)), strict=True)
    least = [[min(values) for values in zip(*each, strict=True)] for each in (empty, ours)]
    for (first, second), what, more_s in zip(zip(*least, strict=True), ("", ", CPU"), (MORE_S, None), strict=True):
        yield Figure(f"an empty job of PySpark, to its first task{what}", first, "s")
        yield Figure(f"a backfill, to its first record{what}", second, "s", more_s and first + more_s, is_upper=True)


def begun(program: str, command: list[str]) -> tuple[float, float]:
    """Run a program to its end; return the (wall, CPU) seconds after which its first task has begun."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "program.py")
        file.write_text(program.format(folder=folder))
        words = [str(file) if word == "FILE" else word for word in command]
        at = time.time()
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
        subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env=environment,
            check=True,
            capture_output=True,
            timeout=300,
            start_new_session=True,
        )
        wall, used_s = Path(folder, "first-task").read_text().split()
        return float(wall) - at, float(used_s)
