"""Runs one case: statements, inputs, comparison of outputs, expected errors, conditions afterwards.

The algorithm is that of the case format: every persistent query has a driver of its own; each takes the whole list of inputs in
order, and records of topics that only earlier queries or INSERT VALUES wrote.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from logflume.log import Headers, InvalidInput, LogflumeError
from logflume.log.schemas import MemoryRegistry, RegisteredSchema, register_schema
from logflume.sql import ast
from logflume.sql.binding.context import REGISTRY_URL, Context
from logflume.sql.catalog import Catalog, SourceInfo
from logflume.sql.definitions import apply_definition, check_is_free, check_replacement, new_query_id
from logflume.sql.errors import NotSupported, SqlError, StatementError, SyntaxFault
from logflume.sql.inference import inferred
from logflume.sql.inserts import values_records
from logflume.sql.parser import parse_statement
from logflume.sql.planner import PlannedQuery, plan_create_as, plan_insert, plan_source, register_schemas
from logflume.sql.properties import CACHE_BYTES
from logflume.sql.row_records import RecordMakers
from logflume.sql.scripts import StatementText, split_script
from logflume.sql.upgrades import check_query_replacement
from logflume.streams.functions import Library
from logflume.streams.windows import bounds_of_key

from .cases import Case, CaseFault, CaseRecord
from .compare import difference
from .conditions import After, broken_condition
from .driver import Driver, Output
from .outcome import Outcome, Skip, Verdict
from .values import decode, encode, encode_key

DEFAULT_PARTITIONS = 4
NUMERIC_TOLERANCE = 1e-6


@dataclass(slots=True)
class _Run:
    """The state of a case: what exists, what is in the topics, the queries with their drivers."""

    case: Case
    functions: Library
    catalog: Catalog = field(default_factory=Catalog)
    partitions: dict[str, int] = field(default_factory=dict)
    topics: dict[str, list[Output]] = field(default_factory=dict)
    queries: list[tuple[PlannedQuery, Driver]] = field(default_factory=list)
    sinks: dict[str, SourceInfo] = field(default_factory=dict)
    registry: MemoryRegistry = field(default_factory=MemoryRegistry)

    def context(self) -> Context:
        properties = {REGISTRY_URL: self.registry.location, CACHE_BYTES: "0", **self.case.properties}
        return Context(self.catalog, self.functions, properties, fixed_now_ms=0, partitions=self.partitions)


def run_case(case: Case, library: Library) -> Outcome:
    """Run a case and judge it. Never raises for what the case is about."""
    if case.skip:
        return Outcome(case, Verdict.SKIPPED, case.skip)
    if case.fault:
        return Outcome(case, Verdict.FAILED, case.fault)
    if not case.is_enabled:
        return Outcome(case, Verdict.SKIPPED, "disabled in its file")
    try:
        return _judged(case, _attempt(case, library))
    except Skip as skip:
        return Outcome(case, Verdict.SKIPPED, str(skip))
    except CaseFault as fault:
        return Outcome(case, Verdict.FAILED, str(fault))


def _attempt(case: Case, library: Library) -> BaseException | str | None:
    """Return the error that came, or the difference that was found, or None."""
    run = _Run(case, library)
    try:
        statements = [_parsed(text) for text in split_script("\n".join(case.statements))]
        _register_schemas(run, statements)
        for topic in case.topics:
            run.partitions[topic.name] = topic.partitions
        for record in (*case.inputs, *case.outputs):
            run.partitions.setdefault(record.topic, DEFAULT_PARTITIONS)
        for statement in statements:
            _execute(run, statement)
        _feed(run)
    except LogflumeError as error:
        if isinstance(error, CaseFault):
            raise
        return error
    if case.error is not None:
        return None
    return _compare(run) or _post_conditions(run)


_OF_TESTERS = re.compile(r"ASSERT\s+(?=(VALUES|NULL|STREAM|TABLE)\b)", re.IGNORECASE)


def _parsed(source: StatementText) -> ast.Statement:
    """Parse a statement; those that only tools which test scripts know are not of the dialect that cases are in."""
    found = _OF_TESTERS.match(source.text)
    if found is not None:
        place = f"{source.line}:{source.column + found.end()}"
        word = found.group(1)
        raise SyntaxFault(f"line {place}: Syntax Error\nSyntax error at or near '{word}' at line {place}")
    return parse_statement(source)


def _register_schemas(run: _Run, statements: list[ast.Statement]) -> None:
    """Register what topics are written with: first of those that statements declare with columns, then the case's own."""
    own = {(topic.name, schema.side) for topic in run.case.topics for schema in topic.schemas}
    context = run.context()
    for statement in statements:
        if isinstance(statement, ast.CreateType | ast.DropType):
            with contextlib.suppress(LogflumeError):
                context = replace(context, catalog=apply_definition(statement, context))
        if isinstance(statement, ast.CreateSource):
            with contextlib.suppress(LogflumeError):  # the statement itself says what is wrong with it
                source = plan_source(statement, context)
                for side, spec, columns in (
                    ("key", source.key_format, source.key),
                    ("value", source.value_format, source.value),
                ):
                    if (source.topic, side) not in own:
                        register_schema(spec, columns)
    for topic in run.case.topics:
        for schema in topic.schemas:
            registered = RegisteredSchema(schema.id or 0, schema.kind, schema.text, schema.references)
            run.registry.put(f"{topic.name}-{schema.side}", registered)


# ------------------------------------------------------------------------------------------------ statements


def _execute(run: _Run, statement: ast.Statement) -> None:
    match statement:
        case ast.CreateAs():
            if statement.if_not_exists and statement.name in run.catalog.sources:
                return
            _add_query(run, statement, plan_create_as(statement, run.context(), query_id=new_query_id(statement, run.catalog)))
        case ast.InsertQuery():
            _add_query(run, statement, plan_insert(statement, run.context(), query_id=new_query_id(statement, run.catalog)))
        case ast.InsertValues():
            for record in values_records(statement, run.context(), RecordMakers()):
                output = Output(record.topic, record.key, record.value, record.timestamp_ms)
                run.topics.setdefault(record.topic, []).append(output)
        case ast.SetProperty() | ast.UnsetProperty():
            raise CaseFault(f"{run.case.id}: SET in a case")
        case ast.QueryStatement():
            raise CaseFault(f"{run.case.id}: a query that is not persistent")
        case ast.RunScript():
            raise SyntaxFault(
                "Syntax Error\nUnknown statement 'RUN': scripts are run by the shell (logflume sql -f)", statement.span
            )
        case _:
            if isinstance(statement, ast.CreateSource):
                statement = inferred(statement, run.context())
            run.catalog = apply_definition(statement, run.context())
            if isinstance(statement, ast.CreateSource):
                created = run.catalog.sources[statement.name]
                run.partitions.setdefault(created.topic, created.partitions or DEFAULT_PARTITIONS)
            if isinstance(statement, ast.Drop):
                run.queries = [q for q in run.queries if q[0].query.id in run.catalog.queries]


def _add_query(run: _Run, statement: ast.CreateAs | ast.InsertQuery, planned: PlannedQuery) -> None:
    if isinstance(statement, ast.CreateAs):
        existing = run.catalog.sources.get(statement.name)
        if existing is not None and not statement.or_replace:
            check_is_free(statement.name, statement.is_table, run.catalog, statement.span)
        replaced = next((q for q, _ in run.queries if q.sink is not None and q.query.sink == statement.name), None)
        if replaced is not None:
            check_query_replacement(replaced, planned, statement.span)
        elif existing is not None and planned.sink is not None:
            check_replacement(existing, planned.sink, statement.span)
        if existing is not None:
            run.queries = [q for q in run.queries if q[0].query.sink != statement.name]
    register_schemas(planned, statement.span)
    driver = _driver(planned)
    catalog = run.catalog.with_query(planned.query)
    if planned.sink is not None:
        catalog = catalog.with_source(planned.sink)
        run.partitions.setdefault(planned.sink.topic, planned.sink.partitions or DEFAULT_PARTITIONS)
    run.catalog = catalog
    run.queries.append((planned, driver))


def _driver(planned: PlannedQuery) -> Driver:
    """Compile a query; what the engine cannot do yet is an error of the statement."""
    try:
        return Driver(planned.topology)
    except InvalidInput as e:
        if isinstance(e, StatementError):
            raise
        raise NotSupported(f"this query ({e})") from e


# ------------------------------------------------------------------------------------------------ records


def _source_of_topic(run: _Run, topic: str) -> SourceInfo:
    for source in reversed(run.catalog.sources.values()):  # type: ignore[call-overload]
        if source.topic == topic:
            found: SourceInfo = source
            return found
    raise CaseFault(f"{run.case.id}: no stream or table over the topic {topic!r}")


def _input(run: _Run, record: CaseRecord) -> Output:
    source = _source_of_topic(run, record.topic)
    key = encode_key(record, source)
    value = encode(record.value, source.value_format, source.value)
    return Output(record.topic, key, value, record.timestamp_ms or 0, record.headers or ())


def _feed(run: _Run) -> None:
    inputs = [(r.topic, _input(run, r)) for r in run.case.inputs if _is_read_or_compared(run, r.topic)]
    for _, record in inputs:
        run.topics.setdefault(record.topic, []).append(record)
    given = {topic for topic, _ in inputs}
    for planned, driver in run.queries:
        topics = _topics_read(run, planned)
        if topics & given:
            for topic, record in inputs:
                if topic in topics:
                    _process(run, driver, record)
        for topic in sorted(topics - given, key=lambda t: [s.topic for s in _sources(run, planned)].index(t)):
            for record in list(run.topics.get(topic, ())):
                _process(run, driver, record)


def _is_read_or_compared(run: _Run, topic: str) -> bool:
    return any(s.topic == topic for s in run.catalog.sources.values())


def _sources(run: _Run, planned: PlannedQuery) -> list[SourceInfo]:
    return [run.catalog.sources[name] for name in planned.plan.sources]


def _topics_read(run: _Run, planned: PlannedQuery) -> set[str]:
    return {s.topic for s in _sources(run, planned)}


def _process(run: _Run, driver: Driver, record: Output) -> None:
    for output in driver.process(record):
        run.topics.setdefault(output.topic, []).append(output)


# ------------------------------------------------------------------------------------------------ judging


def _compare(run: _Run) -> str | None:
    expected: dict[str, list[CaseRecord]] = {}
    for record in run.case.outputs:
        expected.setdefault(record.topic, []).append(record)
    for topic, records in expected.items():
        actual = run.topics.get(topic, [])
        if len(actual) != len(records):
            shown = [(o.key, o.value, o.timestamp_ms) for o in actual[:5]]
            return f"{topic}: expected {len(records)} records, found {len(actual)}: {shown}"
        source = _source_of_topic(run, topic)
        for i, (output, record) in enumerate(zip(actual, records, strict=True)):
            problem = _record_difference(run, source, output, record)
            if problem:
                return f"{topic}[{i}]: {problem}"
    return None


def _record_difference(run: _Run, source: SourceInfo, output: Output, record: CaseRecord) -> str | None:
    key = output.key
    if record.window is not None:
        if source.window is None or key is None:
            return "expected a windowed key"
        problem = _window_difference(key, source, record.window)
        if problem:
            return problem
        key = key[:-16] if source.window.kind == "SESSION" else key[:-8]
    is_exact = str(run.case.properties.get("use.exact.numeric.comparison", "true")).lower() != "false"
    tolerance = None if is_exact else NUMERIC_TOLERANCE
    problem = difference(decode(key, source.key_format, source.key), record.key, "key", tolerance=tolerance)
    problem = problem or difference(
        decode(output.value, source.value_format, source.value), record.value, "value", tolerance=tolerance
    )
    if problem:
        return problem
    is_free = not run.case.inputs and record.timestamp_ms == 0
    if record.timestamp_ms is not None and not is_free and output.timestamp_ms != record.timestamp_ms:
        return f"timestamp: expected {record.timestamp_ms}, found {output.timestamp_ms}"
    wanted: Headers = record.headers or ()
    if tuple(output.headers) != tuple(wanted):
        return f"headers: expected {wanted}, found {output.headers}"
    return None


def _window_difference(key: bytes, source: SourceInfo, window: Mapping[str, Any]) -> str | None:
    assert source.window is not None
    kind = "SESSION" if source.window.kind == "SESSION" else "TIME"
    if str(window.get("type", "")).upper() != kind:
        return f"window: expected type {window.get('type')}, found {kind}"
    start = int.from_bytes(key[-8:], "big")
    _, end = bounds_of_key(source.window.of_key(), key)
    if (start, end) != (int(window["start"]), int(window["end"])):
        return f"window: expected {window['start']}..{window['end']}, found {start}..{end}"
    return None


def _post_conditions(run: _Run) -> str | None:
    topics = [*run.topics, *(topic for _, driver in run.queries for topic in driver.internal_topics)]
    replicas = {topic.name: topic.replicas for topic in run.case.topics}
    after = After(run.catalog, tuple(topics), run.partitions, replicas, run.registry, run.case.properties)
    return broken_condition(run.case.post, after, run.case.id)


_KINDS: Mapping[str, type[BaseException]] = {
    "KsqlException": SqlError,
    "KsqlStatementException": StatementError,
    "ParseFailedException": SyntaxFault,
    "StreamsException": LogflumeError,
}
"""What an expected Java type stands for here; a StreamsException comes while records are processed."""

_PLACE = re.compile(r"^(Failed to prepare statement: )?(line \d+:\d+: |Line: \d+, Col: \d+: |line \d+, column \d+: )?")
_STATEMENT = re.compile(r"\n?\s*Statement: .*\Z", re.DOTALL)


def _judged(case: Case, result: BaseException | str | None) -> Outcome:
    expected = case.error
    if expected is None:
        if result is None:
            return Outcome(case, Verdict.PASSED)
        reason = result if isinstance(result, str) else f"{type(result).__name__}: {result}"
        return Outcome(case, Verdict.FAILED, reason)
    wanted = f"expected {expected.kind or 'an error'} ({expected.message})"
    if result is None:
        return Outcome(case, Verdict.FAILED, f"{wanted}, but all went well")
    assert isinstance(result, BaseException)
    kind = _KINDS.get(expected.kind or "KsqlException")
    if kind is None:
        raise CaseFault(f"{case.id}: unknown kind of error {expected.kind!r}")
    is_of_kind = isinstance(result, kind) and not (kind is LogflumeError and isinstance(result, SqlError))
    if isinstance(result, NotSupported) or not is_of_kind:
        return Outcome(case, Verdict.FAILED, f"{wanted}, found {type(result).__name__}: {result}")
    matches = all(text is None or _contains(str(result), text) for text in (expected.message, expected.cause))
    if matches:
        return Outcome(case, Verdict.PASSED, message_matches=True)
    return Outcome(case, Verdict.FAILED, f"message differs: expected {expected.message!r}, found {result}", matches)


def _contains(found: str, wanted: str) -> bool:
    """Tell whether the wanted piece is in the message. Blanks count as one; how a place and the statement are shown does not."""
    return " ".join(_STATEMENT.sub("", _PLACE.sub("", wanted)).split()) in " ".join(_PLACE.sub("", found).split())
