"""Our client beside confluent-kafka (librdkafka) in the same run, against a logflume broker process over TCP.

Run: python -m benchmarks.client [produce|consume|embedded] [--json]

Records of 100 bytes (a key of 10, a value of 90), 3 partitions, no compression. The topics are `logflume.flush=os`, so that
both clients are measured and not the disk. Ratios are ours over theirs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator

import confluent_kafka

from benchmarks._report import Figure, main
from benchmarks.broker import running_broker
from logflume.log import Chunk, Consumer, TopicPartition, connect
from logflume.log.batch.columns import load_kernels
from logflume.log.client.log import Log

COUNT = 300_000
CONSUME_COUNT = 2_000_000
CHUNK = 50_000
PARTITIONS = 3
KEYS: list[bytes | None] = [b"key-%06d" % (i % 10_000) for i in range(CHUNK)]
VALUES: list[bytes | None] = [bytes(90)] * CHUNK
NOW_MS = time.time_ns() // 1_000_000
CHUNKS_OF_COLUMNS = Chunk.from_columns("t", KEYS, VALUES, [NOW_MS] * CHUNK)


def rate(run: Callable[[], None], count: int = COUNT) -> float:
    """Return records/s of the best of three runs."""
    best = 0.0
    for _ in range(3):
        begin_s = time.perf_counter()
        run()
        best = max(best, count / (time.perf_counter() - begin_s))
    return best


def new_topic(log: Log, name: str) -> str:
    log.admin().ensure_topic(name, partitions=PARTITIONS, configs={"logflume.flush": "os"})
    return name


def produce_objects(log: Log, topic: str) -> None:
    producer = log.producer(linger_ms=5)
    send = producer.send
    for _ in range(COUNT // CHUNK):
        for key, value in zip(KEYS, VALUES, strict=True):
            send(topic, value, key=key, timestamp_ms=NOW_MS)
    producer.flush()
    producer.close()


def produce_columns(log: Log, topic: str, *, count: int = COUNT) -> None:
    producer = log.producer()
    for _ in range(count // CHUNK):
        producer.send_chunk(topic, CHUNKS_OF_COLUMNS)
    producer.flush()
    producer.close()


def produce_confluent(address: str, topic: str) -> None:
    config = {"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
    producer = confluent_kafka.Producer(config | {"batch.size": 262_144, "partitioner": "murmur2_random"})
    send = producer.produce
    for _ in range(COUNT // CHUNK):
        for key, value in zip(KEYS, VALUES, strict=True):
            send(topic, value, key)
        producer.poll(0)
    producer.flush()


def assigned(log: Log, topic: str) -> Consumer:
    consumer = log.consumer()
    consumer.assign([TopicPartition(topic, p) for p in range(PARTITIONS)])
    return consumer


def consume_columns(log: Log, topic: str) -> None:
    consumer, seen = assigned(log, topic), 0
    while seen < CONSUME_COUNT:
        seen += sum(map(len, consumer.poll()))
    consumer.close()


def consume_objects(log: Log, topic: str) -> None:
    consumer, seen = assigned(log, topic), 0
    while seen < CONSUME_COUNT:
        for chunk in consumer.poll():
            for record in chunk.records():
                seen += record.value is not None
    consumer.close()


def consume_bytes(log: Log, topic: str) -> None:
    consumer, seen = assigned(log, topic), 0
    while seen < CONSUME_COUNT:
        for chunk in consumer.poll():
            seen += len(list(zip(chunk.keys(), chunk.values(), strict=True)))
    consumer.close()


def consume_confluent(address: str, topic: str) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "c", "fetch.min.bytes": 1})
    consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    seen = 0
    while seen < CONSUME_COUNT:
        for message in consumer.consume(10_000, 1.0):
            seen += message.value() is not None
    consumer.close()


def produce() -> Iterator[Figure]:
    """Produce over TCP with acks=all."""
    load_kernels()
    with tempfile.TemporaryDirectory() as data, running_broker(data) as (host, port, _, _):
        address = f"{host}:{port}"
        with connect(address) as log:
            theirs = rate(lambda: produce_confluent(address, new_topic(log, "confluent")))
            objects = rate(lambda: produce_objects(log, new_topic(log, "objects")))
            columns = rate(lambda: produce_columns(log, new_topic(log, "columns")))
    yield Figure("produce objects, confluent-kafka", theirs, "records/s")
    yield Figure("produce objects", objects, "records/s")
    yield Figure("produce columns", columns, "records/s")
    yield Figure("produce objects / confluent-kafka", objects / theirs, "ratio", 1.0)
    yield Figure("produce columns / confluent-kafka objects", columns / theirs, "ratio", 5.0)


def consume() -> Iterator[Figure]:
    """Consume over TCP."""
    load_kernels()
    with tempfile.TemporaryDirectory() as data, running_broker(data) as (host, port, _, _):
        address = f"{host}:{port}"
        with connect(address) as log:
            produce_columns(log, new_topic(log, "t"), count=CONSUME_COUNT)
            theirs = rate(lambda: consume_confluent(address, "t"), CONSUME_COUNT)
            objects = rate(lambda: consume_objects(log, "t"), CONSUME_COUNT)
            pairs = rate(lambda: consume_bytes(log, "t"), CONSUME_COUNT)
            columns = rate(lambda: consume_columns(log, "t"), CONSUME_COUNT)
    yield Figure("consume objects, confluent-kafka", theirs, "records/s")
    yield Figure("consume record objects", objects, "records/s")
    yield Figure("consume keys and values as bytes", pairs, "records/s")
    yield Figure("consume columns", columns, "records/s")
    yield Figure("consume record objects / confluent-kafka", objects / theirs, "ratio", 1.0)
    yield Figure("consume columns / confluent-kafka objects", columns / theirs, "ratio", 5.0)


def embedded() -> Iterator[Figure]:
    """Produce and consume in one process."""
    load_kernels()
    with tempfile.TemporaryDirectory() as data, connect(data + "/log") as log:
        yield Figure("embedded: produce columns", rate(lambda: produce_columns(log, new_topic(log, "t"))), "records/s")
        yield Figure("embedded: produce objects", rate(lambda: produce_objects(log, new_topic(log, "u"))), "records/s")
        produce_columns(log, "t", count=CONSUME_COUNT)
        yield Figure("embedded: consume columns", rate(lambda: consume_columns(log, "t"), CONSUME_COUNT), "records/s")
        yield Figure("embedded: consume record objects", rate(lambda: consume_objects(log, "t"), CONSUME_COUNT), "records/s")


if __name__ == "__main__":
    main(produce, consume, embedded)
