"""Every (API, version), both directions, against kio: an independent codec made from Kafka's own definitions."""

import datetime
import io
import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from logflume.log.protocol import codec, frames, messages, tables

from ._protocol_strategies import message

CASES = [
    pytest.param(key, kind, id=f"{name}-{kind}") for name, key in tables.api_names().items() for kind in ("request", "response")
]


def plain(value: Any) -> Any:
    """Turn kio's rich values into the plain ones of the protocol."""
    if isinstance(value, datetime.timedelta):
        return round(value / datetime.timedelta(milliseconds=1))
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    return value.bytes if isinstance(value, uuid.UUID) else value


SHARE_FETCH = 78


def same(ours: Any, theirs: Any) -> bool:
    """Whether two decoded values say the same; structures field by field in order of the declaration."""
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if hasattr(type(ours), "__slots__") and hasattr(type(theirs), "__dataclass_fields__"):
        pairs = [(getattr(ours, name), getattr(theirs, name)) for name in type(ours).__slots__ if hasattr(theirs, name)]
        return all(theirs is None or same(ours, theirs) for ours, theirs in pairs if ours is not None)
    return bool(ours == plain(theirs)) or (ours == bytes(16) and theirs is None) or (ours == -1 and theirs is None)


def fill_records(response: Any) -> None:
    """Put empty records in place of null: kio takes those of a share fetch for never null, which Kafka does not."""
    for topic in response.responses:
        for partition in topic.partitions:
            partition.records = partition.records or b""


@pytest.mark.parametrize(("key", "kind"), CASES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_bytes_are_read_and_written_the_same_by_kio(key: int, kind: str, data: st.DataObject) -> None:
    table = getattr(tables.api(key), kind)
    version = data.draw(st.integers(table.versions.first, table.versions.last), label="version")
    ours = data.draw(message(table, version, is_modest=True), label="message")
    if key == SHARE_FETCH and kind == "response":
        fill_records(ours)
    encoded = b"".join(codec.encode(ours, version, bytearray()))
    schema = (load_request_schema if kind == "request" else load_response_schema)(key, version)

    theirs, size = entity_reader(schema)(encoded, 0)
    assert size == len(encoded)
    written = io.BytesIO()
    entity_writer(schema)(written, theirs)
    assert written.getvalue() == encoded
    decode = codec.decode_request if kind == "request" else codec.decode_response
    decoded = decode(key, version, memoryview(encoded))
    assert same(decoded, theirs)
    assert b"".join(codec.encode(decoded, version, bytearray())) == encoded


@pytest.mark.parametrize(("key", "kind"), CASES)
def test_every_version_has_the_flexibility_of_kio(key: int, kind: str) -> None:
    table = getattr(tables.api(key), kind)
    for version in range(table.versions.first, table.versions.last + 1):
        schema = (load_request_schema if kind == "request" else load_response_schema)(key, version)
        assert schema.__flexible__ == (version in table.flexible), version
        if kind == "response":
            assert ((key, version) in frames.flexible_responses()) == (schema.__header_schema__.__version__ == 1), version
        if kind == "request":
            assert ((key, version) in frames.flexible_requests()) == (schema.__header_schema__.__version__ == 2), version


def test_an_api_versions_request_of_the_newest_version_is_a_frame_that_kio_writes() -> None:
    request = messages.ApiVersionsRequest(client_software_name="me", client_software_version="1")
    frame = b"".join(frames.request_frame(request, 3, 7, "client"))
    schema = load_request_schema(18, 3)
    written = io.BytesIO()
    header = schema.__header_schema__(request_api_key=18, request_api_version=3, correlation_id=7, client_id="client")
    entity_writer(schema.__header_schema__)(written, header)
    entity_writer(schema)(written, schema(client_software_name="me", client_software_version="1"))
    assert frame == len(written.getvalue()).to_bytes(4, "big") + written.getvalue()
