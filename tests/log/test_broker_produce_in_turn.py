"""Batches of one transactional producer are appended in the order they were sent, also while its partitions are being added."""

from __future__ import annotations

from pathlib import Path

from logflume.log import Chunk, TopicPartition, connect

ROWS, TRANSACTIONS, PARTITIONS = 3000, 15, 4


def test_pipelined_batches_of_a_new_transaction_stay_in_order(tmp_path: Path) -> None:
    with connect(str(tmp_path / "data")) as log:
        log.admin().create_topic("t", partitions=PARTITIONS)
        producer = log.producer(transactional_id="x", batch_size=8192)
        producer.init_transactions()
        values = [b"%07d" % i + b"." * 60 for i in range(ROWS)]
        chunk = Chunk.from_columns("t", [b"k%d" % (i % 97) for i in range(ROWS)], values, range(ROWS))
        for _ in range(TRANSACTIONS):
            producer.begin_transaction()
            producer.send_chunk("t", chunk)
            producer.commit_transaction()
        producer.close()
        partitions = [TopicPartition("t", n) for n in range(PARTITIONS)]
        ends = log.admin().end_offsets(partitions, read_committed=True)
        consumer = log.consumer()
        consumer.assign(partitions)
        read: dict[TopicPartition, list[bytes]] = {partition: [] for partition in partitions}
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for found in consumer.poll(timeout_s=1.0):
                read[TopicPartition(found.topic, found.partition)].extend(v or b"" for v in found.values())
    assert sum(len(part) for part in read.values()) == ROWS * TRANSACTIONS
    for part in read.values():
        size = len(part) // TRANSACTIONS
        assert all(part[n * size : (n + 1) * size] == sorted(part[:size]) for n in range(TRANSACTIONS))
