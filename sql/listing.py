"""SHOW, DESCRIBE and EXPLAIN: what exists, as rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logflume.log import is_hidden_topic, near_matches
from logflume.log.interfaces import Log
from logflume.log.schemas import BIGINT, BOOLEAN, STRING, Column
from logflume.streams.functions import Library, Scalar
from logflume.streams.runtime import EngineStatus

from . import ast
from .binding.context import Context
from .catalog import SourceInfo
from .dead_letters import dead_letter_topic
from .errors import NotSupported, StatementError
from .functions import example_text, unknown_function
from .plan import QueryPlan
from .planner import plan_create_as, plan_insert, plan_push
from .properties import PROPERTIES
from .results import Rows
from .show import plan_text
from .topology import build_topology
from .types import show_type


def _columns(*names: str) -> tuple[Column, ...]:
    return tuple(Column(n, STRING) for n in names)


def show(s: ast.Show, context: Context, log: Log, status: Mapping[str, EngineStatus], variables: Mapping[str, str]) -> Rows:
    """Answer SHOW or LIST."""
    catalog = context.catalog
    match s.what:
        case "STREAMS" | "TABLES":
            wanted = [x for x in catalog.sources.values() if x.is_table == (s.what == "TABLES")]
            rows = [_source_row(x) for x in sorted(wanted, key=lambda x: x.name)]
            return Rows(
                s.what, (*_columns("NAME", "TOPIC", "KEY FORMAT", "VALUE FORMAT"), Column("WINDOWED", BOOLEAN)), tuple(rows)
            )
        case "TOPICS":
            admin = log.admin()
            found = admin.describe_topics(
                [t for t in admin.list_topics(include_internal=True) if s.is_all or not is_hidden_topic(t)]
            )
            rows = [(d.name, d.partitions) for d in sorted(found.values(), key=lambda d: d.name)]
            return Rows("TOPICS", (Column("TOPIC", STRING), Column("PARTITIONS", BIGINT)), tuple(rows))
        case "QUERIES":
            return _queries(context, status)
        case "FUNCTIONS":
            library = context.functions
            rows = [(name, str(library.kind_of(name)).upper(), _doc(library, name)) for name in library.names()]
            return Rows("FUNCTIONS", _columns("NAME", "KIND", "WHAT IT DOES"), tuple(rows))
        case "TYPES":
            return Rows("TYPES", _columns("NAME", "TYPE"), tuple((n, show_type(t)) for n, t in sorted(catalog.types.items())))
        case "PROPERTIES":
            set_ones = context.properties
            rows = [(name, set_ones.get(name, ""), PROPERTIES.get(name, "")) for name in sorted({*PROPERTIES, *set_ones})]
            return Rows("PROPERTIES", _columns("NAME", "VALUE", "WHAT IT DOES"), tuple(rows))
        case "VARIABLES":
            return Rows("VARIABLES", _columns("NAME", "VALUE"), tuple(sorted(variables.items())))
    raise NotSupported(f"SHOW {s.what}", s.span)


def _source_row(source: SourceInfo) -> tuple[Any, ...]:
    return (source.name, source.topic, source.key_format.name, source.value_format.name, source.window is not None)


def _queries(context: Context, status: Mapping[str, EngineStatus]) -> Rows:
    rows = []
    for query in sorted(context.catalog.queries.values(), key=lambda q: q.id):
        found = status.get(query.id)
        state = "PAUSED" if query.is_paused else "NOT HERE" if found is None else str(found.state).upper()
        counts = (
            (found.records_in, found.records_out, sum(found.dropped.values())) if found and found.instance_id else (None,) * 3
        )
        shown = (*counts, found.lag_records if found else None)
        why = "; ".join(map(str, found.left_out)) if found else ""
        letters = query.dead_letter_topic or ""
        rows.append((query.id, state, query.sink, *shown, query.statement, why, letters, found.error or "" if found else ""))
    columns = (
        *_columns("QUERY", "STATE", "SINK"),
        Column("RECORDS IN", BIGINT),
        Column("RECORDS OUT", BIGINT),
        Column("DROPPED", BIGINT),
        Column("LAG", BIGINT),
        Column("STATEMENT", STRING),
        *_columns("DROPPED FOR", "DEAD LETTERS"),
        Column("ERROR", STRING),
    )
    return Rows("QUERIES", columns, tuple(rows))


def _doc(library: Library, name: str) -> str:
    found = library.find(name)
    return "" if found is None else found.doc


def describe(s: ast.Describe, context: Context, status: Mapping[str, EngineStatus]) -> list[Rows]:
    """Answer DESCRIBE."""
    if s.what == "FUNCTION":
        return [_describe_function(s, context.functions)]
    if s.what in ("STREAMS", "TABLES"):
        wanted = [x for x in context.catalog.sources.values() if x.is_table == (s.what == "TABLES")]
        return [_describe_source(x) for x in sorted(wanted, key=lambda x: x.name)]
    source = context.catalog.source(s.name, s.span)
    found = [_describe_source(source)]
    if s.is_extended:
        facts = [
            ("kind", source.kind),
            ("topic", source.topic),
            ("key format", source.key_format.name),
            ("value format", source.value_format.name),
            ("read by", ", ".join(context.catalog.readers_of(source.name)) or "nothing"),
            ("written by", ", ".join(context.catalog.writers_to(source.name)) or "others"),
            ("statement", source.statement),
        ]
        found.append(Rows(f"{source.name}: facts", _columns("WHAT", "VALUE"), tuple(facts)))
        queries = _queries(context, status)
        names = {*context.catalog.readers_of(source.name), *context.catalog.writers_to(source.name)}
        found.append(Rows(f"{source.name}: queries", queries.columns, tuple(r for r in queries.rows if r[0] in names)))
    return found


def _describe_source(source: SourceInfo) -> Rows:
    key = "PRIMARY KEY" if source.is_table else "KEY"
    rows = [(c.name, show_type(c.type), key) for c in source.key]
    rows += [(c.name, show_type(c.type), "") for c in source.value]
    rows += [(h.name, "BYTES" if h.key else "ARRAY<STRUCT<KEY STRING, VALUE BYTES>>", "HEADERS") for h in source.headers]
    window = "" if source.window is None else f", {source.window.kind} windows"
    return Rows(f"{source.kind} {source.name} over topic {source.topic}{window}", _columns("COLUMN", "TYPE", "ROLE"), tuple(rows))


def _describe_function(s: ast.Describe, library: Library) -> Rows:
    found = library.find(s.name)
    if found is None:
        error = unknown_function(library, s.name)
        error.span = s.span
        raise error
    rows = [(f"{s.name}{each.signature}", found.doc) for each in found.overloads]
    if isinstance(found, Scalar) and (example := example_text(found)):
        rows.append((example, "an example"))
    return Rows(f"{s.name}, {library.kind_of(s.name)} function", _columns("VARIATION", "WHAT IT DOES"), tuple(rows))


def explain(s: ast.Explain, context: Context, plans: Mapping[str, QueryPlan]) -> Rows:
    """Answer EXPLAIN: the logical plan and the topology, as lines of text; of a query that is there (`plans`), what it runs."""
    plan = _explained(s, context, plans)
    try:
        topology = str(build_topology(plan).describe()).splitlines()
    except NotSupported as e:
        topology = [f"none: {e.reason}"]
    query = context.catalog.queries.get(s.query_id or "")
    letters = dead_letter_topic(context.properties if query is None else query.properties)
    kept = [] if letters is None else ["", f"Dead letters: topic {letters}"]
    text = ["Logical plan", *plan_text(plan.root).splitlines(), *kept, "", "Topology", *topology]
    return Rows("EXPLAIN", _columns("PLAN"), tuple((line,) for line in text))


def picture(s: ast.Explain, context: Context, plans: Mapping[str, QueryPlan]) -> str:
    """Draw the topology that EXPLAIN tells in words, as SVG. Raises StatementError as EXPLAIN does."""
    return build_topology(_explained(s, context, plans)).describe().svg()


def _explained(s: ast.Explain, context: Context, plans: Mapping[str, QueryPlan]) -> QueryPlan:
    plan = _plan_of(s, context) if s.query_id is None else plans.get(s.query_id)
    if plan is None:
        near = near_matches(s.query_id or "", plans)
        hint = f" Did you mean {' or '.join(near)}?" if near else " SHOW QUERIES lists what runs."
        raise StatementError(f"Query with id:{s.query_id} does not exist.{hint}", s.span)
    return plan


def _plan_of(s: ast.Explain, context: Context) -> QueryPlan:
    """Return how a statement would be run."""
    match s.statement:
        case ast.QueryStatement(query_ast):
            return plan_push(query_ast, context, query_id="QUERY")
        case ast.CreateAs() as statement:
            return plan_create_as(statement, context, query_id="QUERY").plan
        case ast.InsertQuery() as statement:
            return plan_insert(statement, context, query_id="QUERY").plan
    raise StatementError("EXPLAIN takes a query: SELECT, CREATE ... AS SELECT or INSERT INTO ... SELECT", s.span)
