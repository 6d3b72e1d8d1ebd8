"""SIGKILL at random moments: no acknowledged record is lost or doubled, and what is left reads whole."""

import random
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from ._server_process import ServerProcess

ROUNDS = 6


class _Writer:
    """Produces numbered values until told to stop, through kills and restarts; keeps what was acknowledged."""

    def __init__(self, address: str, topic: str) -> None:
        self.acked: list[tuple[int, int, int]] = []
        self.failed: list[str] = []
        self._is_stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 50,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "delivery.timeout.ms": 60_000,
                "log_level": 0,
            }
        )
        self._topic = topic
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        number = 0
        while not self._is_stopping.is_set():
            try:
                self._producer.produce(
                    self._topic, b"%d" % number, partition=number % 3, on_delivery=lambda e, m, n=number: self._delivered(n, e, m)
                )
                number += 1
            except BufferError:
                self._producer.poll(0.05)
            self._producer.poll(0.0005 if number % 20 == 0 else 0)
        assert self._producer.flush(60) == 0

    def _delivered(self, number: int, error: object, message: object) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self.acked.append((number, message.partition(), message.offset()))  # type: ignore[attr-defined]

    def stop(self) -> None:
        self._is_stopping.set()
        self.thread.join()


@pytest.mark.slow
def test_what_was_acknowledged_survives_sigkill(tmp_path: Path) -> None:
    rng = random.Random(20260812)
    server = ServerProcess(str(tmp_path / "data"), ["num.partitions=3"])
    writer = _Writer(server.address, "killed")
    for _ in range(ROUNDS):
        goal = len(writer.acked) + rng.randrange(50, 600)
        end_s = time.monotonic() + 30
        while len(writer.acked) < goal and time.monotonic() < end_s:
            time.sleep(0.005)
        assert len(writer.acked) >= goal
        server.kill()
        server.start()
    writer.stop()
    assert not writer.failed, writer.failed[:3]

    consumer = Consumer({"bootstrap.servers": server.address, "group.id": "check", "enable.auto.commit": False})
    partitions = [TopicPartition("killed", index, 0) for index in range(3)]
    ends = {p.partition: consumer.get_watermark_offsets(p, timeout=10)[1] for p in partitions}
    consumer.assign(partitions)
    stored: dict[tuple[int, int], int] = {}
    while len(stored) < sum(ends.values()):
        for message in consumer.consume(1000, timeout=5):
            assert message.error() is None
            stored[message.partition(), message.offset()] = int(message.value())
    consumer.close()
    assert server.stop() == 0

    for number, partition, offset in writer.acked:
        if offset >= 0:
            assert stored[partition, offset] == number
    counts: dict[int, int] = {}
    for number in stored.values():
        counts[number] = counts.get(number, 0) + 1
    assert {number for number, _, _ in writer.acked} <= set(counts), "an acknowledged record is lost"
    assert all(count == 1 for count in counts.values()), "a record is doubled"


def _transactions(address: str, topic: str, committed: list[int], attempted: list[int], is_stopping: threading.Event) -> None:
    """Commit numbered transactions of ten records over two partitions until told to stop, through kills and restarts."""
    number = 0
    while not is_stopping.is_set():
        producer = Producer(
            {
                "bootstrap.servers": address,
                "transactional.id": "killed",
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "message.timeout.ms": 20_000,
                "transaction.timeout.ms": 20_000,
                "log_level": 0,
            }
        )
        try:
            producer.init_transactions(30)
            while not is_stopping.is_set():
                number += 1
                producer.begin_transaction()
                attempted.append(number)
                for i in range(10):
                    producer.produce(topic, b"%d:%d" % (number, i), partition=i % 2)
                producer.commit_transaction(30)
                committed.append(number)
        except KafkaException:
            continue


@pytest.mark.slow
def test_transactions_are_whole_after_sigkill(tmp_path: Path) -> None:
    rng = random.Random(7)
    server = ServerProcess(str(tmp_path / "data"), ["num.partitions=2"])
    committed: list[int] = []
    attempted: list[int] = []
    is_stopping = threading.Event()
    thread = threading.Thread(target=_transactions, args=(server.address, "txns", committed, attempted, is_stopping))
    thread.start()
    for _ in range(ROUNDS):
        goal = len(committed) + rng.randrange(3, 25)
        end_s = time.monotonic() + 30
        while len(committed) < goal and time.monotonic() < end_s:
            time.sleep(0.003)
        assert len(committed) >= goal
        server.kill()
        server.start()
    is_stopping.set()
    thread.join(60)
    assert not thread.is_alive()

    Producer({"bootstrap.servers": server.address, "transactional.id": "killed"}).init_transactions(30)
    consumer = Consumer(
        {
            "bootstrap.servers": server.address,
            "group.id": "check",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition("txns", index, 0) for index in range(2)])
    seen: dict[int, list[int]] = {}
    ended: set[int] = set()
    end_s = time.monotonic() + 30
    while len(ended) < 2 and time.monotonic() < end_s:
        for message in consumer.consume(500, timeout=1):
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF
                ended.add(message.partition())
                continue
            number, index = map(int, message.value().split(b":"))
            seen.setdefault(number, []).append(index)
    consumer.close()
    assert server.stop() == 0
    assert len(ended) == 2, "readers are not held up by a transaction that nobody ends"
    assert set(committed) <= set(seen), "a committed transaction is lost"
    assert all(sorted(indexes) == list(range(10)) for indexes in seen.values()), "a transaction is torn or doubled"
    assert set(seen) <= set(attempted)
