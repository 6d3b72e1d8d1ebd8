"""Java as tests start it: in processes that live for seconds, most of which goes into loading and compiling classes.

`python -m tests._java` writes down the classes of Spark as a JVM has them once they are loaded and checked; `make test` does it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

CLASSES = Path(sys.prefix, "spark-classes.jsa")
"""Is read by a JVM that finds the same Java and the same jars; another one loads its classes itself, and says nothing."""
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The quick compiler alone, and the plain collector."""
_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def quick_spark() -> str:
    """Return the options of a JVM that runs Spark."""
    return f'{QUICK_JAVA} {_SILENT} "-XX:SharedArchiveFile={CLASSES}"' if CLASSES.exists() else QUICK_JAVA


def write_classes() -> None:
    """Run a little of all that tests have Spark do, and let the JVM write its classes when it ends."""
    from logflume.streams.spark import SparkSettings, SparkUnavailable, open_session

    written = CLASSES.with_suffix(".part")
    written.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f'{QUICK_JAVA} {_SILENT} "-XX:ArchiveClassesAtExit={written}"'
    try:
        spark = open_session("classes", SparkSettings("local[2]"))
    except SparkUnavailable:
        return  # its tests are left out
    print("writing down the classes of Spark for its tests (once)", flush=True)
    rows = spark.range(100).selectExpr("id", "CAST(id AS STRING) AS key", "CAST(CAST(id AS STRING) AS BINARY) AS value")
    same = rows.mapInArrow(lambda batches: batches, rows.schema)
    same.repartition(2, "key").sortWithinPartitions("key").groupBy("key").count().collect()
    spark.sparkContext.parallelize(range(4), 2).map(lambda n: (n, n)).groupByKey().count()
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    written.replace(CLASSES)  # whole


if __name__ == "__main__":
    write_classes()
