"""What Spark's errors say: the line that names the cause, and whether another try can help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from logflume.log import LogflumeError, TransportError
from logflume.streams.runtime import StreamsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CAUSE_CHARS_MAX = 500
_OF_PYTHON = re.compile(r"\bMemoryError\b")
"""How a Python worker says that it has too little."""
_OF_JAVA = re.compile(r"OutOfMemoryError|exited with code 52\b|code:? 137\b|Container killed .* memory|OOMKilled")
"""What ends executors that have too little memory: their JVM says it, or by 52, or whoever has killed them."""


@contextmanager
def failures_of(spark: SparkSession, what: str) -> Iterator[None]:
    """Raise errors of ours for those of Spark: `what` it has not done, and why.

    Raises:
        TransportError: another try may help: an executor or the log is away.
        StreamsError: a function of the application, its input, or Spark itself is the cause.
    """
    try:
        yield
    except LogflumeError:
        raise
    except Exception as error:
        is_passing = raised_by(error) in ("", TransportError.__name__) and is_running(spark)
        kind = TransportError if is_passing else StreamsError
        raise kind(f"Spark has not {what}: {cause_of(error)}") from error


@contextmanager
def unless_gone() -> Iterator[None]:
    """Ask Spark in passing: that its process has ended is told by whoever waits for a job."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    with suppress(Py4JError, OSError):
        yield


def is_running(spark: SparkSession) -> bool:
    """Return whether Spark is there for another try."""
    context = spark.sparkContext._jsc
    try:
        return context is not None and not context.sc().isStopped()
    except Exception:  # noqa: BLE001 - its process has ended
        return False


def cause_of(error: Exception) -> str:
    """Return the line of a Python worker's traceback, or those of Java's, that say what went wrong; and what helps, if memory."""
    text = str(error)
    after = text.partition("Traceback (most recent call last):\n")[2].splitlines()
    of_python = next((line for line in after if line and not line.startswith(" ")), "")
    if of_python:
        return of_python[:CAUSE_CHARS_MAX] + more_memory(of_python)
    first = next((line.removeprefix(": ") for line in text.splitlines() if line.startswith(": ")), text)
    bottom = bottom_of(error)
    more = "" if bottom in first else f": {bottom}"
    return first[:CAUSE_CHARS_MAX].rstrip(".") + more + more_memory(first + more)


def more_memory(cause: str) -> str:
    """Return what helps, if a cause is a want of memory; else nothing."""
    if _OF_PYTHON.search(cause):
        return "; give Python's workers more memory, such as --conf spark.executor.pyspark.memory=2g"
    if "Python worker exited unexpectedly" in cause:
        return (
            "; it crashed, or had too little memory: where spark.executor.pyspark.memory is set it bounds what a worker maps, "
            "its libraries too; the executor's stderr has its last words"
        )
    if _OF_JAVA.search(cause):
        return "; give executors more memory, such as --conf spark.executor.memory=4g (of a local master: spark.driver.memory)"
    return ""


def bottom_of(error: Exception) -> str:
    r"""Return the line that says what is at the bottom of an error: the last cause that Java names.

    >>> bottom_of(Exception("An error.\n: a.SparkException: not made\n\tat a\nCaused by: b.Unknown: no x\n\tat b"))
    'b.Unknown: no x'
    """
    lines = str(error).splitlines()
    causes = [line.partition(": ")[2] for line in lines if line.startswith(("Caused by: ", ": "))]
    return (causes[-1:] or lines or [type(error).__name__])[0][:CAUSE_CHARS_MAX]


def raised_by(error: Exception) -> str:
    """Return the name of the exception that has ended a Python task; "": it was none, so that the task's process has ended.

    >>> raised_by(Exception("Traceback (most recent call last):\\n  File ...\\nlogflume.log.errors.TransportError: away"))
    'TransportError'
    """
    _, traceback, last = str(error).rpartition("Traceback (most recent call last):\n")
    line = next((line for line in last.splitlines() if line and not line.startswith(" ")), "") if traceback else ""
    return line.partition(":")[0].rpartition(".")[2]
