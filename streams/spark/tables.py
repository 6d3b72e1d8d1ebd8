"""Topics as tables of a Spark session: `spark.table("logflume.flights")`, and filters that spare reading."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from logflume.log import InvalidInput, connect

from .ranges import reachable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .source_filters import LogflumeTables

DATABASE = "logflume"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def use_logflume(
    spark: SparkSession, where: str | None = None, *, topics: Sequence[str] | None = None, **options: str
) -> list[str]:
    """Register `format("logflume")` with filters; with `where`, make each topic there a table `logflume.<topic>`.

    The tables are in the session's catalog, as `SHOW TABLES IN logflume` shows; a table that is there already is made anew.

    Args:
        where: HOST:PORT of a broker, or a data directory that a running process holds.
        topics: these alone; None: all but internal ones.
        options: of the data source, for all these tables; a name's dots are written as underscores (value_format="AVRO").

    Returns:
        The names of the tables.

    Raises:
        InvalidInput, UnknownName: options that cannot be right, topics that are not there; nothing is made.
    """
    from .source_filters import LogflumeTables
    from .source_options import parse_options

    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(LogflumeTables)
    if where is None:
        if topics is not None or options:
            raise InvalidInput("topics and options are for tables: say where the log is, as in use_logflume(spark, 'host:9092')")
        return []
    with connect(where) as log:
        where, admin = reachable(log), log.admin()
        names = sorted(admin.list_topics() if topics is None else admin.describe_topics(list(topics)))
    given = {name.replace("_", "."): value for name, value in options.items()}
    every = [given | {"log": where, "topic": topic} for topic in names]
    for each in every:
        parse_options(each).value_form()
    folder = tempfile.mkdtemp(prefix="logflume-tables-")
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {DATABASE} LOCATION {quoted(folder)}")
    for each in every:
        table = f"{DATABASE}.`{each['topic'].replace('`', '``')}`"
        kind = table_class(each)
        spark.dataSource.register(kind)
        spark.sql(f"DROP TABLE IF EXISTS {table}")
        spark.sql(f"CREATE TABLE {table} USING {kind.name()}")
    return names


def table_class(options: Mapping[str, str]) -> type[LogflumeTables]:
    """Return the data source of one table: Spark pickles it by value, and its options go with it."""
    from .source_filters import LogflumeTables

    name = f"logflume_{options['topic'].encode().hex()}"
    return type("LogflumeTable", (LogflumeTables,), {"of_table": dict(options), "name": classmethod(lambda _: name)})


def quoted(text: str) -> str:
    """Return text as a literal of Spark's SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
