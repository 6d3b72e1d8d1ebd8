"""What queries give, record by record: cases of our own in the form that `logflume sql test` runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from logflume.sql.testing import Case, Verdict, load_cases
from logflume.sql.testing.report import run_all

CASES = list(load_cases(Path(__file__).parent / "cases"))


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_query(case: Case) -> None:
    (outcome,) = run_all([case])
    assert outcome.verdict is Verdict.PASSED, outcome.reason
    assert outcome.message_matches is not False, outcome.reason
