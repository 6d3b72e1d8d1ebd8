"""What exists: streams, tables, types and persistent queries. Immutable: each change gives a new catalog, so that a failed
statement changes nothing and a plan can be made against a draft. Picklable, as a Spark job needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from logflume.log import near_matches
from logflume.log.schemas import Column, DataType, FormatSpec
from logflume.streams.calendars import CalendarUnit
from logflume.streams.graph import CalendarWindow, SessionWindow, TimeWindow

from .ast import NOWHERE, Span
from .dead_letters import dead_letter_topic
from .errors import UnknownSource
from .format import name_text
from .properties import ENGINE, LIVE


@dataclass(frozen=True, slots=True)
class WindowInfo:
    """How a windowed key is to be read: TUMBLING or HOPPING with a size (ms), CALENDAR with a unit and a zone, or SESSION."""

    kind: str
    size_ms: int | None = None
    advance_ms: int | None = None
    unit: str = ""
    zone: str = ""

    def of_key(self) -> TimeWindow | SessionWindow | CalendarWindow:
        """Return the windows that keys of such a source are of; how long a session stays open is not written in its key."""
        if self.unit:
            return CalendarWindow(CalendarUnit(self.unit), self.zone)
        if self.size_ms is None:
            return SessionWindow(0)
        return TimeWindow(self.size_ms, self.advance_ms or self.size_ms)


@dataclass(frozen=True, slots=True)
class HeaderColumn:
    """A column filled from record headers: all of them (`key` None), or the last of one key."""

    name: str
    key: str | None


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """A stream or table over a topic.

    Attributes:
        timestamp: the column that gives the event time, and the pattern when it is text.
        query_id: the persistent query that made and feeds it (CREATE ... AS); None for a plain one.
        is_read_only: made by CREATE SOURCE.
        partitions: of the topic when it was declared with a number or made by a query; None: ask the log.
        statement: the text that made it.
    """

    name: str
    is_table: bool
    topic: str
    key: tuple[Column, ...]
    value: tuple[Column, ...]
    key_format: FormatSpec
    value_format: FormatSpec
    headers: tuple[HeaderColumn, ...] = ()
    window: WindowInfo | None = None
    timestamp: tuple[str, str | None] | None = None
    query_id: str | None = None
    is_read_only: bool = False
    partitions: int | None = None
    statement: str = ""

    @property
    def kind(self) -> str:
        return "TABLE" if self.is_table else "STREAM"

    def columns(self) -> tuple[Column, ...]:
        return self.key + self.value


OWN_QUERY_IDS = ("INSERTQUERY_", "CTAS_", "CSAS_", "CST_")
"""How the ids begin that queries get if none is given."""


@dataclass(frozen=True, slots=True)
class QueryInfo:
    """A persistent query: what it reads, where it writes, and the statement to make it again from.

    Attributes:
        is_paused: by PAUSE.
        generation: so many queries of its id have ended before it.
    """

    id: str
    statement: str
    sink: str
    sources: tuple[str, ...]
    properties: Mapping[str, str] = field(default_factory=dict)
    is_paused: bool = False
    generation: int = 0

    @property
    def engine(self) -> str:
        """What runs it: LIVE or SPARK."""
        return self.properties.get(ENGINE, LIVE)

    @property
    def dead_letter_topic(self) -> str | None:
        """Where it keeps the records that it leaves out."""
        return dead_letter_topic(self.properties)


@dataclass(frozen=True, slots=True)
class ConnectorInfo:
    """A connector that a statement made. `config`: its options as given, `connector` among them; secrets by reference only."""

    name: str
    is_source: bool
    config: Mapping[str, str]

    @property
    def kind(self) -> str:
        return "SOURCE" if self.is_source else "SINK"


@dataclass(frozen=True, slots=True)
class Catalog:
    """Sources, types and queries by name.

    Attributes:
        next_number: makes the ids unique for all time that queries get if none is given.
        properties: what ALTER SYSTEM set, for sessions that do not.
        ended: how many queries have ended of an id that was given.
    """

    sources: Mapping[str, SourceInfo] = field(default_factory=dict)
    types: Mapping[str, DataType] = field(default_factory=dict)
    queries: Mapping[str, QueryInfo] = field(default_factory=dict)
    next_number: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    connectors: Mapping[str, ConnectorInfo] = field(default_factory=dict)
    ended: Mapping[str, int] = field(default_factory=dict)

    def source(self, name: str, span: Span = NOWHERE) -> SourceInfo:
        """Return a stream or table.

        Raises:
            StatementError: there is none of that name, with near matches.
        """
        found = self.sources.get(name)
        if found is None:
            raise UnknownSource(name, f"{name} does not exist.{self.hint(name)}", span)
        return found

    def hint(self, name: str) -> str:
        """Return what to write instead of an unknown source name, or ''."""
        other_case = [n for n in self.sources if n.upper() == name.upper() and n != name]
        if other_case:
            shown = " or ".join(n if n == n.upper() else f'"{n}"' for n in other_case)
            advice = (
                "try removing double quotes from the source name"
                if other_case[0] == name.upper()
                else "wrap the source name in double quotes to make it case-sensitive"
            )
            return f"\nDid you mean {shown}? Hint: {advice}."
        near = near_matches(name, self.sources)
        if near:
            return f" Did you mean {' or '.join(map(name_text, near))}?"
        return (
            " SHOW STREAMS and SHOW TABLES list what does; a topic is read once CREATE STREAM name (columns) "
            "WITH (KAFKA_TOPIC = 'topic', VALUE_FORMAT = 'JSON') has named it."
        )

    def with_source(self, source: SourceInfo) -> Catalog:
        return replace(self, sources={**self.sources, source.name: source})

    def without_source(self, name: str) -> Catalog:
        return replace(self, sources={k: v for k, v in self.sources.items() if k != name})

    def with_query(self, query: QueryInfo) -> Catalog:
        return replace(self, queries={**self.queries, query.id: query})

    def without_query(self, query_id: str) -> Catalog:
        is_given = query_id in self.queries and not query_id.startswith(OWN_QUERY_IDS)
        ended = {**self.ended, query_id: self.ended.get(query_id, 0) + 1} if is_given else self.ended
        return replace(self, queries={k: v for k, v in self.queries.items() if k != query_id}, ended=ended)

    def with_type(self, name: str, type: DataType) -> Catalog:
        return replace(self, types={**self.types, name: type})

    def without_type(self, name: str) -> Catalog:
        return replace(self, types={k: v for k, v in self.types.items() if k != name})

    def with_property(self, name: str, value: str) -> Catalog:
        return replace(self, properties={**self.properties, name: value})

    def with_connector(self, connector: ConnectorInfo) -> Catalog:
        return replace(self, connectors={**self.connectors, connector.name: connector})

    def without_connector(self, name: str) -> Catalog:
        return replace(self, connectors={k: v for k, v in self.connectors.items() if k != name})

    def readers_of(self, name: str) -> list[str]:
        """Return the ids of the queries that read a source."""
        return [q.id for q in self.queries.values() if name in q.sources]

    def writers_to(self, name: str) -> list[str]:
        """Return the ids of the queries that write to a source."""
        return [q.id for q in self.queries.values() if q.sink == name]

    def __reduce__(self) -> tuple[Any, ...]:
        kept = (dict(self.sources), dict(self.types), dict(self.queries), self.next_number)
        return Catalog, (*kept, dict(self.properties), dict(self.connectors), dict(self.ended))
