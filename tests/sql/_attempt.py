"""Takes statements through all that happens before anything changes."""

from __future__ import annotations

from logflume.log.schemas import Column
from logflume.sql import ast
from logflume.sql.applying import plan_persistent
from logflume.sql.binding.context import Context
from logflume.sql.definitions import apply_definition
from logflume.sql.errors import StatementError
from logflume.sql.format import statement_text
from logflume.sql.inserts import values_records
from logflume.sql.listing import explain
from logflume.sql.once import is_computed, plan_once
from logflume.sql.ordering import run_ordered
from logflume.sql.parser import parse_statement
from logflume.sql.pull import bind_pull
from logflume.sql.results import Rows
from logflume.sql.row_records import RecordMakers
from logflume.sql.scripts import split_script
from logflume.sql.topology import build_topology

from ._statements import context

CONTEXT = context()


def attempt(text: str) -> StatementError | None:
    """Take statements through all that happens before anything changes; return what is wrong with the first that is wrong."""
    try:
        for source in split_script(text):
            statement = parse_statement(source)
            try:
                _check_text(statement)
                _plan(statement, CONTEXT)
            except StatementError as error:
                error.locate(source.text, first_line=source.line, first_column=source.column)
                raise
    except StatementError as error:
        return error
    return None


def _check_text(statement: ast.Statement) -> None:
    """A statement that is stored is read again as itself."""
    try:
        text = statement_text(statement)
    except ValueError:
        return
    assert parse_statement(text) == statement, text


def _plan(statement: ast.Statement, context: Context) -> None:
    match statement:
        case ast.QueryStatement(found) if found.emit is None:
            _pulled(found, context)
        case ast.QueryStatement():
            explain(ast.Explain(statement), context, {})
        case ast.Explain():
            explain(statement, context, {})
        case ast.CreateAs() | ast.InsertQuery():
            build_topology(plan_persistent(statement, context, "QUERY_0").plan)
        case ast.InsertValues():
            values_records(statement, context, RecordMakers())
        case ast.CreateSource() | ast.AlterSource() | ast.CreateType() | ast.DropType() | ast.Drop():
            apply_definition(statement, context)


def _pulled(query: ast.Query, context: Context) -> Rows:
    """Plan a query that ends; return no rows."""
    if query.order_by or query.offset:
        return run_ordered(query, lambda plain: _pulled(plain, context))
    if is_computed(query, context):
        plan = plan_once(query, context).plan
        build_topology(plan)
        return Rows("", plan.value, ())
    return Rows("", tuple(Column(name, e.type) for name, e in bind_pull(query, context).columns), ())
