"""Any text is a plan or an error with a place: never a traceback, and a statement is what its own text says.

LOGFLUME_SQL_FUZZ=1000000 tries as many short statements, and a three hundredth of them of each other kind.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logflume.log import LogflumeError
from logflume.sql.errors import StatementError
from logflume.sql.parser import parse_script

from ._attempt import attempt
from ._statements import GOOD, SHORT, any_statement, broken, query

TRIED = int(os.environ.get("LOGFLUME_SQL_FUZZ", "100000"))
LONG_EVERY, PLANNED_EVERY, PARTS = 300, 10, 10
"""Of so many short statements one is joined by a long one, and one is planned as well; the tests that they are dealt to."""


def parsed(text: str) -> StatementError | None:
    """Parse statements; return what is wrong with them."""
    try:
        parse_script(text)
    except StatementError as error:
        return error
    return None


def check(text: str, tried: Callable[[str], StatementError | None] = attempt) -> None:
    try:
        error = tried(text)
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
    wrong = {text: attempt(text) for text in (*GOOD, *SHORT)}
    assert {text: str(error) for text, error in wrong.items() if error is not None} == {}


@given(st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_statements_are_plans_or_errors_with_a_place(rng: random.Random) -> None:
    check(any_statement(rng))


@pytest.mark.parametrize("make", [any_statement, query])
def test_many_statements_are_plans_or_errors_with_a_place(make: object) -> None:
    assert callable(make)
    for seed in range(TRIED // LONG_EVERY):
        check(make(random.Random(seed)))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_very_many_short_statements_are_trees_or_errors_with_a_place(part: int) -> None:
    rng = random.Random(part)
    for number in range(TRIED // PARTS):
        check(broken(rng, rng.choice(SHORT)), parsed if number % PLANNED_EVERY else attempt)
