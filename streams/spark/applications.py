"""An application in a Python file: its plan on the driver, and on executors that have neither it nor what lies beside it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logflume.log import InvalidInput
from logflume.streams.runtime import EngineOptions
from logflume.streams.seams import Plan


@dataclass(frozen=True, slots=True)
class AppFile:
    """What makes the plan of the application in a file: the file is run, by each Python worker of Spark too.

    That is because classes of a file that is no module do not pickle. In a Spark task it is the copy that was sent along.
    """

    path: str

    def __call__(self) -> Plan:
        """Return the plan."""
        return self.read()[0]

    def read(self) -> tuple[Plan, EngineOptions]:
        """Return the plan, and what the file says that it runs with."""
        app = app_of(self._here())
        return app.plan(), app.settings()

    def _here(self) -> Path:
        path = Path(self.path)
        if "pyspark" in sys.modules:
            from pyspark import SparkFiles, TaskContext

            sent = Path(SparkFiles.get(path.name)) if TaskContext.get() is not None else path
            return sent if sent.is_file() else path
        return path

    def neighbours(self) -> list[Path]:
        """Return the modules and packages beside the file that it imports: they have to be where it runs."""
        self()
        folder = Path(self.path).parent
        return sorted(set(_imported_from(folder)))


def _imported_from(folder: Path) -> Iterator[Path]:
    for name, module in list(sys.modules.items()):
        top = name.partition(".")[0]
        if top in ("logflume", "__main__") or not getattr(module, "__file__", None):
            continue
        for path in (folder / f"{top}.py", folder / top):
            if Path(str(module.__file__)).resolve().is_relative_to(path):
                yield path


def app_of(file: Path) -> Any:
    """Return the lf.App that a Python file runs, without running it; the options of run() are among its own."""
    from logflume.streams import App
    from logflume.streams.dsl.mistakes import run_script

    if not file.is_file():
        raise InvalidInput(f"no file {file}; expected a Python file such as examples/delays.py")
    found: list[App] = []
    original = App.run

    def note(self: App, *, until: object = None, **options: Any) -> None:  # who reads the file says when it ends
        self.options |= options
        found.append(self)

    App.run = note  # type: ignore[method-assign, assignment]
    try:
        run_script(file)
    finally:
        App.run = original  # type: ignore[method-assign]
    if len(found) != 1:
        raise InvalidInput(f"{file} runs {len(found)} applications; expected one app.run()")
    return found[0]
