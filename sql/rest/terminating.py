"""/ksql/terminate: ends all queries of the service, drops its connectors, streams and tables, deletes topics its queries made."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence

from logflume.log import LogflumeError, UnknownName
from logflume.sql.catalog import Catalog, SourceInfo
from logflume.sql.engine import SqlEngine
from logflume.sql.format import name_text
from logflume.sql.session import Session
from logflume.streams.functions import compiled_pattern

from .errors import BAD_REQUEST, RIGHTS_REFUSED, RestError, as_rest_error


def checked_patterns(patterns: Sequence[str], session: Session) -> list[re.Pattern[str]]:
    """Return what `terminate` takes.

    Raises:
        RestError: a pattern is none, or the user is no admin.
    """
    if not session.rights.is_admin:
        raise RestError(RIGHTS_REFUSED, f"user {session.rights.user!r} is no admin, which it takes to end a service")
    try:
        return [compiled_pattern(pattern) for pattern in patterns]
    except ValueError as error:
        raise RestError(BAD_REQUEST, f"deleteTopicList: {error}") from error


def terminate(engine: SqlEngine, wanted: Sequence[re.Pattern[str]], session: Session) -> None:
    """Do it; of the topics that queries write those whose whole name matches one of `wanted` are deleted.

    Raises:
        RestError: it came only so far; the same request goes on from there, but for the topics that are named.
    """
    engine.following.catch_up()
    left = {topic for topic in _written(engine.catalog) if any(each.fullmatch(topic) for each in wanted)}
    try:
        _run(engine, session, "TERMINATE ALL;")
        for name in list(engine.catalog.connectors):
            _run(engine, session, f"DROP CONNECTOR IF EXISTS {name_text(name)};")
        for source in list(engine.catalog.sources.values()):
            _drop(source, left, engine, session)
    except LogflumeError as error:
        also = f"; topics that are still to be deleted: {', '.join(sorted(left))}" if left else ""
        found = as_rest_error(error)
        raise RestError(found.code, f"the service is not ended yet, ask again: {found.message}{also}") from error


def _drop(source: SourceInfo, left: set[str], engine: SqlEngine, session: Session) -> None:
    """Forget a stream or table, once its topic is gone, so that another attempt knows of that as long as it is there."""
    if source.topic in left:
        with contextlib.suppress(UnknownName):  # gone already
            engine.log.admin().delete_topic(source.topic)
        left.discard(source.topic)
    _run(engine, session, f"DROP {source.kind} IF EXISTS {name_text(source.name)};")


def _run(engine: SqlEngine, session: Session, text: str) -> None:
    list(engine.execute(text, session=session))


def _written(catalog: Catalog) -> set[str]:
    """Return the topics of what queries write, or wrote before they ended."""
    sinks = {query.sink for query in catalog.queries.values()}
    return {source.topic for name, source in catalog.sources.items() if name in sinks or source.query_id is not None}
