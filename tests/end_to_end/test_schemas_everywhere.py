"""One Avro topic behind a real registry, through clients, a topology, SQL and a connector; and a registry that is away."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

import logflume.streams as lf
from logflume.cli import main
from logflume.log import InvalidInput, connect
from logflume.log.interfaces import Log
from logflume.log.records import Record
from logflume.log.registry import RegistryServer
from logflume.log.schemas import FormatSpec, RegistryUnavailable
from logflume.sql import Rows, SqlEngine, StatementError
from logflume.streams import col
from tests.streams.running import read, running, until

ORDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "user", "type": "string"},
            {"name": "cents", "type": "int"},
            {"name": "note", "type": ["null", "string"]},
        ],
    }
)
VALUE = SerializationContext("orders", MessageField.VALUE)


class Order(msgspec.Struct):
    user: str
    cents: int


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with connect(str(tmp_path / "data")) as opened:
        yield opened


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    with RegistryServer(str(tmp_path / "data"), port=0) as server:
        yield server.address


def produce(log: Log, registry: str, count: int) -> None:
    """Write orders as a foreign client does."""
    write = AvroSerializer(SchemaRegistryClient({"url": registry}), ORDER)
    log.admin().ensure_topic("orders", partitions=1)
    producer = log.producer()
    for i in range(count):
        value = write({"user": f"u{i % 3}", "cents": i, "note": None if i % 2 else "né"}, VALUE)
        producer.send("orders", value, key=f"u{i % 3}".encode())
    producer.close()


def decoded(registry: str, records: list[Record], topic: str) -> list[object]:
    """Read values as a foreign client does."""
    client = AvroDeserializer(SchemaRegistryClient({"url": registry}))
    context = SerializationContext(topic, MessageField.VALUE)
    return [client(None if record.value is None else bytes(record.value), context) for record in records]


@pytest.mark.parametrize("value", [Order, None], ids=["class", "columns of the registry"])
def test_a_topology_reads_what_clients_wrote_and_they_read_it(
    log: Log, registry: str, tmp_path: Path, value: type | None
) -> None:
    produce(log, registry, 30)
    app = lf.App("big-orders", log=log, registry=registry)
    app.stream("orders", value, format="AVRO").filter(col.cents >= 20).select(user=col.user, euros=col.cents / 100).to(
        "big", format="AVRO"
    )
    with running(app, log, tmp_path / "state") as engine:
        until(lambda: len(read(log, "big")) == 10, engine)
    assert decoded(registry, read(log, "big"), "big")[0] == {"user": "u2", "euros": 0.2}


def test_subjects_are_named_by_record_in_a_topology(log: Log, registry: str, tmp_path: Path) -> None:
    produce(log, registry, 30)
    app = lf.App("by-record", log=log, registry=registry)
    app.stream("orders", Order, format="AVRO").to(
        "big", format=FormatSpec("AVRO", naming="RECORD", full_name="shop.Order"), key_format="KAFKA"
    )
    with running(app, log, tmp_path / "state") as engine:
        until(lambda: len(read(log, "big")) == 30, engine)
    assert SchemaRegistryClient({"url": registry}).get_latest_version("shop.Order").version == 1
    assert decoded(registry, read(log, "big"), "big")[1] == {"user": "u1", "cents": 1}


class Misspelt(msgspec.Struct):
    user: str
    cent: int


class Mistyped(msgspec.Struct):
    user: list[str]


@pytest.mark.parametrize(
    ("format", "said"),
    [
        (FormatSpec("AVRO", registers=False), "registering is off"),
        (FormatSpec("AVRO", uses_latest=True), "copies-value"),
        (FormatSpec("AVRO", schema_id=999), "999"),
    ],
)
def test_a_schema_to_write_with_that_is_not_there_is_missed_at_the_start(
    log: Log, registry: str, tmp_path: Path, format: FormatSpec, said: str
) -> None:
    produce(log, registry, 1)
    app = lf.App("wanting", log=log, registry=registry, state_dir=tmp_path / "state")
    app.stream("orders", Order, format="AVRO").to("copies", format=format)
    with pytest.raises(InvalidInput, match=said):
        app.run()
    assert "copies" not in log.admin().list_topics()


@pytest.mark.parametrize(
    ("cls", "said"),
    [(Misspelt, r"unknown field 'cent' of orders-value, schema \d+ .*; did you mean 'cents'"), (Mistyped, "user")],
)
def test_a_class_that_does_not_fit_the_schema_is_refused_at_the_start(
    log: Log, registry: str, tmp_path: Path, cls: type, said: str
) -> None:
    produce(log, registry, 1)
    app = lf.App("misfits", log=log, registry=registry, state_dir=tmp_path / "state")
    app.stream("orders", cls, format="AVRO").to("copies", format="JSON")
    with pytest.raises(InvalidInput, match=said):
        app.run()
    assert "copies" not in log.admin().list_topics()


def test_an_application_whose_registry_is_away_says_so_at_the_start(log: Log, tmp_path: Path) -> None:
    app = lf.App("early", log=log, registry="http://127.0.0.1:9", state_dir=tmp_path / "state")
    app.stream("orders", Order, format="AVRO").to("copies", format="JSON")
    with pytest.raises(RegistryUnavailable, match="does not answer"):
        app.run()


def test_sql_takes_columns_from_the_registry_and_registers_its_results(log: Log, registry: str, tmp_path: Path) -> None:
    produce(log, registry, 30)
    with SqlEngine(log, tmp_path / "sql", registry=registry) as engine:
        made = list(
            engine.execute(
                "CREATE STREAM orders (k STRING KEY) WITH (KAFKA_TOPIC='orders', VALUE_FORMAT='AVRO');"
                "CREATE TABLE spent AS SELECT user, SUM(cents) AS cents FROM orders GROUP BY user EMIT CHANGES;"
                "DESCRIBE orders;"
            )
        )
        assert "CENTS" in str(made[2])
        until(lambda: {r.key: r for r in read(log, "SPENT")}.keys() >= {b"u0", b"u1", b"u2"} and _total(log, registry) == 435)
    with SqlEngine(log, tmp_path / "sql", registry="http://127.0.0.1:9") as again:  # what was inferred is kept
        assert [c.name for c in again.catalog.sources["ORDERS"].value] == ["USER", "CENTS", "NOTE"]


def test_sql_names_registers_and_tells_schemas_as_its_statements_say(log: Log, registry: str, tmp_path: Path) -> None:
    client = SchemaRegistryClient({"url": registry})
    with SqlEngine(log, tmp_path / "sql", registry=registry) as engine:
        made = "WITH (KAFKA_TOPIC='orders', PARTITIONS=1, VALUE_FORMAT='AVRO'"
        list(engine.execute(f"CREATE STREAM orders (user STRING, cents INT) {made}, VALUE_SCHEMA_ID_PLACE='HEADER');"))
        list(engine.execute("INSERT INTO orders VALUES ('ann', 7); INSERT INTO orders VALUES ('bob', 8);"))
        assert in_headers(registry, read(log, "orders"), "orders") == [
            {"USER": "ann", "CENTS": 7},
            {"USER": "bob", "CENTS": 8},
        ]
        (found,) = engine.execute("SELECT user, cents FROM orders;")
        assert isinstance(found, Rows)
        assert found.rows == (("ann", 7), ("bob", 8))
        named = "VALUE_SUBJECT_NAMING='RECORD', VALUE_SCHEMA_FULL_NAME='shop.Copy', VALUE_NORMALIZE_SCHEMA=true"
        list(engine.execute(f"CREATE STREAM copies WITH (VALUE_FORMAT='AVRO', {named}) AS SELECT * FROM orders EMIT CHANGES;"))
        until(lambda: len(read(log, "COPIES")) == 2)
        assert client.get_latest_version("shop.Copy").version == 1
        assert "COPIES-value" not in client.get_subjects()
        assert not any(record.headers for record in read(log, "COPIES"))
        assert decoded(registry, read(log, "COPIES"), "COPIES")[0] == {"USER": "ann", "CENTS": 7}
        for options, said in (
            ("VALUE_FORMAT='AVRO', VALUE_REGISTER_SCHEMA=false", "registering is off"),
            ("VALUE_FORMAT='AVRO', VALUE_USE_LATEST_SCHEMA=true", "NEWER-value"),
            ("VALUE_FORMAT='JSON', VALUE_USE_LATEST_SCHEMA=true", "has no schemas in a registry"),
            ("VALUE_FORMAT='AVRO', VALUE_SUBJECT_NAMING='RECORD'", "full_name"),
        ):
            with pytest.raises(StatementError, match=said):
                list(engine.execute(f"CREATE STREAM newer WITH ({options}) AS SELECT * FROM orders EMIT CHANGES;"))


def _total(log: Log, registry: str) -> int:
    newest = {record.key: record for record in read(log, "SPENT")}
    return sum(row["CENTS"] for row in decoded(registry, list(newest.values()), "SPENT"))  # type: ignore[index]


def test_while_the_registry_is_away_the_application_waits_and_drops_nothing(
    log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with RegistryServer(str(tmp_path / "data"), port=port):
        produce(log, address, 12)
    app = lf.App("copies", log=log, registry=address)
    app.stream("orders", Order, format="AVRO").to("copies", format="JSON")
    with running(app, log, tmp_path / "state") as engine:
        until(lambda: f"the schema registry {address} does not answer" in caplog.text, engine)
        assert read(log, "copies") == []
        with RegistryServer(str(tmp_path / "data"), port=port):
            until(lambda: len(read(log, "copies")) == 12, engine)


def test_while_the_registry_is_away_nothing_that_is_to_be_written_is_dropped(
    log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    log.admin().create_topic("notes", partitions=1)
    producer = log.producer()
    for i in range(12):
        producer.send("notes", json.dumps({"user": "u", "cents": i}).encode(), key=b"k")
    producer.close()
    app = lf.App("registered", log=log, registry=address, on_problem="skip")
    app.stream("notes", Order).to("registered", format="AVRO")
    with running(app, log, tmp_path / "state") as engine:
        until(lambda: f"the schema registry {address} does not answer" in caplog.text, engine)
        with RegistryServer(str(tmp_path / "data"), port=port):
            until(lambda: len(read(log, "registered")) == 12, engine)


def with_guid_headers(log: Log, registry: str, count: int) -> None:
    """Write orders as a foreign client does that puts GUIDs into headers."""
    client = SchemaRegistryClient({"url": registry})
    write = AvroSerializer(client, ORDER, conf={"schema.id.serializer": header_schema_id_serializer})
    log.admin().ensure_topic("orders", partitions=1)
    producer = log.producer()
    for i in range(count):
        headers: list[tuple[str, bytes]] = []
        value = write(
            {"user": f"u{i % 3}", "cents": i, "note": None}, SerializationContext("orders", MessageField.VALUE, headers)
        )
        assert headers[0][0] == "__value_schema_id"
        producer.send("orders", value, key=f"u{i % 3}".encode(), headers=headers)
    producer.close()


def test_schema_ids_in_headers_are_read_by_topologies_and_shown(
    log: Log, registry: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with_guid_headers(log, registry, 60)
    produce(log, registry, 60)
    wrong = [("__value_schema_id", b"\x01" + bytes(16))]
    log.producer().send("orders", b"\x00\x00\x00\x00\x01\x00", key=b"k", headers=wrong).result()
    app = lf.App("headed", log=log, registry=registry)
    app.stream("orders", Order, format="AVRO").to("copies", format="JSON")
    with running(app, log, tmp_path / "state", dead_letter_topic="headed-dead") as engine:
        until(lambda: len(read(log, "copies")) == 120 and len(read(log, "headed-dead")) == 1, engine)
    assert [json.loads(record.value or b"")["cents"] for record in read(log, "copies")] == [*range(60), *range(60)]
    (letter,) = read(log, "headed-dead")
    assert (letter.key, letter.value, letter.headers[0]) == (b"k", b"\x00\x00\x00\x00\x01\x00", wrong[0])
    assert main(["consume", "orders", "-n", "1", "--json", "--registry", registry, "--data", str(log.where)]) == 0
    assert json.loads(capfd.readouterr().out)["value"] == {"user": "u0", "cents": 0, "note": None}


def in_headers(registry: str, records: list[Record], topic: str) -> list[object]:
    """Read values as a foreign client does that looks into headers, and into headers alone."""
    client = AvroDeserializer(SchemaRegistryClient({"url": registry}))
    found = []
    for record in records:
        value = bytes(record.value or b"")
        assert [name for name, _ in record.headers].count("__value_schema_id") == 1
        found.append(client(value, SerializationContext(topic, MessageField.VALUE, list(record.headers))))
    return found


def test_schema_ids_are_written_into_headers_and_old_ones_go_out_with_nothing(log: Log, registry: str, tmp_path: Path) -> None:
    with_guid_headers(log, registry, 60)
    produce(log, registry, 60)
    app = lf.App("headings", log=log, registry=registry)
    orders = app.stream("orders", Order, format="AVRO")
    orders.to("headed", format=FormatSpec("AVRO", has_ids_in_headers=True))
    orders.to("framed", format="AVRO")
    orders.to("plain", format="JSON")
    with running(app, log, tmp_path / "state") as engine:
        until(lambda: all(len(read(log, topic)) == 120 for topic in ("headed", "framed", "plain")), engine)
    wanted = [{"user": f"u{i % 3}", "cents": i} for i in (*range(60), *range(60))]
    assert in_headers(registry, read(log, "headed"), "headed") == wanted
    assert not any(record.headers for topic in ("framed", "plain") for record in read(log, topic))
    assert decoded(registry, read(log, "framed"), "framed") == wanted


def test_produce_writes_json_lines_with_a_schema(
    log: Log, registry: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log.admin().create_topic("orders", partitions=1)
    schema, lines = tmp_path / "order.avsc", tmp_path / "lines"
    schema.write_text(ORDER)
    lines.write_text('{"user": "ada", "cents": 5, "note": null}\n{"user": "é", "cents": 6, "note": "n"}\nnull\n')
    common = ["produce", "orders", "--format", "avro", "--registry", registry, "--data", str(log.where), "-f", str(lines)]
    assert main(common) == 1
    assert "--schema FILE registers one" in capfd.readouterr().err
    assert main([*common, "--schema", str(schema)]) == 0
    assert main(common) == 0
    wanted = [{"user": "ada", "cents": 5, "note": None}, {"user": "é", "cents": 6, "note": "n"}, None]
    assert decoded(registry, read(log, "orders"), "orders") == [*wanted, *wanted]
    lines.write_text('{"user": "bob", "cents": 5}\n{"user": "bob", "cent": 5}\n')
    assert main(common) == 1
    assert "line 2: unknown field 'cent' of schema 1; did you mean 'cents'" in capfd.readouterr().err
    lines.write_text('{"user": "bob", "cents": 50000000000}\n')
    assert main(common) == 1
    assert "line 1: " in capfd.readouterr().err
    assert len(read(log, "orders")) == 7
    assert main(["produce", "orders", "--format", "xml", "--data", str(log.where)]) == 1
    assert main(["produce", "orders", "--registry", registry, "--data", str(log.where)]) == 1


def test_produce_writes_schema_ids_into_headers(log: Log, registry: str, tmp_path: Path) -> None:
    log.admin().create_topic("orders", partitions=1)
    schema, lines = tmp_path / "order.avsc", tmp_path / "lines"
    schema.write_text(ORDER)
    lines.write_text('{"user": "ada", "cents": 5, "note": null}\nnull\n')
    common = ["produce", "orders", "--registry", registry, "--data", str(log.where), "-f", str(lines)]
    assert main([*common, "--ids-in-headers"]) == 1
    assert main([*common, "--format", "avro", "--schema", str(schema), "--ids-in-headers"]) == 0
    written, deleted = read(log, "orders")
    assert in_headers(registry, [written], "orders") == [{"user": "ada", "cents": 5, "note": None}]
    assert (deleted.value, deleted.headers) == (None, ())


def test_consume_shows_values_by_their_schema(log: Log, registry: str, capfd: pytest.CaptureFixture[str]) -> None:
    produce(log, registry, 2)
    log.producer().send("orders", b"\x00plain", key=b"k").result()
    arguments = ["consume", "orders", "--json", "--registry", registry, "--data", str(log.where)]
    assert main(arguments) == 0
    out, err = capfd.readouterr()
    assert [json.loads(line)["value"] for line in out.splitlines()] == [
        {"user": "u0", "cents": 0, "note": "né"},
        {"user": "u1", "cents": 1, "note": None},
        "\x00plain",
    ]
    assert "shown as bytes" in err
