"""Our client against Apache Kafka 4.3.1, and our storage on the segments that Kafka wrote."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logflume.log import GroupMetadata, Log, OffsetAndMetadata, TopicPartition, connect
from logflume.log.client.errors import ProducerFenced
from logflume.log.interfaces import Consumer
from logflume.log.protocol.errors import KafkaError
from logflume.log.storage import LogConfig, OsDisk, open_log, verify_log

from . import _kafka_java as kafka

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(kafka.missing()), reason=kafka.missing() or "-"),
]

FAST_GROUPS = ("group.consumer.min.heartbeat.interval.ms=500", "group.consumer.heartbeat.interval.ms=500")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kafka.KafkaBroker]:
    running = kafka.KafkaBroker(tmp_path_factory.mktemp("kafka"), *FAST_GROUPS)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def log(broker: kafka.KafkaBroker) -> Iterator[Log]:
    with connect(broker.address) as opened:
        yield opened


def read(log: Log, topic: str, *, read_committed: bool = True) -> list[bytes | None]:
    """Return all values of partition 0."""
    tp = TopicPartition(topic, 0)
    end = log.admin().end_offsets([tp], read_committed=read_committed)[tp]
    consumer = log.consumer(read_committed=read_committed)
    consumer.assign([tp])
    found: list[bytes | None] = []
    while consumer.position(tp) < end:
        for chunk in consumer.poll(timeout_s=10):
            found += chunk.values()
    consumer.close()
    return found


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline


def test_records_of_every_codec_come_back(log: Log) -> None:
    log.admin().create_topic("codecs", partitions=1)
    for codec in CODECS:
        producer = log.producer(compression=codec)
        for n in range(200):
            producer.send("codecs", f"{codec} {n}".encode(), key=b"k", headers=(("h", b"v"),), timestamp_ms=1_000_000 + n)
        producer.flush()
        producer.close()
    assert read(log, "codecs") == [f"{codec} {n}".encode() for codec in CODECS for n in range(200)]


def test_transactions_commit_abort_and_fence(log: Log) -> None:
    log.admin().create_topic("moved", partitions=1)
    tp = TopicPartition("moved", 0)
    producer = log.producer(transactional_id="mover")
    producer.init_transactions()
    for n in range(4):
        producer.begin_transaction()
        producer.send("moved", b"%d" % n)
        producer.send_offsets({tp: OffsetAndMetadata(n)}, GroupMetadata("movers", -1, ""))
        if n % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    assert read(log, "moved") == [b"0", b"2"]
    assert read(log, "moved", read_committed=False) == [b"0", b"1", b"2", b"3"]
    assert log.admin().group_offsets("movers", is_stable=True)[tp].offset == 2
    successor = log.producer(transactional_id="mover")
    successor.init_transactions()
    with pytest.raises(ProducerFenced):
        fenced_write(producer)
    successor.close()


def fenced_write(producer: object) -> None:
    producer.begin_transaction()  # type: ignore[attr-defined]
    producer.send("moved", b"from the past")  # type: ignore[attr-defined]
    producer.commit_transaction()  # type: ignore[attr-defined]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_two_members_share_a_topic_and_one_takes_over(log: Log, protocol: str) -> None:
    topic, group = f"shared-{protocol}", f"group-{protocol}"
    log.admin().create_topic(topic, partitions=4)
    producer = log.producer()
    for n in range(40):
        producer.send(topic, b"%d" % n, partition=n % 4)
    producer.flush()
    members = [log.consumer(group_id=group, group_protocol=protocol) for _ in range(2)]
    values: list[bytes | None] = []

    def poll(*consumers: Consumer) -> None:
        for consumer in consumers:
            for chunk in consumer.poll(timeout_s=0.2):
                values.extend(chunk.values())

    def balanced() -> bool:
        poll(*members)
        return [len(each.assignment()) for each in members] == [2, 2]

    for each in members:
        each.subscribe([topic])
    wait(balanced)
    wait(lambda: poll(*members) or len(set(values)) == 40)  # type: ignore[func-returns-value]
    for each in members:
        each.commit()
    assert sum(at.offset for at in log.admin().group_offsets(group).values()) == 40
    members[1].close()
    wait(lambda: poll(members[0]) or len(members[0].assignment()) == 4)  # type: ignore[func-returns-value]
    assert log.admin().describe_group(group).members
    members[0].close()
    log.admin().delete_group(group)
    assert group not in log.admin().list_groups()


def test_topics_are_administered(log: Log) -> None:
    admin = log.admin()
    admin.create_topic("managed", partitions=2, configs={"retention.ms": "60000"})
    assert admin.describe_topics(["managed"])["managed"].partitions == 2
    assert admin.topic_configs("managed")["retention.ms"] == "60000"
    admin.alter_topic_configs("managed", {"retention.ms": "120000", "max.message.bytes": "2000"})
    wait(lambda: admin.topic_configs("managed")["retention.ms"] == "120000")
    admin.create_partitions("managed", 3)
    wait(lambda: admin.describe_topics(["managed"])["managed"].partitions == 3)
    with pytest.raises(KafkaError, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topic("managed", partitions=1)
    producer = log.producer()
    for n in range(10):
        producer.send("managed", b"%d" % n, partition=0, timestamp_ms=int(time.time() * 1000) - 24_000 + n)
    producer.flush()
    tp = TopicPartition("managed", 0)
    first_ms = int(time.time() * 1000) - 60_000
    assert admin.offsets_for_time({tp: first_ms}) == {tp: 0}
    admin.delete_records({tp: 4})
    assert admin.start_offsets([tp]) == {tp: 4}
    admin.delete_topic("managed")
    wait(lambda: "managed" not in admin.list_topics())


def test_our_storage_reads_the_segments_that_kafka_wrote(broker: kafka.KafkaBroker, log: Log, tmp_path: Path) -> None:
    log.admin().create_topic("segments", partitions=1, configs={"segment.bytes": "1048576"})
    settings = ["--topic", "segments", "--throughput", "-1", "--bootstrap-server", broker.address]
    for codec in ("none", "zstd"):
        more = ["--num-records", "12000", "--record-size", "100", "--command-property", "acks=all", f"compression.type={codec}"]
        kafka.run(f"{kafka.TOOLS}.ProducerPerformance", *settings, *more)
    written = read(log, "segments")
    assert len(written) == 24_000
    copy = tmp_path / "segments-0"
    copy.mkdir()
    files = sorted((broker.data / "segments-0").glob("*.log"))
    assert len(files) > 1
    for file in files:
        shutil.copy(file, copy / file.name)
    assert list(verify_log(str(copy), disk=OsDisk())) == []
    recovered = open_log(str(copy), disk=OsDisk(), config=LogConfig(), now_ms=0)
    try:
        assert (recovered.log_start_offset, recovered.log_end_offset) == (0, 24_000)
        assert sum(header.record_count for header, _ in recovered.headers(0)) == 24_000
    finally:
        recovered.close()
