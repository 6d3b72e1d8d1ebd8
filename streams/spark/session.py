"""The Spark session of a backfill: local by default, any cluster by its master URL."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from logflume.log import LogflumeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17


class SparkUnavailable(LogflumeError):
    """Spark cannot start here; the message says what is missing and which command brings it."""

    code = "SPARK_UNAVAILABLE"


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


def open_session(name: str, *, master: str = "local[*]", memory: str = "1g") -> SparkSession:
    """Return a session; quiet, without a web page, with the Python that runs this. Raises SparkUnavailable."""
    check_spark()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark: SparkSession = (
        SparkSession.builder.appName(name)
        .master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", memory)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "8")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50000")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark
