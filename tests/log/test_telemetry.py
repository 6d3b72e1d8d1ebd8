"""Clients' metrics (KIP-714): subscriptions, who is asked for what, what is refused, and librdkafka pushing its own."""

import http.client
import random
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from logflume.log.broker.telemetry.clients import MAX_CLIENTS
from logflume.log.protocol import ErrorCode, messages

from ._server_process import ServerProcess
from ._simulated_broker import SimulatedBroker
from ._wire import Wire

CLIENT_METRICS = 16
NOBODY = bytes(16)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SimulatedBroker]:
    made = SimulatedBroker(tmp_path)
    yield made
    made.close()


def subscription_request(name: str, configs: Mapping[str, str | None]) -> Any:
    alter = messages.IncrementalAlterConfigsRequest
    changes = [
        alter.AlterableConfig(name=key, config_operation=int(value is None), value=value) for key, value in configs.items()
    ]
    resource = alter.AlterConfigsResource(resource_type=CLIENT_METRICS, resource_name=name, configs=changes)
    return alter(resources=[resource])


def subscribe(broker: SimulatedBroker, name: str, **configs: str | None) -> Any:
    request = subscription_request(name, {key.replace("_", "."): value for key, value in configs.items()})
    return broker.call(request, 1).responses[0]


def ask(broker: SimulatedBroker, instance_id: bytes = NOBODY) -> Any:
    return broker.call(messages.GetTelemetrySubscriptionsRequest(client_instance_id=instance_id), 0)


def push(broker: SimulatedBroker, asked: Any, *, metrics: bytes = b"otlp", **fields: Any) -> int:
    values = {"client_instance_id": asked.client_instance_id, "subscription_id": asked.subscription_id, "metrics": metrics}
    return int(broker.call(messages.PushTelemetryRequest(**(values | fields)), 0).error_code)


def test_a_subscription_is_a_config_that_lasts(broker: SimulatedBroker) -> None:
    assert subscribe(broker, "sub", metrics="org.apache.kafka.producer.", interval_ms="1000").error_code == 0
    broker.power_cut(random.Random(5))
    describe = messages.DescribeConfigsRequest
    resource = describe.DescribeConfigsResource(resource_type=CLIENT_METRICS, resource_name="sub", configuration_keys=None)
    asked = describe(resources=[resource])
    found = {config.name: (config.value, config.config_source) for config in broker.call(asked, 4).results[0].configs}
    assert found == {"interval.ms": ("1000", 7), "match": ("", 5), "metrics": ("org.apache.kafka.producer.", 7)}
    listed = broker.call(messages.ListConfigResourcesRequest(), 0).config_resources
    assert [each.resource_name for each in listed] == ["sub"]
    assert subscribe(broker, "sub", metrics=None, interval_ms=None).error_code == 0
    assert broker.call(messages.ListConfigResourcesRequest(resource_types=[CLIENT_METRICS]), 1).config_resources == []


@pytest.mark.parametrize(
    ("configs", "error", "text"),
    [
        ({"interval_ms": "50"}, ErrorCode.INVALID_CONFIG, "100 to 3600000"),
        ({"metric": "x"}, ErrorCode.INVALID_CONFIG, "did you mean 'metrics'"),
        ({"match": "client_idd=x"}, ErrorCode.INVALID_CONFIG, "did you mean 'client_id'"),
        ({"match": "client_id"}, ErrorCode.INVALID_CONFIG, "Illegal client matching pattern"),
        ({"match": "client_id=("}, ErrorCode.INVALID_CONFIG, "Illegal client matching pattern"),
        ({"match": "client_id=(?=a)b"}, ErrorCode.INVALID_CONFIG, "invalid perl operator"),
    ],
)
def test_what_is_no_subscription_is_refused(broker: SimulatedBroker, configs: Any, error: ErrorCode, text: str) -> None:
    answer = subscribe(broker, "sub", **configs)
    assert answer.error_code == error
    assert text in answer.error_message
    assert subscribe(broker, "", metrics="*").error_code == ErrorCode.INVALID_REQUEST


def test_without_a_subscription_nothing_is_asked_for(broker: SimulatedBroker) -> None:
    asked = ask(broker)
    assert (asked.error_code, asked.requested_metrics, asked.push_interval_ms) == (0, [], 300_000)
    assert asked.client_instance_id != NOBODY
    assert asked.accepted_compression_types == [4, 3, 1, 2]
    assert asked.telemetry_max_bytes == 1_048_576


def test_clients_are_told_of_telemetry_while_somebody_subscribes(broker: SimulatedBroker) -> None:
    def told() -> set[int]:
        return {each.api_key for each in broker.call(messages.ApiVersionsRequest(), 0).api_keys} & {71, 72}

    assert told() == set(), "a client that knows of it asks at once, and tells its user"
    subscribe(broker, "one", metrics="a.")
    assert told() == {71, 72}


def test_subscriptions_that_fit_are_joined(broker: SimulatedBroker) -> None:
    subscribe(broker, "one", metrics="a.,b.", interval_ms="5000", match="client_id=te.*")
    subscribe(broker, "two", metrics="b.,c.", interval_ms="3000", match="client_source_address=here,client_software_name=")
    assert ask(broker).requested_metrics == ["a.", "b."], "the second was refused: a selector without an expression"
    subscribe(broker, "two", metrics="b.,c.", interval_ms="3000", match="client_source_address=here")
    subscribe(broker, "other", metrics="d.", match="client_id=nobody")
    joined = ask(broker)
    assert (joined.requested_metrics, joined.push_interval_ms) == (["a.", "b.", "c."], 3000)
    subscribe(broker, "all", metrics="*")
    assert ask(broker).requested_metrics == ["*"]


def test_what_a_connection_told_of_its_software_counts(broker: SimulatedBroker) -> None:
    subscribe(broker, "java", metrics="j.", match="client_software_name=apache-kafka-java,client_software_version=4\\..*")
    assert ask(broker).requested_metrics == []
    tell = messages.ApiVersionsRequest(client_software_name="apache-kafka-java", client_software_version="4.3.1")
    assert broker.call(tell, 3).error_code == 0
    assert ask(broker).requested_metrics == ["j."]
    broker.handlers.connection_closed(1)
    assert broker.core.telemetry.client_count == 0
    assert ask(broker).requested_metrics == []
    bad = messages.ApiVersionsRequest(client_software_name="not a name!", client_software_version="1")
    assert broker.call(bad, 3).error_code == ErrorCode.INVALID_REQUEST


def test_a_client_pushes_once_per_interval(broker: SimulatedBroker) -> None:
    subscribe(broker, "sub", metrics="*", interval_ms="1000")
    asked = ask(broker)
    assert push(broker, asked) == 0, "at once after it asked"
    assert push(broker, asked) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert ask(broker, asked.client_instance_id).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    broker.time.advance(1000)
    assert push(broker, asked) == 0
    counts = broker.core.telemetry.counts
    assert (counts.pushed, counts.pushed_bytes) == (2, 8)
    assert counts.refused == {"THROTTLING_QUOTA_EXCEEDED": 2}


def test_a_changed_subscription_is_told_at_once(broker: SimulatedBroker) -> None:
    subscribe(broker, "sub", metrics="a.")
    before = ask(broker)
    subscribe(broker, "sub", metrics="b.")
    assert push(broker, before) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    after = ask(broker, before.client_instance_id)
    assert (after.error_code, after.requested_metrics, after.client_instance_id) == (0, ["b."], before.client_instance_id)
    assert after.subscription_id != before.subscription_id
    assert push(broker, after) == 0


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"client_instance_id": NOBODY}, ErrorCode.INVALID_REQUEST),
        ({"client_instance_id": (1).to_bytes(16, "big")}, ErrorCode.INVALID_REQUEST),
        ({"subscription_id": 12345}, ErrorCode.UNKNOWN_SUBSCRIPTION_ID),
        ({"compression_type": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"metrics": b"x" * 1_048_577}, ErrorCode.TELEMETRY_TOO_LARGE),
    ],
)
def test_what_is_no_push_is_refused_and_counted(broker: SimulatedBroker, fields: Any, error: ErrorCode) -> None:
    subscribe(broker, "sub", metrics="*")
    assert push(broker, ask(broker), **fields) == error
    assert broker.core.telemetry.counts.refused == {error.name: 1}
    assert broker.core.telemetry.counts.pushed == 0


def test_the_last_push_may_be_early_and_is_the_last(broker: SimulatedBroker) -> None:
    subscribe(broker, "sub", metrics="*")
    asked = ask(broker)
    assert push(broker, asked) == 0
    assert push(broker, asked, terminating=True) == 0
    broker.time.advance(400_000)
    assert push(broker, asked) == ErrorCode.INVALID_REQUEST


def test_clients_are_remembered_within_bounds(broker: SimulatedBroker) -> None:
    for number in range(MAX_CLIENTS + 50):
        ask(broker, (number + 10).to_bytes(16, "big"))
    assert broker.core.telemetry.client_count == MAX_CLIENTS
    assert sum(map(len, broker.core.telemetry._by_connection.values())) == MAX_CLIENTS


def scrape(port: int, name: str) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return next((float(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0.0)


def test_librdkafka_pushes_its_metrics(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        http_port = free.getsockname()[1]
    server = ServerProcess(str(tmp_path), [f"logflume.http.listener=127.0.0.1:{http_port}"])
    with Wire(server.port) as wire:
        request = subscription_request("sub", {"metrics": "*", "interval.ms": "100", "match": "client_id=told"})
        assert wire.call(request, 1).responses[0].error_code == 0
    producer = Producer({"bootstrap.servers": server.address, "client.id": "told", "enable.metrics.push": True})
    end_s = time.monotonic() + 30
    while scrape(http_port, "logflume_telemetry_pushes_total") < 2 and time.monotonic() < end_s:
        producer.produce("t", b"x")
        producer.flush(1)
    assert scrape(http_port, "logflume_telemetry_pushes_total") >= 2
    assert scrape(http_port, "logflume_telemetry_received_bytes_total") > 100
    assert scrape(http_port, "logflume_telemetry_clients") >= 1
    assert server.stop() == 0
