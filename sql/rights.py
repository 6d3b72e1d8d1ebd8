"""What a user may do with statements: patterns of the topics that may be read and written (`log/registry/users.py` keeps them).

To define a stream or table over a topic is to write to it. What shows what exists is anybody's who is known; what is about more
than topics is an admin's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace

from logflume.log.registry import Rights
from logflume.streams.runtime import EngineStatus

from . import ast
from .binding.context import OUTPUT_PREFIX
from .catalog import Catalog, QueryInfo
from .dead_letters import dead_letter_topic
from .errors import StatementError


class RightsRefused(StatementError):
    """A user may not do that; nothing was done."""

    code = "SQL_RIGHTS"


@dataclass(frozen=True, slots=True)
class _Needs:
    """The topics that a statement reads and writes; `is_admins`: it is about more than topics."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    is_admins: bool = False


def check_rights(statement: ast.Statement, rights: Rights, catalog: Catalog, properties: Mapping[str, str]) -> None:
    """Raise RightsRefused unless a user may have a statement executed. A name that is not known yet is for later to refuse."""
    if rights.is_admin:
        return
    needs = _needs(statement, catalog, properties)
    if needs.is_admins:
        raise RightsRefused(f"user {rights.user!r} is no admin, which this statement needs", statement.span)
    check_topics(rights, reads=needs.reads, writes=needs.writes, span=statement.span)


def check_topics(rights: Rights, *, reads: Iterable[str] = (), writes: Iterable[str] = (), span: ast.Span = ast.NOWHERE) -> None:
    """Raise RightsRefused unless a user may read and write these topics."""
    for topic in writes:
        if not rights.may_write(topic):
            raise RightsRefused(f"user {rights.user!r} may not write to topic {topic}; an admin can allow it", span)
    for topic in reads:
        if not rights.may_read(topic):
            raise RightsRefused(f"user {rights.user!r} may not read topic {topic}; an admin can allow it", span)


def without_records(status: EngineStatus, query: QueryInfo | None, rights: Rights, catalog: Catalog) -> EngineStatus:
    """Return what somebody is told of a query: its error, which may quote a record, only if they may read its topics."""
    topics = () if query is None else _topics(query.sources, catalog)
    hidden = [topic for topic in topics if not rights.may_read(topic)]
    if status.error is None or (query is not None and not hidden):
        return status
    whose = f"of {', '.join(hidden)}, which user {rights.user!r} may not read" if hidden else "of its topics"
    return replace(status, error=f"told to those who may read its topics alone, for it may quote a record {whose}")


def _needs(s: ast.Statement, catalog: Catalog, properties: Mapping[str, str]) -> _Needs:
    match s:
        case (
            ast.Show()
            | ast.Describe()
            | ast.Explain()
            | ast.SetProperty()
            | ast.UnsetProperty()
            | ast.Define()
            | ast.Undefine()
            | ast.AssertTopic()
            | ast.AssertSchema()
        ):
            return _Needs()
        case ast.QueryStatement():
            return _Needs(reads=_sources_in(s, catalog))
        case ast.Print(topic):
            return _Needs(reads=(topic,))
        case ast.CreateSource():
            return _Needs(writes=(_given_topic(s.properties), *_topics([s.name], catalog)))
        case ast.CreateAs():
            topic = _given_topic(s.properties) or properties.get(OUTPUT_PREFIX, "") + s.name
            writes = (topic, *_topics([s.name], catalog), *_letters(properties))
            return _Needs(reads=_sources_in(s, catalog), writes=writes)
        case ast.InsertQuery(target):
            return _Needs(reads=_sources_in(s, catalog), writes=(*_topics([target], catalog), *_letters(properties)))
        case ast.InsertValues(target):
            return _Needs(writes=_topics([target], catalog))
        case ast.Drop(name) | ast.AlterSource(name):
            return _Needs(writes=_topics([name], catalog))
        case ast.QueryControl(_, query_id):
            wanted = [q for q in catalog.queries.values() if query_id is None or q.id.upper() == query_id.upper()]
            return _Needs(writes=_topics([q.sink for q in wanted], catalog))
    return _Needs(is_admins=True)


def _letters(properties: Mapping[str, str]) -> tuple[str, ...]:
    topic = dead_letter_topic(properties)
    return () if topic is None else (topic,)


def _given_topic(properties: Iterable[ast.Property]) -> str:
    return next((str(p.value) for p in properties if p.name.upper() == "KAFKA_TOPIC"), "")


def _topics(names: Iterable[str], catalog: Catalog) -> tuple[str, ...]:
    return tuple(catalog.sources[name].topic for name in names if name in catalog.sources)


def _sources_in(s: ast.Node, catalog: Catalog) -> tuple[str, ...]:
    """Return the topics of all sources that are named anywhere in a statement."""
    return _topics(dict.fromkeys(_names(s)), catalog)


def _names(value: object) -> Iterator[str]:
    if isinstance(value, ast.SourceRef):
        yield value.name
    elif isinstance(value, ast.Node):
        for each in fields(value):
            yield from _names(getattr(value, each.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from _names(item)
