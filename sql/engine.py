"""The SQL engine: executes statements against a log, keeps persistent queries running, and finds them again after a restart.

A statement that changes something is planned and checked in full against the catalog as it is, then written to the command topic,
then applied; on the way back up the same commands are applied in the same order. Several engines may share a log: each takes in
the others' commands before it executes a statement, and running queries share partitions through their consumer groups.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from logflume.log import LogflumeError, near_matches
from logflume.log.interfaces import Log
from logflume.log.registry import EVERYTHING, Rights
from logflume.log.schemas import default_registry
from logflume.streams.functions import Library, builtin_library
from logflume.streams.runtime import EngineOptions, EngineState, EngineStatus, create_results, internal_topics, prepare_topics
from logflume.streams.seams import Plan, changelog_topic

from . import ast
from .analysis import analyzed
from .applying import Applied, KnownQuery, plan_persistent, replaced_query
from .assertions import check_assertion
from .at_once import AtOnce
from .binding.context import REGISTRY_URL, Context
from .catalog import Catalog, SourceInfo
from .command_log import Command, CommandLog, command_topic
from .connectors import (
    PLUGIN_COLUMNS,
    UNASSIGNED,
    Connectors,
    ConnectorsOf,
    ConnectorState,
    describe_connector,
    find_connector,
    show_connectors,
)
from .definitions import apply_definition, check_is_free, check_topic_is_own, id_beside, new_query_id
from .errors import NoColumns, StatementError, UnknownSource
from .executor import KnownSource
from .first_read import wait_until_read
from .format import statement_text
from .inference import inferred
from .inserts import PendingWrites, RecordWriter, values_records, writable_source
from .listing import describe, explain, picture, show
from .parser import parse_statement
from .plan import QueryPlan
from .planner import PlannedQuery, plan_push, register_schemas
from .printing import find_topic, start_print
from .properties import PUSH_TOKEN, PUSH_TOKENS
from .pull import KeptTable, run_pull
from .pull_reads import table_rows
from .push import start_push
from .reach import check_reachable
from .recorded import check_same, recorded_plan
from .results import Message, Result, Rows, inserted
from .resuming import Tokens
from .rights import check_rights, check_topics
from .row_records import RecordMakers, ValuesRecord, now_ms
from .running import RunningQueries, application_id, compile_topology
from .script_files import all_statements
from .scripts import StatementText, split_script
from .session import Session, session_statement
from .shared_readers import SharedReaders
from .table_state import TablePage, TableRead, Tables, read_state
from .topic_columns import columns_hint
from .tree import source_names
from .upgrades import check_replaceable
from .workers import Workers, merged_status

_log = logging.getLogger("logflume.sql")
DEFAULT_SERVICE = "logflume-sql"
SHOWN_CHARACTERS = 500
"""Of a command that cannot be applied."""


@dataclass(frozen=True, slots=True)
class PreparedQuery:
    """A persistent query that has been checked and not started. `application`: its group and the prefix of its topics.

    `replaces`: the id of the query whose place it takes under an id of its own; None: there is none, or its state goes on.
    """

    command: Command
    planned: PlannedQuery
    application: str
    what: str
    replaces: str | None = None

    def compile(self) -> Plan:
        """Return the query as the streams runtime runs it. Picklable as a bound method, for Spark's workers."""
        return compile_topology(self.planned.topology, self.application)


class SqlEngine:
    """See the module. Thread-safe: one statement at a time; pull queries, INSERT VALUES and running push queries do not count.

    `is_followed`: someone calls `catch_up` all the time, so that a pull query or an INSERT VALUES need not.

    Args:
        log: an open log; stays the caller's.
        data_dir: where the state of persistent queries lives.
        service: in the name of the command topic, and prefix of the applications; engines of one service share their catalog.
        runs_queries: False: statements are recorded, another engine of the service runs the queries.
        connectors: what runs those that statements make; None: such statements are refused here.
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
        data_dir: Path,
        *,
        service: str = DEFAULT_SERVICE,
        options: EngineOptions | None = None,
        runs_queries: bool = True,
        library: Library | None = None,
        registry: str | None = None,
        connectors: ConnectorsOf | None = None,
    ) -> None:
        self._registry = default_registry() if registry is None else registry
        self._log, self.service, self._runs_queries = log, service, runs_queries
        self._functions = library or builtin_library()
        self._options = replace(options or EngineOptions(), state_dir=data_dir / "state")
        self._lock = threading.RLock()
        self._session = Session()
        self._applied = Applied()
        self._tables = Tables()
        self._running = RunningQueries(log, self._options, service)
        self._workers = Workers(log, service)
        self._readers = SharedReaders(log)
        self._connectors = None if connectors is None else connectors(log, service)
        self._commands = CommandLog(log, command_topic(service))
        self._writer, self._makers = RecordWriter(log), RecordMakers()
        self.at_once = AtOnce(self, self._tables, self._writer, self._makers)
        self._is_closed = False
        self.is_followed = False
        self.problems: list[str] = []
        try:
            self.catch_up()
        except BaseException:
            self.close()
            raise

    # -------------------------------------------------------------------------------------------- looking in

    @property
    def applied(self) -> Applied:
        """What the commands have made, as of the last statement."""
        return self._applied

    @property
    def catalog(self) -> Catalog:
        """What exists, as of the last statement."""
        return self._applied.catalog

    @property
    def functions(self) -> Library:
        return self._functions

    @property
    def log(self) -> Log:
        return self._log

    @property
    def runs_queries(self) -> bool:
        return self._runs_queries

    def status(self) -> Mapping[str, EngineStatus]:
        """Return what the queries are doing, by query id: here and in the other processes that share them."""
        found = {query_id: [each] for query_id, each in self.local_status().items()}
        for query_id, status in self._workers.status().items():
            found.setdefault(query_id, []).append(status)
        return {query_id: merged_status(each) for query_id, each in found.items()}

    def local_status(self) -> Mapping[str, EngineStatus]:
        """Return what each query is doing in this process."""
        return dict(self._running.status()) if self._runs_queries else {}

    def local_connectors(self) -> list[ConnectorState]:
        """Return how the connectors are that run in this process."""
        return [] if self._connectors is None else self._connectors.states()

    def connectors(self) -> dict[str, ConnectorState]:
        """Return how the connectors are, by name: those that run here or in another process of this machine."""
        return {each.name: each for each in (*self._workers.connectors(), *self.local_connectors())}

    def connector_state(self, name: str) -> ConnectorState:
        """Return how one connector is; UNASSIGNED when nobody here runs it."""
        return self.connectors().get(name, ConnectorState(name, UNASSIGNED))

    def check_reachable(self) -> None:
        """Return if the log takes connections. Raises TransportError."""
        check_reachable(self._log)

    def known_sources(self) -> list[KnownSource]:
        """Return the streams and tables as names that can be completed."""
        found = self.catalog.sources.values()
        return [KnownSource(each.name, each.kind, tuple(c.name for c in each.columns())) for each in found]

    def known_functions(self) -> Iterable[str]:
        return self._functions.names()

    def about(self) -> list[str]:
        """Return what a user is told first: what there is, and what could not be read of it."""
        counts = f"{len(self.catalog.sources)} streams and tables, {len(self.catalog.queries)} queries."
        return [counts, *(f"warning: {problem}" for problem in self.problems)]

    def give_way(self) -> bool:
        """Run no queries any more if a worker of the service is up, which runs them from now on; tell whether that is so."""
        if self._runs_queries and self._workers.has_worker():
            with self._lock:
                self._runs_queries = False
                self._running.close()
                if self._connectors is not None:
                    self._connectors.keep({})
        return not self._runs_queries

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
                statement = replace(statement, topic=find_topic(statement.topic, self._log, statement.span))
            if not user.rights.is_admin:
                self.catch_up()
                check_rights(statement, user.rights, self.catalog, settings)
            if isinstance(statement, ast.QueryStatement) and statement.query.emit is None:
                return [self._pull(statement.query, settings, user)]
            if isinstance(statement, ast.InsertValues):
                own = self.pending_writes() if writes is None else writes
                done = self._insert_values(statement, settings, source.text, own)
                if writes is None:
                    own.wait()
                return [done]
            if isinstance(statement, ast.Print):
                return [start_print(statement, self._log, settings.get(REGISTRY_URL, self._registry))]
            if isinstance(statement, ast.Explain) and statement.is_analyzed:
                return [self._analyze(statement, user.rights)]
            if isinstance(statement, ast.AssertTopic | ast.AssertSchema):
                return [check_assertion(statement, self._log, settings.get(REGISTRY_URL, self._registry), settings=settings)]
            with self._lock:
                self.catch_up()
                results = self._dispatch(statement, user, settings)
            reset = settings.get("ksql.streams.auto.offset.reset", settings.get("auto.offset.reset", "earliest"))
            if user.on_read is None or reset.lower() != "earliest":
                return results
            return [self._first_read(each, user.on_read, user.reads_until_s) for each in results]
        except StatementError as e:
            if isinstance(e, UnknownSource | NoColumns) and user.rights.is_admin:
                e.reason += columns_hint(self._log, e)
            e.locate(source.text, first_line=source.line, first_column=source.column)
            raise

    def _dispatch(self, statement: ast.Statement, user: Session, properties: dict[str, str]) -> list[Result]:
        context = self._context(properties, statement)
        match statement:
            case ast.QueryStatement(query):
                return [self._push(query, context)]
            case ast.CreateAs() | ast.InsertQuery():
                return [self._create_query(statement, context)]
            case ast.CreateSource():
                return [self._create_source(statement, context)]
            case ast.Drop():
                return [self._drop(statement, context)]
            case ast.QueryControl():
                return [self._control(statement)]
            case ast.CreateConnector() | ast.DropConnector():
                return [self._define_connector(statement, context)]
            case ast.Show("CONNECTORS" | "SOURCE CONNECTORS" | "SINK CONNECTORS" as what):
                return [show_connectors(what, self.catalog, self.connectors())]
            case ast.Show("CONNECTOR PLUGINS"):
                return [Rows("CONNECTOR PLUGINS", PLUGIN_COLUMNS, tuple(self._own_connectors(statement.span).plugins()))]
            case ast.Describe("CONNECTOR", name):
                found = find_connector(name, self.catalog, statement.span)
                return list(describe_connector(found, self.catalog, self.connector_state(name)))
            case ast.Show():
                return [show(statement, context, self._log, self.status(), user.variables)]
            case ast.Describe():
                return list(describe(statement, context, self.status()))
            case ast.Explain():
                return [explain(statement, context, self._plans())]
            case ast.AlterSource() | ast.CreateType() | ast.DropType() | ast.AlterSystem():
                return [self._define(statement, context)]
        return [session_statement(statement, user)]

    def context(self, properties: Mapping[str, str]) -> Context:
        """Return what a statement is bound in: what exists, under these properties."""
        return Context(self.catalog, self._functions, {REGISTRY_URL: self._registry, **properties})

    def _context(self, properties: Mapping[str, str], statement: ast.Statement) -> Context:
        return replace(self.context(properties), partitions=self._partitions(statement))

    def _partitions(self, statement: ast.Statement) -> dict[str, int]:
        """Return the partitions of the topics that a query reads."""
        query = getattr(statement, "query", None)
        if not isinstance(query, ast.Query):
            return {}
        names = dict.fromkeys(source_names(query))
        topics = [self.catalog.sources[n].topic for n in names if n in self.catalog.sources]
        admin = self._log.admin()
        found = admin.find_topics(topics)
        missing = [t for t in topics if t not in found]
        if missing:
            near = near_matches(missing[0], admin.list_topics())
            raise StatementError(
                f"topic {missing[0]} does not exist any more{f'; did you mean {near[0]}?' if near else ''}", query.source.span
            )
        return {name: d.partitions for name, d in found.items()}

    # -------------------------------------------------------------------------------------------- queries

    def read_state(self, read: TableRead) -> TablePage:
        """Return what this process holds of a table's state; nothing of what it does not."""
        known, engine = self._applied.queries.get(read.query_id), self._running.engine(read.query_id)
        shape = None if known is None else self._tables.shape(known.planned)
        return TablePage() if shape is None or engine is None else read_state(shape, engine, read)

    def changelog_of(self, query_id: str, store: str) -> str:
        """Return the changelog topic of a query's store."""
        return changelog_topic(application_id(self.service, query_id), store)

    def _pull(self, query: ast.Query, settings: dict[str, str], user: Session) -> Rows:
        """Answer a pull query; not under the lock, for it may take long and changes nothing."""
        if not set(source_names(query)) <= self.catalog.sources.keys() or not self.is_followed:
            self.catch_up()
        context = replace(self.context(settings), rows_max=user.rows_max, on_read=user.on_read)
        return run_pull(query, context, self._log, self._kept)

    def _kept(self, source: SourceInfo) -> KeptTable | None:
        """Return where the rows of a table are, None when its topic tells: no query keeps them, or nobody runs it."""
        applied = self._applied
        known = applied.queries.get(source.query_id or "")
        shape = None if known is None else self._tables.shape(known.planned)
        if (
            known is None
            or shape is None
            or next(self._holders(), None) is None
            or applied.catalog.queries[shape.query_id].is_paused
        ):
            return None
        topic = self.changelog_of(shape.query_id, shape.store)

        def read(keys: tuple[bytes, ...] | None) -> Iterator[list[Any]]:
            partitions = shape.partitions_of(keys, self._tables.partitions(topic, self._log.admin()))
            return table_rows(shape, keys, partitions, self._holders, cause=lambda: self._cause(shape.query_id))

        return KeptTable(shape, read)

    def _holders(self) -> Iterator[Callable[[TableRead], TablePage]]:
        """Yield whom to ask for state: first this process, then, if that does not do, the others."""
        if self._runs_queries:
            yield self.read_state
        yield from self._workers.readers()

    def _cause(self, query_id: str) -> str:
        """Return why a query will not answer, '' when it may yet."""
        if query_id not in self.catalog.queries:
            return "it was terminated"
        status = self.status().get(query_id)
        return "" if status is None or status.state is not EngineState.FAILED else f"it has failed: {status.error}"

    def _analyze(self, s: ast.Explain, rights: Rights) -> Rows:
        """Look at a query for a while; not under the lock, for it changes nothing."""
        self.catch_up()
        queries = list(self.catalog.queries)
        s = replace(s, query_id=next((q for q in queries if q.upper() == (s.query_id or "").upper()), s.query_id))
        return analyzed(
            s,
            queries,
            lambda: self.status().get(s.query_id or ""),
            may_read=rights.may_read,
            wait=time.sleep,
            monotonic_s=time.monotonic,
        )

    def _plans(self) -> dict[str, QueryPlan]:
        return {query_id: known.planned.plan for query_id, known in self._applied.queries.items()}

    def picture(self, text: str, *, session: Session) -> str:
        """Draw the topology of a query, or of what EXPLAIN is asked about, as SVG. Raises StatementError as EXPLAIN does."""
        source = next(split_script(text), StatementText("", 1, 1, True))
        statement = parse_statement(source, variables=session.variables)
        asked = statement if isinstance(statement, ast.Explain) else ast.Explain(statement)
        try:
            with self._lock:
                self.catch_up()
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
        return start_push(plan, self._log, self.service, self._readers, offset_reset=reset.lower(), tokens=tokens)

    def prepare(self, text: str, properties: Mapping[str, str] | None = None) -> PreparedQuery:
        """Check one CREATE ... AS SELECT or INSERT INTO ... SELECT in full, and return it without starting or recording it.

        For a backfill: its history is computed under the query's application id first, then `start` records it. So CREATE OR
        REPLACE has an id of its own, beside that of the query whose place it takes.

        Raises:
            StatementError: the statement is refused, or is of another kind.
        """
        source = next(split_script(text), StatementText("", 1, 1, True))
        statement = parse_statement(source, variables=self._session.variables)
        with self._lock:
            try:
                self.catch_up()
                if not isinstance(statement, ast.CreateAs | ast.InsertQuery):
                    raise StatementError("expected CREATE STREAM or TABLE ... AS SELECT, or INSERT INTO ... SELECT")
                context = self._context({**self.catalog.properties, **self._session.properties, **(properties or {})}, statement)
                is_new = replaced_query(statement, self.catalog) is None
                if isinstance(statement, ast.CreateAs) and statement.name in self.catalog.sources and is_new:
                    check_is_free(statement.name, statement.is_table, self.catalog, statement.span)
                return self._prepare(statement, context, is_beside=True)[0]
            except StatementError as e:
                e.locate(source.text, first_line=source.line, first_column=source.column)
                raise

    def start(self, prepared: PreparedQuery) -> Message:
        """Record a prepared query: from now on it runs, here or where the service's queries run, and its result can be read."""
        return self._start(prepared, prepared.compile())

    def _start(self, prepared: PreparedQuery, compiled: Plan) -> Message:
        with self._lock:
            if self._runs_queries:
                prepare_topics(compiled, self._log.admin())  # all by one request; who runs it would make its own ones after
            else:
                create_results(compiled, self._log.admin())
            self._record(prepared.command, compiled)
        query_id = prepared.command.query_id
        return Message(f"{prepared.what}, running query with ID {query_id}", query_id)

    def _create_query(self, s: ast.CreateAs | ast.InsertQuery, context: Context) -> Result:
        catalog = self.catalog
        if isinstance(s, ast.CreateAs) and s.name in catalog.sources:
            if s.if_not_exists:
                return Message(
                    f"Cannot add {'table' if s.is_table else 'stream'} `{s.name}`: it exists already, nothing was done."
                )
            if replaced_query(s, catalog) is None:
                check_is_free(s.name, s.is_table, catalog, s.span)
        prepared, compiled = self._prepare(s, context)
        register_schemas(prepared.planned, s.span)
        return self._start(prepared, compiled)

    def _first_read(self, made: Result, on_read: Callable[[int, int], object], until_s: float | None) -> Result:
        """Return what was said of a new query once it has read what its topics hold, so that what is asked next sees that."""
        query_id = made.query_id if isinstance(made, Message) else None
        known = self._applied.queries.get(query_id or "")
        if not isinstance(made, Message) or query_id is None or known is None or next(self._holders(), None) is None:
            return made
        plan, admin = self._compiled(query_id, known), self._log.admin()
        left = wait_until_read(
            admin,
            plan,
            on_read,
            until_s=until_s,
            has_failed=lambda: bool(self._cause(query_id)),
            monotonic_s=time.monotonic,
            wait=time.sleep,
        )
        return replace(made, text=f"{made.text}; {left} so far, it goes on") if left else made

    def _prepare(
        self, s: ast.CreateAs | ast.InsertQuery, context: Context, *, is_beside: bool = False
    ) -> tuple[PreparedQuery, Plan]:
        """Check a query in full. `is_beside`: it replaces another under an id of its own, so that both can exist."""
        replaced = replaced_query(s, self.catalog)
        if replaced is None:
            query_id = new_query_id(s, self.catalog)
        else:
            query_id = id_beside(replaced) if is_beside else replaced
        if query_id in self.catalog.queries and (is_beside or replaced is None):
            raise StatementError(f"Query ID '{query_id}' already exists. Choose another.", s.span)
        planned = plan_persistent(s, context, query_id)
        if replaced is not None:
            check_replaceable(self._applied.queries[replaced].planned, planned, s.span, is_beside=is_beside)
        application = application_id(self.service, query_id)
        compiled = compile_topology(planned.topology, application)
        what = f"{'Table' if isinstance(s, ast.CreateAs) and s.is_table else 'Stream'} {planned.query.sink}"
        verb = ("created" if replaced is None else "replaced") if isinstance(s, ast.CreateAs) else "is being filled"
        command = Command(statement_text(s), query_id, dict(context.properties), recorded_plan(planned, compiled))
        return PreparedQuery(command, planned, application, f"{what} {verb}", replaced if is_beside else None), compiled

    def application_of(self, query_id: str) -> str:
        """Return the application as which a query runs."""
        return application_id(self.service, query_id)

    # -------------------------------------------------------------------------------------------- rows from outside

    def _insert_values(self, s: ast.InsertValues, settings: dict[str, str], text: str, writes: PendingWrites) -> Result:
        """Send rows to the disk; not under the lock, for it changes nothing that is defined."""
        if s.target not in self.catalog.sources or not self.is_followed:
            self.catch_up()
        records = values_records(s, self.context(settings), self._makers)
        writes.add(text, records)
        return inserted(len(records))

    def pending_writes(self) -> PendingWrites:
        """Return what holds the rows of INSERT VALUES that follow each other."""
        return PendingWrites(self._writer)

    def insert_target(self, name: str, *, rights: Rights = EVERYTHING) -> SourceInfo:
        """Return the stream or table of a name that takes rows from outside; quoted names keep their case.

        Raises:
            StatementError: there is none, it takes none, or none of this user.
        """
        wanted = name[1:-1] if len(name) > 1 and name[0] == name[-1] and name[0] in '`"' else name.upper()
        if wanted not in self.catalog.sources:
            self.catch_up()
        source = writable_source(wanted, self.catalog)
        if source.headers:
            raise StatementError(f"Cannot insert into {source.name} because it has header columns")
        check_topics(rights, writes=(source.topic,))
        return source

    def insert_rows(self, name: str, rows: Sequence[bytes]) -> Callable[[], list[Exception | None]]:
        """Send rows, a JSON object in a stripped line each; return what waits for the disk and tells what each was refused for.

        Raises:
            StatementError: no such stream or table, or one that takes none.
        """
        source = self.insert_target(name)
        makers, stamp = self._makers.of(source), now_ms()
        columns = makers.columns_of_json(rows, stamp)
        if columns is not None:
            return self._writer.send_columns(columns).outcomes
        refused: list[Exception | None] = []
        records: list[ValuesRecord] = []
        for row in rows:
            try:
                records.append(makers.record_of_json(row, stamp))
                refused.append(None)
            except LogflumeError as error:
                refused.append(error)
        sending = self._writer.send(records)

        def outcomes() -> list[Exception | None]:
            written = iter(sending.outcomes())
            return [next(written) if error is None else error for error in refused]

        return outcomes

    def _control(self, s: ast.QueryControl) -> Result:
        queries = self.catalog.queries
        if s.query_id is None:
            wanted = list(queries)
        else:
            wanted = [q for q in queries if q == s.query_id] or [q for q in queries if q.upper() == s.query_id.upper()]
            if not wanted:
                near = near_matches(s.query_id, queries)
                hint = f" Did you mean {' or '.join(near)}?" if near else " SHOW QUERIES lists what runs."
                raise StatementError(f"Unknown queryId: {s.query_id}.{hint}", s.span)
        if s.verb != "TERMINATE":
            wanted = [q for q in wanted if queries[q].is_paused != (s.verb == "PAUSE")]
        for query_id in wanted:
            self._record(Command(f"{s.verb} `{query_id}`"))
        done = {"TERMINATE": "terminated", "PAUSE": "paused", "RESUME": "resumed"}[s.verb]
        return Message(f"{done} {', '.join(wanted) if wanted else 'nothing: no query to which that applies'}")

    # -------------------------------------------------------------------------------------------- definitions

    def _create_source(self, s: ast.CreateSource, context: Context) -> Result:
        existing = self.catalog.sources.get(s.name)
        if existing is not None and s.if_not_exists:
            return Message(f"Cannot add {'table' if s.is_table else 'stream'} `{s.name}`: it exists already, nothing was done.")
        s = inferred(s, context)
        catalog = apply_definition(s, context)
        self._ensure_topic(catalog.sources[s.name], s)
        self._record(Command(statement_text(s), None, dict(context.properties)))
        return Message(f"{'Table' if s.is_table else 'Stream'} {s.name} created")

    def _ensure_topic(self, source: SourceInfo, s: ast.CreateSource) -> None:
        admin = self._log.admin()
        existing = admin.find_topics([source.topic]).get(source.topic)
        if existing is not None:
            found = existing.partitions
            if source.partitions is not None and source.partitions != found:
                raise StatementError(
                    f"A Kafka topic with the name '{source.topic}' already exists, with different partition/replica "
                    "configuration than "
                    f"required. Has {found} partitions, PARTITIONS={source.partitions} was given; leave it out or give {found}.",
                    s.span,
                )
            return
        if source.partitions is None:
            near = near_matches(source.topic, admin.list_topics(include_internal=True))
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise StatementError(f"Kafka topic does not exist: {source.topic}.{hint} WITH (PARTITIONS=...) creates it.", s.span)
        configs = {"cleanup.policy": "compact"} if source.is_table and source.window is None else {"retention.ms": "-1"}
        admin.create_topic(source.topic, partitions=source.partitions, configs=configs)

    def _drop(self, s: ast.Drop, context: Context) -> Result:
        source = self.catalog.sources.get(s.name)
        apply_definition(s, context)
        if source is None:
            return Message(f"Source {s.name} does not exist, nothing was done.")
        if s.delete_topic:
            check_topic_is_own(source, self.catalog, s.span)
        self._record(Command(statement_text(replace(s, delete_topic=False))))
        if s.delete_topic:
            self._log.admin().delete_topic(source.topic)
        return Message(f"Source `{s.name}` (topic: {source.topic}) was dropped{' with its topic' if s.delete_topic else ''}.")

    def _define_connector(self, s: ast.CreateConnector | ast.DropConnector, context: Context) -> Result:
        catalog = apply_definition(s, context)
        if catalog.connectors == self.catalog.connectors:
            exists = "exists already" if isinstance(s, ast.CreateConnector) else "does not exist"
            return Message(f"Connector {s.name} {exists}, nothing was done.")
        if isinstance(s, ast.CreateConnector):
            try:
                self._own_connectors(s.span).prepare(catalog.connectors[s.name])
            except StatementError:
                raise
            except LogflumeError as error:
                raise StatementError(f"Failed to create connector {s.name}: {error}", s.span) from error
        self._record(Command(statement_text(s)))
        return Message(f"{'Created' if isinstance(s, ast.CreateConnector) else 'Dropped'} connector {s.name}")

    def _own_connectors(self, span: ast.Span) -> Connectors:
        if self._connectors is None:
            raise StatementError(
                "connectors are made where they run: `logflume sql`, `logflume sql serve`, `logflume serve`", span
            )
        return self._connectors

    def _define(self, s: ast.AlterSource | ast.CreateType | ast.DropType | ast.AlterSystem, context: Context) -> Result:
        if apply_definition(s, context) is self.catalog:
            return Message(f"{s.name}: nothing to be done.")
        self._record(Command(statement_text(s)))
        done = {
            "AlterSource": "altered",
            "CreateType": "registered",
            "DropType": "dropped",
            "AlterSystem": "set for all sessions",
        }
        return Message(f"{s.name} {done[type(s).__name__]}")

    # -------------------------------------------------------------------------------------------- commands

    def _record(self, command: Command, compiled: Plan | None = None) -> None:
        """Write a command, then apply all up to it: its own, and those of others that came before it."""
        expected = self._commands.next_offset
        offset = self._commands.append(replace(command, expected=expected))
        is_as_checked = compiled is not None and offset == expected
        self.catch_up(needed=offset, compiled={command.query_id: compiled} if is_as_checked else {})

    def last_command(self, *, at_least: int = -1) -> int:
        """Return the offset of the last command that is applied; before, read what is new unless it is `at_least` that."""
        with self._lock:
            if self._commands.next_offset <= at_least:
                self.catch_up()
            return self._commands.next_offset - 1

    def catch_up(self, *, needed: int | None = None, compiled: Mapping[str | None, Plan | None] = MappingProxyType({})) -> None:
        """Apply the commands that are new in the topic, then start and stop queries to fit.

        `compiled`: queries of these commands as they were checked, by id, where nothing has changed since.

        Raises:
            LogflumeError: the command at offset `needed` could not be applied. Failures of others are kept in `problems`, except
                those that lost a race when they were made: whoever made them was told then.
        """
        with self._lock:
            failure: LogflumeError | None = None
            before = self._applied
            for offset, command in self._commands.read_new():
                try:
                    self._applied = self._applied.after(command, self._functions)
                except LogflumeError as e:
                    failure = e if offset == needed else failure
                    if command.expected is None or command.expected == offset:
                        self._problem(offset, command, str(e))
                except RecursionError:
                    self._problem(offset, command, "nested too deeply")
            if self._runs_queries:
                self._fit_queries(before, compiled)
                if self._connectors is not None:
                    self._connectors.keep(self.catalog.connectors)
            if failure is not None:
                raise failure

    def _problem(self, offset: int, command: Command, text: str) -> None:
        self.problems.append(f"command {offset} ({command.statement[:SHOWN_CHARACTERS]}): {text}")
        _log.warning("command %d cannot be applied: %s", offset, text)

    def _fit_queries(self, before: Applied, compiled: Mapping[str | None, Plan | None]) -> None:
        """Stop queries that ended, changed or were paused since `before`; start those that should run and do not."""
        queries = self.catalog.queries
        for query_id, known in before.queries.items():
            if query_id not in queries:
                self._tables.forget(query_id)
                self._running.forget(query_id, self._topics_of(query_id, known))
            elif known is not self._applied.queries[query_id] or queries[query_id].is_paused:
                self._tables.forget(query_id)
                self._running.stop(query_id)
        wanted = {q: known for q, known in self._applied.queries.items() if not queries[q].is_paused}
        self._running.keep({q: partial(self._compiled, q, known, compiled.get(q)) for q, known in wanted.items()})

    def _compiled(self, query_id: str, known: KnownQuery, compiled: Plan | None = None) -> Plan:
        """Return a query as it is to run. Raises PlanChanged when it is planned otherwise than it was made."""
        compiled = compiled or compile_topology(known.planned.topology, application_id(self.service, query_id))
        if known.recorded is not None:
            check_same(known.recorded, recorded_plan(known.planned, compiled))
        return compiled

    def _topics_of(self, query_id: str, known: KnownQuery) -> frozenset[str]:
        engine = self._running.engine(query_id)
        if engine is not None:
            return internal_topics(engine.plan)
        try:
            return internal_topics(compile_topology(known.planned.topology, application_id(self.service, query_id)))
        except StatementError:
            return frozenset()

    # -------------------------------------------------------------------------------------------- end

    def close(self) -> None:
        """Stop what runs; all of it goes on at the next start. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if self._connectors is not None:
                self._connectors.close()
            self._readers.close()
            self._running.close()
            self._workers.close()
            self._writer.close()
            self._commands.close()

    def __enter__(self) -> SqlEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
