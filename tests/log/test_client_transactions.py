"""Transactions with our own producer against the real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from logflume.log import (
    Chunk,
    GroupMetadata,
    InvalidInput,
    OffsetAndMetadata,
    ProducerFenced,
    TopicPartition,
    TransactionMustAbort,
    connect,
)
from logflume.log.client.log import Log

from ._client_tools import WAIT_S, read, read_all, wait_until
from ._server_process import ServerProcess


@pytest.fixture(params=["embedded", "tcp"])
def log(request: pytest.FixtureRequest, tmp_path: Path, server: ServerProcess) -> Iterator[Log]:
    with connect(tmp_path if request.param == "embedded" else server.address) as opened:
        yield opened


def values(log: Log, topic: str, *, read_committed: bool = True) -> list[bytes | None]:
    return [r.value for records in read_all(log, topic, read_committed=read_committed).values() for r in records]


def test_only_committed_transactions_are_read(log: Log, topic: str) -> None:
    log.admin().create_topic(topic, partitions=2)
    producer = log.producer(transactional_id=topic)
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        for i in range(10):
            producer.send(topic, b"%d" % number, partition=i % 2)
        producer.send_chunk(topic, Chunk.from_columns(topic, [b"k"], [b"%d" % number], [1])).result(WAIT_S)
        if number % 3:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    assert sorted(values(log, topic)) == sorted([b"1", b"2", b"4", b"5"] * 11)
    assert len(values(log, topic, read_committed=False)) >= 44


def test_several_producers_write_one_transaction_that_one_of_them_ends(log: Log, topic: str) -> None:
    log.admin().create_topic(topic, partitions=3)
    owner = log.producer(transactional_id=topic)
    owner.init_transactions()
    for is_commit in (True, False, True):
        owner.begin_transaction()
        with pytest.raises(InvalidInput, match="nothing was sent in this transaction yet"):
            owner.share_transaction()
        owner.send(topic, b"owner", partition=0).result(WAIT_S)
        before = values(log, topic)
        guests = [log.join_transaction(owner.share_transaction()) for _ in range(2)]
        for number, guest in enumerate(guests, 1):
            for i in range(10):
                guest.send(topic, b"%d %d" % (number, i), partition=number)
            guest.flush()
            with pytest.raises(InvalidInput, match="the producer that began the transaction"):
                guest.commit_transaction()
            with pytest.raises(InvalidInput, match="the producer that began the transaction"):
                guest.abort_transaction()
        guests[0].close()
        assert values(log, topic) == before
        if is_commit:
            owner.commit_transaction()
            assert len(values(log, topic)) == len(before) + 21
            continue
        owner.abort_transaction()
        owner.init_transactions()
        with pytest.raises(ProducerFenced):
            guests[1].send(topic, b"late", partition=2).result(WAIT_S)
        assert values(log, topic) == before
        guests[1].close()


def test_an_open_transaction_is_not_read_beyond(log: Log, topic: str) -> None:
    log.admin().create_topic(topic)
    partition = TopicPartition(topic, 0)
    producer = log.producer(transactional_id=topic)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"open").result(WAIT_S)
    log.producer().send(topic, b"after").result(WAIT_S)
    assert log.admin().end_offsets([partition]) == {partition: 2}
    assert log.admin().end_offsets([partition], read_committed=True) == {partition: 0}
    consumer = log.consumer()
    consumer.assign([partition])
    assert consumer.poll(timeout_s=0.3) == []
    producer.commit_transaction()
    assert [r.value for r in read(consumer, 2)] == [b"open", b"after"]


def test_offsets_are_committed_with_the_transaction(log: Log, topic: str) -> None:
    log.admin().create_topic(topic)
    partition = TopicPartition(topic, 0)
    log.producer().send(topic, b"x").result(WAIT_S)
    consumer = log.consumer(group_id=topic)
    consumer.subscribe([topic])
    assert len(read(consumer, 1)) == 1
    producer = log.producer(transactional_id=topic)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send_offsets({partition: OffsetAndMetadata(1, "aborted")}, consumer.group_metadata())
    producer.abort_transaction()
    assert consumer.committed([partition]) == {partition: None}
    producer.begin_transaction()
    producer.send_offsets({partition: OffsetAndMetadata(1, "committed")}, consumer.group_metadata())
    producer.commit_transaction()
    assert consumer.committed([partition]) == {partition: OffsetAndMetadata(1, "committed")}


def test_a_stale_members_offsets_are_refused_and_the_producer_goes_on(log: Log, topic: str) -> None:
    log.admin().create_topic(topic)
    consumer = log.consumer(group_id=topic)
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(timeout_s=0.1) or consumer.assignment())
    current = consumer.group_metadata()
    producer = log.producer(transactional_id=topic)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"lost")
    stale = GroupMetadata(current.group_id, current.generation - 1, current.member_id)
    with pytest.raises(TransactionMustAbort, match="not current any more"):
        producer.send_offsets({TopicPartition(topic, 0): OffsetAndMetadata(1)}, stale)
    with pytest.raises(TransactionMustAbort):
        producer.commit_transaction()
    with pytest.raises(TransactionMustAbort):
        producer.send(topic, b"refused")
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send(topic, b"kept")
    producer.commit_transaction()
    assert values(log, topic) == [b"kept"]


def test_an_older_producer_is_fenced_for_good(log: Log, topic: str) -> None:
    log.admin().create_topic(topic)
    old, new = (log.producer(transactional_id=topic) for _ in range(2))
    old.init_transactions()
    old.begin_transaction()
    old.send(topic, b"old").result(WAIT_S)
    new.init_transactions()
    with pytest.raises(ProducerFenced, match="taken over by another producer"):
        old.commit_transaction()
    for call in (old.begin_transaction, old.abort_transaction, old.init_transactions, lambda: old.send(topic, b"x")):
        with pytest.raises(ProducerFenced):
            call()
    new.begin_transaction()
    new.send(topic, b"new")
    new.commit_transaction()
    assert values(log, topic) == [b"new"]


def test_a_transaction_that_is_open_too_long_is_aborted(log: Log, topic: str) -> None:
    log.admin().create_topic(topic)
    producer = log.producer(transactional_id=topic, transaction_timeout_ms=500)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"late").result(WAIT_S)
    partition = TopicPartition(topic, 0)
    wait_until(lambda: log.admin().end_offsets([partition], read_committed=True)[partition] == 2)
    with pytest.raises((ProducerFenced, TransactionMustAbort)):
        producer.commit_transaction()
    assert values(log, topic) == []


def test_calls_in_the_wrong_order_say_so(log: Log, topic: str) -> None:
    log.admin().create_topic(topic)
    producer = log.producer(transactional_id=topic)
    with pytest.raises(InvalidInput, match="init_transactions was not called"):
        producer.begin_transaction()
    producer.init_transactions()
    with pytest.raises(InvalidInput, match="no transaction is open"):
        producer.send(topic, b"x")
    producer.begin_transaction()
    with pytest.raises(InvalidInput, match="a transaction is open"):
        producer.begin_transaction()
    producer.commit_transaction()
    with pytest.raises(InvalidInput, match="no transaction is open"):
        producer.abort_transaction()


def test_a_timeout_beyond_the_brokers_limit_is_refused(log: Log, topic: str) -> None:
    with pytest.raises(InvalidInput, match=r"transaction\.max\.timeout\.ms"):
        log.producer(transactional_id=topic, transaction_timeout_ms=10**9).init_transactions()
