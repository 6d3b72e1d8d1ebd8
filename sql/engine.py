"""The SQL engine: executes statements against a log, keeps persistent queries running, and finds them again after a restart.

A statement that changes something is planned and checked in full against the catalog as it is, then written to the command topic,
then applied; on the way back up the same commands are applied in the same order. Several engines may share a log: each takes in
the others' commands before it executes a statement, and running queries share partitions through their consumer groups.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from logflume.log import LogflumeError, near_matches
from logflume.log.interfaces import Log
from logflume.log.schemas import default_registry
from logflume.streams.functions import Library, builtin_library
from logflume.streams.runtime import EngineOptions, EngineStatus
from logflume.streams.seams import Plan

from . import ast
from .binding.context import REGISTRY_URL, Context
from .catalog import Catalog, SourceInfo
from .command_log import Command, CommandLog, command_topic
from .definitions import apply_definition, check_is_free
from .errors import NotSupported, StatementError
from .format import statement_text
from .inference import inferred
from .inserts import values_record
from .listing import describe, explain, show
from .parser import parse_statement
from .planner import PlannedQuery, plan_create_as, plan_insert, plan_push, register_schemas
from .properties import check_property
from .pull import Materialized, run_pull
from .push import start_push
from .results import Message, Result, Rows
from .running import RunningQueries, application_id, compile_topology
from .scripts import StatementText, split_script

_log = logging.getLogger("logflume.sql")
DEFAULT_SERVICE = "logflume-sql"
SHOWN_CHARACTERS = 500
"""Of a command that cannot be applied."""


@dataclass(slots=True)
class Session:
    """What SET and DEFINE change, for one user."""

    properties: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PreparedQuery:
    """A persistent query that has been checked and not started. `application`: its group and the prefix of its topics."""

    command: Command
    planned: PlannedQuery
    application: str
    what: str

    def compile(self) -> Plan:
        """Return the query as the streams runtime runs it. Picklable as a bound method, for Spark's workers."""
        return compile_topology(self.planned.topology, self.application)


class SqlEngine:
    """See the module. Thread-safe: one statement at a time; running push queries do not count.

    Args:
        log: an open log; stays the caller's.
        data_dir: where the state of persistent queries lives.
        service: in the name of the command topic, and prefix of the applications; engines of one service share their catalog.
        runs_queries: False: statements are recorded, another engine of the service runs the queries.
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
    ) -> None:
        self._registry = default_registry() if registry is None else registry
        self._log, self.service, self._runs_queries = log, service, runs_queries
        self._library = library or builtin_library()
        self._options = replace(options or EngineOptions(), state_dir=data_dir / "state")
        self._lock = threading.RLock()
        self._session = Session()
        self._catalog = Catalog()
        self._planned: dict[str, PlannedQuery] = {}
        self._running = RunningQueries(log, self._options, service)
        self._commands = CommandLog(log, command_topic(service))
        self._is_closed = False
        self.problems: list[str] = []
        try:
            self.catch_up()
        except BaseException:
            self.close()
            raise

    # -------------------------------------------------------------------------------------------- looking in

    @property
    def catalog(self) -> Catalog:
        """What exists, as of the last statement."""
        return self._catalog

    @property
    def library(self) -> Library:
        return self._library

    def status(self) -> Mapping[str, EngineStatus]:
        """Return what each running query is doing, by query id."""
        return dict(self._running.status())

    def _status(self) -> Mapping[str, EngineStatus]:
        """Return what the queries are doing: here, or in the worker that runs them."""
        if self._runs_queries:
            return self._running.status()
        from .pull_service import ask_status

        return ask_status(self._log, self.service)

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
        for source in split_script(text):
            yield from self.execute_one(source, properties, session=user)

    def execute_one(
        self, source: StatementText | str, properties: Mapping[str, str] | None = None, *, session: Session | None = None
    ) -> list[Result]:
        """Execute one statement; most give one result."""
        user = session or self._session
        if isinstance(source, str):
            source = next(split_script(source), StatementText("", 1, 1, True))
        statement = parse_statement(source, variables=user.variables)
        with self._lock:
            try:
                self.catch_up()
                return self._dispatch(statement, user, {**user.properties, **(properties or {})})
            except StatementError as e:
                e.locate(source.text, first_line=source.line, first_column=source.column)
                raise

    def _dispatch(self, statement: ast.Statement, user: Session, properties: dict[str, str]) -> list[Result]:
        context = self._context(properties, statement)
        match statement:
            case ast.QueryStatement(query):
                return [self._query(query, context)]
            case ast.CreateAs() | ast.InsertQuery():
                return [self._create_query(statement, context)]
            case ast.InsertValues():
                return [self._insert_values(statement, context)]
            case ast.CreateSource():
                return [self._create_source(statement, context)]
            case ast.Drop():
                return [self._drop(statement, context)]
            case ast.QueryControl():
                return [self._control(statement)]
            case ast.Show():
                return [show(statement, context, self._log, self._status(), user.variables)]
            case ast.Describe():
                return list(describe(statement, context, self._status()))
            case ast.Explain():
                return [explain(statement, context)]
            case ast.AlterSource() | ast.CreateType() | ast.DropType():
                return [self._define(statement, context)]
        return [_session_statement(statement, user)]

    def _context(self, properties: dict[str, str], statement: ast.Statement) -> Context:
        properties = {REGISTRY_URL: self._registry, **properties}
        return Context(self._catalog, self._library, properties, partitions=self._partitions(statement))

    def _partitions(self, statement: ast.Statement) -> dict[str, int]:
        """Return the partitions of the topics that a query reads."""
        query = getattr(statement, "query", None)
        if not isinstance(query, ast.Query):
            return {}
        names = [query.source.name, *(j.source.name for j in query.joins)]
        topics = [self._catalog.sources[n].topic for n in names if n in self._catalog.sources]
        admin = self._log.admin()
        known = set(admin.list_topics())
        missing = [t for t in topics if t not in known]
        if missing:
            near = near_matches(missing[0], known)
            raise StatementError(
                f"topic {missing[0]} does not exist any more{f'; did you mean {near[0]}?' if near else ''}", query.source.span
            )
        return {name: d.partitions for name, d in admin.describe_topics(topics).items()}

    # -------------------------------------------------------------------------------------------- queries

    def pull(self, text: str, properties: Mapping[str, str] | None = None) -> Rows:
        """Answer one pull query from the state here.

        Raises:
            StatementError: it is something else, or is refused.
        """
        source = next(split_script(text), StatementText("", 1, 1, True))
        statement = parse_statement(source)
        if not isinstance(statement, ast.QueryStatement) or statement.query.emit is not None:
            raise StatementError("expected a pull query: SELECT without EMIT CHANGES")
        with self._lock:
            self.catch_up()
            context = self._context(dict(properties or {}), statement)
        return run_pull(statement.query, context, self._log, self._materialized)

    def _query(self, query: ast.Query, context: Context) -> Result:
        if query.emit is not None:
            plan = plan_push(query, context, query_id="PUSH")
            reset = context.property("ksql.streams.auto.offset.reset", context.properties.get("auto.offset.reset", "earliest"))
            return start_push(plan, self._log, self.service, offset_reset=reset.lower())
        source = context.catalog.sources.get(query.source.name)
        if not self._runs_queries and source is not None and source.query_id is not None:
            from .pull_service import ask

            rows = ask(self._log, self.service, statement_text(ast.QueryStatement(query)), context.properties)
            if rows is not None:
                return rows
        return run_pull(query, context, self._log, self._materialized)

    def _materialized(self, source: SourceInfo) -> Materialized | None:
        if source.query_id is None:
            return None
        planned, engine = self._planned.get(source.query_id), self._running.engine(source.query_id)
        return None if planned is None or engine is None else Materialized(planned, engine)

    def prepare(self, text: str, properties: Mapping[str, str] | None = None) -> PreparedQuery:
        """Check one CREATE ... AS SELECT or INSERT INTO ... SELECT in full, and return it without starting or recording it.

        For a backfill: its history is computed under the query's application id first, then `start` records it.

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
                context = self._context({**self._session.properties, **(properties or {})}, statement)
                if isinstance(statement, ast.CreateAs) and statement.name in self._catalog.sources:
                    check_is_free(statement.name, statement.is_table, self._catalog, statement.span)
                return self._prepare(statement, context)
            except StatementError as e:
                e.locate(source.text, first_line=source.line, first_column=source.column)
                raise

    def start(self, prepared: PreparedQuery) -> Message:
        """Record a prepared query: from now on it runs, here or wherever the service's queries run."""
        with self._lock:
            self._record(prepared.command)
        query_id = prepared.command.query_id
        return Message(f"{prepared.what}, running query with ID {query_id}", query_id)

    def _create_query(self, s: ast.CreateAs | ast.InsertQuery, context: Context) -> Result:
        catalog = self._catalog
        if isinstance(s, ast.CreateAs) and s.name in catalog.sources:
            if s.if_not_exists:
                return Message(
                    f"Cannot add {'table' if s.is_table else 'stream'} `{s.name}`: it exists already, nothing was done."
                )
            if not s.or_replace:
                check_is_free(s.name, s.is_table, catalog, s.span)
            raise NotSupported("CREATE OR REPLACE of a query's result", s.span)
        prepared = self._prepare(s, context)
        register_schemas(prepared.planned, s.span)
        return self.start(prepared)

    def _prepare(self, s: ast.CreateAs | ast.InsertQuery, context: Context) -> PreparedQuery:
        query_id = _query_id(s, self._catalog)
        if query_id in self._catalog.queries:
            raise StatementError(f"Query {query_id} exists already; choose another QUERY_ID", s.span)
        planned = self._plan(s, context, query_id)
        application = application_id(self.service, query_id)
        compile_topology(planned.topology, application)
        what = f"{'Table' if isinstance(s, ast.CreateAs) and s.is_table else 'Stream'} {planned.query.sink}"
        verb = "created" if isinstance(s, ast.CreateAs) else "is being filled"
        command = Command(statement_text(s), query_id, dict(context.properties))
        return PreparedQuery(command, planned, application, f"{what} {verb}")

    def _plan(self, s: ast.Statement, context: Context, query_id: str) -> PlannedQuery:
        if isinstance(s, ast.CreateAs):
            return plan_create_as(s, context, query_id=query_id)
        assert isinstance(s, ast.InsertQuery)
        return plan_insert(s, context, query_id=query_id)

    def _insert_values(self, s: ast.InsertValues, context: Context) -> Result:
        record = values_record(s, context)
        producer = self._log.producer(linger_ms=0)
        try:
            future = producer.send(record.topic, record.value, key=record.key, timestamp_ms=record.timestamp_ms)
            producer.flush()
            future.result()
        finally:
            producer.close()
        return Message("1 row inserted")

    def _control(self, s: ast.QueryControl) -> Result:
        if s.verb != "TERMINATE":
            raise NotSupported(s.verb, s.span)
        if s.query_id is None:
            ended = list(self._catalog.queries)
        else:
            ended = [q for q in self._catalog.queries if q.upper() == s.query_id.upper()]
            if not ended:
                near = near_matches(s.query_id, self._catalog.queries)
                hint = f" Did you mean {' or '.join(near)}?" if near else " SHOW QUERIES lists what runs."
                raise StatementError(f"Unknown queryId: {s.query_id}.{hint}", s.span)
        for query_id in ended:
            self._record(Command(f"TERMINATE `{query_id}`"))
        return Message(f"terminated {', '.join(ended) if ended else 'nothing: no query runs'}")

    # -------------------------------------------------------------------------------------------- definitions

    def _create_source(self, s: ast.CreateSource, context: Context) -> Result:
        existing = self._catalog.sources.get(s.name)
        if existing is not None and s.if_not_exists:
            return Message(f"Cannot add {'table' if s.is_table else 'stream'} `{s.name}`: it exists already, nothing was done.")
        s = inferred(s, context)
        catalog = apply_definition(s, context)
        self._ensure_topic(catalog.sources[s.name], s)
        self._record(Command(statement_text(s), None, dict(context.properties)))
        return Message(f"{'Table' if s.is_table else 'Stream'} {s.name} created")

    def _ensure_topic(self, source: SourceInfo, s: ast.CreateSource) -> None:
        admin = self._log.admin()
        known = admin.list_topics(include_internal=True)
        if source.topic in known:
            found = admin.describe_topics([source.topic])[source.topic].partitions
            if source.partitions is not None and source.partitions != found:
                raise StatementError(
                    f"A Kafka topic with the name '{source.topic}' already exists, with different partition/replica "
                    "configuration than "
                    f"required. Has {found} partitions, PARTITIONS={source.partitions} was given; leave it out or give {found}.",
                    s.span,
                )
            return
        if source.partitions is None:
            near = near_matches(source.topic, known)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise StatementError(f"Kafka topic does not exist: {source.topic}.{hint} WITH (PARTITIONS=...) creates it.", s.span)
        configs = {"cleanup.policy": "compact"} if source.is_table and source.window is None else {"retention.ms": "-1"}
        admin.create_topic(source.topic, partitions=source.partitions, configs=configs)

    def _drop(self, s: ast.Drop, context: Context) -> Result:
        source = self._catalog.sources.get(s.name)
        apply_definition(s, context)
        if source is None:
            return Message(f"Source {s.name} does not exist, nothing was done.")
        self._record(Command(statement_text(replace(s, delete_topic=False))))
        if s.delete_topic:
            self._log.admin().delete_topic(source.topic)
        return Message(f"Source `{s.name}` (topic: {source.topic}) was dropped{' with its topic' if s.delete_topic else ''}.")

    def _define(self, s: ast.AlterSource | ast.CreateType | ast.DropType, context: Context) -> Result:
        if apply_definition(s, context) is self._catalog:
            return Message(f"{s.name}: nothing to be done.")
        self._record(Command(statement_text(s)))
        verb = {"AlterSource": "altered", "CreateType": "registered", "DropType": "dropped"}[type(s).__name__]
        return Message(f"{s.name} {verb}")

    # -------------------------------------------------------------------------------------------- commands

    def _record(self, command: Command) -> None:
        """Write a command, then apply all up to it: its own, and those of others that came before it."""
        offset = self._commands.append(command)
        self.catch_up(needed=offset)

    def catch_up(self, *, needed: int | None = None) -> None:
        """Apply the commands that are new in the topic, then start and stop queries to fit.

        Raises:
            LogflumeError: the command at offset `needed` could not be applied. Failures of others are kept in `problems`.
        """
        with self._lock:
            failure: LogflumeError | None = None
            ended: list[str] = []
            for offset, command in self._commands.read_new():
                before = set(self._catalog.queries)
                try:
                    self._apply(command)
                except LogflumeError as e:
                    self.problems.append(f"command {offset} ({command.statement[:SHOWN_CHARACTERS]}): {e}")
                    _log.warning("command %d cannot be applied: %s", offset, e)
                    failure = e if offset == needed else failure
                except RecursionError:
                    self.problems.append(f"command {offset} ({command.statement[:SHOWN_CHARACTERS]}): nested too deeply")
                    _log.warning("command %d cannot be applied: it is nested too deeply", offset)
                ended += [q for q in before if q not in self._catalog.queries]
            for query_id in ended:
                self._planned.pop(query_id, None)
                self._running.stop(query_id, forget=self._runs_queries)
            self._start_missing()
            if failure is not None:
                raise failure

    def _apply(self, command: Command) -> None:
        """Change the catalog by one command. Deterministic: the same commands give the same catalog everywhere."""
        statement = parse_statement(command.statement)
        context = Context(self._catalog, self._library, dict(command.properties))
        match statement:
            case ast.CreateAs() | ast.InsertQuery():
                if command.query_id is None:
                    raise StatementError("a query without an id", statement.span)
                if isinstance(statement, ast.CreateAs):
                    check_is_free(statement.name, statement.is_table, self._catalog, statement.span)
                planned = self._plan(statement, context, command.query_id)
                catalog = self._catalog.with_query(planned.query)
                if planned.sink is not None:
                    catalog = catalog.with_source(planned.sink)
                self._planned[command.query_id] = planned
                self._catalog = replace(catalog, next_number=catalog.next_number + 1)
            case ast.QueryControl(_, query_id):
                if query_id is None:
                    raise StatementError("expected the id of one query", statement.span)
                self._catalog = self._catalog.without_query(query_id)
            case _:
                self._catalog = apply_definition(statement, context)

    def _start_missing(self) -> None:
        """Start the queries that should run here and do not."""
        if not self._runs_queries:
            return
        for query_id, planned in self._planned.items():
            if self._running.engine(query_id) is not None:
                continue
            try:
                self._running.start(query_id, compile_topology(planned.topology, application_id(self.service, query_id)))
            except LogflumeError as e:
                problem = f"query {query_id} could not be started: {e}"
                if problem not in self.problems:
                    self.problems.append(problem)
                    _log.warning("%s", problem)

    # -------------------------------------------------------------------------------------------- end

    def close(self) -> None:
        """Stop what runs; all of it goes on at the next start. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._running.close()
            self._commands.close()

    def __enter__(self) -> SqlEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _query_id(s: ast.CreateAs | ast.InsertQuery, catalog: Catalog) -> str:
    number = catalog.next_number
    if isinstance(s, ast.CreateAs):
        return f"{'CTAS' if s.is_table else 'CSAS'}_{s.name}_{number}"
    given = next((str(p.value).upper() for p in s.properties if p.name == "QUERY_ID"), None)
    return given or f"INSERTQUERY_{number}"


def _session_statement(statement: ast.Statement, user: Session) -> Result:
    match statement:
        case ast.SetProperty(name, value):
            check_property(name, value, statement.span)
            user.properties[name] = value
            return Message(
                f"Successfully changed local property '{name}' to '{value}'. Use the UNSET command to revert your change."
            )
        case ast.UnsetProperty(name):
            check_property(name, None, statement.span)
            return Message(f"Successfully unset local property '{name}' (value was {user.properties.pop(name, None)!r}).")
        case ast.Define(name, value):
            user.variables[name] = value
            return Message(f"{name} = {value!r}")
        case ast.Undefine(name):
            if name not in user.variables:
                raise StatementError(f"Cannot undefine variable '{name}' which was never defined", statement.span)
            del user.variables[name]
            return Message(f"{name} is not defined any more")
        case ast.Unsupported(what):
            raise NotSupported(what, statement.span)
        case ast.RunScript():
            raise StatementError("RUN SCRIPT is done by the shell: logflume sql -f FILE", statement.span)
    raise NotSupported(statement.__class__.__name__, statement.span)
