"""Long and deep statements: they run, or are refused with a place; never a crash or an endless wait."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logflume.sql.testing import run_cases

SETUP = "CREATE STREAM S (K STRING KEY, V INT, N STRING) WITH (KAFKA_TOPIC='s', VALUE_FORMAT='JSON');"


@pytest.fixture(params=[1_000, 20_000], ids=["1,000 frames", "20,000 frames"])
def _recursion_limit(request: pytest.FixtureRequest) -> Iterator[None]:
    """The interpreter's limit as it starts, and as others that share it leave it."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(request.param)
    yield
    sys.setrecursionlimit(before)


def outcome(tmp_path: Path, select: str, value: Any) -> dict[str, Any]:
    case = {
        "name": "long",
        "statements": [SETUP, f"CREATE STREAM O AS SELECT K, {select} AS X FROM S;"],
        "inputs": [{"topic": "s", "key": "a", "value": {"V": 1, "N": "x"}}],
        "outputs": [{"topic": "O", "key": "a", "value": {"X": value}}],
    }
    path = tmp_path / "long.json"
    path.write_text(json.dumps({"tests": [case]}))
    lines: list[str] = []
    run_cases([path], is_json=True, write=lines.append)
    found: dict[str, Any] = json.loads(lines[0])
    return found


@pytest.mark.usefixtures("_recursion_limit")
@pytest.mark.parametrize(
    ("select", "value"),
    [
        (f"V IN ({', '.join(map(str, range(500, -1, -1)))})", True),
        (" AND ".join(["V = 1"] * 500), True),
        (" OR ".join(["V = 2"] * 500), False),
        (" || ".join(["N"] * 500), "x" * 500),
        (" + ".join(["V"] * 100), 100),
        ("CASE WHEN V = 2 THEN 0 ELSE " * 70 + "7" + " END" * 70, 7),
        ("CASE " + " ".join(f"WHEN V = {n} THEN {n}" for n in range(300, 0, -1)) + " END", 1),
        ("ABS(" * 100 + "V" + ")" * 100, 1),
        ("REDUCE(ARRAY[1, 2], 0, (s, x) => " + "x + " * 60 + "s)", 180),
    ],
    ids=["in", "and", "or", "concat", "add", "nested case", "case", "calls", "lambda"],
)
def test_what_is_long_runs(tmp_path: Path, select: str, value: Any) -> None:
    found = outcome(tmp_path, select, value)
    assert found["verdict"] == "passed", found["reason"]


@pytest.mark.parametrize(
    ("select", "cause"),
    [
        (" + ".join(["V"] * 300), "nested more than 150 deep"),
        ("CASE WHEN V = 2 THEN 0 ELSE " * 2000 + "7" + " END" * 2000, "nested more than 150 deep"),
        ("CASE " + " ".join(f"WHEN V = {n} THEN {n}" for n in range(600)) + " END", "CASE has 600 branches"),
        ("NOT " * 3000 + "TRUE", "nested more than 150 deep"),
        ("V" + "[1]" * 3000, "nested more than 150 deep"),
        ("(" * 300 + "V" + ")" * 300, "nested 300 deep"),
        ("CASE WHEN " * 140 + "TRUE" + " THEN TRUE END" * 140, "nested more than 150 deep"),
    ],
    ids=["add", "nested case", "case", "not", "index", "parentheses", "case in conditions"],
)
@pytest.mark.usefixtures("_recursion_limit")
def test_what_is_too_deep_is_refused_with_its_place(tmp_path: Path, select: str, cause: str) -> None:
    found = outcome(tmp_path, select, None)
    assert cause in found["reason"]
    assert "SyntaxFault: line 2, column" in found["reason"]
