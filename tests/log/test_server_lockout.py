"""Nothing that a client sets or does locks the owner of the data out, and nobody's rubbish fills the logs."""

import logging
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from logflume.log import connect
from logflume.log.broker.complaints import MAX_ADDRESSES, Complaints
from logflume.log.broker.settings.lookup import BrokerConfig
from logflume.log.broker.testing.simulated import SimulatedTime
from logflume.log.protocol import ErrorCode, KafkaError, messages
from logflume.log.server import EmbeddedBroker, start_embedded
from logflume.log.server.addresses import parse_address

from ._wire import Wire

BROKER, SET = 4, 0
LOCKOUTS = [
    {"max.connections": "0"},
    {"max.connections.per.ip": "0"},
    {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "10.0.0.1:0"},
    {"max.connection.creation.rate": "0"},
    {"logflume.request.receive.timeout.ms": "1"},
    {"logflume.response.send.timeout.ms": "1"},
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    path = tmp_path_factory.mktemp("lockout")
    with start_embedded(str(path), listen=[parse_address("127.0.0.1:0")]) as started:
        yield started


@pytest.mark.parametrize("name", ["", "1"])
@pytest.mark.parametrize("configs", LOCKOUTS, ids=str)
def test_settings_that_lock_everybody_out_are_refused(broker: EmbeddedBroker, configs: dict[str, str], name: str) -> None:
    request = messages.IncrementalAlterConfigsRequest
    asked = [request.AlterableConfig(name=key, config_operation=SET, value=value) for key, value in configs.items()]
    resource = request.AlterConfigsResource(resource_type=BROKER, resource_name=name, configs=asked)
    with Wire(broker.addresses[0].port) as wire:
        answer = wire.call(request(resources=[resource]), 1).responses[0]
        assert (answer.error_code, "expected" in answer.error_message) == (ErrorCode.INVALID_CONFIG, True)
    with pytest.raises(KafkaError, match="INVALID_CONFIG"):
        BrokerConfig(configs)


def test_nobody_may_connect_but_a_list_of_addresses() -> None:
    BrokerConfig({"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "10.0.0.1:0,10.0.0.2:1"})


def test_the_owner_s_socket_is_not_counted(tmp_path: Path) -> None:
    limits = {"max.connections": "2", "max.connections.per.ip": "2", "max.connection.creation.rate": "2"}
    with start_embedded(str(tmp_path), listen=[parse_address("127.0.0.1:0")], configs=limits) as broker:
        port, own = broker.addresses[0].port, str(broker.addresses[-1])
        with Wire(port) as first, Wire(port) as second, Wire(port) as third:
            for wire in (first, second):
                assert wire.call(messages.ApiVersionsRequest(), 2).error_code == 0
            for _ in range(5):
                with connect(own) as log:
                    assert log.admin().list_topics() == []
            assert third.is_closed_by_broker()
            assert first.call(messages.ApiVersionsRequest(), 2).error_code == 0


@pytest.mark.parametrize(
    ("address", "configs", "said"),
    [
        ("0.0.0.0:0", {}, "whoever reaches it may do everything"),
        ("[::]:0", {}, "whoever reaches it may do everything"),
        (
            "0.0.0.0:0",
            {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"},
            "is User:ANONYMOUS to the ACLs",
        ),
        ("127.0.0.1:0", {}, None),
        ("localhost:0", {}, None),
    ],
)
def test_a_listener_that_others_reach_is_warned_of_at_each_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, address: str, configs: dict[str, str], said: str | None
) -> None:
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING), start_embedded(str(tmp_path), listen=[parse_address(address)], configs=configs):
            warned = [record.getMessage() for record in caplog.records if "authentication" in record.getMessage()]
        assert len(warned) == (said is not None)
        assert said is None or said in warned[0]


def test_bad_frames_are_one_line_a_second_and_address(broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    began_s = time.monotonic()
    with caplog.at_level(logging.WARNING, "logflume.server"):
        for source in ("127.0.0.1", "127.0.0.2"):
            for _ in range(100):
                with socket.create_connection(
                    ("127.0.0.1", broker.addresses[0].port), timeout=20, source_address=(source, 0)
                ) as sock:
                    sock.sendall(struct.pack(">i", -5))
                    assert sock.recv(1) == b""
    for source in ("127.0.0.1", "127.0.0.2"):
        lines = [record for record in caplog.records if f"connection of {source}:" in record.getMessage()]
        assert 1 <= len(lines) <= time.monotonic() - began_s + 1


def test_complaints_are_counted_and_told_later(caplog: pytest.LogCaptureFixture) -> None:
    clock = SimulatedTime()
    complaints, log = Complaints(clock), logging.getLogger("test.complaints")
    with caplog.at_level(logging.WARNING, "test.complaints"):
        for _ in range(5):
            complaints.say(log, logging.WARNING, "a", "%s is wrong", "a")
        complaints.say(log, logging.WARNING, "b", "%s is wrong", "b")
        clock.advance(1000)
        complaints.say(log, logging.WARNING, "a", "%s is wrong", "a")
        complaints.say(log, logging.WARNING, "a", "%s is wrong", "a")
        complaints.settle(log)
        clock.advance(1000)
        complaints.settle(log)
        complaints.settle(log)
    assert [record.getMessage() for record in caplog.records] == [
        "a is wrong",
        "b is wrong",
        "a is wrong (4 more lines about a were left out before)",
        "1 more lines about a were left out",
    ]
    assert complaints.left_out == 5


def test_complaints_about_many_addresses_take_bounded_memory(caplog: pytest.LogCaptureFixture) -> None:
    complaints, log = Complaints(SimulatedTime()), logging.getLogger("test.complaints")
    with caplog.at_level(logging.WARNING, "test.complaints"):
        for address in range(MAX_ADDRESSES + 500):
            complaints.say(log, logging.WARNING, str(address), "wrong")
            complaints.say(log, logging.WARNING, str(address), "wrong")
    assert complaints.left_out == MAX_ADDRESSES + 500
    assert sum("were left out" in record.getMessage() for record in caplog.records) == 500
