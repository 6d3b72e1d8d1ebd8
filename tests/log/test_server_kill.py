"""SIGKILL at random moments: no acknowledged record is lost or doubled, and what is left reads whole."""

import random
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

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
