"""Bounds on connections: their number, idle ones, readers that do not read; and what retention drops."""

import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from logflume.log.protocol import frames, messages
from logflume.log.server import start_embedded

from ._embedded import Calls
from ._server_process import ServerProcess
from ._wire import Wire, batch, create_topic_request, fetch_request, produce_request


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 20) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "the condition did not come true in time"
        time.sleep(0.01)


def test_one_connection_too_many_is_refused(tmp_path: Path) -> None:
    server = ServerProcess(str(tmp_path), ["max.connections=3"])
    wires = [Wire(server.port) for _ in range(3)]
    for wire in wires:
        assert wire.call(messages.ApiVersionsRequest(), 2).error_code == 0
    with Wire(server.port) as fourth:
        assert fourth.is_closed_by_broker()
    wires[0].sock.close()

    def is_served() -> bool:
        with Wire(server.port) as wire:
            try:
                return bool(wire.call(messages.ApiVersionsRequest(), 2).error_code == 0)
            except OSError:
                return False

    wait_until(is_served)
    for wire in wires[1:]:
        wire.sock.close()
    assert server.stop() == 0


def test_an_idle_connection_is_closed_and_a_waiting_one_is_not(tmp_path: Path) -> None:
    server = ServerProcess(str(tmp_path), ["connections.max.idle.ms=500"])
    with Wire(server.port) as busy, Wire(server.port) as idle:
        busy.call(create_topic_request("t"), 7)
        busy.send(fetch_request("t", {0: 0}, max_wait_ms=2_500), 12)
        assert idle.is_closed_by_broker()
        _, response = busy.receive(messages.FetchRequest, 12)
        assert response.responses[0].partitions[0].error_code == 0
    assert server.stop() == 0


def test_a_client_that_does_not_read_costs_little_and_blocks_nobody(server: ServerProcess, topic: str) -> None:
    assert server.process is not None
    process = psutil.Process(server.process.pid)
    with Wire(server.port) as wire:
        wire.call(create_topic_request(topic), 7)
        for _ in range(40):
            wire.call(produce_request(topic, batch(bytes(900_000))), 9)
    before = process.memory_info().rss
    request = b"".join(
        frames.request_frame(fetch_request(topic, {0: 0}, max_bytes=50_000_000, partition_max_bytes=50_000_000), 12, 1, "x")
    )
    lazy = socket.create_connection(("127.0.0.1", server.port))
    lazy.settimeout(0.2)
    with pytest.raises(TimeoutError):
        lazy.sendall(request * 200_000)
    with Wire(server.port) as wire:
        assert wire.call(messages.MetadataRequest(topics=[]), 12).cluster_id
    assert process.memory_info().rss - before < 60_000_000
    lazy.close()


def test_a_large_request_arrives_in_pieces(server: ServerProcess, topic: str) -> None:
    with Wire(server.port) as wire:
        wire.call(create_topic_request(topic, max_message_bytes="20000000"), 7)
        raw = b"".join(frames.request_frame(produce_request(topic, batch(bytes(9_000_000))), 9, 3, "x"))
        for start in range(0, len(raw), 100_003):
            wire.sock.sendall(raw[start : start + 100_003])
        correlation_id, response = wire.receive(messages.ProduceRequest, 9)
        assert (correlation_id, response.responses[0].partition_responses[0].error_code) == (3, 0)
        response = wire.call(fetch_request(topic, {0: 0}), 12)
        assert len(response.responses[0].partitions[0].records) > 9_000_000


def test_a_request_larger_than_the_limit_is_refused_by_its_size(tmp_path: Path) -> None:
    server = ServerProcess(str(tmp_path), ["socket.request.max.bytes=100000"])
    with Wire(server.port) as wire:
        wire.sock.sendall(struct.pack(">i", 100_001))
        assert wire.is_closed_by_broker()
    assert server.stop() == 0


def test_retention_drops_old_segments_in_the_background(tmp_path: Path) -> None:
    with start_embedded(str(tmp_path), configs={"log.retention.check.interval.ms": "50"}) as broker:
        call = Calls(broker)
        call.create("old", retention_ms="1000", segment_bytes="1000")
        for _ in range(5):
            call.produce("old", batch(bytes(700), timestamp_ms=1_600_000_000_000))

        def start_offset() -> int:
            request = messages.ListOffsetsRequest
            partition = request.ListOffsetsPartition(partition_index=0, timestamp=-2)
            asked = request(topics=[request.ListOffsetsTopic(name="old", partitions=[partition])])
            return int(call(asked, 7).topics[0].partitions[0].offset)

        wait_until(lambda: start_offset() >= 4)
