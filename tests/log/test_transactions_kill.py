"""SIGKILL of the broker in the middle of transactions: each is there or it is not, and offsets are as acknowledged."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ._server_process import ServerProcess

KILLS = 6
PARTITIONS = 3
TIMEOUT_S = 60
CALL_TIMEOUT_S = 8
"""librdkafka may wait a whole call for an answer that went down with the broker; it then starts over, well within TIMEOUT_S."""


class _Worker:
    """Runs transactions of three records and one offset commit each until told to stop, starting over after every error.

    `outcomes`: transaction number -> True committed, False aborted, None not known.
    """

    def __init__(self, server: ServerProcess, name: str) -> None:
        self.name, self._address = name, server.address
        self.outcomes: dict[int, bool | None] = {}
        self._is_stopping = threading.Event()
        self._rng = random.Random(name)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def stop(self) -> None:
        self._is_stopping.set()
        self.thread.join()

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            try:
                self._run_transactions(self._new_producer())
            except KafkaException:
                continue

    def _new_producer(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._address,
                "transactional.id": self.name,
                "linger.ms": 0,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                # librdkafka 2.16 forgets to send TxnOffsetCommit when it re-bootstraps between it and AddOffsetsToTxn.
                "metadata.recovery.strategy": "none",
                "log_level": 0,
            }
        )
        producer.init_transactions(CALL_TIMEOUT_S)
        return producer

    def _run_transactions(self, producer: Producer) -> None:
        reader = Consumer({"bootstrap.servers": self._address, "group.id": self.name, "log_level": 0})
        while not self._is_stopping.is_set():
            number = len(self.outcomes)
            self.outcomes[number] = None
            producer.begin_transaction()
            for index in range(PARTITIONS):
                producer.produce("t", f"{self.name}:{number}".encode(), partition=index)
            offsets = [TopicPartition("t", 0, number + 1)]
            producer.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), CALL_TIMEOUT_S)
            is_commit = self._rng.random() < 0.7
            if is_commit:
                producer.commit_transaction(CALL_TIMEOUT_S)
            else:
                producer.abort_transaction(CALL_TIMEOUT_S)
            self.outcomes[number] = is_commit
        reader.close()

    @property
    def ended(self) -> int:
        return sum(outcome is not None for outcome in list(self.outcomes.values()))  # its thread adds to them


def _read_committed(server: ServerProcess) -> dict[str, list[bytes]]:
    """Return the values by the partition they are in, up to the end that read_committed sees."""
    config = {
        "bootstrap.servers": server.address,
        "group.id": "reader",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }
    consumer = Consumer(config)
    consumer.assign([TopicPartition("t", index, 0) for index in range(PARTITIONS)])
    values: dict[str, list[bytes]] = {}
    finished: set[int] = set()
    while len(finished) < PARTITIONS:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None, "the end of a partition is not in sight: a transaction hangs"
        if message.error() is not None:
            finished.add(message.partition())
        else:
            values.setdefault(str(message.partition()), []).append(message.value())
    consumer.close()
    return values


@pytest.mark.slow
def test_transactions_are_whole_through_sigkill(tmp_path: Path) -> None:
    rng = random.Random(7)
    server = ServerProcess(str(tmp_path / "data"))
    admin = AdminClient({"bootstrap.servers": server.address})
    admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(TIMEOUT_S)
    workers = [_Worker(server, f"w{index}") for index in range(2)]
    for _ in range(KILLS):
        goals = [worker.ended + rng.randrange(3, 12) for worker in workers]
        end_s = time.monotonic() + TIMEOUT_S
        while any(worker.ended < goal for worker, goal in zip(workers, goals, strict=True)):
            assert time.monotonic() < end_s, "no progress after a kill"
            time.sleep(rng.random() * 0.005)
        server.kill()
        server.start()
    for worker in workers:
        worker.stop()
    for worker in workers:
        # What the last producers left open is ended by their successors.
        worker._new_producer()

    visible = _read_committed(server)
    for index in range(PARTITIONS):
        values = visible.get(str(index), [])
        assert len(values) == len(set(values)), "a record is doubled"
        assert set(values) == set(visible["0"]), "a transaction is torn"
    for worker in workers:
        seen = {int(v.split(b":")[1]) for v in visible["0"] if v.startswith(worker.name.encode() + b":")}
        committed = {number for number, outcome in worker.outcomes.items() if outcome}
        aborted = {number for number, outcome in worker.outcomes.items() if outcome is False}
        assert committed <= seen, "an acknowledged commit is lost"
        assert not aborted & seen, "an aborted transaction is visible"
        reader = Consumer({"bootstrap.servers": server.address, "group.id": worker.name})
        found = reader.committed([TopicPartition("t", 0)], timeout=TIMEOUT_S)[0].offset
        assert found == max(seen) + 1, "offsets belong to the transaction they were sent in"
        reader.close()
    assert server.stop() == 0


@pytest.mark.slow
def test_acknowledged_offsets_survive_sigkill(tmp_path: Path) -> None:
    server = ServerProcess(str(tmp_path / "data"), ["num.partitions=4"])
    admin = AdminClient({"bootstrap.servers": server.address})
    admin.create_topics([NewTopic("t", 4, 1)])["t"].result(TIMEOUT_S)
    backoff = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "metadata.recovery.strategy": "none"}
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": "g", "log_level": 0, **backoff})
    rng = random.Random(11)
    acknowledged: dict[int, int] = {}
    for round_number in range(KILLS):
        for step in range(rng.randrange(5, 40)):
            index, offset = rng.randrange(4), round_number * 1000 + step
            consumer.commit(offsets=[TopicPartition("t", index, offset)], asynchronous=False)
            acknowledged[index] = offset
        server.kill()
        server.start()
        found = consumer.committed([TopicPartition("t", index) for index in acknowledged], timeout=TIMEOUT_S)
        assert {each.partition: each.offset for each in found} == acknowledged
    consumer.close()
    assert server.stop() == 0
