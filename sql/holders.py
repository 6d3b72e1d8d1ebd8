"""Who on this machine runs the queries and holds their state: this process, its neighbours; and what they say of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from logflume.log.registry import EVERYTHING, Rights
from logflume.streams.runtime import Engine, EngineState, EngineStatus
from logflume.streams.seams import changelog_topic

from .catalog import QueryInfo, SourceInfo
from .connectors import UNASSIGNED, ConnectorState
from .following import Following
from .on_spark import driver_status
from .properties import LIVE, SPARK
from .pull import KeptTable
from .pull_reads import table_rows
from .rights import without_records
from .running import application_of
from .table_state import TablePage, TableRead, read_state
from .workers import Workers, merged_status


class Holders:
    """See the module. Thread-safe."""

    def __init__(self, following: Following, workers: Workers) -> None:
        self._following, self._workers = following, workers

    def status(self, rights: Rights = EVERYTHING) -> Mapping[str, EngineStatus]:
        """Return what the queries are doing, by query id: here and in the other processes that share them.

        `rights`: of who is told: an error may quote a record.
        """
        found = {query_id: [each] for query_id, each in self.local_status().items()}
        for query_id, told in self._workers.status().items():
            found.setdefault(query_id, []).extend(told)
        catalog, admin = self._following.catalog, self._following.log.admin()
        for query_id, query in catalog.queries.items():
            if query.engine == SPARK and not query.is_paused:
                application = application_of(self._following.service, query)
                found[query_id] = [driver_status(admin, application, found.get(query_id, ()))]
        merged = {query_id: merged_status(each) for query_id, each in found.items()}
        if rights.is_admin:
            return merged
        return {q: without_records(each, catalog.queries.get(q), rights, catalog) for q, each in merged.items()}

    def local_status(self) -> Mapping[str, EngineStatus]:
        """Return what each query is doing in this process."""
        return dict(self._following.running.status()) if self._following.runs_queries else {}

    def local_connectors(self) -> list[ConnectorState]:
        """Return how the connectors are that run in this process."""
        return [] if self._following.connectors is None else self._following.connectors.states()

    def connectors(self) -> dict[str, ConnectorState]:
        """Return how the connectors are, by name: those that run here or in another process of this machine."""
        return {each.name: each for each in (*self._workers.connectors(), *self.local_connectors())}

    def connector_state(self, name: str) -> ConnectorState:
        """Return how one connector is; UNASSIGNED when nobody here runs it."""
        return self.connectors().get(name, ConnectorState(name, UNASSIGNED))

    def read_state(self, read: TableRead) -> TablePage:
        """Return what this process holds of a table's state; nothing of what it does not."""
        known, engine = self._following.applied.queries.get(read.query_id), self._following.running.engine(read.query_id)
        shape = None if known is None else self._following.tables.shape(known.planned)
        return TablePage() if shape is None or not isinstance(engine, Engine) else read_state(shape, engine, read)

    def changelog_of(self, query: QueryInfo, store: str) -> str:
        """Return the changelog topic of a query's store."""
        return changelog_topic(application_of(self._following.service, query), store)

    def kept(self, source: SourceInfo, *, rights: Rights) -> KeptTable | None:
        """Return where the rows of a table are, None when its topic tells: no query keeps them, or nobody runs it live.

        `rights`: of who reads them.
        """
        applied = self._following.applied
        known = applied.queries.get(source.query_id or "")
        shape = None if known is None else self._following.tables.shape(known.planned)
        if known is None or shape is None or next(self.readers(), None) is None:
            return None
        query = applied.catalog.queries[shape.query_id]
        if query.is_paused or query.engine != LIVE:
            return None
        topic = self.changelog_of(query, shape.store)

        def read(keys: tuple[bytes, ...] | None) -> Iterator[list[Any]]:
            partitions = shape.partitions_of(keys, self._following.tables.partitions(topic, self._following.log.admin()))
            return table_rows(shape, keys, partitions, self.readers, cause=lambda: self.cause(shape.query_id, rights))

        return KeptTable(shape, read)

    def readers(self) -> Iterator[Callable[[TableRead], TablePage]]:
        """Yield whom to ask for state: first this process, then, if that does not do, the others."""
        if self._following.runs_queries:
            yield self.read_state
        yield from self._workers.readers()

    def cause(self, query_id: str, rights: Rights = EVERYTHING) -> str:
        """Return why a query will not answer, '' when it may yet."""
        if query_id not in self._following.catalog.queries:
            return "it was terminated"
        status = self.status(rights).get(query_id)
        return "" if status is None or status.state is not EngineState.FAILED else f"it has failed: {status.error}"
