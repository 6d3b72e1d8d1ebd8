"""Topics that demand registered schemas: what is taken, what is refused and named, and a registry that is away."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from logflume.log import KafkaError, connect
from logflume.log.batch import encode_batch, parse_header
from logflume.log.broker.incoming import RowsRefused
from logflume.log.broker.ports import Demand, SchemaRef, do_at_once
from logflume.log.broker.replies import Reply
from logflume.log.broker.schema_ids import IDS_AT_A_TIME, SchemaJudge, demands_of, find_schemas
from logflume.log.interfaces import Log
from logflume.log.protocol import ErrorCode
from logflume.log.registry import RegistryServer
from logflume.log.schemas.frames import frame
from logflume.log.server import start_embedded

VALUE = Demand("value", "orders", "TopicNameStrategy")
KEY = Demand("key", "orders", "TopicNameStrategy")
ORDER = json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "n", "type": "long"}]})
GUID = uuid.UUID(int=7)


def found(values: list[bytes | None], headers: list[Any] | None = None, keys: list[bytes | None] | None = None) -> Any:
    batch = bytes(encode_batch(keys or [None] * len(values), values, [0] * len(values), headers=headers))
    return find_schemas(batch, parse_header(batch), (KEY, VALUE), max_bytes=1 << 20)


def test_ids_are_found_before_payloads_and_in_headers_and_nulls_pass() -> None:
    in_headers = [("__value_schema_id", b"\x01" + GUID.bytes + b"\x00")]
    rows = found([frame(5) + b"x", None, b"bare", frame(5)], [(), (), tuple(in_headers), ()], [None, frame(9), None, None])
    assert rows == {
        (VALUE, SchemaRef(frame(5))): 0,
        (KEY, SchemaRef(frame(9))): 1,
        (VALUE, SchemaRef(b"\x01" + GUID.bytes)): 2,
    }
    assert [str(ref) for _, ref in rows] == ["id 5", "id 9", f"GUID {GUID}"]


@pytest.mark.parametrize("value", [b"", b"\x00\x00\x00\x01", b'{"n":1}', b"\x01" + bytes(3)])
def test_records_without_an_id_are_refused_by_their_rows(value: bytes) -> None:
    with pytest.raises(RowsRefused) as caught:
        found([frame(5), value, None, value])
    assert caught.value.rows == [1, 3]


class Clock:
    now = 0

    def wall_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now


class Finder:
    """A registry that has some ids, or is away."""

    def __init__(self) -> None:
        self.known = {5}
        self.asked: list[int] = []
        self.is_away = False

    def is_met(self, demand: Demand, ref: SchemaRef, /) -> bool:
        self.asked.append(ref.id)
        if self.is_away:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "nobody answers")
        return ref.id in self.known


def judged(judge: SchemaJudge, *ids: int) -> Any:
    reply = judge.judge({(VALUE, SchemaRef(frame(each))): row for row, each in enumerate(ids)})
    assert isinstance(reply, Reply)
    assert reply.is_done
    return reply.value


def test_answers_are_remembered_yes_for_long_and_no_for_short() -> None:
    clock, finder = Clock(), Finder()
    judge = SchemaJudge(lambda: finder, clock=clock, offload=do_at_once)
    assert judged(judge, 5) is None
    assert judged(judge, 5) is None
    refusal = judged(judge, 5, 6)
    assert (refusal.rows, refusal.error_code) == ([1], ErrorCode.INVALID_RECORD)
    assert "record 1: the value's schema, id 6, is of no subject that topic orders takes" in str(refusal)
    assert judged(judge, 6).rows == [0]
    assert finder.asked == [5, 6]
    finder.known.add(6)
    clock.now += 5_000
    assert judged(judge, 5, 6) is None
    assert finder.asked == [5, 6, 6]


def test_a_registry_that_is_away_is_asked_once_a_second_and_refuses_nothing_for_good() -> None:
    clock, finder = Clock(), Finder()
    judge = SchemaJudge(lambda: finder, clock=clock, offload=do_at_once)
    finder.is_away = True
    for _ in range(3):
        error = judged(judge, 5)
        assert error.number == ErrorCode.REQUEST_TIMED_OUT
        assert error.is_retriable
        assert "nobody answers" in str(error)
    assert len(finder.asked) == 1
    finder.is_away = False
    clock.now += 1_000
    assert judged(judge, 5) is None


def test_what_is_asked_of_a_registry_is_bounded() -> None:
    judge = SchemaJudge(Finder, clock=Clock(), offload=do_at_once)
    assert "at most 64 schema ids" in str(judged(judge, *range(IDS_AT_A_TIME + 1)))
    none = SchemaJudge(None, clock=Clock(), offload=do_at_once)
    assert judged(none, 5).number == ErrorCode.INVALID_CONFIG


def test_settings_become_demands() -> None:
    settings = {
        "confluent.key.schema.validation": "false",
        "confluent.value.schema.validation": "true",
        "confluent.value.subject.name.strategy": "io.confluent.kafka.serializers.subject.RecordNameStrategy",
    }
    assert demands_of("orders", settings.__getitem__) == (Demand("value", "orders", "RecordNameStrategy"),)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Log, SchemaRegistryClient]]:
    folder = tmp_path_factory.mktemp("validated")
    with RegistryServer(str(folder / "registry"), port=0) as registry:
        broker = start_embedded(str(folder / "data"), configs={"confluent.schema.registry.url": registry.address})
        try:
            with connect(str(folder / "data")) as log:
                yield log, SchemaRegistryClient({"url": registry.address})
        finally:
            broker.close()


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [("TopicNameStrategy", "{}-value"), ("RecordNameStrategy", "shop.Order"), ("TopicRecordNameStrategy", "{}-shop.Order")],
)
def test_a_topic_takes_what_its_subject_has(served: tuple[Log, SchemaRegistryClient], strategy: str, subject: str) -> None:
    log, registry = served
    topic = f"orders.{strategy}"
    settings = {"confluent.value.schema.validation": "true", "confluent.value.subject.name.strategy": strategy}
    log.admin().create_topic(topic, partitions=1, configs=settings)
    known = registry.register_schema(subject.format(topic), Schema(ORDER, "AVRO"))
    other = registry.register_schema("others-value", Schema('"string"', "AVRO"))
    producer = log.producer(compression="gzip")
    assert producer.send(topic, frame(known) + b"\x02").result().offset == 0
    assert producer.send(topic, None, key=b"gone").result().offset == 1
    guid = uuid.UUID(registry.get_latest_version(subject.format(topic)).guid or "")
    headers = [("__value_schema_id", b"\x01" + guid.bytes)]
    assert producer.send(topic, b"\x02", headers=headers).result().offset == 2
    for value in (frame(other) + b"\x02", frame(999_999), b'{"n":1}'):
        with pytest.raises(KafkaError) as caught:
            producer.send(topic, value).result()
        assert caught.value.number == ErrorCode.INVALID_RECORD
    assert producer.send(topic, frame(known) + b"\x04").result().offset == 3
    producer.close()


def test_a_demand_can_be_made_and_taken_back_later(served: tuple[Log, SchemaRegistryClient]) -> None:
    log, _ = served
    log.admin().create_topic("later", partitions=1)
    producer = log.producer()
    producer.send("later", b"plain").result()
    log.admin().alter_topic_configs("later", {"confluent.value.schema.validation": "true"})
    with pytest.raises(KafkaError, match="registered schema alone"):
        producer.send("later", b"plain").result()
    log.admin().alter_topic_configs("later", {"confluent.value.schema.validation": "false"})
    producer.send("later", b"plain").result()
    producer.close()


def test_a_broker_without_a_registry_makes_no_such_topic(tmp_path: Path) -> None:
    with connect(str(tmp_path / "data")) as log, pytest.raises(KafkaError, match=r"needs confluent\.schema\.registry\.url"):
        log.admin().create_topic("t", partitions=1, configs={"confluent.value.schema.validation": "true"})
