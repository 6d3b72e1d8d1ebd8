"""What a hostile or broken client may send: the broker closes that connection or answers an error, and serves on."""

import random
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logflume.log.protocol import ErrorCode, frames, messages

from ._server_process import ServerProcess
from ._wire import Wire, batch, create_topic_request, produce_request


@pytest.fixture(autouse=True)
def _still_serves(server: ServerProcess) -> None:
    with Wire(server.port) as wire:
        assert wire.call(messages.MetadataRequest(topics=[]), 12).cluster_id


def assert_serves(server: ServerProcess) -> None:
    with Wire(server.port) as wire:
        assert wire.call(messages.ApiVersionsRequest(), 2).error_code == 0


@pytest.mark.parametrize("size", [-1, 0, 7, 2**31 - 1, 104_857_601, -(2**31)])
def test_a_frame_size_that_cannot_be_closes_the_connection(server: ServerProcess, size: int) -> None:
    with Wire(server.port) as wire:
        wire.sock.sendall(struct.pack(">i", size) + b"x" * 20)
        assert wire.is_closed_by_broker()
    assert_serves(server)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(garbage=st.binary(min_size=8, max_size=300))
def test_garbage_in_a_frame_is_survived(server: ServerProcess, garbage: bytes) -> None:
    with Wire(server.port) as wire:
        wire.sock.sendall(struct.pack(">i", len(garbage)) + garbage)
        wire.sock.shutdown(1)
        while wire.sock.recv(65536):
            pass
    assert_serves(server)


def test_a_frame_that_never_ends_costs_little(server: ServerProcess) -> None:
    import psutil

    assert server.process is not None
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    wires = [Wire(server.port) for _ in range(20)]
    for wire in wires:
        wire.sock.sendall(struct.pack(">i", 100_000_000) + b"x" * 100)
    assert_serves(server)
    assert process.memory_info().rss - before < 30_000_000
    for wire in wires:
        wire.sock.close()


def test_requests_cut_at_every_byte_are_answered_once_complete(server: ServerProcess) -> None:
    raw = b"".join(frames.request_frame(messages.MetadataRequest(topics=[]), 12, 77, "cut"))
    for cut in range(1, len(raw)):
        with Wire(server.port) as wire:
            wire.sock.sendall(raw[:cut])
            wire.sock.sendall(raw[cut:])
            assert wire.receive(messages.MetadataRequest, 12)[0] == 77


def test_an_unknown_api_or_version_closes_the_connection(server: ServerProcess) -> None:
    for key, version in ((999, 0), (0, 99), (0, 2), (3, -1), (4, 0)):
        with Wire(server.port) as wire:
            wire.sock.sendall(struct.pack(">ihhih", 10, key, version, 1, -1))
            assert wire.is_closed_by_broker(), (key, version)


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(server: ServerProcess) -> None:
    with Wire(server.port) as wire:
        wire.sock.sendall(struct.pack(">ihhih", 10, 18, 55, 1234, -1))
        frame = memoryview(wire.receive_frame())
        assert frames.correlation_id(frame) == 1234
        response = frames.decode_response(frame, 18, 0)
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert {each.api_key for each in response.api_keys} >= {0, 1, 2, 3, 18}
        assert wire.call(messages.ApiVersionsRequest(), 2).error_code == 0, "the connection goes on"


@pytest.mark.parametrize("version", [10, 11, 12, 13])
def test_an_unknown_topic_id_is_answered_in_every_version(server: ServerProcess, version: int) -> None:
    request = messages.MetadataRequest
    with Wire(server.port) as wire:
        asked = request(topics=[request.MetadataRequestTopic(name=None if version > 11 else "", topic_id=b"?" * 16)])
        (found,) = wire.call(asked, version).topics
        assert found.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_pipelined_requests_are_answered_in_order(server: ServerProcess, topic: str) -> None:
    with Wire(server.port) as wire:
        wire.call(create_topic_request(topic), 7)
        for i in range(300):
            if i % 3:
                wire.send(messages.MetadataRequest(topics=[]), 12, correlation_id=i)
            else:
                wire.send(produce_request(topic, batch(b"v")), 9, correlation_id=i)
        for i in range(300):
            kind, version = (messages.MetadataRequest, 12) if i % 3 else (messages.ProduceRequest, 9)
            assert wire.receive(kind, version)[0] == i


def test_a_topic_deleted_under_its_producer_leaves_nobody_waiting(server: ServerProcess, topic: str) -> None:
    with Wire(server.port) as wire:
        for _ in range(20):
            wire.call(create_topic_request(topic), 7)
            requests = [(produce_request(topic, GOOD), 9), (messages.DeleteTopicsRequest(topic_names=[topic]), 5)]
            raw = [b"".join(frames.request_frame(message, version, 1, "wire")) for message, version in requests]
            wire.sock.sendall(raw[0] * 3 + raw[1] + raw[0])
            for _ in range(3):
                (answer,) = wire.receive(messages.ProduceRequest, 9)[1].responses[0].partition_responses
                assert answer.error_code in (0, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            assert wire.receive(messages.DeleteTopicsRequest, 5)[1].responses[0].error_code == 0
            (answer,) = wire.receive(messages.ProduceRequest, 9)[1].responses[0].partition_responses
            assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _broken(raw: bytes, position: int, value: bytes) -> bytes:
    return raw[:position] + value + raw[position + len(value) :]


GOOD = batch(b"value" * 10)
BROKEN_BATCHES = {
    "checksum": (_broken(GOOD, 17, b"\0\0\0\0"), {ErrorCode.CORRUPT_MESSAGE}),
    "flipped bit in a record": (_broken(GOOD, 70, bytes([GOOD[70] ^ 1])), {ErrorCode.CORRUPT_MESSAGE}),
    "magic 1": (_broken(GOOD, 16, b"\1"), {ErrorCode.INVALID_RECORD, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT}),
    "magic 3": (_broken(GOOD, 16, b"\3"), {ErrorCode.INVALID_RECORD, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT}),
    "length beyond the end": (_broken(GOOD, 8, struct.pack(">i", len(GOOD))), {ErrorCode.CORRUPT_MESSAGE}),
    "negative length": (_broken(GOOD, 8, struct.pack(">i", -5)), {ErrorCode.CORRUPT_MESSAGE}),
    "cut short": (GOOD[:-3], {ErrorCode.CORRUPT_MESSAGE}),
    "only a header": (GOOD[:61], {ErrorCode.CORRUPT_MESSAGE}),
    "half a header": (GOOD[:30], {ErrorCode.CORRUPT_MESSAGE}),
    "two batches": (GOOD + GOOD, {ErrorCode.INVALID_RECORD}),
    "nothing": (b"", {ErrorCode.INVALID_RECORD}),
    "null": (None, {ErrorCode.INVALID_RECORD}),
    "count of a control batch": (batch(b"v", is_control=True), {ErrorCode.INVALID_RECORD}),
}


@pytest.mark.parametrize("name", BROKEN_BATCHES)
def test_a_broken_batch_is_refused_and_the_good_one_beside_it_kept(server: ServerProcess, topic: str, name: str) -> None:
    broken, codes = BROKEN_BATCHES[name]
    with Wire(server.port) as wire:
        wire.call(create_topic_request(topic, 2), 7)
        response = wire.call(produce_request(topic, broken, GOOD), 9)
        first, second = response.responses[0].partition_responses
        assert first.error_code in codes, first
        assert first.base_offset == -1
        assert first.error_message
        assert (second.error_code, second.base_offset) == (0, 0)


@pytest.mark.parametrize("count", [0, 2, 2**31 - 1, -1])
def test_a_count_that_lies_is_refused(server: ServerProcess, topic: str, count: int) -> None:
    from logflume.log.batch.header import seal

    raw = bytearray(GOOD)
    struct.pack_into(">i", raw, 57, count)
    seal(raw, position=0, size_bytes=len(raw))
    with Wire(server.port) as wire:
        wire.call(create_topic_request(topic), 7)
        (answer,) = wire.call(produce_request(topic, bytes(raw)), 9).responses[0].partition_responses
        assert answer.error_code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)


def test_a_decompression_bomb_is_refused_where_the_broker_looks_inside(server: ServerProcess, topic: str) -> None:
    bomb = batch(bytes(300_000_000), codec=4)
    assert len(bomb) < 100_000
    with Wire(server.port) as wire:
        wire.call(create_topic_request(topic, cleanup_policy="compact"), 7)
        (answer,) = wire.call(produce_request(topic, bomb), 9).responses[0].partition_responses
        assert answer.error_code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.CORRUPT_MESSAGE)
        assert wire.call(produce_request(topic, GOOD), 9).responses[0].partition_responses[0].error_code == 0


def test_acks_0_answers_nothing_and_an_error_closes(server: ServerProcess, topic: str) -> None:
    with Wire(server.port) as wire:
        wire.call(create_topic_request(topic), 7)
        wire.send(produce_request(topic, GOOD, acks=0), 9, correlation_id=5)
        wire.send(messages.MetadataRequest(topics=[]), 12, correlation_id=6)
        assert wire.receive(messages.MetadataRequest, 12)[0] == 6
        wire.send(produce_request("no-such-topic", GOOD, acks=0), 9)
        assert wire.is_closed_by_broker()


def test_random_bytes_after_a_good_handshake(server: ServerProcess) -> None:
    rng = random.Random(7)
    for _ in range(20):
        with Wire(server.port) as wire:
            wire.call(messages.ApiVersionsRequest(), 2)
            wire.sock.sendall(rng.randbytes(500))
            wire.sock.shutdown(1)
            while wire.sock.recv(65536):
                pass
    assert_serves(server)
