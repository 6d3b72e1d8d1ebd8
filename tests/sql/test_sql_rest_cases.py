"""The cases of the REST interface that live outside the repository, through the real server: how many pass may only rise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ._rest_cases import load, run

# Passes reached, of every `EVERY`th case of all files; raise it with each step.
EVERY, PASSED_MIN = 12, 18
ROOT = Path(__file__).resolve().parents[2]
CASES = Path(os.environ.get("LOGFLUME_SQL_CASES", ROOT.parent / "shared" / "sql-cases")) / "rest-query-validation-tests"


@pytest.mark.slow
@pytest.mark.skipif(not CASES.is_dir(), reason=f"no conformance cases at {CASES}; set LOGFLUME_SQL_CASES to their folder")
def test_rest_cases_pass(tmp_path: Path) -> None:
    """LOGFLUME_SQL_REST_EVERY=1 runs all of them, in some minutes."""
    every = int(os.environ.get("LOGFLUME_SQL_REST_EVERY", EVERY))
    cases = [case for file in sorted(CASES.glob("*.json")) for case in load(file)][::every]
    found = {case.id: run(case, tmp_path / str(number)) for number, case in enumerate(cases)}
    failed = {name: text for name, text in found.items() if text is not None}
    assert len(found) - len(failed) >= (PASSED_MIN if every == EVERY else 0), failed
