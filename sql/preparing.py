"""Persistent queries before they run: checked in full, then recorded, and so started wherever the service runs its queries."""

from __future__ import annotations

from dataclasses import dataclass

from logflume.streams.runtime import create_results, ensure_dead_letter_topic, prepare_topics
from logflume.streams.seams import Plan

from . import ast
from .applying import plan_persistent, replaced_query
from .binding.context import Context
from .command_log import Command
from .definitions import check_is_free, id_beside, new_query_id
from .errors import StatementError
from .following import Following
from .format import statement_text
from .planner import PlannedQuery, register_schemas
from .properties import ENGINE, SPARK, check_property
from .recorded import recorded_plan
from .results import Message, Result
from .running import Checked, application_of, compile_query
from .upgrades import check_replaceable


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

    @property
    def dead_letter_topic(self) -> str | None:
        """Where it keeps records that cannot be processed."""
        return self.planned.query.dead_letter_topic

    def compile(self) -> Plan:
        """Return the query as the streams runtime runs it. Picklable as a bound method, for Spark's workers."""
        return compile_query(self.planned, self.application)


def create_query(s: ast.CreateAs | ast.InsertQuery, context: Context, following: Following) -> Result:
    """Do CREATE ... AS SELECT or INSERT INTO ... SELECT."""
    catalog = following.catalog
    if isinstance(s, ast.CreateAs) and s.name in catalog.sources:
        if s.if_not_exists:
            return Message(f"Cannot add {'table' if s.is_table else 'stream'} `{s.name}`: it exists already, nothing was done.")
        if replaced_query(s, catalog) is None:
            check_is_free(s.name, s.is_table, catalog, s.span)
    made, compiled = checked(s, context, following)
    register_schemas(made.planned, s.span)
    return start(made, compiled, following)


def checked(
    s: ast.CreateAs | ast.InsertQuery, context: Context, following: Following, *, is_beside: bool = False
) -> tuple[PreparedQuery, Plan]:
    """Check a query in full. `is_beside`: it replaces another under an id of its own, so that both can exist."""
    check_property(ENGINE, context.properties.get(ENGINE), s.span)
    replaced = replaced_query(s, following.catalog)
    if replaced is None:
        query_id = new_query_id(s, following.catalog)
    else:
        query_id = id_beside(replaced) if is_beside else replaced
    if query_id in following.catalog.queries and (is_beside or replaced is None):
        raise StatementError(f"Query ID '{query_id}' already exists. Choose another.", s.span)
    planned = plan_persistent(s, context, query_id)
    if replaced is not None:
        check_replaceable(following.applied.queries[replaced].planned, planned, s.span, is_beside=is_beside)
    application = application_of(following.service, planned.query)
    compiled = compile_query(planned, application)
    what = f"{'Table' if isinstance(s, ast.CreateAs) and s.is_table else 'Stream'} {planned.query.sink}"
    verb = ("created" if replaced is None else "replaced") if isinstance(s, ast.CreateAs) else "is being filled"
    command = Command(statement_text(s), query_id, dict(context.properties), recorded_plan(planned, compiled))
    return PreparedQuery(command, planned, application, f"{what} {verb}", replaced if is_beside else None), compiled


def start(prepared: PreparedQuery, compiled: Plan, following: Following) -> Message:
    """Record a prepared query: from now on it runs, here or where the service's queries run."""
    letters = prepared.dead_letter_topic
    with following.lock:
        if letters is not None:
            ensure_dead_letter_topic(following.log.admin(), letters)
        topics = None
        if following.runs_queries:
            topics = prepare_topics(compiled, following.log.admin())  # all by one request; who runs it would make its own after
        else:
            create_results(compiled, following.log.admin())
        following.record(prepared.command, Checked(compiled, topics))
    query_id = prepared.command.query_id
    where = ", on Spark (logflume sql on-spark)" if prepared.planned.query.engine == SPARK else ""
    return Message(f"{prepared.what}, running query with ID {query_id}{where}", query_id)
