"""What no client could read is refused before it is appended; what is acknowledged can be read to its end by every client."""

from __future__ import annotations

import asyncio
import random
import struct
import zlib
from collections.abc import Callable, Iterator

import aiokafka
import confluent_kafka
import pytest
import zstandard

from logflume.log import connect
from logflume.log.batch import compress, encode_batch, parse_header, walk
from logflume.log.batch.header import HEADER_BYTES, LENGTH_OVERHEAD_BYTES, seal
from logflume.log.broker import incoming
from logflume.log.protocol import ErrorCode, messages
from logflume.log.server import start_embedded
from logflume.log.storage import LogConfig

from ._client_tools import read_all
from ._embedded import Calls
from ._server_process import ServerProcess
from ._wire import Wire, batch, create_topic_request, produce_request

SECTION = bytes(batch(b"one", b"two", b"three")[HEADER_BYTES:])
NOW_MS = 1_700_000_000_000


def sealed(section: bytes, *, count: int = 3, attributes: int = 0, size: int | None = None, **at: tuple[str, int, int]) -> bytes:
    """A batch of these bytes under a header that fits, but for what `at` (format, position, value) says, and with a good CRC."""
    out = bytearray(batch(*[b"x"] * count)[:HEADER_BYTES]) + section
    struct.pack_into(">i", out, 8, len(out) - LENGTH_OVERHEAD_BYTES)
    struct.pack_into(">h", out, 21, attributes)
    for form, position, value in at.values():
        struct.pack_into(form, out, position, value)
    seal(out, position=0, size_bytes=len(out))
    return bytes(out)


GZIP = bytes(compress(1, SECTION))
ZSTD = bytes(compress(4, SECTION))
POISON = {
    "bytes that are no records": sealed(b"\xff" * 40),
    "no records at all": sealed(b""),
    "a record missing": sealed(SECTION, count=4),
    "a record too many": sealed(SECTION, count=2),
    "2^31 - 1 records": sealed(SECTION, count_=(">i", 57, 2**31 - 1), delta=(">i", 23, 2**31 - 2)),
    "a delta beyond the count": sealed(SECTION, delta=(">i", 23, 1000)),
    "offset deltas that stand": sealed(SECTION[: len(SECTION) // 3] * 3),
    "a record cut short": sealed(SECTION[:-1]),
    "bytes behind the records": sealed(SECTION + b"\0"),
    "a timestamp of 65 bits": sealed(
        bytes(encode_batch([b"k"] * 3, [b"v"] * 3, [0, 1, 2])[HEADER_BYTES:]), base=(">q", 27, 2**63 - 1), newest=(">q", 35, 0)
    ),
    "random gzip": sealed(random.Random(1).randbytes(200), attributes=1),
    "random snappy": sealed(random.Random(2).randbytes(200), attributes=2),
    "random lz4": sealed(random.Random(3).randbytes(200), attributes=3),
    "random zstd": sealed(random.Random(4).randbytes(200), attributes=4),
    "gzip cut short": sealed(GZIP[:-3], attributes=1),
    "gzip with something behind it": sealed(GZIP + GZIP, attributes=1),
    "zstd cut short": sealed(ZSTD[:-1], attributes=4),
    "zstd with something behind it": sealed(ZSTD + ZSTD, attributes=4),
    "good gzip of bad records": sealed(bytes(compress(1, SECTION + b"\0")), attributes=1),
    "a control batch": sealed(SECTION, attributes=0x20),
    "a delete horizon": sealed(SECTION, attributes=0x40),
    "attributes without a meaning": sealed(SECTION, attributes=0x400),
}


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    with start_embedded(str(tmp_path_factory.mktemp("broker"))) as broker:
        yield Calls(broker)


@pytest.mark.parametrize("name", POISON)
@pytest.mark.parametrize("compression", ["producer", "zstd"])
def test_poison_is_refused_and_leaves_nothing(call: Calls, topic: str, name: str, compression: str) -> None:
    call.create(topic, compression_type=compression)
    (answer,) = call.produce(topic, POISON[name])
    assert answer.error_code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE), answer
    assert call.produce(topic, batch(b"good"))[0].base_offset == 0


def test_log_append_time_is_for_the_broker_to_say(call: Calls, topic: str) -> None:
    call.create(topic)
    assert call.produce(topic, sealed(SECTION, attributes=0x08))[0].error_code == ErrorCode.INVALID_TIMESTAMP


def test_a_newest_timestamp_that_lies_is_set_right(call: Calls, topic: str) -> None:
    """Reads by time rest on it, and retention would keep such a segment for ever or drop it at once."""
    call.create(topic)
    assert call.produce(topic, sealed(SECTION, newest=(">q", 35, NOW_MS + 10**6)))[0].error_code == 0
    request = messages.ListOffsetsRequest
    for time_ms, offset in ((NOW_MS, 0), (NOW_MS + 1, -1)):
        partition = (
            request.ListOffsetsTopic.ListOffsetsPartition if hasattr(request.ListOffsetsTopic, "ListOffsetsPartition") else None
        )
        partition = partition or request.ListOffsetsPartition
        asked = request(
            replica_id=-1,
            topics=[request.ListOffsetsTopic(name=topic, partitions=[partition(partition_index=0, timestamp=time_ms)])],
        )
        assert call(asked, 5).topics[0].partitions[0].offset == offset


def bomb(codec: int, size_bytes: int) -> bytes:
    """One record of so many zeros, compressed: a small batch that unpacks to a lot."""
    section = encode_batch([None], [bytes(size_bytes)], [NOW_MS])[HEADER_BYTES:]
    return sealed(bytes(compress(codec, section)), count=1, attributes=codec)


@pytest.mark.parametrize("codec", [1, 3, 4])
def test_what_unpacks_beyond_measure_is_refused_and_what_is_merely_big_is_taken(call: Calls, topic: str, codec: int) -> None:
    call.create(topic)
    assert call.produce(topic, bomb(codec, 80 << 20))[0].error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert call.produce(topic, bomb(codec, 12 << 20))[0].error_code == 0
    assert call.produce(topic, batch(b"good"))[0].base_offset == 1


def test_what_is_too_large_under_another_compression_is_refused_by_what_it_would_become(call: Calls, topic: str) -> None:
    call.create(topic, compression_type="uncompressed", max_message_bytes="10000")
    assert call.produce(topic, bomb(4, 9_000))[0].error_code == 0
    assert call.produce(topic, bomb(4, 11_000))[0].error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_batches_of_a_producer_stay_in_order_when_only_some_are_checked_elsewhere(call: Calls, topic: str) -> None:
    call.create(topic)
    producer = call(messages.InitProducerIdRequest(transactional_id=None), 4)
    fields = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    batches = [batch(b"%d" % i * (400_000 if i % 3 == 0 else 10), base_sequence=i, **fields) for i in range(30)]
    waiting = [call.broker.submit("Produce", 9, produce_request(topic, each)) for each in batches]
    offsets = [each.result(60).responses[0].partition_responses[0].base_offset for each in waiting]
    assert offsets == list(range(30))


# -- what is acknowledged can be read


def _changed_header(rng: random.Random, made: bytearray) -> None:
    form, at = rng.choice(
        ((">h", 21), (">i", 23), (">q", 27), (">q", 35), (">q", 43), (">h", 51), (">i", 53), (">i", 57), (">i", 8))
    )
    (value,) = struct.unpack_from(form, made, at)
    limit = 1 << (8 * struct.calcsize(form) - 1)
    changed = rng.choice((value + 1, value - 1, value ^ 1 << rng.randrange(15), -1, 0, limit - 1, rng.randrange(limit)))
    struct.pack_into(form, made, at, max(-limit, min(changed, limit - 1)))


def _changed_bytes(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(changed) + 1)
        changed[at : at + rng.randrange(3)] = rng.choice((bytes([rng.randrange(256)]), b"\xff", b"\x80\x00", b"", b"\x01"))
    return bytes(changed)


def _sound(rng: random.Random) -> tuple[bytearray, bytes]:
    """A header and the plain records of a batch that is good."""
    count = rng.choice((1, 2, 5, 40))
    blobs: Callable[[], bytes | None] = lambda: rng.choice((None, b"", rng.randbytes(rng.randrange(90)), b"a" * 300))  # noqa: E731
    made = encode_batch(
        [blobs() for _ in range(count)],
        [blobs() for _ in range(count)],
        [NOW_MS + rng.randrange(-(10**6), 10**6) for _ in range(count)],
        headers=[tuple((f"h{n}", blobs()) for n in range(rng.choice((0, 0, 1, 3)))) for _ in range(count)],
    )
    return made[:HEADER_BYTES], bytes(made[HEADER_BYTES:])


def mutated(rng: random.Random) -> bytes:
    """A batch that is good or changed in its header, its records, or its compressed bytes; its checksum and length are right."""
    header, section = _sound(rng)
    where = rng.choice(("header", "records", "packed", "nowhere", "framing"))
    if where == "records":
        section = _changed_bytes(rng, section)
    codec = rng.randrange(5)
    packed = bytes(compress(codec, section))
    if where == "packed":
        packed = _changed_bytes(rng, packed)
    if where == "framing" and codec == 1:
        packed = zlib.compress(section, wbits=31) + zlib.compress(b"", wbits=31)
    if where == "framing" and codec == 4:
        stream = zstandard.ZstdCompressor().compressobj()
        packed = stream.compress(section) + stream.flush()
    struct.pack_into(">h", header, 21, codec)
    made = header + packed
    struct.pack_into(">i", made, 8, len(made) - LENGTH_OVERHEAD_BYTES)
    if where == "header":
        _changed_header(rng, made)
    seal(made, position=0, size_bytes=len(made))
    return bytes(made)


def read_with_librdkafka(address: str, topic: str, end: int) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "g", "enable.partition.eof": True})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    count = 0
    while True:
        for message in consumer.consume(5000, timeout=10):
            if message.error() is None:
                assert message.offset() == count
                count += 1
            else:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                assert count == end
                consumer.close()
                return count


async def read_with_aiokafka(address: str, topic: str, end: int) -> int:
    partition = aiokafka.TopicPartition(topic, 0)
    async with aiokafka.AIOKafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        count = 0
        while count < end:
            found = await asyncio.wait_for(consumer.getmany(partition, timeout_ms=1000), 20)
            count += sum(len(records) for records in found.values())
        return count


def test_whatever_is_acknowledged_can_be_read_to_its_end_by_every_client(server: ServerProcess, topic: str) -> None:
    rng, end, refused = random.Random(20), 0, 0
    with Wire(server.port) as wire:
        wire.call(create_topic_request(topic), 7)
        for _ in range(1500):
            made = mutated(rng)
            (answer,) = wire.call(produce_request(topic, made, acks=1), 9).responses[0].partition_responses
            if answer.error_code:
                refused += 1
                continue
            assert answer.base_offset == end, parse_header(made)
            end += parse_header(made).record_count
    assert refused > 300
    assert end > 3000
    with connect(server.address) as log:
        assert len(read_all(log, topic)[0]) == end
    assert asyncio.run(read_with_aiokafka(server.address, topic, end)) == end
    assert read_with_librdkafka(server.address, topic, end) == end


def test_where_the_check_is_not_compiled_many_small_records_are_checked_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_quick(count: int) -> bool:
        batch = encode_batch([b"k"] * count, [b""] * count, [1] * count)
        return incoming.is_quick(parse_header(batch), incoming.Rules(LogConfig(), None, 1))

    assert is_quick(5_000) == (walk.walk is not walk.walk_in_python)
    monkeypatch.setattr(incoming, "walk", walk.walk_in_python)
    assert is_quick(incoming.QUICK_RECORDS)
    assert not is_quick(incoming.QUICK_RECORDS + 1)
