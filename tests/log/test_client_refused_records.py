"""Records that a broker does not take: each fails alone and is named; those beside it are in the log, in order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from logflume.log import Chunk, RecordsRefused, TopicPartition, TransactionMustAbort, connect
from logflume.log.client.log import Log

from ._client_tools import WAIT_S, read_all

COUNT = 40
AHEAD_MS = 2 * 3_600_000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with connect(tmp_path) as opened:
        opened.admin().create_topic("plain", configs={"max.message.bytes": "20000"})
        opened.admin().create_topic("compacted", configs={"cleanup.policy": "compact"})
        yield opened


def chunk_with(bad: dict[int, str]) -> Chunk:
    """Return records of which some are refused, for the reason given."""
    now_ms = time.time_ns() // 1_000_000
    keys = [None if bad.get(n) == "keyless" else b"k" for n in range(COUNT)]
    values = [b"%d" % n + bytes(30_000 if bad.get(n) == "large" else 0) for n in range(COUNT)]
    times = [now_ms + (AHEAD_MS if bad.get(n) == "ahead" else 0) for n in range(COUNT)]
    return Chunk.from_columns("", keys, values, times)


def numbers(log: Log, topic: str) -> list[int]:
    return [int((record.value or b"").rstrip(b"\0")) for record in read_all(log, topic)[0]]


@pytest.mark.parametrize(
    ("topic", "bad"),
    [
        ("plain", {3: "large", 4: "ahead", 39: "ahead"}),
        ("plain", dict.fromkeys(range(COUNT), "ahead")),
        ("compacted", {0: "keyless", 17: "keyless"}),
    ],
)
def test_refused_records_of_a_chunk_are_named_and_the_others_written(log: Log, topic: str, bad: dict[int, str]) -> None:
    with pytest.raises(RecordsRefused) as caught:
        log.producer().send_chunk(topic, chunk_with(bad), partition=0).result(WAIT_S)
    assert list(caught.value.causes) == sorted(bad)
    assert numbers(log, topic) == [n for n in range(COUNT) if n not in bad]


def test_each_record_has_its_own_fate(log: Log) -> None:
    producer = log.producer(linger_ms=500)
    now_ms = time.time_ns() // 1_000_000
    sent = [producer.send("plain", b"%d" % n, timestamp_ms=now_ms + AHEAD_MS * (n % 10 == 7)) for n in range(COUNT)]
    for n, future in enumerate(sent):
        if n % 10 == 7:
            with pytest.raises(RecordsRefused, match="INVALID_TIMESTAMP"):
                future.result(WAIT_S)
        else:
            assert future.result(WAIT_S).offset >= 0
    assert numbers(log, "plain") == [n for n in range(COUNT) if n % 10 != 7]


def test_a_refused_record_fails_its_transaction_with_the_cause(log: Log) -> None:
    producer = log.producer(transactional_id="t")
    producer.init_transactions()
    producer.begin_transaction()
    sent = producer.send_chunk("plain", chunk_with({5: "ahead", 6: "large"}), partition=0)
    with pytest.raises(TransactionMustAbort) as caught:
        producer.commit_transaction()
    assert isinstance(caught.value.__cause__, RecordsRefused)
    error = sent.exception(WAIT_S)
    assert isinstance(error, RecordsRefused)
    assert 5 in error.causes
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send_chunk("plain", chunk_with({}), partition=0)
    producer.commit_transaction()
    assert numbers(log, "plain") == list(range(COUNT))
    assert log.admin().end_offsets([TopicPartition("plain", 0)])


def test_a_first_batch_that_is_split_is_not_overtaken_by_what_follows(log: Log) -> None:
    # A broker that knows nothing of a producer in a partition takes whatever sequence comes first there.
    partitions = 30
    log.admin().create_topic("small", partitions=partitions, configs={"max.message.bytes": "300"})
    with log.producer(transactional_id="splits") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for partition in range(partitions):
            for values in ([b"a" * 100] * 9, [b"b"], [b"c"]):
                chunk = Chunk.from_columns("small", [b"k"] * len(values), values, [1] * len(values))
                producer.send_chunk("small", chunk, partition=partition)
        producer.commit_transaction()
    found = {p: b"".join((record.value or b"")[:1] for record in records) for p, records in read_all(log, "small").items()}
    assert found == dict.fromkeys(range(partitions), b"a" * 9 + b"bc")
