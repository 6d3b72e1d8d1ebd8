"""Statements that define streams, tables, types, connectors, properties of all sessions, and those that stop or pause queries."""

from __future__ import annotations

from dataclasses import replace

from logflume.log import LogflumeError, near_matches

from . import ast
from .binding.context import Context
from .catalog import SourceInfo
from .command_log import Command
from .connectors import Connectors
from .definitions import apply_definition, check_topic_is_own
from .errors import StatementError
from .following import Following
from .format import statement_text
from .inference import inferred
from .properties import ENGINE, check_property
from .results import Message, Result


def create_source(s: ast.CreateSource, context: Context, following: Following) -> Result:
    """Define a stream or table, and make its topic where there is none. Raises StatementError, as all of these do."""
    existing = following.catalog.sources.get(s.name)
    if existing is not None and s.if_not_exists:
        return Message(f"Cannot add {'table' if s.is_table else 'stream'} `{s.name}`: it exists already, nothing was done.")
    s = inferred(s, context)
    catalog = apply_definition(s, context)
    _ensure_topic(catalog.sources[s.name], s, following)
    following.record(Command(statement_text(s), None, dict(context.properties)))
    return Message(f"{'Table' if s.is_table else 'Stream'} {s.name} created")


def _ensure_topic(source: SourceInfo, s: ast.CreateSource, following: Following) -> None:
    admin = following.log.admin()
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


def drop(s: ast.Drop, context: Context, following: Following) -> Result:
    """Forget a stream or table, and delete its topic where that is asked for and nobody else has it."""
    source = following.catalog.sources.get(s.name)
    apply_definition(s, context)
    if source is None:
        return Message(f"Source {s.name} does not exist, nothing was done.")
    if s.delete_topic:
        check_topic_is_own(source, following.catalog, s.span)
    following.record(Command(statement_text(replace(s, delete_topic=False))))
    if s.delete_topic:
        following.log.admin().delete_topic(source.topic)
    return Message(f"Source `{s.name}` (topic: {source.topic}) was dropped{' with its topic' if s.delete_topic else ''}.")


def define_connector(s: ast.CreateConnector | ast.DropConnector, context: Context, following: Following) -> Result:
    """Make or drop a connector, once whoever runs it has checked what it is told."""
    catalog = apply_definition(s, context)
    if catalog.connectors == following.catalog.connectors:
        exists = "exists already" if isinstance(s, ast.CreateConnector) else "does not exist"
        return Message(f"Connector {s.name} {exists}, nothing was done.")
    if isinstance(s, ast.CreateConnector):
        try:
            own_connectors(s.span, following).prepare(catalog.connectors[s.name])
        except StatementError:
            raise
        except LogflumeError as error:
            raise StatementError(f"Failed to create connector {s.name}: {error}", s.span) from error
    following.record(Command(statement_text(s)))
    return Message(f"{'Created' if isinstance(s, ast.CreateConnector) else 'Dropped'} connector {s.name}")


def own_connectors(span: ast.Span, following: Following) -> Connectors:
    """Return what runs connectors in this process. Raises StatementError: nothing does."""
    if following.connectors is None:
        raise StatementError("connectors are made where they run: `logflume sql`, `logflume sql serve`, `logflume serve`", span)
    return following.connectors


def define(
    s: ast.AlterSource | ast.CreateType | ast.DropType | ast.AlterSystem, context: Context, following: Following
) -> Result:
    """Do the definitions that touch the catalog alone."""
    if apply_definition(s, context) is following.catalog:
        return Message(f"{s.name}: nothing to be done.")
    following.record(Command(statement_text(s)))
    done = {
        "AlterSource": "altered",
        "CreateType": "registered",
        "DropType": "dropped",
        "AlterSystem": "set for all sessions",
    }
    return Message(f"{s.name} {done[type(s).__name__]}")


def control(s: ast.QueryControl, context: Context, following: Following) -> Result:
    """End, pause or resume one query or all; RESUME under an `engine` moves it there."""
    queries = following.catalog.queries
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
    check_property(ENGINE, context.properties.get(ENGINE), s.span)
    moved = {ENGINE: context.properties[ENGINE]} if s.verb == "RESUME" and ENGINE in context.properties else {}
    for query_id in wanted:
        following.record(Command(f"{s.verb} `{query_id}`", properties=moved))
    done = {"TERMINATE": "terminated", "PAUSE": "paused", "RESUME": "resumed"}[s.verb]
    return Message(f"{done} {', '.join(wanted) if wanted else 'nothing: no query to which that applies'}")
