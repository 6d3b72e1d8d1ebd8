"""Any text is a plan or an error with a place: never a traceback, and a statement is what its own text says.

LOGFLUME_SQL_FUZZ=1000000 tries as many statements.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logflume.log import LogflumeError
from logflume.sql import ast
from logflume.sql.applying import plan_persistent
from logflume.sql.binding.context import Context
from logflume.sql.definitions import apply_definition
from logflume.sql.errors import StatementError
from logflume.sql.format import statement_text
from logflume.sql.inserts import values_records
from logflume.sql.listing import explain
from logflume.sql.once import is_computed, plan_once
from logflume.sql.parser import parse_statement
from logflume.sql.pull import bind_pull
from logflume.sql.scripts import split_script
from logflume.sql.topology import build_topology

from ._statements import GOOD, any_statement, context, query

TRIED = int(os.environ.get("LOGFLUME_SQL_FUZZ", "600"))
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
            plain = replace(found, order_by=(), limit=None, offset=0)
            if is_computed(plain, context):
                build_topology(plan_once(plain, context).plan)
            else:
                bind_pull(plain, context)
        case ast.QueryStatement():
            explain(ast.Explain(statement), context)
        case ast.Explain():
            explain(statement, context)
        case ast.CreateAs() | ast.InsertQuery():
            build_topology(plan_persistent(statement, context, "QUERY_0").plan)
        case ast.InsertValues():
            values_records(statement, context)
        case ast.CreateSource() | ast.AlterSource() | ast.CreateType() | ast.DropType() | ast.Drop():
            apply_definition(statement, context)


def check(text: str) -> None:
    try:
        error = attempt(text)
    except LogflumeError as other:
        raise AssertionError(f"an error without a place: {other!r} of {text!r}") from other
    if error is None:
        return
    assert error.reason.strip(), text
    if error.text:
        assert 0 <= error.span.start <= error.span.stop <= len(error.text), (text, error.span)
        assert error.line >= 1, text
        assert error.column >= 1, text
        error.pointer()


def test_the_good_ones_are_good() -> None:
    wrong = {text: attempt(text) for text in GOOD}
    assert {text: str(error) for text, error in wrong.items() if error is not None} == {}


@given(st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_statements_are_plans_or_errors_with_a_place(rng: random.Random) -> None:
    check(any_statement(rng))


@pytest.mark.parametrize("make", [any_statement, query])
def test_many_statements_are_plans_or_errors_with_a_place(make: object) -> None:
    assert callable(make)
    for seed in range(TRIED):
        check(make(random.Random(seed)))
