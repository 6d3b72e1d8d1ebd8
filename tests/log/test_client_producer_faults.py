"""An idempotent producer against a broker that loses requests and answers, refuses and rejects: each record once, in order."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logflume.log import Chunk, KafkaError, TransportError, UnknownName, connect

from ._fake_broker import FakeBroker, Fault

TOPIC = "t"
PARTITIONS = 3


def faults(seed: int, kinds: list[Fault], rate: float) -> Callable[[], Fault]:
    rng = random.Random(seed)
    return lambda: rng.choice(kinds) if rng.random() < rate else Fault.NONE


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.sampled_from([64, 200, 5000]))
def test_every_record_arrives_once_and_in_order(seed: int, batch_size: int) -> None:
    kinds = [Fault.REFUSE, Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.TOO_LARGE]
    with FakeBroker({TOPIC: PARTITIONS}, faults(seed, kinds, 0.15)) as broker, connect(broker.address) as log:
        producer = log.producer(linger_ms=0, batch_size=batch_size)
        sent: dict[int, list[bytes]] = {p: [] for p in range(PARTITIONS)}
        futures = []
        for i in range(120):
            value = b"%d" % i
            sent[i % PARTITIONS].append(value)
            futures.append((i % PARTITIONS, value, producer.send(TOPIC, value, partition=i % PARTITIONS)))
        producer.flush(timeout_s=20)
        for partition, values in sent.items():
            assert broker.logs[(TOPIC, partition)] == values
        for partition, value, future in futures:
            assert broker.logs[(TOPIC, partition)][future.result(timeout=0).offset] == value


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_a_rejected_batch_is_reported_and_the_others_arrive_in_order(seed: int) -> None:
    kinds = [Fault.REFUSE, Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.REJECT]
    with FakeBroker({TOPIC: 1}, faults(seed, kinds, 0.2)) as broker, connect(broker.address) as log:
        producer = log.producer(linger_ms=0, batch_size=60)
        futures = [(b"%d" % i, producer.send(TOPIC, b"%d" % i)) for i in range(80)]
        failed: list[bytes] = []
        for value, future in futures:
            error = future.exception(timeout=20)
            if error is not None:
                assert isinstance(error, KafkaError)
                assert error.code == "INVALID_RECORD"
                failed.append(value)
        assert broker.logs[(TOPIC, 0)] == [value for value, _ in futures if value not in failed]
        if failed:
            with pytest.raises(KafkaError, match="INVALID_RECORD"):
                producer.flush()


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_chunks_arrive_once_and_in_order_too(seed: int) -> None:
    kinds = [Fault.REFUSE, Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.TOO_LARGE]
    values: list[bytes | None] = [b"%d" % i for i in range(200)]
    chunk = Chunk.from_columns(TOPIC, [None] * 200, values, [5] * 200)
    with FakeBroker({TOPIC: 1}, faults(seed, kinds, 0.2)) as broker, connect(broker.address) as log:
        producer = log.producer(linger_ms=0, batch_size=400)
        assert producer.send_chunk(TOPIC, chunk, partition=0).result(20) == 200
        assert broker.logs[(TOPIC, 0)] == values


def test_a_topic_that_does_not_exist_is_named_with_near_matches() -> None:
    with (
        FakeBroker({"flights": 1}, lambda: Fault.NONE) as broker,
        connect(broker.address) as log,
        pytest.raises(UnknownName, match=r"unknown topic 'fligths'; did you mean 'flights'\?"),
    ):
        log.producer().send("fligths", b"x")


def test_an_address_without_a_broker_is_named() -> None:
    with FakeBroker({}, lambda: Fault.NONE) as broker:
        address = broker.address
    with pytest.raises(TransportError, match=f"cannot connect to {address}: connection refused"):
        connect(address)
