"""A broker under fuzz with honest clients beside it; at the end it is killed or stopped, and all they were told is read back."""

from __future__ import annotations

import random
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from logflume.log import LogflumeError, OffsetAndMetadata, Record, TopicPartition, connect
from logflume.log.interfaces import Log

from ..log._server_process import ServerProcess
from ._frames import TOPIC, any_frame

GOOD, TRANSACTIONAL, GROUP, PARTITIONS = "good", "good-transactions", "good-group", 3
HONEST = ("records acknowledged", "transactions committed", "offset commits")
BEGIN_S = 60.0
"""How long honest clients may take, on a busy machine, until each was told something."""
READ_BACK_S = 60.0
Told = tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]
"""Key, value, timestamp and headers of a record."""


@dataclass
class History:
    """What honest clients were told. Each part is written by one thread."""

    records: dict[tuple[str, int, int], Told] = field(default_factory=dict)
    committed_values: set[bytes] = field(default_factory=set)
    doubtful_values: set[bytes] = field(default_factory=set)
    offsets: dict[int, int] = field(default_factory=dict)
    asked_offsets: dict[int, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def fuzz(path: Path, *, seconds: float, seed: int, fuzzers: int = 3) -> History:
    """Run; return what was told. The broker is killed in the middle of it, read, stopped, and read again.

    Raises AssertionError: something told is not there, or is different, or a topic cannot be read to its end.
    """
    history, stop = History(), threading.Event()
    server = ServerProcess(str(path))
    with connect(server.address) as log:
        for topic in (GOOD, TRANSACTIONAL, TOPIC):
            log.admin().create_topic(topic, partitions=PARTITIONS)
        honest = [
            threading.Thread(target=work, args=(log, history, stop), name=work.__name__)
            for work in (_produce, _produce_in_transactions, _commit_offsets)
        ]
        hostile = [
            threading.Thread(target=_attack, args=(server.port, seed * 1000 + n, history, stop), name=f"fuzzer-{n}")
            for n in range(fuzzers)
        ]
        for thread in (*honest, *hostile):
            thread.start()
        stop.wait(seconds)
        end_s = time.monotonic() + BEGIN_S
        while not all(history.counts[each] for each in HONEST) and time.monotonic() < end_s:
            stop.wait(0.1)
        stop.set()
        for thread in hostile:
            thread.join(30)
        for thread in honest:
            thread.join(150)
        assert not any(thread.is_alive() for thread in (*honest, *hostile)), "a client hangs"
        assert server.process is not None
        assert server.process.poll() is None, "the broker ended"
    server.kill()
    for is_last in (False, True):
        server.start()
        try:
            with connect(server.address) as log:
                read_back(log, history)
        finally:
            code = server.stop() if is_last else 0
            if not is_last:
                server.kill()
        assert code == 0
    assert history.errors == []
    return history


def _produce(log: Log, history: History, stop: threading.Event) -> None:
    producer, number = log.producer(linger_ms=1), 0
    while not stop.is_set():
        sent = []
        for _ in range(20):
            number += 1
            key, value, time_ms = b"k%d" % number, b"v%d" % number, 1_700_000_000_000 + number
            headers = [("n", b"%d" % number), ("none", None)]
            future = producer.send(GOOD, value, key=key, timestamp_ms=time_ms, headers=headers)
            sent.append((future, (key, value, time_ms, tuple(headers))))
        for future, told in sent:
            found = future.result(timeout=60)
            history.records[GOOD, found.partition, found.offset] = told
            history.counts["records acknowledged"] += 1
    producer.close()


def _produce_in_transactions(log: Log, history: History, stop: threading.Event) -> None:
    producer, number = log.producer(transactional_id="good", linger_ms=0), 0
    producer.init_transactions()
    while not stop.is_set():
        number += 1
        values = {b"t%d-%d" % (number, part) for part in range(PARTITIONS)}
        producer.begin_transaction()
        for part, value in enumerate(sorted(values)):
            producer.send(TRANSACTIONAL, value, partition=part)
        history.doubtful_values |= values
        if number % 3:
            producer.commit_transaction()
            history.committed_values |= values
            history.counts["transactions committed"] += 1
        else:
            producer.abort_transaction()
        history.doubtful_values -= values
    producer.close()


def _commit_offsets(log: Log, history: History, stop: threading.Event) -> None:
    number, partition = 0, TopicPartition(GOOD, 0)
    while not stop.is_set():
        number += 1
        history.asked_offsets[0] = number
        log.admin().set_group_offsets(GROUP, {partition: OffsetAndMetadata(number)})
        history.offsets[0] = number
        history.counts["offset commits"] += 1
        found = log.admin().group_offsets(GROUP)[partition].offset
        if found != number:
            history.errors.append(f"committed {number}, read {found}")


def _attack(port: int, seed: int, history: History, stop: threading.Event) -> None:
    """Send frames, a few on each connection, and read what comes."""
    rng = random.Random(seed)
    while not stop.is_set():
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
                for _ in range(rng.randrange(1, 30)):
                    sock.sendall(any_frame(rng))
                    history.counts["frames"] += 1
                    if select.select([sock], [], [], 0.002)[0] and not sock.recv(1 << 16):
                        break
        except OSError:
            history.counts["connections cut"] += 1


def read_back(log: Log, history: History) -> None:
    """Compare everything with what was told; read every topic to its end. Raises AssertionError."""
    found = {
        (record.topic, record.partition, record.offset): (
            record.key,
            record.value,
            record.timestamp_ms,
            tuple((name, value) for name, value in record.headers),
        )
        for record in _read_topic(log, GOOD)
    }
    for where, told in history.records.items():
        assert found.get(where) == told, where
    values = [record.value for record in _read_topic(log, TRANSACTIONAL)]
    assert len(values) == len(set(values)), "a transaction is there twice"
    assert history.committed_values <= set(values) <= history.committed_values | history.doubtful_values
    offset = log.admin().group_offsets(GROUP)[TopicPartition(GOOD, 0)].offset
    assert history.offsets[0] <= offset <= history.asked_offsets[0]
    for topic in log.admin().list_topics(include_internal=True):
        for _ in _read_topic(log, topic):
            history.counts["records read back"] += 1


def _read_topic(log: Log, topic: str) -> Iterator[Record]:
    """Yield every committed record from the beginning to the end as it is now. Raises AssertionError: it does not end."""
    admin, consumer = log.admin(), log.consumer(read_committed=True)
    count = admin.describe_topics([topic])[topic].partitions
    partitions = [TopicPartition(topic, index) for index in range(count)]
    starts, ends = admin.start_offsets(partitions), admin.end_offsets(partitions, read_committed=True)
    try:
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, starts[partition])
        deadline_s = time.monotonic() + READ_BACK_S
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            behind = {str(p): (consumer.position(p), ends[p]) for p in partitions if consumer.position(p) < ends[p]}
            assert time.monotonic() < deadline_s, f"{topic} cannot be read to its end: {behind}"
            for chunk in consumer.poll(timeout_s=1.0):
                yield from chunk.records()
    except LogflumeError as error:
        raise AssertionError(f"{topic} cannot be read to its end: {error}") from error
    finally:
        consumer.close()
