"""Share groups (KIP-932) beside a consumer group of the same client in the same run, and the state machine alone.

Run: python -m benchmarks.share_groups [clients|machine] [--json]

The client is librdkafka's: every record of a share group is acknowledged, and an acknowledgement is on disk (fsync) before it is
confirmed; the consumer group commits every 5 s, as it does by default.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from benchmarks._report import Figure, main
from benchmarks.broker import running_broker
from logflume.log.broker.share.in_flight import Ack, AckType, InFlight, Limits, Span, Want

RECORDS, RECORD_BYTES, PARTITIONS = 400_000, 100, 4


def clients() -> Iterator[Figure]:
    """Records a second of one consumer, and the broker's CPU for them."""
    with tempfile.TemporaryDirectory() as path, running_broker(path) as (host, port, process, _):
        address = f"{host}:{port}"
        _fill(address)
        for kind, consumer, take in (
            ("consumer group", Consumer(_settings(address, "plain") | {"auto.offset.reset": "earliest"}), _consume),
            ("share group", ShareConsumer(_settings(address, "share") | {"max.poll.records": 2000}), _poll),
        ):
            consumer.subscribe(["t"])
            take(consumer, 1)
            cpu_s, begin_s = _cpu_s(process), time.perf_counter()
            taken = take(consumer, RECORDS * 9 // 10)
            elapsed_s, used_s = time.perf_counter() - begin_s, _cpu_s(process) - cpu_s
            consumer.close()
            yield Figure(f"{kind}, one member", taken / elapsed_s, "records/s")
            yield Figure(f"{kind}: broker CPU per million records", used_s / taken * 1e6, "s")


def _settings(address: str, group: str) -> dict[str, Any]:
    return {"bootstrap.servers": address, "group.id": group, "log_level": 0}


def _fill(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic("t", PARTITIONS, 1)]).values():
        future.result(30)
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    for future in admin.incremental_alter_configs(
        [ConfigResource(ResourceType.GROUP, "share", incremental_configs=[entry])]
    ).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5})
    for number in range(RECORDS):
        producer.produce("t", b"x" * RECORD_BYTES, partition=number % PARTITIONS)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0


def _consume(consumer: Any, count: int) -> int:
    taken = 0
    while taken < count:
        taken += len(consumer.consume(2000, timeout=1))
    return taken


def _poll(consumer: Any, count: int) -> int:
    taken = 0
    while taken < count:
        taken += len(consumer.poll(timeout=1))
    return taken


def _cpu_s(process: Any) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def machine() -> Iterator[Figure]:
    """The state machine of one share partition: records acquired and acknowledged a second, whole batches and one by one."""
    limits = Limits(record_locks=2000)
    for name, batch, step in (
        ("batches of 500, acknowledged whole", 500, 500),
        ("batches of 500, acknowledged one by one", 500, 1),
    ):
        state, done, begin_s = InFlight(0), 0, time.process_time()
        while time.process_time() - begin_s < 1:
            first = state.fetch_offset
            state.acquire(Want("m", batch), first, [Span(first, first + batch - 1)], limits, now_ms=0)
            for offset in range(first, first + batch, step):
                state.commit(state.acknowledge("m", [Ack(offset, offset + step - 1, (AckType.ACCEPT,))], limits, now_ms=0))
            done += batch
        yield Figure(f"state machine: {name}", done / (time.process_time() - begin_s), "records/s")
    state, done, begin_s = InFlight(0), 0, time.process_time()
    state.acquire(Want("m", 2000), 0, [Span(0, 1999)], limits, now_ms=0)
    for offset in range(1, 2000, 2):
        state.commit(state.acknowledge("m", [Ack(offset, offset, (AckType.ACCEPT,))], limits, now_ms=0))
        state.to_store()
        done += 1
    worst_us = (time.process_time() - begin_s) / done * 1e6
    yield Figure("state machine: acknowledge and snapshot, every other of 2000", worst_us, "us")


if __name__ == "__main__":
    main(clients, machine)
