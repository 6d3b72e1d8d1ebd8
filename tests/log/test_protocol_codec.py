"""The codec on its own: full ranges of values, zero-copy records, bounds on everything untrusted, frames."""

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logflume.log import InvalidInput, KafkaError, UnknownName
from logflume.log.errors import DecodeError
from logflume.log.protocol import ErrorCode, codec, error_of, frames, messages, tables
from logflume.log.protocol.stubs import stub_source

from ._protocol_strategies import message

APIS = [pytest.param(key, id=name) for name, key in tables.api_names().items()]


def test_the_types_of_messages_are_those_of_the_tables() -> None:
    """When it fails: python -m logflume.log.protocol.stubs"""
    assert (Path(messages.__file__).with_suffix(".pyi")).read_text("utf-8") == stub_source()


def encoded(value: Any, version: int) -> bytes:
    return b"".join(codec.encode(value, version, bytearray()))


@pytest.mark.parametrize("key", APIS)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_any_message_comes_back_as_it_was(key: int, data: st.DataObject) -> None:
    table = tables.api(key).response if data.draw(st.booleans()) else tables.api(key).request
    version = data.draw(st.integers(table.versions.first, table.versions.last))
    value = data.draw(message(table, version))
    decode = codec.decode_request if table is tables.api(key).request else codec.decode_response
    raw = encoded(value, version)
    assert encoded(decode(key, version, memoryview(raw)), version) == raw


@pytest.mark.parametrize("key", APIS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_broken_bytes_are_refused_or_read_never_crash(key: int, data: st.DataObject) -> None:
    table = tables.api(key).request
    version = data.draw(st.integers(table.versions.first, table.versions.last))
    raw = bytearray(encoded(data.draw(message(table, version)), version))
    for _ in range(data.draw(st.integers(1, 3))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    del raw[data.draw(st.integers(0, len(raw))) :]
    try:
        codec.decode_request(key, version, memoryview(raw))
    except DecodeError as error:
        assert f"API key {key} version {version}" in str(error)  # noqa: PT017


@given(garbage=st.binary(max_size=200))
def test_a_garbage_header_is_a_decode_error(garbage: bytes) -> None:
    try:
        header, pos = frames.decode_request_header(memoryview(garbage))
    except DecodeError:
        return
    assert pos <= len(garbage)
    assert header.api_key == struct.unpack(">h", garbage[:2])[0]


@pytest.mark.parametrize("key", APIS)
def test_every_truncation_of_a_request_is_refused(key: int) -> None:
    table = tables.api(key).request
    for version in (table.versions.first, table.versions.last):
        raw = encoded(messages.message_class(table.name)(), version)
        for size in range(len(raw)):
            with pytest.raises(DecodeError):
                codec.decode_request(key, version, memoryview(raw[:size]))
        assert encoded(codec.decode_request(key, version, memoryview(raw + b"more")), version) == raw


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [
        (3, 1, b"\x7f\xff\xff\xff"),  # 2^31-1 topics
        (3, 12, b"\xff\xff\xff\xff\x0f"),  # 2^32-2 topics as a varint
        (3, 12, b"\xff\xff\xff\xff\xff\xff\x01"),  # a varint that does not end
        (19, 2, b"\x7f\xff\xff\xff" + bytes(100)),
        (0, 3, b"\xff\xff\0\1\0\0\0\0\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\x7f\xff\xff\xff"),  # records of 2^31-1 bytes
        (18, 3, b"\1\1\xff\xff\xff\xff\x0f"),  # 2^32-1 tagged fields
    ],
)
def test_a_length_that_lies_costs_no_memory(key: int, version: int, body: bytes) -> None:
    codec.decode_request(12, 4, memoryview(encoded(messages.HeartbeatRequest(), 4)))
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            codec.decode_request(key, version, memoryview(body))
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_records_are_handed_through_without_a_copy() -> None:
    records = bytes(100_000)
    request = messages.ProduceRequest(
        topic_data=[
            messages.ProduceRequest.TopicProduceData(
                name="t", partition_data=[messages.ProduceRequest.PartitionProduceData(index=1, records=records)]
            )
        ]
    )
    parts = frames.request_frame(request, 9, 5, None)
    assert any(part is records for part in parts)
    raw = b"".join(parts)
    assert struct.unpack_from(">i", raw)[0] == len(raw) - 4
    frame = memoryview(raw)[4:]
    header, pos = frames.decode_request_header(frame)
    assert header == frames.RequestHeader(0, 9, 5, None)
    decoded = codec.decode_request(0, 9, frame[pos:])
    assert decoded.topic_data[0].partition_data[0].records.obj is raw


def test_a_response_of_api_versions_is_read_whatever_version_it_has() -> None:
    response = messages.ApiVersionsResponse(api_keys=[messages.ApiVersionsResponse.ApiVersion(api_key=18, max_version=4)])
    for version in range(5):
        frame = b"".join(frames.response_frame(response, version, 9))[4:]
        assert frames.correlation_id(memoryview(frame)) == 9
        assert frames.decode_response(memoryview(frame), 18, version) == response
    refused = b"".join(frames.unsupported_api_versions_frame(9, response))[4:]
    decoded = frames.decode_response(memoryview(refused), 18, 4)
    assert decoded.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert decoded.api_keys == response.api_keys


def test_bytes_after_a_response_are_refused() -> None:
    raw = encoded(messages.HeartbeatResponse(), 4)
    with pytest.raises(DecodeError, match=f"expected {len(raw)} bytes, found {len(raw) + 1}"):
        codec.decode_response(12, 4, memoryview(raw + b"\0"))


def test_values_that_do_not_fit_are_the_callers_mistake() -> None:
    with pytest.raises(InvalidInput, match="HeartbeatRequest version 4"):
        encoded(messages.HeartbeatRequest(generation_id=2**31), 4)
    with pytest.raises(InvalidInput):
        encoded(messages.HeartbeatRequest(group_id=None), 4)
    with pytest.raises(KafkaError, match="UNSUPPORTED_VERSION"):
        encoded(messages.HeartbeatRequest(), 5)
    with pytest.raises(KafkaError, match="API key 999"):
        codec.decode_request(999, 0, memoryview(b""))
    with pytest.raises(UnknownName, match="did you mean 'Heartbeat'"):
        messages.message_class("HeartbaetRequest")
    with pytest.raises(TypeError):
        messages.HeartbeatRequest(grup_id="g")


def test_defaults_are_new_objects_each_time() -> None:
    first, second = messages.MetadataResponse(), messages.MetadataResponse()
    first.topics.append(1)
    assert second.topics == []
    assert first != second
    assert messages.HeartbeatRequest(group_id="g") == messages.HeartbeatRequest(group_id="g")


def test_messages_inside_messages() -> None:
    subscription = messages.ConsumerProtocolSubscription(topics=["a"], generation_id=4, rack_id="r")
    for version, generation in ((0, -1), (3, 4)):
        decoded = codec.decode_data("ConsumerProtocolSubscription", version, codec.encode_data(subscription, version))
        assert (decoded.topics, decoded.generation_id) == (["a"], generation)


def test_the_error_table() -> None:
    assert [code.value for code in ErrorCode] == list(range(-1, 134))
    assert error_of(3).is_retriable
    assert error_of(30_000) is ErrorCode.UNKNOWN_SERVER_ERROR
    error = KafkaError(3, topic="t", partition=2)
    assert (error.code, error.number, error.is_retriable) == ("UNKNOWN_TOPIC_OR_PARTITION", 3, True)
    assert str(error) == "UNKNOWN_TOPIC_OR_PARTITION 3 (t-2): The topic or partition does not exist here."
