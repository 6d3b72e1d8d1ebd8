"""Declarative Pipelines: a session of Spark Connect that reads and writes topics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .source import LogflumeDataSource

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_OF_WORKERS = "__python_accumulator__"


def use_in_pipeline(spark: SparkSession) -> None:
    """Make `format("logflume")` known to the session of a pipeline; a file of its definitions calls it once.

    Spark's client up to 4.3.0 takes what the workers of any data source in Python say of their profilers for a broken answer, and
    ends the pipeline (SPARK-59135); here it does not get to that.
    """
    spark.dataSource.register(LogflumeDataSource)
    client: Any = spark.client
    answers = client._execute_and_fetch_as_iterator

    def without_profilers(*args: Any, **kwargs: Any) -> Iterator[Any]:
        return (each for each in answers(*args, **kwargs) if getattr(each, "name", None) != _OF_WORKERS)

    client._execute_and_fetch_as_iterator = without_profilers
