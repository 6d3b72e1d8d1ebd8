"""What executors need before a job starts: the package and the application travel there, and what is missing is said.

With a local master they are this machine and this Python, and nothing has to travel.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from logflume.log import InvalidInput
from logflume.streams.seams import Plan

from . import probe, unpack
from .applications import AppFile
from .session import SparkUnavailable, is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .steps import StepPlan

PROBES_PER_CORE = 2
SHOWN_MAX = 5
CAUSE_CHARS_MAX = 500


def equip(spark: SparkSession, step: StepPlan) -> None:
    """Send what the tasks of a step import, and try on the executors that they can begin.

    Raises:
        InvalidInput: the plan does not pickle.
        SparkUnavailable: executors lack a module, do not reach the log, or run another Python.
    """
    if is_local(spark):
        return
    context = spark.sparkContext
    context.addPyFile(str(pack(_served() / "logflume-package.zip")))
    if isinstance(step.load_plan, AppFile):
        context.addFile(step.load_plan.path)
        beside = step.load_plan.neighbours()
        if beside:
            context.addPyFile(str(zipped(_served() / f"logflume-application-{uuid.uuid4().hex[:8]}.zip", files_of(beside))))
    work = pickled(step.load_plan)
    problems = _problems(spark, work, step)
    if problems:
        more = f"; and {len(problems) - SHOWN_MAX} more" if len(problems) > SHOWN_MAX else ""
        raise SparkUnavailable(f"executors lack something: {'; '.join(problems[:SHOWN_MAX])}{more}")


def pickled(load_plan: Callable[[], Plan]) -> bytes:
    """Return what makes the plan as it travels. Raises InvalidInput where it cannot."""
    from pyspark import cloudpickle

    try:
        return bytes(cloudpickle.dumps(load_plan))  # type: ignore[no-untyped-call]
    except Exception as error:
        raise InvalidInput(f"the application cannot be sent to executors, it does not pickle: {error}") from error


@cache
def _served() -> Path:
    """Return a directory that lives as long as this process: executors that start later fetch from it too."""
    folder = tempfile.mkdtemp(prefix="logflume-sent-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _problems(spark: SparkSession, work: bytes, step: StepPlan) -> list[str]:
    from pyspark import cloudpickle

    context = spark.sparkContext
    count = PROBES_PER_CORE * context.defaultParallelism
    # executors may lack what importing the probe would need
    cloudpickle.register_pickle_by_value(probe)  # type: ignore[no-untyped-call]
    try:
        with _marked(_shared_directory(step)) as marker:
            asked = probe.Probe(work, step.where, marker, _archived(step))
            return sorted(context.parallelize(range(count), count).flatMap(asked).distinct().collect())
    except Exception as error:
        raise SparkUnavailable(f"executors cannot run the tasks of this Python: {cause_of(error)}") from error
    finally:
        cloudpickle.unregister_pickle_by_value(probe)  # type: ignore[no-untyped-call]


def _shared_directory(step: StepPlan) -> str | None:
    """Return the directory that executors have to share; an object store is seen by all who can reach it."""
    if step.state_root is not None:
        return step.state_root
    return step.kept.root if step.kept is not None and "://" not in step.kept.root else None


def _archived(step: StepPlan) -> str | None:
    """Return a file of the archive that executors have to see by its path."""
    files = (file for each in step.archive.values() for file in each if "://" not in file.root)
    return next((file.path for file in files), None)


@contextmanager
def _marked(state_root: str | None) -> Iterator[str | None]:
    """Give the path of a file in the directory that executors should share."""
    if state_root is None:
        yield None
        return
    Path(state_root).mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(prefix="is-shared-", dir=state_root) as marker:
        yield marker.name


def cause_of(error: Exception) -> str:
    """Return the line of a Python worker's traceback, or of Java's, that says what went wrong."""
    text = str(error)
    after = text.partition("Traceback (most recent call last):\n")[2].splitlines()
    of_java = [line.removeprefix(": ") for line in text.splitlines() if line.startswith(": ")]
    return next((line for line in [*after, *of_java] if line and not line.startswith(" ")), text)[:CAUSE_CHARS_MAX]


def raised_by(error: Exception) -> str:
    """Return the name of the exception that has ended a Python task; "": it was none, so that the task's process has ended.

    >>> raised_by(Exception("Traceback (most recent call last):\\n  File ...\\nlogflume.log.errors.TransportError: away"))
    'TransportError'
    """
    _, traceback, last = str(error).rpartition("Traceback (most recent call last):\n")
    line = next((line for line in last.splitlines() if line and not line.startswith(" ")), "") if traceback else ""
    return line.partition(":")[0].rpartition(".")[2]


def pack(archive: Path) -> Path:
    """Write the package as it runs here, behind `unpack.py`, unless that was done; return the archive."""
    if archive.is_file():
        return archive
    import logflume

    home = Path(str(logflume.__file__)).parent
    files = [(Path("logflume", "__init__.py"), Path(unpack.__file__))]
    return zipped(archive, [*files, *((Path(unpack.FOLDER, name), path) for name, path in files_of([home]))])


def files_of(tops: Iterable[Path]) -> Iterator[tuple[Path, Path]]:
    """Yield (path in an archive, path) of modules and whole packages, symbolic links followed, without compiled files."""
    for top in tops:
        if top.is_file():
            yield Path(top.name), top
        for folder, folders, names in os.walk(top, followlinks=True):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for name in sorted(names):
                path = Path(folder, name)
                yield Path(top.name, path.relative_to(top)), path


def zipped(archive: Path, files: Iterable[tuple[Path, Path]]) -> Path:
    """Write files into an archive, which appears whole; return it."""
    fresh = archive.with_name(f"{archive.name}.{uuid.uuid4().hex[:8]}")
    with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as opened:
        for name, path in files:
            opened.write(path, name)
    return fresh.replace(archive)
