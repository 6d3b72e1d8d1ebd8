"""confluent-kafka, kafka-python and aiokafka over every listener and mechanism, and what each is told when it may not."""

import asyncio
import ssl
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer

from ._secured import LISTENERS, PASSWORDS, Secured

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
WAYS = [(protocol, mechanism) for protocol in LISTENERS for mechanism in (MECHANISMS if "SASL" in protocol else ("",))]
BIG = 3_000_000


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    started = Secured(tmp_path_factory.mktemp("secured"), **{"message.max.bytes": "8000000"})
    yield started
    started.close()


def values() -> list[bytes]:
    return [b"small", uuid.uuid4().hex.encode() * (BIG // 32)]


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_confluent_kafka(secured: Secured, topic: str, protocol: str, mechanism: str) -> None:
    settings = secured.client(protocol, mechanism=mechanism)
    sent = values()
    producer = Producer({**settings, "message.max.bytes": 8_000_000})
    for value in sent:
        producer.produce(topic, value)
    assert producer.flush(30) == 0
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest", "fetch.max.bytes": 20_000_000})
    consumer.subscribe([topic])
    try:
        assert [consumer.poll(30).value() for _ in sent] == sent
    finally:
        consumer.close()


def kafka_python(settings: dict[str, str]) -> dict[str, Any]:
    names = {
        "bootstrap.servers": "bootstrap_servers",
        "security.protocol": "security_protocol",
        "ssl.ca.location": "ssl_cafile",
        "sasl.mechanism": "sasl_mechanism",
        "sasl.username": "sasl_plain_username",
        "sasl.password": "sasl_plain_password",
    }
    return {names[name]: value for name, value in settings.items()}


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_kafka_python(secured: Secured, topic: str, protocol: str, mechanism: str) -> None:
    settings = kafka_python(secured.client(protocol, mechanism=mechanism))
    sent = values()
    producer = KafkaProducer(**settings, max_request_size=8_000_000)
    for value in sent:
        producer.send(topic, value).get(30)
    producer.close()
    consumer = KafkaConsumer(
        topic, **settings, auto_offset_reset="earliest", consumer_timeout_ms=30_000, max_partition_fetch_bytes=9_000_000
    )
    records = iter(consumer)
    assert [next(records).value for _ in sent] == sent
    consumer.close()


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_aiokafka(secured: Secured, topic: str, protocol: str, mechanism: str) -> None:
    settings = kafka_python(secured.client(protocol, mechanism=mechanism))
    if "ssl_cafile" in settings:
        settings["ssl_context"] = ssl.create_default_context(cafile=settings.pop("ssl_cafile"))
    sent = values()

    async def run() -> list[bytes]:
        async with AIOKafkaProducer(**settings, max_request_size=8_000_000) as producer:
            for value in sent:
                await producer.send_and_wait(topic, value)
        consumer = AIOKafkaConsumer(topic, **settings, auto_offset_reset="earliest", max_partition_fetch_bytes=9_000_000)
        async with consumer:
            return [(await asyncio.wait_for(consumer.getone(), 30)).value for _ in sent]

    assert asyncio.run(run()) == sent


def login_error(settings: dict[str, Any]) -> tuple[int, str]:
    """Return the first error that a client hears of."""
    errors: list[Any] = []
    client = AdminClient({**settings, "error_cb": errors.append, "log_level": 0, "reconnect.backoff.ms": 10})
    for _ in range(100):
        client.poll(0.1)
        if errors:
            return errors[0].code(), errors[0].str()
    raise AssertionError("no error was told")


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", "wrong"), ("bob", PASSWORDS["alice"])])
def test_a_wrong_password_and_an_unknown_user_are_told_alike(secured: Secured, mechanism: str, user: str, password: str) -> None:
    code, text = login_error(secured.client("SASL_SSL", mechanism=mechanism, user=user, password=password))
    assert code == KafkaError._AUTHENTICATION
    assert f"invalid credentials with SASL mechanism {mechanism}" in text
    assert password not in text


def test_a_mechanism_that_is_not_there_is_named(secured: Secured) -> None:
    settings = secured.client("SASL_PLAINTEXT") | {
        "sasl.mechanism": "OAUTHBEARER",
        "enable.sasl.oauthbearer.unsecure.jwt": "true",
    }
    settings |= {"sasl.oauthbearer.config": "principal=admin"}
    code, text = login_error({key: value for key, value in settings.items() if key not in ("sasl.username", "sasl.password")})
    assert code == KafkaError._AUTHENTICATION
    assert "broker's supported mechanisms: PLAIN,SCRAM-SHA-256,SCRAM-SHA-512" in text
