"""Commands -> what exists. Each gives a new state or an error, deterministically: the same commands give the same everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from logflume.streams.functions import Library

from . import ast
from .binding.context import Context
from .catalog import Catalog
from .command_log import Command
from .definitions import apply_definition, check_is_free
from .errors import StatementError
from .parser import parse_statement
from .planner import PlannedQuery, plan_create_as, plan_insert
from .properties import ENGINE
from .recorded import RecordedPlan
from .upgrades import check_replaceable


@dataclass(frozen=True, slots=True)
class KnownQuery:
    """A persistent query as its command made it. `recorded`: what it was planned as then."""

    planned: PlannedQuery
    recorded: RecordedPlan | None


@dataclass(frozen=True, slots=True)
class Applied:
    """What the commands so far have made."""

    catalog: Catalog = field(default_factory=Catalog)
    queries: Mapping[str, KnownQuery] = field(default_factory=dict)

    def after(self, command: Command, library: Library) -> Applied:
        """Return the state after one more command.

        Raises:
            StatementError: it cannot be applied; nothing changes.
        """
        statement = parse_statement(command.statement)
        context = Context(self.catalog, library, dict(command.properties))
        match statement:
            case ast.CreateAs() | ast.InsertQuery():
                return self._with_query(statement, context, command)
            case ast.QueryControl():
                return self._controlled(statement, command.properties)
        catalog = apply_definition(statement, context)
        return Applied(catalog, {q: known for q, known in self.queries.items() if q in catalog.queries})

    def _with_query(self, s: ast.CreateAs | ast.InsertQuery, context: Context, command: Command) -> Applied:
        query_id = command.query_id
        if query_id is None:
            raise StatementError("a query without an id", s.span)
        replaced = replaced_query(s, self.catalog)
        if replaced is None and isinstance(s, ast.CreateAs):
            check_is_free(s.name, s.is_table, self.catalog, s.span)
        is_beside = replaced is not None and query_id != replaced
        if query_id in self.catalog.queries and (is_beside or replaced is None):
            raise StatementError(f"query id {query_id} was given to another query meanwhile; run the statement again", s.span)
        planned = plan_persistent(s, context, query_id)
        catalog, queries = self.catalog, dict(self.queries)
        if replaced is not None:
            check_replaceable(queries[replaced].planned, planned, s.span, is_beside=is_beside)
        if replaced is not None and is_beside:
            catalog = catalog.without_query(replaced)
            del queries[replaced]
        catalog = catalog.with_query(planned.query)
        if planned.sink is not None:
            catalog = catalog.with_source(planned.sink)
        catalog = replace(catalog, next_number=catalog.next_number + 1)
        return Applied(catalog, {**queries, query_id: KnownQuery(planned, command.plan)})

    def _controlled(self, s: ast.QueryControl, properties: Mapping[str, str]) -> Applied:
        """`properties`: where RESUME says what runs the query from now on, if it shall be another."""
        if s.query_id is None:
            raise StatementError("expected the id of one query", s.span)
        if s.verb == "TERMINATE":
            queries = {q: known for q, known in self.queries.items() if q != s.query_id}
            return Applied(self.catalog.without_query(s.query_id), queries)
        found = self.catalog.queries.get(s.query_id)
        if found is None:
            raise StatementError(f"Unknown queryId: {s.query_id}", s.span)
        moved = {ENGINE: properties[ENGINE]} if s.verb == "RESUME" and ENGINE in properties else {}
        changed = replace(found, is_paused=s.verb == "PAUSE", properties={**found.properties, **moved})
        return replace(self, catalog=self.catalog.with_query(changed))


def plan_persistent(s: ast.CreateAs | ast.InsertQuery, context: Context, query_id: str) -> PlannedQuery:
    """Plan a persistent query under an id."""
    if isinstance(s, ast.CreateAs):
        return plan_create_as(s, context, query_id=query_id)
    planned = plan_insert(s, context, query_id=query_id)
    return replace(planned, query=replace(planned.query, generation=context.catalog.ended.get(query_id, 0)))


def replaced_query(s: ast.CreateAs | ast.InsertQuery, catalog: Catalog) -> str | None:
    """Return the id of the query that CREATE OR REPLACE ... AS takes the place of, None when there is none."""
    if not isinstance(s, ast.CreateAs) or not s.or_replace:
        return None
    existing = catalog.sources.get(s.name)
    return None if existing is None else existing.query_id
