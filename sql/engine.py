"""The SQL engine: executes statements against a log, keeps persistent queries running, and finds them again after a restart.

A statement that changes something is planned and checked in full against the catalog as it is, then written to the command topic,
then applied; on the way back up the same commands are applied in the same order. Several engines may share a log: each takes in
the others' commands before it executes a statement, and running queries share partitions through their consumer groups.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from logflume.log import near_matches
from logflume.log.interfaces import Log
from logflume.log.registry import EVERYTHING, Rights
from logflume.log.schemas import default_registry
from logflume.streams.functions import Library, builtin_library
from logflume.streams.runtime import EngineOptions, EngineStatus

from . import ast
from .analysis import analyzed
from .applying import Applied, replaced_query
from .assertions import check_assertion
from .at_once import AtOnce
from .binding.context import REGISTRY_URL, Context
from .catalog import Catalog
from .connectors import (
    PLUGIN_COLUMNS,
    ConnectorsOf,
    describe_connector,
    find_connector,
    show_connectors,
)
from .defining import control, create_source, define, define_connector, drop, own_connectors
from .definitions import check_is_free
from .errors import NoColumns, StatementError, UnknownSource
from .executor import KnownSource
from .first_read import wait_until_read
from .following import Following
from .format import statement_text
from .holders import Holders
from .inserts import PendingWrites, RecordWriter
from .listing import describe, explain, picture, show
from .on_spark import RunQuery, SparkQueries
from .outside_rows import OutsideRows
from .parser import parse_statement
from .plan import QueryPlan
from .planner import plan_push
from .preparing import PreparedQuery, checked, create_query, start
from .printing import find_topic, start_print
from .properties import LIVE, PUSH_TOKEN, PUSH_TOKENS, SPARK
from .pull import run_pull
from .push import start_push
from .reach import check_reachable
from .results import Message, Result, Rows
from .resuming import Tokens
from .rights import check_rights
from .row_records import RecordMakers
from .running import HEARTBEAT_INTERVAL_MS, RunningQueries, application_of, live_engines
from .script_files import all_statements
from .scripts import StatementText, split_script
from .session import Session, session_statement
from .shared_readers import SharedReaders
from .snapshot import SnapshotMemory
from .topic_columns import columns_hint
from .tree import source_names
from .workers import Workers

DEFAULT_SERVICE = "logflume-sql"


class SqlEngine:
    """See the module. Thread-safe: one statement at a time; pull queries, INSERT VALUES and running push queries do not count.

    `is_followed`: someone calls `catch_up` all the time, so that a pull query or an INSERT VALUES need not.

    Args:
        log: an open log; stays the caller's.
        data_dir: where the state of persistent queries lives.
        service: in the name of the command topic, and prefix of the applications; engines of one service share their catalog.
        runs_queries: False: statements are recorded, another engine of the service runs the queries.
        connectors: what runs those that statements make; None: such statements are refused here.
        on_spark: runs the queries that are to run on Spark (`SET 'engine' = 'spark'`), and this engine no others; None: this one
            runs the others.
        registry: where schemas are unless a session says otherwise (`ksql.schema.registry.url`); None: `default_registry`.

    >>> import pathlib, tempfile
    >>> from logflume.log import connect
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> with connect(folder / "log") as log, SqlEngine(log, folder / "sql") as engine:
    ...     for result in engine.execute(
    ...         "CREATE STREAM S (ID INT KEY, V STRING) WITH (KAFKA_TOPIC='s', PARTITIONS=1, VALUE_FORMAT='JSON');"
    ...         "INSERT INTO S VALUES (1, 'one'); SELECT * FROM S;"
    ...     ):
    ...         print(getattr(result, "rows", None) or result.text)
    Stream S created
    1 row inserted
    ((1, 'one'),)
    """

    def __init__(
        self,
        log: Log,
        data_dir: str | os.PathLike[str],
        *,
        service: str = DEFAULT_SERVICE,
        options: EngineOptions | None = None,
        runs_queries: bool = True,
        library: Library | None = None,
        registry: str | None = None,
        connectors: ConnectorsOf | None = None,
        on_spark: RunQuery | None = None,
    ) -> None:
        self._registry = default_registry() if registry is None else registry
        self.log, self.service = log, service
        self.functions = library or builtin_library()
        self._session = Session()
        options = options or EngineOptions(heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS)
        options = replace(options, state_dir=Path(data_dir) / "state")
        make = live_engines(log, options) if on_spark is None else SparkQueries(log.admin(), on_spark, options.state_dir)
        running = RunningQueries(log, options, make)
        kind = LIVE if on_spark is None else SPARK
        self.following = Following(
            log, service, self.functions, running, kind=kind, runs_queries=runs_queries, connectors=connectors
        )
        self._workers = Workers(log, service)
        self.holders = Holders(self.following, self._workers)
        self._readers, self._snapshots = SharedReaders(log), SnapshotMemory()
        self._writer, makers = RecordWriter(log), RecordMakers()
        self.rows = OutsideRows(self.following, self._writer, makers)
        self.at_once = AtOnce(self, self.holders, self.following.tables, self._writer, makers)
        self._is_closed = False
        self.is_followed = False
        try:
            self.following.catch_up()
        except BaseException:
            self.close()
            raise

    # -------------------------------------------------------------------------------------------- looking in

    @property
    def applied(self) -> Applied:
        """What the commands have made, as of the last statement."""
        return self.following.applied

    @property
    def catalog(self) -> Catalog:
        """What exists, as of the last statement."""
        return self.following.applied.catalog

    @property
    def runs_queries(self) -> bool:
        return self.following.runs_queries

    def status(self, rights: Rights = EVERYTHING) -> Mapping[str, EngineStatus]:
        """Return what the queries are doing, by query id, to somebody of these rights: here and in processes that share them."""
        return self.holders.status(rights)

    def check_reachable(self) -> None:
        """Return if the log takes connections. Raises TransportError."""
        check_reachable(self.log)

    def known_sources(self) -> list[KnownSource]:
        """Return the streams and tables as names that can be completed."""
        found = self.catalog.sources.values()
        return [KnownSource(each.name, each.kind, tuple(c.name for c in each.columns())) for each in found]

    def known_functions(self) -> Iterable[str]:
        return self.functions.names()

    def about(self) -> list[str]:
        """Return what a user is told first: what there is, and what could not be read of it."""
        counts = f"{len(self.catalog.sources)} streams and tables, {len(self.catalog.queries)} queries."
        return [counts, *(f"warning: {problem}" for problem in self.following.problems)]

    def give_way(self) -> bool:
        """Run no queries any more if a worker of the service is up, which runs them from now on; tell whether that is so."""
        if self.runs_queries and self._workers.has_worker():
            self.following.stop_queries()
        return not self.runs_queries

    # -------------------------------------------------------------------------------------------- statements

    def execute(
        self, text: str, properties: Mapping[str, str] | None = None, *, session: Session | None = None
    ) -> Iterator[Result]:
        """Execute a script statement by statement; yield each result before the next statement is looked at.

        A push query is yielded as soon as it runs; whoever takes it must close it.

        Raises:
            StatementError: a statement is refused; those before it stay done. LogflumeError: the log or a query failed.
        """
        user = session or self._session
        for source in all_statements(text, user):
            yield from self.execute_one(source, properties, session=user)

    def execute_one(
        self,
        source: StatementText | str,
        properties: Mapping[str, str] | None = None,
        *,
        session: Session | None = None,
        writes: PendingWrites | None = None,
    ) -> list[Result]:
        """Execute one statement; most give one result.

        With `writes`, INSERT VALUES does not wait for the disk: whoever gives it waits, before any statement of another kind.
        """
        user = session or self._session
        if isinstance(source, str):
            source = next(split_script(source), StatementText("", 1, 1, True))
        statement = parse_statement(source, variables=user.variables)
        settings = {**self.catalog.properties, **user.properties, **(properties or {})}
        try:
            if isinstance(statement, ast.Print):
                statement = replace(statement, topic=find_topic(statement.topic, self.log, statement.span))
            if not user.rights.is_admin:
                self.following.catch_up()
                check_rights(statement, user.rights, self.catalog, settings)
            if isinstance(statement, ast.QueryStatement) and statement.query.emit is None:
                return [self._pull(statement.query, settings, user)]
            if isinstance(statement, ast.InsertValues):
                if statement.target not in self.catalog.sources or not self.is_followed:
                    self.following.catch_up()
                own = self.rows.pending_writes() if writes is None else writes
                done = self.rows.insert_values(statement, self.context(settings), source.text, own)
                if writes is None:
                    own.wait()
                return [done]
            if isinstance(statement, ast.Print):
                return [start_print(statement, self.log, settings.get(REGISTRY_URL, self._registry))]
            if isinstance(statement, ast.Explain) and statement.is_analyzed:
                return [self._analyze(statement, user.rights)]
            if isinstance(statement, ast.AssertTopic | ast.AssertSchema):
                return [check_assertion(statement, self.log, settings.get(REGISTRY_URL, self._registry), settings=settings)]
            with self.following.lock:
                self.following.catch_up()
                results = self._dispatch(statement, user, settings)
            reset = settings.get("ksql.streams.auto.offset.reset", settings.get("auto.offset.reset", "earliest"))
            if user.on_read is None or reset.lower() != "earliest":
                return results
            return [self._first_read(each, user.on_read, user.reads_until_s) for each in results]
        except StatementError as e:
            if isinstance(e, UnknownSource | NoColumns) and user.rights.is_admin:
                e.reason += columns_hint(self.log, e)
            e.locate(source.text, first_line=source.line, first_column=source.column)
            raise

    def _dispatch(self, statement: ast.Statement, user: Session, properties: dict[str, str]) -> list[Result]:
        context = self._context(properties, statement)
        match statement:
            case ast.QueryStatement(query):
                return [self._push(query, context)]
            case ast.CreateAs() | ast.InsertQuery():
                return [create_query(statement, context, self.following)]
            case ast.CreateSource():
                return [create_source(statement, context, self.following)]
            case ast.Drop():
                return [drop(statement, context, self.following)]
            case ast.QueryControl():
                return [control(statement, context, self.following)]
            case ast.CreateConnector() | ast.DropConnector():
                return [define_connector(statement, context, self.following)]
            case ast.Show("CONNECTORS" | "SOURCE CONNECTORS" | "SINK CONNECTORS" as what):
                return [show_connectors(what, self.catalog, self.holders.connectors())]
            case ast.Show("CONNECTOR PLUGINS"):
                plugins = own_connectors(statement.span, self.following).plugins()
                return [Rows("CONNECTOR PLUGINS", PLUGIN_COLUMNS, tuple(plugins))]
            case ast.Describe("CONNECTOR", name):
                found = find_connector(name, self.catalog, statement.span)
                return list(describe_connector(found, self.catalog, self.holders.connector_state(name)))
            case ast.Show():
                return [show(statement, context, self.log, self.status(user.rights), user.variables)]
            case ast.Describe():
                return list(describe(statement, context, self.status(user.rights)))
            case ast.Explain():
                return [explain(statement, context, self._plans())]
            case ast.AlterSource() | ast.CreateType() | ast.DropType() | ast.AlterSystem():
                return [define(statement, context, self.following)]
        return [session_statement(statement, user)]

    def context(self, properties: Mapping[str, str]) -> Context:
        """Return what a statement is bound in: what exists, under these properties."""
        return Context(self.catalog, self.functions, {REGISTRY_URL: self._registry, **properties})

    def _context(self, properties: Mapping[str, str], statement: ast.Statement) -> Context:
        return replace(self.context(properties), partitions=self._partitions(statement))

    def _partitions(self, statement: ast.Statement) -> dict[str, int]:
        """Return the partitions of the topics that a query reads."""
        query = getattr(statement, "query", None)
        if not isinstance(query, ast.Query):
            return {}
        names = dict.fromkeys(source_names(query))
        topics = [self.catalog.sources[n].topic for n in names if n in self.catalog.sources]
        admin = self.log.admin()
        found = admin.find_topics(topics)
        missing = [t for t in topics if t not in found]
        if missing:
            near = near_matches(missing[0], admin.list_topics())
            raise StatementError(
                f"topic {missing[0]} does not exist any more{f'; did you mean {near[0]}?' if near else ''}", query.source.span
            )
        return {name: d.partitions for name, d in found.items()}

    # -------------------------------------------------------------------------------------------- queries

    def _pull(self, query: ast.Query, settings: dict[str, str], user: Session) -> Rows:
        """Answer a pull query; not under the lock, for it may take long and changes nothing."""
        if not set(source_names(query)) <= self.catalog.sources.keys() or not self.is_followed:
            self.following.catch_up()
        context = replace(self.context(settings), rows_max=user.rows_max, on_read=user.on_read)
        return run_pull(query, context, self.log, partial(self.holders.kept, rights=user.rights))

    def _analyze(self, s: ast.Explain, rights: Rights) -> Rows:
        """Look at a query for a while; not under the lock, for it changes nothing."""
        self.following.catch_up()
        queries = list(self.catalog.queries)
        s = replace(s, query_id=next((q for q in queries if q.upper() == (s.query_id or "").upper()), s.query_id))
        return analyzed(
            s,
            queries,
            lambda: self.status(rights).get(s.query_id or ""),
            may_read=rights.may_read,
            wait=time.sleep,
            monotonic_s=time.monotonic,
        )

    def _plans(self) -> dict[str, QueryPlan]:
        return {query_id: known.planned.plan for query_id, known in self.following.applied.queries.items()}

    def picture(self, text: str, *, session: Session) -> str:
        """Draw the topology of a query, or of what EXPLAIN is asked about, as SVG. Raises StatementError as EXPLAIN does."""
        source = next(split_script(text), StatementText("", 1, 1, True))
        statement = parse_statement(source, variables=session.variables)
        asked = statement if isinstance(statement, ast.Explain) else ast.Explain(statement)
        try:
            with self.following.lock:
                self.following.catch_up()
                return picture(asked, self._context({**self.catalog.properties, **session.properties}, asked), self._plans())
        except StatementError as e:
            e.locate(source.text, first_line=source.line, first_column=source.column)
            raise

    def _push(self, query: ast.Query, context: Context) -> Result:
        plan = plan_push(query, context, query_id="PUSH")
        reset = context.property("ksql.streams.auto.offset.reset", context.properties.get("auto.offset.reset", "earliest"))
        token = context.property(PUSH_TOKEN, "")
        has_tokens = token or context.property(PUSH_TOKENS, "false").lower() == "true"
        tokens = Tokens(statement_text(ast.QueryStatement(replace(query, limit=None))), token) if has_tokens else None
        return start_push(
            plan,
            self.log,
            self.service,
            self._readers,
            offset_reset=reset.lower(),
            tokens=tokens,
            snapshots=self._snapshots if query.emit == ast.SNAPSHOT else None,
        )

    def prepare(self, text: str, properties: Mapping[str, str] | None = None) -> PreparedQuery:
        """Check one CREATE ... AS SELECT or INSERT INTO ... SELECT in full, and return it without starting or recording it.

        What SET says before it holds for it.

        For a backfill: its history is computed under the query's application id first, then `start` records it. So CREATE OR
        REPLACE has an id of its own, beside that of the query whose place it takes.

        Raises:
            StatementError: the statement is refused, or is of another kind.
        """
        own = replace(self._session, properties={**self._session.properties, **(properties or {})})
        sources = split_script(text)
        source = next(sources, StatementText("", 1, 1, True))
        statement = parse_statement(source, variables=own.variables)
        while isinstance(statement, ast.SetProperty) and (following := next(sources, None)) is not None:
            session_statement(statement, own)
            source, statement = following, parse_statement(following, variables=own.variables)
        with self.following.lock:
            try:
                self.following.catch_up()
                if not isinstance(statement, ast.CreateAs | ast.InsertQuery):
                    raise StatementError("expected CREATE STREAM or TABLE ... AS SELECT, or INSERT INTO ... SELECT")
                context = self._context({**self.catalog.properties, **own.properties}, statement)
                is_new = replaced_query(statement, self.catalog) is None
                if isinstance(statement, ast.CreateAs) and statement.name in self.catalog.sources and is_new:
                    check_is_free(statement.name, statement.is_table, self.catalog, statement.span)
                return checked(statement, context, self.following, is_beside=True)[0]
            except StatementError as e:
                e.locate(source.text, first_line=source.line, first_column=source.column)
                raise

    def start(self, prepared: PreparedQuery) -> Message:
        """Record a prepared query: from now on it runs, here or where the service's queries run, and its result can be read."""
        return start(prepared, prepared.compile(), self.following)

    def _first_read(self, made: Result, on_read: Callable[[int, int], object], until_s: float | None) -> Result:
        """Return what was said of a new query once it has read what its topics hold, so that what is asked next sees that."""
        query_id = made.query_id if isinstance(made, Message) else None
        known = self.following.applied.queries.get(query_id or "")
        if not isinstance(made, Message) or query_id is None or known is None or next(self.holders.readers(), None) is None:
            return made
        if self.catalog.queries[query_id].engine == SPARK:
            return made
        plan, admin = self.following.compiled(query_id, known), self.log.admin()
        left = wait_until_read(
            admin,
            plan,
            on_read,
            until_s=until_s,
            has_failed=lambda: bool(self.holders.cause(query_id)),
            monotonic_s=time.monotonic,
            wait=time.sleep,
        )
        return replace(made, text=f"{made.text}; {left} so far, it goes on") if left else made

    def application_of(self, query_id: str) -> str:
        """Return the application as which a query runs, one that exists."""
        return application_of(self.service, self.catalog.queries[query_id])

    def close(self) -> None:
        """Stop what runs; all of it goes on at the next start. Idempotent."""
        with self.following.lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._readers.close()
            self._workers.close()
            self._writer.close()
            self.following.close()

    def __enter__(self) -> SqlEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
