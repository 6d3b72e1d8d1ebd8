"""Starting and stopping: a directory in use, in a newer format, not ours; graceful stop; addresses."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from logflume.log import InvalidInput
from logflume.log.protocol import messages
from logflume.log.server import Address, parse_address, start_embedded

from ._server_process import ServerProcess
from ._wire import Wire, batch, create_topic_request, fetch_request, produce_request


def run_server(data_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "logflume.log.server", "--data", str(data_dir), "--listen", "127.0.0.1:0", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_topics_configs_and_data_are_there_after_a_graceful_restart(tmp_path: Path) -> None:
    server = ServerProcess(str(tmp_path))
    with Wire(server.port) as wire:
        wire.call(create_topic_request("kept", 2, retention_ms="1000000000000"), 7)
        wire.call(create_topic_request("gone"), 7)
        wire.call(messages.DeleteTopicsRequest(topic_names=["gone"]), 5)
        wire.call(produce_request("kept", batch(b"a"), batch(b"b", b"c")), 9)
        before = wire.call(messages.MetadataRequest(topics=None), 12)
    assert server.stop() == 0
    server.start()
    with Wire(server.port) as wire:
        after = wire.call(messages.MetadataRequest(topics=None), 12)
        assert after.topics == before.topics
        assert after.cluster_id == before.cluster_id
        response = wire.call(fetch_request("kept", {0: 0, 1: 0}), 12)
        assert [p.high_watermark for p in response.responses[0].partitions] == [1, 2]
        asked = messages.DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=2, resource_name="kept", configuration_keys=["retention.ms"]
        )
        (config,) = wire.call(messages.DescribeConfigsRequest(resources=[asked]), 4).results[0].configs
        assert (config.value, config.config_source) == ("1000000000000", 1)
    assert server.stop() == 0


def test_a_directory_in_use_is_refused_and_says_by_whom(tmp_path: Path) -> None:
    server = ServerProcess(str(tmp_path))
    try:
        second = run_server(tmp_path)
        assert second.returncode == 1
        assert server.process is not None
        assert str(server.process.pid) in second.stderr
        assert "Traceback" not in second.stderr
    finally:
        server.stop()


def test_metadata_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    ServerProcess(str(tmp_path)).stop()
    path = tmp_path / "cluster.json"
    content = {"version": 99, "producer_id_limit": 0, "broker_configs": {}, "topics": [], "deleting": []}
    path.write_text(json.dumps(content))
    refused = run_server(tmp_path)
    assert refused.returncode == 1
    assert "format version 99" in refused.stderr
    path.write_text("{ half")
    assert "restore it from a backup" in run_server(tmp_path).stderr


def test_a_config_with_a_typo_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    refused = run_server(tmp_path / "new", "--config", "num.partitons=3")
    assert refused.returncode == 1
    assert "did you mean 'num.partitions'" in refused.stderr
    assert not (tmp_path / "new").exists()


def test_a_port_in_use_is_refused(tmp_path: Path, server: ServerProcess) -> None:
    command = [sys.executable, "-m", "logflume.log.server", "--data", str(tmp_path), "--listen", server.address]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert refused.returncode == 1
    assert f"cannot listen on {server.address}" in refused.stderr


def test_an_embedded_broker_is_reached_through_its_socket_and_by_objects(tmp_path: Path) -> None:
    import socket

    with start_embedded(str(tmp_path)) as broker:
        assert broker.submit("CreateTopics", 7, create_topic_request("t")).result(10).topics[0].error_code == 0
        produced = broker.submit("Produce", 9, produce_request("t", batch(b"hello"))).result(10)
        assert produced.responses[0].partition_responses[0].base_offset == 0
        fetched = broker.submit("Fetch", 12, fetch_request("t", {0: 0})).result(10)
        records = fetched.responses[0].partitions[0].records
        assert isinstance(records, memoryview)
        assert b"hello" in bytes(records)
        path = broker.addresses[-1].unix_path
        assert path is not None
        wire = Wire.__new__(Wire)
        wire.sock = socket.socket(socket.AF_UNIX)
        wire.sock.connect(path)
        with wire:
            assert [topic.name for topic in wire.call(messages.MetadataRequest(topics=None), 12).topics] == ["t"]
    with pytest.raises(Exception, match="closed"):
        broker.submit("Metadata", 12, messages.MetadataRequest())
    with start_embedded(str(tmp_path)) as broker:
        assert broker.submit("Fetch", 12, fetch_request("t", {0: 0})).result(10).responses[0].partitions[0].high_watermark == 1


def test_closing_an_embedded_broker_leaves_nobody_waiting(tmp_path: Path) -> None:
    with start_embedded(str(tmp_path)) as broker:
        broker.submit("CreateTopics", 7, create_topic_request("t")).result(10)
        poll = broker.submit("Fetch", 12, fetch_request("t", {0: 0}, max_wait_ms=60_000))
        join = broker.submit("JoinGroup", 3, _join_request("g"))
        other = broker.submit("JoinGroup", 3, _join_request("g", member_id=join.result(10).member_id))
        begin_s = time.monotonic()
    assert time.monotonic() - begin_s < 10
    assert poll.result(0).responses[0].partitions[0].error_code == 0
    assert other.done()


def _join_request(group_id: str, member_id: str = "") -> Any:
    request = messages.JoinGroupRequest
    return request(
        group_id=group_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[request.JoinGroupRequestProtocol(name="range", metadata=b"x")],
    )


def test_a_waiting_long_poll_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    server = ServerProcess(str(tmp_path))
    with Wire(server.port) as wire:
        wire.call(create_topic_request("t"), 7)
        wire.send(fetch_request("t", {0: 0}, max_wait_ms=60_000), 12)
        with Wire(server.port) as other:
            other.call(messages.MetadataRequest(topics=[]), 12)
        begin_s = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begin_s < 10
        assert wire.receive(messages.FetchRequest, 12)[1].responses[0].partitions[0].error_code == 0


def test_a_graceful_stop_answers_what_was_asked(tmp_path: Path) -> None:
    server = ServerProcess(str(tmp_path))
    with Wire(server.port) as wire:
        wire.call(create_topic_request("t"), 7)
        for _ in range(50):
            wire.send(produce_request("t", batch(b"v" * 100)), 9)
        wire.receive(messages.ProduceRequest, 9)
        assert server.stop() == 0
        answered = 1
        while True:
            try:
                answered += wire.receive(messages.ProduceRequest, 9)[1].responses[0].partition_responses[0].error_code == 0
            except ConnectionError:
                break
    server.start()
    with Wire(server.port) as wire:
        (partition,) = wire.call(fetch_request("t", {0: 0}), 12).responses[0].partitions
        assert partition.high_watermark >= answered
    server.stop()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9092", Address("127.0.0.1", 9092)),
        ("[::1]:80", Address("::1", 80)),
        (":0", Address("", 0)),
        ("unix:/tmp/x.sock", Address("unix:/tmp/x.sock", 0)),
    ],
)
def test_addresses(text: str, expected: Address) -> None:
    assert parse_address(text) == expected
    assert parse_address(str(expected)) == expected


@pytest.mark.parametrize("text", ["localhost", "host:port", "h:70000", "unix:", "unix:" + "x" * 200])
def test_addresses_that_cannot_be(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"expected HOST:PORT|107 bytes"):
        parse_address(text)
