"""A case with one wrong expectation fails: every field of every own case is changed in turn, and every change is found."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logflume.sql.testing import Verdict, load_cases
from logflume.sql.testing.report import run_all

FOLDER = Path(__file__).parent / "cases"
FILES = sorted(FOLDER.glob("*.json"))
OTHER_ERRORS = {
    "KsqlStatementException": "io.confluent.ksql.parser.exception.ParseFailedException",
    "ParseFailedException": "org.apache.kafka.streams.errors.StreamsException",
    "KsqlException": "org.apache.kafka.streams.errors.StreamsException",
    "StreamsException": "io.confluent.ksql.util.KsqlException",
}
OTHER_FORMATS = {"JSON": "AVRO", "AVRO": "JSON", "JSON_SR": "JSON", "KAFKA": "DELIMITED"}


def corrupted(test: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (what was changed, the case with it)."""
    for part in ("outputs", "post", "expectedException"):
        for path in leaves(test[part], (part,)) if part in test else ():
            changed = copy.deepcopy(test)
            holder: Any = changed
            for step in path[:-1]:
                holder = holder[step]
            holder[path[-1]] = other(holder[path[-1]], str(path[-1]))
            yield "/".join(map(str, path)), changed
    for place in range(len(test.get("outputs", ()))):
        changed = copy.deepcopy(test)
        del changed["outputs"][place]
        if any(output["topic"] == test["outputs"][place]["topic"] for output in changed["outputs"]):
            yield f"without output {place}", changed


def leaves(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list) and value:
        for place, inner in enumerate(value):
            yield from leaves(inner, (*path, place))
    elif path[-1] != "topic" or value is None:
        yield path


def other(value: Any, name: str) -> Any:
    if name == "blacklist":
        return ".*"
    if name == "type" and "." in str(value):
        return OTHER_ERRORS[value.rpartition(".")[2]]
    if name == "type" and value in ("time", "session"):
        return "session" if value == "time" else "time"
    if name in ("format", "valueFormat"):
        return OTHER_FORMATS[value]
    if name == "schema":
        return value.replace("INT", "DOUBLE") if "INT" in value else value.replace("STRING", "INT")
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"{value}x" if isinstance(value, str) else "x"


def cases(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["tests"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_every_wrong_expectation_is_found(path: Path, tmp_path: Path) -> None:
    wrong = [{**changed, "name": f"{test['name']}: {what}"} for test in cases(path) for what, changed in corrupted(test)]
    (tmp_path / "wrong.json").write_text(json.dumps({"tests": wrong}))
    outcomes = list(run_all(load_cases(tmp_path / "wrong.json")))
    assert len(outcomes) == len(wrong) > 0
    assert [o.case.name for o in outcomes if o.verdict is not Verdict.FAILED] == []
