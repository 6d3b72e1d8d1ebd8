"""The Spark session of a backfill: local by default, any cluster by its master URL.

What the user, his properties file, spark-defaults.conf or spark-submit says always holds; what is set here fills gaps, and
hosts and addresses are filled in for a local master only.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logflume.log import InvalidInput, LogflumeError

from .failures import bottom_of, unless_gone

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_log = logging.getLogger("logflume.streams")
JAVA_MIN = 17
MASTER_TIMEOUT_S = 10.0
MASTERS = re.compile(r"spark://.+|yarn|k8s://.+|local(\[(\*|[1-9]\d*)(\s*,\s*[1-9]\d*)?\])?|local-cluster\[.+\]")
NEEDED = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
}
"""What the runner relies on: a pass has as many partitions as it asks for; a batch of rows that are bundles is bounded."""
LOG_LEVEL = "spark.log.level"
ANYWHERE = {LOG_LEVEL: "ERROR", "spark.sql.shuffle.partitions": "8"}
CONFIGURED_BY = ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME")
"""With one of these in the environment, somebody else may have said which master it is."""
TOLD = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.sql.execution.datasources.FileFormatWriter",
    "org.apache.spark.sql.execution.streaming",
)
"""Who logs with stack traces what has ended a task, a stage that is kept, or a micro-batch: we say it ourselves, in a line."""
QUIET = "spark.ui.showConsoleProgress"
LOCALLY = {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}


class SparkUnavailable(LogflumeError):
    """Spark cannot start here, or its executors lack something; the message says what is missing and how to bring it."""

    code = "SPARK_UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """What the user says about Spark.

    Attributes:
        master: Spark's master URL; None: as spark-submit or the configuration says, else `local[*]`.
        conf: settings of Spark by name; they win over every file.
        properties_file: read by Spark in place of spark-defaults.conf.
    """

    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    properties_file: Path | None = None

    def __post_init__(self) -> None:
        if self.properties_file is not None and not self.properties_file.is_file():
            raise InvalidInput(
                f"no file {self.properties_file}; expected Spark's properties, a line each: spark.executor.cores 4"
            )

    def wishes(self) -> dict[str, str]:
        """Return the settings to be set by name."""
        return dict(self.conf) | ({"spark.master": self.master} if self.master else {})


def parse_conf(given: Sequence[str]) -> dict[str, str]:
    """Return settings given as NAME=VALUE.

    >>> parse_conf(["spark.executor.cores=2"])
    {'spark.executor.cores': '2'}
    """
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.startswith("spark."):
            raise InvalidInput(
                f"--conf expects spark.NAME=VALUE, for example spark.executor.cores=2; found {text.partition('=')[0]!r}"
            )
        found[name] = value
    return found


def cores_of(settings: SparkSettings) -> int | None:
    """Return how many cores a session with these settings would have, as far as they say; None: a cluster knows.

    >>> cores_of(SparkSettings("local[3]")), cores_of(SparkSettings("spark://m:7077", {"spark.cores.max": "40"}))
    (3, 40)
    """
    wishes = settings.wishes()
    master = wishes.get("spark.master", "local[*]")
    local = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\d+)?\])?", master)
    if local is not None:
        return (os.cpu_count() or 1) if local[1] == "*" else int(local[1] or 1)
    numbers = [wishes.get(name, "") for name in ("spark.cores.max", "spark.executor.instances", "spark.executor.cores")]
    most, instances, each = (int(text) if text.isdecimal() else None for text in numbers)
    return most or (instances * (each or 1) if instances else None)


def java_version() -> int | None:
    """Return the major version of the Java that Spark would start, None without one."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if not java:
        return None
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)', done.stderr)
    return int(found.group(1)) if found else None


def check_spark() -> None:
    """Raise SparkUnavailable unless pyspark and Java 17 or newer are there."""
    try:
        import pyspark  # noqa: F401
    except ModuleNotFoundError:
        raise SparkUnavailable("Spark is not installed; install it with: pip install 'logflume[spark]'") from None
    version = java_version()
    if version is None or version < JAVA_MIN:
        raise SparkUnavailable(
            f"Spark needs Java {JAVA_MIN} or newer, found {version if version else 'none'}; on Debian or Ubuntu: "
            "apt-get install openjdk-17-jre-headless, or set JAVA_HOME"
        )


def check_master(master: str) -> None:
    """Refuse a master that Spark does not know, or that does not answer: Spark itself would try for a minute.

    Raises:
        InvalidInput: it is no URL of a master.
        SparkUnavailable: none of `spark://HOST:PORT[,HOST:PORT]` answers.
    """
    if not MASTERS.fullmatch(master):
        raise InvalidInput(
            f"no master {master!r}; expected spark://HOST:PORT, yarn, k8s://HOST:PORT, or this machine: local[CORES], local[*]"
        )
    if not master.startswith("spark://"):
        return
    reasons = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise InvalidInput(f"a master is spark://HOST:PORT, found {master!r}")
        try:
            socket.create_connection((host, int(port)), MASTER_TIMEOUT_S).close()
        except (OSError, OverflowError) as error:
            reasons.append(f"{address}: {error}")
        else:
            return
    raise SparkUnavailable(f"no Spark master answers at {master} ({'; '.join(reasons)}); does it run, and is this its address?")


def is_local(spark: SparkSession) -> bool:
    """Return whether executors run on this machine, inside the driver."""
    return str(spark.sparkContext.master).startswith("local")


def refuse_speculation(spark: SparkSession) -> None:
    """Raise InvalidInput if Spark may run a task twice at a time: both would change the stores of one stream task."""
    if str(spark.sparkContext.getConf().get("spark.speculation", "false")).lower() == "true":
        raise InvalidInput(
            "spark.speculation is true: two attempts of a task at a time would change the same stores; run this application with "
            "--conf spark.speculation=false"
        )


def open_session(name: str, settings: SparkSettings | None = None) -> SparkSession:
    """Return a session, quiet; one that is active in this process is taken as it is.

    Raises:
        SparkUnavailable: Spark, Java or the master is not there.
    """
    check_spark()
    from pyspark.sql import SparkSession

    settings = settings or SparkSettings()
    spark = SparkSession.getActiveSession()
    if spark is None:
        spark = SparkSession(_context(name, settings))
    for key, value in NEEDED.items():
        spark.conf.set(key, value)
    return spark


def close_session(spark: SparkSession) -> None:
    """Stop a session, one whose process has ended too."""
    with unless_gone(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # pyspark's, of a process that has ended
        spark.stop()


def _context(name: str, settings: SparkSettings) -> SparkContext:
    """Start Spark's driver, or join the one that spark-submit has started."""
    from pyspark import SparkConf, SparkContext

    wishes = settings.wishes()
    if "spark.master" in wishes:
        check_master(wishes["spark.master"])
    _prepare_environment(settings)
    start = SparkConf(loadDefaults=False)
    for key, value in wishes.items():
        start.set(key, value)
    silence_py4j()
    with starting():
        SparkContext._ensure_initialized(conf=start)  # the files of settings are known from here on
    conf = SparkConf()
    for key, value in ({QUIET: "false"} | wishes).items():  # Spark's start-up itself says true
        conf.set(key, value)
    conf.setIfMissing("spark.app.name", name).setIfMissing("spark.master", "local[*]")
    master = str(conf.get("spark.master"))
    check_master(master)
    is_quiet = not conf.contains(LOG_LEVEL)
    for key, value in (ANYWHERE | (LOCALLY if master.startswith("local") else {})).items():
        conf.setIfMissing(key, value)
    python = conf.get("spark.pyspark.python", sys.executable if master.startswith("local") else None)
    if python:
        os.environ.setdefault("PYSPARK_PYTHON", python)
    with starting():
        context = SparkContext(conf=conf)
    context._accumulatorServer.handle_error = _tell_debug  # type: ignore[method-assign]
    context.setLogLevel(str(conf.get(LOG_LEVEL)))
    if is_quiet:
        _keep_silent(context, TOLD)
    return context


def _keep_silent(context: SparkContext, loggers: Sequence[str]) -> None:
    assert context._jvm is not None
    log4j = context._jvm.org.apache.logging.log4j
    for name in loggers:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


def silence_py4j() -> None:
    """Have the root logger leave out what py4j tells of a process that has ended, a page of tracebacks: we say it in a line."""
    logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


def _tell_debug(request: Any, client_address: Any) -> None:
    """Take a connection for accumulators that ends with Spark's process as those of py4j: socketserver prints tracebacks."""
    _log.debug("connection from %s ended", client_address, exc_info=True)


@contextmanager
def starting() -> Iterator[None]:
    """Say why Spark has not started. Raises SparkUnavailable."""
    try:
        yield
    except Exception as error:
        why = bottom_of(error)
        if "JAVA_GATEWAY_EXITED" in why:
            why = "its process has ended at once; what it said about that is printed above"
        raise SparkUnavailable(
            f"Spark has not started: {why.rstrip('.')}. Look at the master and the settings (--conf, --properties-file, "
            "spark-defaults.conf)"
        ) from error


def _prepare_environment(settings: SparkSettings) -> None:
    """Say by the environment what Spark reads only there when it starts; what is set already holds."""
    if settings.properties_file is not None:
        if "PYSPARK_GATEWAY_PORT" in os.environ:
            raise InvalidInput("spark-submit has started Spark already: give --properties-file to it")
        given = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {shlex.quote(str(settings.properties_file.resolve()))} {given}"
    is_plain = settings.properties_file is None and not any(name in os.environ for name in CONFIGURED_BY)
    if settings.wishes().get("spark.master", "local" if is_plain else "").startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        if "spark.pyspark.python" not in settings.conf:
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's own helpers would take any python3 on the path
