"""The broker is killed with SIGKILL under our clients, and comes back: nothing acknowledged is lost, nothing doubled."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest

from logflume.log import Chunk, GroupMetadata, Log, OffsetAndMetadata, Producer, TopicPartition, TransactionMustAbort, connect
from logflume.log.client.errors import ClientClosed

from ._client_tools import WAIT_S, read, read_all, wait_until
from ._server_process import ServerProcess

TOPIC = "t"
PARTITIONS = 3
KILLS = 3


def test_an_idempotent_producer_goes_on_after_sigkill(tmp_path: Path) -> None:
    server = ServerProcess(str(tmp_path))
    with connect(server.address) as log:
        log.admin().create_topic(TOPIC, partitions=PARTITIONS)
        producer = log.producer(linger_ms=1, batch_size=2000)
        is_stopping = threading.Event()
        sent = [0]

        def produce() -> None:
            while not is_stopping.is_set():
                numbers = range(sent[0], sent[0] + 30)
                for i in numbers:
                    producer.send(TOPIC, b"%d" % i, partition=i % PARTITIONS)
                sent[0] += 30
                if sent[0] % 300 == 0:
                    values: list[bytes | None] = [b"%d" % (sent[0] + i) for i in range(30)]
                    producer.send_chunk(TOPIC, Chunk.from_columns(TOPIC, [None] * 30, values, [1] * 30), partition=0)
                    sent[0] += 30
                is_stopping.wait(0.001)

        thread = threading.Thread(target=produce)
        thread.start()
        for _ in range(KILLS):
            already = sent[0]
            wait_until(lambda already=already: sent[0] > already + 600)  # type: ignore[misc]
            server.kill()
            server.start()
        is_stopping.set()
        thread.join(WAIT_S)
        producer.flush()
        records = read_all(log, TOPIC)
        numbers = [[int(r.value or b"") for r in records[p]] for p in range(PARTITIONS)]
        assert all(each == sorted(each) for each in numbers)
        assert sorted(n for each in numbers for n in each) == list(range(sent[0]))
    server.stop()


def test_a_consumer_and_its_group_go_on_after_sigkill(tmp_path: Path) -> None:
    server = ServerProcess(str(tmp_path))
    with connect(server.address) as log:
        log.admin().create_topic(TOPIC)
        producer, consumer = log.producer(), log.consumer(group_id="g")
        consumer.subscribe([TOPIC])
        producer.send(TOPIC, b"before").result(WAIT_S)
        assert [r.value for r in read(consumer, 1)] == [b"before"]
        consumer.commit()
        server.kill()
        server.start()
        producer.send(TOPIC, b"after").result(WAIT_S)
        assert [r.value for r in read(consumer, 1)] == [b"after"]
        consumer.commit()
        assert log.admin().group_offsets("g")[TopicPartition(TOPIC, 0)].offset == 2
    server.stop()


def in_transaction(log: Log) -> Producer:
    """Return a producer with an open transaction, its topic made."""
    log.admin().create_topic(TOPIC)
    producer = log.producer(transactional_id="x")
    producer.init_transactions()
    producer.begin_transaction()
    return producer


def test_a_transaction_open_at_sigkill_is_aborted_and_repeated(tmp_path: Path) -> None:
    server = ServerProcess(str(tmp_path))
    with connect(server.address) as log:
        producer = in_transaction(log)
        producer.send(TOPIC, b"committed")
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send(TOPIC, b"lost").result(WAIT_S)
        server.kill()
        server.start()
        again = log.producer(transactional_id="x")
        again.init_transactions()
        again.begin_transaction()
        again.send(TOPIC, b"repeated")
        again.commit_transaction()
        assert [r.value for r in read_all(log, TOPIC)[0]] == [b"committed", b"repeated"]
    server.stop()


def test_transactions_go_on_through_sigkills(tmp_path: Path) -> None:
    """The same producer: what a kill breaks is aborted and repeated as a whole, and every number is committed once, in order."""
    server = ServerProcess(str(tmp_path))
    with connect(server.address) as log:
        log.admin().create_topic(TOPIC, partitions=PARTITIONS)
        producer = log.producer(transactional_id="x")
        producer.init_transactions()
        group = GroupMetadata("g", -1, "")
        committed = [0]
        is_stopping = threading.Event()

        def transact(first: int) -> None:
            producer.begin_transaction()
            for i in range(first, first + 12):
                producer.send(TOPIC, b"%d" % i, partition=i % PARTITIONS)
            producer.send_offsets({TopicPartition(TOPIC, 0): OffsetAndMetadata(first + 12)}, group)
            producer.commit_transaction()

        def run() -> None:
            while not is_stopping.is_set():
                try:
                    transact(committed[0])
                except TransactionMustAbort:
                    producer.abort_transaction()
                else:
                    committed[0] += 12

        thread = threading.Thread(target=run)
        thread.start()
        for _ in range(KILLS):
            already = committed[0]
            wait_until(lambda already=already: committed[0] > already + 60)  # type: ignore[misc]
            server.kill()
            server.start()
        is_stopping.set()
        thread.join(WAIT_S)
        records = read_all(log, TOPIC)
        for partition in range(PARTITIONS):
            values = [int(r.value or b"") for r in records[partition]]
            assert values == list(range(partition, committed[0], PARTITIONS))
        assert log.admin().group_offsets("g")[TopicPartition(TOPIC, 0)].offset == committed[0]
    server.stop()


def test_closing_does_not_wait_long_for_the_end_of_a_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is told to stop while the brokers are gone has waited for them already."""
    monkeypatch.setattr("logflume.log.client.producer.ABORT_TIMEOUT_S", 0.5)
    server = ServerProcess(str(tmp_path))
    with connect(server.address) as log:
        producer = in_transaction(log)
        producer.send(TOPIC, b"open").result(WAIT_S)
        server.kill()
        began_s = time.monotonic()
        producer.close()
        assert time.monotonic() - began_s < 10


@pytest.mark.timeout(60)
def test_a_log_whose_broker_is_gone_for_good_is_closed_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are open, and whatever each was at: queued records, transactions, memberships."""
    monkeypatch.setattr("logflume.log.client.log.CLOSE_TIMEOUT_S", 2.0)
    server = ServerProcess(str(tmp_path))
    log = connect(server.address)
    log.admin().create_topic(TOPIC)
    consumer = log.consumer(group_id="g")
    consumer.subscribe([TOPIC])
    log.producer().send(TOPIC, b"before").result(WAIT_S)
    read(consumer, 1)
    producers = [log.producer(transactional_id=f"x{i}", linger_ms=0) for i in range(5)]
    for producer in producers:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(TOPIC, b"open").result(WAIT_S)
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    queued = [producer.send(TOPIC, b"queued") for producer in (log.producer(), *producers)]
    server.kill()
    log.close()
    assert all(future.exception(WAIT_S) is not None for future in queued)
    with pytest.raises(ClientClosed):
        producers[0].begin_transaction()
