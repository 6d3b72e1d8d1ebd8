"""Converters with a schema registry: what Confluent's settings do, and foreign clients that read what they wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from logflume.connect import ConfigErrors, State, Worker, load_connector
from logflume.connect.config import read_config_file
from logflume.log import Log, connect
from logflume.log.registry import RegistryServer
from logflume.log.schemas import MemoryRegistry, SchemaNotFound, frame_schema_id
from tests.streams.running import read

GIVEN = (
    '{"type":"record","name":"Given","fields":[{"name":"id","type":"long"},'
    '{"name":"name","type":["null","string"],"default":null}]}'
)
NARROW = '{"type":"record","name":"Narrow","fields":[{"name":"id","type":"long"}]}'


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with connect(str(tmp_path / "data")) as opened:
        yield opened


def run(log: Log, keys: dict[str, Any]) -> Any:
    """Run a connector to its end, or to its failure; return its status."""
    worker = Worker(log, [load_connector(keys)], is_once=True, max_restarts=0)
    with worker:
        assert worker.wait(timeout_s=60)
    return worker.status()[0]


def source(tmp_path: Path, registry: str, **converter: object) -> dict[str, Any]:
    (tmp_path / "in.csv").write_text("id,name\n1,ann\n2,bob\n")
    keys = {"name": "src", "connector": "file-source", "topic": "t", "file": str(tmp_path / "in.csv")}
    columns = {"value.columns": "id BIGINT, name STRING", "value.converter": "avro", "schema.registry.url": registry}
    return {**keys, **columns, **{f"value.converter.{name.replace('__', '.')}": value for name, value in converter.items()}}


def test_a_source_names_subjects_by_record_and_writes_ids_into_headers_that_clients_and_sinks_read(
    log: Log, tmp_path: Path
) -> None:
    with RegistryServer(str(tmp_path / "data"), port=0) as server:
        keys = source(
            tmp_path,
            "http://127.0.0.1:9",
            schema__registry__url=server.address,
            schema__full__name="shop.Customer",
            value__subject__name__strategy="io.confluent.kafka.serializers.subject.RecordNameStrategy",
            value__schema__id__serializer="HeaderSchemaIdSerializer",
        )
        assert run(log, keys).state is State.COMPLETED
        client = SchemaRegistryClient({"url": server.address})
        assert client.get_subjects() == ["shop.Customer"]
        decode, found = AvroDeserializer(client), []
        for record in read(log, "t"):
            context = SerializationContext("t", MessageField.VALUE, list(record.headers))
            found.append(decode(bytes(record.value or b""), context))
        assert found == [{"id": 1, "name": "ann"}, {"id": 2, "name": "bob"}]
        sink = {
            "name": "out", "connector": "parquet-sink", "topics": "t", "path": str(tmp_path / "out"),
            "value.columns": "id BIGINT, name STRING", "value.converter": "avro", "schema.registry.url": server.address,
        }  # fmt: skip
        assert run(log, sink).state is State.COMPLETED
    assert ds.dataset(tmp_path / "out").to_table().to_pylist() == [{"id": 1, "name": "ann"}, {"id": 2, "name": "bob"}]


def test_with_registering_off_a_source_fails_and_registers_nothing(log: Log, tmp_path: Path) -> None:
    registry = MemoryRegistry()
    status = run(log, source(tmp_path, registry.location, auto__register__schemas=False))
    assert status.state is State.FAILED
    assert "t-value does not have the schema of these columns, and registering is off" in status.cause
    with pytest.raises(SchemaNotFound):
        registry.latest("t-value")


@pytest.mark.parametrize("setting", [{"use__latest__version": True}, {"use__schema__id": 1}])
def test_a_source_writes_with_a_schema_that_is_there(log: Log, tmp_path: Path, setting: dict[str, object]) -> None:
    registry = MemoryRegistry()
    assert registry.register("t-value", "AVRO", GIVEN) == 1
    assert run(log, source(tmp_path, registry.location, **setting)).state is State.COMPLETED
    assert [frame_schema_id(record.value or b"") for record in read(log, "t")] == [1, 1]


@pytest.mark.parametrize(
    ("setting", "lax"),
    [
        ({"use__latest__version": True}, {"latest__compatibility__strict": False}),
        ({"use__schema__id": 1}, {"id__compatibility__strict": False}),
    ],
)
def test_a_schema_that_lacks_a_column_is_refused_unless_that_was_said(
    log: Log, tmp_path: Path, setting: dict[str, object], lax: dict[str, object]
) -> None:
    registry = MemoryRegistry()
    registry.register("t-value", "AVRO", NARROW)
    status = run(log, source(tmp_path, registry.location, **setting))
    assert status.state is State.FAILED
    assert "has no field for the column name, whose values would be left out" in status.cause
    assert run(log, source(tmp_path, registry.location, **setting, **lax)).state is State.COMPLETED


@pytest.mark.parametrize(
    ("converter", "said"),
    [
        ({"value__subject__name__strategy": "TopicStrategy"}, "TopicNameStrategy"),
        ({"value__subject__name__strategy": "RecordNameStrategy"}, "full_name"),
        ({"use__latest__version": True, "use__schema__id": 3}, "exclude each other"),
        ({"basic__auth__user__info": "nobody"}, "USER:PASSWORD"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_runs(
    tmp_path: Path, converter: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigErrors, match=said):
        load_connector(source(tmp_path, MemoryRegistry().location, **converter))


def test_the_connector_of_the_guide_runs_with_the_registry_of_the_environment(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = MemoryRegistry()
    monkeypatch.setenv("LOGFLUME_REGISTRY", registry.location)
    text = (Path(__file__).resolve().parents[2] / "docs" / "schemas.md").read_text(encoding="utf-8")
    found = re.search(r'```ini title="customers\.toml"\n(.*?)```', text, re.DOTALL)
    assert found is not None
    (tmp_path / "customers.toml").write_text(found.group(1))
    (tmp_path / "customers.csv").write_text("id,name\n1,ann\n2,bob\n")
    monkeypatch.chdir(tmp_path)
    assert run(log, read_config_file("customers.toml")).state is State.COMPLETED
    assert [frame_schema_id(record.value or b"") for record in read(log, "avro-customers")] == [
        registry.latest("avro-customers-value").id
    ] * 2


def test_dead_letters_of_a_sink_keep_bytes_and_schema_ids(log: Log, tmp_path: Path) -> None:
    registry = MemoryRegistry()
    schema_id = registry.register("t-value", "AVRO", GIVEN)
    log.admin().create_topic("t", partitions=1)
    framed, bare = schema_id.to_bytes(5, "big") + b"\x02\xff", b"\x02\xff"
    in_header = ("__value_schema_id", schema_id.to_bytes(5, "big"))
    with log.producer() as producer:
        producer.send("t", schema_id.to_bytes(5, "big") + b"\x02\x00", key=b"good")
        producer.send("t", framed, key=b"framed")
        producer.send("t", bare, key=b"bare", headers=[in_header])
    sink = {
        "name": "out", "connector": "parquet-sink", "topics": "t", "path": str(tmp_path / "out"), "errors.tolerance": "all",
        "value.columns": "id BIGINT, name STRING", "value.converter": "avro", "schema.registry.url": registry.location,
        "errors.deadletterqueue.topic.name": "dead",
    }  # fmt: skip
    assert run(log, sink).state is State.COMPLETED
    letters = {record.key: record for record in read(log, "dead")}
    assert {key: letter.value for key, letter in letters.items()} == {b"framed": framed, b"bare": bare}
    assert letters[b"bare"].headers[0] == in_header
    for letter in letters.values():
        assert f"Avro schema {schema_id}" in str(dict(letter.headers)["__connect.errors.exception.message"])
