"""Kernels that were never compiled here: a child process compiles them, and the engine's process loads them afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Collection
from pathlib import Path

import pytest

from logflume.log.compiled import drop_outdated, importing, is_compiled
from logflume.streams.kernels.compiling import compile_apart, source_of
from logflume.streams.kernels.loading import KernelLoader

pytest.importorskip("numba")


@pytest.mark.slow
def test_a_child_fills_the_cache_of_this_process(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    assert not is_compiled(source_of("table_slots"), environment)
    assert compile_apart(["table_slots"], environment=environment)
    assert is_compiled(source_of("table_slots"), environment)


def test_who_comes_while_another_compiles_waits_and_finds_it_compiled(tmp_path: Path) -> None:
    environment = {"NUMBA_CACHE_DIR": str(tmp_path)}
    ends: list[str] = []

    def come_second() -> None:
        with importing(source_of("table_slots"), environment):
            ends.append("second")

    second = threading.Thread(target=come_second)
    with importing(source_of("table_slots"), environment):
        second.start()
        second.join(0.2)
        ends.append("first")
    second.join(60)
    assert ends == ["first", "second"]


TWICE = """
from numba import njit
from .shared import step
@njit("int64(int64)", cache=True)
def twice(number):
    return step(step(number))
"""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["beside", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME"])
def test_kernels_are_compiled_anew_when_a_file_that_they_import_is_another(tmp_path: Path, place: str) -> None:
    folder, cache = tmp_path / "loops", tmp_path / "cache"
    folder.mkdir()
    kernels, shared = folder / "kernels.py", folder / "shared.py"
    kernels.write_text(TWICE)
    environment = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    environment |= {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    if place != "beside":
        environment[place] = str(cache)
    if place == "XDG_CACHE_HOME":
        (folder / "__pycache__").write_text("nothing can be kept here")

    def twice_one() -> int:
        drop_outdated(kernels, environment)
        command = [sys.executable, "-c", "from loops.kernels import twice; print(twice(1))"]
        return int(subprocess.run(command, env=environment, capture_output=True, check=True, timeout=120).stdout)

    for step, expected in ((1, 3), (10, 21)):
        shared.write_text(f"from numba import njit\n@njit\ndef step(number):\n    return number + {step}\n")
        os.utime(shared, (1_000_000_000, 1_000_000_000))
        assert not is_compiled(kernels, environment), "a file from elsewhere may be older than what was compiled"
        assert twice_one() == expected
        assert is_compiled(kernels, environment)
        (index,) = (folder if place == "beside" else cache).rglob("kernels.*.nbi")
        written = index.stat().st_mtime_ns
        assert twice_one() == expected
        assert index.stat().st_mtime_ns == written, "it was read, not compiled"


def test_a_child_that_fails_is_said_and_harms_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONMALLOC": "none of them"}  # Python does not start
    assert not compile_apart(["table_slots"], environment=environment)
    assert "could not be compiled apart" in caplog.text


def test_an_engine_loads_kernels_only_when_they_have_been_compiled_apart() -> None:
    asked: list[list[str]] = []
    may_go_on = threading.Event()
    has_asked = threading.Event()

    def compile_slowly(modules: Collection[str]) -> None:
        asked.append(list(modules))
        has_asked.set()
        may_go_on.wait(30)

    loader = KernelLoader(compile_first=compile_slowly)
    loader.observe(1_000_000)
    assert has_asked.wait(30)
    assert loader.loaded() is None
    may_go_on.set()
    for thread in threading.enumerate():
        if thread.name == "logflume-streams-kernels":
            thread.join(900)
    assert loader.loaded() is not None
    assert asked == [["json_rows", "texts", "slots", "table_slots"]]
