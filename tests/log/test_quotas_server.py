"""Quotas against a broker process: real clients are told how long to be quiet, and are not read from meanwhile."""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from logflume.log.protocol import messages

from ._server_process import ServerProcess
from ._wire import Wire, batch, create_topic_request, fetch_request, produce_request

QUIET_MS = 700


@pytest.fixture
def broker(tmp_path: Any) -> Iterator[ServerProcess]:
    """A broker of its own, as quotas hold for everybody; with short windows, so that nobody waits for long."""
    process = ServerProcess(str(tmp_path), configs=["quota.window.num=3"])
    yield process
    assert process.stop() == 0


def set_quota(broker: ServerProcess, entity: tuple[str, str | None], **quotas: float) -> None:
    alter = messages.AlterClientQuotasRequest
    entry = alter.EntryData(
        entity=[alter.EntityData(entity_type=entity[0], entity_name=entity[1])],
        ops=[alter.OpData(key=key, value=value) for key, value in quotas.items()],
    )
    with Wire(broker.port) as wire:
        answer = wire.call(alter(entries=[entry]), 1).entries[0]
    assert answer.error_code == 0, answer.error_message


def test_confluent_kafka_hears_of_its_quotas(broker: ServerProcess) -> None:
    set_quota(broker, ("client-id", "throttled"), producer_byte_rate=8_000, consumer_byte_rate=8_000)
    heard: list[Any] = []
    common: dict[str, Any] = {"bootstrap.servers": broker.address, "client.id": "throttled", "throttle_cb": heard.append}
    producer = Producer({**common, "linger.ms": 0, "batch.num.messages": 10})
    for number in range(30):
        producer.produce("t", f"{number:04}".encode() + b"x" * 996)
    assert producer.flush(60) == 0
    producer.poll(0.1)
    assert any(event.throttle_time > 0 for event in heard)
    assert all(event.broker_id == 1 for event in heard)

    heard.clear()
    consumer = Consumer({**common, "group.id": "g", "auto.offset.reset": "earliest", "fetch.wait.max.ms": 50})
    consumer.subscribe(["t"])
    values: list[bytes] = []
    end_s = time.monotonic() + 60
    while len(values) < 30 and time.monotonic() < end_s:
        values += [message.value()[:4] for message in consumer.consume(100, timeout=0.5) if message.error() is None]
    consumer.close()
    assert values == [f"{number:04}".encode() for number in range(30)], "slowed down, and nothing lost"
    assert any(event.throttle_time > 0 for event in heard)


def overdraw(wire: Wire, *, acks: int = -1) -> Any:
    """Produce so much that the client must be quiet for about QUIET_MS."""
    request = produce_request("t", batch(b"x" * 2_600), acks=acks)
    if acks == 0:
        wire.send(request, 9)
        return None
    return wire.call(request, 9)


def test_who_is_over_a_quota_is_answered_first_and_then_not_read_from(broker: ServerProcess) -> None:
    with Wire(broker.port) as wire:
        wire.call(create_topic_request("t"), 7)
        set_quota(broker, ("client-id", "wire"), producer_byte_rate=1_000)
        answer = overdraw(wire)
        assert answer.responses[0].partition_responses[0].error_code == 0, "what is over the quota is written"
        assert answer.throttle_time_ms >= QUIET_MS / 2
        began_s = time.monotonic()
        for _ in range(3):
            wire.send(messages.MetadataRequest(topics=[]), 9)
        with Wire(broker.port) as other:
            assert other.call(messages.ApiVersionsRequest(), 0).error_code == 0
        for _ in range(3):
            wire.receive(messages.MetadataRequest, 9)
        assert time.monotonic() - began_s >= answer.throttle_time_ms / 1000 * 0.8


def test_without_an_answer_the_connection_is_muted_all_the_same(broker: ServerProcess) -> None:
    with Wire(broker.port) as wire:
        wire.call(create_topic_request("t"), 7)
        set_quota(broker, ("client-id", "wire"), producer_byte_rate=1_000)
        began_s = time.monotonic()
        overdraw(wire, acks=0)
        wire.call(messages.MetadataRequest(topics=[]), 9)
        assert time.monotonic() - began_s >= QUIET_MS / 1000 * 0.5


def fetch_until_given(wire: Wire, request: Callable[[], Any]) -> int:
    """Fetch, held back as often as it may be, until there are records; return their bytes."""
    end_s = time.monotonic() + 30
    while time.monotonic() < end_s:
        response = wire.call(request(), 12)
        assert response.error_code == 0
        if response.responses:
            return len(response.responses[0].partitions[0].records)
    raise AssertionError("nothing was given within 30 s")


def test_a_fetch_over_the_quota_is_empty_and_gets_the_data_later(broker: ServerProcess) -> None:
    with Wire(broker.port) as wire:
        wire.call(create_topic_request("t"), 7)
        wire.call(produce_request("t", batch(b"x" * 1_500)), 9)
        set_quota(broker, ("client-id", "wire"), consumer_byte_rate=1_000)
        first = wire.call(fetch_request("t", {0: 0}), 12)
        assert len(first.responses[0].partitions[0].records) > 1_500
        held_back = wire.call(fetch_request("t", {0: 0}), 12)
        assert held_back.throttle_time_ms > 0
        assert held_back.responses == []
        assert fetch_until_given(wire, lambda: fetch_request("t", {0: 0})) > 1_500


def test_a_fetch_session_goes_on_after_a_response_was_held_back(broker: ServerProcess) -> None:
    with Wire(broker.port) as wire:
        wire.call(create_topic_request("t"), 7)
        wire.call(produce_request("t", batch(b"x" * 1_500)), 9)
        opened = wire.call(fetch_request("t", {0: 1}, session_id=0, session_epoch=0), 12)
        assert opened.session_id > 0
        set_quota(broker, ("client-id", "wire"), consumer_byte_rate=1_000)
        session = {"session_id": opened.session_id}
        first = wire.call(fetch_request("t", {0: 0}, **session, session_epoch=1), 12)
        assert len(first.responses[0].partitions[0].records) > 1_500
        held_back = wire.call(fetch_request("t", {}, **session, session_epoch=2), 12)
        assert (held_back.throttle_time_ms > 0, held_back.responses, held_back.session_id) == (True, [], opened.session_id)
        epochs = itertools.count(3)
        assert fetch_until_given(wire, lambda: fetch_request("t", {}, **session, session_epoch=next(epochs))) > 1_500


def test_an_address_that_connects_too_often_is_cut_off_and_others_go_on(broker: ServerProcess) -> None:
    set_quota(broker, ("ip", "127.0.0.1"), connection_creation_rate=1)
    refused = 0
    for _ in range(30):
        with Wire(broker.port) as wire:
            wire.send(messages.ApiVersionsRequest(), 0)
            refused += wire.is_closed_by_broker()
            if refused:
                break
    assert refused == 1


def test_an_answer_says_the_time_for_any_api(broker: ServerProcess) -> None:
    set_quota(broker, ("user", None), request_percentage=0.0001)
    with Wire(broker.port) as wire:
        waits = [wire.call(messages.MetadataRequest(topics=None), 9).throttle_time_ms for _ in range(2)]
        assert max(waits) > 0
        assert (
            wire.call(messages.ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3).throttle_time_ms > 0
        )


def test_confluent_kafkas_share_consumer_hears_of_its_quota(broker: ServerProcess) -> None:
    set_quota(broker, ("client-id", "throttled"), consumer_byte_rate=8_000)
    producer = Producer({"bootstrap.servers": broker.address, "batch.num.messages": 10})
    for number in range(30):
        producer.produce("t", f"{number:04}".encode() + b"x" * 996)
    assert producer.flush(60) == 0
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    group = ConfigResource(ResourceType.GROUP, "g", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.address})
    for future in admin.incremental_alter_configs([group]).values():
        future.result(60)
    heard: list[Any] = []
    consumer = ShareConsumer(
        {"bootstrap.servers": broker.address, "client.id": "throttled", "group.id": "g", "throttle_cb": heard.append}
    )
    consumer.subscribe(["t"])
    values: set[bytes] = set()
    end_s = time.monotonic() + 60
    while len(values) < 30 and time.monotonic() < end_s:
        values |= {message.value()[:4] for message in consumer.poll(timeout=0.5) if message.error() is None}
    consumer.close()
    assert values == {f"{number:04}".encode() for number in range(30)}
    assert any(event.throttle_time > 0 for event in heard)
