"""Configs: every problem in one error with near matches, nothing that looks like a secret in any output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from logflume.connect import ConfigErrors, Secret, connector_names, connector_spec, load_connector, parse_columns
from logflume.connect.config import read_config_file
from logflume.connect.secrets import redact
from logflume.log import InvalidInput

FILE = {"name": "flights", "connector": "file-source", "file": "flights.csv", "topic": "flights"}


def errors_of(config: dict[str, object]) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        load_connector(config)
    return str(caught.value).splitlines()


def test_every_problem_is_in_one_error() -> None:
    lines = errors_of(
        {
            "name": "my flights",
            "connector": "file-source",
            "tpoic": "flights",
            "file": "",
            "format": "cvs",
            "tasks.max": "two",
            "key.columns": 7,
            "value.columns": "carrier STRNG",
            "rate.records.per.second": -1,
            "follow": "maybe",
            "csv.delimiter": "||",
            "timestamp.zone": "America/New_Yorck",
            "errors.tolerence": "all",
        }
    )
    assert lines == [
        "connector my flights: 13 problems, nothing was started",
        "  name: expected 1 to 128 letters, digits, '.', '_' or '-', found 'my flights'",
        "  tpoic: unknown key; did you mean 'topic'?",
        "  file: expected text that is not empty, found ''",
        "  format: expected one of auto, csv, jsonl, parquet; found 'cvs'; did you mean 'csv'?",
        "  tasks.max: expected an integer, found 'two'",
        "  key.columns: expected a list of texts, or one text with commas, found 7",
        "  value.columns: unknown type 'STRNG'; did you mean 'STRING'?",
        "  rate.records.per.second: expected a value >= 0, found -1",
        "  follow: expected true or false, found 'maybe'",
        "  csv.delimiter: expected one ASCII character, found '||'",
        "  timestamp.zone: expected an IANA time zone such as America/New_York, found 'America/New_Yorck'",
        "  errors.tolerence: unknown key; did you mean 'errors.tolerance'?",
        "  topic: required: Topic to write to; created when it is missing.",
    ]


def test_a_missing_or_misspelt_plug_in_names_the_installed_ones() -> None:
    assert errors_of({"name": "x", "conector": "file-source"})[1] == (
        "  connector: required: short name of a plug-in, one of file-source, parquet-sink, sql-sink; "
        "the key 'conector' looks like it"
    )
    assert errors_of({"name": "x", "connector": "file-sorce"})[1] == (
        "  connector: unknown connector 'file-sorce'; did you mean 'file-source'?; installed: file-source, parquet-sink, sql-sink"
    )


def test_checks_between_keys() -> None:
    assert errors_of({**FILE, "replay.speed": 60, "follow": True, "sort.by": "time"})[1:] == [
        "  replay.speed: needs timestamp.columns: event time sets the pace",
        "  sort.by: a file that is followed cannot be sorted; set follow = false",
    ]
    assert errors_of({**FILE, "value.columns": "a STRING", "key.columns": ["b"]})[1:] == [
        "  key.columns: column 'b' is not in value.columns (a); add it there with its type, or leave value.columns out"
    ]
    sink = {"name": "s", "connector": "sql-sink", "topics": "t", "value.columns": "a STRING", "insert.mode": "upsert"}
    assert errors_of(sink)[1:] == ["  insert.mode: upsert needs key.columns, or pk.fields, to know the row by"]


def test_defaults_and_texts_give_the_same_config(tmp_path: Path) -> None:
    typed = load_connector(
        {**FILE, "tasks.max": 2, "follow": True, "key.columns": ["a", "b"], "topic.config.cleanup.policy": "compact"}
    )
    texts = load_connector(
        {**FILE, "tasks.max": "2", "follow": "true", "key.columns": "a, b", "topic.config.cleanup.policy": "compact"}
    )
    assert typed.config == texts.config
    assert typed.config.table("topic.config.*") == {"cleanup.policy": "compact"}
    assert typed.config.integer("batch.max.records") == 10_000
    toml = tmp_path / "a.toml"
    toml.write_text(
        'name = "flights"\nconnector = "file-source"\nfile = "flights.csv"\ntopic = "flights"\ntasks.max = 2\nfollow = true\n'
        'key.columns = ["a", "b"]\n"topic.config.cleanup.policy" = "compact"\n'
    )
    as_json = tmp_path / "a.json"
    as_json.write_text(
        json.dumps({**FILE, "tasks": {"max": 2}, "follow": True, "key.columns": "a,b", "topic.config.cleanup.policy": "compact"})
    )
    assert load_connector(toml).config == typed.config == load_connector(as_json).config


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.yaml", "", "ends in .toml or .json"),
        ("a.toml", 'topic = "x"\ntopic.config.a = 1', "in quotes"),
        ("a.json", "[1]", "expected a table of keys, found list"),
        ("a.json", "{", "not JSON"),
        ("a.toml", 'file = "${env:LOGFLUME_NOT_SET}"', "environment variable 'LOGFLUME_NOT_SET' is not set"),
        ("a.toml", 'file = "${vault:x}"', "unknown provider 'vault'"),
    ],
)
def test_unreadable_files(tmp_path: Path, name: str, text: str, expected: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InvalidInput, match=expected):
        read_config_file(path)


def test_values_from_environment_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_HOST", "db.example")
    (tmp_path / "password").write_text("s3cret\n")
    path = tmp_path / "a.toml"
    path.write_text('a = "postgresql://${env:DB_HOST}/x"\nb = "${file:password}"\nc = "${topic}"\n')
    assert read_config_file(path) == {"a": "postgresql://db.example/x", "b": "s3cret", "c": "${topic}"}


def test_secrets_are_never_shown() -> None:
    connector = load_connector(
        {
            "name": "out",
            "connector": "sql-sink",
            "topics": "t",
            "value.columns": "a STRING",
            "connection.url": "postgresql://ann:pa55word@db/x",
            "connection.password": "hunter2",
        }
    )
    shown = f"{connector} {connector.config} {connector.config.shown()} {connector.config['connection.password']!r}"
    assert "hunter2" not in shown
    assert "pa55word" not in shown
    assert connector.config.shown()["connection.password"] == "****"
    assert connector.config.shown()["connection.url"] == "postgresql://ann:****@db/x"
    assert connector.config.secret("connection.password") == "hunter2"
    assert redact("no login hunter2 at mysql://u:other@h", connector.config.secret_texts()) == "no login **** at mysql://u:****@h"
    with pytest.raises(TypeError):
        Secret("x").__reduce__()


def test_a_wrong_secret_is_not_echoed() -> None:
    config = {
        "name": "x",
        "connector": "sql-sink",
        "topics": "t",
        "value.columns": "a STRING",
        "connection.password": ["hunter2"],
    }
    assert errors_of(config)[1] == "  connection.password: not a valid value (not shown, it is a secret)"
    config = {
        "name": "x",
        "connector": "sql-sink",
        "topics": "t",
        "value.columns": "a STRING",
        "connection.url": "nothing:hunter2",
    }
    assert "hunter2" not in "\n".join(errors_of(config))


@pytest.mark.parametrize("name", ["file-source", "parquet-sink", "sql-sink"])
def test_the_spec_is_documentation_and_form(name: str) -> None:
    assert name in connector_names()
    spec = connector_spec(name)
    form = spec.describe()
    assert [option["name"] for option in form] == list(spec.names())
    assert all(option["doc"] and option["doc"].endswith(".") for option in form)
    assert json.loads(json.dumps(form)) == form
    table = spec.to_markdown()
    assert all(f"| `{option}` |" in table for option in spec.names())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a STRING, b int, `odd name` DECIMAL(6,2)", "a STRING, b INTEGER, odd name DECIMAL(6, 2)"),
        ("x ARRAY<MAP<STRING, STRUCT<p DOUBLE, q DATE>>>", "x ARRAY<MAP<STRING, STRUCT<p DOUBLE, q DATE>>>"),
    ],
)
def test_columns(text: str, expected: str) -> None:
    assert ", ".join(f"{column.name} {column.type}" for column in parse_columns(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", "position 2 of 'a': expected a type, found the end"),
        ("a STRING b INT", "position 9 of 'a STRING b INT': expected ',' or the end, found 'b INT'"),
        ("a STRING, a INT", "column 'a' is declared twice"),
        ("a ARRAY<STRING", "expected '>', found the end"),
        ("a DECIMAL(2, 5)", "scale <= precision"),
        ("a " + "ARRAY<" * 100, "nested deeper than 32"),
    ],
)
def test_wrong_columns(text: str, expected: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_columns(text)
    assert expected in str(caught.value)
