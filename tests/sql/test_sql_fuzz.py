"""Any text is a plan or an error with a place: never a traceback, and a statement is what its own text says.

LOGFLUME_SQL_FUZZ=1000000 tries as many statements.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logflume.log import LogflumeError

from ._attempt import attempt
from ._statements import GOOD, any_statement, query

TRIED = int(os.environ.get("LOGFLUME_SQL_FUZZ", "300"))


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
@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_statements_are_plans_or_errors_with_a_place(rng: random.Random) -> None:
    check(any_statement(rng))


@pytest.mark.parametrize("make", [any_statement, query])
def test_many_statements_are_plans_or_errors_with_a_place(make: object) -> None:
    assert callable(make)
    for seed in range(TRIED):
        check(make(random.Random(seed)))
