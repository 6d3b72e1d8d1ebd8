"""The SQL sink: topics into tables of any database SQLAlchemy speaks to, exactly-once.

Rows and offsets are written in one database transaction; a task goes on from the offsets it finds there. The offset is
changed only when it still is what this task wrote last, so that of two tasks that both think they own a partition one is
rolled back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from logflume.connect.api import EXACTLY_ONCE, Refused, SinkBatch, SinkConnector, SinkContext
from logflume.connect.config import Config
from logflume.connect.errors import Problem, TargetConflict, TargetRefused
from logflume.connect.spec import Option, OptionType, Spec
from logflume.log import InvalidInput, TopicPartition
from logflume.log.schemas import Kind, Row

from .paths import unwritable
from .sql_statements import TableWriter
from .sql_tables import create_or_check, make_table, offsets_table

INSERT, UPSERT = "insert", "upsert"
_MAX_PENDING_ROWS = 20_000


def _check_url(value: str) -> str | None:
    try:
        sa.make_url(value)
    except (sa.exc.ArgumentError, ValueError):
        return "expected a database URL such as sqlite:///file.db or postgresql+psycopg://user@host/name"
    return None


def _target_problems(config: Config) -> Iterable[Problem]:
    """SQLite makes a file, no directory."""
    url = sa.make_url(config.text("connection.url"))
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        return
    if wrong := unwritable(Path(url.database)):
        yield Problem("connection.url", f"there can be no database {url.database}: {wrong}")


def _check_keys(config: Config) -> Iterable[Problem]:
    names = [column.name for side in ("key.columns", "value.columns") for column in config.columns(side)]
    if config.flag("key.windowed"):
        names.append(config.text("window.start.column"))
    for name in config.items("pk.fields") if config.columns("value.columns") else ():
        if name not in names:
            yield Problem("pk.fields", f"column {name!r} is not among {', '.join(names)}")
    if config.text("insert.mode") == UPSERT and not config.items("pk.fields") and not config.columns("key.columns"):
        yield Problem("insert.mode", "upsert needs key.columns, or pk.fields, to know the row by")


SQL_SPEC = Spec(
    options=(
        Option(
            name="connection.url",
            type=OptionType.STRING,
            default="sqlite:///logflume-sink.db",
            check=_check_url,
            doc="Database URL of SQLAlchemy; a password in it is never shown.",
        ),
        Option(name="connection.user", type=OptionType.STRING, default="", doc="User, instead of the one in the URL."),
        Option(
            name="connection.password",
            type=OptionType.PASSWORD,
            default=None,
            doc="Password, instead of the one in the URL; `${env:NAME}` keeps it out of the file.",
        ),
        Option(
            name="table.name.format",
            type=OptionType.STRING,
            default="${topic}",
            doc="Name of the table; `${topic}` stands for the topic.",
        ),
        Option(
            name="insert.mode",
            type=OptionType.STRING,
            default=INSERT,
            allowed=(INSERT, UPSERT),
            doc="insert: a row per record; upsert: a row per key, the last record wins.",
        ),
        Option(
            name="pk.fields",
            type=OptionType.LIST,
            default=(),
            doc="Columns of the primary key; for an upsert the key columns when not given (a window's end left out).",
        ),
        Option(
            name="delete.enabled",
            type=OptionType.BOOLEAN,
            default=True,
            doc="Whether a null value deletes the row (upsert only); else it is a row whose value columns are null.",
        ),
        Option(name="auto.create", type=OptionType.BOOLEAN, default=True, doc="Create the table when it is missing."),
    ),
    checks=(_check_keys,),
)


class SqlTarget:
    """The tables of one task.

    Invariants: `_kept[p]` is the offset of partition p in the database as this task knows it (None: no row yet);
    `_positions[p]` is behind all pending rows of p; pending rows and positions are written together or not at all.
    """

    def __init__(self, config: Config, context: SinkContext) -> None:
        self._config, self._context = config, context
        self._columns = (*context.schema.key, *context.schema.value)
        self._key_size = len(context.schema.key)
        self._is_upsert = config.text("insert.mode") == UPSERT
        self._primary_key = self._primary_key_names()
        names = [column.name for column in self._columns]
        self._pk_indices = [names.index(name) for name in self._primary_key]
        self._engine = _engine(config)
        self._offsets = offsets_table(sa.MetaData())
        self._tables: dict[str, TableWriter] = {}
        self._kept: dict[TopicPartition, int | None] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._pending: dict[str, _Pending] = {}
        is_nan_lost = self._engine.dialect.name in ("sqlite", "mysql", "mariadb")
        self._doubles = [i for i, c in enumerate(self._columns) if c.type.kind is Kind.DOUBLE] if is_nan_lost else []

    def open(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        with _errors(), self._engine.begin() as connection:
            self._offsets.create(connection, checkfirst=True)
            for topic in {partition.topic for partition in partitions}:
                table = make_table(self._table_name(topic), self._columns, self._primary_key)
                create_or_check(connection, table, is_creating=self._config.flag("auto.create"), is_upsert=self._is_upsert)
                self._tables[topic] = TableWriter(table, self._engine.dialect.name, is_upsert=self._is_upsert)
            own = sa.select(self._offsets).where(self._offsets.c.connector == self._context.connector)
            kept = {TopicPartition(row.topic, row.partition): int(row.next_offset) for row in connection.execute(own)}
        for partition in partitions:
            self._kept[partition] = kept.get(partition)
        return {partition: kept[partition] for partition in partitions if partition in kept}

    def put(self, batch: SinkBatch) -> Sequence[Refused]:
        topic = batch.partition.topic
        pending = self._pending.setdefault(topic, _Pending())
        refused: list[Refused] = []
        no_key, no_value = (None,) * self._key_size, (None,) * len(self._context.schema.value)
        is_deleting = self._is_upsert and self._config.flag("delete.enabled")
        for key, value, offset in zip(batch.keys, batch.values, batch.offsets.tolist(), strict=True):
            row = (*(key if key is not None and self._key_size else no_key), *(no_value if value is None else value))
            if (reason := self._unfit(row)) is not None:
                refused.append(Refused(offset, reason))
            elif not self._is_upsert:
                pending.rows.append(row)
            else:
                known_by = tuple(row[i] for i in self._pk_indices)
                pending.by_key[known_by] = None if value is None and is_deleting else row
        self._positions[batch.partition] = batch.next_offset
        if sum(len(each) for each in self._pending.values()) >= _MAX_PENDING_ROWS:
            self._write()
        return refused

    def flush(self, *, is_final: bool) -> Mapping[TopicPartition, int]:
        self._write()
        return {partition: offset for partition, offset in self._kept.items() if offset is not None}

    def release(self, partitions: Sequence[TopicPartition]) -> None:
        """Rows that were not flushed are dropped, of all partitions: the worker flushed before, or starts the task again."""
        self._pending.clear()
        for partition in partitions:
            self._kept.pop(partition, None)
            self._positions.pop(partition, None)

    def close(self) -> None:
        self._engine.dispose()

    def _write(self) -> None:
        """Write all pending rows and the positions behind them in one transaction."""
        moved = {p: offset for p, offset in self._positions.items() if self._kept.get(p) != offset}
        if not moved:
            return
        with _errors(), self._engine.begin() as connection:
            for topic, pending in self._pending.items():
                self._tables[topic].write(connection, pending.rows, pending.by_key, self._columns, self._pk_indices)
            for partition, offset in moved.items():
                self._move(connection, partition, offset)
        self._kept.update(moved)
        self._pending.clear()

    def _move(self, connection: sa.Connection, partition: TopicPartition, offset: int) -> None:
        table, kept = self._offsets, self._kept.get(partition)
        names = {"connector": self._context.connector, "topic": partition.topic, "partition": partition.partition}
        if kept is None:
            try:
                connection.execute(sa.insert(table).values(**names, next_offset=offset))
            except sa.exc.IntegrityError as error:
                raise _conflict(partition) from error
            return
        is_mine = sa.and_(*(table.c[name] == value for name, value in names.items()), table.c.next_offset == kept)
        if connection.execute(sa.update(table).where(is_mine).values(next_offset=offset)).rowcount != 1:
            raise _conflict(partition)

    def _unfit(self, row: Row) -> str | None:
        for index in self._pk_indices:
            if row[index] is None:
                return f"primary key column {self._columns[index].name} is null"
        for index in self._doubles:
            if row[index] is not None and row[index] != row[index]:
                return f"column {self._columns[index].name} is NaN, which {self._engine.dialect.name} cannot hold"
        return None

    def _primary_key_names(self) -> tuple[str, ...]:
        given = self._config.items("pk.fields")
        if given or not self._is_upsert:
            return given
        end = self._config.text("window.end.column") if self._config.flag("key.windowed") else ""
        return tuple(column.name for column in self._context.schema.key if column.name != end)

    def _table_name(self, topic: str) -> str:
        return self._config.text("table.name.format").replace("${topic}", topic)


class _Pending:
    """Rows of one topic that are not written yet: in order (insert), or the last per key, None to delete (upsert)."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.by_key: dict[Row, Row | None] = {}

    def __len__(self) -> int:
        return len(self.rows) + len(self.by_key)


def _engine(config: Config) -> sa.Engine:
    url = sa.make_url(config.text("connection.url"))
    if config.text("connection.user"):
        url = url.set(username=config.text("connection.user"))
    if config.secret("connection.password"):
        url = url.set(password=config.secret("connection.password"))
    arguments = {"timeout": 30} if url.get_backend_name() == "sqlite" else {}
    try:
        return sa.create_engine(url, hide_parameters=True, connect_args=arguments)
    except (ImportError, sa.exc.ArgumentError) as error:
        raise InvalidInput(f"connection.url: {error}; install the driver of this database") from error


@contextmanager
def _errors() -> Iterator[None]:
    """Tell errors of the data and the schema, which stay, from those of the connection, which pass."""
    try:
        yield
    except (sa.exc.IntegrityError, sa.exc.DataError, sa.exc.ProgrammingError, sa.exc.NotSupportedError) as error:
        raise TargetRefused(f"the database refused: {error.orig}") from error
    except sa.exc.NoSuchModuleError as error:
        raise InvalidInput(f"connection.url: {error}") from error


def _conflict(partition: TopicPartition) -> TargetConflict:
    return TargetConflict(
        f"the offset of {partition.topic}-{partition.partition} in the database was moved by another task of this connector; "
        "going on from what the database holds"
    )


SQL_SINK = SinkConnector(
    name="sql-sink",
    doc="Writes topics to tables of a SQL database (SQLite, PostgreSQL, MySQL, ...), inserting or upserting, exactly-once.",
    spec=SQL_SPEC,
    start=SqlTarget,
    guarantee_of=lambda config: EXACTLY_ONCE,
    target_problems=_target_problems,
)
