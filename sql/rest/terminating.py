"""/ksql/terminate: ends all queries of the service, drops its streams and tables, and deletes topics that its queries made."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from logflume.log import UnknownName
from logflume.sql.catalog import Catalog
from logflume.sql.engine import SqlEngine
from logflume.sql.session import Session
from logflume.streams.functions import compiled_pattern

from .errors import BAD_REQUEST, RIGHTS_REFUSED, RestError


def terminate(engine: SqlEngine, patterns: Sequence[str], session: Session) -> None:
    """Do it; of the topics that queries write those whose whole name matches one of `patterns` are deleted.

    Raises:
        RestError: a pattern is none, or the user is no admin; nothing was done.
    """
    if not session.rights.is_admin:
        raise RestError(RIGHTS_REFUSED, f"user {session.rights.user!r} is no admin, which it takes to end a service")
    try:
        wanted = [compiled_pattern(pattern) for pattern in patterns]
    except ValueError as error:
        raise RestError(BAD_REQUEST, f"deleteTopicList: {error}") from error
    made = _written(engine.catalog)
    list(engine.execute("TERMINATE ALL;", session=session))
    for source in list(engine.catalog.sources.values()):
        list(engine.execute(f"DROP {source.kind} IF EXISTS `{source.name}`;", session=session))
    for topic in made:
        if any(each.fullmatch(topic) for each in wanted):
            with contextlib.suppress(UnknownName):  # gone already
                engine.log.admin().delete_topic(topic)


def _written(catalog: Catalog) -> list[str]:
    """Return the topics of what queries write."""
    sinks = {query.sink for query in catalog.queries.values()}
    return sorted({source.topic for name, source in catalog.sources.items() if name in sinks})
