"""A pipeline of Spark Declarative Pipelines that reads a topic and writes one, by the command that Spark's people use."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from logflume.log import connect

from ..log._server_process import ServerProcess
from ._spark_session import NEEDS_JAVA, ROOT, SPARK_WAIT_S
from .running import read

MISSING = [name for name in ("pyspark.pipelines", "grpc", "grpc_status", "yaml", "zstandard") if find_spec(name) is None]
SPEC = """
name: orders
storage: {storage}
libraries:
  - glob:
      include: transformations/**
"""
TRANSFORMATIONS = """
import os

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

from logflume.streams.spark import use_in_pipeline

spark = SparkSession.active()
use_in_pipeline(spark)
log = os.environ["LOG"]
dp.create_sink("dear", "logflume", {"log": log, "topic": "dear"})


@dp.temporary_view
def orders():
    rows = spark.readStream.format("logflume").option("log", log).option("topic", "orders").load()
    return rows.selectExpr("key", "value", "CAST(CAST(value AS STRING) AS INT) AS price")


@dp.append_flow(target="dear")
def dear_orders():
    return spark.readStream.table("orders").where("price >= 100").select("key", "value")
"""


@pytest.mark.spark
@pytest.mark.slow
@NEEDS_JAVA
@pytest.mark.skipif(bool(MISSING), reason=f"Declarative Pipelines need {', '.join(MISSING)}: pip install 'pyspark[pipelines]'")
def test_a_pipeline_reads_a_topic_and_writes_one_and_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(storage=(tmp_path / "storage").as_uri()))
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "orders.py").write_text(TRANSFORMATIONS)
    server = ServerProcess(str(tmp_path / "log"))
    try:
        with connect(server.address) as log:
            for topic in ("orders", "dear"):
                log.admin().create_topic(topic, partitions=2)
            for begin in (0, 150):
                with log.producer() as producer:
                    for price in range(begin, begin + 150):
                        producer.send("orders", b"%d" % price, key=b"k%d" % (price % 7))
                run_pipeline(tmp_path, server.address)
                found = [int(record.value or b"") for record in read(log, "dear")]
                assert sorted(found) == list(range(100, begin + 150))
    finally:
        server.stop()


def run_pipeline(folder: Path, address: str) -> None:
    """Run what is new through the pipeline in the folder."""
    home = Path(sys.executable).parent
    more = {"LOG": address, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment = os.environ | more | {"PATH": f"{home}{os.pathsep}{os.environ['PATH']}"}
    loopback = [f"spark.{name}=127.0.0.1" for name in ("driver.host", "driver.bindAddress", "connect.grpc.binding.address")]
    conf = [word for setting in (*loopback, "spark.ui.enabled=false") for word in ("--conf", setting)]
    command = [str(home / "spark-pipelines"), "run", *conf]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SPARK_WAIT_S, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
