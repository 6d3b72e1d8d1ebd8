"""What executors need before a job starts: the package and the application travel there, and what is missing is said.

With a local master they are this machine and this Python, and nothing has to travel.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
import threading
import time
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
from .failures import cause_of, unless_gone
from .session import SparkUnavailable, is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .steps import StepPlan

PROBES_PER_CORE = 2
SHOWN_MAX = 5
WARNED_AFTER_S, LOOK_EVERY_S = 20.0, 0.5
ASKED = ("spark.executor.memory", "spark.executor.cores", "spark.executor.instances", "spark.cores.max")
_log = logging.getLogger("logflume.streams")


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
    with warned_of_no_executors(spark):
        problems = _problems(spark, work, step)
    if problems:
        more = f"; and {len(problems) - SHOWN_MAX} more" if len(problems) > SHOWN_MAX else ""
        raise SparkUnavailable(f"executors lack something: {'; '.join(problems[:SHOWN_MAX])}{more}")


@contextmanager
def warned_of_no_executors(spark: SparkSession, after_s: float = WARNED_AFTER_S) -> Iterator[None]:
    """Say so where a cluster gives no executor for long: Spark itself waits for ever, and says it where nobody looks."""
    if is_local(spark):
        yield
        return
    with meanwhile("spark-executors", lambda done: _warn(spark, done, after_s)):
        yield


@contextmanager
def meanwhile(name: str, work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run something in a thread until the context ends: it is told so by the event."""
    done = threading.Event()
    thread = threading.Thread(target=work, args=(done,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _warn(spark: SparkSession, done: threading.Event, after_s: float) -> None:
    """Warn each time that executors are missing for so long."""
    with unless_gone():
        context = spark.sparkContext
        since_s: float | None = None
        while not done.wait(LOOK_EVERY_S):
            if context._jsc.sc().getExecutorMemoryStatus().size() > 1:  # the driver is one
                since_s = None
                continue
            now = time.monotonic()
            since_s = now if since_s is None else since_s
            if now - since_s >= after_s:
                asked = (f"{name}={context.getConf().get(name)}" for name in ASKED if context.getConf().contains(name))
                _log.warning(
                    "no executor for %.0f s, still waiting: all cores of %s are taken, or no worker has the memory and cores "
                    "that an executor asks for (%s)",
                    now - since_s,
                    context.master,
                    ", ".join(asked) or "Spark's defaults: spark.executor.memory=1g",
                )
                since_s, after_s = now, 10 * after_s


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
        raise SparkUnavailable(
            f"executors cannot run tasks: {cause_of(error)}. Look at their Python (spark.pyspark.python has to be there, and of "
            "the driver's version), and at their disk (SPARK_LOCAL_DIRS) and memory"
        ) from error
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
