"""Our client against a foreign broker: the mock cluster inside librdkafka, three brokers that speak the protocol on TCP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from logflume.log import Chunk, OffsetAndMetadata, TopicPartition, UnknownName, connect
from logflume.log.client.log import Log

from ._client_tools import WAIT_S, read

confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka has the mock cluster")


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    host = confluent_kafka.Producer({"test.mock.num.brokers": 3})
    brokers = host.list_topics(timeout=10).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    host.flush(1)


@pytest.fixture
def log(bootstrap: str, topic: str) -> Iterator[Log]:
    foreign = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    foreign.produce(topic, b"first", key=b"k", partition=0, headers=[("h", b"1")])
    assert foreign.flush(10) == 0
    with connect(bootstrap) as opened:
        yield opened


def test_a_foreign_producers_record_is_read(log: Log, topic: str) -> None:
    consumer = log.consumer()
    consumer.assign([TopicPartition(topic, 0)])
    (record,) = read(consumer, 1)
    assert (record.key, record.value, record.headers) == (b"k", b"first", (("h", b"1"),))


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_keys_go_where_librdkafkas_murmur2_partitioner_puts_them(log: Log, bootstrap: str, topic: str, compression: str) -> None:
    keys: list[bytes | None] = [b"key-%d" % i for i in range(300)]
    foreign = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    partitions: dict[bytes, int] = {}
    for key in keys:
        foreign.produce(topic, b"", key=key, on_delivery=lambda _, m: partitions.__setitem__(m.key(), m.partition()))
    foreign.flush(10)
    producer = log.producer(compression=compression)
    ours = {key: producer.send(topic, b"x" * 100, key=key) for key in keys}
    producer.flush()
    assert {key: future.result().partition for key, future in ours.items()} == partitions
    before = log.admin().end_offsets([TopicPartition(topic, p) for p in range(4)])
    assert producer.send_chunk(topic, Chunk.from_columns(topic, keys, keys, [1] * 300)).result(WAIT_S) == 300
    after = log.admin().end_offsets([TopicPartition(topic, p) for p in range(4)])
    counts = [list(partitions.values()).count(p) for p in range(4)]
    assert [after[tp] - before[tp] for tp in sorted(after)] == counts


def test_a_foreign_consumer_reads_what_we_wrote(log: Log, bootstrap: str, topic: str) -> None:
    producer = log.producer(compression="zstd")
    producer.send(topic, b"objects", key=b"a", partition=0, headers=(("h", None),), timestamp_ms=1000)
    producer.send_chunk(topic, Chunk.from_columns(topic, [b"b", None], [b"columns", None], [2000, 3000]), partition=0)
    producer.flush()
    foreign = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest", "check.crcs": True}
    )
    foreign.assign([confluent_kafka.TopicPartition(topic, 0, 1)])
    found = foreign.consume(3, timeout=WAIT_S)
    foreign.close()
    assert [(m.key(), m.value(), m.timestamp()[1], m.headers()) for m in found] == [
        (b"a", b"objects", 1000, [("h", None)]),
        (b"b", b"columns", 2000, None),
        (None, None, 3000, None),
    ]


def test_a_group_with_committed_offsets(log: Log, topic: str) -> None:
    consumer = log.consumer(group_id=topic)
    consumer.subscribe([topic])
    assert [r.value for r in read(consumer, 1)] == [b"first"]
    assert len(consumer.assignment()) == 4
    consumer.commit()
    assert consumer.committed([TopicPartition(topic, 0)])[TopicPartition(topic, 0)] == OffsetAndMetadata(1, "", 0)
    consumer.close()


def test_a_transaction_of_the_older_protocol(log: Log, topic: str) -> None:
    producer = log.producer(transactional_id=topic)
    producer.init_transactions()
    for _ in range(2):
        producer.begin_transaction()
        sent = producer.send(topic, b"in", partition=1)
        producer.commit_transaction()
        assert sent.result().partition == 1


def test_a_topic_that_is_not_there(log: Log, topic: str) -> None:
    with pytest.raises(UnknownName, match="did you mean"):
        log.producer().send(topic[:-1], b"x")
