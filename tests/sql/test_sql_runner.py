"""The case runner itself: a pass must be a true pass, and what it does not know must fail loudly."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from logflume.sql.testing import run_cases
from logflume.sql.testing.compare import difference

STATEMENTS = [
    "CREATE STREAM S (K STRING KEY, V DOUBLE) WITH (KAFKA_TOPIC='s', VALUE_FORMAT='JSON');",
    "CREATE STREAM O AS SELECT K, V * 2 AS W FROM S WHERE V > 1;",
]
GOOD: dict[str, Any] = {
    "name": "good",
    "statements": STATEMENTS,
    "inputs": [{"topic": "s", "key": "a", "value": {"V": 2.5}, "timestamp": 5}, {"topic": "s", "key": "b", "value": {"V": 1}}],
    "outputs": [{"topic": "O", "key": "a", "value": {"W": 5.0}, "timestamp": 5}],
}


def run(tmp_path: Path, *tests: dict[str, Any]) -> list[dict[str, Any]]:
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"tests": tests}))
    lines: list[str] = []
    run_cases([path], is_json=True, write=lines.append)
    return [json.loads(line) for line in lines]


def test_a_right_case_passes_and_the_last_line_counts(tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"tests": [GOOD]}))
    lines: list[str] = []
    assert run_cases([path], write=lines.append) == 0
    assert lines[-1] == "1 passed, 0 failed, 0 skipped"


@pytest.mark.parametrize(
    "outputs",
    [
        [],
        [{"topic": "O", "key": "a", "value": {"W": 5.1}}],
        [{"topic": "O", "key": "a", "value": {"W": 5}}],
        [{"topic": "O", "key": "x", "value": {"W": 5.0}}],
        [{"topic": "O", "key": "a", "value": {"W": 5.0}, "timestamp": 6}],
        [{"topic": "O", "key": "a", "value": {"W": 5.0, "X": None}}],
        [{"topic": "O", "key": "a", "value": None}],
        [{"topic": "O", "key": "a", "value": {"W": 5.0}, "headers": [{"KEY": "h", "VALUE": "eA=="}]}],
        [{"topic": "O", "key": "a", "value": {"W": 5.0}, "window": {"start": 0, "end": 10, "type": "time"}}],
        [{"topic": "O", "key": "a", "value": {"W": 5.0}}, {"topic": "O", "key": "b", "value": {"W": 2.0}}],
    ],
)
def test_any_wrong_expectation_fails(tmp_path: Path, outputs: list[dict[str, Any]]) -> None:
    wanted = outputs or [{"topic": "O", "key": "b", "value": {"W": 2.0}}]
    outcome, summary = run(tmp_path, {**GOOD, "outputs": wanted})
    assert outcome["verdict"] == "failed"
    assert summary == {"summary": {"passed": 0, "failed": 1, "skipped": 0}}


def test_an_error_must_come_and_be_of_its_kind(tmp_path: Path) -> None:
    none_came = {**GOOD, "expectedException": {"type": "io.confluent.ksql.util.KsqlException"}}
    other_kind = {
        **GOOD,
        "statements": [STATEMENTS[0], "CREATE STREAM O AS SELECT K, X FROM S;"],
        "expectedException": {"type": "io.confluent.ksql.parser.exception.ParseFailedException"},
    }
    right = {
        **other_kind,
        "expectedException": {"type": "io.confluent.ksql.util.KsqlStatementException", "message": "cannot be resolved"},
    }
    outcomes = run(tmp_path, none_came, other_kind, right)
    assert [o["verdict"] for o in outcomes[:-1]] == ["failed", "failed", "passed"]
    assert outcomes[2]["message_matches"] is True


def test_what_it_does_not_know_fails_loudly(tmp_path: Path) -> None:
    unknown_record_key = {**GOOD, "inputs": [{"topic": "s", "key": "a", "valeu": {}}]}
    unknown_key = {**GOOD, "outptus": []}
    unknown_format = {**GOOD, "statements": [STATEMENTS[0].replace("JSON", "JSONX"), STATEMENTS[1]]}
    outcomes = run(tmp_path, unknown_record_key)
    assert "without a value; it has 'valeu'" in outcomes[0]["reason"]
    outcomes = run(tmp_path, unknown_key, GOOD)
    assert "did you mean 'outputs'" in outcomes[0]["reason"]
    assert [o["verdict"] for o in outcomes[:2]] == ["failed", "passed"]
    (tmp_path / "broken.json").write_text("{")
    lines: list[str] = []
    assert run_cases([tmp_path / "broken.json"], write=lines.append) == 2
    assert "not a JSON file of cases" in lines[0]
    assert run(tmp_path, unknown_format)[0]["verdict"] == "failed"


def test_a_case_runs_in_each_of_its_formats(tmp_path: Path) -> None:
    case = {**GOOD, "format": ["AVRO", "JSON"], "statements": [STATEMENTS[0].replace("JSON", "{FORMAT}"), STATEMENTS[1]]}
    avro, as_json, _ = run(tmp_path, case)
    assert (avro["verdict"], as_json["verdict"]) == ("passed", "passed")
    assert (avro["name"][-4:], as_json["name"][-4:]) == ("AVRO", "JSON")


@pytest.mark.parametrize(
    ("actual", "expected", "is_equal"),
    [
        (Decimal("1.0"), Decimal("1.00"), False),
        (Decimal("1.00"), Decimal("1.00"), True),
        (Decimal("1E+1"), 10, True),
        (Decimal("1.0"), 1, False),
        (3, Decimal("3.7"), True),
        (True, 1, False),
        (1, True, False),
        (None, 0, False),
        ("1", 1, False),
        ({"A": None}, {}, False),
        ({"a": 1}, {"A": 1}, True),
        ([1, 2], [2, 1], False),
    ],
)
def test_comparison(actual: Any, expected: Any, is_equal: bool) -> None:
    assert (difference(actual, expected) is None) is is_equal


def test_a_map_with_a_null_for_a_key_is_compared() -> None:
    assert difference({None: 1, "a": 1}, {"a": 1, "b": 1}, "m") == "m.b: expected 1, found None"
