"""Which batches travel together: what has lingered long enough takes along what lingers for the same broker."""

from __future__ import annotations

from logflume.log import connect
from logflume.log.client.producer import Producer
from logflume.log.records import TopicPartition

from ._fake_broker import FakeBroker


def test_a_batch_whose_linger_is_over_takes_the_others_along() -> None:
    with FakeBroker({"t": 3}) as broker, connect(broker.address) as log:
        producer = log.producer(linger_ms=30_000)
        futures = [producer.send("t", b"x", partition=partition) for partition in (0, 1, 2)]
        assert isinstance(producer, Producer)
        with producer._accumulator.lock:
            producer._accumulator.queues[TopicPartition("t", 0)].waiting[0].created_s -= 31
        producer._wake()
        assert [future.result(20).offset for future in futures] == [0, 0, 0]
    assert [sorted(each) for each in broker.produces] == [[("t", 0), ("t", 1), ("t", 2)]]


def test_a_full_batch_leaves_the_others_to_fill() -> None:
    with FakeBroker({"t": 2}) as broker, connect(broker.address) as log:
        producer = log.producer(linger_ms=30_000, batch_size=200)
        small = producer.send("t", b"x", partition=1)
        full = [producer.send("t", b"x" * 90, partition=0) for _ in range(3)]
        assert full[0].result(20).offset == 0
        assert not small.done()
        producer.flush()
        assert small.result(0).offset == 0
    assert broker.produces[0] == [("t", 0)]
