"""The clients of a soak behind one small face: logflume's own and confluent-kafka. What fails raises `Broken`: start over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import confluent_kafka

from logflume.log import Log, LogflumeError, OffsetAndMetadata, TopicPartition

from ._attributes import attributes, check_attributes
from ._history import FAILED, OK, UNKNOWN, At

CALL_TIMEOUT_S = 20.0
Done = Callable[[str, int], None]
"""Told the outcome of a send and its offset."""


class Broken(Exception):
    """The client cannot go on; a new one is to take its place."""


class Writer(Protocol):
    """A producer, transactional if it was made with an id."""

    def send(self, at: At, value: str, done: Done) -> None: ...
    def flush(self) -> None: ...
    def begin(self) -> None: ...
    def send_offsets(self, offsets: Mapping[At, int], reader: Reader) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Reader(Protocol):
    """A consumer."""

    def assign(self, positions: Mapping[At, int]) -> None: ...
    def subscribe(self, topic: str) -> None: ...
    def poll(self) -> list[tuple[At, int, str]]: ...
    def commit(self, offsets: Mapping[At, int]) -> None: ...
    def committed(self, partitions: Sequence[At]) -> dict[At, int]: ...
    def close(self) -> None: ...


class OwnWriter:
    """logflume's producer."""

    def __init__(self, log: Log, transactional_id: str | None = None) -> None:
        self._producer: Any = guarded(lambda: log.producer(transactional_id=transactional_id, linger_ms=1))
        if transactional_id:
            guarded(self._producer.init_transactions)

    def send(self, at: At, value: str, done: Done) -> None:
        def told(future: Any) -> None:
            error = future.exception()
            done(UNKNOWN if error else OK, -1 if error else future.result().offset)

        own = attributes(value)
        future = guarded(
            lambda: self._producer.send(
                at.topic, value.encode(), key=own.key, headers=own.headers, timestamp_ms=own.timestamp_ms, partition=at.partition
            )
        )
        future.add_done_callback(told)

    def flush(self) -> None:
        guarded(self._producer.flush)

    def begin(self) -> None:
        guarded(self._producer.begin_transaction)

    def send_offsets(self, offsets: Mapping[At, int], reader: Reader) -> None:
        assert isinstance(reader, OwnReader)
        named = {TopicPartition(*at): OffsetAndMetadata(offset) for at, offset in offsets.items()}
        guarded(lambda: self._producer.send_offsets(named, reader.consumer.group_metadata()))

    def commit(self) -> None:
        guarded(self._producer.commit_transaction)

    def abort(self) -> None:
        guarded(self._producer.abort_transaction)

    def close(self) -> None:
        guarded(self._producer.close)


class ConfluentWriter:
    """confluent-kafka's producer."""

    def __init__(self, address: str, transactional_id: str | None = None) -> None:
        config: dict[str, Any] = {
            "linger.ms": 1,
            "enable.idempotence": True,
            "delivery.timeout.ms": 60_000,
            **_confluent(address),
        }
        if transactional_id:
            config["transactional.id"] = transactional_id
        self._producer = confluent_kafka.Producer(config)
        if transactional_id:
            guarded(lambda: self._producer.init_transactions(CALL_TIMEOUT_S))

    def send(self, at: At, value: str, done: Done) -> None:
        def told(error: Any, message: Any) -> None:
            done(UNKNOWN if error is not None else OK, -1 if error is not None else message.offset())

        own = attributes(value)
        guarded(
            lambda: self._producer.produce(
                at.topic,
                value,
                key=own.key,
                headers=own.headers,
                timestamp=own.timestamp_ms,
                partition=at.partition,
                on_delivery=told,
            )
        )
        self._producer.poll(0)

    def flush(self) -> None:
        if self._producer.flush(CALL_TIMEOUT_S):
            raise Broken("not all records were acknowledged in time")

    def begin(self) -> None:
        guarded(self._producer.begin_transaction)

    def send_offsets(self, offsets: Mapping[At, int], reader: Reader) -> None:
        assert isinstance(reader, ConfluentReader)
        named = [confluent_kafka.TopicPartition(*at, offset) for at, offset in offsets.items()]
        metadata = reader.consumer.consumer_group_metadata()
        guarded(lambda: self._producer.send_offsets_to_transaction(named, metadata, CALL_TIMEOUT_S))

    def commit(self) -> None:
        guarded(lambda: self._producer.commit_transaction(CALL_TIMEOUT_S))

    def abort(self) -> None:
        guarded(lambda: self._producer.abort_transaction(CALL_TIMEOUT_S))

    def close(self) -> None:
        self._producer.flush(CALL_TIMEOUT_S)


class OwnReader:
    """logflume's consumer."""

    def __init__(self, log: Log, *, group: str | None = None, read_committed: bool = True, protocol: str = "classic") -> None:
        self.consumer: Any = guarded(
            lambda: log.consumer(
                group_id=group,
                read_committed=read_committed,
                session_timeout_ms=6_000,
                fetch_max_wait_ms=100,
                group_protocol=protocol,
            )
        )

    def assign(self, positions: Mapping[At, int]) -> None:
        def run() -> None:
            self.consumer.assign([TopicPartition(*at) for at in positions])
            for at, offset in positions.items():
                self.consumer.seek(TopicPartition(*at), offset)

        guarded(run)

    def subscribe(self, topic: str) -> None:
        guarded(lambda: self.consumer.subscribe([topic]))

    def poll(self) -> list[tuple[At, int, str]]:
        chunks = guarded(lambda: self.consumer.poll(timeout_s=0.2, max_records=500))
        records = [record for chunk in chunks for record in chunk.records()]
        for r in records:
            check_attributes(r.value.decode(), r.key, r.headers, r.timestamp_ms)
        return [(At(r.topic, r.partition), r.offset, r.value.decode()) for r in records]

    def commit(self, offsets: Mapping[At, int]) -> None:
        named = {TopicPartition(*at): OffsetAndMetadata(offset) for at, offset in offsets.items()}
        guarded(lambda: self.consumer.commit(named))

    def committed(self, partitions: Sequence[At]) -> dict[At, int]:
        found = guarded(lambda: self.consumer.committed([TopicPartition(*at) for at in partitions]))
        return {At(tp.topic, tp.partition): -1 if at is None else at.offset for tp, at in found.items()}

    def close(self) -> None:
        guarded(self.consumer.close)


class ConfluentReader:
    """confluent-kafka's consumer."""

    def __init__(self, address: str, *, group: str | None = None, read_committed: bool = True, protocol: str = "classic") -> None:
        config = {
            "group.protocol": protocol,
            "group.id": group or "unused",
            "isolation.level": "read_committed" if read_committed else "read_uncommitted",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **({"session.timeout.ms": 6_000} if protocol == "classic" else {}),
            "fetch.wait.max.ms": 100,
            **_confluent(address),
        }
        self.consumer = confluent_kafka.Consumer(config)

    def assign(self, positions: Mapping[At, int]) -> None:
        self.consumer.assign([confluent_kafka.TopicPartition(*at, offset) for at, offset in positions.items()])

    def subscribe(self, topic: str) -> None:
        self.consumer.subscribe([topic])

    def poll(self) -> list[tuple[At, int, str]]:
        polled = guarded(lambda: self.consumer.consume(500, timeout=0.2))
        records = [message for message in polled if message.error() is None]
        for m in records:
            check_attributes(m.value().decode(), m.key(), m.headers() or [], m.timestamp()[1])
        return [(At(m.topic(), m.partition()), m.offset(), m.value().decode()) for m in records]

    def commit(self, offsets: Mapping[At, int]) -> None:
        named = [confluent_kafka.TopicPartition(*at, offset) for at, offset in offsets.items()]
        results = guarded(lambda: self.consumer.commit(offsets=named, asynchronous=False))
        if any(each.error is not None for each in results):
            raise Broken(str([each.error for each in results]))

    def committed(self, partitions: Sequence[At]) -> dict[At, int]:
        named = [confluent_kafka.TopicPartition(*at) for at in partitions]
        found = guarded(lambda: self.consumer.committed(named, timeout=CALL_TIMEOUT_S))
        if any(each.error is not None for each in found):
            raise Broken(str([each.error for each in found]))
        return {At(each.topic, each.partition): max(-1, each.offset) for each in found}

    def close(self) -> None:
        self.consumer.close()


def _confluent(address: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": address,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 100,
        # librdkafka 2.16 forgets to send TxnOffsetCommit when it re-bootstraps between it and AddOffsetsToTxn.
        "metadata.recovery.strategy": "none",
        "log_level": 0,
    }


def guarded(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (LogflumeError, confluent_kafka.KafkaException, BufferError) as error:
        raise Broken(str(error)) from error


__all__ = ["FAILED", "Broken", "ConfluentReader", "ConfluentWriter", "OwnReader", "OwnWriter", "Reader", "Writer", "guarded"]
