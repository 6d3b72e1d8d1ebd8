"""What a sink is told against what is there: misspelt columns and impossible targets are refused, known columns not asked for."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from logflume.connect import (
    ConfigErrors,
    check_against_records,
    columns_text,
    found_columns,
    load_connector,
    made_ready,
    parse_columns,
    run_connectors,
)
from logflume.log import InvalidInput, Log, connect
from logflume.log.schemas import MemoryRegistry


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with connect(tmp_path / "data") as opened:
        opened.admin().ensure_topic("pays", partitions=2)
        yield opened


def sink(folder: Path, columns: str = "", **options: Any) -> dict[str, Any]:
    url = f"sqlite:///{folder}/out.db"
    own = {"name": "out", "connector": "sql-sink", "topics": "pays", "connection.url": url, **options}
    return {**own, "value.columns": columns} if columns else own


def send(log: Log, *values: bytes) -> None:
    for value in values:
        log.producer().send("pays", value, partition=1).result(30)


def stored(folder: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / "out.db")) as database:
        return database.execute("SELECT * FROM pays ORDER BY 1").fetchall()


@pytest.mark.parametrize("is_asked_before", [True, False])
def test_a_misspelt_column_is_refused_before_anything_is_written(log: Log, tmp_path: Path, is_asked_before: bool) -> None:
    send(log, b"null", b'{"user": "ann", "price": 3}')
    config = sink(tmp_path, "user STRING, prise BIGINT")
    refuse = (
        partial(check_against_records, log, load_connector(config)) if is_asked_before else partial(run_connectors, log, [config])
    )
    with pytest.raises(ConfigErrors, match=r"no record of pays has 'prise'; did you mean 'price'\?") as refused:
        refuse()
    assert len(str(refused.value).splitlines()) == 2
    if not is_asked_before:
        assert stored(tmp_path) == []


def test_columns_that_some_records_lack_or_write_otherwise_are_taken(log: Log, tmp_path: Path) -> None:
    send(log, b'{"user": "ann", "note_2": 1}', b'{"USER": "bob", "note": "x"}')
    run_connectors(log, [sink(tmp_path, "user STRING, note STRING, later DATE")], is_once=True)
    assert len(stored(tmp_path)) == 2


@pytest.mark.parametrize("converter", ["avro", "protobuf", "json_sr"])
def test_columns_that_the_registry_knows_need_not_be_typed(log: Log, tmp_path: Path, converter: str) -> None:
    (tmp_path / "rows.csv").write_text("user,price\nann,3\nbob,4\n")
    registry = MemoryRegistry()
    registered = {"value.converter": converter, "schema.registry.url": registry.location}
    source = {"name": "in", "connector": "file-source", "file": str(tmp_path / "rows.csv"), "topic": "pays", **registered}
    run_connectors(log, [source])
    run_connectors(log, [sink(tmp_path, **registered)], is_once=True)
    assert stored(tmp_path) == [("ann", 3), ("bob", 4)]
    with pytest.raises(ConfigErrors, match=r"no record of pays has 'prise'; did you mean 'price'\?"):
        run_connectors(log, [sink(tmp_path, "prise BIGINT", **{**registered, "name": "other"})], is_once=True)


def test_columns_that_nobody_knows_are_asked_for(log: Log, tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match=r"value.columns: required: Columns of the value"):
        load_connector(sink(tmp_path))
    registry = MemoryRegistry()
    registered = {"value.converter": "avro", "schema.registry.url": registry.location}
    with pytest.raises(ConfigErrors, match=r"value.columns: not given, and the registry has no schema of topic pays"):
        run_connectors(log, [sink(tmp_path, **registered)], is_once=True)
    (tmp_path / "rows.csv").write_text("user\nann\n")
    source = {"name": "in", "connector": "file-source", "file": str(tmp_path / "rows.csv"), "topic": "pays", **registered}
    run_connectors(log, [source])
    with pytest.raises(ConfigErrors, match=r"pk\.fields: column 'id' is not among"):
        run_connectors(log, [sink(tmp_path, **registered, **{"pk.fields": "id"})], is_once=True)


@pytest.mark.parametrize(
    ("option", "path", "reason"),
    [
        ("connection.url", "sqlite:///{}/none/out.db", "/none does not exist"),
        ("connection.url", "sqlite:///{}", "it is a directory"),
        ("connection.url", "sqlite:///{}/file/out.db", "/file is not a directory"),
        ("path", "{}/file/below/out", "/file is not a directory"),
    ],
)
def test_a_target_that_cannot_be_is_refused_at_once(tmp_path: Path, option: str, path: str, reason: str) -> None:
    (tmp_path / "file").write_text("")
    kind = "sql-sink" if option == "connection.url" else "parquet-sink"
    config = {"name": "out", "connector": kind, "topics": "pays", "value.columns": "a STRING", option: path.format(tmp_path)}
    with pytest.raises(ConfigErrors, match=f"{option}: there can be no .*{reason}") as refused:
        made_ready(load_connector(config))
    assert len(refused.value.problems) == 1


def test_the_columns_of_a_topic_are_printed_as_a_sink_takes_them(log: Log, tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match="`logflume connect columns TOPIC` prints those of a topic of JSON"):
        load_connector(sink(tmp_path))
    with pytest.raises(InvalidInput, match="topic pays: expected JSON objects, it has no values"):
        found_columns(log, "pays")
    send(log, b"7")
    with pytest.raises(InvalidInput, match="topic pays: expected JSON objects, none of its first 1 values is one"):
        found_columns(log, "pays")
    send(log, b'{"user": "ann",\n "unit price": 3}', b'{"user": null, "unit price": 3.5, "tags": ["a"]}')
    text = columns_text(found_columns(log, "pays"))
    assert text == "user STRING, `unit price` DOUBLE, tags ARRAY<STRING>"
    assert parse_columns(text) == found_columns(log, "pays")
