"""Topics as tables of a Spark session: `spark.table("logflume.flights")`, and filters that spare reading."""

from __future__ import annotations

import logging
import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from logflume.log import InvalidInput, connect

from .ranges import reachable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .source_filters import LogflumeTables

DATABASE = "logflume"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_KIND = "logflume_"
_NAME = re.compile(r"[A-Za-z0-9_]+")
"""What Spark takes for the name of a table."""
_log = logging.getLogger("logflume.streams")


def use_logflume(
    spark: SparkSession, where: str | None = None, *, topics: Sequence[str] | None = None, **options: str
) -> list[str]:
    """Register `format("logflume")` with filters; with `where`, make each topic there a table `logflume.<topic>`.

    The tables are in the session's catalog, as `SHOW TABLES IN logflume` shows; a table that is there already is made anew.

    Args:
        where: HOST:PORT of a broker, or a data directory that a running process holds.
        topics: these alone; None: all but internal ones and those whose name no table can have (with `-` or `.`).
        options: of the data source, for all these tables; a name's dots are written as underscores (value_format="AVRO").

    Returns:
        The names of the tables.

    Raises:
        InvalidInput, UnknownName: options that cannot be right, topics that are not there or cannot be tables, a table of that
            name that is something else; nothing is made.
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
    names = table_names(names, is_asked=topics is not None)
    given = {name.replace("_", "."): value for name, value in options.items()}
    every = [given | {"log": where, "topic": topic} for topic in names]
    for each in every:
        parse_options(each).value_form()
    _refuse_others(spark, names)
    if not spark.catalog.databaseExists(DATABASE):
        spark.sql(f"CREATE DATABASE {DATABASE} LOCATION {quoted(_own_folder(spark))}")
    for each in every:
        table = f"{DATABASE}.`{each['topic']}`"
        kind = table_class(each)
        spark.dataSource.register(kind)
        spark.sql(f"DROP TABLE IF EXISTS {table}")
        spark.sql(f"CREATE TABLE {table} USING {kind.name()}")
    return names


def _own_folder(spark: SparkSession) -> str:
    """Return a folder that Spark removes when it ends: no table has files, but a database has a place for them."""
    jvm = spark._jvm
    assert jvm is not None
    return str(jvm.org.apache.spark.util.Utils.createTempDir(tempfile.gettempdir(), "logflume-tables").getPath())


def table_names(topics: Sequence[str], *, is_asked: bool) -> list[str]:
    """Return the topics that can be tables; others are left out with a warning, or refused if they were asked for.

    >>> table_names(["flights", "Flights-2"], is_asked=False)
    ['flights']
    """
    names = [topic for topic in topics if _NAME.fullmatch(topic)]
    if odd := [topic for topic in topics if topic not in names]:
        text = f"Spark's tables have names of letters, digits and _: {', '.join(odd)}"
        how = 'spark.read.format("logflume").option("topic", ...) reads them'
        if is_asked:
            raise InvalidInput(f"{text}; {how}")
        _log.warning("%s: left out; %s", text, how)
    count = Counter(name.lower() for name in names)
    if same := [name for name in names if count[name.lower()] > 1]:
        raise InvalidInput(f"names of Spark's tables differ in more than case: give topics=[...] with one of {', '.join(same)}")
    return names


def _refuse_others(spark: SparkSession, names: Sequence[str]) -> None:
    """Raise InvalidInput for a name that a table or view has which was not made here."""
    if not spark.catalog.databaseExists(DATABASE):
        return
    state = spark._jsparkSession.sessionState()  # SQL does not tell what a table of a data source in Python was made with
    for name in names:
        table = state.sqlParser().parseTableIdentifier(f"{DATABASE}.`{name}`")
        if state.catalog().tableExists(table):
            found = state.catalog().getTableMetadata(table).provider()
            provider = str(found.get()) if found.isDefined() else "none"
            if not provider.lower().startswith(_KIND):
                raise InvalidInput(f"{DATABASE}.{name} is there and is no topic (provider {provider!r}): rename it")


def table_class(options: Mapping[str, str]) -> type[LogflumeTables]:
    """Return the data source of one table: Spark pickles it by value, and its options go with it."""
    from .source_filters import LogflumeTables

    name = f"{_KIND}{options['topic'].encode().hex()}"
    return type("LogflumeTable", (LogflumeTables,), {"of_table": dict(options), "name": classmethod(lambda _: name)})


def quoted(text: str) -> str:
    """Return text as a literal of Spark's SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
