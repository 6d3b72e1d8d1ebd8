"""Frames that mean harm, from one seed: noise, requests with any values, requests with broken bytes, batches that lie."""

from __future__ import annotations

import random
import struct
from typing import Any

from crc32c import crc32c

from logflume.log.batch import encode_batch
from logflume.log.errors import LogflumeError
from logflume.log.protocol import frames, messages, tables
from logflume.log.protocol.tables import Field, Struct

TOPIC = "fuzzed"
NAMES = (TOPIC, "fuzzed-2", "group-f", "consumer", "range", "", "x" * 300, "é", "__consumer_offsets", "_logflume-x", "1")
NUMBERS = (-1, 0, 1, 2, 3, 5, 100, 127, 32_767, 2**31 - 1, -(2**31), 2**63 - 1)
_LIMITS = {"int8": 8, "int16": 16, "uint16": 17, "int32": 32, "uint32": 33, "int64": 64}
_COUNTS = ("num_partitions", "count", "replication_factor")
_CRC_AT, _CRC_FROM = 17, 21


def any_frame(rng: random.Random) -> bytes:
    """Return one frame with its length in front."""
    kind = rng.random()
    if kind < 0.1:
        noise = rng.randbytes(rng.randrange(8, 300))
        return struct.pack(">i", len(noise)) + noise
    if kind < 0.3:
        return _produce_frame(rng)
    frame = _request_frame(rng)
    return frame if kind < 0.6 else _broken(rng, frame)


def _request_frame(rng: random.Random) -> bytes:
    """Return a well-formed request of any API and version, with any values."""
    api = tables.api(rng.choice(list(tables.api_names().values())))
    table = api.request
    version = rng.randint(table.versions.first, table.versions.last)
    top = messages.message_class(table.name)
    message = _struct(rng, table, table.top, top, version)
    try:
        return b"".join(frames.request_frame(message, version, rng.randrange(2**31), "fuzz"))
    except (LogflumeError, struct.error, ValueError):  # a value that this field cannot hold
        return _request_frame(rng)


def _struct(rng: random.Random, table: Any, shape: Struct, cls: Any, version: int) -> Any:
    return cls(**{field.name: _value(rng, table, field, version) for field in shape.fields if version in field.versions})


def _value(rng: random.Random, table: Any, field: Field, version: int) -> Any:
    if version in field.nullable and rng.random() < 0.2:
        return None
    if field.is_array:
        return [_one(rng, table, field, version) for _ in range(rng.choice((0, 1, 1, 2)))]
    return _one(rng, table, field, version)


def _one(rng: random.Random, table: Any, field: Field, version: int) -> Any:
    kind = field.type_name
    if kind in table.structs:
        return _struct(rng, table, table.structs[kind], getattr(messages.message_class(table.name), kind), version)
    if field.name in _COUNTS:
        return rng.choice((-1, 0, 1, 2))
    if kind in _LIMITS:
        bits = _LIMITS[kind]
        low, high = (0, 2 ** (bits - 1) - 1) if kind.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return min(max(rng.choice(NUMBERS), low), high)
    if kind == "string":
        return rng.choice(NAMES)
    if kind == "records":
        return _lying_batch(rng)
    if kind == "bytes":
        return rng.randbytes(rng.randrange(40))
    if kind == "uuid":
        return bytes(16) if rng.random() < 0.5 else rng.randbytes(16)
    return rng.random() < 0.5 if kind == "bool" else rng.choice((0.0, -1.0, 1e308))


def _produce_frame(rng: random.Random) -> bytes:
    request = messages.ProduceRequest
    data = request.PartitionProduceData(index=rng.randrange(2), records=_lying_batch(rng))
    message = request(
        acks=rng.choice((-1, 0, 1)), timeout_ms=1000, topic_data=[request.TopicProduceData(name=TOPIC, partition_data=[data])]
    )
    return b"".join(frames.request_frame(message, 9, rng.randrange(2**31), "fuzz"))


def _lying_batch(rng: random.Random) -> bytes:
    """Return a batch, sound or with broken bytes; mostly under a checksum that fits them."""
    count = rng.randrange(1, 20)
    values = [rng.randbytes(rng.randrange(50)) for _ in range(count)]
    batch = bytearray(encode_batch([b"k"] * count, values, [1_700_000_000_000] * count))
    for _ in range(rng.choice((0, 1, 1, 2, 8))):
        _break_bytes(rng, batch)
    if rng.random() < 0.2:
        del batch[rng.randrange(len(batch)) :]
    if rng.random() < 0.2:
        batch += rng.randbytes(rng.randrange(1, 100))
    if rng.random() < 0.8 and len(batch) > _CRC_FROM:
        batch[8:12] = struct.pack(">i", len(batch) - 12)
        batch[_CRC_AT:_CRC_FROM] = struct.pack(">I", crc32c(memoryview(batch)[_CRC_FROM:]))
    return bytes(batch)


def _broken(rng: random.Random, frame: bytes) -> bytes:
    """Return a frame with broken bytes behind its length, which fits mostly."""
    body = bytearray(frame[4:])
    for _ in range(rng.choice((1, 1, 2, 5))):
        _break_bytes(rng, body)
    if rng.random() < 0.3:
        del body[rng.randrange(8, max(len(body), 9)) :]
    size = len(body) if rng.random() < 0.9 else rng.choice((0, 7, -1, 2**31 - 1, len(body) + 5))
    return struct.pack(">i", size) + bytes(body)


def _break_bytes(rng: random.Random, data: bytearray) -> None:
    if not data:
        return
    at = rng.randrange(len(data))
    match rng.randrange(4):
        case 0:
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            data[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00\x00\x00\x00"))
        case 2:
            data[at:at] = data[at : at + rng.randrange(1, 20)]
        case _:
            data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
