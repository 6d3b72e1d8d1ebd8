"""Connectors by statement: what the catalog keeps of them, and what the engine asks of whoever runs them.

The dialect knows no connector: `logflume/cli/sql_connectors.py` fills the protocol in with those of `connect`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import msgspec

from logflume.log.interfaces import Log
from logflume.log.schemas import BIGINT, STRING, Column, format_of

from . import ast
from .catalog import Catalog, ConnectorInfo, SourceInfo
from .errors import StatementError
from .format import name_text, string_text
from .results import Rows

UNASSIGNED = "UNASSIGNED"
PLUGIN_COLUMNS = tuple(Column(name, STRING) for name in ("CLASS", "TYPE", "WHAT IT DOES"))
_CLASS = ("connector.class", "connector")


class ConnectorTask(msgspec.Struct, frozen=True):
    """One task. state: as Kafka Connect names it; `trace`: why it failed last, secrets masked."""

    id: int
    state: str
    records: int = 0
    broken: int = 0
    trace: str | None = None


class ConnectorState(msgspec.Struct, frozen=True):
    """A connector as the process that runs it sees it. `config`: all of its options, secrets masked."""

    name: str
    state: str
    tasks: list[ConnectorTask] = []
    topics: list[str] = []
    config: dict[str, str] = {}
    trace: str | None = None


class Connectors(Protocol):
    """Runs connectors. Thread-safe."""

    def prepare(self, connector: ConnectorInfo) -> None:
        """Make the topics that a source writes to, so that streams can be made over them at once.

        Raises:
            LogflumeError: all that is wrong with it; nothing was done.
        """

    def plugins(self) -> list[tuple[str, str, str]]:
        """Return (name, SOURCE or SINK, what it does) of what is installed."""

    def keep(self, wanted: Mapping[str, ConnectorInfo]) -> None:
        """From now on run these and no others, in one process of the service at a time. Does not wait."""

    def states(self) -> list[ConnectorState]:
        """Return how those are that run in this process."""

    def close(self) -> None:
        """Stop what runs here; another process takes over."""


ConnectorsOf = Callable[[Log, str], Connectors]
"""Makes them for a log and a service."""


def create_connector(s: ast.CreateConnector, catalog: Catalog) -> Catalog:
    """Return the catalog with one more connector. Raises StatementError: it exists, or its options cannot be."""
    if s.name in catalog.connectors:
        if s.if_not_exists:
            return catalog
        raise StatementError(f"Connector {s.name} already exists; DROP CONNECTOR {s.name} first, or use another name", s.span)
    config: dict[str, str] = {}
    for given in s.properties:
        key = _CLASS[1] if given.written in _CLASS else given.written
        if key == "name":
            raise StatementError("a connector is named by the statement; leave 'name' out of WITH", given.span)
        if key in config:
            raise StatementError(f"'{given.written}' is given twice", given.span)
        if given.value is not None:
            config[key] = str(given.value).lower() if isinstance(given.value, bool) else str(given.value)
    if _CLASS[1] not in config:
        raise StatementError("a connector needs its 'connector.class'; SHOW CONNECTOR PLUGINS lists what is installed", s.span)
    if not s.is_source and "value.columns" not in config:
        config = _known_columns(config.get("topics", ""), catalog, s) | config
    return catalog.with_connector(ConnectorInfo(s.name, s.is_source, config))


def _known_columns(topics: str, catalog: Catalog, s: ast.CreateConnector) -> dict[str, str]:
    """Return a sink's options that the streams and tables over its topics tell, none if there is a topic without any.

    Raises:
        StatementError: they differ.
    """
    named = [topic.strip() for topic in topics.split(",")]
    sources = sources_over(named, catalog)
    if {source.topic for source in sources} != {*named}:
        return {}
    first, *rest = [_options_of(source) for source in sources]
    if any(each != first for each in rest):
        raise StatementError(
            f"{' and '.join(source.name for source in sources)} see the topics differently; say which columns the sink writes: "
            f"'value.columns' = {string_text(_columns_text(sources[0].value))}",
            s.span,
        )
    return first


def _options_of(source: SourceInfo) -> dict[str, str]:
    """Return how a sink reads what a stream or table reads. The key of a session it does not."""
    found = {"value.converter": source.value_format.name.lower(), "delimiter": source.value_format.delimiter}
    if format_of(source.value_format.name).schemas is None:  # else the registry tells
        found["value.columns"] = _columns_text(source.value)
    if source.key and (source.window is None or source.window.kind != "SESSION"):
        found |= {"key.converter": source.key_format.name.lower(), "key.columns": _columns_text(source.key)}
        if source.window is not None:
            found["key.windowed"] = "true"
            if source.window.size_ms:
                found["window.size.ms"] = str(source.window.size_ms)
    return found


def _columns_text(columns: Iterable[Column]) -> str:
    return ", ".join(f"{name_text(column.name)} {column.type}" for column in columns)


def drop_connector(s: ast.DropConnector, catalog: Catalog) -> Catalog:
    """Return the catalog without a connector. Raises StatementError: there is none of that name."""
    if s.name not in catalog.connectors and not s.if_exists:
        known = f"there are {', '.join(catalog.connectors)}" if catalog.connectors else "there are none"
        raise StatementError(f"Connector {s.name} does not exist; {known}", s.span)
    return catalog.without_connector(s.name)


def find_connector(name: str, catalog: Catalog, span: ast.Span) -> ConnectorInfo:
    """Return a connector. Raises StatementError: there is none of that name."""
    found = catalog.connectors.get(name)
    if found is None:
        raise StatementError(f"Connector {name} does not exist. SHOW CONNECTORS lists what does.", span)
    return found


def show_connectors(what: str, catalog: Catalog, states: Mapping[str, ConnectorState]) -> Rows:
    """Answer SHOW CONNECTORS, SHOW SOURCE CONNECTORS or SHOW SINK CONNECTORS."""
    rows = []
    for each in sorted(catalog.connectors.values(), key=lambda each: each.name):
        if what in ("CONNECTORS", f"{each.kind} CONNECTORS"):
            found = states.get(each.name, ConnectorState(each.name, UNASSIGNED))
            rows.append((each.name, each.kind, each.config[_CLASS[1]], found.state, found.trace or ""))
    return Rows(what, _words("NAME", "TYPE", "CLASS", "STATE", "ERROR"), tuple(rows))


def describe_connector(connector: ConnectorInfo, catalog: Catalog, state: ConnectorState) -> list[Rows]:
    """Answer DESCRIBE CONNECTOR: what it is, its tasks, and the streams and tables over its topics."""
    text = ("NAME", connector.name), ("TYPE", connector.kind), ("CLASS", connector.config[_CLASS[1]]), ("STATE", state.state)
    facts = (*text, *(("ERROR", state.trace) for _ in range(state.trace is not None)), *state.config.items())
    tasks = tuple((t.id, t.state, t.records, t.broken, t.trace or "") for t in state.tasks)
    columns = (Column("TASK", BIGINT), Column("STATE", STRING), Column("RECORDS", BIGINT), Column("BROKEN", BIGINT))
    sources = tuple((s.name, s.kind, s.topic) for s in sources_over(state.topics, catalog))
    return [
        Rows(f"{connector.kind} CONNECTOR {connector.name}", _words("WHAT", "VALUE"), facts),
        Rows(f"{connector.name}: tasks", (*columns, *_words("ERROR")), tasks),
        Rows(f"{connector.name}: streams and tables", _words("NAME", "KIND", "TOPIC"), sources),
    ]


def _words(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, STRING) for name in names)


def sources_over(topics: list[str], catalog: Catalog) -> list[SourceInfo]:
    """Return the streams and tables over these topics, by name."""
    return sorted((s for s in catalog.sources.values() if s.topic in topics), key=lambda s: s.name)
