"""What waits for nothing is done at once, on the loop of a server: pulls by keys whose state is here, INSERT VALUES.

Only a statement of which nothing is new but its literals. None is the answer to all else, errors among it: the engine's own way,
which may wait, tells it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

from logflume.log.interfaces import Log

from . import ast
from .applying import Applied
from .binding.context import Context
from .catalog import SourceInfo
from .errors import StatementError
from .holders import Holders
from .insert_points import NotALiteral, RepeatedInsert, repeated_insert
from .inserts import RecordWriter, Sending, values_records
from .once import is_computed
from .parser import known_statement
from .pull import KeptTable, answered, bind_pull, is_simple
from .pull_points import PointPull, point_pull
from .pull_reads import NotHeld, held_rows
from .results import Rows
from .row_records import RecordMakers, ValuesRecord, now_ms
from .session import Session
from .table_state import Tables
from .templates import Bound, Scanned


class Standing(Protocol):
    """What an engine knows without asking."""

    is_followed: bool

    @property
    def log(self) -> Log: ...

    @property
    def applied(self) -> Applied: ...

    def context(self, properties: Mapping[str, str]) -> Context: ...


class AtOnce:
    """See the module. Thread-safe."""

    def __init__(self, engine: Standing, holders: Holders, tables: Tables, writer: RecordWriter, makers: RecordMakers) -> None:
        self._engine, self._holders, self._tables = engine, holders, tables
        self._writer, self._makers = writer, makers
        self._points: Bound[PointPull] = Bound()
        self._inserts: Bound[RepeatedInsert] = Bound()

    def pull(self, scanned: Scanned, user: Session, *, keys_max: int) -> Rows | None:
        """Answer a pull query by keys if this process holds their state."""
        if not self._is_for(user) or user.rows_max is not None:
            return None
        applied = self._engine.applied
        known = None if user.properties else self._points.find(scanned, applied)
        try:
            if known is not None:
                found = known.rows(scanned.tokens, self._held(applied, known.pull.source, keys_max))
                if found is not None:
                    return found
            statement = known_statement(scanned)
            if not isinstance(statement, ast.QueryStatement) or not is_simple(statement.query):
                return None
            context = self._context(applied, user)
            if is_computed(statement.query, context):
                return None
            pull = bind_pull(statement.query, context)
            table = self._held(applied, pull.source, keys_max)
            made = None if user.properties else point_pull(pull, table.shape, scanned.tokens)
            if made is not None:
                self._points.keep(scanned, applied, made)
            return answered(pull, context, self._engine.log, lambda _: table)
        except (NotHeld, StatementError):
            return None

    def _held(self, applied: Applied, source: SourceInfo, keys_max: int) -> KeptTable:
        """Return a table whose rows are in the state of this process. Raises NotHeld."""
        known = applied.queries.get(source.query_id or "")
        shape = None if known is None else self._tables.shape(known.planned)
        query = None if shape is None else applied.catalog.queries[shape.query_id]
        if shape is None or query is None or query.is_paused:
            raise NotHeld
        partitions = self._tables.known_partitions(self._holders.changelog_of(query, shape.store))
        return KeptTable(shape, partial(held_rows, shape, partitions, self._holders.read_state, keys_max))

    def insert(self, scanned: Scanned, user: Session) -> Sending | None:
        """Send rows to the disk."""
        records = self.rows(scanned, user)
        return self._writer.send(records) if records and self._writer.can_send(records[0].topic) else None

    def rows(self, scanned: Scanned, user: Session) -> list[ValuesRecord] | None:
        """Return the rows of an INSERT VALUES."""
        if not self._is_for(user):
            return None
        applied = self._engine.applied
        known = self._inserts.find(scanned, applied.catalog)
        try:
            if known is not None:
                return known.made(scanned.tokens, now_ms())
        except (NotALiteral, StatementError):
            pass  # told by who looks at it anew
        statement = known_statement(scanned)
        source = applied.catalog.sources.get(statement.target) if isinstance(statement, ast.InsertValues) else None
        if source is None or not isinstance(statement, ast.InsertValues) or not self._makers.knows(source):
            return None
        try:
            records = values_records(statement, self._context(applied, user), self._makers)
        except StatementError:
            return None
        made = repeated_insert(statement, self._makers.of(source), scanned.tokens)
        if made is not None:
            self._inserts.keep(scanned, applied.catalog, made)
        return records

    def _context(self, applied: Applied, user: Session) -> Context:
        return replace(self._engine.context({**applied.catalog.properties, **user.properties}), catalog=applied.catalog)

    def _is_for(self, user: Session) -> bool:
        return self._engine.is_followed and user.rights.is_admin and not user.variables
