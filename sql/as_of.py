"""AS OF: the points up to which a query that ends reads its topics."""

from __future__ import annotations

from dataclasses import dataclass, replace

from logflume.log.schemas import STRING, TIMESTAMP
from logflume.streams.functions import convert

from . import ast
from .catalog import Catalog
from .errors import StatementError


@dataclass(frozen=True, slots=True)
class Until:
    """Where a read of a topic ends before its end: with the records up to a time, or before an offset of each partition."""

    time_ms: int | None = None
    offsets: tuple[int, ...] = ()


def points(query: ast.Query, catalog: Catalog) -> dict[str, Until]:
    """Return where the reads of a query's topics end, by topic; those without AS OF have none.

    Raises:
        StatementError: a time that is none, or one topic at two points.
    """
    found: dict[str, tuple[ast.SourceRef, Until | None]] = {}
    todo = [query]
    while todo:
        part = todo.pop()
        todo += part.unions
        for ref in (part.source, *(join.source for join in part.joins)):
            if ref.query is not None:
                todo.append(ref.query)
                continue
            topic = catalog.source(ref.name, ref.span).topic
            point = None if ref.as_of is None else _point(ref.as_of)
            if found.setdefault(topic, (ref, point))[1] != point:
                raise StatementError(f"the topic {topic} is read at two points; a query reads a topic at one", ref.span)
    return {topic: point for topic, (_, point) in found.items() if point is not None}


def at_the_end(query: ast.Query) -> ast.Query:
    """Return a query without AS OF."""

    def source(ref: ast.SourceRef) -> ast.SourceRef:
        return replace(ref, as_of=None, query=None if ref.query is None else at_the_end(ref.query))

    joins = tuple(replace(join, source=source(join.source)) for join in query.joins)
    return replace(query, source=source(query.source), joins=joins, unions=tuple(map(at_the_end, query.unions)))


def _point(as_of: ast.AsOf) -> Until:
    if as_of.time is None:
        return Until(offsets=as_of.offsets)
    if isinstance(as_of.time, int):
        return Until(as_of.time)
    try:
        return Until(convert(as_of.time, STRING, TIMESTAMP))
    except ValueError as error:
        raise StatementError(f"AS OF TIMESTAMP: {error}; write it as '2026-01-31T18:30:00' (UTC), or in ms", as_of.span) from None
