"""Runs one case: statements, inputs, comparison of outputs, expected errors, conditions afterwards.

The algorithm is that of the case format: every persistent query has a driver of its own; each takes the whole list of inputs in
order, and records of topics that only earlier queries or INSERT VALUES wrote.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from logflume.log import Headers, InvalidInput, LogflumeError
from logflume.log.schemas import MemoryRegistry, RegisteredSchema, register_schema
from logflume.sql import ast
from logflume.sql.binding.context import REGISTRY_URL, Context
from logflume.sql.catalog import Catalog, SourceInfo
from logflume.sql.definitions import apply_definition
from logflume.sql.errors import NotSupported, StatementError, SyntaxFault
from logflume.sql.inference import inferred
from logflume.sql.inserts import values_record
from logflume.sql.parser import parse_statement
from logflume.sql.planner import PlannedQuery, plan_create_as, plan_insert, plan_source
from logflume.sql.scripts import split_script
from logflume.sql.types import show_type
from logflume.streams.functions import Library
from logflume.streams.graph import Emit

from .cases import IGNORED_KEYS, Case, CaseFault, CaseRecord
from .compare import difference
from .driver import Driver, Output
from .outcome import Outcome, Skip, Verdict
from .values import decode, encode, encode_key

DEFAULT_PARTITIONS = 4
NUMERIC_TOLERANCE = 1e-6


@dataclass(slots=True)
class _Run:
    """The state of a case: what exists, what is in the topics, the queries with their drivers."""

    case: Case
    library: Library
    catalog: Catalog = field(default_factory=Catalog)
    partitions: dict[str, int] = field(default_factory=dict)
    topics: dict[str, list[Output]] = field(default_factory=dict)
    queries: list[tuple[PlannedQuery, Driver]] = field(default_factory=list)
    sinks: dict[str, SourceInfo] = field(default_factory=dict)
    number: int = 0
    registry: MemoryRegistry = field(default_factory=MemoryRegistry)

    def context(self) -> Context:
        properties = {REGISTRY_URL: self.registry.location, **self.case.properties}
        return Context(self.catalog, self.library, properties, fixed_now_ms=0, emit=Emit.UPDATE, partitions=self.partitions)


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
        statements = [parse_statement(text) for text in split_script("\n".join(case.statements))]
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


def _register_schemas(run: _Run, statements: list[ast.Statement]) -> None:
    """Register what topics are written with: first of those that statements declare with columns, then the case's own."""
    own = {(topic.name, schema.side) for topic in run.case.topics for schema in topic.schemas}
    for statement in statements:
        if isinstance(statement, ast.CreateSource):
            with contextlib.suppress(LogflumeError):  # the statement itself says what is wrong with it
                source = plan_source(statement, run.context())
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
            _add_query(run, statement, plan_create_as(statement, run.context(), query_id=_query_id(run, statement)))
        case ast.InsertQuery():
            _add_query(run, statement, plan_insert(statement, run.context(), query_id=_query_id(run, statement)))
        case ast.InsertValues():
            record = values_record(statement, run.context())
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
        case ast.AssertSource():
            _assert_source(run, statement)
        case _:
            if isinstance(statement, ast.CreateSource):
                statement = inferred(statement, run.context())
            run.catalog = apply_definition(statement, run.context())
            if isinstance(statement, ast.CreateSource):
                created = run.catalog.sources[statement.name]
                run.partitions.setdefault(created.topic, created.partitions or DEFAULT_PARTITIONS)
            if isinstance(statement, ast.Drop):
                run.queries = [q for q in run.queries if q[0].query.id in run.catalog.queries]


def _query_id(run: _Run, statement: ast.CreateAs | ast.InsertQuery) -> str:
    number = run.number
    if isinstance(statement, ast.InsertQuery):
        return f"INSERTQUERY_{number}"
    return f"{'CTAS' if statement.is_table else 'CSAS'}_{statement.name}_{number}"


def _add_query(run: _Run, statement: ast.CreateAs | ast.InsertQuery, planned: PlannedQuery) -> None:
    if isinstance(statement, ast.CreateAs):
        existing = run.catalog.sources.get(statement.name)
        if existing is not None and not statement.or_replace:
            raise StatementError(
                f"Cannot add {existing.kind.lower()} '{statement.name}': A {existing.kind.lower()} with the same name "
                "already exists"
            )
        if existing is not None:
            run.queries = [q for q in run.queries if q[0].query.sink != statement.name]
    driver = _driver(planned)
    run.number += 1
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


def _assert_source(run: _Run, statement: ast.AssertSource) -> None:
    source = run.catalog.source(statement.name, statement.span)
    if source.is_table != statement.is_table:
        raise StatementError(f"{statement.name} is a {source.kind}", statement.span)


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
    end = int.from_bytes(key[-16:-8], "big") if kind == "SESSION" else start + (source.window.size_ms or 0)
    if (start, end) != (int(window["start"]), int(window["end"])):
        return f"window: expected {window['start']}..{window['end']}, found {start}..{end}"
    return None


def _post_conditions(run: _Run) -> str | None:
    post = run.case.post
    for key in post:
        if key not in ("sources", "topics", "comments", "comment", "issues"):
            raise CaseFault(f"{run.case.id}: unknown key {key!r} in post")
    for wanted in post.get("sources", ()):
        problem = _source_difference(run, wanted)
        if problem:
            return problem
    topics = post.get("topics", {})
    pattern = topics.get("blacklist")
    if pattern is not None:
        for topic in _all_topics(run):
            if re.fullmatch(pattern, topic):
                return f"post: a topic {topic} exists, which matches {pattern}"
    return _topic_differences(run, topics.get("topics", ()))


def _all_topics(run: _Run) -> Iterator[str]:
    yield from run.topics
    for _, driver in run.queries:
        yield from driver.internal_topics


def _source_difference(run: _Run, wanted: Mapping[str, Any]) -> str | None:
    known = {"name", "type", "schema", "keyFormat", "valueFormat", "keyFeatures", "valueFeatures", "isSource", "keyWrapped"}
    for key in wanted:
        if key not in known and key not in IGNORED_KEYS:
            raise CaseFault(f"{run.case.id}: unknown key {key!r} in post.sources")
    name = wanted["name"]
    source = run.catalog.sources.get(name)
    if source is None:
        return f"post: there is no source {name}"
    if str(wanted.get("type", source.kind)).upper() != source.kind:
        return f"post: {name} is a {source.kind}"
    if wanted.get("schema") is not None:
        found, expected = _schema_text(source), _normal_schema(wanted["schema"])
        if found != expected:
            return f"post: {name} has the columns {found}, expected {expected}"
    if wanted.get("valueFormat") is not None and _format_name(wanted["valueFormat"]) != source.value_format.name:
        return f"post: {name} has value format {source.value_format.name}"
    if wanted.get("keyFormat") is not None:
        return _key_format_difference(source, wanted["keyFormat"])
    if "isSource" in wanted and bool(wanted["isSource"]) != source.is_read_only:
        return f"post: {name} isSource is {source.is_read_only}"
    for side, spec, columns in (
        ("keyFeatures", source.key_format, source.key),
        ("valueFeatures", source.value_format, source.value),
    ):
        if side in wanted:
            found_features = _features(side, spec, columns, run)
            if set(wanted[side]) != found_features:
                return f"post: {name} {side} {sorted(found_features)}, expected {wanted[side]}"
    return None


def _features(side: str, spec: Any, columns: tuple[Any, ...], run: _Run) -> set[str]:
    if len(columns) != 1 or spec.name not in ("JSON",):
        return set()
    if side == "keyFeatures":
        return {"UNWRAP_SINGLES"}
    return (
        {"WRAP_SINGLES" if spec.is_wrapped else "UNWRAP_SINGLES"}
        if "WRAP_SINGLE_VALUE" in "".join(run.case.statements).upper()
        else set()
    )


def _format_name(value: Any) -> str:
    return str(value.get("format") if isinstance(value, Mapping) else value).upper()


def _key_format_difference(source: SourceInfo, wanted: Any) -> str | None:
    if _format_name(wanted) != source.key_format.name:
        return f"post: {source.name} has key format {source.key_format.name}, expected {_format_name(wanted)}"
    if isinstance(wanted, Mapping):
        kind = None if source.window is None else source.window.kind
        size = None if source.window is None or source.window.kind == "SESSION" else source.window.size_ms
        if wanted.get("windowType") != kind or wanted.get("windowSize") != size:
            return f"post: {source.name} has window {kind} {size}, expected {wanted}"
    return None


def _schema_text(source: SourceInfo) -> str:
    parts = [f"`{c.name}` {show_type(c.type)} KEY" for c in source.key]
    parts += [f"`{c.name}` {show_type(c.type)}" for c in source.value]
    headers = [
        f"`{h.name}` {'ARRAY<STRUCT<`KEY` STRING, `VALUE` BYTES>> HEADERS' if h.key is None else 'BYTES'}" for h in source.headers
    ]
    return _normal_schema(", ".join([*parts, *headers]))


def _normal_schema(text: str) -> str:
    """Bring a column list to one form, by reading it as the columns of a CREATE statement."""
    statement = parse_statement(f"CREATE STREAM X ({text.replace('PRIMARY KEY', 'KEY')}) WITH (A='b')")
    assert isinstance(statement, ast.CreateSource)
    from logflume.sql.types import resolve_type

    return ", ".join(
        f"`{e.name}` {show_type(resolve_type(e.type, {}))}{' KEY' if e.constraint == 'KEY' else ''}" for e in statement.elements
    )


def _topic_differences(run: _Run, wanted: Any) -> str | None:
    for topic in wanted:
        name = topic["name"]
        if name.startswith("_confluent"):
            raise Skip("checks internal topic names of Kafka Streams")
        source = next((s for s in run.catalog.sources.values() if s.topic == name), None)
        if source is None:
            return f"post: no source over the topic {name}"
        for key in topic:
            if key not in ("name", "keyFormat", "valueFormat", "partitions", "keySchema", "valueSchema", "replicas"):
                raise CaseFault(f"{run.case.id}: unknown key {key!r} in post.topics")
        if topic.get("valueFormat") is not None and _format_name(topic["valueFormat"]) != source.value_format.name:
            return f"post: topic {name} has value format {source.value_format.name}, expected {topic['valueFormat']}"
        if topic.get("keyFormat") is not None and _format_name(topic["keyFormat"]) != source.key_format.name:
            return f"post: topic {name} has key format {source.key_format.name}, expected {topic['keyFormat']}"
        if topic.get("partitions") is not None and run.partitions.get(name) != topic["partitions"]:
            return f"post: topic {name} has {run.partitions.get(name)} partitions, expected {topic['partitions']}"
    return None


# What an expected Java type stands for here.
_KINDS: Mapping[str, type[BaseException]] = {
    "KsqlException": LogflumeError,
    "KsqlStatementException": StatementError,
    "ParseFailedException": SyntaxFault,
    "StreamsException": LogflumeError,
}


def _judged(case: Case, result: BaseException | str | None) -> Outcome:
    expected = case.error
    if expected is None:
        if result is None:
            return Outcome(case, Verdict.PASSED)
        reason = result if isinstance(result, str) else f"{type(result).__name__}: {result}"
        return Outcome(case, Verdict.FAILED, reason)
    if result is None:
        return Outcome(case, Verdict.FAILED, f"expected {expected.kind or 'an error'} ({expected.message}), but all went well")
    if isinstance(result, NotSupported):
        return Outcome(case, Verdict.FAILED, f"expected {expected.kind} ({expected.message}), found {result}")
    assert isinstance(result, BaseException)
    wanted = _KINDS.get(expected.kind or "KsqlException")
    if wanted is None:
        raise CaseFault(f"{case.id}: unknown kind of error {expected.kind!r}")
    if not isinstance(result, wanted):
        return Outcome(
            case, Verdict.FAILED, f"expected {expected.kind} ({expected.message}), found {type(result).__name__}: {result}"
        )
    matches = expected.message is None or _contains(str(result), expected.message)
    return Outcome(
        case, Verdict.PASSED, "" if matches else f"message differs: expected {expected.message!r}, found {result}", matches
    )


def _contains(found: str, wanted: str) -> bool:
    """Tell whether the wanted piece is in the message; blanks count as one."""
    return " ".join(wanted.split()) in " ".join(found.split())
